"""Warnings about a run: overload, saturation, small samples, unusual workloads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.common.notes import Note
from simulator.results.analysis import RunAnalysis
from simulator.results.columns import Status
from simulator.results.latency import Blocks
from simulator.results.occupancy import Occupancy
from simulator.results.record import RunRecord
from simulator.results.saturation import LOAD_TEST, Load, is_open_loop
from simulator.results.stability import backlog_grows, client_overload, overload
from simulator.results.statistics import samples_to_bound
from simulator.results.warmup import Selection
from simulator.scenario.schema import Scenario

#: The shares of capacity, of time and of requests from which a run counts as close to saturation.
_LOAD = 0.9
_WAITING_SHARE = 0.25
_FULL_SHARE, _FULL = 0.05, 0.95
_PREEMPTED_SHARE = 0.01
#: The share of capacity below which batches are so small that latencies are near those of a single request.
_LIGHT_LOAD = 0.3
_CUT_SHARE = 0.01
_ALIKE_CV = 0.05
_SHORT_PROMPT = 16
#: The mean gap of requests, the duration, and the busy share of a run that is mostly idle.
_FAR_APART_S, _HOUR_S, _IDLE = 10.0, 3600.0, 0.1


def warnings_of(run: RunAnalysis, latency: Blocks, occupancy: Occupancy) -> list[Note]:
    """Return the warnings about a run, the most serious first; `latency` are the summary's latency blocks."""
    record, scenario, selection, load = run.record, run.scenario, run.selection, run.load
    notes = [*_unstable_queue(record, load), *_client_limit(record, scenario)]
    if not notes:  # more samples do not help in an overload
        notes += _near_saturation(record, scenario, occupancy, load)
        notes += _bursts(record, load)
        notes += _few_samples(record, selection, latency)
    notes += [*_mostly_idle(record, scenario, occupancy)]
    notes += [*_cut_short(record), *_no_samples(record, selection), *_unsettled(selection), *_odd_prompts(record)]
    return [*notes, *_approximate(scenario), *_zero_queue(record, load)]


def _unstable_queue(record: RunRecord, load: Load | None) -> Iterator[Note]:
    queue = overload(record)
    if queue is not None:
        facts = (
            f"{queue.arrivals_per_s:.4g} requests/s arrived, {queue.starts_per_s:.4g}/s were started, and "
            f"{queue.waiting:,} were waiting when the last one arrived"
        )
    elif load is not None and load.exceeds and backlog_grows(record):
        facts = (
            f"{load.requests:,} requests arrived at {load.rate_per_s:.4g}/s, and the step times of this run allow "
            f"about {load.rate_per_s / load.share:.2g}/s"
        )
    else:
        return
    yield Note(
        "unstable_queue",
        f"the load is above capacity: {facts}. Latencies then grow with the length of the run and have no steady "
        "value; lower the rate or add capacity",
    )


def _client_limit(record: RunRecord, scenario: Scenario) -> Iterator[Note]:
    """Warn of a queue that grows on the client's side, which latencies of the service do not include."""
    limit = scenario.workload.max_concurrency
    queue = None if limit is None else client_overload(record)
    if queue is not None:
        yield Note(
            "client_limit_reached",
            f"clients wanted to send {queue.arrivals_per_s:.4g} requests/s, and workload.max_concurrency admitted "
            f"{queue.starts_per_s:.4g}/s; {queue.waiting:,} were waiting on the client's side at the end of the "
            f"arrivals. client_* latencies grow with the length of the run; the others are those at concurrency "
            f"{limit:,}",
        )


