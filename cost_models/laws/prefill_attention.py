"""Prefill attention: arithmetic on pairs of tokens, writing the cache, and time of one thread block for its keys."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from cost_models.files.fields import Fields
from cost_models.laws.decode_attention import query_ns
from cost_models.laws.lines import line, rounded
from cost_models.laws.values import read_knots, read_points
from cost_models.roofline.operands import Floats, Heads, causal_keys, causal_pairs
from cost_models.specs.gpu import GpuSpec

_SECOND = 1e9


class PrefillKind(NamedTuple):
    """Prefill attention with one head size and cache format.

    A call takes

        launch_ns + max(sum of the chunks' work, longest path)
        work = new x (FLOPs on pairs of new tokens / peak) + earlier x (FLOPs on pairs with earlier context / peak)
             + query x (bytes of queries and outputs / peak bandwidth) + tokens x token_ns(KV heads)
        path = tokens x serial_ns + context x context_serial_ns

    `new` and `earlier` are 1 / efficiency, at least 1. `token_ns` is linear between the knots `kv_heads`: writing a
    token's keys and values takes a thread block of its own, whose time hardly depends on their width. Measured calls
    include this write. `path` is the time of the thread block with the most keys.

    Kinds with MLA (`latent`) have a separate law for each number of `heads`, the query heads of a GPU.
    """

    kv_dtype: str
    head_dim: int
    launch_ns: float
    new: float
    earlier: float
    query: float
    kv_heads: Floats
    token_ns: Floats
    serial_ns: float
    context_serial_ns: float
    latent: bool = False
    heads: int = 0

    def cost(self, heads: Heads, gpu: GpuSpec) -> PrefillTimes:
        """Return the times of these heads on a GPU with these peaks."""
        pair_ns = _SECOND * heads.pair_flops / gpu.peak(heads.kv_dtype)
        write_ns = float(line(self.kv_heads, self.token_ns, np.array([heads.kv_heads], float))[0])
        return PrefillTimes(
            launch_ns=self.launch_ns,
            serial_ns=self.serial_ns,
            context_serial_ns=self.context_serial_ns,
            new_ns=max(1.0, self.new) * pair_ns,
            earlier_ns=max(1.0, self.earlier) * pair_ns,
            token_ns=self.query * query_ns(heads._replace(latent=0), gpu) + write_ns,
            key_ns=_SECOND * heads.key_bytes / gpu.hbm_bandwidth,
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values, with times and rates of four significant digits."""
        numbers = ("launch_ns", "new", "earlier", "query", "serial_ns", "context_serial_ns")
        return {
            "kv_dtype": self.kv_dtype,
            "head_dim": self.head_dim,
            "latent": self.latent,
            "heads": self.heads,
            **{name: rounded([getattr(self, name)])[0] for name in numbers},
            "kv_heads": self.kv_heads.tolist(),
            "token_ns": rounded(self.token_ns),
        }

    @staticmethod
    def from_json(data: Fields) -> PrefillKind:
        """Return the kind from the result of `to_json`. Raises CostModelError if it is not valid."""
        kv_heads = read_knots(data, "kv_heads")
        kind = PrefillKind(
            kv_dtype=data.text("kv_dtype"),
            head_dim=data.integer("head_dim"),
            latent=data.flag("latent"),
            heads=data.integer("heads", least=0),
            launch_ns=data.number("launch_ns", zero=True),
            new=data.number("new", zero=True),
            earlier=data.number("earlier", zero=True),
            query=data.number("query", zero=True),
            kv_heads=kv_heads,
            token_ns=read_points(data, "token_ns", like=kv_heads),
            serial_ns=data.number("serial_ns", zero=True),
            context_serial_ns=data.number("context_serial_ns", zero=True),
        )
        data.finish()
        return kind


class PrefillTimes(NamedTuple):
    """The `PrefillCost` of measured kernels: times of a pair of tokens (both new, or one in the earlier context), of a
    new token, and of a key that is read."""

    launch_ns: float
    serial_ns: float
    context_serial_ns: float
    new_ns: float
    earlier_ns: float
    token_ns: float
    key_ns: float

    def work_ns(self, tokens: Floats, context: Floats, window: int) -> Floats:
        """Return the time of chunks of `tokens` after `context` earlier tokens, each alone on the GPU; `window` 0 is
        none.

        It is at least the time of the FLOPs, and of the bytes of the keys, at the GPU's peaks.
        """
        new = causal_pairs(tokens, np.zeros_like(context), window)
        earlier = causal_pairs(tokens, context, window) - new
        work = new * self.new_ns + earlier * self.earlier_ns + tokens * self.token_ns
        return np.maximum(work, causal_keys(tokens, context, window) * self.key_ns)
