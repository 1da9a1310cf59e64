"""How much of the KV memory that requests hold has nothing in it: what paging is for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.results.occupancy import Occupancy
from simulator.results.record import RunRecord
from simulator.scenario.schema import Scenario


def wasted_share(record: RunRecord, scenario: Scenario, occupancy: Occupancy) -> float | None:
    """1 - tokens / slots of the memory that was held, both over time; None with prefix caching, which shares blocks,
    with several pools, and if nothing was held.

    A request counts from when it is first scheduled until its end, its prompt from the beginning, and its tokens as if
    they came evenly. Paged memory has the slots of its blocks; what is reserved in one piece is in use as a whole.
    """
    requests, pools = record.requests, list(scenario.deployment.pools.values())
    held = requests.scheduled_ns >= 0
    if len(pools) != 1 or np.any(requests.queried_tokens) or not held.any():
        return None
    block_size = pools[0].memory.block_size
    until_ns = np.where(requests.finish_ns >= 0, requests.finish_ns, record.end_ns)[held]
    times_ns = (until_ns - requests.scheduled_ns[held]).astype(float)
    prompts = requests.prompt_tokens[held].astype(float)
    grown = np.maximum(requests.emitted_tokens[held] - 1.0, 0.0)
    tokens = float(np.sum(times_ns * (prompts + grown / 2)))
    if pools[0].memory.allocation == "paged" and not pools[0].scheduler.RESERVES:
        slots = float(np.sum(times_ns * _mean_slots(prompts, prompts + grown, block_size)))
    else:
        total_ns = float(record.end_ns - record.start_ns) * record.replicas
        slots = occupancy.mean(record.steps.kv_used) * block_size * total_ns
    return 1 - tokens / slots if slots > 0 else None


def _mean_slots(least: NDArray[np.float64], most: NDArray[np.float64], block: int) -> NDArray[np.float64]:
    """The mean, over the whole numbers from `least` to `most`, of each rounded up to a multiple of `block`."""
    return (_sum_of_slots(most, block) - _sum_of_slots(least - 1, block)) / (most - least + 1)


def _sum_of_slots(most: NDArray[np.float64], block: int) -> NDArray[np.float64]:
    """The sum of 1 to `most`, each rounded up to a multiple of `block`."""
    full = np.floor(most / block)
    total: NDArray[np.float64] = block * (block * full * (full + 1) / 2 + (most - block * full) * (full + 1))
    return total
