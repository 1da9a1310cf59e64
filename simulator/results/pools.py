"""The sections `pools` and `transfers` of the summary: each pool's use, and the KV transfers between pools."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.results.effective_size import EffectiveSize
from simulator.results.latency import latency_block, number
from simulator.results.occupancy import Occupancy
from simulator.results.record import PoolFacts, RunRecord
from simulator.results.statistics import Distribution


def pool_sections(record: RunRecord, occupancy: Occupancy) -> dict[str, Any] | None:
    """Return each pool's size, busy time and KV use by the pool's name; None for a run with a single pool."""
    if len(record.pools) < 2 or not len(record.steps.end_ns):
        return None
    return {pool.name: _pool(record, pool, occupancy) for pool in record.pools}


def _pool(record: RunRecord, pool: PoolFacts, occupancy: Occupancy) -> dict[str, Any]:
    """Return the section of one pool; `mean_*` are means over time and over the pool's replicas."""
    rows, steps = record.rows(pool), record.steps
    in_pool = np.zeros(len(steps.end_ns), bool)
    in_pool[rows] = True
    scale = record.core_time_ns / max(record.core_ns(pool), 1)

    def mean(column: NDArray[np.generic]) -> float:
        return number(occupancy.mean(np.where(in_pool, column, 0)) * scale)

    use = record.kv_use()
    device_ns = record.core_ns(pool)
    busy_ns = int(np.sum(steps.end_ns[rows] - steps.start_ns[rows], dtype=np.int64))
    return {
        "role": pool.role,
        "replicas": pool.replicas,
        "gpus": pool.gpus,
        "steps": int(np.count_nonzero(in_pool)),
        "mean_batch": number(float(np.mean(steps.running[rows]))) if in_pool.any() else 0.0,
        "mean_running": mean(steps.running),
        "mean_waiting": mean(steps.waiting),
        "busy_share": number(busy_ns / device_ns if device_ns > 0 else 0.0),
        "kv": {
            "blocks": pool.kv_blocks,
            "peak_use": number(float(use[rows].max())) if in_pool.any() else 0.0,
            "mean_use": mean(use),
        },
    }


def transfer_section(
    record: RunRecord, kept: NDArray[np.bool_], effective_size: EffectiveSize
) -> dict[str, Any] | None:
    """Return counts, bytes and latencies of the KV transfers from prefill to decode replicas; None without transfers.

    `kept` marks the requests of the sample. The latencies are those of kept requests that went on to decode:
    `transfer_ms` from the start of the transfer, set-up included, to the arrival of its last byte; `exposed_ms` from
    the end of the prefill to that arrival, waiting for KV blocks included; `join_ms` from that arrival to the
    request's first step on the decode replica.
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
            name: latency_block(Distribution.of_series(values[arrived]), effective_size)
            for name, values in times.items()
        }
    return section
