"""What a step of LLM serving costs, and what fits in a GPU's memory. Knows nothing of the simulator."""

from cost_models.architecture import ExpertSplit, Flops, Parameters, active_parameters, parameters, prefill_flops
from cost_models.draft_heads import DraftHead, eagle3_head, eagle_head, medusa_weight_bytes, mtp_head
from cost_models.drafters import (
    Launch,
    MedusaProposer,
    ModelProposer,
    Placement,
    draft_model_proposer,
    draft_step_ns,
    head_proposer,
    launch_of,
)
from cost_models.drafting import LookupProposer, Proposer, SpeculativeCost, TimedProposer
from cost_models.errors import CostModelError
from cost_models.gpu import GpuLink, GpuSpec
from cost_models.host import NO_FRONT_END, NO_HOST, FrontEnd, HostModel
from cost_models.library import gpu_names, host_names, load_gpu, load_host, load_model, model_names
from cost_models.linear import LinearLaw
from cost_models.memory import (
    KvCapacity,
    activation_bytes,
    blocks_for,
    kv_bytes,
    kv_bytes_per_token,
    kv_capacity,
    weight_bytes,
)
from cost_models.model import Mla, ModelSpec, Moe
from cost_models.pipeline import EqualStages, StagedRoofline, build_pipeline
from cost_models.roofline import Roofline, build_roofline
from cost_models.shape import BatchShape, CostModel, LockstepCost, StagedCost, StageTimes, StepCost
from cost_models.stages import Stage, stages_of

__all__ = [
    "NO_FRONT_END",
    "NO_HOST",
    "BatchShape",
    "CostModel",
    "CostModelError",
    "DraftHead",
    "EqualStages",
    "ExpertSplit",
    "Flops",
    "FrontEnd",
    "GpuLink",
    "GpuSpec",
    "HostModel",
    "KvCapacity",
    "Launch",
    "LinearLaw",
    "LockstepCost",
    "LookupProposer",
    "MedusaProposer",
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
    "host_names",
    "kv_bytes",
    "kv_bytes_per_token",
    "kv_capacity",
    "launch_of",
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
