"""Eight drafts of which hardly any holds, as runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.scenario import parse_scenario
from simulator.speculation.expectation import expected_tokens, iid_cumulative, speed_up
from tests.cases.test_speculation import LAW, at_once, speculating
from tests.helpers import run


def test_hopeless_drafts_are_slower_even_for_one_sequence() -> None:
    """Leviathan et al. with alpha = .2, k = 8 and drafts of .05 of a step: (1 - a^9) / ((1 - a) (1 + 8c)) = .89."""
    drafts = {"method": "eagle", "num_speculative_tokens": 8, "pass_time": "0.5ms"}
    drafts["acceptance"] = {"law": "iid", "alpha": 0.2}
    assert speed_up(expected_tokens(iid_cumulative(0.2, 8)), 8, 0.05) == pytest.approx(0.893, abs=5e-4)
    plain, slower = (speculating(at_once(4, 4000), proposer).summary for proposer in (None, drafts))
    gain = plain["latency"]["tpot_ms"]["mean"] / slower["latency"]["tpot_ms"]["mean"]
    assert gain == pytest.approx(0.893, rel=0.01)


def test_and_slower_still_in_a_batch() -> None:
    """Nine times the tokens of a step, and 1.25 times the output: with 50 us a token and 7 sequences."""
    drafts = {"method": "eagle", "num_speculative_tokens": 8, "pass_time": "0.5ms"}
    drafts["acceptance"] = {"law": "iid", "alpha": 0.2}
    law = LAW | {"per_token": "50us"}
    plain, slower = (speculating(at_once(7, 1500), proposer, law).summary for proposer in (None, drafts))
    expected = 1.25 * (10 + 7 * 0.05) / (10 + 4 + 63 * 0.05)
    assert expected < 0.80
    gain = plain["latency"]["tpot_ms"]["mean"] / slower["latency"]["tpot_ms"]["mean"]
    assert gain == pytest.approx(expected, rel=0.015)


#: config.json of Qwen/Qwen1.5-1.8B.
QWEN_1_8B = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 2048,
    "intermediate_size": 5504,
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "num_key_value_heads": 16,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


def qwen_1_8b(config: Path, host: str, asynchronous: bool) -> tuple[float, float]:
    """Return the ratios of TPOT and of the output rate with eight n-gram drafts; seven clients, an A100."""
    lookup = {"method": "ngram", "num_speculative_tokens": 8, "acceptance": {"law": "iid", "alpha": 0.2}}
    workload = at_once(60, 150, 300) | {"arrivals": {"process": "closed_loop", "concurrency": 7}}
    server = {"gpu": "a100-sxm-80gb", "cost_model": {"kind": "roofline", "host": host}}
    found = []
    for version, proposer in (("vllm-0.33" if asynchronous else "none", {}), ("none", {"speculation": lookup})):
        pools = {"main": server | {"scheduler": {"version": version}} | proposer}
        document = {"name": "t", "model": str(config), "workload": workload, "deployment": {"pools": pools}}
        found.append(run(parse_scenario(json.dumps(document))).summary)
    plain, slower = found
    return (
        slower["latency"]["tpot_ms"]["mean"] / plain["latency"]["tpot_ms"]["mean"],
        slower["throughput"]["output_tokens_per_s"] / plain["throughput"]["output_tokens_per_s"],
    )


@pytest.mark.parametrize(
    ("host", "asynchronous", "tpot", "rate"),
    [("vllm", False, 1.12, 0.93), ("vllm", True, 1.49, 0.70), ("vllm-v0", False, 1.01, 1.02)],
)
def test_a_small_model_on_a100_is_slower_and_by_how_much(
    tmp_path: Path, host: str, asynchronous: bool, tpot: float, rate: float
) -> None:
    """vllm#6494: TPOT 14.5 -> 21.7 ms (x 1.50), 485 -> 301 tokens a second (x 0.62), about seven requests at once.

    That is vLLM 0.5, whose own cost is not reproduced: plain, 5.1 ms are predicted, 5.5 with V0's host. It computed
    whole prompts first (`prefill_first` is not simulated with drafts), and verified each draft as a sequence of its
    own, which V0's host has for drafters of the GPU alone. So with V0's host drafts cost 1% here and not 50%, with V1's
    12%. A vLLM of today loses 49%, for a reason that the report's did not have: drafts of the CPU end asynchronous
    scheduling.
    """
    config = tmp_path / "config.json"
    config.write_text(json.dumps(QWEN_1_8B), encoding="utf-8")
    found = qwen_1_8b(config, host, asynchronous)
    assert found == pytest.approx((tpot, rate), rel=0.03)
