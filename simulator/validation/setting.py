"""Data of a measured run: the server, the load and the measurements."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from simulator.scenario.lengths import Fixed, Lengths
from simulator.scenario.speculation import Speculation
from simulator.scenario.traffic import PromptPool

#: Engine of a row, by the name of its batch policy.
Engine = Literal["vllm", "sglang", "tensorrt_llm"]


@dataclass(frozen=True, slots=True)
class Detail:
    """All requests of a load: times at which they were sent, and lengths; `concurrency` is the client's limit."""

    sent_ns: tuple[int, ...]
    prompt_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]
    concurrency: int | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """Load by the clients: `requests` at `rate` a second in `duration_ns`, or `concurrency` clients in a closed loop.

    An open load without a duration ends with its last arrival; without a rate (None), all requests arrive at once. Gaps
    are gamma distributed with the shape `burstiness`, 1 for a Poisson process. A client has at most `limit` requests
    under way. The first `warmup` requests are not measured. `detail` has the requests if they were recorded.
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
    """A server and its load. Rows measured one after the other on one server differ only in `load`.

    None stands for the engine's default for its version and the GPU; only vLLM has a `version`.
    """

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
    def deterministic(self) -> bool:
        """Whether every seed gives the same run: recorded requests, or fixed lengths without random arrivals."""
        if self.speculation is not None:
            return False
        equal = isinstance(self.prompt_tokens, Fixed) and isinstance(self.output_tokens, Fixed)
        return self.load.detail is not None or (equal and self.load.rate is None and self.prompt_pool is None)


@dataclass(frozen=True, slots=True)
class Row:
    """One row of measurements.

    `setting` is None if it cannot be simulated, and `reason` is the reason. `measured` are its metrics by column name
    (ms, or per second). `labels` are its gpu, model and engine, as written. Rows with the same `run` were measured one
    after the other on one warm server, in the order of `stage`; `staged` is False if the file has no stages.
    `assumptions` were made for values that the row does not have. `plain` is the setting of the same run without
    speculation, if that was measured, too. Metrics that are `given` are part of the settings, so that they are not
    predicted. `by_sign` is the reason why the sign and order of the row are judged, not its values; else it is empty. A
    `steady` row is not compared with others on the same draws, so that a few draws that agree are enough. A user's
    `own` benchmark corrects the shipped host model; host models of others are fitted from a prior. Errors of the row
    are also summed up in each of its `groups`.
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
    steady: bool = False
    own: bool = False
    groups: tuple[str, ...] = ()

    @property
    def load(self) -> str:
        """Short name of the load, for tables."""
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
        """Return the row as stage `stage` of the run named `run`."""
        return replace(self, run=run, stage=stage)

    def refused(self, reason: str) -> Row:
        """Return the row without its setting, and with the reason why it cannot be simulated."""
        return replace(self, setting=None, reason=reason)
