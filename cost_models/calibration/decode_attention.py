"""Fits of decode attention to calls whose keys and values come from HBM."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import nnls

from cost_models.calibration.heads import heads_of, seen_keys
from cost_models.calibration.lines import hats
from cost_models.laws.decode_attention import COLD, DecodeKind, query_ns
from cost_models.roofline.operands import Floats
from cost_models.specs.gpu import GpuSpec

_SECOND = 1e9
#: The launch of short calls is fitted to calls with at least this context (other kernels run below it), and with keys
#: and values within this part of the L2.
_SERVED, _HOT = 256, 0.5
#: Fewest pairs (sequence, KV head) of a knot of the launch: below, it is constant on every measured GPU.
_FIRST_KNOT = 16
#: Rounds of reweighting towards least absolute errors, and the error above which a row has less weight.
_ROUNDS, _KNEE = 6, 0.02


def cold(rows: pd.DataFrame, gpu: GpuSpec) -> NDArray[np.bool_]:
    """Return True for the decode calls whose keys and values do not fit into L2."""
    return traffic_ns(rows, gpu) * gpu.hbm_bandwidth / _SECOND > COLD * gpu.l2_bytes


def traffic_ns(rows: pd.DataFrame, gpu: GpuSpec) -> Floats:
    """Return the time in which each call's keys and values pass through HBM at the peak."""
    key_bytes = np.zeros(len(rows))
    for heads, _, mine in heads_of(rows):
        key_bytes[mine] = heads.key_bytes
    time: Floats = rows["batch"].to_numpy(float) * seen_keys(rows) * key_bytes * (_SECOND / gpu.hbm_bandwidth)
    return time


def fit_decode(rows: pd.DataFrame, gpu: GpuSpec, splits_keys: bool) -> tuple[DecodeKind, ...]:
    """Fit a law for each cache format and head size (with MLA: number of heads) to the calls in `rows` without a
    window.

    `rows` are those of `AttentionRows`. If the kernel does not always split keys (`splits_keys` is False), it does so
    for heads that share KV heads, but not for other heads and for MLA: these have separate laws, whose rate depends on
    the pairs.
    """
    mla = rows["latent"] > 0
    shared = splits_keys | mla | (rows["heads"] > rows["kv_heads"])
    used = rows.assign(mla=mla, kind_heads=rows["heads"].where(mla, 0), shared=shared)[rows["window"] == 0]
    kinds = []
    for key, group in used.groupby(["kv_dtype", "head_dim", "shared", "mla", "kind_heads"]):
        kv_dtype, head_dim, shares, latent, heads = key
        if cold(group, gpu).any():
            terms = _fit_terms(group, gpu, constant_rate=splits_keys or (shares and not latent))
            kinds.append(DecodeKind(str(kv_dtype), int(head_dim), bool(shares), *terms, bool(latent), int(heads)))
    return tuple(kinds)


class _Terms(NamedTuple):
    """Return the fitted fields of a `DecodeKind`."""

    launch_pairs: Floats
    launch_ns: Floats
    saved_ns: Floats
    query: float
    rate_pairs: Floats
    rate: Floats


def _fit_terms(rows: pd.DataFrame, gpu: GpuSpec, constant_rate: bool) -> _Terms:
    beyond, traffic = rows[cold(rows, gpu)], traffic_ns(rows, gpu) * gpu.hbm_bandwidth / _SECOND
    pairs = (beyond["batch"] * beyond["kv_heads"]).to_numpy(float)
    launch_pairs = _knots(pairs, _FIRST_KNOT)
    rate_pairs = np.array([1.0]) if constant_rate else _knots(pairs, 1)
    launch, query, rate = _solve(beyond, gpu, launch_pairs, rate_pairs, least_rate=1.0)
    saved = np.zeros_like(launch)
    hot = rows[(rows["context"] >= _SERVED).to_numpy() & (traffic < _HOT * gpu.l2_bytes)]
    if len(hot):
        short, _, _ = _solve(hot, gpu, launch_pairs, rate_pairs, least_rate=0.0)
        saved = np.minimum.accumulate(np.maximum(0.0, launch - short))
    return _Terms(launch_pairs, launch, saved, query, rate_pairs, rate)


def _solve(
    rows: pd.DataFrame, gpu: GpuSpec, launch_pairs: Floats, rate_pairs: Floats, least_rate: float
) -> tuple[Floats, float, Floats]:
    """Return the launch at its knots, the query, and the rate at its knots.

    The law is linear in them. The launch is fitted as a sum of non-negative increments, so that it does not decrease.
    """
    batch, knots = rows["batch"].to_numpy(float), len(launch_pairs)
    pairs = batch * rows["kv_heads"].to_numpy(float)
    query = np.zeros(len(rows))
    for heads, _, mine in heads_of(rows):
        query[mine] = query_ns(heads, gpu)
    inside = np.clip(pairs, rate_pairs[0], rate_pairs[-1])
    sweeps = hats(rate_pairs, inside) * (rate_pairs / inside[:, None]) * traffic_ns(rows, gpu)[:, None]
    increments = hats(launch_pairs, pairs) @ np.tril(np.ones((knots, knots)))
    design = np.column_stack([increments, batch * query, sweeps])
    least = np.concatenate([np.zeros(knots + 1), np.full(len(rate_pairs), least_rate)])
    found = _robust(design, rows["latency_ns"].to_numpy(float), least)
    rate = np.maximum.accumulate(rate_pairs * found[knots + 1 :]) / rate_pairs
    return np.cumsum(found[:knots]), float(found[knots]), rate


def _knots(pairs: Floats, first: float) -> Floats:
    """Return powers of two from `first` on between which there are rows."""
    return np.unique(np.maximum(first, 2.0 ** np.ceil(np.log2(pairs))))


def _robust(design: Floats, measured: Floats, least: Floats) -> Floats:
    """Return parameters, each at least `least`, with the smallest relative errors; large errors count linearly
    (Huber)."""
    relative = design / measured[:, None]
    scale = np.maximum(np.linalg.norm(relative, axis=0), 1e-12)
    weights = np.ones(len(measured))
    found = least
    for _ in range(_ROUNDS):
        root = np.sqrt(weights)[:, None]
        above, _ = nnls(relative * root / scale, (root[:, 0] * (1 - relative @ least)))
        found = least + above / scale
        weights = np.minimum(1.0, _KNEE / np.maximum(np.abs(relative @ found - 1), 1e-12))
    return found
