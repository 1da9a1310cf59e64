"""What the summary says of each pool, and of what is handed over between pools."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.results.latency import latency_block, number
from simulator.results.occupancy import Occupancy
from simulator.results.record import PoolFacts, RunRecord
from simulator.results.statistics import Distribution
from simulator.results.trust import Trust


def pool_sections(record: RunRecord, occupancy: Occupancy) -> dict[str, Any] | None:
    """Each pool by name: its size, and how busy and how full it was. None if there is but one."""
    if len(record.pools) < 2 or not len(record.steps.end_ns):
        return None
    return {pool.name: _pool(record, pool, occupancy) for pool in record.pools}


def _pool(record: RunRecord, pool: PoolFacts, occupancy: Occupancy) -> dict[str, Any]:
    """`mean_running` and `mean_use` are means over time and the pool's replicas."""
    rows, steps = record.rows(pool), record.steps
    mine = np.zeros(len(steps.end_ns), bool)
    mine[rows] = True
    scale = record.replicas / pool.replicas

    def mean(column: NDArray[np.generic]) -> float:
        return number(occupancy.mean(np.where(mine, column, 0)) * scale)

    use = record.kv_use()
    device_ns = (record.end_ns - record.start_ns) * pool.replicas
    busy_ns = int(np.sum(steps.end_ns[rows] - steps.start_ns[rows], dtype=np.int64))
    return {
        "role": pool.role,
        "replicas": pool.replicas,
        "gpus": pool.gpus,
        "steps": int(np.count_nonzero(mine)),
        "mean_batch": number(float(np.mean(steps.running[rows]))) if mine.any() else 0.0,
        "mean_running": mean(steps.running),
        "mean_waiting": mean(steps.waiting),
        "busy_share": number(busy_ns / device_ns if device_ns > 0 else 0.0),
        "kv": {
            "blocks": pool.kv_blocks,
            "peak_use": number(float(use[rows].max())) if mine.any() else 0.0,
            "mean_use": mean(use),
        },
    }


def transfer_section(record: RunRecord, kept: NDArray[np.bool_], trust: Trust) -> dict[str, Any] | None:
    """What was handed over from prefill to decode replicas; None if nothing was.

    Latencies are of the kept requests whose KV arrived: `transfer_ms` from the transfer's start, its set-up included,
    to its last byte; `exposed_ms` from the end of the prefill to then, waiting for blocks included; `join_ms` from then
    to the first step of the decode side.
    """
    transfers = record.transfers
    if not len(transfers.request):
        return None
    section: dict[str, Any] = {
        "requests": len(transfers.request),
        "arrived": int(np.count_nonzero(transfers.arrived_ns >= 0)),
        "bytes": int(np.sum(transfers.bytes)),
        "failures": int(np.sum(transfers.failures)),
        "recomputed": int(np.sum(transfers.recomputed)),
    }
    arrived = kept[transfers.request] & (transfers.joined_ns >= 0)
    times = {
        "transfer_ms": transfers.arrived_ns - transfers.start_ns,
        "exposed_ms": transfers.arrived_ns - transfers.prefill_end_ns,
        "join_ms": transfers.joined_ns - transfers.arrived_ns,
    }
    if arrived.any():
        section |= {
            name: latency_block(Distribution.of_series(values[arrived]), trust) for name, values in times.items()
        }
    return section
