"""Fits of the law of expert parallelism's all-to-all to measured calls."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression

from cost_models.calibration.fit import fit_table
from cost_models.calibration.fitted import Fitted, possible
from cost_models.calibration.split import Errors, errors, held_out
from cost_models.errors import CostModelError
from cost_models.laws.all_to_all import AllToAllLaw
from cost_models.laws.table import Table
from cost_models.roofline.operands import Floats
from cost_models.specs.gpu import GpuSpec

_SECOND = 1e9
_SHAPE = ["phase", "gpus", "copies", "bytes", "hidden", "top_k", "experts"]


def fit_all_to_all(rows: pd.DataFrame, gpu: GpuSpec, copy_bytes: float, source: str) -> Fitted:
    """Fit the law of one implementation to rows of `read_moe.read_all_to_all`.

    `errors` has those of held-out rows (of all, and by phase), and of whole models that were left out in turn. Raises
    CostModelError for a GPU without NVLink.
    """
    if not gpu.nvlink_bandwidth:
        raise CostModelError(f"{gpu.name} has no NVLink: an all-to-all over it cannot be fitted")
    kept, dropped = possible(rows, rows["bytes"].to_numpy(float) * (_SECOND / gpu.nvlink_bandwidth))
    kept = kept.groupby(_SHAPE, as_index=False)["latency_ns"].median()
    hidden = held_out(kept[_SHAPE])
    others = kept[hidden].reset_index(drop=True)
    predicted = _predict(_fit(kept[~hidden], gpu, copy_bytes), others)
    found = {"all": _compare(predicted, others)}
    for phase in sorted(set(others["phase"])):
        chosen = (others["phase"] == phase).to_numpy()
        found[phase] = _compare(predicted[chosen], others[chosen])
    found.update(_model_errors(kept, gpu, copy_bytes))
    return Fitted(_fit(kept, gpu, copy_bytes), found, len(kept), dropped, source)


def _model_errors(rows: pd.DataFrame, gpu: GpuSpec, copy_bytes: float) -> dict[str, Errors]:
    """Return the errors of laws fitted without the model that they predict; none if rows have no models."""
    models = rows[["hidden", "top_k", "experts"]].apply(tuple, axis=1)
    if models.nunique() == 1:
        return {}
    predicted = np.zeros(len(rows))
    for model in sorted(models.unique()):
        chosen = (models == model).to_numpy()
        predicted[chosen] = _predict(_fit(rows[~chosen], gpu, copy_bytes), rows[chosen])
    return {"whole models left out": _compare(predicted, rows)}


def _fit(rows: pd.DataFrame, gpu: GpuSpec, copy_bytes: float) -> AllToAllLaw:
    launch_ns, above = {}, {}
    for phase, part in rows.groupby("phase"):
        gpus, copies, size, time = (part[name].to_numpy(float) for name in ("gpus", "copies", "bytes", "latency_ns"))
        counted = size + copies * copy_bytes
        launch_ns[phase] = float(time.min())
        knots = (np.unique(gpus), _octaves(counted))
        base = launch_ns[phase] + counted * (_SECOND / gpu.nvlink_bandwidth)
        table = fit_table(("gpus", "bytes"), knots, (gpus, counted), base, time)
        above[phase] = _rising(table, launch_ns[phase] + knots[1] * (_SECOND / gpu.nvlink_bandwidth))
    return AllToAllLaw(gpu, copy_bytes, launch_ns, above)


def _rising(table: Table, base: Floats) -> Table:
    """Return the table closest to this one whose times, with the `base` at its knots, never decrease with the bytes."""
    rows = [np.exp(isotonic_regression(np.log(row * base)).x) / base for row in table.values]
    return Table(table.names, table.knots, np.array(rows))


def _octaves(size: Floats) -> Floats:
    """Return powers of two that enclose all sizes."""
    return np.array([2.0**power for power in range(int(np.log2(size.min())), int(np.ceil(np.log2(size.max()))) + 1)])


def _predict(law: AllToAllLaw, rows: pd.DataFrame) -> Floats:
    times = np.zeros(len(rows))
    for (gpus, phase), found in rows.groupby(["gpus", "phase"]).indices.items():
        copies, size = (rows[name].to_numpy(float)[found] for name in ("copies", "bytes"))
        times[found] = law.copies_ns(int(gpus), copies, size, phase)
    return times


def _compare(predicted: Floats, rows: pd.DataFrame) -> Errors:
    return errors(predicted, rows["latency_ns"].to_numpy(float))
