"""The summary of a run, as `servesim run --json` prints it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.common.disk_arrays import release
from simulator.common.notes import Note
from simulator.results.analysis import RunAnalysis
from simulator.results.attribution import composition
from simulator.results.columns import Refusal, Status
from simulator.results.cost import cost_section
from simulator.results.dependence import effective_size_of_run
from simulator.results.effective_size import EffectiveSize, intervals_section
from simulator.results.fragmentation import wasted_share
from simulator.results.latency import Latencies, blocks_of, groups_of, number, output_buckets, prompt_buckets
from simulator.results.occupancy import Occupancy
from simulator.results.offload import offload_section
from simulator.results.pools import pool_sections, transfer_section
from simulator.results.record import RunRecord
from simulator.results.saturation import LOAD_TEST, Load
from simulator.results.schedulers import scheduler_sections
from simulator.results.slo import meets, slo_section
from simulator.results.speculation import speculation_section
from simulator.results.warnings import warnings_of
from simulator.scenario.schema import Scenario
from simulator.scenario.slo import Slo

SCHEMA_VERSION = 4
#: The outcomes of submitted requests; `in_flight` are those still open at the end.
_OUTCOMES = ("completed", "rejected", "expired", "cancelled", "failed", "in_flight")


def summarise(
    record: RunRecord,
    scenario: Scenario,
    notes: Sequence[Note] = (),
    usd_per_hour: Sequence[float] | None = None,
) -> dict[str, Any]:
    """Return the summary of a run as plain values; sections that do not apply are left out.

    Latencies are of completed requests that arrived after the warm-up; counts, throughput, engine, memory and cost are
    of the whole run. `notes` come first among the warnings. `usd_per_hour` is the price of all GPUs of each pool, None
    without prices.

    Raises:
        AssertionError: requests were lost or counted twice, which is a bug of the engine.
    """
    run, occupancy = RunAnalysis.of(record, scenario), Occupancy(record)
    kept, effective_size = run.selection.kept, effective_size_of_run(run.dependence())
    latencies = run.latencies()
    latency, slo = _latency_and_slo(latencies, kept, effective_size, scenario.slo)
    warnings = [*notes, *warnings_of(run, latency, occupancy)]
    release()
    sections: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "partial": None if record.complete else True,
        "scenario": scenario.name,
        "seed": scenario.seed,
        "schedulers": scheduler_sections(scenario),
        "requests": _requests(record),
        "duration_s": number(_duration_s(record)),
        "throughput": _throughput(record, scenario.slo),
        "slo": slo,
        "latency": latency,
        "intervals": intervals_section(effective_size) if latency else None,
        **_groups(record, latencies, kept, effective_size),
        "attribution": composition(run.parts, kept),
        "engine": _engine(record, occupancy, run.load),
        "kv": _kv(record, occupancy, wasted_share(record, scenario, occupancy)),
        "prefix_cache": _prefix_cache(record),
        "speculation": speculation_section(record, scenario),
        "offload": offload_section(record, kept, effective_size),
        "pools": pool_sections(record, occupancy),
        "transfer": transfer_section(record, kept, effective_size),
        "cost": cost_section(record, usd_per_hour, _tokens(record)),
        "warmup": run.selection.section,
        "warnings": [{"code": note.code, "text": note.text} for note in warnings],
    }
    return {name: section for name, section in sections.items() if section is not None}


def _latency_and_slo(
    latencies: Latencies, kept: NDArray[np.bool_], effective_size: EffectiveSize, slo: Slo | None
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return the latency blocks and the section on objectives.

    Samples are large: they are held in memory all at once only if there are objectives.
    """
    if slo is None:
        return blocks_of(latencies.samples(kept), effective_size), None
    samples = dict(latencies.samples(kept))
    latency = blocks_of(samples.items(), effective_size)
    return latency, slo_section(slo, samples, latency)


def _groups(
    record: RunRecord, latencies: Latencies, kept: NDArray[np.bool_], effective_size: EffectiveSize
) -> dict[str, Any]:
    """Return the latency blocks by class, if there are several, and by length."""
    requests, sections = record.requests, {}
    if len(record.class_names) > 1:
        classes = groups_of(kept, requests.class_id, record.class_names)
        sections["by_class"] = latencies.by_group(classes, effective_size) or None
    for name, buckets in (("by_prompt_bucket", prompt_buckets), ("by_output_bucket", output_buckets)):
        groups = groups_of(kept, *buckets(requests))
        sections[name] = latencies.by_group(groups, effective_size, "stall_ms") or None
    return sections


