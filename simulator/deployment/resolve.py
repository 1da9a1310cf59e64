"""Resolution of a scenario's deployment: the model on its GPUs, its memory and its cost model, in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from cost_models import (
    NO_HOST,
    CostModel,
    GpuSpec,
    HostModel,
    KvCapacity,
    MemorySettings,
    ModelSpec,
    TimeSources,
    build_roofline,
    kv_bytes_per_token,
    kv_capacity,
    load_gpu,
    load_host,
    load_model,
)
from simulator.common.notes import Note
from simulator.deployment.context import context_limit
from simulator.deployment.drafter import NO_DRAFTER, UTILIZATION, Drafter
from simulator.deployment.notes import pool_notes
from simulator.deployment.prompt_drafting import PromptDrafting, prompt_drafting
from simulator.deployment.target import Target
from simulator.engine.service import Service
from simulator.errors import InputError
from simulator.scenario.schema import LinearCost, ModelRef, Pool, Scenario
from simulator.scheduling import limits, with_engine_defaults


class ResolvedPool(NamedTuple):
    """A pool in numbers. `capacity` is None if the pool has a linear cost model and a given number of KV blocks: then
    the GPU and the size of the model have no effect."""

    name: str
    settings: Pool
    model: ModelSpec
    gpu: GpuSpec
    capacity: KvCapacity | None
    service: Service


class Resolved(NamedTuple):
    """A deployment in numbers: its pools, in the scenario's order."""

    pools: tuple[ResolvedPool, ...]
    notes: tuple[Note, ...]

    @property
    def services(self) -> tuple[Service, ...]:
        """The pools in the form that the engine takes."""
        return tuple(pool.service for pool in self.pools)

    def settle(self, scenario: Scenario) -> Scenario:
        """Return `scenario` with the engine's defaults filled into its pools, so that results show them."""
        pools = {pool.name: pool.settings for pool in self.pools}
        return replace(scenario, deployment=replace(scenario.deployment, pools=pools))

    @property
    def max_model_len(self) -> int:
        """The context limit that each request must keep, whichever pools serve it."""
        return min(service.max_model_len for service in self.services)


def resolve(scenario: Scenario, host: HostModel | None = None) -> Resolved:
    """Return the scenario's deployment in numbers; `host` replaces the host model that the pools name.

    Raises:
        InputError: an unknown model or GPU, a model that does not fit, settings that the engine refuses.
    """
    pools: list[ResolvedPool] = []
    prompts, notes = prompt_drafting(scenario.deployment.pools)
    for name, settings in scenario.deployment.pools.items():
        pool, own_notes = _resolve_pool(scenario, name, settings, host, prompts)
        pools.append(pool)
        if len(scenario.deployment.pools) > 1:
            own_notes = tuple(Note(note.code, f"pool {name}: {note.text}") for note in own_notes)
        notes += own_notes
    _check_handover(scenario, pools)
    return Resolved(tuple(pools), tuple(notes))


def _resolve_pool(
    scenario: Scenario, name: str, pool: Pool, host: HostModel | None, prompts: PromptDrafting | None
) -> tuple[ResolvedPool, tuple[Note, ...]]:
    """Return a pool in numbers, and its notes; `prompts` is the drafter whose KV of prompts prefill pools compute."""
    path = f"deployment.pools.{name}"
    model_ref = pool.model or scenario.model
    model, gpu, pool = _loaded(model_ref, pool, path)
    drafting, where = pool.speculation, f"{path}.speculation"
    if pool.role == "prefill" and prompts is not None:
        drafting, where = prompts.on(pool.tensor_parallel), prompts.path
    target = Target(path, pool, model_ref, model, gpu)
    drafter = NO_DRAFTER
    if drafting is not None:
        from simulator.deployment.proposers import drafter_of, speculative_cost

        drafter = drafter_of(drafting, target, where)
    try:
        capacity = _capacity(target, drafter)
        if isinstance(pool.cost_model, LinearCost):
            host = NO_HOST
        elif host is None:
            host = load_host(pool.cost_model.host, gpu.name)
        cost = _cost(target, host)
        if drafting is not None:
            cost = speculative_cost(cost, drafting, drafter, target, host)
        handed = drafter if pool.role == "both" or prompts is not None else NO_DRAFTER
        token_bytes = _all_token_bytes(model_ref, pool, model, handed)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    lockstep = model.moe is not None and pool.data_parallel > 1
    _check_pipeline(pool, lockstep, model, path)
    blocks = _kv_blocks(pool, capacity, drafter)
    max_model_len = context_limit(pool, model, blocks, capacity, path)
    if pool.memory.allocation != "paged" and limits(pool.scheduler).prefix_caching:
        raise InputError(f"{path}.memory.allocation: prefix caching shares blocks, which needs paged memory")
    service = Service(
        cost=cost,
        kv_blocks=_lane_blocks(pool, blocks, path),
        max_model_len=max_model_len,
        gpus=pool.gpus + pool.replicas * drafter.gpus,
        front_end=host.front_end,
        lockstep=lockstep,
        gpu_spec=gpu,
        kv_token_bytes=token_bytes,
        layers=model.layers,
        kv_parts=1 if model.mla is not None else 2,
    )
    _check_offload(pool, service, path)
    resolved = ResolvedPool(name, pool, model, gpu, capacity, service)
    return resolved, pool_notes(pool, service, model, capacity, drafter)