def _near_saturation(record: RunRecord, scenario: Scenario, occupancy: Occupancy, load: Load | None) -> Iterator[Note]:
    """Warn of a load at which a small error of the load or of step times makes a large error of the latencies."""
    if _all_at_once(record):
        return
    steps = record.steps
    waiting = occupancy.mean(steps.waiting > 0)
    full = occupancy.mean(record.kv_use() > _FULL)
    preempted = int(np.count_nonzero(record.requests.preemptions))
    facts = []
    if load is not None and load.share >= _LOAD and load.requests >= LOAD_TEST:
        facts.append(f"the load was about {min(load.share, 1.0):.0%} of capacity")
    if waiting >= _WAITING_SHARE:
        facts.append(f"requests waited for a slot or for KV memory {waiting:.0%} of the time")
    if full >= _FULL_SHARE:
        facts.append(f"KV memory was over {_FULL:.0%} full {full:.0%} of the time")
    if preempted >= max(1.0, _PREEMPTED_SHARE * len(record.requests.status)):
        facts.append(f"{preempted:,} requests were preempted")
    if facts:
        parameter = "rate" if is_open_loop(scenario) else "concurrency"
        yield Note(
            "near_saturation",
            f"{'; '.join(facts)}. Close to saturation, small errors of the load or of step times cause large "
            f"errors of latencies: vary the {parameter} to see how far they change",
        )


def _bursts(record: RunRecord, load: Load | None) -> Iterator[Note]:
    """Warn of temporary overload that the mean load does not show."""
    if load is None or load.requests < LOAD_TEST:
        return
    from simulator.results.bursts import bursts

    found = bursts(record, load)
    if found is not None:
        yield Note(
            "bursts_above_capacity",
            f"the mean load is about {min(load.share, 1.0):.0%} of capacity, but {found.share:.0%} of the requests "
            f"arrived in bursts above it: in {found.windows} of {found.of} windows of {found.window_s:.3g} s, at up to "
            f"{found.peak:.2g} times capacity. Their median TTFT is {_short(found.ttft_ns / 1e6)} ms, that of the "
            f"others {_short(found.other_ttft_ns / 1e6)} ms: plan capacity for the bursts, not for the mean",
        )


def _mostly_idle(record: RunRecord, scenario: Scenario, occupancy: Occupancy) -> Iterator[Note]:
    """Warn of hours without work: a sparse trace, or milliseconds read as seconds."""
    arrivals = record.requests.arrival_ns[record.requests.status != Status.NOT_ARRIVED]
    span_s = (record.end_ns - record.start_ns) / 1e9
    if len(arrivals) < 2 or span_s < _HOUR_S or span_s / len(arrivals) < _FAR_APART_S:
        return
    busy = occupancy.mean(record.steps.running > 0)
    if busy < _IDLE:
        unit = "; if the trace's times are in milliseconds, set workload.rate_scale to 1000"
        yield Note(
            "mostly_idle",
            f"requests arrived {_short(span_s / len(arrivals))} s apart on average, for {_short(span_s / 3600)} hours; "
            f"the replicas ran requests {busy:.1%} of the time, and GPU-hours and costs include the idle time"
            + (unit if scenario.workload.trace is not None else ""),
        )


def _approximate(scenario: Scenario) -> Iterator[Note]:
    """Warn of a verification rule that changes the output distribution."""
    for name, pool in scenario.deployment.pools.items():
        if pool.speculation is None:
            continue
        from simulator.speculation.quality import quality_of

        rule, quality = pool.speculation.verification.rule, quality_of(pool.speculation.verification)
        if quality.kind == "approximate":
            yield Note(
                "approximate_output",
                f"pool {name} accepts drafts by the rule {rule}, which changes the output distribution: total "
                f"variation {quality.total_variation:.3g}, of {quality.basis}. The number of accepted drafts does not "
                "follow from it: it is the scenario's (acceptance), and the speed depends on it",
            )


def _cut_short(record: RunRecord) -> Iterator[Note]:
    """Warn of requests in flight at the end: the missing ones are those with long answers."""
    status = record.requests.status
    open_ = int(np.count_nonzero(status == Status.IN_FLIGHT))
    if open_ > _CUT_SHARE * np.count_nonzero(status != Status.NOT_ARRIVED):
        yield Note(
            "cut_short",
            f"the run ended with {open_:,} requests in flight, which latencies leave out, so that long "
            "answers are missing; remove or lengthen run.horizon",
        )


