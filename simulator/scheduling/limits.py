"""The limits of a scheduler's settings, which memory, engine and deployment need to know, for every policy alike."""

from __future__ import annotations

from typing import Literal, NamedTuple

#: The place of a preempted sequence in the waiting queue: its front, its back, or by arrival; with priorities by them,
#: or by them among the preempted sequences, which come first.
Requeue = Literal["front", "back", "order", "priority", "preempted_first"]


class Limits(NamedTuple):
    """`max_num_seqs` running sequences and `max_num_batched_tokens` tokens of a step are never exceeded, decodes aside
    where they do not count (`decodes_count`)."""

    max_num_seqs: int
    max_num_batched_tokens: int
    #: The context limit; None is the model's, "auto" the longest that fits the KV memory.
    max_model_len: int | Literal["auto"] | None
    #: May a prompt be computed in several steps? If not, the tokens of a step must suffice for the longest one.
    chunked: bool
    prefix_caching: bool = False
    #: Where freed blocks go, with prefix caching; see `memory.PrefixPool`.
    free_list: Literal["unhashed_first", "append"] = "unhashed_first"
    async_scheduling: bool = False
    #: What becomes of a request that could exceed the context limit, or the whole pool.
    context_overflow: Literal["refuse", "cut"] = "refuse"
    pool_overflow: Literal["refuse", "wait"] = "refuse"
    #: Is the memory of a prompt and its `max_tokens` reserved at admission, even where memory is paged?
    reserves: bool = False
    #: Are blocks to completion set aside for all that runs, so that nothing is ever preempted?
    sets_aside: bool = False
    #: Does admission count blocks for a prompt and all of `max_tokens`, the last token with them, whose KV no step
    #: computes?
    to_completion: bool = False
    #: Does the policy look at the priorities of requests?
    by_priority: bool = False
    #: The longest prompt that is taken in; None: any that fits the context.
    max_prompt_tokens: int | None = None
    #: Does the engine start only if one sequence of `max_model_len` fits the KV memory?
    checks_context: bool = False
    #: Bytes that a trial of sampling takes at start for each sequence and entry of the vocabulary, if the engine is
    #: known to need more than is counted (`cost_models.memory.capacity.LOGIT_BYTES`).
    logit_bytes: int | None = None
    #: Where a preempted sequence goes.
    requeue: Requeue = "front"
    #: At most so many sequences run, if that is fewer than memory and kernels are prepared for.
    max_num_active_seqs: int | None = None
    #: Do decodes count against `max_num_batched_tokens`?
    decodes_count: bool = False
    #: The share of the blocks that admission leaves free while something runs; of them `own_blocks` are the engine's.
    watermark: float = 0.0
    own_blocks: int = 0
    #: Whether the hash of a block covers the token after it, where the drafter needs that token.
    lookahead_hashing: bool = True

    @property
    def max_running(self) -> int:
        """The most sequences that run at once."""
        return self.max_num_active_seqs or self.max_num_seqs

    def most_decodes(self, tokens: int = 1) -> int:
        """The most sequences that run if each decodes `tokens` tokens a step, and one comes in only while others leave
        budget for it."""
        if not self.decodes_count:
            return self.max_running
        return min(self.max_running, -(-self.max_num_batched_tokens // tokens))

    def spare_blocks(self, kv_blocks: int) -> int:
        """The blocks that admission leaves free, of `kv_blocks` usable ones."""
        return int(self.watermark * (kv_blocks + self.own_blocks))
