"""Settings of the batch policies: the key `scheduler` of a pool.

Each class uses the names of its engine or paper. Common settings have vLLM's names: `max_num_seqs` running sequences,
`max_num_batched_tokens` tokens of a step, and the context limit `max_model_len` (None: the model's). A policy with
`RESERVES` reserves memory for a prompt and all of its `max_tokens` at admission; one with `SPECULATES` can schedule
drafts.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from simulator.scenario.field_types import Tagged
from simulator.scenario.numbers import NaturalInt, Tokens
from simulator.scenario.quantities import Range
from simulator.scenario.setting import setting

#: `auto` is the longest context that fits the KV memory, at most the model's own limit.
ContextLimit = Literal["auto"] | Tokens
_Sequences = Annotated[int, Range(min=1, max=10**6)]
_StepTokens = Annotated[int, Range(min=1, max=10**9)]
_Watermark = Annotated[float, Range(min=0, below=1)]
#: Default of `max_num_batched_tokens`, that of vLLM on large GPUs, for every engine but those with their own.
_STEP_TOKENS = 8192

#: Defaults of a version of the engine that do not depend on the GPU and the pool; `scheduling/defaults.py` has the
#: others. The rules of 0.33 are those of recordings; those of 0.10 differ as public reports say (vllm#21793, #37307 and
#: #42656 describe the later changes). `none` is no version of vLLM: synchronous, without prefix caching, the same on
#: every GPU.
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
        "max_num_batched_tokens": _STEP_TOKENS,
    },
}


@setting()
class VllmScheduler:
    """Continuous batching with chunked prefill as in vLLM V1; names and meanings are vLLM's own.

    None stands for the default of `version`. The defaults of batch sizes, asynchronous scheduling and prefix caching
    also depend on the GPU and the pool: `scheduling.with_engine_defaults` fills them in. `free_list`: freed blocks
    without reusable content go to the front of the free list (`unhashed_first`), or all freed blocks to its back
    (`append`). `lookahead_hashing`: with EAGLE and MTP, whose drafter needs the token after each, a block's hash covers
    the token after the block; without it, the last block that matches is computed again.

    The settings from `context_overflow` on have no counterpart in vLLM, or a fixed one, which is the default.
    `context_overflow`: a request that could exceed `max_model_len` is refused, or its output is cut there.
    `pool_overflow`: a request that could exceed the whole pool is refused, or waits without end, as in vLLM.
    `preemption_victim`: the sequence admitted last, or the one with the fewest computed tokens. `preempted_first`: with
    priorities, preempted requests are admitted before new ones, whatever their priorities. `max_num_partial_prefills`:
    most prompts that may be partly computed at a time.
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
            raise ValueError("preempted_first: has an effect only with scheduling_policy: priority")
        if self.preemption_victim != "last" and self.scheduling_policy != "fcfs":
            raise ValueError("preemption_victim: has an effect only with scheduling_policy: fcfs")


@setting()
class StaticScheduler:
    """Static batching: a batch is formed of waiting requests when nothing runs, and the next one when it has ended.

    `padded`: a step computes a row for each sequence of the batch, ended or not, and each prompt at the length of the
    longest, as engines without kernels for ragged batches do.
    """

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "static"
    RESERVES: ClassVar[bool] = True
    SPECULATES: ClassVar[bool] = False
    max_num_seqs: _Sequences = 8
    max_num_batched_tokens: _StepTokens = _STEP_TOKENS
    max_model_len: ContextLimit | None = None
    padded: bool = False


@setting()
class OrcaScheduler:
    """Iteration-level scheduling as in Orca: whole prompts and decodes in one step, first come, first served.

    `max_num_seqs` is its `max_bs`. Memory for the prompt and `max_tokens` is reserved at admission, so that nothing is
    ever preempted. Orca does not limit the tokens of a step; here the limit is that of the memory for activations.
    """

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "orca"
    RESERVES: ClassVar[bool] = True
    SPECULATES: ClassVar[bool] = True
    max_num_seqs: _Sequences = 256
    max_num_batched_tokens: _StepTokens = _STEP_TOKENS
    max_model_len: ContextLimit | None = None


