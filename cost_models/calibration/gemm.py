"""Fits of the law of matrix products to measurements."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cost_models.calibration.fit import fit_table
from cost_models.calibration.fitted import Fitted, TooFewRowsError, possible
from cost_models.calibration.knots import thinned
from cost_models.calibration.split import Errors, errors, held_out
from cost_models.laws.gemm import GemmLaw, Waves, number_format
from cost_models.laws.table import Table
from cost_models.specs.dtypes import BITS
from cost_models.specs.gpu import GpuSpec

Floats = NDArray[np.float64]
Chosen = NDArray[np.bool_]

SHAPE = ["m", "n", "k"]
_AXES = ("tokens", "rows", "columns")
#: Least ratio of successive knots, of tokens and of a matrix's sides. Smaller ratios improve errors by less than half a
#: percent point.
_RATIO, _SIDE_RATIO = 1.25, 1.3
#: Tiles (tokens x columns) of cuBLAS and CUTLASS kernels for large products. Half of the loss to a partial last wave is
#: observed, since a library chooses among kernels.
_TILES, _SHARE = ((128, 128), (128, 256), (256, 128)), 0.5
#: Streaming multiprocessors, from NVIDIA's datasheets and architecture papers.
_MULTIPROCESSORS = {"a100-sxm-40gb": 108, "a100-sxm-80gb": 108, "h100-sxm": 132, "h200-sxm": 132, "l40s": 142}
#: The fewest shapes for a fit.
_LEAST_SHAPES = 24


def fit_gemm(rows: pd.DataFrame, gpu: GpuSpec, dtype: str, source: str) -> Fitted:
    """Fit the law of products in the format `dtype` ("bf16", "fp8", "fp8_block", "int8").

    Args:
        rows: columns m (tokens), n, k and latency_ns; several rows of one shape count as their median.

    Raises TooFewRowsError if there are too few shapes.
    """
    kept, dropped = possible(rows, gemm_bound_ns(rows, gpu, dtype))
    shapes = kept.groupby(SHAPE, as_index=False)["latency_ns"].median()
    if len(shapes) < _LEAST_SHAPES:
        raise TooFewRowsError(f"gemm {dtype}: {len(shapes)} shapes measured; a fit needs at least {_LEAST_SHAPES}")
    hidden = held_out(shapes[SHAPE])
    waves = _best_waves(shapes[~hidden], gpu, dtype)
    found = _errors(_fit(shapes[~hidden], gpu, dtype, waves), shapes[hidden])
    apart = held_out(shapes[["n", "k"]])
    found |= _errors(_fit(shapes[~apart], gpu, dtype, waves), shapes[apart], ", (n, k) never seen")
    return Fitted(_fit(shapes, gpu, dtype, waves), found, len(shapes), dropped, source)


def gemm_bound_ns(rows: pd.DataFrame, gpu: GpuSpec, dtype: str) -> Floats:
    """Return the physical bound of each row, in ns; columns as of `fit_gemm`."""
    blank = GemmLaw(gpu, dtype, None, Table(_AXES, (np.ones(1),) * 3, np.ones((1, 1, 1))))
    m, n, k = _columns(rows)
    return blank.bound_ns(k, n, m, _bits(dtype))


def _best_waves(shapes: pd.DataFrame, gpu: GpuSpec, dtype: str) -> Waves | None:
    """Return the division into tiles with which a table fits the measurements best, or None."""
    slots = _MULTIPROCESSORS.get(gpu.name)
    divisions: list[Waves | None] = [None]
    if slots is not None:
        divisions += [Waves(tokens, columns, slots, _SHARE) for tokens, columns in _TILES]
    measured = shapes["latency_ns"].to_numpy(float)
    misses = []
    for waves in divisions:
        predicted = _fitted_ns(_fit(shapes, gpu, dtype, waves), shapes)
        misses.append(float(np.mean(np.minimum(np.abs(predicted / measured - 1), 1.0))))
    return divisions[int(np.argmin(misses))]


def _fit(shapes: pd.DataFrame, gpu: GpuSpec, dtype: str, waves: Waves | None) -> GemmLaw:
    m, n, k = _columns(shapes)
    knots = (thinned(m, _RATIO), thinned(k, _SIDE_RATIO), thinned(n, _SIDE_RATIO))
    blank = GemmLaw(gpu, dtype, waves, Table(_AXES, knots, np.ones([len(points) for points in knots])))
    base = blank.base_ns(k, n, m, _bits(dtype))
    return GemmLaw(gpu, dtype, waves, fit_table(_AXES, knots, (m, k, n), base, shapes["latency_ns"].to_numpy(float)))


def _fitted_ns(law: GemmLaw, shapes: pd.DataFrame) -> Floats:
    """Return the law's time of each shape, matrix by matrix."""
    m = shapes["m"].to_numpy(float)
    found = np.empty(len(shapes))
    for (columns, rows), index in shapes.reset_index(drop=True).groupby(["n", "k"]).indices.items():
        found[index] = law.ns(int(rows), int(columns), m[index])
    return found


def _errors(law: GemmLaw, shapes: pd.DataFrame, suffix: str = "") -> dict[str, Errors]:
    """Return the errors by size of the matrix, and by number of tokens for matrices of the usual size."""
    m, n, k = _columns(shapes)
    usual = (np.minimum(n, k) >= 512) & (np.maximum(n, k) <= 32_768)
    groups: dict[str, Chosen] = {
        "n and k 512 to 32768": usual,
        "n and k 512 to 32768, m up to 16": usual & (m <= 16),
        "n and k 512 to 32768, m 17 to 512": usual & (m > 16) & (m <= 512),
        "n and k 512 to 32768, m above 512": usual & (m > 512),
        "other n or k": ~usual,
    }
    predicted, measured = _fitted_ns(law, shapes), shapes["latency_ns"].to_numpy(float)
    return {
        name + suffix: errors(predicted[chosen], measured[chosen]) for name, chosen in groups.items() if chosen.any()
    }


def _columns(rows: pd.DataFrame) -> tuple[Floats, Floats, Floats]:
    m, n, k = (rows[name].to_numpy(float) for name in SHAPE)
    return m, n, k


def _bits(dtype: str) -> float:
    return BITS[number_format(dtype)]