def _no_samples(record: RunRecord, selection: Selection) -> Iterator[Note]:
    completed = int(np.count_nonzero(record.requests.status == Status.COMPLETED))
    if completed and not selection.kept.any():
        yield Note(
            "warmup_excludes_all",
            f"all {completed:,} completed requests arrived within the warm-up, so that there are no latencies: shorten "
            "run.warmup, or simulate a longer trace",
        )


def _unsettled(selection: Selection) -> Iterator[Note]:
    if not selection.settled:
        yield Note(
            "steady_state_not_reached",
            "MSER-5 found no end of the warm-up in the first half of the requests: these latencies are those "
            "of a transient; simulate a longer trace",
        )


def _few_samples(record: RunRecord, selection: Selection, latency: Blocks) -> Iterator[Note]:
    if not selection.kept.any():
        return
    ttft = latency["ttft_ms"]
    count, p95, p99 = ttft["count"], samples_to_bound(0.95), samples_to_bound(0.99)
    if count < p99:
        needs = f"p99 needs {p99}" if count >= p95 else f"p95 needs {p95} and p99 {p99}"
        yield Note("few_samples", f"latencies are of {count:,} requests; {needs}, and more if they are correlated")
    elif mean_too_uncertain(latency):
        yield Note(
            "few_samples",
            f"latencies are of {count:,} requests, which are so correlated at this load that not even means have an "
            "interval; simulate more requests or more seeds",
        )


def mean_too_uncertain(latency: Blocks) -> bool:
    """Return whether requests suffice for percentiles, but are so correlated that even the mean has no interval."""
    ttft = latency.get("ttft_ms", {"count": 0})
    enough = ttft["count"] >= samples_to_bound(0.99)
    return bool(enough and ttft.get("ci95_reason", {}).get("mean") == "run_too_short")


def _odd_prompts(record: RunRecord) -> Iterator[Note]:
    prompts = np.asarray(record.requests.prompt_tokens[record.requests.status != Status.REJECTED], np.int64)
    if len(prompts) < 2:
        return
    cv, median = float(prompts.std() / prompts.mean()), float(np.median(prompts))
    if cv < _ALIKE_CV:
        yield Note(
            "homogeneous_prompts",
            f"all prompts have about the same length (coefficient of variation {cv:.1%}): batching and queueing look "
            "better than with the mixed lengths of real traffic",
        )
    if median < _SHORT_PROMPT:
        yield Note(
            "short_prompts",
            f"half of the prompts are shorter than {_SHORT_PROMPT} tokens (median {median:g}): prefill costs "
            "little here, unlike in real traffic",
        )


def _zero_queue(record: RunRecord, load: Load | None) -> Iterator[Note]:
    """Warn that no request waited, which does not exclude a slowdown: batches grow before requests wait."""
    requests = record.requests
    if load is None or np.count_nonzero(requests.status == Status.COMPLETED) < LOAD_TEST:
        return
    if np.any(record.steps.waiting) or np.any(requests.preemptions):
        return
    found = f"no request ever waited for a slot or for KV memory, at about {min(load.share, 1.0):.0%} of capacity"
    if load.share < _LIGHT_LOAD:
        meaning = (
            "these latencies are near the minimum of this deployment, and its capacity cannot be estimated from them; "
            "raise workload.rate_scale to find it"
        )
    else:
        meaning = "the load makes batches larger and tokens slower, so that these latencies are above the minimum"
    yield Note("zero_queue", f"{found}: {meaning}")


def _all_at_once(record: RunRecord) -> bool:
    """Return whether all requests were sent at the same time: an offline batch, which queues by design."""
    wanted = record.requests.client_ns[record.requests.client_ns >= 0]
    return len(wanted) == 0 or bool(np.all(wanted == wanted[0]))


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
