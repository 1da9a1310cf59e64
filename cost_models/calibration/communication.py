"""Fits of the times of all-reduces and of copies between GPUs."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from cost_models.calibration.fit import fit_table
from cost_models.calibration.fitted import Fitted, TooFewRowsError, possible
from cost_models.calibration.knots import thinned
from cost_models.calibration.split import Errors, errors, held_out
from cost_models.laws.communication import NCCL_BYTES, AllReduceLaw, P2pLaw
from cost_models.laws.curve import Curve, monotone
from cost_models.laws.table import Floats
from cost_models.specs.gpu import GpuSpec

#: Sizes are measured a factor of 2 apart, or much closer; copies need no knots closer than 1.5.
_RATIO = 1.5
#: The curve has this many points between knots, so that its straight lines follow the law that they replace.
_POINTS = 2
_LEAST_SIZES = 2
#: The fewest sizes to which a line is fitted, if there are two lines.
_OF_A_LINE = 2


def fit_all_reduce(rows: pd.DataFrame, gpu: GpuSpec, source: str) -> Fitted:
    """Fit the law of all-reduces.

    Args:
        rows: columns gpus, bytes and latency_ns; below `NCCL_BYTES` of the custom kernel, above of NCCL.

    Raises TooFewRowsError if a group of GPUs has fewer than two sizes of either kernel.
    """
    bound = rows["bytes"].to_numpy(float) * (1e9 / gpu.nvlink_bandwidth if gpu.nvlink_bandwidth else 0.0)
    kept, dropped = possible(rows, bound)
    shapes = kept.groupby(["gpus", "bytes"], as_index=False)["latency_ns"].median()
    hidden = held_out(shapes[["gpus", "bytes"]])
    law = _all_reduce(shapes, gpu)
    found = _all_reduce_errors(_all_reduce(shapes[~hidden], gpu), shapes[hidden]) if hidden.any() else {}
    return Fitted(law, found, len(shapes), dropped, source)


def fit_p2p(rows: pd.DataFrame, gpu: GpuSpec, source: str) -> Fitted:
    """Fit the law of copies over one kind of link.

    Args:
        rows: columns bytes and latency_ns.

    Raises TooFewRowsError for fewer than two sizes.
    """
    kept, dropped = possible(rows, np.zeros(len(rows)))
    shapes = kept.groupby("bytes", as_index=False)["latency_ns"].median()
    hidden = held_out(shapes[["bytes"]])
    law = P2pLaw(_curve("p2p", *_columns(shapes)))
    found: dict[str, Errors] = {}
    if hidden.any():
        size, measured = _columns(shapes[hidden])
        found = {"all": errors(_curve("p2p", *_columns(shapes[~hidden])).ns(size), measured)}
    return Fitted(law, found, len(shapes), dropped, source)


def _all_reduce(shapes: pd.DataFrame, gpu: GpuSpec) -> AllReduceLaw:
    curves = {}
    for gpus, group in shapes.groupby("gpus"):
        size, measured = _columns(group)
        curves[int(gpus)] = _joined(f"all_reduce on {gpus} GPUs", size, measured)
    return AllReduceLaw(gpu, curves)


def _joined(what: str, size: Floats, measured: Floats) -> Curve:
    """Return the curves of the two kernels as one, with a step at the size from which NCCL is used."""
    custom = size < NCCL_BYTES
    if not custom.any() or custom.all():
        return _curve(what, size, measured)
    below = _curve(what, size[custom], measured[custom], NCCL_BYTES - 1)
    above = _curve(what, size[~custom], measured[~custom], NCCL_BYTES)
    times = np.concatenate([below.times, above.times])
    return Curve(np.concatenate([below.at, above.at]), monotone(times), above.slope)


def _curve(what: str, size: Floats, measured: Floats, edge: float | None = None) -> Curve:
    """Return the lower of two lines (see `_lines`) times a smooth table over the size, as a curve.

    It extends to the `edge` of the kernel's range, if that is given.
    """
    if len(size) < _LEAST_SIZES:
        raise TooFewRowsError(f"{what}: {len(size)} sizes measured of a kernel; a fit needs at least {_LEAST_SIZES}")
    lines = _lines(size, measured)
    knots = thinned(size, _RATIO)
    table = fit_table(("bytes",), (knots,), (size,), _lowest(lines, size), measured)
    at = np.unique(np.geomspace(knots[:-1], knots[1:], _POINTS, endpoint=False).round())
    at = np.unique(np.concatenate([at, knots[-1:], [] if edge is None else [edge]]))
    above = table.at(at)
    slope = min(lines, key=lambda line: line[0] + line[1] * at[-1])[1]
    return Curve(at, monotone(_lowest(lines, at) * above), slope * float(above[-1]))


def _lines(size: Floats, measured: Floats) -> list[tuple[float, float]]:
    """Return (latency, time per byte) of one line or of two, those with the least relative errors.

    vLLM's custom kernel sends small messages whole to all GPUs, and large ones in parts that are then gathered,
    whichever is faster (custom_all_reduce.cuh: one-shot, two-shot): the lower of two lines. Each of two lines has at
    least two sizes.
    """
    order = np.argsort(size)
    size, measured = size[order], measured[order]
    candidates = [[_line(size, measured)]]
    for split in range(_OF_A_LINE, len(size) - _OF_A_LINE + 1):
        candidates.append([_line(size[:split], measured[:split]), _line(size[split:], measured[split:])])
    return min(candidates, key=lambda lines: float(np.abs(_lowest(lines, size) / measured - 1).sum()))


def _line(size: Floats, measured: Floats) -> tuple[float, float]:
    latency, rate = nnls(np.stack([1 / measured, size / measured], axis=1), np.ones(len(size)))[0].tolist()
    return latency, rate


def _lowest(lines: list[tuple[float, float]], size: Floats) -> Floats:
    lowest: Floats = np.min([latency + size * rate for latency, rate in lines], axis=0)
    return lowest


def _all_reduce_errors(law: AllReduceLaw, shapes: pd.DataFrame) -> dict[str, Errors]:
    """Return the errors of all rows, and by number of GPUs."""
    predicted = np.empty(len(shapes))
    size, measured = _columns(shapes)
    gpus = shapes["gpus"].to_numpy()
    for group in np.unique(gpus).tolist():
        predicted[gpus == group] = law.ns(group, size[gpus == group])
    found = {"all": errors(predicted, measured)}
    for group in np.unique(gpus).tolist():
        found[f"{group} GPUs"] = errors(predicted[gpus == group], measured[gpus == group])
    return found


def _columns(shapes: pd.DataFrame) -> tuple[Floats, Floats]:
    return shapes["bytes"].to_numpy(float), shapes["latency_ns"].to_numpy(float)
