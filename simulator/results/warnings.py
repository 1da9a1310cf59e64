"""What the reader of a result must know before believing it: overload, saturation, few samples, odd workloads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.notes import Note
from simulator.results.latency import Blocks
from simulator.results.occupancy import Occupancy
from simulator.results.record import RunRecord, Status
from simulator.results.saturation import estimated_load
from simulator.results.stability import overload
from simulator.results.statistics import samples_to_bound
from simulator.results.warmup import Selection
from simulator.scenario.schema import ClosedLoop, Scenario

#: Shares of capacity, time and requests from which on a run counts as close to saturation.
_LOAD = 0.9
_WAITING_SHARE = 0.25
_FULL_SHARE, _FULL = 0.05, 0.95
_PREEMPTED_SHARE = 0.01
#: Fewer requests than this are a try, not a load test.
_LOAD_TEST = 100
_CUT_SHARE = 0.01
_ALIKE_CV = 0.05
_SHORT_PROMPT = 16


def unstable(record: RunRecord) -> bool:
    """Whether the load was above capacity, so that there was no steady state."""
    return overload(record) is not None


def warnings_of(
    record: RunRecord, scenario: Scenario, selection: Selection, latency: Blocks, occupancy: Occupancy
) -> list[Note]:
    """The notes that the run itself gives rise to, the gravest first."""
    notes = [*_unstable_queue(record)]
    if not notes:  # else no number of samples would help
        notes += [*_near_saturation(record, scenario, occupancy), *_few_samples(record, latency)]
    notes += _cut_short(record)
    return [*notes, *_unsettled(selection), *_odd_prompts(record), *_zero_queue(record, scenario)]


def _unstable_queue(record: RunRecord) -> Iterator[Note]:
    load = overload(record)
    if load is not None:
        yield Note(
            "unstable_queue",
            f"the load is above capacity: {load.arrivals_per_s:.4g} requests/s came, "
            f"{load.starts_per_s:.4g}/s were taken up, and {load.waiting:,} were waiting when the last one came. "
            "Latencies grow with the length of such a run and predict nothing; lower the rate or add capacity",
        )


def _near_saturation(record: RunRecord, scenario: Scenario, occupancy: Occupancy) -> Iterator[Note]:
    """Where a small error of the load or of a step's cost makes a large one of the latencies."""
    if _all_at_once(record):
        return
    steps = record.steps
    load = estimated_load(record, scenario.deployment.pool.scheduler.max_num_seqs)
    waiting = occupancy.mean(steps.waiting > 0)
    full = occupancy.mean(steps.kv_used > _FULL * record.kv_blocks)
    preempted = int(np.count_nonzero(record.requests.preemptions))
    facts = []
    if load >= _LOAD and _is_open_loop(scenario):
        facts.append(f"the load was about {load:.0%} of capacity")
    if waiting >= _WAITING_SHARE:
        facts.append(f"requests waited for a slot or for KV memory {waiting:.0%} of the time")
    if full >= _FULL_SHARE:
        facts.append(f"KV memory was over {_FULL:.0%} full {full:.0%} of the time")
    if preempted >= max(1.0, _PREEMPTED_SHARE * len(record.requests.status)):
        facts.append(f"{preempted:,} requests were preempted")
    if facts:
        yield Note(
            "near_saturation",
            f"{'; '.join(facts)}. Close to saturation, small errors of the load or of step times become "
            "large ones of latencies: vary the rate before relying on them",
        )


def _cut_short(record: RunRecord) -> Iterator[Note]:
    """Latencies are of completed requests: what is cut off has the long answers."""
    status = record.requests.status
    open_ = int(np.count_nonzero(status == Status.IN_FLIGHT))
    if open_ > _CUT_SHARE * np.count_nonzero(status != Status.NOT_ARRIVED):
        yield Note(
            "cut_short",
            f"the run ended with {open_:,} requests in flight, which are not in the latencies: long ones are missing "
            "from them; let the run end by itself, or lengthen run.horizon",
        )


def _unsettled(selection: Selection) -> Iterator[Note]:
    if not selection.settled:
        yield Note(
            "steady_state_not_reached",
            "MSER-5 found no end of the warm-up in the first half of the requests: these latencies are those "
            "of a transient; simulate a longer trace",
        )


def _few_samples(record: RunRecord, latency: Blocks) -> Iterator[Note]:
    ttft = latency.get("ttft_ms", {"count": 0})
    count, p95, p99 = ttft["count"], samples_to_bound(0.95), samples_to_bound(0.99)
    if count < p99:
        needs = f"p99 needs {p99}" if count >= p95 else f"p95 needs {p95} and p99 {p99}"
        yield Note("few_samples", f"latencies rest on {count:,} requests; {needs}, and more if they depend")
    elif ttft["ci95"]["p99"] is None and not _all_at_once(record):
        yield Note(
            "few_samples",
            f"p99 of TTFT rests on {count:,} requests, but those in its tail follow each other and are worth "
            "too few independent ones for a confidence interval",
        )


def _odd_prompts(record: RunRecord) -> Iterator[Note]:
    prompts = np.asarray(record.requests.prompt_tokens, np.int64)
    if len(prompts) < 2:
        return
    cv, median = float(prompts.std() / prompts.mean()), float(np.median(prompts))
    if cv < _ALIKE_CV:
        yield Note(
            "homogeneous_prompts",
            f"prompts are all about as long (coefficient of variation {cv:.1%}): batching and queueing look "
            "better than with the mixed lengths of real traffic",
        )
    if median < _SHORT_PROMPT:
        yield Note(
            "short_prompts",
            f"half of the prompts are shorter than {_SHORT_PROMPT} tokens (median {median:g}): prefill costs "
            "next to nothing here, which is not so in real traffic",
        )


def _zero_queue(record: RunRecord, scenario: Scenario) -> Iterator[Note]:
    requests = record.requests
    if not _is_open_loop(scenario) or _all_at_once(record):
        return
    if np.count_nonzero(requests.status == Status.COMPLETED) < _LOAD_TEST:
        return
    if not np.any(record.steps.waiting) and not np.any(requests.preemptions):
        yield Note(
            "zero_queue",
            "no request ever waited for a slot or for KV memory: these latencies are the floor of this "
            "deployment and say nothing of its capacity; raise workload.rate_scale to find it",
        )


def _is_open_loop(scenario: Scenario) -> bool:
    """Whether requests come no matter how the service does."""
    workload = scenario.workload
    return not isinstance(workload.arrivals, ClosedLoop) and workload.max_concurrency is None


def _all_at_once(record: RunRecord) -> bool:
    """Whether everything was sent at the same moment: an offline batch, which waits by design."""
    wanted = record.requests.client_ns[record.requests.client_ns >= 0]
    return len(wanted) == 0 or bool(np.all(wanted == wanted[0]))
