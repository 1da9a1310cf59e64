"""Assumptions where measured rows lack a value. Each is printed with the results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.scenario.lengths import Fixed, Lengths, LogNormal, Quantiles
from simulator.validation.setting import Engine

#: (max_num_seqs, max_num_batched_tokens) of a server if they are not stated. vLLM's depend on the GPU and the version,
#: and are filled in where these are known.
_BATCHES: dict[Engine, tuple[int | None, int | None]] = {
    "vllm": (None, None),
    "tensorrt_llm": (2048, 8192),
    "sglang": (1024, 8192),
}
#: The same of vLLM when called in the client's process on an A100 (`EngineArgs.get_batch_defaults`).
_IN_PROCESS = (256, 8192)
#: Number of requests of a closed loop: for each client, and at least in all.
_PER_CLIENT, _LEAST = 10, 200
#: Coefficient of variation of lengths that were re-tokenised after they had been drawn: about 1%.
_NOMINAL_CV = 0.01
#: Model families whose tokeniser adds a token at the beginning of a prompt.
_BEGIN_TOKEN = ("llama", "mistral", "mixtral", "gemma", "deepseek")
#: Part of the provenance of closed loops that aiconfigurator's authors ran to check it.
_EQUAL_CLIENTS = "aic-auto-gap-analysis"


def engine_of(name: str) -> Engine | None:
    """Return the engine that a row names; None for an unknown one."""
    name = name.lower()
    if name.startswith("vllm"):
        return "vllm"
    if name.startswith("sglang"):
        return "sglang"
    return "tensorrt_llm" if name.startswith("trtllm") or "tensorrt" in name else None


def batch_defaults(engine: Engine, in_process: bool) -> tuple[int | None, int | None]:
    """Return (max_num_seqs, max_num_batched_tokens) of a server if not stated; None for the engine's own default."""
    return _IN_PROCESS if in_process and engine == "vllm" else _BATCHES[engine]


@dataclass(frozen=True, slots=True)
class Clients:
    """Assumed behaviour of the clients of a closed loop.

    With `equal` lengths, all clients start at the same time, and all requests count; their requests then stay in step
    with each other. Else lengths are spread about the nominal ones, so that requests lose step, and the first request
    of each client is left out.
    """

    concurrency: int
    equal: bool

    @property
    def warmup(self) -> int:
        """Number of first requests that are not measured."""
        return 0 if self.equal else self.concurrency

    @property
    def requests(self) -> int:
        """Number of requests of all clients, if the row does not state it."""
        return max(_PER_CLIENT * self.concurrency, _LEAST)

    def budget(self, engine: Engine, prompt_tokens: float) -> int | None:
        """Return the token budget of a step, if the source's engines did not have the default: one prompt and the
        decodes of all other clients, the mixed step in aiconfigurator's plans."""
        if not self.equal or engine == "sglang":
            return None
        return round(prompt_tokens) + self.concurrency - 1

    def assumptions(self, engine: Engine) -> list[str]:
        """Return the assumptions in words."""
        if not self.equal:
            return ["closed loop: nominal lengths spread by 1%, the first request of each client left out"]
        found = ["closed loop of aiconfigurator: clients with equal lengths start at once, all requests count"]
        if engine != "sglang":
            found.append("closed loop of aiconfigurator: a step has room for one prompt and the other clients' decodes")
        return found


def clients_of(concurrency: int | None, provenance: str) -> Clients | None:
    """Return the clients of a closed loop; None for an open one."""
    return None if concurrency is None else Clients(concurrency, _EQUAL_CLIENTS in provenance)


def prompt_law(mean: float, model: str, clients: Clients | None, shared: bool) -> Lengths:
    """Return the law of prompt lengths with the row's mean; `shared`: prompts of a pool, tokenised again."""
    if clients is not None and clients.equal:
        return Fixed(round(mean) + any(family in model.lower() for family in _BEGIN_TOKEN))
    return LogNormal(mean=mean, cv=_NOMINAL_CV) if shared or clients is not None else Fixed(max(1, round(mean)))


def output_law(mean: float, clients: Clients | None) -> Lengths:
    """Return the law of output lengths with the row's mean."""
    if clients is None or clients.equal:
        return Fixed(max(1, round(mean)))
    return LogNormal(mean=mean, cv=_NOMINAL_CV)


def quantile_law(given: Sequence[tuple[float, int]], most: int | None = None) -> Quantiles:
    """Return the law of lengths with the given quantiles, as (probability, length): two or more, rising.

    The log of the length is linear in the probability between them. Below the first quantile it continues with the
    slope of the first two; the last quantile is the maximum.
    """
    (low, first), (high, second) = given[:2]
    slope = math.log(second / first) / (high - low)
    points = [(0.0, max(1, round(first * math.exp(-slope * low)))), *given, (1.0, given[-1][1])]
    return Quantiles(points=tuple(points), max=most)