def _requests(record: RunRecord) -> dict[str, Any]:
    status, refusal = record.requests.status, record.requests.refusal
    of_status = {kind.name.lower(): int(np.count_nonzero(status == kind)) for kind in Status}
    absent = of_status.pop("not_arrived")
    counts: dict[str, Any] = {"submitted": len(status) - absent}
    counts |= {outcome: of_status.get(outcome, 0) for outcome in _OUTCOMES}
    ended = sum(counts[outcome] for outcome in _OUTCOMES)
    if counts["submitted"] != ended:
        raise AssertionError(f"requests not conserved: {counts['submitted']} submitted, {ended} found")
    if absent:
        counts["not_arrived"] = absent
    if counts["rejected"]:
        refused = {kind.name.lower(): int(np.count_nonzero(refusal == kind)) for kind in Refusal if kind}
        counts["rejected_reasons"] = {reason: count for reason, count in refused.items() if count}
    return counts


def _duration_s(record: RunRecord) -> float:
    return (record.end_ns - record.start_ns) / 1e9


def _tokens(record: RunRecord) -> tuple[int, int]:
    """Return the prompt tokens with a completed prefill, and the delivered output tokens, of all requests."""
    requests = record.requests
    prompts = np.sum(requests.prompt_tokens, where=requests.first_token_ns >= 0, dtype=np.int64)
    return int(prompts), int(np.sum(requests.emitted_tokens, dtype=np.int64))


def _throughput(record: RunRecord, slo: Slo | None) -> dict[str, float] | None:
    seconds = _duration_s(record)
    if seconds <= 0:
        return None
    prompts, outputs = _tokens(record)
    completed = np.asarray(record.requests.status == Status.COMPLETED)
    rates = {
        "requests_per_s": np.count_nonzero(completed) / seconds,
        "output_tokens_per_s": outputs / seconds,
        "total_tokens_per_s": (prompts + outputs) / seconds,
    }
    if slo is not None and slo.by_request():
        rates["goodput_per_s"] = np.count_nonzero(completed & meets(record, slo)) / seconds
    return {name: number(rate) for name, rate in rates.items()}


def _engine(record: RunRecord, occupancy: Occupancy, load: Load | None) -> dict[str, float] | None:
    """Return the section on steps; `mean_batch` is a mean over steps, `mean_running` over time, idle time included.

    `estimated_load` is given only for open-loop load tests.
    """
    steps, requests = record.steps, record.requests
    if not len(steps.end_ns):
        return None
    device_ns = record.core_time_ns
    busy_ns = int(np.sum(steps.end_ns - steps.start_ns, dtype=np.int64))
    engine = {
        "steps": len(steps.end_ns),
        "mean_batch": number(float(np.mean(steps.running))),
        "mean_running": number(occupancy.mean(steps.running)),
        "busy_share": number(busy_ns / device_ns if device_ns > 0 else 0.0),
        "preemptions": int(np.sum(requests.preemptions, dtype=np.int64)),
        "preempted_requests": int(np.count_nonzero(requests.preemptions)),
        "recomputed_tokens": int(np.sum(requests.recomputed_tokens, dtype=np.int64)),
    }
    if load is not None and load.requests >= LOAD_TEST:
        engine["estimated_load"] = number(load.share)
    return engine


def _kv(record: RunRecord, occupancy: Occupancy, wasted: float | None) -> dict[str, float] | None:
    """Return the section on KV memory: blocks of a replica, left out if replicas differ, and the highest and the mean
    use.
    """
    use, blocks = record.kv_use(), record.kv_blocks()
    if not len(use):
        return None
    section: dict[str, float] = {"blocks": int(blocks[0])} if np.all(blocks == blocks[0]) else {}
    section |= {"peak_use": number(float(use.max())), "mean_use": number(occupancy.mean(use))}
    return section if wasted is None else section | {"wasted_share": number(wasted)}


def _prefix_cache(record: RunRecord) -> dict[str, float] | None:
    """Return the section on the prefix cache; None if nothing was looked up.

    Hits are those of first admissions; tokens that preempted requests find again are counted apart.
    """
    requests = record.requests
    queried = int(np.sum(requests.queried_tokens, dtype=np.int64))
    if not queried:
        return None
    cached = int(np.sum(requests.cached_tokens, dtype=np.int64))
    return {
        "hit_rate": number(cached / queried),
        "hit_tokens": cached,
        "queried_tokens": queried,
        "recovered_tokens": int(np.sum(requests.recovered_tokens, dtype=np.int64)),
    }
