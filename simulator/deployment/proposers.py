"""Resolution of `speculation`: the drafter of a pool, its memory beside the target's, and the cost of proposing."""

from __future__ import annotations

from cost_models import (
    CostModel,
    DrafterPlace,
    DraftHead,
    GpuSpec,
    HostModel,
    LookupProposer,
    MedusaProposer,
    MemorySettings,
    ModelSpec,
    Placement,
    Proposer,
    SpeculativeCost,
    TimedProposer,
    TimeSources,
    draft_model_proposer,
    draft_step_ns,
    eagle3_head,
    eagle_head,
    head_proposer,
    kv_bytes_per_token,
    kv_capacity,
    launch_of,
    load_gpu,
    load_model,
    medusa_weight_bytes,
    mtp_head,
    weight_bytes,
)
from cost_models.drafting.heads import EAGLE3_VOCAB
from cost_models.roofline.architecture import check_tensor_parallel
from simulator.deployment.drafter import NO_DRAFTER, UTILIZATION, Drafter
from simulator.deployment.target import Target
from simulator.errors import InputError
from simulator.scenario.schema import LinearCost, RooflineCost
from simulator.scenario.speculation import DraftModel, Eagle, Eagle3, Medusa, Mtp, Ngram, Speculation

_SECOND = 1e9


def drafter_of(settings: Speculation, target: Target, path: str) -> Drafter:
    """Return the drafter of a pool by `settings`, whose keys are at `path`.

    Raises:
        InputError: a draft model or a GPU is unknown, or cannot be used in this way.
    """
    pool, model_ref = target.pool, target.model_ref
    if isinstance(settings, DraftModel):
        return _draft_model(settings, target, path)
    if isinstance(settings, Medusa):
        return Drafter(weight_bytes=medusa_weight_bytes(target.model, settings.depth, pool.tensor_parallel))
    head = _head(settings, target.model)
    if head is None:
        return NO_DRAFTER
    return Drafter(
        head,
        gpu=target.gpu,
        tensor_parallel=pool.tensor_parallel,
        weight_bytes=head.weight_bytes(model_ref.weights, pool.tensor_parallel, target.placement.split),
        token_bytes=head.kv_bytes_per_token(model_ref.kv_cache, pool.tensor_parallel),
    )


def speculative_cost(
    cost: CostModel, settings: Speculation, drafter: Drafter, target: Target, host: HostModel
) -> SpeculativeCost:
    """Return `cost` with the times of proposing. Raises CostModelError as `build_roofline` does."""
    proposer = _proposer(settings, drafter, target, host)
    step_ns = draft_step_ns(host, isinstance(settings, Eagle3))
    return SpeculativeCost(cost, proposer, settings.proposal == "overlapped", step_ns)


def _draft_model(settings: DraftModel, target: Target, path: str) -> Drafter:
    model, own_gpu = _loaded(settings, target.gpu, path)
    if model.vocab != target.model.vocab:
        raise InputError(
            f"{path}.model: {model.name} has a vocabulary of {model.vocab:,} entries and {target.model.name} one of "
            f"{target.model.vocab:,}, but drafts must be tokens of the target (vLLM refuses such a pair); take a "
            "smaller model with the target's vocabulary"
        )
    if settings.gpu is None:
        return _on_target_gpus(settings, model, target, path)
    return _on_own_gpus(settings, model, own_gpu, target, path)


def _on_own_gpus(settings: DraftModel, model: ModelSpec, gpu: GpuSpec, target: Target, path: str) -> Drafter:
    """Return a draft model on GPUs of its own. Their memory is no limit where the target's is none."""
    pool, kv_cache = target.pool, target.model_ref.kv_cache
    if pool.data_parallel > 1:
        raise InputError(
            f"{path}.gpu: a draft model on GPUs of its own is not simulated with data_parallel; set "
            "data_parallel to 1, or leave gpu out"
        )
    tensor_parallel, utilization = settings.tensor_parallel or 1, pool.memory.gpu_memory_utilization
    memory = MemorySettings(UTILIZATION if utilization is None else utilization, pool.memory.block_size)
    try:
        check_tensor_parallel(model, tensor_parallel)
        if pool.memory.kv_blocks is not None and isinstance(pool.cost_model, LinearCost):
            return Drafter(None, model, gpu, tensor_parallel, gpus=tensor_parallel)
        placement = Placement(tensor_parallel, weights=settings.weights, kv_cache=kv_cache)
        capacity = kv_capacity(model, gpu, placement, target.step_limits, memory)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return Drafter(None, model, gpu, tensor_parallel, tensor_parallel, capacity.blocks)


