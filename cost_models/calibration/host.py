"""Fits of the terms of a host model to measured serving runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.optimize import lsq_linear

from cost_models.specs.host import HostModel

#: Start of a fit without earlier information: kernels as fast as alone, round numbers. CPU times are those that others
#: fitted to such runs; they are hidden in nearly all of them, and are not fitted here. The terms of proposing are not
#: fitted, either, since such runs do not speculate (docs/accuracy.md, speculative decoding).
PRIOR = HostModel(
    device_logit=1e-10,
    draft_step=3.99e-4,
    draft_pass=7.04e-4,
    draft_layer=6.65e-5,
    draft_eagle3_step=4.88e-4,
    draft_eagle3_pass=2.65e-4,
    draft_lookup=1e-5,
    cpu_step=1.3e-3,
    cpu_prefill_step=4e-3,
    request=5e-3,
)
#: Uncertainty of each term before a fit: one standard deviation of its difference from the prior.
_UNCERTAINTY = {
    "kernel_scale": 0.05,
    "device_step": 3e-4,
    "device_logit": 1e-10,
    "device_sync": 4e-6,
    "request": 1e-2,
    "request_running": 5e-5,
}
STEP_TERMS = ("kernel_scale", "device_step", "device_logit", "device_sync")
REQUEST_TERMS = ("request", "request_running")
#: Relative error of one measured row on its own (repeated runs differ by it), and the error that the rows of one
#: deployment have in common, for which they count as one row.
_NOISE = 0.02
#: Deviations, in units of the noise, above which a row has less weight; rounds of reweighting.
_KNEE, _ROUNDS = 1.5, 10


@dataclass(frozen=True, slots=True)
class Observation:
    """The part of one measured row that depends on the terms of a host model.

    Attributes:
        deployment: name of the deployment, whose rows have an error in common.
        step_units: ns of a step for one unit of each of `STEP_TERMS`, at the measured number of running requests.
        step_rest_ns: simulated time per token less those terms (such as prefill in between).
        itl_ns: measured time per token after the first; NaN if there is none.
        running: measured mean number of running requests.
        ttft_rest_ns: simulated mean TTFT less the terms of a request.
        ttft_ns: measured mean TTFT; NaN if it is not to be used.
    """

    deployment: str
    step_units: tuple[float, float, float, float]
    step_rest_ns: float
    itl_ns: float
    running: float
    ttft_rest_ns: float
    ttft_ns: float


def fit_host(observations: Sequence[Observation], prior: HostModel, doubt: float = 1.0) -> HostModel:
    """Return the host model closest to the observations, in relative terms, with a penalty for differences from
    `prior`.

    `doubt` multiplies the uncertainty of the terms of a step: below 1 if the prior is that of the same engine, fitted
    on another GPU. It does not change that of a request's terms, which depend on the machine's CPU and network.

    It is a least-squares fit with bounds at 0. The prior of each term counts as one observation with the standard
    deviation in `_UNCERTAINTY` (ridge regression), since few deployments do not determine all terms. The rows of one
    deployment count together as one, and outliers have less weight (Huber's loss).
    """
    itl = [o for o in observations if np.isfinite(o.itl_ns)]
    ttft = [o for o in observations if np.isfinite(o.ttft_ns)]
    found: dict[str, float] = {}
    if itl:
        design = np.array([o.step_units for o in itl])
        rest, measured = np.array([o.step_rest_ns for o in itl]), np.array([o.itl_ns for o in itl])
        found |= _ridge(
            _Equations(design, measured - rest, measured, [o.deployment for o in itl]), prior, STEP_TERMS, doubt
        )
    if ttft:
        design = 1e9 * np.array([[1.0, o.running] for o in ttft])
        rest, measured = np.array([o.ttft_rest_ns for o in ttft]), np.array([o.ttft_ns for o in ttft])
        found |= _ridge(
            _Equations(design, measured - rest, measured, [o.deployment for o in ttft]), prior, REQUEST_TERMS, 1.0
        )
    return replace(prior, **found)


class _Equations(NamedTuple):
    """Linear equations for the terms of a host model: `design` (n, terms) x terms = `target` (n,).

    The error of each is in proportion to its measured time `scale` (n,); `deployments` are those of the runs.
    """

    design: np.ndarray
    target: np.ndarray
    scale: np.ndarray
    deployments: list[str]


def _ridge(equations: _Equations, prior: HostModel, terms: tuple[str, ...], doubt: float) -> dict[str, float]:
    """Solve the equations robustly, with the prior's terms as additional equations."""
    design, target, scale, deployments = equations
    names, counts = np.unique(deployments, return_counts=True)
    rows_of = dict(zip(names.tolist(), counts.tolist(), strict=True))
    weights = np.array([rows_of[name] ** -0.5 for name in deployments]) / (scale * _NOISE)
    spread = doubt * np.array([_UNCERTAINTY[term] for term in terms])
    begin = np.array([getattr(prior, term) for term in terms])
    trust = np.ones(len(target))
    solution = begin / spread  # in units of the spread, so that all columns are of one size
    for _ in range(_ROUNDS):
        kept = weights * np.sqrt(trust)
        rows = np.vstack([(design * spread) * kept[:, None], np.eye(len(terms))])
        right = np.concatenate([target * kept, begin / spread])
        solution = lsq_linear(rows, right, bounds=(0, np.inf), method="bvls").x
        deviations = np.abs(design @ (solution * spread) - target) / (scale * _NOISE)
        trust = np.minimum(1.0, _KNEE / np.maximum(deviations, 1e-12))
    return {term: float(value) for term, value in zip(terms, solution * spread, strict=True)}
