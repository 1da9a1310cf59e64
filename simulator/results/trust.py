"""Which intervals a result may show: those for which it is worth enough independent observations."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

#: Independent observations that must be expected beyond a quantile, on its rarer side.
_FEWEST = 8.0
#: A mean of waiting times depends on their tail as much as the p90 does.
MEAN_TAIL = 0.1
_TAILS = {"mean": MEAN_TAIL, "p50": 0.5, "p95": 0.95, "p99": 0.99}
#: Variances are enlarged by 1 + this / (independent observations beyond the quantile): a run of few of them may be calm
#: by luck, in its load as in its latencies.
_LUCK = 30.0
#: Replications that an interval needs.
FEWEST_RUNS = 3

REASONS = {
    "above_capacity": "the load is above capacity, so that latencies have no steady value",
    "load_unknown": "one run cannot show how far its requests depend on each other where its load is not known "
    "(closed loops, limits on the client's side, all at once, several pools, numbers of drafts that vary, fewer than "
    "20 requests); --seeds N runs replications",
    "run_too_short": "the run is worth too few independent observations for this: simulate more requests, or lower the "
    "load",
    "runs_too_short": "each run starts empty, and is too short at this load for that not to show beside an interval of "
    "so many runs: simulate more requests in each, or fewer seeds",
    "few_runs": f"fewer than {FEWEST_RUNS} runs differ in their requests",
    "tail_too_rare": "values beyond it occurred too rarely, or all in one stretch",
}


@dataclass(frozen=True, slots=True)
class Trust:
    """`independent` observations, inf if all that is needed is known from replications; 0 where no interval may be
    given, for the `reason` (a key of `REASONS`)."""

    independent: float
    reason: str = "run_too_short"

    def of_share(self, share: float) -> Trust:
        """The trust in a group that has this share of the requests."""
        return replace(self, independent=self.independent * share) if self.independent else self

    def allowance(self, tail: float) -> float | None:
        """The factor of a variance for a statistic with this share of observations beyond it; None if it may have no
        interval."""
        beyond = self.independent * tail
        return None if beyond < _FEWEST else 1 + _LUCK / beyond


def intervals_section(trust: Trust, replications: int | None = None) -> dict[str, Any]:
    """What intervals rest on, batches of one run, replications or `none`; how many independent observations the result
    is worth, if that was asked, and what each statistic needs; or why it has no intervals at all."""
    needed = {name: round(_FEWEST / min(p, 1 - p)) for name, p in _TAILS.items()}
    given = trust.independent >= min(needed.values())
    section: dict[str, Any] = {"method": "none"}
    if given:
        section = {"method": "batches" if replications is None else "replications"}
    if 0 < trust.independent < math.inf:
        section |= {"independent_observations": math.floor(trust.independent), "needed": needed}
    return section if given else section | {"reason": REASONS[trust.reason]}
