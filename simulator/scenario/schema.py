"""Schema of scenarios: frozen values without behaviour, which `reader` reads from YAML.

A key that is neither here nor in the modules imported here, such as `traffic` and `schedulers`, is an error.
"""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import yaml

from simulator.scenario.field_types import Tagged
from simulator.scenario.handover import Handover
from simulator.scenario.links import Links
from simulator.scenario.nodes import Node
from simulator.scenario.numbers import Jobs, PositiveDuration, StepDuration, TokenDuration
from simulator.scenario.offload import Offload
from simulator.scenario.plain_values import plain
from simulator.scenario.pricing import Pricing
from simulator.scenario.quantities import Duration, Range, Size
from simulator.scenario.routers import RoundRobin, Router
from simulator.scenario.schedulers import (
    Scheduler,
    SglangScheduler,
    StaticScheduler,
    TensorRtLlmScheduler,
    VllmScheduler,
)
from simulator.scenario.setting import setting
from simulator.scenario.slo import Slo
from simulator.scenario.speculation import DraftModel, Ngram, Proposer, Speculation
from simulator.scenario.traffic import Workload

#: Most pools named in the `repr` of a scenario.
_SHOWN_POOLS = 3
_LATER = "is a reserved key: it is not simulated yet"

# --- deployment -----------------------------------------------------------------------------------------------------


@setting()
class ModelRef:
    """A model: a name of `servesim list models`, or the path of a Hugging Face `config.json`."""

    FROM_SCALAR: ClassVar[str] = "name"
    name: str
    weights: Literal["auto", "bf16", "fp16", "fp8", "int8"] = "auto"
    kv_cache: Literal["auto", "bf16", "fp16", "fp8"] = "auto"


Allocation = Literal["paged", "contiguous", "contiguous_exact"]


@setting()
class Memory:
    """KV memory of one replica. `kv_blocks` is the number of usable blocks.

    If it is not given, it is (HBM x `gpu_memory_utilization` - weights - activations) / bytes of a block, each on one
    GPU; the utilisation is 0.9 unless given, and `activations` are estimated from the model and the token budget.
    `offload` adds CPU memory for copies of blocks.

    `allocation`: blocks are taken as they are filled (`paged`), or in one piece at admission, for the longest context
    (`contiguous`) or for the prompt and `max_tokens` (`contiguous_exact`).
    """

    gpu_memory_utilization: Annotated[float, Range(above=0, max=1)] | None = None
    block_size: Annotated[int, Range(min=1, max=65536)] = 16
    kv_blocks: Annotated[int, Range(min=1, max=10**11)] | None = None
    activations: Size | None = None
    allocation: Allocation = "paged"
    offload: Offload | None = None

    def __post_init__(self) -> None:
        for name in ("gpu_memory_utilization", "activations"):
            if self.kv_blocks is not None and getattr(self, name) is not None:
                raise ValueError(f"{name}: has no effect beside kv_blocks, which sets their number")


@setting()
class LinearCost:
    """Step time of `base` + `per_token` x tokens + ..., as in closed forms and scheduler recordings.

    `per_token` counts every scheduled token; `per_prefill_token` and `per_decode_token` are added for tokens of their
    kind; `per_context_token` counts the keys that the step's sequences attend to, the new ones included. `host` is CPU
    time before the step; with asynchronous scheduling it overlaps the previous step.
    """

    TAG_KEY: ClassVar[str] = "kind"
    TAG: ClassVar[str] = "linear"
    base: StepDuration = 0
    per_token: TokenDuration = 0
    per_prefill_token: TokenDuration = 0
    per_decode_token: TokenDuration = 0
    per_context_token: TokenDuration = 0
    host: StepDuration = 0

    def __post_init__(self) -> None:
        if not (
            self.base or self.per_token or self.per_prefill_token or self.per_decode_token or self.per_context_token
        ):
            raise ValueError("needs a coefficient above 0 (base, per_token, ...): a step would take no time at all")


