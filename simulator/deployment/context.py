"""The context limit of a pool, and whether the engine would start with it."""

from __future__ import annotations

import math

from cost_models import KvCapacity, KvGroups, ModelSpec, Placement, activation_bytes, layer_groups
from simulator.common.notes import Note
from simulator.deployment.target import step_limits
from simulator.errors import InputError
from simulator.scenario.schema import Pool
from simulator.scheduling import limits

_GIB = 2**30
#: The largest practical value of `gpu_memory_utilization`.
_MOST_UTILIZATION = 0.98
#: Uncounted memory is reported if it is at least this part of the KV memory.
_PART = 0.05


def context_limit(pool: Pool, model: ModelSpec, blocks: int, capacity: KvCapacity | None, path: str) -> int:
    """Return the length of the longest sequence, prompt and output, that the pool accepts.

    `blocks` is the number of KV blocks of the pool, `capacity` the KV memory that follows from the GPU.

    Raises:
        InputError: an engine that checks this would not start, since one such sequence does not fit the KV memory that
            follows from the GPU; or a prompt of that length exceeds a step of a scheduler without chunked prefill.
    """
    scheduler = limits(pool.scheduler)
    room = capacity if pool.memory.kv_blocks is None else None
    fits = _longest(pool, model, blocks, room)
    if scheduler.max_model_len == "auto":
        limit = min(model.max_position, fits)
    else:
        limit = scheduler.max_model_len or model.max_position
        if scheduler.checks_context and room is not None and limit > fits:
            raise InputError(f"{path}.{_context_error(pool, model, room, limit, fits)}")
    budget = scheduler.max_num_batched_tokens
    if not scheduler.chunked and budget < (scheduler.max_prompt_tokens or limit):
        raise InputError(
            f"{path}.scheduler.max_num_batched_tokens: without chunked prefill a prompt is computed in one step, so "
            f"the budget ({budget}) must be at least max_model_len ({limit}); set max_model_len to {budget} or less, "
            f"or max_num_batched_tokens to {limit} or more"
        )
    return limit


def context_notes(pool: Pool, model: ModelSpec, kv_blocks: int, max_model_len: int) -> list[Note]:
    """Return notes on a stated context limit that is beyond the model's own or beyond the KV memory."""
    notes = []
    if max_model_len > model.max_position:
        text = f"max_model_len {max_model_len} is beyond the {model.max_position} tokens that {model.name} was made for"
        notes.append(Note("context_beyond_model", text))
    scheduler, tokens = limits(pool.scheduler), kv_blocks * pool.memory.block_size
    stated = isinstance(scheduler.max_model_len, int) and pool.memory.kv_blocks is not None
    if scheduler.checks_context and stated and max_model_len > tokens:
        text = (
            f"kv_blocks {kv_blocks:,} hold {tokens:,} tokens, fewer than max_model_len {max_model_len:,}: the engine "
            "would not start; here requests that do not fit are refused"
        )
        notes.append(Note("context_beyond_memory", text))
    return notes


def sampling_notes(pool: Pool, model: ModelSpec, capacity: KvCapacity | None, max_model_len: int) -> list[Note]:
    """Return a note if the engine's test of sampling at start takes much more memory than is counted here."""
    if capacity is None or (more := _uncounted_sampling_bytes(pool, model, capacity)) < _PART * capacity.kv_bytes:
        return []
    left = max(0, capacity.kv_bytes - more)
    blocks = max(0, left // capacity.block_bytes - 1)
    starts = _longest(pool, model, blocks, capacity._replace(kv_bytes=left, blocks=blocks)) >= max_model_len
    text = (
        f"at start this version samples for max_num_seqs {limits(pool.scheduler).max_num_seqs:,} sequences at once, "
        f"which took {more / _GIB:.1f} GiB more in its logs than is counted here: KV memory would be "
        f"{left / _GIB:.1f} GiB, not {capacity.kv_bytes / _GIB:.1f}{'' if starts else ', and it would not start'}; "
        "lower max_num_seqs, or give memory.activations"
    )
    return [Note("sampling_at_start", text)]


def _uncounted_sampling_bytes(pool: Pool, model: ModelSpec, capacity: KvCapacity) -> int:
    """Return the bytes that the engine's test of sampling takes beyond the counted ones; -1 if they are not known."""
    scheduler, given = limits(pool.scheduler), pool.memory
    if scheduler.logit_bytes is None or (given.kv_blocks, given.activations) != (None, None):
        return -1
    placement = Placement(pool.tensor_parallel, 1, pool.data_parallel, pool.expert_parallel)
    taken = activation_bytes(model, placement, step_limits(pool), scheduler.logit_bytes)
    return taken - capacity.activation_bytes


def _longest(pool: Pool, model: ModelSpec, kv_blocks: int, room: KvCapacity | None) -> int:
    """Return the tokens of the longest sequence with which vLLM would start on that memory."""
    whole = kv_blocks * pool.memory.block_size
    groups = layer_groups(model, pool.memory.block_size)
    if not groups.windowed or room is None:
        return whole
    blocks, in_flight = group_blocks(room, model, groups), in_flight_tokens(pool)
    low, high = whole, max(whole, model.max_position)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if groups.blocks(middle, in_flight) <= blocks else (low, middle - 1)
    return low


def group_blocks(capacity: KvCapacity, model: ModelSpec, groups: KvGroups) -> int:
    """Return the number of usable blocks into which vLLM would divide the KV memory; each is of one group's layers."""
    return capacity.kv_bytes * model.layers // (capacity.block_bytes * groups.layers) - 1


def in_flight_tokens(pool: Pool) -> int:
    """Return the tokens of one sequence that vLLM assumes to be computed at once: the budget of a step, of two if
    asynchronous."""
    scheduler = limits(pool.scheduler)
    return scheduler.max_num_batched_tokens * (2 if scheduler.async_scheduling else 1)


def _context_error(pool: Pool, model: ModelSpec, room: KvCapacity, limit: int, fits: int) -> str:
    """Return the error about a context limit that does not fit the KV memory, without the path of the pool."""
    own = "" if limits(pool.scheduler).max_model_len else f" ({model.name}'s own, since none is given)"
    groups = layer_groups(model, pool.memory.block_size)
    block_bytes = room.block_bytes * groups.layers // model.layers
    need = groups.blocks(limit, in_flight_tokens(pool)) * block_bytes
    advice = f"set max_model_len to at most {fits} (or to auto)"
    share = math.ceil(100 * (room.budget_bytes + need - room.kv_bytes + block_bytes) / room.hbm_bytes) / 100
    more = _uncounted_sampling_bytes(pool, model, room)
    if more >= _PART * room.kv_bytes:
        seqs = limits(pool.scheduler).max_num_seqs
        advice += (
            f" and lower max_num_seqs ({seqs}: sampling at start takes {more / _GIB:.1f} GiB beyond what is counted)"
        )
    elif room.budget_bytes < share * room.hbm_bytes <= _MOST_UTILIZATION * room.hbm_bytes:
        advice += f", raise memory.gpu_memory_utilization to {share:g}"
    return (
        f"scheduler.max_model_len: one request of {limit} tokens{own} needs {need / _GIB:.2f} GiB of KV on a "
        f"GPU, and there are {room.kv_bytes / _GIB:.2f} GiB, room for {fits} tokens: the engine would not start; "
        f"{advice}, or take more GPUs (tensor_parallel)"
    )
