"""What a scenario can say. Frozen values without behaviour; `reader` turns YAML into them and back.

A key that is not here is an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

from simulator.scenario.reader import Duration, Range, Size, Tagged

Count = Annotated[int, Range(min=1, max=10**12)]
NaturalInt = Annotated[int, Range(min=0, max=10**12)]
Tokens = Annotated[int, Range(min=1, max=10**8)]
Rate = Annotated[float, Range(above=0, max=1e9)]
PositiveFloat = Annotated[float, Range(above=0, max=1e12)]
Fraction = Annotated[float, Range(min=0, max=1)]
PositiveDuration = Annotated[Duration, Range(min=1)]

_LATER = "is a reserved key: what it describes is not simulated yet"


# --- lengths, in tokens ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always `value` tokens. May be written as the bare number."""

    TAG_KEY: ClassVar[str] = "distribution"
    TAG: ClassVar[str] = "fixed"
    FROM_SCALAR: ClassVar[str] = "value"
    value: Tokens


@dataclass(frozen=True, slots=True)
class Bounds:
    """Values below `min` or above `max` are set to the bound, as a tokeniser or a `max_tokens` limit does."""

    min: Tokens = 1
    max: Tokens | None = None

    def __post_init__(self) -> None:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"max: must be at least min ({self.min}), found {self.max}")


@dataclass(frozen=True, slots=True)
class Uniform:
    """Integers from `min` to `max`, both included, with equal probability."""

    TAG_KEY: ClassVar[str] = "distribution"
    TAG: ClassVar[str] = "uniform"
    min: Tokens
    max: Tokens

    def __post_init__(self) -> None:
        if self.max < self.min:
            raise ValueError(f"max: must be at least min ({self.min}), found {self.max}")