@setting()
class RooflineCost:
    """Step time by the roofline of the model on the GPU.

    `calibration` is the source of kernel times: `auto` for the user's own calibration of the GPU, else the shipped one,
    else estimates; `shipped` for the shipped one; `none` for estimates; or the path of a calibrated file. `host` is the
    source of the engine's times beside kernels: the name of a host model, the user's own or a shipped one; `none`; or
    the path of a file.
    """

    TAG_KEY: ClassVar[str] = "kind"
    TAG: ClassVar[str] = "roofline"
    calibration: str = "auto"
    host: str = "vllm"


@setting()
class Pool:
    """Equal replicas of one model, each on `tensor_parallel` x `pipeline_parallel` x `data_parallel` GPUs.

    A rank is a scheduler with its own queue, batch and KV memory. A replica has one for each of its data-parallel
    ranks and each lane of its pipeline, which has as many lanes as stages; routers choose among ranks.
    `expert_parallel`: GPUs have whole experts instead of a part of each.

    `role`: `prefill` replicas compute prompts and hand them over, `decode` replicas continue them (and compute prompts
    that are not handed over), `both` serve requests from beginning to end. `model` replaces the scenario's. With
    `speculation`, a step can produce several tokens of a sequence.
    """

    gpu: str
    role: Literal["both", "prefill", "decode"] = "both"
    model: ModelRef | None = None
    tensor_parallel: Annotated[int, Range(min=1, max=64)] = 1
    pipeline_parallel: Annotated[int, Range(min=1, max=64)] = 1
    data_parallel: Annotated[int, Range(min=1, max=1024)] = 1
    expert_parallel: bool = False
    replicas: Annotated[int, Range(min=1, max=10**5)] = 1
    scheduler: Scheduler = field(default_factory=VllmScheduler)
    memory: Memory = Memory()
    cost_model: Annotated[RooflineCost | LinearCost, Tagged("kind", "roofline")] = RooflineCost()
    speculation: Speculation | None = None

    def __post_init__(self) -> None:
        policy = self.scheduler.TAG
        if policy == "distserve" and self.role == "both":
            raise ValueError("scheduler: policy distserve is for instances that prefill or decode: set role")
        if self.role == "decode" and _forms_batches_once(self.scheduler):
            raise ValueError("scheduler: policy static forms batches once, but handed-over requests join at any step")
        if self.scheduler.max_num_batched_tokens is not None:
            self._check_budget(self.scheduler.max_num_batched_tokens)
        if self.pipeline_parallel > 1 and self.role != "both":
            raise ValueError(f"pipeline_parallel: is not simulated for a pool with role {self.role}")
        if self.speculation is not None:
            self._check_speculation(self.speculation)

    def _check_budget(self, budget: int) -> None:
        """Raise ValueError if the tokens of a step are too few to start one sequence, or to decode it with drafts."""
        page, key = self.memory.block_size, f"scheduler.max_num_batched_tokens: {budget} tokens"
        if isinstance(self.scheduler, SglangScheduler) and budget < page:
            raise ValueError(
                f"{key} are less than a page (memory.block_size: {page}), and SGLang computes prompts in whole pages: "
                "no prompt could start; set at least a page"
            )
        if self.speculation is None:
            return
        step = 1 + self.speculation.num_speculative_tokens
        if isinstance(self.scheduler, VllmScheduler) and isinstance(self.speculation, DraftModel):
            step += 1  # vLLM counts one token more for a sequence whose drafts come from a model of their own
        if budget < step:
            raise ValueError(
                f"{key} are too few for one sequence with its drafts; set at least {step}, or fewer "
                "num_speculative_tokens"
            )

    def _check_speculation(self, speculation: Proposer) -> None:
        if self.role == "prefill":
            raise ValueError("speculation: has no meaning in a pool that only computes prompts")
        if not self.scheduler.SPECULATES:
            raise ValueError(f"speculation: is not simulated with scheduler policy {self.scheduler.TAG}")
        if isinstance(self.scheduler, SglangScheduler) and self.scheduler.enable_mixed_chunk:
            raise ValueError("speculation: SGLang computes no prompts beside drafts; set enable_mixed_chunk to false")
        if self.pipeline_parallel > 1:
            raise ValueError("speculation: is not simulated with a pipeline; set pipeline_parallel to 1")
        free = isinstance(speculation, Ngram) or speculation.pass_time is not None
        if isinstance(self.cost_model, LinearCost) and not free:
            raise ValueError("speculation: a linear cost model has no time of a drafter; set it with pass_time")

    @property
    def ranks(self) -> int:
        """Number of schedulers of all replicas."""
        return self.replicas * self.data_parallel * self.pipeline_parallel

    @property
    def gpus(self) -> int:
        """Number of GPUs of all replicas."""
        return self.ranks * self.tensor_parallel


