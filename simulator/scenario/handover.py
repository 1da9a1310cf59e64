"""Disaggregated serving in a scenario: the pools that prefill, and the way of KV to the pools that decode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from simulator.scenario.field_types import Tagged
from simulator.scenario.numbers import NaturalInt, StepDuration
from simulator.scenario.quantities import Range
from simulator.scenario.routers import Router

#: What the software takes before the bytes of a group of layers. It is what makes prompts of 256 tokens 18% slower
#: (TTFT) layer by layer than as a whole, as sglang#23515 reports of Qwen2.5-72B over four GPUs and Mooncake, here with
#: one request at a time on H100; the report's GPUs are H20, and its sender leaves such prompts whole, so that its 18%
#: may have other causes, too. No report gives the time of a group itself.
GROUP_SETUP_NS = 400_000


@dataclass(frozen=True, slots=True)
class Always:
    """Every prompt is computed by the prefill pools."""

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "always"


@dataclass(frozen=True, slots=True)
class LongPrompt:
    """Prompts of which more than `uncached_tokens` are in no prefix cache of a replica that could serve them alone.

    The rule of Dynamo's conditional disaggregation (`max_local_prefill_length`).
    """

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "long_prompt"
    uncached_tokens: NaturalInt


@dataclass(frozen=True, slots=True)
class PrefillLoad:
    """Every prompt, unless each prefill replica has more than `max_tokens` of unfinished prompts.

    The rule of Dynamo's `max_prefill_queue_size`, in tokens.
    """

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "prefill_load"
    max_tokens: NaturalInt


Decider = Annotated[Always | LongPrompt | PrefillLoad, Tagged("policy", "always")]


@dataclass(frozen=True, slots=True)
class Handover:
    """The way of a request from the replica that computed its prompt to the one that decodes it.

    Both are chosen on arrival, the second one by `router` (without it, by the scenario's). `mode`: `pull` reserves the
    decode side's blocks when the prompt is computed (vLLM with NIXL); `push` before its prefill begins (SGLang), which
    `overlap: layerwise` needs: then layers travel while the next ones are computed. The prefill side holds its blocks
    until all have arrived.

    `first_token`: who delivers it. `prefill`: the prefill side, at once (DistServe). `transfer`: the decode side, when
    the KV has arrived (SGLang). `decode`: the decode side computes the last prompt token again (vLLM with NIXL).

    Layer by layer, `layers_per_group` layers (1) travel together, and each group has `group_setup` (`GROUP_SETUP_NS`)
    of the software's before its first byte, one group after the other. With short prompts all of them last longer than
    what they hide.

    `setup` is what a transfer takes before its first byte, on top of the links' latency. A prefill replica has at most
    `max_concurrent` transfers under way, set-up included. A block is `descriptors_per_block` transfers of the network
    (by default one a layer for keys and one for values, or one for both in MLA).

    A transfer fails with probability `failure_rate` when its last byte is due. It is then tried again, at most
    `max_retries` times; after that the decode side computes the prompt itself.
    """

    decider: Decider = Always()
    mode: Literal["pull", "push"] = "pull"
    overlap: Literal["none", "layerwise"] = "none"
    first_token: Literal["prefill", "transfer", "decode"] = "decode"
    router: Router | None = None
    setup: StepDuration = 0
    layers_per_group: Annotated[int, Range(min=1, max=10**4)] | None = None
    group_setup: StepDuration | None = None
    max_concurrent: Annotated[int, Range(min=1, max=10**6)] | None = None
    descriptors_per_block: Annotated[int, Range(min=1, max=10**6)] | None = None
    failure_rate: Annotated[float, Range(min=0, below=1)] = 0.0
    max_retries: NaturalInt = 0

    def __post_init__(self) -> None:
        for name, default in (("layers_per_group", 1), ("group_setup", GROUP_SETUP_NS)):
            if self.overlap != "layerwise":
                if getattr(self, name) is not None:
                    raise ValueError(f"{name}: has a meaning with overlap: layerwise only")
            elif getattr(self, name) is None:
                object.__setattr__(self, name, default)
        if self.overlap == "layerwise" and self.max_concurrent is not None:
            raise ValueError(
                "max_concurrent: cannot go with overlap: layerwise, whose transfers last as long as prefills"
            )
        if self.overlap == "layerwise" and self.mode != "push":
            raise ValueError(
                "overlap: layerwise needs mode: push, for layers to have a place before the prompt is computed"
            )
