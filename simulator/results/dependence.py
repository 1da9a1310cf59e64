"""How many independent observations the requests of a run are worth.

Near saturation the latencies cannot say so themselves: a run that saw no long queue looks calm, and would give a narrow
interval beside the truth. So the dependence of requests is bounded by the load. For means of a queue's waiting times,
one independent observation takes about 2 (ca2 + cs2) / (1 - load)^2 requests (ca2 and cs2: squared coefficients of
variation of gaps and sizes; the heavy-traffic limit, Whitt 1989; 10% too many for M/M/1 at load 0.9, Daley 1968, and
more below, which is the safe side). The load is taken at two standard errors above its estimate.
`tests/bench/test_coverage.py` checks what is promised here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.results.effective_size import FEWEST_RUNS, EffectiveSize
from simulator.results.record import RunRecord, Status
from simulator.results.saturation import Load

#: How many standard errors above its estimate the load may be.
_ERRORS = 2.0
#: Drafts make the estimate of the load too low below capacity, by up to this much (see docs/formats.md).
_DRAFTS_HIDE = 0.13
#: Requests a run must have for each that is in service at a time: two generations of them in each of 20 batches.
_GENERATIONS = 40.0
#: The start from an empty system does not average out over replications. Each must be worth this many independent
#: observations for each replication, so that the bias stays small beside the interval.
_BIAS = 1.0


@dataclass(frozen=True, slots=True)
class Dependence:
    """What of one run says how its requests depend on each other: how many `requests` count, how many are `present` at
    a time, and its load: None if not known. `unstable` if that was above capacity."""

    requests: int
    present: float
    load: Load | None
    speculates: bool
    unstable: bool


def dependence(record: RunRecord, load: Load | None, kept: NDArray[np.bool_], unstable: bool) -> Dependence:
    """The dependence of the requests of a run of which those in `kept` count."""
    requests, speculates = record.requests, record.speculates
    done = requests.status == Status.COMPLETED
    span_ns = max(record.end_ns - record.start_ns, 1)
    present = float(np.sum((requests.finish_ns - requests.arrival_ns)[done], dtype=float)) / span_ns
    return Dependence(int(np.count_nonzero(kept)), present, load, speculates, unstable)


def effective_size_of_run(run: Dependence) -> EffectiveSize:
    """What the intervals of one run may rest on."""
    if run.unstable:
        return EffectiveSize(0.0, "above_capacity")
    if run.load is None:
        return EffectiveSize(0.0, "load_unknown")
    if run.requests < _GENERATIONS * run.present:
        return EffectiveSize(0.0)
    return EffectiveSize(run.requests / _requests_per_observation([run]))


def effective_size_of_replications(runs: Sequence[Dependence]) -> EffectiveSize:
    """What the intervals of several independent runs may rest on."""
    count = len(runs)
    if any(run.unstable for run in runs):
        return EffectiveSize(0.0, "above_capacity")
    if count < FEWEST_RUNS:
        return EffectiveSize(0.0, "few_runs")
    if any(run.load is None for run in runs):
        return EffectiveSize(math.inf)
    each = min(run.requests for run in runs) / _requests_per_observation(runs)
    if each < _BIAS * count:
        return EffectiveSize(0.0, "runs_too_short")
    return EffectiveSize(each * count, "run_too_short")


def _requests_per_observation(runs: Sequence[Dependence]) -> float:
    """How many requests are worth one independent observation of a mean, at most; inf from capacity on."""
    loads = [run.load for run in runs if run.load is not None]
    variation = float(np.mean([load.variation for load in loads]))
    error = math.sqrt(variation / sum(load.requests for load in loads))
    share = float(np.mean([load.share for load in loads])) * (1 + _ERRORS * error)
    share += _DRAFTS_HIDE * any(run.speculates for run in runs)
    return math.inf if share >= 1 else max(1.0, 2 * variation / (1 - share) ** 2)