def _loaded(model_ref: ModelRef, pool: Pool, path: str) -> tuple[ModelSpec, GpuSpec, Pool]:
    """Load the model and the GPU of a pool; return them, and the pool with its engine's defaults filled in."""
    try:
        model = load_model(model_ref.name)
    except InputError as error:
        raise InputError(f"{'model' if pool.model is None else f'{path}.model'}: {error}") from None
    try:
        gpu = load_gpu(pool.gpu)
    except InputError as error:
        raise InputError(f"{path}.gpu: {error}") from None
    try:
        return model, gpu, with_engine_defaults(pool, gpu.name, gpu.hbm_bytes, model.max_position)
    except ValueError as error:  # a given setting contradicts a default
        raise InputError(f"{path}.{error}") from None


def _all_token_bytes(model_ref: ModelRef, pool: Pool, model: ModelSpec, drafter: Drafter) -> int:
    """Return the bytes of a token's KV on all GPUs of a rank, the drafter's included."""
    each = kv_bytes_per_token(model, model_ref.kv_cache, pool.tensor_parallel)
    return each * pool.tensor_parallel + drafter.token_bytes * drafter.tensor_parallel


def _check_offload(pool: Pool, service: Service, path: str) -> None:
    settings = pool.memory.offload
    if settings is None:
        return
    if not limits(pool.scheduler).prefix_caching or pool.memory.allocation != "paged":
        raise InputError(
            f"{path}.memory.offload: needs prefix caching, which finds the copied blocks again; set "
            "scheduler.enable_prefix_caching: true (and allocation: paged), or leave offload out"
        )
    if pool.pipeline_parallel > 1:
        raise InputError(
            f"{path}.memory.offload: is not simulated with a pipeline, whose stages would each load a part; set "
            "pipeline_parallel to 1, or leave offload out"
        )
    block_bytes = service.kv_token_bytes * pool.memory.block_size
    if settings.capacity < block_bytes:
        raise InputError(
            f"{path}.memory.offload.capacity: {settings.capacity:,} bytes are less than one block of KV, which is "
            f"{block_bytes:,}; give more, or leave offload out"
        )


def _check_pipeline(pool: Pool, lockstep: bool, model: ModelSpec, path: str) -> None:
    """Raise InputError for settings that are not simulated with a pipeline."""
    if pool.pipeline_parallel == 1:
        return
    if limits(pool.scheduler).async_scheduling:
        raise InputError(
            f"{path}.pipeline_parallel: needs scheduler.async_scheduling: false; lanes hide each other's CPU time"
        )
    if lockstep:
        raise InputError(
            f"{path}.pipeline_parallel: {model.name} has experts, so that data-parallel ranks step together, which "
            "is not simulated for pipelines; set data_parallel or pipeline_parallel to 1"
        )


def _kv_blocks(pool: Pool, capacity: KvCapacity | None, drafter: Drafter) -> int:
    """Return the given number of KV blocks, or the number that fits on the target's GPUs and on a drafter's own."""
    if pool.memory.kv_blocks is not None:
        return pool.memory.kv_blocks
    assert capacity is not None
    return capacity.blocks if drafter.own_blocks is None else min(capacity.blocks, drafter.own_blocks)


def _lane_blocks(pool: Pool, kv_blocks: int, path: str) -> int:
    """Return the KV blocks of a rank or, with a pipeline, of each of its lanes: they have equal parts."""
    blocks = kv_blocks // pool.pipeline_parallel
    if not blocks:
        raise InputError(
            f"{path}.memory.kv_blocks: {kv_blocks} blocks are too few for the {pool.pipeline_parallel} lanes of the "
            "pipeline; raise kv_blocks, or lower pipeline_parallel"
        )
    return blocks


def _check_handover(scenario: Scenario, pools: Sequence[ResolvedPool]) -> None:
    """Raise InputError if the KV computed by one pool could not be used by another."""
    apart = [pool for pool in pools if pool.settings.role != "both"]
    for pool in apart[1:]:
        first = apart[0]
        sizes = [_token_bytes(scenario, each) for each in (pool, first)]
        if pool.model != first.model or sizes[0] != sizes[1]:
            found = f"{sizes[0]} and {sizes[1]} bytes a token, of {pool.model.name} and {first.model.name}"
            raise InputError(
                f"deployment.pools.{pool.name}: its KV differs from that of pool {first.name} ({found}): pools of role "
                "prefill and decode must serve one model with one KV type"
            )


def _token_bytes(scenario: Scenario, pool: ResolvedPool) -> int:
    """Return the bytes of a token's KV, counted once if several GPUs hold copies."""
    return kv_bytes_per_token(pool.model, (pool.settings.model or scenario.model).kv_cache)


def _capacity(target: Target, drafter: Drafter) -> KvCapacity | None:
    pool = target.pool
    if pool.memory.kv_blocks is not None and isinstance(pool.cost_model, LinearCost):
        return None
    given = pool.memory.gpu_memory_utilization
    memory = MemorySettings(
        UTILIZATION if given is None else given,
        pool.memory.block_size,
        pool.memory.activations,
        drafter.weight_bytes,
        drafter.token_bytes,
    )
    return kv_capacity(target.model, target.gpu, target.placement, target.step_limits, memory)


def _cost(target: Target, host: HostModel) -> CostModel:
    pool = target.pool
    law = pool.cost_model
    if isinstance(law, LinearCost):
        from cost_models import EqualStages, LinearLaw

        linear = LinearLaw(
            base_ns=law.base,
            per_token_ns=law.per_token,
            per_prefill_token_ns=law.per_prefill_token,
            per_decode_token_ns=law.per_decode_token,
            per_context_token_ns=law.per_context_token,
            host_ns=law.host,
        )
        return linear if pool.pipeline_parallel == 1 else EqualStages(linear, pool.pipeline_parallel)
    sources = TimeSources(host, law.calibration)
    if pool.pipeline_parallel == 1:
        return build_roofline(target.model, target.gpu, target.placement, target.step_limits, sources)
    from cost_models import build_pipeline

    return build_pipeline(target.model, target.gpu, target.placement, target.step_limits, sources)
