"""A comparison as one plain object, which `servesim compare --json` prints."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from simulator.common.notes import Note
from simulator.comparison.different import Difference
from simulator.comparison.metrics import Metric, estimate_of, metrics_of, value_of
from simulator.comparison.outcome import Comparison
from simulator.comparison.sample import Sample, trusted
from simulator.comparison.speed_up import speed_ups
from simulator.results.attribution import PARTS
from simulator.results.latency import number
from simulator.results.metrics import SCHEMA_VERSION
from simulator.results.paired import Paired, over_requests, over_seeds, unpaired
from simulator.results.warnings import mean_too_uncertain

Document = dict[str, Any]


def document_of(comparison: Comparison) -> Document:
    """Everything that a comparison says.

    `designs` holds the summary of each one's first run; `metrics` each metric's value under each seed, with the median,
    the lowest and the highest; `paired` the differences from the baseline; `speed_up` what speculation gains, where
    either design of a pair speculates; `different` what was accepted to differ beside the deployments, and does;
    `mixed_decoding` what the answers of each are, where they are not the same;
    `attribution` where the time of requests goes, those of all seeds together.
    """
    names = [design.name for design in comparison.designs]
    optional = {
        "different": _different(comparison.different),
        "mixed_decoding": _mixed(comparison),
        "speed_up": speed_ups(comparison),
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "baseline": names[comparison.baseline],
        "seeds": list(comparison.seeds),
        "designs": {name: own[0].summary for name, own in zip(names, comparison.samples, strict=True)},
        "metrics": {name: _values(comparison, own) for name, own in zip(names, comparison.samples, strict=True)},
        "paired": _paired(comparison),
        **{name: section for name, section in optional.items() if section},
        "attribution": {name: _attribution(own) for name, own in zip(names, comparison.samples, strict=True)},
        "warnings": [{"code": note.code, "text": note.text} for note in (*comparison.notes, *_warnings(comparison))],
    }


def compared_metrics(comparison: Comparison) -> tuple[Metric, ...]:
    """The metrics that any run has, in the order of the table."""
    return metrics_of([sample.summary for own in comparison.samples for sample in own])


def _values(comparison: Comparison, samples: tuple[Sample, ...]) -> dict[str, Any]:
    found = {}
    for metric in compared_metrics(comparison):
        values = [value_of(sample.summary, metric) for sample in samples]
        known = [value for value in values if value is not None]
        if known:
            spread = {"median": number(float(np.median(known))), "lowest": min(known), "highest": max(known)}
            found[metric.name] = spread | {"values": values}
    return found


def _different(found: Difference | None) -> dict[str, Any] | None:
    return None if found is None else {"what": found.kinds, **asdict(found)}


def _mixed(comparison: Comparison) -> dict[str, Any]:
    return {name: asdict(own) for name, own in (comparison.mixed or {}).items()}


def _paired(comparison: Comparison) -> list[dict[str, Any]]:
    """The differences of each design from the baseline, metric after metric."""
    entries = []
    for at, design in enumerate(comparison.designs):
        if at == comparison.baseline:
            continue
        samples, reference = comparison.pairs(at)
        for metric in compared_metrics(comparison):
            pairs = [
                (value_of(a.summary, metric), value_of(b.summary, metric))
                for a, b in zip(samples, reference, strict=True)
            ]
            known = [(ours, theirs) for ours, theirs in pairs if ours is not None and theirs is not None]
            if known:
                same = comparison.same_requests(at)
                entries.append(_entry(design.name, metric, known, samples[0], reference[0], same))
    return entries


def _entry(
    design: str,
    metric: Metric,
    pairs: list[tuple[float, float]],
    sample: Sample,
    reference: Sample,
    same_requests: bool,
) -> dict[str, Any]:
    ours, theirs = zip(*pairs, strict=True)
    difference = over_seeds(ours, theirs)
    if difference.method == "none":
        of_runs = _of_requests if same_requests else _unpaired
        difference = of_runs(metric, sample, reference) or difference
    base = float(np.mean(theirs))
    return {
        "design": design,
        "metric": metric.name,
        "difference": number(difference.value),
        "ci95": None if difference.interval is None else [number(bound) for bound in difference.interval],
        "relative": number(difference.value / base) if base else None,
        "method": difference.method,
        "count": difference.count,
    }


def _of_requests(metric: Metric, sample: Sample, reference: Sample) -> Paired | None:
    """The difference of a mean over requests, by the requests that both designs completed; None for other metrics."""
    _, block, name = (*metric.name.split("."), "", "")[:3]
    if not metric.name.startswith("latency.") or name != "mean" or block not in sample.latencies_ms:
        return None
    ours, theirs = sample.latencies_ms[block], reference.latencies_ms[block]
    both = ~np.isnan(ours) & ~np.isnan(theirs)
    return over_requests(ours[both], theirs[both], trusted(block, sample, reference)) if both.any() else None


def _unpaired(metric: Metric, sample: Sample, reference: Sample) -> Paired | None:
    """The difference of two runs of other requests, from the intervals that each run gives; None without them."""
    ours, theirs = (estimate_of(each.summary, metric) for each in (sample, reference))
    return None if ours is None or theirs is None else unpaired(ours, theirs)


def _attribution(samples: tuple[Sample, ...]) -> dict[str, dict[str, float]]:
    """Means over the requests of all seeds: at a percentile, over those around it under each seed."""
    found = [sample.summary["attribution"] for sample in samples if "attribution" in sample.summary]
    pooled: dict[str, dict[str, float]] = {}
    for at in found[0] if found else ():
        entries = [one[at] for one in found]
        count = sum(entry["requests"] for entry in entries)
        # A seed under which nothing was handed over has no part of that name: it took no time.
        means = {
            name: number(sum(entry.get(name, 0) * entry["requests"] for entry in entries) / count)
            for name in ("e2e_ms", *(f"{part}_ms" for part in PARTS))
            if any(name in entry for entry in entries)
        }
        pooled[at] = {"requests": count} | means
    return pooled


def _warnings(comparison: Comparison) -> list[Note]:
    """The warnings of the runs: each once, with the designs that have it, and under how many seeds."""
    texts: dict[str, dict[str, list[str]]] = {}
    for design, samples in zip(comparison.designs, comparison.samples, strict=True):
        for sample in samples:
            for warning in _of_run(sample, comparison):
                texts.setdefault(warning["code"], {}).setdefault(design.name, []).append(warning["text"])
    return [Note(code, _told(by_design, len(comparison.seeds))) for code, by_design in texts.items()]


def _of_run(sample: Sample, comparison: Comparison) -> list[dict[str, str]]:
    """The warnings of a run, but for that about means where the seeds give these an interval."""
    fixed = any(note.code == "requests_fixed" for note in comparison.notes)
    answered = len(comparison.seeds) > 1 and not fixed and mean_too_uncertain(sample.summary["latency"])
    return [each for each in sample.summary["warnings"] if not (answered and each["code"] == "few_samples")]


def _told(by_design: dict[str, list[str]], seeds: int) -> str:
    parts = []
    for name, texts in by_design.items():
        often = f" ({len(texts)} of {seeds} seeds)" if seeds > 1 else ""
        parts.append(f"{name}{often}: {texts[0]}")
    return "; ".join(parts)
