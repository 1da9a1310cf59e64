"""Measured rows of models that are split in more ways than by tensor parallelism."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.validation.measured import read_rows
from simulator.validation.run import compare
from simulator.validation.setting import Row

HEADER = "gpu,tp,pp,ep_dp,model,weight_dtype,concurrency,input_len_mean,output_len_mean,tpot_mean_ms"


def row(tmp_path: Path, split: str, model: str = "Qwen/Qwen3-30B-A3B") -> Row:
    """Return a closed loop of four clients; `split` are the columns tp, pp and ep_dp."""
    path = tmp_path / "measured.csv"
    path.write_text(f"{HEADER}\nh100_sxm,{split},{model},fp8,4,200,20,10\n", encoding="utf-8")
    (found,) = read_rows(path)
    return found


@pytest.mark.parametrize(
    ("split", "expert_parallel"),
    [
        ("4,1,attn_dp=;moe_tp=1;moe_ep=4", True),
        ("4,1,attn_dp=1;moe_tp=1;moe_ep=4", True),
        ("4,1,ep=4", True),
        ("4,1,attn_dp=1;moe_tp=4;moe_ep=1", False),
        ("4,1,", False),
    ],
)
def test_whole_experts_on_each_gpu(tmp_path: Path, split: str, expert_parallel: bool) -> None:
    setting = row(tmp_path, split).setting
    assert setting is not None
    assert (setting.tensor_parallel, setting.expert_parallel) == (4, expert_parallel)
    assert setting.async_scheduling


@pytest.mark.parametrize(
    ("split", "reason"),
    [
        ("4,1,attn_dp=;moe_tp=2;moe_ep=2", "experts in 2 groups of several GPUs each are not simulated"),
        ("4,1,attn_dp=4;moe_tp=1;moe_ep=4", "the row does not state how tp and attn_dp share the GPUs"),
    ],
)
def test_what_is_split_otherwise_is_kept_with_the_reason(tmp_path: Path, split: str, reason: str) -> None:
    found = row(tmp_path, split)
    assert found.setting is None
    assert reason in found.reason


def test_rows_are_simulated_as_they_were_split(tmp_path: Path) -> None:
    """A pipeline has the TPOT of its whole way; experts that are whole have about that of split ones."""
    tpot = {}
    for split in ("2,1,", "2,1,ep=2", "2,2,"):
        (compared,) = compare([row(tmp_path, split)], seeds=1, jobs=1)
        tpot[split] = compared.predicted.metrics["tpot_mean_ms"]
    assert tpot["2,1,ep=2"] == pytest.approx(tpot["2,1,"], rel=0.15)
    assert tpot["2,1,ep=2"] != tpot["2,1,"]
    assert tpot["2,2,"] > tpot["2,1,"]
