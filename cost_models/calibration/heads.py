"""The heads of measured attention calls."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cost_models.calibration.read_attention import KV_LORA_RANK
from cost_models.roofline.operands import Floats, Heads

_HEADS = ["heads", "kv_heads", "head_dim", "v_head_dim", "kv_dtype", "latent", "window"]


def heads_of(rows: pd.DataFrame) -> Iterator[tuple[Heads, int, NDArray[np.intp]]]:
    """Yield each kind of heads and window among the calls (columns of `AttentionRows`), with the positions of its
    calls."""
    for key, mine in rows.groupby(_HEADS).indices.items():
        heads, kv_heads, head_dim, v_head_dim, kv_dtype, latent, window = key
        rank = KV_LORA_RANK if latent else 0
        shape = Heads(int(heads), int(kv_heads), int(head_dim), int(v_head_dim), str(kv_dtype), int(latent), rank)
        yield shape, int(window), np.asarray(mine, np.intp)


def seen_keys(rows: pd.DataFrame) -> Floats:
    """Return the keys to which each decode attends."""
    context, window = rows["context"].to_numpy(float), rows["window"].to_numpy(float)
    seen: Floats = np.where(window > 0, np.minimum(context, window), context)
    return seen
