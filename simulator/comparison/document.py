"""The document of a comparison, as `servesim compare --json` prints it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from simulator.common.notes import Note
from simulator.comparison.differences import Differences
from simulator.comparison.metrics import Metric, estimate_of, metrics_of, value_of
from simulator.comparison.outcome import Comparison
from simulator.comparison.sample import Sample, completed_by_both, paired_values, show_mean_interval
from simulator.comparison.speed_up import speed_ups
from simulator.results.attribution import PARTS
from simulator.results.latency import number
from simulator.results.metrics import SCHEMA_VERSION
from simulator.results.paired import Paired, over_requests, over_seeds, unpaired
from simulator.results.warnings import mean_too_uncertain

Document = dict[str, Any]


def document_of(comparison: Comparison) -> Document:
    """Return the result of a comparison as plain values.

    `designs` has the summary of each design's first run; `metrics` the values of each metric under all seeds, with the
    median, the lowest and the highest; `paired` the differences from the baseline; `speed_up` the gain by speculation,
    where one design of a pair speculates; `different` the allowed differences beside the deployment; `mixed_decoding`
    the decoding of each design, where these differ; `attribution` the parts of the time of all seeds' requests.
    """
    names = [design.name for design in comparison.designs]
    optional = {
        "different": _differences(comparison.differing),
        "mixed_decoding": _decodings(comparison),
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
    """Return the metrics that any run has, in the order of the table."""
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


def _differences(found: Differences | None) -> dict[str, Any] | None:
    return None if found is None else {"what": found.kinds, **asdict(found)}


def _decodings(comparison: Comparison) -> dict[str, Any]:
    return {name: asdict(own) for name, own in (comparison.decodings or {}).items()}


def _paired(comparison: Comparison) -> list[dict[str, Any]]:
    """Return the differences of each design from the baseline, metric after metric."""
    entries = []
    for index, design in enumerate(comparison.designs):
        if index == comparison.baseline:
            continue
        samples, reference = comparison.pairs(index)
        within_run = _by_request if comparison.same_requests(index) else _unpaired
        for metric in compared_metrics(comparison):
            pairs = paired_values(samples, reference, metric)
            if not pairs:
                continue
            ours, theirs = zip(*pairs, strict=True)
            difference = over_seeds(ours, theirs)
            if difference.method == "none":
                difference = within_run(metric, samples[0], reference[0]) or difference
            entries.append(
                {"design": design.name, "metric": metric.name} | _numbers(difference, float(np.mean(theirs)))
            )
    return entries


def _numbers(difference: Paired, base: float) -> dict[str, Any]:
    return {
        "difference": number(difference.value),
        "ci95": None if difference.interval is None else [number(bound) for bound in difference.interval],
        "relative": number(difference.value / base) if base else None,
        "method": difference.method,
        "count": difference.count,
    }


def _by_request(metric: Metric, sample: Sample, reference: Sample) -> Paired | None:
    """Return the difference of a mean over the requests that both designs completed; None for other metrics."""
    _, block, name = (*metric.name.split("."), "", "")[:3]
    if not metric.name.startswith("latency.") or name != "mean" or block not in sample.latencies_ms:
        return None
    ours, theirs = completed_by_both(sample, reference, block)
    return over_requests(ours, theirs, show_mean_interval(block, sample, reference)) if len(ours) else None


def _unpaired(metric: Metric, sample: Sample, reference: Sample) -> Paired | None:
    """Return the difference of two runs of different requests; None if a run has no interval for the metric."""
    ours, theirs = (estimate_of(each.summary, metric) for each in (sample, reference))
    return None if ours is None or theirs is None else unpaired(ours, theirs)


def _attribution(samples: tuple[Sample, ...]) -> dict[str, dict[str, float]]:
    """Return means over the requests of all seeds; at a percentile, over the requests around it under each seed."""
    found = [sample.summary["attribution"] for sample in samples if "attribution" in sample.summary]
    pooled: dict[str, dict[str, float]] = {}
    for at in found[0] if found else ():
        entries = [one[at] for one in found]
        count = sum(entry["requests"] for entry in entries)
        # Under a seed without KV transfers there is no such part: it counts as 0.
        means = {
            name: number(sum(entry.get(name, 0) * entry["requests"] for entry in entries) / count)
            for name in ("e2e_ms", *(f"{part}_ms" for part in PARTS))
            if any(name in entry for entry in entries)
        }
        pooled[at] = {"requests": count} | means
    return pooled


def _warnings(comparison: Comparison) -> list[Note]:
    """Return the warnings of the runs: each once, with its designs and the number of seeds under which it occurs."""
    texts: dict[str, dict[str, list[str]]] = {}
    for design, samples in zip(comparison.designs, comparison.samples, strict=True):
        for sample in samples:
            for warning in _run_warnings(sample, comparison):
                texts.setdefault(warning["code"], {}).setdefault(design.name, []).append(warning["text"])
    return [Note(code, _by_design(by_design, len(comparison.seeds))) for code, by_design in texts.items()]


def _run_warnings(sample: Sample, comparison: Comparison) -> list[dict[str, str]]:
    """Return the warnings of a run, without `few_samples` about means if several seeds give these an interval."""
    fixed = any(note.code == "requests_fixed" for note in comparison.notes)
    resolved = len(comparison.seeds) > 1 and not fixed and mean_too_uncertain(sample.summary["latency"])
    return [each for each in sample.summary["warnings"] if not (resolved and each["code"] == "few_samples")]


def _by_design(by_design: dict[str, list[str]], seeds: int) -> str:
    parts = []
    for name, texts in by_design.items():
        often = f" ({len(texts)} of {seeds} seeds)" if seeds > 1 else ""
        parts.append(f"{name}{often}: {texts[0]}")
    return "; ".join(parts)