@dataclass(frozen=True, slots=True)
class LogNormal(Bounds):
    """Log-normal with this mean and coefficient of variation (standard deviation / mean), before the bounds."""

    TAG_KEY: ClassVar[str] = "distribution"
    TAG: ClassVar[str] = "lognormal"
    mean: PositiveFloat = field(kw_only=True)
    cv: PositiveFloat = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Geometric(Bounds):
    """Geometric on 1, 2, 3, ... with this mean: the memoryless law of whole tokens."""

    TAG_KEY: ClassVar[str] = "distribution"
    TAG: ClassVar[str] = "geometric"
    mean: Annotated[float, Range(min=1, max=1e8)] = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Exponential(Bounds):
    """Exponential with this mean, rounded to the nearest token and at least `min`."""

    TAG_KEY: ClassVar[str] = "distribution"
    TAG: ClassVar[str] = "exponential"
    mean: PositiveFloat = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Quantiles(Bounds):
    """An empirical law given by `points`, pairs [probability, tokens]; log length is interpolated over probability.

    The first probability must be 0 and the last 1, both columns increasing.
    """

    TAG_KEY: ClassVar[str] = "distribution"
    TAG: ClassVar[str] = "quantiles"
    points: tuple[tuple[Fraction, Tokens], ...] = field(kw_only=True)

    def __post_init__(self) -> None:
        Bounds.__post_init__(self)
        p, tokens = [point[0] for point in self.points], [point[1] for point in self.points]
        if len(p) < 2 or p[0] != 0 or p[-1] != 1:
            raise ValueError("points: must begin at probability 0 and end at probability 1")
        if any(b <= a for a, b in pairwise(p)):
            raise ValueError("points: probabilities must increase")
        if any(b < a for a, b in pairwise(tokens)):
            raise ValueError("points: token counts must not decrease")


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a mixture: a law and how often it is drawn, relative to the others."""

    weight: PositiveFloat
    law: Annotated[Fixed | Uniform | LogNormal | Geometric | Exponential | Quantiles, Tagged("distribution")]


@dataclass(frozen=True, slots=True)
class Mixture:
    """Each value comes from one of `parts`, chosen by weight."""

    TAG_KEY: ClassVar[str] = "distribution"
    TAG: ClassVar[str] = "mixture"
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("parts: needs at least one part")


Lengths = Annotated[Fixed | Uniform | LogNormal | Geometric | Exponential | Quantiles | Mixture, Tagged("distribution")]


# --- arrivals -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Poisson:
    """Exponential gaps: `rate` requests a second on average."""

    TAG_KEY: ClassVar[str] = "process"
    TAG: ClassVar[str] = "poisson"
    rate: Rate


@dataclass(frozen=True, slots=True)
class Gamma:
    """Gamma-distributed gaps. `burstiness` is their shape, 1 / CV^2, as in `vllm bench serve`; give it or `cv`."""

    TAG_KEY: ClassVar[str] = "process"
    TAG: ClassVar[str] = "gamma"
    rate: Rate
    cv: PositiveFloat | None = None
    burstiness: PositiveFloat | None = None

    def __post_init__(self) -> None:
        if (self.cv is None) == (self.burstiness is None):
            raise ValueError("give exactly one of cv and burstiness")


@dataclass(frozen=True, slots=True)
class Constant:
    """Even gaps of 1 / `rate` seconds."""

    TAG_KEY: ClassVar[str] = "process"
    TAG: ClassVar[str] = "constant"
    rate: Rate


@dataclass(frozen=True, slots=True)
class AllAtOnce:
    """Everything at time zero: an offline batch, or a client with an infinite request rate."""

    TAG_KEY: ClassVar[str] = "process"
    TAG: ClassVar[str] = "all_at_once"


@dataclass(frozen=True, slots=True)
class Bursts:
    """Poisson at `rate`, and at `burst_rate` for the first `length` of each period of `every`."""

    TAG_KEY: ClassVar[str] = "process"
    TAG: ClassVar[str] = "bursts"
    rate: Rate
    burst_rate: Rate
    every: PositiveDuration
    length: PositiveDuration

    def __post_init__(self) -> None:
        if self.length > self.every:
            raise ValueError("length: must not be longer than every")


@dataclass(frozen=True, slots=True)
class Diurnal:
    """Poisson whose rate swings as a cosine of time around its mean `rate`, by `amplitude` of it, from the trough."""

    TAG_KEY: ClassVar[str] = "process"
    TAG: ClassVar[str] = "diurnal"
    rate: Rate
    amplitude: Fraction
    period: PositiveDuration = 86_400 * 10**9


@dataclass(frozen=True, slots=True)
class ThinkTime:
    """The pause between a client's answer and its next request. May be written as the bare (fixed) duration."""

    FROM_SCALAR: ClassVar[str] = "mean"
    mean: Duration
    distribution: Literal["fixed", "exponential"] = "fixed"


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`concurrency` clients, each of which sends its next request `think_time` after the last one ended."""

    TAG_KEY: ClassVar[str] = "process"
    TAG: ClassVar[str] = "closed_loop"
    concurrency: Count
    think_time: ThinkTime = ThinkTime(0)


Arrivals = Annotated[Poisson | Gamma | Constant | AllAtOnce | Bursts | Diurnal | ClosedLoop, Tagged("process")]


# --- workload -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PromptPool:
    """`prompts` distinct prompts, drawn once, shuffled once, then sent round and round.

    They form `groups` of equal size; the first `shared_prefix_tokens` of every prompt are the same within a group.
    """

    prompts: Count
    groups: Count = 1
    shared_prefix_tokens: NaturalInt = 0

    def __post_init__(self) -> None:
        if self.prompts % self.groups:
            raise ValueError(f"groups: must divide prompts ({self.prompts}), found {self.groups}")


@dataclass(frozen=True, slots=True)
class RequestClass:
    """One class of a synthetic workload: its share of the requests and its lengths."""

    name: str
    weight: PositiveFloat
    prompt_tokens: Lengths
    output_tokens: Lengths


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests: a recorded `trace`, or a synthetic workload (`arrivals`, lengths, and `requests` or `duration`).

    `rate_scale` 2 makes arrivals twice as dense; `time_window` keeps the arrivals from its start to just before its
    end, counted from the first; `limit` keeps the first N; `max_concurrency` is a client-side gate. The window is cut
    before the limit, both before the scaling.
    """

    trace: str | None = None
    trace_format: Literal["auto", "azure", "native"] = "auto"
    arrivals: Arrivals | None = None
    requests: Count | None = None
    duration: PositiveDuration | None = None
    prompt_tokens: Lengths | None = None
    output_tokens: Lengths | None = None
    correlation: Annotated[float, Range(min=-1, max=1)] = 0.0
    classes: tuple[RequestClass, ...] = ()
    prompt_pool: PromptPool | None = None
    max_tokens: Tokens | None = None
    rate_scale: PositiveFloat = 1.0
    time_window: tuple[Duration, PositiveDuration] | None = None
    limit: Count | None = None
    max_concurrency: Count | None = None

    def __post_init__(self) -> None:
        if self.trace is not None:
            self._check_trace()
        else:
            self._check_synthetic()
        if self.time_window is not None and self.time_window[1] <= self.time_window[0]:
            raise ValueError("time_window: must end after it starts")

    def _check_trace(self) -> None:
        synthetic = ("arrivals", "requests", "duration", "prompt_tokens", "output_tokens", "prompt_pool")
        for name in synthetic:
            if getattr(self, name) is not None:
                raise ValueError(f"{name}: describes a synthetic workload and cannot stand beside trace")
        if self.classes:
            raise ValueError("classes: describes a synthetic workload and cannot stand beside trace")
        if self.correlation:
            raise ValueError("correlation: describes a synthetic workload and cannot stand beside trace")

    def _check_synthetic(self) -> None:
        if self.arrivals is None:
            raise ValueError("needs trace (a file), or arrivals, prompt_tokens, output_tokens and requests")
        if self.trace_format != "auto":
            raise ValueError("trace_format: has no meaning without trace")
        if (self.requests is None) == (self.duration is None):
            raise ValueError("give exactly one of requests and duration")
        closed = isinstance(self.arrivals, ClosedLoop | AllAtOnce)
        if closed and self.duration is not None:
            raise ValueError(f"duration: {self.arrivals.TAG} has no rate, so give requests instead")
        if isinstance(self.arrivals, AllAtOnce) and self.rate_scale != 1:
            raise ValueError("rate_scale: has no meaning for all_at_once, which has no rate")
        if isinstance(self.arrivals, ClosedLoop):
            for name, default in (("rate_scale", 1.0), ("time_window", None), ("max_concurrency", None)):
                if getattr(self, name) != default:
                    raise ValueError(f"{name}: has no meaning in a closed loop, whose arrivals follow the answers")
        lengths = self.prompt_tokens is not None, self.output_tokens is not None
        if self.classes and any(lengths):
            raise ValueError("classes: has its own lengths; leave out prompt_tokens and output_tokens")
        if not self.classes and not all(lengths):
            raise ValueError("needs prompt_tokens and output_tokens, or classes")


