"""What a run cost: the hours of all GPUs, whether busy or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simulator.results.latency import number
from simulator.results.record import RunRecord


def cost_section(
    record: RunRecord, usd_per_hour: Sequence[float] | None, tokens: tuple[int, int]
) -> dict[str, Any] | None:
    """What the GPUs cost from the first arrival to the last event, and what a token costs at this load.

    `usd_per_hour` is what all GPUs of each pool cost, in the order of the pools, None without prices; `tokens` are
    those of prompts and of answers. Where there are several pools, each has its own part.
    """
    if usd_per_hour is None:
        return None
    hours = (record.end_ns - record.start_ns) / 3.6e12
    usd = hours * sum(usd_per_hour)
    prompts, outputs = tokens
    cost: dict[str, Any] = {"gpu_hours": number(record.gpus * hours), "usd": number(usd)}
    if outputs:
        cost["usd_per_1k_tokens"] = number(usd / (prompts + outputs) * 1e3)
        cost["usd_per_million_output_tokens"] = number(usd / outputs * 1e6)
    if len(record.pools) > 1:
        cost["pools"] = {
            pool.name: {"gpu_hours": number(pool.gpus * hours), "usd": number(price * hours)}
            for pool, price in zip(record.pools, usd_per_hour, strict=True)
        }
    return cost
