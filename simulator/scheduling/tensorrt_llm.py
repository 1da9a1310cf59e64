"""Inflight batching of TensorRT-LLM 0.16 to 1.x (`batch_manager/capacityScheduler.cpp` and `microBatchScheduler.cpp`,
which the PyTorch backend's `scheduler.py` calls, too).

Each step has two passes. The capacity pass goes through the requests in order of arrival and selects those that fit the
KV cache, by one of three policies:

- GUARANTEED_NO_EVICT: blocks to completion (prompt and `max_tokens`) of every running request are set aside; waiting
  ones are admitted in order while theirs fit the rest. The first that does not fit ends the pass. No request is paused.
  The count includes the last token, whose KV is never written (`getRemainingBlocksToCompletion`).
- MAX_UTILIZATION: only the blocks of one step count. If those of a request do not fit, the request started last is
  paused (it is computed again later) and the attempt repeated; after a pause no request is admitted. A waiting request
  that does not fit ends the pass.
- STATIC_BATCH: as the first, but requests are admitted only when none runs.

For a request whose KV is being transferred from a prefill replica, blocks to completion are set aside, too, since it
will run here; for one whose KV is still to be fetched by another replica, only the blocks that it holds.

The micro-batch pass then distributes the step's tokens: to each generating request one and those of its drafts, the
rest to prompts in order. A prompt is computed whole, or in chunks with `enable_chunked_context`; the first that gets no
tokens ends the pass.

With chunked context, MAX_UTILIZATION counts and allocates the blocks of a prompt chunk by chunk, as the KV cache
manager V2 of 1.2 does; older managers allocate those of the whole prompt with its first chunk. Left out: reuse of
blocks (and the delay of a request that could reuse blocks that another will write), the EQUAL_PROGRESS chunking policy,
beams, LoRA pages, and the look-ahead of two steps with several micro-batches.
"""

from __future__ import annotations

from simulator.memory import BlockPool
from simulator.scenario.schedulers import TensorRtLlmScheduler, VllmScheduler
from simulator.scheduling.limits import Limits
from simulator.scheduling.plan import STEADY, Plan, View
from simulator.scheduling.sequence import SequenceState
from simulator.scheduling.setup import PolicySetup
from simulator.scheduling.vllm import Chunks, VllmPolicy


class TensorRtLlmPolicy(VllmPolicy):
    """TensorRT-LLM's scheduler, with its settings (`TensorRtLlmScheduler`).

    Running requests are scheduled as in vLLM: in order of admission, which is that of arrival, and the last one is
    preempted if blocks do not suffice. With the two policies that set blocks aside, they always suffice.
    """

    def __init__(self, setup: PolicySetup) -> None:
        settings: TensorRtLlmScheduler = setup.settings
        as_vllm = VllmScheduler(
            version="none",
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            enable_chunked_prefill=settings.enable_chunked_context,
        )
        super().__init__(PolicySetup(as_vllm, setup.kv_blocks))
        self._capacity = settings.capacity_scheduler_policy
        #: Drafts of a request in the steps in flight, for which blocks are set aside, too.
        self._drafts = setup.speculation.k * (1 + settings.async_scheduling) if setup.speculation else 0
        #: Blocks set aside for the running requests, and the counts for which this sum is valid.
        self._aside, self._aside_for = 0, (-1, -1, -1)

    @staticmethod
    def limits(settings: TensorRtLlmScheduler) -> Limits:
        """Return the limits of the settings.

        A prompt must fit one step if it is neither computed in chunks nor, with generated tokens, computed again.
        """
        whole = not settings.enable_chunked_context and settings.capacity_scheduler_policy != "MAX_UTILIZATION"
        return Limits(
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_model_len=settings.max_model_len,
            chunked=settings.enable_chunked_context,
            async_scheduling=settings.async_scheduling,
            max_prompt_tokens=settings.max_num_batched_tokens if whole else None,
            sets_aside=settings.capacity_scheduler_policy == "GUARANTEED_NO_EVICT",
            to_completion=settings.capacity_scheduler_policy != "MAX_UTILIZATION",
            requeue="order",
            decodes_count=True,
        )

    def _admit(
        self, view: View, pool: BlockPool, chunks: Chunks, budget: int, held: list[SequenceState] | tuple[()]
    ) -> Plan:
        """Admit waiting requests, in order, until one does not fit."""
        admitted: list[SequenceState] = []
        running, room = view.running, -1
        for seq in view.waiting:
            tokens = min(seq.target, budget) if self._chunked else seq.target
            if running >= self._max_num_seqs or not 0 < tokens <= budget:
                break
            if not admitted:
                room = self._available_blocks(view, pool)
            needed = self._needed_blocks(seq, tokens, pool)
            if needed > room:
                break
            pool.allocate(seq, tokens)
            admitted.append(seq)
            chunks.append((seq, tokens))
            room -= needed
            budget -= tokens
            running += 1
        return Plan((), admitted, chunks, held) if chunks or held else STEADY

    def _needed_blocks(self, seq: SequenceState, tokens: int, pool: BlockPool) -> int:
        """Return the blocks that a waiting request needs for admission, if the next step computes `tokens` of it."""
        return pool.demand(seq, tokens if self._capacity == "MAX_UTILIZATION" else self._to_completion(seq))

    def _to_completion(self, seq: SequenceState) -> int:
        """Return the most tokens of a request for which blocks are allocated."""
        return seq.prompt_tokens + seq.max_tokens + self._drafts

    def _available_blocks(self, view: View, pool: BlockPool) -> int:
        """Return the number of blocks for waiting requests."""
        if self._capacity == "MAX_UTILIZATION":
            return pool.free
        if self._capacity == "STATIC_BATCH" and view.running:
            return 0
        outside = sum(self._set_aside(seq, pool) for seq in view.outside.values())
        return pool.blocks - outside - self._set_aside_for_running(view, pool)

    def _set_aside_for_running(self, view: View, pool: BlockPool) -> int:
        """Return the blocks set aside for all running requests.

        Between two admissions requests only leave, or get their last step, so that the sum is the same as long as
        three counts are.
        """
        if view.decodes is None:
            return sum(self._set_aside(seq, pool) for seq in view.oldest_first())
        state = (view.admissions, view.running, view.decodes + len(view.prefilling))
        if state != self._aside_for:
            self._aside_for = state
            self._aside = sum(self._set_aside(seq, pool) for seq in view.oldest_first())
        return self._aside

    def _set_aside(self, seq: SequenceState, pool: BlockPool) -> int:
        """Return the blocks to completion of a request, or those that it holds if it has no more tokens to compute."""
        return pool.demand(seq, self._to_completion(seq)) if seq.todo else seq.blocks
