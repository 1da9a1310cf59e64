"""Decode attention: a launch that grows with the thread blocks of a call, and reading the keys and values."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cost_models.files.fields import Fields
from cost_models.kernels.contract import DecodeCost
from cost_models.laws.lines import line, rounded
from cost_models.laws.values import read_knots, read_points
from cost_models.roofline.operands import Floats, Heads
from cost_models.specs.dtypes import ACTIVATION_BYTES
from cost_models.specs.gpu import GpuSpec

_SECOND = 1e9
#: Measured calls repeat on the same data, which are read from L2 if they fit: up to twice as fast as in serving, where
#: they come from HBM. Calls on more than this many times the L2 count as reading from HBM (cold).
COLD = 1.5


class DecodeKind(NamedTuple):
    """Decode attention with one head size and cache format; `shared` is True if query heads share KV heads.

    The time of a call depends on the number of its pairs (sequence, KV head), since each pair is computed by one thread
    block, or by several that split its keys:

        launch(pairs) + query x (bytes of queries and outputs / peak bandwidth)
                      + rate(pairs) x (bytes of keys and values / peak bandwidth)
                      - saved(pairs) x max(0, 1 - bytes of keys and values / (COLD x L2))

    `launch_ns` and `saved_ns` are linear between the knots `launch_pairs`. The law is fitted to calls beyond `COLD`
    times the L2. The launch of short calls, `launch_ns` - `saved_ns`, is that of measured calls with their keys in L2,
    since so few keys hardly take longer from HBM; between short and cold calls the time is linear. Measured calls with
    a window take the whole launch, whatever its length.

    `rate` is 1 / efficiency, at least 1, at the knots `rate_pairs`: with a single knot it is constant. Between knots
    pairs x rate is linear and does not decrease, so that one more decode with at least the mean context of the others
    never shortens a step; with a constant rate no decode does.

    Kinds with MLA (`latent`) have one pair a sequence, and a separate law for each number of `heads`, the query heads
    of a GPU.
    """

    kv_dtype: str
    head_dim: int
    shared: bool
    launch_pairs: Floats
    launch_ns: Floats
    saved_ns: Floats
    query: float
    rate_pairs: Floats
    rate: Floats
    latent: bool = False
    heads: int = 0

    def cost(self, heads: Heads, gpu: GpuSpec, decodes: Floats) -> DecodeCost:
        """Return the cost for each number of `decodes` (n,); a key takes at least its FLOPs and bytes at the peaks."""
        pairs = decodes * heads.kv_heads
        traffic = _SECOND * heads.key_bytes / gpu.hbm_bandwidth
        arithmetic = _SECOND * heads.key_flops / gpu.peak(heads.kv_dtype)
        launch = line(self.launch_pairs, self.launch_ns, pairs) + decodes * (self.query * query_ns(heads, gpu))
        saved = line(self.launch_pairs, self.saved_ns, np.minimum(pairs, self.launch_pairs[-1]))
        key = np.maximum(self._rate(pairs) * traffic, arithmetic)
        return DecodeCost(launch, key, saved, COLD * gpu.l2_bytes / heads.key_bytes)

    def _rate(self, pairs: Floats) -> Floats:
        inside = np.clip(pairs, self.rate_pairs[0], self.rate_pairs[-1])
        return np.maximum(1.0, line(self.rate_pairs, self.rate_pairs * self.rate, inside) / inside)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, with times and rates of four significant digits."""
        return {
            "kv_dtype": self.kv_dtype,
            "head_dim": self.head_dim,
            "shared": self.shared,
            "latent": self.latent,
            "heads": self.heads,
            "launch_pairs": self.launch_pairs.tolist(),
            "launch_ns": rounded(self.launch_ns),
            "saved_ns": rounded(self.saved_ns),
            "query": rounded([self.query])[0],
            "rate_pairs": self.rate_pairs.tolist(),
            "rate": rounded(self.rate),
        }

    @staticmethod
    def from_json(data: Fields) -> DecodeKind:
        """Return the kind from the result of `to_json`. Raises CostModelError if it is not valid."""
        launch_pairs, rate_pairs = read_knots(data, "launch_pairs"), read_knots(data, "rate_pairs")
        kind = DecodeKind(
            kv_dtype=data.text("kv_dtype"),
            head_dim=data.integer("head_dim"),
            shared=data.flag("shared"),
            latent=data.flag("latent"),
            heads=data.integer("heads", least=0),
            launch_pairs=launch_pairs,
            launch_ns=read_points(data, "launch_ns", like=launch_pairs),
            saved_ns=read_points(data, "saved_ns", like=launch_pairs),
            query=data.number("query", zero=True),
            rate_pairs=rate_pairs,
            rate=read_points(data, "rate", like=rate_pairs),
        )
        data.finish()
        return kind


def query_ns(heads: Heads, gpu: GpuSpec) -> float:
    """Return the time to move one token's queries and outputs through HBM at its peak bandwidth."""
    widths = heads.latent + heads.kv_lora_rank if heads.latent else heads.head_dim + heads.v_head_dim
    return _SECOND * heads.heads * widths * ACTIVATION_BYTES / gpu.hbm_bandwidth
