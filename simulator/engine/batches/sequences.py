"""Factories of the sequence type that an engine core's batch needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar

import numpy as np

from simulator.engine.logs.request_log import RequestLog
from simulator.memory import text_keys
from simulator.scheduling import ContentSequence, RankedSequence, SequenceState
from simulator.workload.requests import Ints, RequestTable

R = TypeVar("R", bound=RankedSequence)

#: Number of prompts whose keys are cached, for later requests with the same texts.
_PROMPTS = 1024


def plain_maker(table: RequestTable) -> Callable[[int], SequenceState]:
    """Return a factory of sequences with the lengths of a request only."""
    prompts, limits = _numbers(table.prompt_tokens), _numbers(table.max_tokens)
    return lambda index: SequenceState(index, prompts[index], limits[index])


def content_maker(table: RequestTable, block_size: int, next_token: int) -> Callable[[int], ContentSequence]:
    """Return a factory of sequences with the shared blocks of the prompt.

    `next_token` is 1 if the hash of a block covers the token after it, else 0.
    """
    prompts, limits = _numbers(table.prompt_tokens), _numbers(table.max_tokens)
    shared = _shared_keys(table, block_size, next_token)

    def make(index: int) -> ContentSequence:
        return ContentSequence(index, prompts[index], limits[index], shared(index))

    return make


def ranked_maker(
    kind: type[R], table: RequestTable, log: RequestLog, block_size: int, next_token: int
) -> Callable[[int], R]:
    """Return a factory of sequences of class `kind`, with priority and shared blocks; else as `content_maker`."""
    prompts, limits = _numbers(table.prompt_tokens), _numbers(table.max_tokens)
    shared, priorities = _shared_keys(table, block_size, next_token), table.extras.get("priority")

    def make(index: int) -> R:
        rank = (0 if priorities is None else int(priorities[index]), log.arrival_ns[index])
        return kind(index, prompts[index], limits[index], rank, shared(index))

    return make


def _shared_keys(table: RequestTable, block_size: int, next_token: int) -> Callable[[int], Sequence[int]]:
    """Return a function of a request that gives the keys of the leading blocks that its prompt shares with others."""
    prompts, prefixes, prefix_tokens, pool_prompts = (
        _numbers(column) for column in (table.prompt_tokens, table.prefix_id, table.prefix_tokens, table.prompt_id)
    )

    @lru_cache(_PROMPTS)
    def keys(*texts: tuple[int, int]) -> tuple[int, ...]:
        return tuple(text_keys(texts, texts[-1][1], block_size, next_token))

    def shared(index: int) -> Sequence[int]:
        prompt, texts = prompts[index], []  # a prefix has an even number, a whole prompt an odd one
        if prefixes[index] >= 0 and prefix_tokens[index]:
            texts.append((2 * prefixes[index], min(prefix_tokens[index], prompt)))
        if pool_prompts[index] >= 0:
            texts.append((2 * pool_prompts[index] + 1, prompt))
        return keys(*texts) if texts else ()

    return shared


def _numbers(column: Ints) -> memoryview:
    return np.asarray(column, np.int64).data
