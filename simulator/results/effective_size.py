"""The effective sample size of a result, and which confidence intervals it supports."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

#: The fewest independent observations expected in the smaller tail of a statistic for which an interval is given.
_FEWEST = 8.0
#: The share of observations in the tail that determines a mean of waiting times: that of the p90.
MEAN_TAIL = 0.1
_TAILS = {"mean": MEAN_TAIL, "p50": 0.5, "p95": 0.95, "p99": 0.99}
#: Variances are multiplied by 1 + this / (independent observations in the tail), since a run with few of them may
#: happen to have both a low load and low latencies.
_SMALL_SAMPLE = 30.0
#: The fewest replications for which an interval is given.
FEWEST_RUNS = 3

REASONS = {
    "above_capacity": "the load is above capacity, so that latencies have no steady value",
    "load_unknown": "a single run cannot show how much its requests depend on each other where its load is unknown "
    "(closed loops, limits on the client's side, all requests at once, several pools, numbers of drafts that vary, "
    "fewer than 20 requests); replications (--seeds N, in Python simulator.replicate) can",
    "run_too_short": "the run has too few independent observations for this: simulate more requests, or lower the load",
    "runs_too_short": "each run starts empty, and at this load each is too short for the bias of the start to be small "
    "beside an interval over so many runs: simulate more requests in each, or fewer seeds",
    "few_runs": f"fewer than {FEWEST_RUNS} runs differ in their requests",
    "tail_too_rare": "values beyond it occurred too rarely, or all in one stretch of time",
}


class EffectiveSize(NamedTuple):
    """The number of independent `observations` to which the requests of a result are equivalent.

    It is inf if there are enough replications for every interval, and 0 if no interval may be given; `reason` is then
    a key of `REASONS`.
    """

    observations: float
    reason: str = "run_too_short"

    def of_share(self, share: float) -> EffectiveSize:
        """Return the effective size of a group with this share of the requests."""
        return self._replace(observations=self.observations * share) if self.observations else self

    def variance_factor(self, tail: float) -> float | None:
        """Return the factor by which to enlarge the variance of a statistic; None if it may have no interval.

        `tail` is the share of observations beyond the statistic, on the rarer side.
        """
        beyond = self.observations * tail
        return None if beyond < _FEWEST else 1 + _SMALL_SAMPLE / beyond


def intervals_section(effective_size: EffectiveSize, replications: int | None = None) -> dict[str, Any]:
    """Return the summary's section on intervals.

    `method` is `batches` (of one run), `replications` or `none`, the last with the `reason`. Where the effective size
    is finite, the section also has it, and the observations that each statistic needs.
    """
    needed = {name: round(_FEWEST / min(p, 1 - p)) for name, p in _TAILS.items()}
    given = effective_size.observations >= min(needed.values())
    section: dict[str, Any] = {"method": "none"}
    if given:
        section = {"method": "batches" if replications is None else "replications"}
    if 0 < effective_size.observations < math.inf:
        section |= {"independent_observations": math.floor(effective_size.observations), "needed": needed}
    return section if given else section | {"reason": REASONS[effective_size.reason]}
