"""What the summary says of KV in CPU memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.results.effective_size import EffectiveSize
from simulator.results.latency import latency_block, number
from simulator.results.record import RunRecord
from simulator.results.statistics import Distribution


def offload_section(record: RunRecord, kept: NDArray[np.bool_], effective_size: EffectiveSize) -> dict[str, Any] | None:
    """What was found in CPU memory, and what went in and out; None if there is none.

    `write_share` is what the writes of the replica that wrote most are of what its link could carry in the whole run:
    they take no time in the simulation. `reload_ms` is of loads for the kept requests, from when their blocks are
    reserved to the last byte.
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
