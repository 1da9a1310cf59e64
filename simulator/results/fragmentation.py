"""Internal fragmentation of the KV memory: the share of reserved slots without a token."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.results.columns import Status
from simulator.results.occupancy import Occupancy
from simulator.results.record import RunRecord, segment_rows
from simulator.results.segments import tokens_per_step
from simulator.scenario.schema import Scenario


def wasted_share(record: RunRecord, scenario: Scenario, occupancy: Occupancy) -> float | None:
    """Return 1 - tokens / slots of the reserved KV memory, both integrated over time.

    None with prefix caching, where requests share blocks, with several pools, and if nothing was reserved. A request
    counts from its first step to its end, with its whole prompt from the start and its output tokens growing linearly.
    Paged memory has the slots of its blocks; a reservation in one piece counts as a whole. With speculation, where
    drafts and look-ahead take slots as well, tokens and slots are counted step by step.
    """
    requests, pools = record.requests, list(scenario.deployment.pools.values())
    held = requests.scheduled_ns >= 0
    if len(pools) != 1 or np.any(requests.queried_tokens) or not held.any():
        return None
    block_size = pools[0].memory.block_size
    if pools[0].speculation is not None:
        slots = occupancy.mean(record.steps.kv_used) * block_size
        return 1 - occupancy.mean(computed_tokens(record)) / slots if slots > 0 else None
    until_ns = np.where(requests.finish_ns >= 0, requests.finish_ns, record.end_ns)[held]
    times_ns = (until_ns - requests.scheduled_ns[held]).astype(float)
    prompts = requests.prompt_tokens[held].astype(float)
    grown = np.maximum(requests.emitted_tokens[held] - 1.0, 0.0)
    tokens = float(np.sum(times_ns * (prompts + grown / 2)))
    if pools[0].memory.allocation == "paged" and not pools[0].scheduler.RESERVES:
        slots = float(np.sum(times_ns * _mean_slots(prompts, prompts + grown, block_size)))
    else:
        total_ns = float(record.core_time_ns)
        slots = occupancy.mean(record.steps.kv_used) * block_size * total_ns
    return 1 - tokens / slots if slots > 0 else None


def computed_tokens(record: RunRecord) -> NDArray[np.float64]:
    """Return by step the tokens whose KV a replica holds after the step, without rejected drafts.

    Valid without prefix caching and KV transfers. A preemption subtracts the mean number of tokens that its request
    lost per preemption. With asynchronous scheduling the count is off by up to one token for each token in progress.
    """
    steps, requests, segments = record.steps, record.requests, record.segments
    rows = len(steps.end_ns)
    first, last = segment_rows(segments, steps)
    gone, change = np.zeros(rows), np.asarray(steps.prefill_tokens, float) + tokens_per_step(record)
    np.subtract.at(change, first, 1)  # the first token of a segment is computed from the prefill
    ends = np.full(len(requests.status), -1)
    np.maximum.at(ends, segments.request, last)
    done = requests.status == Status.COMPLETED
    np.add.at(gone, ends[done], requests.prompt_tokens[done] + requests.emitted_tokens[done] - 1)
    of = record.preemptions.request
    np.subtract.at(change, _rows_formed(record), requests.recomputed_tokens[of] / requests.preemptions[of])
    inside = np.append(0.0, np.cumsum(change - gone))
    before = inside[np.asarray(steps.offsets[:-1], np.int64)]  # the sum before the first step of each replica
    computed: NDArray[np.float64] = inside[1:] + gone - np.repeat(before, np.diff(steps.offsets))
    return computed


def _rows_formed(record: RunRecord) -> NDArray[np.int64]:
    """Return by preemption the row of the step that was formed without the preempted request."""
    steps, lost = record.steps, record.preemptions
    replica = record.requests.replica[lost.request]
    rows = np.zeros(len(replica), np.int64)
    for number in np.unique(replica):
        selected, begin, end = replica == number, *steps.offsets[number : number + 2]
        rows[selected] = begin + np.searchsorted(steps.sched_ns[begin:end], lost.preempted_ns[selected])
    return rows


def _mean_slots(least: NDArray[np.float64], most: NDArray[np.float64], block: int) -> NDArray[np.float64]:
    """Return the mean over the integers from `least` to `most` of each rounded up to a multiple of `block`."""
    return (_sum_of_slots(most, block) - _sum_of_slots(least - 1, block)) / (most - least + 1)


def _sum_of_slots(most: NDArray[np.float64], block: int) -> NDArray[np.float64]:
    """Return the sum of 1 to `most`, each rounded up to a multiple of `block`."""
    full = np.floor(most / block)
    total: NDArray[np.float64] = block * (block * full * (full + 1) / 2 + (most - block * full) * (full + 1))
    return total