# --- deployment -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A model: a name of `servesim list models`, or the path of a Hugging Face `config.json`."""

    FROM_SCALAR: ClassVar[str] = "name"
    name: str
    weights: Literal["auto", "bf16", "fp16", "fp8", "int8"] = "auto"
    kv_cache: Literal["auto", "bf16", "fp16", "fp8"] = "auto"


#: What a version of the engine sets where the scenario does not.
VERSIONS: dict[str, dict[str, bool]] = {
    "vllm-0.33": {"async_scheduling": True, "enable_prefix_caching": True},
    "none": {"async_scheduling": False, "enable_prefix_caching": False},
}


@dataclass(frozen=True, slots=True)
class VllmScheduler:
    """Continuous batching with chunked prefill as in vLLM V1; names and meanings are vLLM's own.

    Defaults are this project's, for a plain setting on which engine versions agree: vLLM's own vary with the GPU, the
    entry point and the version. `version` takes those of `VERSIONS` for what is left out (None).

    The last group has no counterpart in vLLM, or a fixed one, which is the default. `context_overflow`: a request that
    could exceed `max_model_len` is refused, or its output cut there. `pool_overflow`: one that could exceed the whole
    pool is refused, or waits for ever, as in vLLM's scheduler. `preemption_victim`: the sequence admitted last, or the
    one with the fewest computed tokens. `preempted_first`: with priorities, what was preempted is admitted before what
    never ran, whatever the priorities. `max_num_partial_prefills`: at most so many prompts are partly computed.
    """

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "vllm"
    version: Literal["vllm-0.33", "none"] = "none"
    max_num_seqs: Annotated[int, Range(min=1, max=10**6)] = 256
    max_num_active_seqs: Annotated[int, Range(min=1, max=10**6)] | None = None
    max_num_batched_tokens: Annotated[int, Range(min=1, max=10**9)] = 8192
    max_model_len: Tokens | None = None
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: NaturalInt = 0
    long_prefill_token_threshold_adaptive: bool = False
    prefill_schedule_interval: Annotated[int, Range(min=1, max=10**6)] = 1
    scheduler_reserve_full_isl: bool = True
    watermark: Annotated[float, Range(min=0, below=1)] = 0.0
    async_scheduling: bool | None = None
    enable_prefix_caching: bool | None = None
    context_overflow: Literal["refuse", "cut"] = "refuse"
    pool_overflow: Literal["refuse", "wait"] = "refuse"
    preemption_victim: Literal["last", "least_computed"] = "last"
    preempted_first: bool = False
    max_num_partial_prefills: Annotated[int, Range(min=1, max=10**6)] | None = None

    def __post_init__(self) -> None:
        for name, value in VERSIONS[self.version].items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        if self.preempted_first and self.scheduling_policy != "priority":
            raise ValueError("preempted_first: has a meaning with scheduling_policy: priority only")
        if self.preemption_victim != "last" and self.scheduling_policy != "fcfs":
            raise ValueError("preemption_victim: has a meaning with scheduling_policy: fcfs only")


