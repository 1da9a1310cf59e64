"""Fits of the launch and the bandwidth of memory-bound kernels."""

from __future__ import annotations

import numpy as np
import pandas as pd

from cost_models.calibration.fitted import Fitted, TooFewRowsError, possible
from cost_models.calibration.split import Errors, errors, held_out
from cost_models.laws.elementwise import ElementwiseLaw
from cost_models.specs.gpu import GpuSpec

_SHAPE = ["name", "tokens", "bytes"]
#: The launch is fitted to calls whose traffic takes at most the first time at the peak bandwidth, the bandwidth to
#: calls with at least the second.
_SHORT_NS, _LONG_NS = 500.0, 10_000.0


def fit_elementwise(rows: pd.DataFrame, gpu: GpuSpec, source: str) -> Fitted:
    """Fit the law of all elementwise kernels; each name has the same weight.

    Args:
        rows: columns name, tokens, bytes (of a call, read and written) and latency_ns.

    Calls whose data fit into L2 may be faster than HBM: only larger calls are tested against its bandwidth. Raises
    TooFewRowsError without short or without long calls.
    """
    moved = rows["bytes"].to_numpy(float)
    bound = np.where(moved > gpu.l2_bytes, moved * (1e9 / gpu.hbm_bandwidth), 0.0)
    kept, dropped = possible(rows, bound)
    shapes = kept.groupby(_SHAPE, as_index=False)["latency_ns"].median()
    hidden = held_out(shapes[_SHAPE])
    found: dict[str, Errors] = {}
    if hidden.any() and not hidden.all():
        found = _errors(_fit(shapes[~hidden], gpu), shapes[hidden])
    return Fitted(_fit(shapes, gpu), found, len(shapes), dropped, source)


def _fit(shapes: pd.DataFrame, gpu: GpuSpec) -> ElementwiseLaw:
    ideal = shapes["bytes"] * (1e9 / gpu.hbm_bandwidth)
    short, long = shapes[ideal <= _SHORT_NS], shapes[ideal >= _LONG_NS]
    if short.empty or long.empty:
        size = gpu.hbm_bandwidth / 1e9
        raise TooFewRowsError(
            f"elementwise: a fit needs calls of up to {_SHORT_NS * size:.2g} and of {_LONG_NS * size:.2g} bytes or more"
        )
    shares = (ideal / shapes["latency_ns"])[long.index].groupby(long["name"]).median()
    launches = short["latency_ns"].groupby(short["name"]).median()
    return ElementwiseLaw(gpu, float(launches.median()), min(1.0, float(shares.median())))


def _errors(law: ElementwiseLaw, shapes: pd.DataFrame) -> dict[str, Errors]:
    """Return the errors of kernels launched alone, as in the measurements: of all, and by name."""
    predicted = law.alone_ns(1.0, shapes["bytes"].to_numpy(float))
    measured = shapes["latency_ns"].to_numpy(float)
    names = shapes["name"].to_numpy()
    found = {"all": errors(predicted, measured)}
    for name in sorted(set(names)):
        found[str(name)] = errors(predicted[names == name], measured[names == name])
    return found