@setting()
class PrefillFirstScheduler:
    """vLLM V0 without chunked prefill: prompts first, whole and in steps of their own, while decodes pause.

    `watermark`: the share of the blocks that admission leaves free.
    """

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "prefill_first"
    RESERVES: ClassVar[bool] = False
    SPECULATES: ClassVar[bool] = True
    max_num_seqs: _Sequences = 256
    max_num_batched_tokens: _StepTokens = _STEP_TOKENS
    max_model_len: ContextLimit | None = None
    watermark: _Watermark = 0.01


@setting()
class SarathiScheduler:
    """Sarathi-Serve: every decode, then prompts in chunks, up to its token budget `max_num_batched_tokens`.

    `batching: alternating` has steps of chunks and steps of decodes in turn (the paper's chunked-prefills-only);
    `chunked: false` computes a prompt in one step, with the decodes (its hybrid-batching-only).
    """

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "sarathi"
    RESERVES: ClassVar[bool] = False
    SPECULATES: ClassVar[bool] = True
    max_num_seqs: _Sequences = 128
    max_num_batched_tokens: _StepTokens = 512
    max_model_len: ContextLimit | None = None
    chunked: bool = True
    batching: Literal["hybrid", "alternating"] = "hybrid"
    watermark: _Watermark = 0.01


@setting()
class DistServeScheduler:
    """Instances of DistServe: prefill in batches of whole prompts, or decode; both first come, first served."""

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "distserve"
    RESERVES: ClassVar[bool] = False
    SPECULATES: ClassVar[bool] = True
    max_num_seqs: _Sequences = 256
    max_num_batched_tokens: _StepTokens = _STEP_TOKENS
    max_model_len: ContextLimit | None = None


@setting()
class SglangScheduler:
    """Prefill steps before decode steps, as in SGLang; `max_num_seqs` is its `max_running_requests`, and
    `max_num_batched_tokens` its `chunked_prefill_size`.

    The defaults are those of its server on GPUs of 35 to 160 GB; those for None depend on the pool, too
    (`scheduling/defaults.py`). `async_scheduling` is its overlap scheduler, `enable_prefix_caching` its radix cache.
    `schedule_policy`: the waiting queue is sorted by the longest cached prefix (`lpm`, with the radix cache only), or
    first come, first served. `max_prefill_tokens`: prompt tokens of a step, if it has several prompts.
    `schedule_conservativeness` scales the share of its allowed output that a running request is first expected to need.
    `enable_mixed_chunk`: decodes run with prompts instead of pausing.
    """

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "sglang"
    RESERVES: ClassVar[bool] = False
    SPECULATES: ClassVar[bool] = True
    max_num_seqs: _Sequences | None = None
    max_num_batched_tokens: _StepTokens = _STEP_TOKENS
    max_model_len: ContextLimit | None = None
    schedule_policy: Literal["lpm", "fcfs"] = "lpm"
    max_prefill_tokens: _StepTokens = 16384
    schedule_conservativeness: Annotated[float, Range(above=0, max=10)] = 1.0
    enable_mixed_chunk: bool = False
    async_scheduling: bool | None = None
    enable_prefix_caching: bool = True


@setting()
class TensorRtLlmScheduler:
    """Inflight batching as in TensorRT-LLM; `max_num_seqs` is its `max_batch_size`, and `max_num_batched_tokens` its
    `max_num_tokens`.

    `capacity_scheduler_policy`: the free KV memory that a request needs for admission. `enable_chunked_context`: a
    prompt may take several steps. `async_scheduling` is the overlap scheduler of its PyTorch backend.
    """

    TAG_KEY: ClassVar[str] = "policy"
    TAG: ClassVar[str] = "tensorrt_llm"
    RESERVES: ClassVar[bool] = False
    SPECULATES: ClassVar[bool] = True
    max_num_seqs: _Sequences = 2048
    max_num_batched_tokens: _StepTokens = _STEP_TOKENS
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
