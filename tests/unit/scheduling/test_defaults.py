"""Defaults of vLLM for settings that a scenario does not give.

Batch sizes are those of `EngineArgs.get_batch_defaults` for its server.
"""

from __future__ import annotations

from typing import Any

import pytest

from simulator.scenario.schedulers import OrcaScheduler, SglangScheduler, VllmScheduler
from simulator.scenario.schema import Memory, Pool
from simulator.scenario.speculation import Eagle, Ngram
from simulator.scheduling import with_engine_defaults
from tests.helpers import complete

CONTEXT = 131_072  # of the model that `complete` takes


@pytest.mark.parametrize("version", ["vllm-0.33", "vllm-0.10"])
@pytest.mark.parametrize(
    ("gpu", "seqs", "tokens"),
    [
        ("h100-sxm", 1024, 8192),
        ("h200-sxm", 1024, 8192),
        ("a100-sxm-80gb", 256, 2048),
        ("a100-sxm-40gb", 256, 2048),
        ("l40s", 256, 2048),
    ],
)
def test_batch_sizes_follow_the_gpu(version: Any, gpu: str, seqs: int, tokens: int) -> None:
    found = complete(VllmScheduler(version=version), gpu)
    assert (found.max_num_seqs, found.max_num_batched_tokens) == (seqs, tokens)


def test_without_a_version_they_do_not() -> None:
    for gpu in ("h100-sxm", "l40s"):
        found = complete(VllmScheduler(version="none"), gpu)
        assert (found.max_num_seqs, found.max_num_batched_tokens) == (256, 8192)
        assert (found.async_scheduling, found.enable_prefix_caching) == (False, False)


@pytest.mark.parametrize(
    ("given", "seqs", "tokens"),
    [
        ({"max_num_batched_tokens": 512}, 512, 512),  # never more sequences than tokens
        ({"max_num_seqs": 7}, 7, 8192),
        ({"max_num_seqs": 2, "max_model_len": 1000}, 2, 2000),  # never more tokens than all contexts
        ({"enable_chunked_prefill": False}, 1024, CONTEXT),  # the longest prompt in one step
        ({"enable_chunked_prefill": False, "max_model_len": 4096}, 1024, 8192),
        ({"max_num_seqs": 9, "max_num_batched_tokens": 100}, 9, 100),  # given values are kept
    ],
)
def test_batch_sizes_go_together(given: dict[str, Any], seqs: int, tokens: int) -> None:
    found = complete(VllmScheduler(**given))
    assert (found.max_num_seqs, found.max_num_batched_tokens) == (seqs, tokens)


def test_the_newest_version_schedules_ahead_and_caches_prefixes() -> None:
    assert complete(VllmScheduler()) == complete(VllmScheduler(version="vllm-0.33"))
    newer, older = complete(VllmScheduler()), complete(VllmScheduler(version="vllm-0.10"))
    assert (newer.async_scheduling, newer.enable_prefix_caching) == (True, True)
    assert (older.async_scheduling, older.enable_prefix_caching) == (False, True)


@pytest.mark.parametrize(
    ("pool", "ahead"),
    [
        ({}, True),
        ({"pipeline_parallel": 2}, False),
        ({"speculation": Eagle(num_speculative_tokens=2)}, True),
        ({"speculation": Ngram(num_speculative_tokens=2)}, False),  # its drafts are not made on the GPU
    ],
)
def test_what_goes_with_scheduling_ahead(pool: dict[str, Any], ahead: bool) -> None:
    assert complete(VllmScheduler(), **pool).async_scheduling is ahead
    assert complete(VllmScheduler(async_scheduling=True), **pool).async_scheduling  # a given value is kept


def test_memory_in_one_piece_shares_no_blocks() -> None:
    assert not complete(VllmScheduler(), memory=Memory(allocation="contiguous")).enable_prefix_caching


@pytest.mark.parametrize(("speculation", "seqs"), [(None, 1024), (Ngram(num_speculative_tokens=3), 48)])
def test_sglang_without_overlap_and_with_fewer_requests_if_it_speculates(speculation: Ngram | None, seqs: int) -> None:
    pool = Pool("h100-sxm", scheduler=SglangScheduler(), speculation=speculation)
    scheduler = with_engine_defaults(pool, "h100-sxm", 80 * 2**30, CONTEXT).scheduler
    assert scheduler == SglangScheduler(max_num_seqs=seqs, async_scheduling=speculation is None)
    given = SglangScheduler(max_num_seqs=7, async_scheduling=True)
    pool = Pool("h100-sxm", scheduler=given, speculation=speculation)
    assert with_engine_defaults(pool, "h100-sxm", 80 * 2**30, CONTEXT).scheduler == given


def test_other_engines_are_complete_as_they_are() -> None:
    pool = Pool("h100-sxm", scheduler=OrcaScheduler())
    assert with_engine_defaults(pool, "h100-sxm", 80 * 2**30, CONTEXT) is pool
