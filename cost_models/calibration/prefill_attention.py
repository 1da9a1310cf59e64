"""Fits of prefill attention: whole prompts, and chunks on earlier context."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from cost_models.calibration.heads import heads_of
from cost_models.calibration.lines import hats
from cost_models.laws.decode_attention import query_ns
from cost_models.laws.prefill_attention import PrefillKind
from cost_models.roofline.operands import Floats
from cost_models.specs.gpu import GpuSpec

_SECOND = 1e9
#: Shorter prompts are not fitted: their time is mainly a launch.
_SHORTEST = 128
#: Knots of KV heads, between which the time of writing a token to the cache is linear.
_KV_HEADS = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
#: The relative error above which a row has less weight (soft L1).
_KNEE = 0.03


class FittedPrefill(NamedTuple):
    """The kinds, and the excess of the launch of whole prompts over that of the chunks' measurement."""

    kinds: tuple[PrefillKind, ...]
    excess_launch_ns: float


def fit_prefill(rows: pd.DataFrame, chunks: pd.DataFrame, gpu: GpuSpec) -> FittedPrefill:
    """Fit a law for each cache format and head size (with MLA: number of heads) to the calls in `rows` without a
    window.

    `rows` are those of `AttentionRows`. `chunks` (which may be empty) are calls on earlier context. They determine the
    time of a pair with earlier context, and that of a key of it on the longest path; their launch is a separate
    parameter that is in no law, since other kernels were timed in another way. Kinds without chunks get two ratios of
    kinds with chunks: of `earlier` to `new`, and of `context_serial_ns` to `serial_ns`.
    """
    used, chunks = rows[(rows["tokens"] >= _SHORTEST) & (rows["window"] == 0)], chunks[chunks["window"] == 0]
    used = used.assign(kind_heads=used["heads"].where(used["latent"] > 0, 0))
    kinds, fitted = [], None
    for (kv_dtype, latent, head_dim, heads), group in used.groupby(["kv_dtype", "latent", "head_dim", "kind_heads"]):
        same = (chunks["kv_dtype"] == kv_dtype) & (chunks["latent"] == latent) & (chunks["head_dim"] == head_dim)
        found, launch_ns = _fit_kind(group, chunks[same], gpu)
        kind = found._replace(latent=latent > 0, heads=int(heads))
        if same.any():
            fitted = (kind, launch_ns)
        kinds.append(kind)
    if fitted is None:
        return FittedPrefill(tuple(kinds), 0.0)
    model, chunk_launch_ns = fitted
    earlier, serial = model.earlier / model.new, model.context_serial_ns / model.serial_ns
    others = (
        kind
        if kind is model
        else kind._replace(earlier=max(1.0, kind.new * earlier), context_serial_ns=kind.serial_ns * serial)
        for kind in kinds
    )
    return FittedPrefill(tuple(others), model.launch_ns - chunk_launch_ns)


#: Limit of each logarithm's distance from its value at the start of the fit.
_LIMIT = 10.0


def _fit_kind(rows: pd.DataFrame, chunks: pd.DataFrame, gpu: GpuSpec) -> tuple[PrefillKind, float]:
    """Return the kind, and the launch of the chunks. Times are positive, rates at least 1: logarithms are fitted."""
    both = pd.concat([rows, chunks])
    alone = np.arange(len(both)) >= len(rows)
    tokens, context = both["tokens"].to_numpy(float), both["context"].to_numpy(float)
    measured = both["latency_ns"].to_numpy(float)
    kv_heads = _KV_HEADS[np.isin(_KV_HEADS, both["kv_heads"])]
    work = _work_design(both, kv_heads, gpu)

    def terms(logs: Floats) -> tuple[Floats, Floats]:
        values = np.exp(logs)
        return values[:4], values[4:]

    def relative(logs: Floats) -> Floats:
        (launch, chunk_launch, serial, context_serial), rates = terms(logs)
        path = serial * tokens + context_serial * context
        time = np.where(alone, chunk_launch, launch) + np.maximum(work @ rates, path)
        return np.asarray(time / measured - 1, float)

    start = np.log(np.concatenate([[10_000.0, 10_000.0, 10.0, 20.0, 1.5, 1.5, 2.0], kv_heads]))
    least = np.full(len(start), -np.inf)
    least[4:6] = 0.0
    # Limits for terms that the rows do not determine (there may be no chunks).
    found = least_squares(relative, start, bounds=(least, start + _LIMIT), loss="soft_l1", f_scale=_KNEE)
    (launch, chunk_launch, serial, context_serial), rates = terms(found.x)
    kind = PrefillKind(
        kv_dtype=str(rows["kv_dtype"].iloc[0]),
        head_dim=int(rows["head_dim"].iloc[0]),
        launch_ns=float(launch),
        new=float(rates[0]),
        earlier=float(rates[1]) if len(chunks) else float(rates[0]),
        query=float(rates[2]),
        kv_heads=kv_heads,
        token_ns=rates[3:],
        serial_ns=float(serial),
        context_serial_ns=float(context_serial) if len(chunks) else float(serial),
    )
    return kind, float(chunk_launch)


def _work_design(rows: pd.DataFrame, kv_heads: Floats, gpu: GpuSpec) -> Floats:
    """Return a matrix of times per row.

    Columns: FLOPs on pairs of new tokens, and on pairs with earlier context, at the peak; queries and outputs at the
    peak bandwidth; tokens for each knot of KV heads.
    """
    pair, query = np.zeros(len(rows)), np.zeros(len(rows))
    for heads, _, mine in heads_of(rows):
        pair[mine] = _SECOND * heads.pair_flops / gpu.peak(heads.kv_dtype)
        query[mine] = query_ns(heads._replace(latent=0), gpu)
    chunks, tokens = rows["batch"].to_numpy(float), rows["tokens"].to_numpy(float)
    new, earlier = tokens * (tokens + 1) / 2, tokens * rows["context"].to_numpy(float)
    written = hats(kv_heads, rows["kv_heads"].to_numpy(float)) * tokens[:, None]
    columns = np.column_stack([new * pair, earlier * pair, tokens * query, written])
    return np.asarray(columns * chunks[:, None], float)