Scheduler = Annotated[VllmScheduler, Tagged("policy", "vllm")]


@dataclass(frozen=True, slots=True)
class Memory:
    """KV memory of one replica. `kv_blocks` is the usable number of blocks; without it, it is derived.

    Derived: (HBM x `gpu_memory_utilization` - weights - activations) / bytes of a block, a GPU, after tensor
    parallelism; the utilisation is 0.9 unless given, `activations` are estimated from the model and the token budget.
    """

    gpu_memory_utilization: Annotated[float, Range(above=0, max=1)] | None = None
    block_size: Annotated[int, Range(min=1, max=65536)] = 16
    kv_blocks: Annotated[int, Range(min=1, max=10**11)] | None = None
    activations: Size | None = None

    def __post_init__(self) -> None:
        for name in ("gpu_memory_utilization", "activations"):
            if self.kv_blocks is not None and getattr(self, name) is not None:
                raise ValueError(f"{name}: has no effect beside kv_blocks, which says how many there are")


@dataclass(frozen=True, slots=True)
class LinearCost:
    """A step takes `base` + `per_token` x tokens + ... : the law of closed forms and of scheduler recordings.

    `per_token` counts every scheduled token; `per_prefill_token` and `per_decode_token` add to it for their kind;
    `per_context_token` counts the keys that the step's sequences attend to, the new ones included. `host` is time of
    the CPU before the step, hidden behind the step before it under asynchronous scheduling.
    """

    TAG_KEY: ClassVar[str] = "kind"
    TAG: ClassVar[str] = "linear"
    base: Duration = 0
    per_token: Duration = 0
    per_prefill_token: Duration = 0
    per_decode_token: Duration = 0
    per_context_token: Duration = 0
    host: Duration = 0

    def __post_init__(self) -> None:
        if not (
            self.base or self.per_token or self.per_prefill_token or self.per_decode_token or self.per_context_token
        ):
            raise ValueError("needs a coefficient above 0 (base, per_token, ...): a step would take no time at all")


