"""The table of policies, and its entries."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.scenario import reader, schedulers
from simulator.scenario.schedulers import OrcaScheduler, SarathiScheduler, VllmScheduler
from simulator.scenario.schema import Pool
from simulator.scenario.speculation import Ngram
from simulator.scheduling import Limits, PolicySetup, build_policy, limits, needs_explicit
from simulator.scheduling.policies import POLICIES
from tests.helpers import complete

SETTINGS: dict[str, Any] = {
    each.TAG: each for each in vars(schedulers).values() if isinstance(each, type) and hasattr(each, "TAG")
}


def test_every_scheduler_of_a_scenario_has_a_policy() -> None:
    assert sorted(POLICIES) == sorted(SETTINGS) == sorted(reader.tags(schedulers.Scheduler))


@pytest.mark.parametrize("name", SETTINGS)
def test_limits_are_those_of_the_settings(name: str) -> None:
    settings = complete(SETTINGS[name](max_num_seqs=7, max_num_batched_tokens=900, max_model_len=800))
    asked = limits(settings)
    assert (asked.max_num_seqs, asked.max_num_batched_tokens, asked.max_model_len) == (7, 900, 800)
    assert asked.reserves is settings.RESERVES
    assert build_policy(PolicySetup(settings, 100)) is not None


def test_limits_of_vllm_follow_its_version() -> None:
    plain, recent = limits(VllmScheduler(version="none")), limits(complete(VllmScheduler(scheduling_policy="priority")))
    assert plain == Limits(256, 8192, None, chunked=True, checks_context=True, decodes_count=True, own_blocks=1)
    assert (recent.prefix_caching, recent.async_scheduling, recent.by_priority) == (True, True, True)
    assert limits(complete(VllmScheduler(version="vllm-0.10"))).free_list == "append"


def test_what_runs_at_once_is_limited_by_sequences_active_ones_and_tokens() -> None:
    settings = {"max_num_seqs": 7, "max_num_active_seqs": 5, "max_num_batched_tokens": 9}
    asked = limits(complete(VllmScheduler(**settings)))
    assert (asked.max_running, asked.most_decodes(1), asked.most_decodes(2), asked.most_decodes(4)) == (5, 5, 5, 3)
    assert limits(OrcaScheduler(max_num_seqs=7, max_num_batched_tokens=3)).most_decodes() == 7


def test_a_watermark_is_a_share_of_all_blocks() -> None:
    """vLLM counts its block 0."""
    assert limits(complete(VllmScheduler(watermark=0.25))).spare_blocks(99) == 25
    assert limits(SarathiScheduler(watermark=0.25)).spare_blocks(99) == 24


def test_only_some_cut_a_prompt() -> None:
    assert {name: limits(complete(settings())).chunked for name, settings in SETTINGS.items()} == {
        name: name in ("vllm", "sarathi", "sglang") for name in SETTINGS
    }
    assert not limits(SarathiScheduler(chunked=False)).chunked
    assert not limits(complete(VllmScheduler(enable_chunked_prefill=False))).chunked


def test_settings_that_need_the_explicit_batch() -> None:
    held = Pool("h100-sxm", scheduler=VllmScheduler(prefill_schedule_interval=2))
    assert needs_explicit(held) == "scheduler.prefill_schedule_interval: 2"
    assert needs_explicit(Pool("h100-sxm", scheduler=VllmScheduler(pool_overflow="wait"))) is None
    assert needs_explicit(Pool("h100-sxm", scheduler=VllmScheduler(scheduling_policy="priority"))) is None
    assert needs_explicit(Pool("h100-sxm", scheduler=OrcaScheduler())) is None
    speculating = Pool("h100-sxm", scheduler=OrcaScheduler(), speculation=Ngram(num_speculative_tokens=2))
    assert needs_explicit(speculating) == "scheduler.policy: orca with speculation"
