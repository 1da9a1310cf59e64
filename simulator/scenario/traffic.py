"""Requests in a scenario: lengths, arrivals, and the workload that they make up."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from simulator.scenario.field_types import Tagged
from simulator.scenario.lengths import Lengths
from simulator.scenario.numbers import Count, Fraction, NaturalInt, PositiveDuration, PositiveFloat, Rate, Tokens
from simulator.scenario.quantities import Duration, Range
from simulator.scenario.setting import setting

# --- arrivals -------------------------------------------------------------------------------------------------------


@setting()
class Poisson:
    """Exponential gaps: `rate` requests a second on average."""

    TAG_KEY: ClassVar[str] = "process"
    TAG: ClassVar[str] = "poisson"
    rate: Rate


@setting()
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


@setting()
class Constant:
    """Even gaps of 1 / `rate` seconds."""

    TAG_KEY: ClassVar[str] = "process"
    TAG: ClassVar[str] = "constant"
    rate: Rate


@setting()
class AllAtOnce:
    """All requests at time zero: an offline batch, or a client with an infinite request rate."""

    TAG_KEY: ClassVar[str] = "process"
    TAG: ClassVar[str] = "all_at_once"


@setting()
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


@setting()
class Diurnal:
    """Poisson with a rate that is a cosine of time: its mean is `rate`, it varies by `amplitude` x `rate`, and it
    begins at its minimum."""

    TAG_KEY: ClassVar[str] = "process"
    TAG: ClassVar[str] = "diurnal"
    rate: Rate
    amplitude: Fraction
    period: PositiveDuration = 86_400 * 10**9


@setting()
class ThinkTime:
    """The pause between a client's answer and its next request. May be written as the bare (fixed) duration."""

    FROM_SCALAR: ClassVar[str] = "mean"
    mean: Duration
    distribution: Literal["fixed", "exponential"] = "fixed"


@setting()
class ClosedLoop:
    """`concurrency` clients, each of which sends its next request `think_time` after its last one ended."""

    TAG_KEY: ClassVar[str] = "process"
    TAG: ClassVar[str] = "closed_loop"
    concurrency: Count
    think_time: ThinkTime = ThinkTime(0)


Arrivals = Annotated[Poisson | Gamma | Constant | AllAtOnce | Bursts | Diurnal | ClosedLoop, Tagged("process")]


# --- workload -------------------------------------------------------------------------------------------------------


@setting()
class PromptPool:
    """A number of distinct prompts (`prompts`), drawn once, shuffled once, then sent in cycles.

    They form `groups` of equal size; the first `shared_prefix_tokens` tokens of the prompts of a group are the same.
    """

    prompts: Count
    groups: Count = 1
    shared_prefix_tokens: NaturalInt = 0

    def __post_init__(self) -> None:
        if self.prompts % self.groups:
            raise ValueError(f"groups: must divide prompts ({self.prompts}), found {self.groups}")


@setting()
class RequestClass:
    """One class of a synthetic workload: its share of the requests and its lengths."""

    name: str
    weight: PositiveFloat
    prompt_tokens: Lengths
    output_tokens: Lengths


#: Keys of a synthetic workload that cannot be combined with a trace, and the errors, with similar keys for traces.
_NOT_BESIDE_TRACE = {
    name: f"describes a synthetic workload and cannot be combined with trace{hint}"
    for name, hint in {
        "arrivals": "; workload.rate_scale: 2 doubles the arrival rate of a trace",
        "requests": "; workload.limit keeps the first N requests of a trace",
        "duration": "; workload.time_window: [0s, 60s] keeps the first minute of a trace",
        "prompt_tokens": "",
        "output_tokens": "",
        "classes": "",
        "prompt_pool": "",
        "correlation": "",
    }.items()
}


@setting()
class Workload:
    """Requests: a recorded `trace`, or a synthetic workload (`arrivals`, lengths, and `requests` or `duration`).

    `rate_scale` 2 doubles the arrival rate; `time_window` keeps the arrivals from its start to just before its
    end, counted from the first arrival; `limit` keeps the first N; `max_concurrency` is the most requests that clients
    have under way. The window is applied before the limit, and the scaling last.
    """

    EXCLUDES: ClassVar[dict[str, dict[str, str]]] = {"trace": _NOT_BESIDE_TRACE}
    trace: str | None = None
    trace_format: Literal["auto", "azure", "native"] = "auto"
    arrivals: Arrivals | None = None
    requests: Count | None = None
    duration: PositiveDuration | None = None
    prompt_tokens: Lengths | None = None
    output_tokens: Lengths | None = None
    correlation: Annotated[float, Range(min=-1, max=1)] = 0.0
    classes: tuple[RequestClass, ...] | None = None
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
        for name, why in _NOT_BESIDE_TRACE.items():
            if getattr(self, name) not in (None, 0.0):
                raise ValueError(f"{name}: {why}")

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
        if self.classes == ():
            raise ValueError("classes: needs at least one class")
        if self.classes and any(lengths):
            raise ValueError("classes: has its own lengths; leave out prompt_tokens and output_tokens")
        if not self.classes and not all(lengths):
            raise ValueError("needs prompt_tokens and output_tokens, or classes")