def _on_target_gpus(settings: DraftModel, model: ModelSpec, target: Target, path: str) -> Drafter:
    """Return a draft model on the target's GPUs, or on some of them."""
    pool = target.pool
    tensor_parallel = settings.tensor_parallel or pool.tensor_parallel
    if tensor_parallel > pool.tensor_parallel:
        raise InputError(
            f"{path}.tensor_parallel: the target has {pool.tensor_parallel} GPUs, and the draft model cannot be on "
            f"{tensor_parallel} of them; give it GPUs of its own with gpu, or lower it"
        )
    try:
        weights = weight_bytes(model, Placement(tensor_parallel, weights=settings.weights))
        token = kv_bytes_per_token(model, target.model_ref.kv_cache, tensor_parallel)
    except InputError as error:
        split = "" if settings.tensor_parallel else "; tensor_parallel here is that of the draft model"
        raise InputError(f"{path}: {error}{split}") from None
    return Drafter(None, model, target.gpu, tensor_parallel, weight_bytes=weights, token_bytes=token)


def _loaded(settings: DraftModel, gpu: GpuSpec, path: str) -> tuple[ModelSpec, GpuSpec]:
    try:
        model = load_model(settings.model)
    except InputError as error:
        raise InputError(f"{path}.model: {error}") from None
    try:
        return model, gpu if settings.gpu is None else load_gpu(settings.gpu)
    except InputError as error:
        raise InputError(f"{path}.gpu: {error}") from None


def _head(settings: object, target: ModelSpec) -> DraftHead | None:
    match settings:
        case Eagle():
            return eagle_head(target)
        case Eagle3():
            return eagle3_head(target, settings.draft_vocab or EAGLE3_VOCAB)
        case Mtp():
            return mtp_head(target)
    return None


def _proposer(settings: Speculation, drafter: Drafter, target: Target, host: HostModel) -> Proposer:
    if isinstance(settings, Ngram):
        lookup = settings.lookup
        return LookupProposer(round(_SECOND * host.draft_lookup) if lookup is None else lookup)
    if settings.pass_time is not None:
        return TimedProposer(settings.pass_time, one_pass=isinstance(settings, Medusa))
    place = _place(drafter, target, host)
    if isinstance(settings, DraftModel):
        assert drafter.model is not None
        launch = launch_of(host, drafter.model.layers)
        return draft_model_proposer(drafter.model, settings.levels, place, settings.weights, launch)
    if drafter.head is None:
        return MedusaProposer(target.model, settings.depth, place, launch_of(host, settings.depth))
    launch = launch_of(host, 1, isinstance(settings, Eagle3))
    return head_proposer(drafter.head, settings.levels, place, target.model_ref.weights, launch)


def _place(drafter: Drafter, target: Target, host: HostModel) -> DrafterPlace:
    """Return the place of the drafter: the target's GPUs, in lockstep with its ranks, unless it has its own."""
    pool, beside = target.pool, drafter.gpus == 0 and drafter.model is None
    law = pool.cost_model
    assert isinstance(law, RooflineCost)
    placement = Placement(
        tensor_parallel=drafter.tensor_parallel if drafter.gpu is not None else pool.tensor_parallel,
        data_parallel=pool.data_parallel if beside else 1,
        expert_parallel=pool.expert_parallel and beside,
        kv_cache=target.model_ref.kv_cache,
    )
    sources = TimeSources(host, law.calibration if drafter.gpus == 0 else "auto")
    return DrafterPlace(drafter.gpu or target.gpu, placement, target.step_limits, sources)
