"""Fits of the law of a mixture of experts to measured kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from cost_models.calibration.fitted import Fitted, possible
from cost_models.calibration.split import Errors, errors, held_out
from cost_models.laws.moe import ExpertsLaw, Shape, base_ns, bound_ns
from cost_models.laws.routing import EVEN, Routing, load
from cost_models.roofline.operands import Experts, Floats
from cost_models.specs.gpu import GpuSpec

_SHAPE = [*Shape._fields, "matrices"]
_MODEL = ["hidden", "model_width", "experts", "top_k"]
#: A shape is left out if its median time over the tokens is this many times that of a law of the other models. Some
#: collections have shapes without a tuned kernel, for which half of a matrix takes longer than all of it.
_UNTUNED = 1.6


class _Kind(NamedTuple):
    """The common values of all rows of a fit; `launch_ns` is the shortest measured call."""

    gpu: GpuSpec
    dtype: str
    launch_ns: float


class _Curve(NamedTuple):
    """The rows of one shape: their positions, and the measurements over the tokens."""

    rows: NDArray[np.intp]
    experts: Experts
    expert_parallel: int
    tokens: Floats
    latency_ns: Floats


def fit_experts(rows: pd.DataFrame, gpu: GpuSpec, dtype: str, source: str) -> Fitted:
    """Fit the law of experts whose weights are stored as `dtype` to rows of `read_moe.read_experts`.

    It is fitted to the balanced rows; rows with power laws are only predicted, as a test for skewed routing. `errors`
    has those of held-out rows (a shape at a number of tokens), of whole models left out in turn, and of the power laws.
    Rows faster than physically possible (some had their weights in L2) and shapes without a tuned kernel are dropped.
    """
    balanced = _median(rows[rows["distribution"] == "balanced"])
    kept, dropped = possible(balanced, experts_bound_ns(balanced, gpu, dtype))
    kind = _Kind(gpu, dtype, float(kept["latency_ns"].min()))
    untuned = _untuned(kept, kind)
    if untuned.any():
        dropped["kernel not tuned"] = int(untuned.sum())
        kept = kept[~untuned]
    law = _fit(kept, kind)
    found = {**_held_out_errors(kept, kind), **_model_errors(kept, kind)}
    for distribution in sorted(set(rows["distribution"]) - {"balanced"}):
        skewed = _median(rows[rows["distribution"] == distribution])
        routing = Routing(float(distribution.rpartition("_")[2]), even=True)
        found[f"{distribution}, not fitted"] = _compare(_predict(law, skewed, routing), skewed)
    return Fitted(law, found, len(kept), dropped, source)


def _fit(rows: pd.DataFrame, kind: _Kind) -> ExpertsLaw:
    tokens = np.array(sorted(set(rows["tokens"])), float)
    shapes, values = [], []
    for curve in _curves(rows, kind.dtype):
        # More tokens never take less time: measured decreases are noise, or effects of the choice of the tile.
        time = np.exp(isotonic_regression(np.log(curve.latency_ns)).x)
        work = load(curve.experts, curve.tokens, curve.expert_parallel, EVEN)
        above = time / base_ns(kind.gpu, curve.experts, curve.tokens, work, kind.launch_ns)
        experts = curve.experts
        shapes.append(Shape(experts.hidden, experts.width, experts.experts, experts.top_k, curve.expert_parallel))
        values.append(np.interp(np.log(tokens), np.log(curve.tokens), above))
    return ExpertsLaw(kind.gpu, kind.dtype, kind.launch_ns, tokens, tuple(shapes), np.array(values))


def _held_out_errors(rows: pd.DataFrame, kind: _Kind) -> dict[str, Errors]:
    """Return the errors of a law fitted to 70% of the rows on the others."""
    hidden = held_out(rows[[*_SHAPE, "tokens"]])
    others = rows[hidden].reset_index(drop=True)
    predicted = _predict(_fit(rows[~hidden], kind), others, EVEN)
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


def _model_errors(rows: pd.DataFrame, kind: _Kind) -> dict[str, Errors]:
    """Return the errors of laws fitted without the model that they predict: for each model, and for all."""
    models = _models(rows)
    if models.nunique() == 1:
        return {}
    predicted = _without_own_model(rows, kind)
    found = {"whole models left out": _compare(predicted, rows)}
    for model in sorted(models.unique()):
        chosen = (models == model).to_numpy()
        found["model left out: " + "x".join(map(str, model))] = _compare(predicted[chosen], rows[chosen])
    return found


def _without_own_model(rows: pd.DataFrame, kind: _Kind) -> Floats:
    """Return for each row the time of a law fitted to all other models."""
    predicted, models = np.zeros(len(rows)), _models(rows)
    for model in sorted(models.unique()):
        chosen = (models == model).to_numpy()
        predicted[chosen] = _predict(_fit(rows[~chosen], kind), rows[chosen], EVEN)
    return predicted


def _models(rows: pd.DataFrame) -> pd.Series:
    return rows[_MODEL].apply(tuple, axis=1)


def _untuned(rows: pd.DataFrame, kind: _Kind) -> NDArray[np.bool_]:
    """Return the rows of shapes that take far longer than a law of the other models predicts."""
    untuned = np.zeros(len(rows), dtype=bool)
    if _models(rows).nunique() > 1:
        excess = rows["latency_ns"].to_numpy(float) / _without_own_model(rows, kind)
        for curve in _curves(rows, kind.dtype):
            untuned[curve.rows] = np.median(excess[curve.rows]) > _UNTUNED
    return untuned


def _compare(predicted: Floats, rows: pd.DataFrame) -> Errors:
    return errors(predicted, rows["latency_ns"].to_numpy(float))


def _predict(law: ExpertsLaw, rows: pd.DataFrame, routing: Routing) -> Floats:
    """Return the law's times of the rows."""
    times = np.zeros(len(rows))
    for curve in _curves(rows, law.dtype):
        times[curve.rows] = law.ns(curve.experts, curve.tokens, routing, curve.expert_parallel)
    return times


def experts_bound_ns(rows: pd.DataFrame, gpu: GpuSpec, dtype: str) -> Floats:
    """Return the physical bound of each row, in ns, with evenly assigned tokens; columns as of
    `read_moe.read_experts`."""
    bounds = np.zeros(len(rows))
    for curve in _curves(rows, dtype):
        work = load(curve.experts, curve.tokens, curve.expert_parallel, EVEN)
        bounds[curve.rows] = bound_ns(gpu, curve.experts, work)
    return bounds


def _curves(rows: pd.DataFrame, dtype: str) -> Iterator[_Curve]:
    """Return the rows by shape, each in the order of tokens."""
    tokens, times = rows["tokens"].to_numpy(float), rows["latency_ns"].to_numpy(float)
    for key, found in rows.groupby([*_SHAPE, "model_width"]).indices.items():
        hidden, width, experts, top_k, expert_parallel, matrices, _ = map(int, key)
        order = found[np.argsort(tokens[found], kind="stable")]
        operand = Experts(hidden, width, experts, top_k, matrices, dtype)
        yield _Curve(order, operand, expert_parallel, tokens[order], times[order])


def _median(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each shape and number of tokens: the median of its measurements."""
    return rows.groupby([*_SHAPE, "model_width", "tokens"], as_index=False)["latency_ns"].median()
