"""A measured run: what was served how, and what was measured."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from simulator.scenario.lengths import Fixed, Lengths
from simulator.scenario.speculation import Speculation
from simulator.scenario.traffic import PromptPool

#: The engine whose scheduler a row ran, by the name of its batch policy.
Engine = Literal["vllm", "sglang", "tensorrt_llm"]


@dataclass(frozen=True, slots=True)
class Detail:
    """Every request of a load: when it was sent, prompt and output tokens; `concurrency` is the client's limit."""

    sent_ns: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    concurrency: int | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """Load by the clients: `requests` at `rate` a second in `duration_ns`, or `concurrency` clients in a closed loop.

    An open load without a duration lasts as long as its arrivals do; without a rate (None), all come at once. Gaps are
    gamma distributed with the shape `burstiness`, 1 for a Poisson process. A client with a `limit` has at most so many
    requests under way. `warmup` requests come first and are not measured. `detail` is known where each request was
    recorded.
    """

    requests: int
    rate: float | None = None
    duration_ns: int | None = None
    concurrency: int | None = None
    warmup: int = 0
    detail: Detail | None = None
    burstiness: float = 1.0
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """A server, and what it was sent. Rows of one server that ran one after the other have equal settings but for
    `load`. None is the engine's default of that setting for its version and the GPU; `version` is vLLM's alone."""

    engine: Engine
    model: str
    gpu: str
    tensor_parallel: int
    weights: str
    kv_cache: str
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    max_model_len: int | None
    gpu_memory_utilization: float
    prefix_caching: bool | None
    async_scheduling: bool | None
    host: str
    front_end: bool
    prompt_tokens: Lengths
    output_tokens: Lengths
    prompt_pool: PromptPool | None
    load: Load
    pipeline_parallel: int = 1
    expert_parallel: bool = False
    speculation: Speculation | None = None
    version: str = "vllm-0.33"

    @property
    def settled(self) -> bool:
        """Whether every seed gives the same run: recorded, or of equal lengths that come at once or one by one."""
        if self.speculation is not None:
            return False
        equal = isinstance(self.prompt_tokens, Fixed) and isinstance(self.output_tokens, Fixed)
        return self.load.detail is not None or (equal and self.load.rate is None and self.prompt_pool is None)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of measurements.

    `setting` is None if it cannot be simulated, and `reason` says why. `measured` are its metrics by column name (ms,
    or per second). `labels` are its gpu, model and engine, as written. `run` and `stage` tell which rows were measured
    one after the other on one warm server; `staged` is False where the file knows no stages. `assumptions` are what the
    row leaves open and was filled in. `plain` is the setting of the same run without speculation, where that was
    measured, too. Metrics that are `given` went into the settings, so that they predict nothing. `by_sign` says why
    sign and order of the row are judged, not its digits; it is empty for others. `stand_in` is the engine as written
    whose scheduler is not simulated with drafts, so that another one stands in; it is empty for others. A `steady`
    row is compared with no other one on the same draws, so that a few that agree are enough. A user's `own` benchmark
    corrects the shipped host model; others are fitted from scratch. Errors of the row are summed up under each of its
    `groups`, too.
    """

    where: str
    run: str
    stage: int
    labels: dict[str, str]
    measured: dict[str, float]
    setting: Setting | None
    staged: bool = True
    reason: str = ""
    overloaded: bool = False
    note: str = ""
    assumptions: tuple[str, ...] = field(default=())
    plain: Setting | None = None
    given: tuple[str, ...] = ()
    by_sign: str = ""
    stand_in: str = ""
    steady: bool = False
    own: bool = False
    groups: tuple[str, ...] = ()

    @property
    def load(self) -> str:
        """A short name of the load, for tables."""
        if self.setting is None:
            return ""
        load = self.setting.load
        if load.detail is not None:
            return f"{load.requests} requests"
        clients = load.concurrency if load.rate is not None else load.concurrency or load.limit
        if clients is not None:
            return f"{clients} client{'s' * (clients > 1)}"
        return f"{load.rate:g}/s" if load.rate is not None else "all at once"

    def at_stage(self, run: str, stage: int) -> Row:
        """The row, as one of those that `run` names, measured one after the other."""
        return replace(self, run=run, stage=stage)

    def refused(self, reason: str) -> Row:
        """The row, with the reason for which it cannot be simulated after all."""
        return replace(self, setting=None, reason=reason)
