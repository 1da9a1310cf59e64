"""Fitting the law of a mixture of experts to measured kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from cost_models.calibration.fitted import Fitted, possible
from cost_models.calibration.split import Errors, errors, held_out
from cost_models.gpu import GpuSpec
from cost_models.laws.moe import ExpertsLaw, Shape, base_ns, bound_ns
from cost_models.laws.routing import EVEN, Routing, load
from cost_models.operands import Experts, Floats

_SHAPE = [*Shape._fields, "matrices"]
_MODEL = ["hidden", "model_width", "experts", "top_k"]


class _Curve(NamedTuple):
    """The rows of one shape: their positions, and what was measured over the tokens."""

    rows: NDArray[np.intp]
    experts: Experts
    expert_parallel: int
    tokens: Floats
    latency_ns: Floats


def fit_experts(rows: pd.DataFrame, gpu: GpuSpec, dtype: str, source: str) -> Fitted:
    """The law of experts whose weights are stored as `dtype`, from rows as `read_moe.read_experts` has them.

    It is fitted to the balanced rows; those with power laws only test how it carries over to skewed routing. `errors`
    has those of held-out rows (a shape at a number of tokens), of whole models left out one after another, and of the
    power laws.
    """
    balanced = _median(rows[rows["distribution"] == "balanced"])
    kept, dropped = possible(balanced, _bounds(balanced, gpu, dtype))
    law = _fit(kept, gpu, dtype)
    found = {**_held_out_errors(kept, gpu, dtype), **_model_errors(kept, gpu, dtype)}
    for distribution in sorted(set(rows["distribution"]) - {"balanced"}):
        skewed = _median(rows[rows["distribution"] == distribution])
        routing = Routing(float(distribution.rpartition("_")[2]), even=True)
        found[f"{distribution}, not fitted"] = _compare(_predict(law, skewed, routing), skewed)
    return Fitted(law, found, len(kept), dropped, source)


def _fit(rows: pd.DataFrame, gpu: GpuSpec, dtype: str) -> ExpertsLaw:
    launch_ns = float(rows["latency_ns"].min())
    tokens = np.array(sorted(set(rows["tokens"])), float)
    shapes, values = [], []
    for curve in _curves(rows, dtype):
        # More tokens never take less: where measured times do, they differ by noise or by the choice of the tile.
        time = np.exp(isotonic_regression(np.log(curve.latency_ns)).x)
        work = load(curve.experts, curve.tokens, curve.expert_parallel, EVEN)
        above = time / base_ns(gpu, curve.experts, curve.tokens, work, launch_ns)
        experts = curve.experts
        shapes.append(Shape(experts.hidden, experts.width, experts.experts, experts.top_k, curve.expert_parallel))
        values.append(np.interp(np.log(tokens), np.log(curve.tokens), above))
    return ExpertsLaw(gpu, dtype, launch_ns, tokens, tuple(shapes), np.array(values))


def _held_out_errors(rows: pd.DataFrame, gpu: GpuSpec, dtype: str) -> dict[str, Errors]:
    """Of a law fitted to 70% of the rows, on the others."""
    hidden = held_out(rows[[*_SHAPE, "tokens"]])
    others = rows[hidden].reset_index(drop=True)
    predicted = _predict(_fit(rows[~hidden], gpu, dtype), others, EVEN)
    tokens, spread = others["tokens"], others["expert_parallel"] > 1
    groups = {
        "all": tokens > 0,
        "up to 64 tokens": tokens <= 64,
        "65 to 1024 tokens": (tokens > 64) & (tokens <= 1024),
        "above 1024 tokens": tokens > 1024,
        "one GPU's experts": ~spread,
        "expert parallel": spread,
    }
    return {name: _compare(predicted[group], others[group]) for name, group in groups.items() if group.any()}


def _model_errors(rows: pd.DataFrame, gpu: GpuSpec, dtype: str) -> dict[str, Errors]:
    """Of laws that have not seen the model that they predict: each one's, and of all."""
    found, predicted = {}, np.zeros(len(rows))
    models = rows[_MODEL].apply(tuple, axis=1)
    if models.nunique() == 1:
        return {}
    for model in sorted(models.unique()):
        chosen = (models == model).to_numpy()
        predicted[chosen] = _predict(_fit(rows[~chosen], gpu, dtype), rows[chosen], EVEN)
        found["model left out: " + "x".join(map(str, model))] = _compare(predicted[chosen], rows[chosen])
    return {"whole models left out": _compare(predicted, rows), **found}


def _compare(predicted: Floats, rows: pd.DataFrame) -> Errors:
    return errors(predicted, rows["latency_ns"].to_numpy(float))


def _predict(law: ExpertsLaw, rows: pd.DataFrame, routing: Routing) -> Floats:
    """The law's times of the rows."""
    times = np.zeros(len(rows))
    for curve in _curves(rows, law.dtype):
        times[curve.rows] = law.ns(curve.experts, curve.tokens, routing, curve.expert_parallel)
    return times


def _bounds(rows: pd.DataFrame, gpu: GpuSpec, dtype: str) -> Floats:
    """The physical bound of each row."""
    bounds = np.zeros(len(rows))
    for curve in _curves(rows, dtype):
        work = load(curve.experts, curve.tokens, curve.expert_parallel, EVEN)
        bounds[curve.rows] = bound_ns(gpu, curve.experts, work)
    return bounds


def _curves(rows: pd.DataFrame, dtype: str) -> Iterator[_Curve]:
    """The rows by shape, each in the order of tokens."""
    tokens, times = rows["tokens"].to_numpy(float), rows["latency_ns"].to_numpy(float)
    for key, found in rows.groupby([*_SHAPE, "model_width"]).indices.items():
        hidden, width, experts, top_k, expert_parallel, matrices, _ = map(int, key)
        order = found[np.argsort(tokens[found], kind="stable")]
        operand = Experts(hidden, width, experts, top_k, matrices, dtype)
        yield _Curve(order, operand, expert_parallel, tokens[order], times[order])


def _median(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each shape and number of tokens: the median of its measurements."""
    return rows.groupby([*_SHAPE, "model_width", "tokens"], as_index=False)["latency_ns"].median()
