"""Speculation where memory and budget hardly suffice: what could never end is refused, and all else ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.results.columns import Refusal, Status
from simulator.results.integrity import check
from tests.helpers import PLACEHOLDER, request_table, run, scenario

LAW = {"acceptance": {"law": "iid", "alpha": 0.5}}


def tiny(requests: tuple[list[int], list[int]], drafts: int, method: str = "mtp", **given: Any) -> Any:
    prompts, outputs = requests
    passes = {} if method == "ngram" else {"pass_time": "0ms"}
    pool = {"speculation": LAW | passes | {"method": method, "num_speculative_tokens": drafts}}
    scheduler = {"version": "none", "max_num_batched_tokens": 64, "max_model_len": 200} | given.pop("scheduler", {})
    asked = scenario(PLACEHOLDER, {"base": "1ms"}, scheduler=scheduler, pool=pool, run={"checks": True}, **given)
    finished = run(asked, request_table([0] * len(prompts), prompts, outputs)).record
    check(finished)
    return finished.requests


@pytest.mark.parametrize(("asynchronous", "beyond"), [(False, 3 + 3), (True, 2 * 3 + 3)])
def test_a_pool_must_hold_drafts_and_look_ahead_of_all_steps_under_way(asynchronous: bool, beyond: int) -> None:
    """Prompts of four and five tokens, three of output: with 6 + `beyond` blocks of a token the second one may need
    one more than there are. Asynchronously the drafts of two steps count."""
    memory = {"block_size": 1, "kv_blocks": 6 + beyond}
    scheduler = {"async_scheduling": asynchronous, "max_num_partial_prefills": 1}
    requests = tiny(([4, 5], [3, 3]), 3, memory=memory, scheduler=scheduler)
    assert requests.status.tolist() == [Status.COMPLETED, Status.REJECTED]
    assert requests.refusal[1] == Refusal.KV_POOL


@pytest.mark.parametrize("seed", range(30))
def test_random_tiny_pools(seed: int) -> None:
    """A deadlock would raise, and so would books that do not add up."""
    draw = np.random.default_rng(seed)
    drafts, count = int(draw.integers(1, 6)), int(draw.choice([1, 2, 10]))
    block_size, allocation = int(draw.choice([1, 4, 16])), str(draw.choice(["paged", "contiguous", "contiguous_exact"]))
    scheduler = {
        "async_scheduling": bool(draw.integers(2)),
        "enable_prefix_caching": allocation == "paged" and bool(draw.integers(2)),
        "max_num_seqs": int(draw.choice([1, 2, 8])),
        "max_num_batched_tokens": int(1 + drafts + draw.choice([0, 1, 30])),
        "scheduler_reserve_full_isl": bool(draw.integers(2)),
        "watermark": float(draw.choice([0.0, 0.4])),
        "max_model_len": int(draw.choice([40, 64, 200])),
    }
    memory = {"block_size": block_size, "kv_blocks": max(1, int(draw.integers(32, 80)) // block_size)}
    lengths = draw.integers(1, 31, count).tolist(), draw.integers(1, 10, count).tolist()
    method = str(draw.choice(["ngram", "mtp", "eagle"]))
    if method == "ngram":
        scheduler["async_scheduling"] = False
    # One request that any of these pools can serve, for a run that serves nothing is an error.
    lengths = ([1, *lengths[0]], [1, *lengths[1]])
    requests = tiny(lengths, drafts, method, scheduler=scheduler, memory=memory | {"allocation": allocation})
    assert set(requests.status.tolist()) <= {Status.COMPLETED, Status.REJECTED}
