"""The section `offload` of the summary: KV in CPU memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.results.effective_size import EffectiveSize
from simulator.results.latency import latency_block, number
from simulator.results.record import RunRecord
from simulator.results.statistics import Distribution


def offload_section(record: RunRecord, kept: NDArray[np.bool_], effective_size: EffectiveSize) -> dict[str, Any] | None:
    """Return hits, loads and writes of CPU memory; None without CPU memory.

    `write_share` is the written bytes of the replica that wrote most, as a share of its link's capacity over the run:
    writes take no time in the simulation. `reload_ms` are the loads for the kept requests, from the reservation of
    their blocks to the last byte.
    """
    tiers, found = record.tiers, record.offload
    if not tiers:
        return None
    loaded = np.asarray(found.bytes) > 0
    seconds = (record.end_ns - record.start_ns) / 1e9
    section: dict[str, Any] = {
        "hit_tokens": int(np.sum(found.tokens)),
        "reloaded_tokens": int(np.sum(found.tokens[loaded])),
        "recomputed_instead_tokens": int(np.sum(found.tokens[~loaded])),
        "reloads": int(np.count_nonzero(loaded)),
        "read_bytes": int(np.sum(found.bytes)),
        "written_bytes": sum(tier.written * tier.block_bytes for tier in tiers),
        "dropped_bytes": sum(tier.dropped * tier.block_bytes for tier in tiers),
    }
    if seconds > 0:
        shares = [tier.written * tier.block_bytes / (tier.bytes_per_s * seconds) for tier in tiers]
        section["write_share"] = number(max(shares))
    ended = loaded & (found.loaded_ns >= 0) & kept[found.request]
    if ended.any():
        times = found.loaded_ns - found.found_ns
        section["reload_ms"] = latency_block(
            Distribution.of_series(times[ended]), effective_size.of_share(ended.sum() / max(kept.sum(), 1))
        )
    return section