@dataclass(frozen=True, slots=True)
class RooflineCost:
    """The roofline of the model on the GPU. `host` is the CPU time of a step, as for the linear law."""

    TAG_KEY: ClassVar[str] = "kind"
    TAG: ClassVar[str] = "roofline"
    host: Duration = 0


@dataclass(frozen=True, slots=True)
class Pool:
    """Equal replicas of one model on `tensor_parallel` GPUs each."""

    RESERVED: ClassVar[dict[str, str]] = {"role": _LATER, "model": _LATER}
    gpu: str
    tensor_parallel: Annotated[int, Range(min=1, max=64)] = 1
    replicas: Annotated[int, Range(min=1, max=10**5)] = 1
    scheduler: Scheduler = VllmScheduler()
    memory: Memory = Memory()
    cost_model: Annotated[RooflineCost | LinearCost, Tagged("kind", "roofline")] = RooflineCost()


@dataclass(frozen=True, slots=True)
class Deployment:
    """The serving side: pools by name (one, until pools can have roles)."""

    pools: dict[str, Pool]

    def __post_init__(self) -> None:
        if len(self.pools) != 1:
            raise ValueError(f"pools: expected exactly one pool, found {len(self.pools)}")

    @property
    def pool(self) -> Pool:
        """The one pool."""
        return next(iter(self.pools.values()))


# --- routers --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RandomRouter:
    """Each request to a replica at random."""

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "random"


@dataclass(frozen=True, slots=True)
class RoundRobin:
    """Replicas in turn."""

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "round_robin"


@dataclass(frozen=True, slots=True)
class LeastRequests:
    """The replica with the fewest unfinished requests; the first of equals."""

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "least_requests"


@dataclass(frozen=True, slots=True)
class LeastTokens:
    """The replica whose unfinished requests have the fewest tokens known so far; the first of equals."""

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "least_tokens"


@dataclass(frozen=True, slots=True)
class PowerOfD:
    """Of `d` different replicas at random, the one with the fewest unfinished requests."""

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "power_of_d"
    d: Annotated[int, Range(min=1, max=10**5)] = 2


Router = Annotated[RoundRobin | RandomRouter | LeastRequests | LeastTokens | PowerOfD, Tagged("policy", "round_robin")]


# --- the rest -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Slo:
    """Goodput counts the requests that meet every limit given here."""

    ttft: PositiveDuration | None = None
    tpot: PositiveDuration | None = None
    e2e: PositiveDuration | None = None

    def __post_init__(self) -> None:
        if self.ttft is None and self.tpot is None and self.e2e is None:
            raise ValueError("needs at least one of ttft, tpot and e2e")


@dataclass(frozen=True, slots=True)
class Pricing:
    """What one GPU costs for an hour."""

    usd_per_gpu_hour: Annotated[float, Range(min=0, max=1e6)]


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How the scenario is run, and what is measured.

    `horizon` stops the clock; what is unfinished then is counted as in flight. `warmup` leaves requests that arrive
    before it out of the statistics: a fixed time, or found by MSER-5 on TTFT. `engine` picks the implementation of
    the iteration (`auto` takes the fast one where it is exact). `checks` verifies conservation laws at every step.
    """

    horizon: PositiveDuration | None = None
    warmup: Literal["none", "mser5"] | Duration = "none"
    engine: Literal["auto", "lazy", "plain"] = "auto"
    steady_state: Literal["reported", "required"] = "reported"
    checks: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that determines a run, with its seed: the same scenario gives the same bytes."""

    RESERVED: ClassVar[dict[str, str]] = dict.fromkeys(
        ("links", "ingress", "faults", "autoscale", "tenants", "clients"), _LATER
    )
    name: str
    model: ModelRef
    workload: Workload
    deployment: Deployment
    router: Router = RoundRobin()
    slo: Slo | None = None
    cost: Pricing | None = None
    run: RunOptions = RunOptions()
    seed: Annotated[int, Range(min=0, max=2**63 - 1)] = 0
