"""The settings of the batch policies: what `scheduler` can say in a pool of a scenario.

Each class has the names of its engine or paper; what all of them have is called as in vLLM: `max_num_seqs` running
sequences, `max_num_batched_tokens` tokens of a step, and the context limit `max_model_len` (None: the model's). Those
that say `RESERVES` have memory for a prompt and all of its `max_tokens` reserved at admission. Those that say
`SPECULATES` can schedule drafts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from simulator.scenario.field_types import Tagged
from simulator.scenario.numbers import NaturalInt, Tokens
from simulator.scenario.quantities import Range

#: `auto` is the longest that fits the KV memory, up to the model's own.
ContextLimit = Literal["auto"] | Tokens
_Sequences = Annotated[int, Range(min=1, max=10**6)]
_StepTokens = Annotated[int, Range(min=1, max=10**9)]
_Watermark = Annotated[float, Range(min=0, below=1)]

#: What a version of the engine sets where the scenario does not, whatever the GPU and the pool. The rules of 0.33 are
#: those of recordings; what 0.10 did otherwise is what public reports say of it (vllm#21793, #37307 and #42656 describe
#: the later changes). `none` is no version of vLLM: synchronous, without prefix caching, the same on every GPU.
#: What else a version sets depends on the pool, too: `scheduling/defaults.py`.
VERSIONS: dict[str, dict[str, bool | int | str]] = {
    "vllm-0.33": {"scheduler_reserve_full_isl": True, "free_list": "unhashed_first", "lookahead_hashing": True},
    "vllm-0.10": {"scheduler_reserve_full_isl": False, "free_list": "append", "lookahead_hashing": False},
    "none": {
        "scheduler_reserve_full_isl": True,
        "free_list": "unhashed_first",
        "lookahead_hashing": True,
        "async_scheduling": False,
        "enable_prefix_caching": False,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
    },
}


@dataclass(frozen=True, slots=True)
class VllmScheduler:
    """Continuous batching with chunked prefill as in vLLM V1; names and meanings are vLLM's own.

    None stands for the default of `version`, the newest one that is modelled unless given. Which batch sizes that is,
    and whether scheduling is asynchronous and prefixes are cached, depends on the GPU and the pool:
    `scheduling.with_engine_defaults` fills them in. `free_list`: freed blocks without reusable content go to the front
    of the free list, or all freed blocks to its back. `lookahead_hashing`: with EAGLE and MTP, whose drafter needs the
    token after each, a block's hash covers the token after the block; else the last block that matches is computed
    again.

    The last group has no counterpart in vLLM, or a fixed one, which is the default. `context_overflow`: a request that
    could exceed `max_model_len` is refused, or its output cut there. `pool_overflow`: one that could exceed the whole
    pool is refused, or waits for ever, as in vLLM's scheduler. `preemption_victim`: the sequence admitted last, or the
    one with the fewest computed tokens. `preempted_first`: with priorities, what was preempted is admitted before what
    never ran, whatever the priorities. `max_num_partial_prefills`: at most so many prompts are partly computed.
    """

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "vllm"
    RESERVES: ClassVar[bool] = False
    SPECULATES: ClassVar[bool] = True
    version: Literal["vllm-0.33", "vllm-0.10", "none"] = "vllm-0.33"
    max_num_seqs: _Sequences | None = None
    max_num_active_seqs: _Sequences | None = None
    max_num_batched_tokens: _StepTokens | None = None
    max_model_len: ContextLimit | None = None
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: NaturalInt = 0
    long_prefill_token_threshold_adaptive: bool = False
    prefill_schedule_interval: Annotated[int, Range(min=1, max=10**6)] = 1
    scheduler_reserve_full_isl: bool | None = None
    watermark: _Watermark = 0.0
    async_scheduling: bool | None = None
    enable_prefix_caching: bool | None = None
    free_list: Literal["unhashed_first", "append"] | None = None
    lookahead_hashing: bool | None = None
    context_overflow: Literal["refuse", "cut"] = "refuse"
    pool_overflow: Literal["refuse", "wait"] = "refuse"
    preemption_victim: Literal["last", "least_computed"] = "last"
    preempted_first: bool = False
    max_num_partial_prefills: _Sequences | None = None

    def __post_init__(self) -> None:
        for name, value in VERSIONS[self.version].items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        if self.preempted_first and self.scheduling_policy != "priority":
            raise ValueError("preempted_first: has a meaning with scheduling_policy: priority only")
        if self.preemption_victim != "last" and self.scheduling_policy != "fcfs":
            raise ValueError("preemption_victim: has a meaning with scheduling_policy: fcfs only")


@dataclass(frozen=True, slots=True)
class StaticScheduler:
    """A batch is formed once, of what waits when nothing runs, and the next one when its last sequence has ended.

    `padded`: a step computes a row for each sequence of the batch, ended or not, and each prompt at the length of the
    longest, as without kernels for ragged batches.
    """

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "static"
    RESERVES: ClassVar[bool] = True
    SPECULATES: ClassVar[bool] = False
    max_num_seqs: _Sequences = 8
    max_num_batched_tokens: _StepTokens = 8192
    max_model_len: ContextLimit | None = None
    padded: bool = False


@dataclass(frozen=True, slots=True)
class OrcaScheduler:
    """Iteration-level scheduling as in Orca: whole prompts and decodes in one step, first come, first served.

    `max_num_seqs` is its `max_bs`. Memory for the prompt and `max_tokens` is reserved at admission, so that nothing is
    ever preempted. Orca sets no limit to the tokens of a step; here it is what activations have room for.
    """

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "orca"
    RESERVES: ClassVar[bool] = True
    SPECULATES: ClassVar[bool] = False
    max_num_seqs: _Sequences = 256
    max_num_batched_tokens: _StepTokens = 8192
    max_model_len: ContextLimit | None = None


@dataclass(frozen=True, slots=True)
class PrefillFirstScheduler:
    """vLLM V0 without chunked prefill: prompts first, whole and in steps of their own, while decodes stand still.

    `watermark`: the share of the blocks that admission leaves free.
    """

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "prefill_first"
    RESERVES: ClassVar[bool] = False
    SPECULATES: ClassVar[bool] = False
    max_num_seqs: _Sequences = 256
    max_num_batched_tokens: _StepTokens = 8192
    max_model_len: ContextLimit | None = None
    watermark: _Watermark = 0.01


@dataclass(frozen=True, slots=True)
class SarathiScheduler:
    """Sarathi-Serve: every decode, then prompts in chunks, up to its token budget `max_num_batched_tokens`.

    `batching: alternating` has steps of chunks and steps of decodes in turn (the paper's chunked-prefills-only);
    `chunked: false` computes a prompt in one step, beside the decodes (its hybrid-batching-only).
    """

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "sarathi"
    RESERVES: ClassVar[bool] = False
    SPECULATES: ClassVar[bool] = False
    max_num_seqs: _Sequences = 128
    max_num_batched_tokens: _StepTokens = 512
    max_model_len: ContextLimit | None = None
    chunked: bool = True
    batching: Literal["hybrid", "alternating"] = "hybrid"
    watermark: _Watermark = 0.01


@dataclass(frozen=True, slots=True)
class DistServeScheduler:
    """The instances of DistServe: prefill in batches of whole prompts, or decode, each first come, first served."""

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "distserve"
    RESERVES: ClassVar[bool] = False
    SPECULATES: ClassVar[bool] = False
    max_num_seqs: _Sequences = 256
    max_num_batched_tokens: _StepTokens = 8192
    max_model_len: ContextLimit | None = None


@dataclass(frozen=True, slots=True)
class SglangScheduler:
    """Prefill steps before decode steps, as SGLang has it; `max_num_seqs` is its `max_running_requests`, and
    `max_num_batched_tokens` its `chunked_prefill_size`.

    The defaults are those of its server on GPUs of 35 to 160 GB: `async_scheduling` is its overlap scheduler,
    `enable_prefix_caching` its radix cache. `schedule_policy`: the waiting queue by the longest cached prefix (`lpm`,
    with the radix cache only), or as it is. `max_prefill_tokens`: prompt tokens of a step, if it has several prompts.
    `schedule_conservativeness` scales how much of its allowed output a running request is expected to need at first.
    `enable_mixed_chunk`: decodes run beside prompts instead of standing still.
    """

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "sglang"
    RESERVES: ClassVar[bool] = False
    SPECULATES: ClassVar[bool] = False
    max_num_seqs: _Sequences = 1024
    max_num_batched_tokens: _StepTokens = 8192
    max_model_len: ContextLimit | None = None
    schedule_policy: Literal["lpm", "fcfs"] = "lpm"
    max_prefill_tokens: _StepTokens = 16384
    schedule_conservativeness: Annotated[float, Range(above=0, max=10)] = 1.0
    enable_mixed_chunk: bool = False
    async_scheduling: bool = True
    enable_prefix_caching: bool = True


@dataclass(frozen=True, slots=True)
class TensorRtLlmScheduler:
    """Inflight batching as in TensorRT-LLM; `max_num_seqs` is its `max_batch_size`, and `max_num_batched_tokens` its
    `max_num_tokens`.

    `capacity_scheduler_policy`: what a request must find free in the KV cache. `enable_chunked_context`: a prompt may
    take several steps. `async_scheduling` is the overlap scheduler of its PyTorch backend.
    """

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "tensorrt_llm"
    RESERVES: ClassVar[bool] = False
    SPECULATES: ClassVar[bool] = False
    max_num_seqs: _Sequences = 2048
    max_num_batched_tokens: _StepTokens = 8192
    max_model_len: ContextLimit | None = None
    capacity_scheduler_policy: Literal["GUARANTEED_NO_EVICT", "MAX_UTILIZATION", "STATIC_BATCH"] = "GUARANTEED_NO_EVICT"
    enable_chunked_context: bool = False
    async_scheduling: bool = True


Scheduler = Annotated[
    VllmScheduler
    | SglangScheduler
    | TensorRtLlmScheduler
    | StaticScheduler
    | OrcaScheduler
    | PrefillFirstScheduler
    | SarathiScheduler
    | DistServeScheduler,
    Tagged("policy", "vllm"),
]
