"""The section `cost` of the summary: GPU-hours, busy or idle, and their price."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simulator.results.latency import number
from simulator.results.record import RunRecord


def cost_section(
    record: RunRecord, usd_per_hour: Sequence[float] | None, tokens: tuple[int, int]
) -> dict[str, Any] | None:
    """Return the price of the GPUs from the first arrival to the last event, and the price of a token at this load.

    `usd_per_hour` is the price in US dollars of all GPUs of each pool, in the order of the pools; without it (None)
    there is no section. `tokens` are the numbers of prompt tokens and of output tokens. With several pools, the
    section also has GPU-hours and price of each.
    """
    if usd_per_hour is None:
        return None
    hours = [record.replica_ns(pool) / pool.replicas / 3.6e12 for pool in record.pools]  # of a replica, on average
    usd_by_pool = [price * mean for price, mean in zip(usd_per_hour, hours, strict=True)]
    usd = sum(usd_by_pool)
    prompts, outputs = tokens
    cost: dict[str, Any] = {"gpu_hours": number(record.gpu_time_ns / 3.6e12), "usd": number(usd)}
    if outputs:
        cost["usd_per_1k_tokens"] = number(usd / (prompts + outputs) * 1e3)
        cost["usd_per_million_output_tokens"] = number(usd / outputs * 1e6)
    if len(record.pools) > 1:
        cost["pools"] = {
            pool.name: {"gpu_hours": number(record.gpu_ns(pool) / 3.6e12), "usd": number(of_pool)}
            for pool, of_pool in zip(record.pools, usd_by_pool, strict=True)
        }
    return cost
