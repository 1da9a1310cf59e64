"""From a scenario's deployment to numbers: the model on its GPUs, its memory and its cost model."""

from __future__ import annotations

from dataclasses import dataclass

from cost_models import (
    NO_HOST,
    CostModel,
    CostModelError,
    GpuSpec,
    HostModel,
    KvCapacity,
    LinearLaw,
    ModelSpec,
    Roofline,
    build_roofline,
    kv_capacity,
    load_gpu,
    load_host,
    load_model,
)
from simulator.engine import Service
from simulator.errors import InputError
from simulator.notes import Note
from simulator.scenario.schema import LinearCost, Pool, RooflineCost, Scenario
from simulator.scheduling import limits

#: vLLM's default.
_UTILIZATION = 0.9
#: Parts of a deployment that a note names.
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Resolved:
    """A deployment in numbers. `capacity` is None where a linear law goes with a number of KV blocks: then the GPU and
    the model's size play no part."""

    model: ModelSpec
    gpu: GpuSpec
    capacity: KvCapacity | None
    service: Service
    notes: tuple[Note, ...]


def resolve(scenario: Scenario, host: HostModel | None = None) -> Resolved:
    """The scenario's deployment, resolved; `host` is taken in the place of the host model that it names.

    Raises:
        InputError: an unknown model or GPU, a model that does not fit, settings that the engine refuses.
    """
    name, pool = next(iter(scenario.deployment.pools.items()))
    path = f"deployment.pools.{name}"
    try:
        model = load_model(scenario.model.name)
    except CostModelError as error:
        raise InputError(f"model: {error}") from None
    try:
        gpu = load_gpu(pool.gpu)
    except CostModelError as error:
        raise InputError(f"{path}.gpu: {error}") from None
    try:
        capacity = _capacity(scenario, pool, model, gpu)
        if isinstance(pool.cost_model, LinearCost):
            host = NO_HOST
        elif host is None:
            host = load_host(pool.cost_model.host, gpu.name)
        cost = _cost(scenario, pool, model, gpu, host)
    except CostModelError as error:
        raise InputError(f"{path}: {error}") from None
    max_model_len = _max_model_len(pool, model, f"{path}.scheduler")
    if pool.memory.allocation != "paged" and limits(pool.scheduler).prefix_caching:
        raise InputError(f"{path}.memory.allocation: prefix caching shares blocks, which needs paged memory")
    kv_blocks = pool.memory.kv_blocks
    if kv_blocks is None:
        assert capacity is not None
        kv_blocks = capacity.blocks
    service = Service(cost, kv_blocks, max_model_len, pool.replicas * pool.tensor_parallel, host.front_end)
    return Resolved(model, gpu, capacity, service, _notes(pool, model, cost, max_model_len, capacity))


def _capacity(scenario: Scenario, pool: Pool, model: ModelSpec, gpu: GpuSpec) -> KvCapacity | None:
    if pool.memory.kv_blocks is not None and isinstance(pool.cost_model, LinearCost):
        return None
    given = pool.memory.gpu_memory_utilization
    return kv_capacity(
        model,
        gpu,
        tensor_parallel=pool.tensor_parallel,
        weights=scenario.model.weights,
        kv_cache=scenario.model.kv_cache,
        gpu_memory_utilization=_UTILIZATION if given is None else given,
        block_size=pool.memory.block_size,
        max_num_batched_tokens=limits(pool.scheduler).max_num_batched_tokens,
        max_num_seqs=limits(pool.scheduler).max_num_seqs,
        activations=pool.memory.activations,
    )


def _cost(scenario: Scenario, pool: Pool, model: ModelSpec, gpu: GpuSpec, host: HostModel) -> CostModel:
    law = pool.cost_model
    if isinstance(law, LinearCost):
        return LinearLaw(
            base_ns=law.base,
            per_token_ns=law.per_token,
            per_prefill_token_ns=law.per_prefill_token,
            per_decode_token_ns=law.per_decode_token,
            per_context_token_ns=law.per_context_token,
            host_ns=law.host,
        )
    return build_roofline(
        model,
        gpu,
        tensor_parallel=pool.tensor_parallel,
        weights=scenario.model.weights,
        kv_cache=scenario.model.kv_cache,
        max_num_batched_tokens=limits(pool.scheduler).max_num_batched_tokens,
        max_num_seqs=limits(pool.scheduler).max_num_seqs,
        host=host,
        calibration=law.calibration,
    )


def _max_model_len(pool: Pool, model: ModelSpec, path: str) -> int:
    asked = limits(pool.scheduler)
    limit, budget = asked.max_model_len or model.max_position, asked.max_num_batched_tokens
    if not asked.chunked and budget < (asked.max_prompt_tokens or limit):
        raise InputError(
            f"{path}.max_num_batched_tokens: without chunked prefill a prompt is computed in one step, so the budget "
            f"({budget}) must be at least max_model_len ({limit}); lower max_model_len or raise the budget"
        )
    return limit


def _cost_notes(pool: Pool, cost: Roofline) -> list[Note]:
    """What the times of steps rest on, where it is not measurements."""
    law, notes = pool.cost_model, []
    assert isinstance(law, RooflineCost)
    if not cost.calibrated:
        text = (
            f"the kernels of {pool.gpu} are estimates, not measured ones: expect latencies 10-30% off, or calibrate it "
            "with `servesim calibrate` (cost_model.calibration)"
        )
        notes.append(Note("not_calibrated", text))
    if cost.outside:
        shown = "; ".join(cost.outside[:_SHOWN])
        more = f"; and {len(cost.outside) - _SHOWN} more" if len(cost.outside) > _SHOWN else ""
        text = f"beyond what was measured, extrapolated as physics has it: {shown}{more}"
        notes.append(Note("outside_calibrated_range", text))
    if law.host == "none":
        text = "the time of the host is taken as 0 (cost_model.host): steps and TTFT are those of the kernels alone"
        notes.append(Note("no_host_time", text))
    return notes


def _notes(
    pool: Pool, model: ModelSpec, cost: CostModel, max_model_len: int, capacity: KvCapacity | None
) -> tuple[Note, ...]:
    notes = []
    asked = pool.memory.kv_blocks
    if asked is not None and capacity is not None and asked > capacity.blocks:
        text = f"kv_blocks {asked:,} are more than the {capacity.blocks:,} that fit beside the weights on these GPUs"
        notes.append(Note("kv_blocks_exceed_memory", text))
    if isinstance(cost, Roofline):
        notes += _cost_notes(pool, cost)
    if max_model_len > model.max_position:
        text = f"max_model_len {max_model_len} is beyond the {model.max_position} tokens that {model.name} was made for"
        notes.append(Note("context_beyond_model", text))
    if model.window_layers and pool.memory.kv_blocks is None:
        text = (
            f"{model.name} has {model.window_layers} sliding-window layers; their KV is counted without the saving of "
            "the window, so that concurrency on long contexts is understated"
        )
        notes.append(Note("window_kv_in_full", text))
    return tuple(notes)
