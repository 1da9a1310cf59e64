"""The line that says which engine a pool simulates."""

from __future__ import annotations

from simulator.results.schedulers import scheduler_rows, scheduler_sections
from simulator.scenario import load_scenario

POOLS = {
    "name": "two-pools",
    "model": "llama-3.1-8b",
    "workload": {"arrivals": {"process": "all_at_once"}, "requests": 2, "prompt_tokens": 9, "output_tokens": 9},
    "deployment": {"pools": {"p": {"gpu": "h100-sxm", "role": "prefill"}, "d": {"gpu": "h100-sxm", "role": "decode"}}},
}


def rows(**of_d: int) -> list[tuple[str, str]]:
    limits = {"max_num_batched_tokens": 512, "max_num_seqs": 64}
    settings = {"deployment.pools.p.scheduler": limits, "deployment.pools.d.scheduler": limits | of_d}
    sections = scheduler_sections(load_scenario(POOLS, settings))
    assert sections["d"].get("max_num_active_seqs") == of_d.get("max_num_active_seqs")
    return scheduler_rows(sections)


def test_pools_that_are_alike_share_a_line() -> None:
    [(label, line)] = rows()
    assert label == "scheduler" and "up to 512 tokens and 64 sequences a step, KV in BF16" in line


def test_a_limit_on_active_sequences_is_told() -> None:
    lines = dict(rows(max_num_active_seqs=2))
    assert "64 sequences a step, of which 2 active, KV" in lines["scheduler of d"]
    assert "active" not in lines["scheduler of p"]