def _forms_batches_once(scheduler: Scheduler) -> bool:
    if isinstance(scheduler, TensorRtLlmScheduler):
        return scheduler.capacity_scheduler_policy == "STATIC_BATCH"
    return isinstance(scheduler, StaticScheduler)


@setting()
class Deployment:
    """The serving side: pools by name, and the handover from prefill pools to decode pools.

    Requests that are not handed over go to the pools with role `both`, if there are any, else to the decode pools.
    """

    pools: dict[str, Pool]
    handover: Handover | None = None

    def __post_init__(self) -> None:
        if not self.pools:
            raise ValueError("pools: needs at least one pool")
        roles = {pool.role for pool in self.pools.values()}
        for role, other in (("prefill", "decode"), ("decode", "prefill")):
            if role in roles and other not in roles:
                raise ValueError(f"pools: a pool with role {role} needs another with role {other}")
        if "prefill" not in roles and self.handover is not None:
            raise ValueError("handover: has no meaning without a pool of role prefill and one of role decode")
        if "prefill" in roles and self.handover is None:
            object.__setattr__(self, "handover", Handover())


# --- the rest -------------------------------------------------------------------------------------------------------


@setting()
class RunOptions:
    """Options of the run and of the measurement.

    `horizon` ends the simulation; requests unfinished then are counted as in flight. Requests that arrive before
    `warmup` are left out of the statistics; it is a fixed time, or found by MSER-5 on TTFT. `engine` selects the
    implementation of the iteration (`auto`: the fast one where it is exact). `checks` verifies conservation laws at
    every step. `jobs`: processes that simulate independent replicas side by side, with the same results.
    """

    horizon: PositiveDuration | None = None
    warmup: Literal["none", "mser5"] | Duration = "none"
    engine: Literal["auto", "lazy", "explicit"] = "auto"
    steady_state: Literal["reported", "required"] = "reported"
    checks: bool = False
    jobs: Jobs = 1


@setting()
class Origin:
    """Source of a scenario: the tree with its overrides, and its file (None without). Files that the scenario names are
    looked for beside it."""

    root: Node
    path: Path | None


@setting()
class Scenario:
    """All settings of a run, with its seed: the same scenario gives the same results. `origin` is no key."""

    RESERVED: ClassVar[dict[str, str]] = dict.fromkeys(("ingress", "faults", "autoscale", "tenants", "clients"), _LATER)
    name: str
    model: ModelRef
    workload: Workload
    deployment: Deployment
    router: Router = field(default_factory=RoundRobin)
    links: Links = field(default_factory=Links)
    slo: Slo | None = None
    cost: Pricing | None = None
    run: RunOptions = RunOptions()
    seed: Annotated[int, Range(min=0, max=2**63 - 1)] = 0
    origin: Origin | None = field(default=None, compare=False, metadata={"key": False})

    def to_dict(self) -> dict[str, Any]:
        """Return the scenario as plain values: every key, defaults included, as in a scenario file."""
        values: dict[str, Any] = plain(self)
        return values

    def __repr__(self) -> str:
        pools = list(self.deployment.pools.items())
        served = [f"{name} on {pool.gpus} x {pool.gpu}" for name, pool in pools[:_SHOWN_POOLS]]
        more = f" and {len(pools) - _SHOWN_POOLS} more" if len(pools) > _SHOWN_POOLS else ""
        return f"Scenario({self.name}: {self.model.name}, {', '.join(served)}{more}, seed {self.seed})"

    def _repr_html_(self) -> str:
        """Return the YAML of all keys as HTML, for notebooks."""
        from html import escape

        text = yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)
        summary = f"<summary><b>{escape(repr(self))}</b></summary>"
        return f"<details>{summary}<pre>{escape(text)}</pre></details>"
