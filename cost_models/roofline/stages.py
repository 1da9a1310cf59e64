"""Pipeline parallelism: the layers of a model in each stage."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from cost_models.errors import CostModelError
from cost_models.specs.model import ModelSpec


class Stage(NamedTuple):
    """A part of a model's layers, as a model of its own. The `first` stage has the embedding, the `last` one
    samples."""

    model: ModelSpec
    first: bool = True
    last: bool = True


def stages_of(model: ModelSpec, pipeline_parallel: int) -> tuple[Stage, ...]:
    """Return the stages of `model`, in order.

    Layers are distributed as in vLLM (`get_pp_indices`): evenly, and the remainder to the stages before the last, one
    each from the end. Layers with a sliding window, and layers that a quantised checkpoint leaves in BF16, are assumed
    to be spread evenly over the depth; dense layers of a mixture of experts come first unless they are interleaved.

    Raises CostModelError unless every stage gets a layer.
    """
    if not 1 <= pipeline_parallel <= model.layers:
        raise CostModelError(f"pipeline_parallel {pipeline_parallel}: {model.name} has {model.layers} layers to share")
    each, over = divmod(model.layers, pipeline_parallel)
    counts = [each] * pipeline_parallel
    for place in range(pipeline_parallel - 1 - over, pipeline_parallel - 1):
        counts[place] += 1
    stages, begin = [], 0
    for place, count in enumerate(counts):
        part = _part(model, begin, begin + count) if pipeline_parallel > 1 else model
        stages.append(Stage(part, place == 0, place == pipeline_parallel - 1))
        begin += count
    return tuple(stages)


def _part(model: ModelSpec, begin: int, end: int) -> ModelSpec:
    """Return the layers from `begin` to before `end`."""
    windowed = _spread(model.window_layers, model, begin, end)
    moe, kept = model.moe, [(module, _spread(layers, model, begin, end)) for module, layers in model.bf16_layers]
    if moe is not None and moe.interleaved:
        moe = replace(moe, first_k_dense=_spread(moe.first_k_dense, model, begin, end))
    elif moe is not None:
        moe = replace(moe, first_k_dense=min(max(moe.first_k_dense - begin, 0), end - begin))
    return replace(
        model,
        layers=end - begin,
        window_layers=windowed,
        sliding_window=model.sliding_window if windowed else 0,
        moe=moe,
        bf16_layers=tuple((module, layers) for module, layers in kept if layers),
    )


def _spread(layers: int, model: ModelSpec, begin: int, end: int) -> int:
    """Return the number of `layers`, spread evenly over the depth, that lie from layer `begin` to before `end`."""
    return layers * end // model.layers - layers * begin // model.layers
