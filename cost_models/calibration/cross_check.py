"""Comparison of the tables used for calibration with other tables of the same kernels, and with physical bounds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from cost_models.calibration.attention import decode_work_ns, prefill_work_ns
from cost_models.calibration.calibrate import PACKAGE_NAMES, package_root
from cost_models.calibration.gemm import gemm_bound_ns
from cost_models.calibration.moe import experts_bound_ns
from cost_models.calibration.read_attention import taken_attention
from cost_models.calibration.read_communication import read_all_reduce
from cost_models.calibration.read_gemm import taken_gemm
from cost_models.calibration.read_moe import taken_all_to_all, taken_experts
from cost_models.calibration.siblings import MODULE, Collection, collections
from cost_models.errors import CostModelError
from cost_models.kernels.calibrated import CalibratedKernels, kernels_of
from cost_models.library import load_gpu
from cost_models.roofline.operands import Floats
from cost_models.specs.gpu import GpuSpec

#: A table is flagged if the median of its times, relative to those of another table over the shapes that both have, is
#: above this or below its inverse.
FACTOR = 1.5
#: A table is flagged if the median of its long calls is this many times the physical bound.
BOUND_FACTOR = 3.0
#: Calls whose bound is at least this are long: their launch hardly matters.
LONG_NS = 20_000.0
#: The fewest common shapes for a comparison.
_LEAST_SHAPES = 8
#: Names of the physical bound, and of the laws of kernels that are not in the package.
BOUND, _LAW = "physical bound", "the shipped law"
#: Messages in bytes for which laws are compared, and the bytes that a fused norm moves for a token of 8,192 numbers.
_LAW_BYTES, _NORM_BYTES = 2.0 ** np.arange(20, 32, 0.5), 4 * 8192 * 2.0
_SECOND = 1e9


class Ratios(NamedTuple):
    """Comparison of the times of some shapes: their number, and the 10th, 50th and 90th percentile of the ratio."""

    shapes: int
    low: float
    median: float
    high: float


class Comparison(NamedTuple):
    """A table in use compared with that of another `place`, or with the bound: calls with a short bound, and long
    calls.

    None if too few shapes are common. `flagged` is True if a median is beyond the factor.
    """

    operator: str
    group: str
    taken: str
    place: str
    short: Ratios | None
    long: Ratios | None
    flagged: bool


class _Table(NamedTuple):
    """A collection with one row a shape: `shape` columns, latency_ns and bound_ns."""

    collection: Collection
    shape: list[str]
    rows: pd.DataFrame


def cross_check(gpu: str) -> list[Comparison]:
    """Compare every table that the calibration of `gpu` (a shipped name) uses.

    Each is compared, on common shapes, with all other tables of the same operator and format on this GPU; with the
    tables used for other GPUs, as multiples of each GPU's physical bound; and with that bound itself. Copies between
    GPUs and elementwise kernels are not in the package: their shipped laws are compared with the bound.

    Raises CostModelError for a GPU that is not in the package, and if the package is not installed.
    """
    if gpu not in PACKAGE_NAMES:
        raise CostModelError(f"no measured kernels of {gpu}; there are those of {', '.join(sorted(PACKAGE_NAMES))}")
    root = package_root()
    found = []
    mine = _tables(root, gpu, every=True)
    chosen = _taken(root, gpu)
    others = {name: _tables(root, name, every=False) for name in PACKAGE_NAMES if name != gpu}
    for (operator, group), place in chosen.items():
        taken = next((table for table in mine if _key(table) == (operator, group, place)), None)
        if taken is None:  # the collection does not have this format
            continue
        found.append(_against_bound(taken))
        for other in mine:
            if _key(other)[:2] == (operator, group) and other.collection.place != place:
                found.append(_compared(taken, other, other.collection.place, normal=False))
        for name, tables in others.items():
            for other in tables:
                if _key(other)[:2] == (operator, group):
                    found.append(_compared(taken, other, f"{name} {other.collection.place}", normal=True))
    return [comparison for comparison in found if comparison.short or comparison.long] + _laws(gpu)


def _key(table: _Table) -> tuple[str, str, str]:
    return table.collection.operator, table.collection.group, table.collection.place


def _taken(root: Path, gpu: str) -> dict[tuple[str, str], str]:
    """Return the place of the table in use, by operator and group."""
    folder = PACKAGE_NAMES[gpu]
    operators: Mapping[str, Mapping[str, str]] = {
        "gemm": taken_gemm(folder),
        "attention": taken_attention(folder),
        "moe": taken_experts(folder),
        "all_reduce": dict.fromkeys(read_all_reduce(root, folder), _JOINED),
        "all_to_all": taken_all_to_all(folder),
    }
    return {(operator, group): place for operator, groups in operators.items() for group, place in groups.items()}


#: The place of the all-reduces in use, which come from two collections.
_JOINED = "comm/vllm, comm/nccl from 8 MiB"


def _tables(root: Path, gpu: str, every: bool) -> list[_Table]:
    """Return the tables of a GPU: all, or only those in use."""
    spec, folder, taken = load_gpu(gpu), PACKAGE_NAMES[gpu], _taken(root, gpu)
    reduced = read_all_reduce(root, folder)
    joined = [Collection("all_reduce", group, _JOINED, rows) for group, (rows, _) in reduced.items()]
    found = []
    for collection in (*collections(root / folder, kernels_of(spec, "shipped")), *joined):
        if len(collection.rows) and (every or taken.get(collection[:2]) == collection.place):
            found.append(_table(collection, spec))
    return found


def _table(collection: Collection, gpu: GpuSpec) -> _Table:
    rows = collection.rows.assign(bound_ns=_bound_ns(collection, gpu))
    shape = [name for name in collection.rows if name != "latency_ns"]
    if collection.operator == "moe":
        shape = [name for name in shape if name != "matrices"]
    return _Table(collection, shape, rows.groupby(shape, as_index=False)[["latency_ns", "bound_ns"]].median())


def _bound_ns(collection: Collection, gpu: GpuSpec) -> Floats:
    """Return the least time of each call: FLOPs at the peak of the format, or bytes at the bandwidth of HBM or
    NVLink."""
    operator, group, _, rows = collection
    if operator == "gemm":
        return gemm_bound_ns(rows, gpu, group)
    if operator == "moe":
        return experts_bound_ns(rows, gpu, _STORED.get(group, group))
    if operator == "attention":
        # Engines multiply keys from an FP8 cache as BF16, unless they are configured otherwise.
        return prefill_work_ns(rows.assign(kv_dtype="bf16"), gpu) if "tokens" in rows else decode_work_ns(rows, gpu)
    link = gpu.nvlink_bandwidth or gpu.pcie.bandwidth
    sent: Floats = rows["bytes"].to_numpy(float) * (_SECOND / link)
    return sent


#: The format of the weights of a group of experts, if it differs from the group's name.
_STORED = {"fp8_block": "fp8"}


def _against_bound(taken: _Table) -> Comparison:
    rows = taken.rows
    if "distribution" in rows:  # the bound is that of evenly distributed tokens
        rows = rows[rows["distribution"] == "balanced"]
    multiples = rows["latency_ns"].to_numpy(float) / np.maximum(rows["bound_ns"].to_numpy(float), 1.0)
    operator, group, place, _ = taken.collection
    return _of_bound(operator, group, place, multiples[rows["bound_ns"].to_numpy(float) >= LONG_NS])


def _of_bound(operator: str, group: str, place: str, multiples: Floats) -> Comparison:
    """Return the times of long calls, as multiples of their bounds."""
    long = _ratios(multiples)
    flagged = long is not None and not 1 / FACTOR <= long.median <= BOUND_FACTOR
    return Comparison(operator, group, place, BOUND, None, long, flagged)


def _compared(taken: _Table, other: _Table, place: str, normal: bool) -> Comparison:
    """Return the comparison of two tables.

    `normal`: times are multiples of the bounds, and only long calls count, since launches do not scale with peaks.
    """
    both = taken.rows.merge(other.rows, on=taken.shape, suffixes=("", "_there"))
    ratio = both["latency_ns"].to_numpy(float) / both["latency_ns_there"].to_numpy(float)
    bound, there = both["bound_ns"].to_numpy(float), both["bound_ns_there"].to_numpy(float)
    if normal:
        ratio = ratio * there / np.maximum(bound, 1e-9)
        bound = np.minimum(bound, there)
    long = bound >= LONG_NS
    whole = MODULE in place or normal
    ratios = (None if whole else _ratios(ratio[~long]), _ratios(ratio[long]))
    flagged = any(found is not None and not 1 / FACTOR <= found.median <= FACTOR for found in ratios)
    operator, group, mine, _ = taken.collection
    return Comparison(operator, group, mine, place, *ratios, flagged)


def _laws(gpu: str) -> list[Comparison]:
    """Return comparisons of the shipped laws of copies and of elementwise kernels.

    They are compared with bytes at the rate of the link, or of HBM, and as multiples of these with the laws of other
    GPUs.
    """
    others = {name: _law_multiples(name) for name in PACKAGE_NAMES if name != gpu}
    found = []
    for (operator, group), multiples in _law_multiples(gpu).items():
        found.append(_of_bound(operator, group, _LAW, multiples[np.isfinite(multiples)]))
        for name, theirs in others.items():
            if (operator, group) in theirs:
                ratio = multiples / theirs[operator, group]
                long = _ratios(ratio[np.isfinite(ratio)])
                flagged = long is not None and not 1 / FACTOR <= long.median <= FACTOR
                found.append(Comparison(operator, group, _LAW, f"{name} {_LAW}", None, long, flagged))
    return found


def _law_multiples(gpu: str) -> dict[tuple[str, str], Floats]:
    """Return, by operator and group, the times of messages of `_LAW_BYTES` as multiples of the bound; NaN for short
    ones."""
    spec = load_gpu(gpu)
    kernels = kernels_of(spec, "shipped")
    if not isinstance(kernels, CalibratedKernels):
        return {}
    size, rates = _LAW_BYTES, {"node": spec.nvlink_bandwidth, "network": spec.network.bandwidth}
    times = {("p2p", link): (law.ns(size), rates[link]) for link, law in kernels.p2p.items()}
    if kernels.elementwise is not None:
        times["elementwise", "bf16"] = kernels.elementwise.ns(_NORM_BYTES, size / _NORM_BYTES), spec.hbm_bandwidth
    bounds = {key: size * (_SECOND / rate) for key, (_, rate) in times.items()}
    return {key: np.where(bounds[key] >= LONG_NS, time / bounds[key], np.nan) for key, (time, _) in times.items()}


def _ratios(ratio: Floats) -> Ratios | None:
    if len(ratio) < _LEAST_SHAPES:
        return None
    low, median, high = np.quantile(ratio, [0.1, 0.5, 0.9]).tolist()
    return Ratios(len(ratio), low, median, high)
