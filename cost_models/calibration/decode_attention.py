"""Fitting decode attention to calls whose keys and values come from HBM."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from cost_models.calibration.heads import heads_of, seen_keys
from cost_models.calibration.lines import hats
from cost_models.gpu import GpuSpec
from cost_models.laws.decode_attention import DecodeKind, query_ns
from cost_models.operands import Floats

_SECOND = 1e9
#: Measured calls repeat on the same data, so that what fits into L2 is read from there: up to twice as fast as in
#: serving, where the cache is cold. Only calls on more than this many times the L2 are used.
COLD = 1.5
#: Fewest pairs (sequence, KV head) at which a launch has a knot: below, it is flat on every GPU measured.
_FIRST_KNOT = 16
#: Rounds of reweighting towards least absolute errors, and the error from which a row counts less.
_ROUNDS, _KNEE = 6, 0.02


def cold(rows: pd.DataFrame, gpu: GpuSpec) -> NDArray[np.bool_]:
    """True for the decode calls whose keys and values do not fit into L2."""
    return traffic_ns(rows, gpu) * gpu.hbm_bandwidth / _SECOND > COLD * gpu.l2_bytes


def traffic_ns(rows: pd.DataFrame, gpu: GpuSpec) -> Floats:
    """Time in which each call's keys and values pass through HBM at the peak."""
    key_bytes = np.zeros(len(rows))
    for heads, _, mine in heads_of(rows):
        key_bytes[mine] = heads.key_bytes
    time: Floats = rows["batch"].to_numpy(float) * seen_keys(rows) * key_bytes * (_SECOND / gpu.hbm_bandwidth)
    return time


def fit_decode(rows: pd.DataFrame, gpu: GpuSpec, splits_keys: bool) -> tuple[DecodeKind, ...]:
    """A law for each cache format and head size (with MLA: number of heads) among the calls in `rows` that have no
    window; see `AttentionRows`.

    Where the kernel does not always split keys, heads that are shared and those that are not have laws of their own,
    and the rate depends on the pairs.
    """
    used = rows[cold(rows, gpu) & (rows["window"] == 0)]
    mla = used["latent"] > 0
    used = used.assign(
        kind_heads=used["heads"].where(mla, 0), shared=splits_keys | mla | (used["heads"] > used["kv_heads"])
    )
    kinds = []
    for (kv_dtype, latent, head_dim, heads, shared), group in used.groupby(
        ["kv_dtype", "latent", "head_dim", "kind_heads", "shared"]
    ):
        blank = DecodeKind(
            kv_dtype=str(kv_dtype),
            head_dim=int(head_dim),
            shared=bool(shared),
            launch_pairs=np.zeros(0),
            launch_ns=np.zeros(0),
            query=0.0,
            rate_pairs=np.zeros(0),
            rate=np.zeros(0),
            latent=latent > 0,
            heads=int(heads),
        )
        kinds.append(_fit_kind(blank, group, gpu, constant_rate=splits_keys))
    return tuple(kinds)


def _fit_kind(blank: DecodeKind, rows: pd.DataFrame, gpu: GpuSpec, constant_rate: bool) -> DecodeKind:
    """Bounded linear least squares of relative errors: every term of the law is linear in its parameters."""
    pairs = (rows["batch"] * rows["kv_heads"]).to_numpy(float)
    launch_pairs = _knots(pairs, _FIRST_KNOT)
    rate_pairs = np.array([1.0]) if constant_rate else _knots(pairs, 1)
    query = np.zeros(len(rows))
    for heads, _, mine in heads_of(rows):
        query[mine] = query_ns(heads, gpu)
    sweeps = hats(rate_pairs, np.clip(pairs, rate_pairs[0], rate_pairs[-1])) * rate_pairs
    sweeps = sweeps / np.clip(pairs, rate_pairs[0], rate_pairs[-1])[:, None] * traffic_ns(rows, gpu)[:, None]
    # The launch as a sum of increments that are not negative: it does not decrease.
    steps = np.tril(np.ones((len(launch_pairs), len(launch_pairs))))
    design = np.column_stack([hats(launch_pairs, pairs) @ steps, rows["batch"].to_numpy(float) * query, sweeps])
    least = np.concatenate([np.zeros(len(launch_pairs) + 1), np.ones(len(rate_pairs))])
    found = _robust(design, rows["latency_ns"].to_numpy(float), least)
    rate = np.maximum.accumulate(rate_pairs * found[len(launch_pairs) + 1 :]) / rate_pairs
    return DecodeKind(
        kv_dtype=blank.kv_dtype,
        head_dim=blank.head_dim,
        shared=blank.shared,
        latent=blank.latent,
        heads=blank.heads,
        launch_pairs=launch_pairs,
        launch_ns=np.cumsum(found[: len(launch_pairs)]),
        query=float(found[len(launch_pairs)]),
        rate_pairs=rate_pairs,
        rate=rate,
    )


def _knots(pairs: Floats, first: float) -> Floats:
    """Powers of two from `first` on between which there are rows."""
    return np.unique(np.maximum(first, 2.0 ** np.ceil(np.log2(pairs))))


def _robust(design: Floats, measured: Floats, least: Floats) -> Floats:
    """Parameters, each at least `least`, with the smallest relative errors; large ones count linearly (Huber)."""
    relative = design / measured[:, None]
    scale = np.maximum(np.linalg.norm(relative, axis=0), 1e-12)
    weights = np.ones(len(measured))
    found = least
    for _ in range(_ROUNDS):
        root = np.sqrt(weights)
        solved = lsq_linear(relative * root[:, None] / scale, root, bounds=(least * scale, np.inf), tol=1e-10)
        found = np.asarray(solved.x / scale, float)
        weights = np.minimum(1.0, _KNEE / np.maximum(np.abs(relative @ found - 1), 1e-12))
    return found
