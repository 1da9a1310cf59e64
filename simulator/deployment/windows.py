"""Notes on concurrency that is understated, since the simulator holds the KV of sliding-window layers in full."""

from __future__ import annotations

from cost_models import blocks_for, layer_groups
from simulator.common.notes import Note
from simulator.deployment.context import group_blocks, in_flight_tokens
from simulator.deployment.resolve import Resolved, ResolvedPool
from simulator.workload import RequestTable


def window_notes(resolved: Resolved, table: RequestTable) -> list[Note]:
    """Return a note for each pool whose model has windows shorter than the mean request, prompt and output.

    It gives the number of such requests in the simulated memory, and in vLLM's, which frees the blocks that a window
    has passed: at most, when all requests decode, and at least, when each computes a full chunk, as vLLM assumes at
    start. A pool with a given number of KV blocks has no note: it is not known what memory the number stands for.
    """
    several = len(resolved.pools) > 1
    notes = []
    for pool in resolved.pools:
        prompt = float(table.prompt_tokens.mean())
        output = float(table.output_tokens.mean()) if pool.settings.role != "prefill" else 0.0
        text = _understated(pool, round(prompt + output))
        if text is not None:
            notes.append(Note("window_kv_in_full", f"pool {pool.name}: {text}" if several else text))
    return notes


def _understated(pool: ResolvedPool, tokens: int) -> str | None:
    model, size = pool.model, pool.settings.memory.block_size
    groups = layer_groups(model, size)
    if not groups.windowed or pool.settings.memory.kv_blocks is not None or pool.capacity is None:
        return None
    blocks, held = group_blocks(pool.capacity, model, groups), blocks_for(tokens, size)
    here = pool.service.kv_blocks // held
    most, least = (blocks // groups.blocks(tokens, flight) for flight in (1, in_flight_tokens(pool.settings)))
    if most <= here:
        return None
    span = f"{most:,}" if least >= most else f"{max(least, here):,} to {most:,}"
    return (
        f"{model.window_layers} of the {model.layers} layers of {model.name} have a window of {model.sliding_window:,} "
        f"tokens, and their KV is counted in full: {here:,} requests of {tokens:,} tokens, the workload's mean, fit at "
        f"once here and {span} in vLLM, so that waiting is overstated where memory is the limit"
    )
