"""The speed-up by speculation: a design with it relative to one without, over the same requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from simulator.comparison.designs import Design
from simulator.comparison.metrics import Metric
from simulator.comparison.outcome import Comparison
from simulator.comparison.sample import Sample, completed_by_both, paired_values, show_mean_interval
from simulator.results.latency import number
from simulator.results.paired import Paired, ratio_over_requests, ratio_over_seeds
from simulator.scenario import Scenario
from simulator.scenario.plain_values import plain

#: The gains, each with its metric, which is a time (shorter is better) or a rate (higher is better).
_GAINS = {
    "tpot": ("latency.tpot_ms.mean", "time"),
    "e2e": ("latency.e2e_ms.mean", "time"),
    "output_tokens_per_s": ("throughput.output_tokens_per_s", "rate"),
}
_SPECULATION = "speculation"


def speed_ups(comparison: Comparison) -> list[dict[str, Any]]:
    """Return an entry for each design where either it or the baseline speculates: how many times faster that one is.

    `also_differs` lists the keys other than speculation's in which the two differ; a section that only one of them has
    is listed by its own key.
    """
    baseline = comparison.designs[comparison.baseline]
    entries = []
    for at, design in enumerate(comparison.designs):
        if _speculates(design.scenario) == _speculates(baseline.scenario) or not comparison.same_requests(at):
            continue
        sides = list(zip((design, baseline), comparison.pairs(at), strict=True))
        (fast, samples), (slow, reference) = sides if _speculates(design.scenario) else sides[::-1]
        entries.append(
            {
                "design": fast.name,
                "against": slow.name,
                "also_differs": _other_differences(fast, slow),
                **_gains(samples, reference),
            }
        )
    return entries


def _speculates(scenario: Scenario) -> bool:
    return any(pool.speculation is not None for pool in scenario.deployment.pools.values())


def _other_differences(design: Design, other: Design) -> list[str]:
    keys = _differing_paths(plain(design.scenario), plain(other.scenario))
    return [".".join(key) for key in keys if key != ("name",) and _SPECULATION not in key]


def _differing_paths(ours: Any, theirs: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths at which two documents differ, down to the deepest section that both have."""
    if not (isinstance(ours, dict) and isinstance(theirs, dict)):
        if ours != theirs:
            yield path
        return
    for key in dict.fromkeys([*theirs, *ours]):
        yield from _differing_paths(ours.get(key), theirs.get(key), (*path, str(key)))


def _gains(samples: tuple[Sample, ...], reference: tuple[Sample, ...]) -> dict[str, Any]:
    gains = {}
    for gain, (name, kind) in _GAINS.items():
        found = _gain(Metric(name, gain), samples, reference, kind)
        if found is not None:
            interval = None if found.interval is None else [number(bound) for bound in found.interval]
            gains[gain] = {
                "speed_up": number(found.value),
                "ci95": interval,
                "method": found.method,
                "count": found.count,
            }
    return gains


def _gain(metric: Metric, samples: tuple[Sample, ...], reference: tuple[Sample, ...], kind: str) -> Paired | None:
    known = [(ours, theirs) for ours, theirs in paired_values(samples, reference, metric) if ours and theirs]
    if not known:
        return None
    ours, theirs = zip(*known, strict=True)
    if len(known) == 1:
        found = _by_request(metric, samples[0], reference[0])
        if found is not None:
            return found
    return ratio_over_seeds(theirs, ours) if kind == "time" else ratio_over_seeds(ours, theirs)


def _by_request(metric: Metric, sample: Sample, reference: Sample) -> Paired | None:
    """Return the ratio over the requests that both designs completed; None for a metric that is no mean over them."""
    block = metric.name.split(".")[1]
    if block not in sample.latencies_ms:
        return None
    ours, theirs = completed_by_both(sample, reference, block)
    if not np.sum(ours) > 0:
        return None
    return ratio_over_requests(theirs, ours, show_mean_interval(block, sample, reference))
