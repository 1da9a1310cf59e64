"""Several independent runs of one scenario as one result: pooled latencies, and intervals over the runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.common.notes import Note
from simulator.results.analysis import RunAnalysis
from simulator.results.dependence import Dependence, effective_size_of_replications
from simulator.results.effective_size import FEWEST_RUNS, EffectiveSize, intervals_section
from simulator.results.latency import blocks_of, groups_of, number
from simulator.results.metrics import SCHEMA_VERSION
from simulator.results.record import RunRecord
from simulator.results.schedulers import scheduler_sections
from simulator.results.slo import slo_section
from simulator.results.statistics import Distribution, Floats, t975
from simulator.scenario.schema import Scenario

Summary = dict[str, Any]
#: Values and weights of a latency in ns, by metric.
Samples = dict[str, tuple[Floats, Floats]]


@dataclass(frozen=True, slots=True)
class Replication:
    """The data kept of one run: its summary, its latencies, those by class, and the dependence of its requests."""

    summary: Summary
    samples: Samples
    by_class: dict[str, Samples]
    dependence: Dependence


def replication_of(record: RunRecord, scenario: Scenario, summary: Summary) -> Replication:
    """Return the data of a finished run for the pooled summary."""
    run = RunAnalysis.of(record, scenario)
    kept, latencies, groups = run.selection.kept, run.latencies(), {}
    if len(record.class_names) > 1:
        groups = groups_of(kept, record.requests.class_id, record.class_names)

    def samples(chosen: np.ndarray[Any, np.dtype[np.bool_]]) -> Samples:
        return {name: (sample.values, sample.weights) for name, sample in latencies.samples(chosen)}

    by_class = {name: samples(chosen) for name, chosen in groups.items() if chosen.any()}
    return Replication(summary, samples(kept), by_class, run.dependence())


def pooled_summary(
    scenario: Scenario, seeds: Sequence[int], runs: Sequence[Replication], notes: Sequence[Note], vary: bool
) -> Summary:
    """Return the summary of all runs under these seeds as plain values.

    Percentiles are of the pooled requests, and of the pooled gaps between tokens: a percentile of a short run is
    biased, and a mean of percentiles is not a percentile. Intervals are over the runs (Student's t; for a percentile,
    of the share of observations beyond it). `scenario` has the engine's defaults filled in; `vary` is False if all runs
    serve the same requests.
    """
    effective_size = (
        effective_size_of_replications([run.dependence for run in runs]) if vary else EffectiveSize(0.0, "few_runs")
    )
    pooled = _pooled([run.samples for run in runs])
    latency = blocks_of(pooled.items(), effective_size)
    sections: Summary = {
        "schema_version": SCHEMA_VERSION,
        "scenario": scenario.name,
        "replications": len(runs),
        "seeds": list(seeds),
        "schedulers": scheduler_sections(scenario),
        "requests": _counts([run.summary["requests"] for run in runs]),
        "slo": slo_section(scenario.slo, pooled, latency),
        "latency": latency,
        "intervals": intervals_section(effective_size, len(runs)) if latency else None,
        "by_class": _by_class(runs, effective_size, latency),
        "rates": _means([run.summary.get("throughput", {}) for run in runs], effective_size),
        "cost": _means([_cost(run.summary) for run in runs], effective_size) or None,
        "runs": [{"seed": seed} | _run_sections(run.summary) for seed, run in zip(seeds, runs, strict=True)],
        "warnings": [{"code": note.code, "text": note.text} for note in (*notes, *_warnings(runs))],
    }
    return {name: section for name, section in sections.items() if section is not None}


def title_of(summary: Summary) -> str:
    """Return the scenario's name, the number of runs and their seeds."""
    count, seeds = summary["replications"], summary["seeds"]
    runs = f"{count} runs, seeds {seeds[0]} to {seeds[-1]}" if count > 1 else f"one run, seed {seeds[0]}"
    return f"{summary['scenario']}, {runs}"


def _pooled(samples: Sequence[Samples]) -> dict[str, Distribution]:
    """Return the pooled sample of each metric that any run has."""
    nothing = (np.zeros(0), np.zeros(0))
    names = dict.fromkeys(name for one in samples for name in one)
    return {name: Distribution.of_replications([one.get(name, nothing) for one in samples]) for name in names}


def _by_class(runs: Sequence[Replication], effective_size: EffectiveSize, latency: Summary) -> Summary | None:
    names = dict.fromkeys(name for run in runs for name in run.by_class)
    found = {name: _pooled([run.by_class.get(name, {}) for run in runs]) for name in names}
    return {
        name: blocks_of(pooled.items(), effective_size.of_share(pooled["ttft_ms"].count / latency["ttft_ms"]["count"]))
        for name, pooled in found.items()
    } or None


def _counts(requests: Sequence[Summary]) -> dict[str, int]:
    names = dict.fromkeys(name for one in requests for name in one if name != "rejected_reasons")
    return {name: sum(one.get(name, 0) for one in requests) for name in names}


def _cost(summary: Summary) -> Summary:
    """Return the total cost of a run; {} without prices."""
    return {name: value for name, value in summary.get("cost", {}).items() if name != "pools"}


def _means(sections: Sequence[Summary], effective_size: EffectiveSize) -> Summary:
    """Return the mean of each rate or cost over the runs, with its interval.

    There is no interval if latencies have none for a reason that holds for rates too: a load above capacity, or runs
    that are not independent.
    """
    names = [name for name in sections[0] if all(name in one for one in sections)]
    given = len(sections) >= FEWEST_RUNS and (
        effective_size.observations > 0 or effective_size.reason == "runs_too_short"
    )
    return {name: _mean([one[name] for one in sections], given) for name in names}


def _mean(values: Sequence[float], given: bool) -> Summary:
    mean, bounds = float(np.mean(values)), None
    if given:
        half_width = t975(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
        bounds = [number(max(mean - half_width, 0.0)), number(mean + half_width)]
    return {"mean": number(mean), "ci95": bounds, "values": list(values)}


def _run_sections(summary: Summary) -> Summary:
    """Return the sections of a run's summary that the pooled summary repeats."""
    kept = ("requests", "duration_s", "throughput", "slo", "latency", "engine", "kv", "prefix_cache", "cost")
    return {name: summary[name] for name in (*kept, "speculation", "warnings") if name in summary}


def _warnings(runs: Sequence[Replication]) -> list[Note]:
    """Return the warnings of the runs, each once with the text of the first run that has it.

    `few_samples` is left out: it is decided for the pooled requests.
    """
    texts: dict[str, list[str]] = {}
    for run in runs:
        for warning in run.summary["warnings"]:
            if warning["code"] != "few_samples":
                texts.setdefault(warning["code"], []).append(warning["text"])
    often = {code: "" if len(runs) == 1 else f"in {len(found)} of {len(runs)} runs: " for code, found in texts.items()}
    return [Note(code, often[code] + found[0]) for code, found in texts.items()]
