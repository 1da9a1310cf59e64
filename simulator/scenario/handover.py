"""Disaggregated serving in a scenario: the choice of prompts for prefill pools, and the transfer of their KV."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from simulator.scenario.field_types import Tagged
from simulator.scenario.numbers import NaturalInt, StepDuration
from simulator.scenario.quantities import Range
from simulator.scenario.routers import Router
from simulator.scenario.setting import setting

#: Time of the software before the bytes of a group of layers. It was set so that prompts of 256 tokens have an 18%
#: longer TTFT layer by layer than as a whole, as sglang#23515 reports for Qwen2.5-72B over four GPUs with Mooncake;
#: here with one request at a time on H100. The report's GPUs are H20, and its sender does not split such prompts, so
#: that its 18% may have other causes, too. No report gives the time of a group itself.
GROUP_SETUP_NS = 400_000


@setting()
class Always:
    """Prefill pools compute every prompt."""

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "always"


@setting()
class LongPrompt:
    """Prefill pools compute prompts with more than `uncached_tokens` tokens outside the prefix cache of each replica
    that could serve them alone.

    This is the rule of Dynamo's conditional disaggregation (`max_local_prefill_length`).
    """

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "long_prompt"
    uncached_tokens: NaturalInt


@setting()
class PrefillLoad:
    """Prefill pools compute every prompt, unless each prefill replica has more than `max_tokens` of unfinished prompts.

    This is the rule of Dynamo's `max_prefill_queue_size`, in tokens.
    """

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "prefill_load"
    max_tokens: NaturalInt


Decider = Annotated[Always | LongPrompt | PrefillLoad, Tagged("policy", "always")]


@setting()
class Handover:
    """Handover of a request from the replica that computes its prompt to the replica that decodes it.

    Both replicas are chosen on arrival, the second by `router` (default: the scenario's). `mode`: `pull` reserves the
    decode side's blocks when the prompt is computed (vLLM with NIXL); `push` reserves them before the prefill begins
    (SGLang). `overlap: layerwise`, which needs `push`, sends layers while the next ones are computed. The prefill side
    holds its blocks until all have arrived.

    `first_token`: `prefill` delivers it from the prefill side, at once (DistServe); `transfer` from the decode side,
    when the KV has arrived (SGLang); with `decode`, the decode side computes the last prompt token again (vLLM with
    NIXL).

    Layerwise, `layers_per_group` layers (1) are sent together, and each group needs `group_setup` (`GROUP_SETUP_NS`) of
    software time before its first byte, one group after the other. For short prompts, these times add up to more than
    the overlap saves.

    `setup` is the time of a transfer before its first byte, beside the links' latency. A prefill replica has at most
    `max_concurrent` transfers at a time, those in set-up included. A block is `descriptors_per_block` transfers of the
    network (by default one a layer for keys and one for values, or one for both in MLA).

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
                    raise ValueError(f"{name}: has an effect only with overlap: layerwise")
            elif getattr(self, name) is None:
                object.__setattr__(self, name, default)
        if self.overlap == "layerwise" and self.max_concurrent is not None:
            raise ValueError(
                "max_concurrent: cannot be combined with overlap: layerwise, whose transfers last as long as prefills"
            )
        if self.overlap == "layerwise" and self.mode != "push":
            raise ValueError("overlap: layerwise needs mode: push, which reserves blocks before the prompt is computed")
