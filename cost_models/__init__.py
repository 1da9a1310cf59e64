"""Costs of the steps of LLM serving, and the contents of a GPU's memory. Independent of the simulator.

Each name is imported when it is first used: errors and readers of files are also needed without cost models.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cost_models.drafting.costs import LookupProposer, Proposer, SpeculativeCost, TimedProposer
    from cost_models.drafting.drafters import (
        DrafterPlace,
        Launch,
        ModelProposer,
        draft_model_proposer,
        draft_step_ns,
        head_proposer,
        launch_of,
    )
    from cost_models.drafting.heads import DraftHead, eagle3_head, eagle_head, medusa_weight_bytes, mtp_head
    from cost_models.drafting.medusa import MedusaProposer
    from cost_models.errors import CostModelError, InputError
    from cost_models.library import gpu_names, host_engine, host_names, load_gpu, load_host, load_model, model_names
    from cost_models.linear import LinearLaw
    from cost_models.memory.capacity import (
        KvCapacity,
        MemorySettings,
        activation_bytes,
        blocks_for,
        kv_bytes,
        kv_bytes_per_token,
        kv_capacity,
        weight_bytes,
    )
    from cost_models.memory.kv_groups import KvGroups, layer_groups
    from cost_models.roofline.architecture import (
        Flops,
        Parameters,
        active_parameters,
        parameters,
        prefill_flops,
    )
    from cost_models.roofline.model import Roofline, build_roofline
    from cost_models.roofline.pipeline import EqualStages, StagedRoofline, build_pipeline
    from cost_models.roofline.stages import Stage, stages_of
    from cost_models.shape import BatchShape, CostModel, LockstepCost, StagedCost, StageTimes, StepCost
    from cost_models.specs.gpu import GpuLink, GpuSpec
    from cost_models.specs.host import NO_FRONT_END, NO_HOST, FrontEnd, HostModel
    from cost_models.specs.model import Mla, ModelSpec, Moe
    from cost_models.specs.placement import ExpertSplit, Placement, StepLimits, TimeSources

__all__ = [
    "NO_FRONT_END",
    "NO_HOST",
    "BatchShape",
    "CostModel",
    "CostModelError",
    "DraftHead",
    "DrafterPlace",
    "EqualStages",
    "ExpertSplit",
    "Flops",
    "FrontEnd",
    "GpuLink",
    "GpuSpec",
    "HostModel",
    "InputError",
    "KvCapacity",
    "KvGroups",
    "Launch",
    "LinearLaw",
    "LockstepCost",
    "LookupProposer",
    "MedusaProposer",
    "MemorySettings",
    "Mla",
    "ModelProposer",
    "ModelSpec",
    "Moe",
    "Parameters",
    "Placement",
    "Proposer",
    "Roofline",
    "SpeculativeCost",
    "Stage",
    "StageTimes",
    "StagedCost",
    "StagedRoofline",
    "StepCost",
    "StepLimits",
    "TimeSources",
    "TimedProposer",
    "activation_bytes",
    "active_parameters",
    "blocks_for",
    "build_pipeline",
    "build_roofline",
    "draft_model_proposer",
    "draft_step_ns",
    "eagle3_head",
    "eagle_head",
    "gpu_names",
    "head_proposer",
    "host_engine",
    "host_names",
    "kv_bytes",
    "kv_bytes_per_token",
    "kv_capacity",
    "launch_of",
    "layer_groups",
    "load_gpu",
    "load_host",
    "load_model",
    "medusa_weight_bytes",
    "model_names",
    "mtp_head",
    "parameters",
    "prefill_flops",
    "stages_of",
    "weight_bytes",
]

#: The names, by the module that defines them.
_NAMES = {
    "roofline.architecture": ("Flops", "Parameters", "active_parameters", "parameters", "prefill_flops"),
    "drafting.heads": ("DraftHead", "eagle3_head", "eagle_head", "medusa_weight_bytes", "mtp_head"),
    "drafting.drafters": (
        "Launch",
        "ModelProposer",
        "DrafterPlace",
        "draft_model_proposer",
        "draft_step_ns",
        "head_proposer",
        "launch_of",
    ),
    "drafting.medusa": ("MedusaProposer",),
    "drafting.costs": ("LookupProposer", "Proposer", "SpeculativeCost", "TimedProposer"),
    "errors": ("CostModelError", "InputError"),
    "specs.gpu": ("GpuLink", "GpuSpec"),
    "specs.host": ("NO_FRONT_END", "NO_HOST", "FrontEnd", "HostModel"),
    "memory.kv_groups": ("KvGroups", "layer_groups"),
    "library": ("gpu_names", "host_engine", "host_names", "load_gpu", "load_host", "load_model", "model_names"),
    "linear": ("LinearLaw",),
    "memory.capacity": (
        "KvCapacity",
        "MemorySettings",
        "activation_bytes",
        "blocks_for",
        "kv_bytes",
        "kv_bytes_per_token",
        "kv_capacity",
        "weight_bytes",
    ),
    "specs.placement": ("ExpertSplit", "Placement", "StepLimits", "TimeSources"),
    "specs.model": ("Mla", "ModelSpec", "Moe"),
    "roofline.pipeline": ("EqualStages", "StagedRoofline", "build_pipeline"),
    "roofline.model": ("Roofline", "build_roofline"),
    "shape": ("BatchShape", "CostModel", "LockstepCost", "StagedCost", "StageTimes", "StepCost"),
    "roofline.stages": ("Stage", "stages_of"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"cost_models.{_MODULES[name]}"), name)
