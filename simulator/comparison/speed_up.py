"""What speculation gains: a design that speculates against one that does not, under the same load."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from simulator.comparison.designs import Design
from simulator.comparison.metrics import Metric, value_of
from simulator.comparison.outcome import Comparison
from simulator.comparison.sample import Sample, trusted
from simulator.results.latency import number
from simulator.results.paired import Paired, ratio_over_requests, ratio_over_seeds
from simulator.scenario import Scenario
from simulator.scenario.reader import plain

#: What is gained, and in which metric: a time, which is shorter, or a rate, which is higher.
_GAINS = {
    "tpot": ("latency.tpot_ms.mean", "time"),
    "e2e": ("latency.e2e_ms.mean", "time"),
    "output_tokens_per_s": ("throughput.output_tokens_per_s", "rate"),
}
_SPECULATION = "speculation"


def speed_ups(comparison: Comparison) -> list[dict[str, Any]]:
    """An entry for each design of which either it or the baseline speculates: how many times faster the one is that
    does. `also_differs` lists the keys of the deployment, others than speculation's, in which they differ: of a section
    that only one of them has, its own alone."""
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
    keys = _differing(plain(design.scenario), plain(other.scenario))
    return [".".join(key) for key in keys if key != ("name",) and _SPECULATION not in key]


def _differing(ours: Any, theirs: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Where two documents differ: as deep as both have a section."""
    if not (isinstance(ours, dict) and isinstance(theirs, dict)):
        if ours != theirs:
            yield path
        return
    for key in dict.fromkeys([*theirs, *ours]):
        yield from _differing(ours.get(key), theirs.get(key), (*path, str(key)))


def _gains(samples: tuple[Sample, ...], reference: tuple[Sample, ...]) -> dict[str, Any]:
    gains = {}
    for gain, (name, kind) in _GAINS.items():
        found = _of_seeds(Metric(name, gain), samples, reference, kind)
        if found is not None:
            interval = None if found.interval is None else [number(bound) for bound in found.interval]
            gains[gain] = {
                "speed_up": number(found.value),
                "ci95": interval,
                "method": found.method,
                "count": found.count,
            }
    return gains


def _of_seeds(metric: Metric, samples: tuple[Sample, ...], reference: tuple[Sample, ...], kind: str) -> Paired | None:
    pairs = [
        (value_of(a.summary, metric), value_of(b.summary, metric)) for a, b in zip(samples, reference, strict=True)
    ]
    known = [(ours, theirs) for ours, theirs in pairs if ours and theirs]
    if not known:
        return None
    ours, theirs = zip(*known, strict=True)
    if len(known) == 1:
        found = _of_requests(metric, samples[0], reference[0])
        if found is not None:
            return found
    return ratio_over_seeds(theirs, ours) if kind == "time" else ratio_over_seeds(ours, theirs)


def _of_requests(metric: Metric, sample: Sample, reference: Sample) -> Paired | None:
    """By the requests that both designs completed; None for what is no mean over requests."""
    block = metric.name.split(".")[1]
    if block not in sample.latencies_ms:
        return None
    ours, theirs = sample.latencies_ms[block], reference.latencies_ms[block]
    both = ~np.isnan(ours) & ~np.isnan(theirs)
    if not np.sum(ours[both]) > 0:
        return None
    return ratio_over_requests(theirs[both], ours[both], trusted(block, sample, reference))
