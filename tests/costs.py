"""Cost models by keywords: the values that they are made of, from the settings that a test gives."""

from __future__ import annotations

from typing import Any, TypeVar

import cost_models
from cost_models import (
    DrafterPlace,
    GpuSpec,
    KvCapacity,
    MemorySettings,
    ModelSpec,
    Placement,
    Roofline,
    StagedRoofline,
    StepLimits,
    TimeSources,
)

T = TypeVar("T")


def take(kind: type[T], keys: dict[str, Any]) -> T:
    """Make a value of the settings that are its own, which are taken out of `keys`."""
    return kind(**{name: keys.pop(name) for name in kind._fields if name in keys})  # type: ignore[attr-defined]


def values(*kinds: type[Any], keys: dict[str, Any]) -> list[Any]:
    """Return one value of each kind; every setting must belong to one of them."""
    keys = dict(keys)
    found = [take(kind, keys) for kind in kinds]
    assert not keys, f"unknown settings: {', '.join(keys)}"
    return found


def build_roofline(model: ModelSpec, gpu: GpuSpec, **keys: Any) -> Roofline:
    return cost_models.build_roofline(model, gpu, *values(Placement, StepLimits, TimeSources, keys=keys))


def build_pipeline(model: ModelSpec, gpu: GpuSpec, stages: int, **keys: Any) -> StagedRoofline:
    keys["pipeline_parallel"] = stages
    return cost_models.build_pipeline(model, gpu, *values(Placement, StepLimits, TimeSources, keys=keys))


def kv_capacity(model: ModelSpec, gpu: GpuSpec, **keys: Any) -> KvCapacity:
    return cost_models.kv_capacity(model, gpu, *values(Placement, StepLimits, MemorySettings, keys=keys))


def weight_bytes(model: ModelSpec, weights: str = "auto", tensor_parallel: int = 1, **keys: Any) -> int:
    return cost_models.weight_bytes(model, Placement(tensor_parallel, weights=weights, **keys))


def activation_bytes(
    model: ModelSpec,
    max_num_batched_tokens: int = 8192,
    max_num_seqs: int = 256,
    tensor_parallel: int = 1,
    *,
    logit_bytes: int = cost_models.memory.capacity.LOGIT_BYTES,
    **keys: Any,
) -> int:
    limits = StepLimits(max_num_batched_tokens, max_num_seqs)
    return cost_models.activation_bytes(model, Placement(tensor_parallel, **keys), limits, logit_bytes)


def drafter_place(gpu: GpuSpec, **keys: Any) -> DrafterPlace:
    return DrafterPlace(gpu, *values(Placement, StepLimits, TimeSources, keys=keys))
