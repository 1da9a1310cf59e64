"""The number of independent observations to which the requests of a run are equivalent.

Near saturation it cannot be estimated from the latencies: a run without a long queue, by chance, would give an interval
that is too narrow and misses the true mean. The dependence of requests is therefore bounded by the load. For the mean
of a queue's waiting times, one independent observation takes about 2 (ca2 + cs2) / (1 - load)^2 requests, where ca2 and
cs2 are the squared coefficients of variation of gaps and sizes (heavy-traffic limit, Whitt 1989). This is 10% too many
for M/M/1 at load 0.9 (Daley 1968), and more at lower loads, which makes intervals conservative. The load is taken at
two standard errors above its estimate. `tests/bench/test_coverage.py` measures the coverage of the intervals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.results.columns import Status
from simulator.results.effective_size import FEWEST_RUNS, EffectiveSize
from simulator.results.record import RunRecord
from simulator.results.saturation import Load

#: The standard errors above its estimate at which the load is taken.
_ERRORS = 2.0
#: With drafts the load is underestimated below capacity, by up to this much (docs/formats.md).
_DRAFTS_BIAS = 0.13
#: The fewest requests of a run per request present at a time: two generations in each of 20 batches.
_GENERATIONS = 40.0
#: The bias of the empty start does not average out over replications. It is small beside the interval if each run
#: has at least this many independent observations per replication.
_BIAS = 1.0


class Dependence(NamedTuple):
    """The quantities of one run that determine the dependence of its requests.

    `requests` is the number of counted requests, `present` the mean number of requests in the system, and `load` the
    offered load, None if it is unknown. `unstable` says whether the load was above capacity.
    """

    requests: int
    present: float
    load: Load | None
    speculates: bool
    unstable: bool


def dependence(record: RunRecord, load: Load | None, kept: NDArray[np.bool_], unstable: bool) -> Dependence:
    """Return the dependence of a run's requests; `kept` marks those that count."""
    requests, speculates = record.requests, record.speculates
    done = requests.status == Status.COMPLETED
    span_ns = max(record.end_ns - record.start_ns, 1)
    present = float(np.sum((requests.finish_ns - requests.arrival_ns)[done], dtype=float)) / span_ns
    return Dependence(int(np.count_nonzero(kept)), present, load, speculates, unstable)


def effective_size_of_run(run: Dependence) -> EffectiveSize:
    """Return the effective sample size of a single run."""
    if run.unstable:
        return EffectiveSize(0.0, "above_capacity")
    if run.load is None:
        return EffectiveSize(0.0, "load_unknown")
    if run.requests < _GENERATIONS * run.present:
        return EffectiveSize(0.0)
    return EffectiveSize(run.requests / _requests_per_observation([run]))


def effective_size_of_replications(runs: Sequence[Dependence]) -> EffectiveSize:
    """Return the effective sample size of several independent runs together."""
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
    """Return an upper bound of the requests per independent observation of a mean; inf at capacity and above."""
    loads = [run.load for run in runs if run.load is not None]
    variation = float(np.mean([load.variation for load in loads]))
    error = math.sqrt(variation / sum(load.requests for load in loads))
    share = float(np.mean([load.share for load in loads])) * (1 + _ERRORS * error)
    share += _DRAFTS_BIAS * any(run.speculates for run in runs)
    return math.inf if share >= 1 else max(1.0, 2 * variation / (1 - share) ** 2)
