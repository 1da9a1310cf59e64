"""Limits of a scheduler's settings, in one form for every policy, which memory, engine and deployment read."""

from __future__ import annotations

from typing import Literal, NamedTuple

#: Position of a preempted sequence in the waiting queue: "front", "back", "order" (by arrival), "priority", or
#: "preempted_first" (preempted sequences before all others, by priority among themselves).
Requeue = Literal["front", "back", "order", "priority", "preempted_first"]


class Limits(NamedTuple):
    """Limits and rules of a scheduler.

    At most `max_num_seqs` sequences run, and a step has at most `max_num_batched_tokens` tokens, to which those of
    decodes count only with `decodes_count`.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    #: Context limit in tokens; None is the model's, "auto" the longest that fits the KV memory.
    max_model_len: int | Literal["auto"] | None
    #: Whether a prompt may be computed in several steps. If not, the tokens of a step must suffice for the longest one.
    chunked: bool
    prefix_caching: bool = False
    #: Order of freed blocks in the free list, with prefix caching (`memory.PrefixPool`).
    free_list: Literal["unhashed_first", "append"] = "unhashed_first"
    async_scheduling: bool = False
    #: Treatment of a request that could exceed the context limit, or the blocks of the whole pool.
    context_overflow: Literal["refuse", "cut"] = "refuse"
    pool_overflow: Literal["refuse", "wait"] = "refuse"
    #: Whether admission reserves the memory of a prompt and its `max_tokens`, even with paged memory.
    reserves: bool = False
    #: Whether blocks to completion are set aside for all running sequences, so that none is ever preempted.
    sets_aside: bool = False
    #: Whether admission counts blocks for a prompt and all of `max_tokens`, including the last token, whose KV no step
    #: computes.
    to_completion: bool = False
    #: Whether the policy uses the priorities of requests.
    by_priority: bool = False
    #: Longest prompt that is accepted, in tokens; None: any that fits the context.
    max_prompt_tokens: int | None = None
    #: Whether the engine starts only if one sequence of `max_model_len` fits the KV memory.
    checks_context: bool = False
    #: Bytes of memory for each sequence and vocabulary entry in the sampling of the profile run at start, if the engine
    #: needs more than `cost_models.memory.capacity.LOGIT_BYTES`.
    logit_bytes: int | None = None
    #: Position of a preempted sequence in the waiting queue.
    requeue: Requeue = "front"
    #: Most sequences that run, if lower than `max_num_seqs`, for which memory and CUDA graphs are sized.
    max_num_active_seqs: int | None = None
    #: Whether decodes count against `max_num_batched_tokens`.
    decodes_count: bool = False
    #: Share of the blocks that admission leaves free while any sequence runs. It is a share of the usable blocks and
    #: the `own_blocks` that the engine keeps for itself.
    watermark: float = 0.0
    own_blocks: int = 0
    #: Whether the hash of a block covers the token after it, where the drafter needs that token.
    lookahead_hashing: bool = True

    @property
    def max_running(self) -> int:
        """Most sequences that run at once."""
        return self.max_num_active_seqs or self.max_num_seqs

    def most_decodes(self, tokens: int = 1) -> int:
        """Return the most sequences that run if each decodes `tokens` tokens a step.

        A sequence is admitted only while the running ones leave token budget for it.
        """
        if not self.decodes_count:
            return self.max_running
        return min(self.max_running, -(-self.max_num_batched_tokens // tokens))

    def spare_blocks(self, kv_blocks: int) -> int:
        """Return the number of blocks that admission leaves free, of `kv_blocks` usable ones."""
        return int(self.watermark * (kv_blocks + self.own_blocks))
