"""Closed loops measured on several engines: settings that their rows do not give, and errors of the simulation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simulator.scenario.lengths import Fixed, LogNormal
from simulator.validation.assumptions import engine_of
from simulator.validation.measured import read_rows
from simulator.validation.replay import replay
from simulator.validation.run import compare
from simulator.validation.setting import Setting

HEADER = "gpu,tp,engine,model,input_len_mean,output_len_mean,concurrency,ttft_mean_ms,tpot_mean_ms,provenance"
EQUAL = "somebody | source_file=aic-auto-gap-analysis/data/h100.csv"


def setting(tmp_path: Path, engine: str, model: str, provenance: str) -> Setting:
    path = tmp_path / "closed.csv"
    path.write_text(f"{HEADER}\nh100_sxm,4.0,{engine},{model},1024,128,16.0,100,10,{provenance}\n", encoding="utf-8")
    (row,) = read_rows(path)
    assert row.setting is not None
    return row.setting


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("vLLM 0.12", "vllm"),
        ("sglang", "sglang"),
        ("trtllm", "tensorrt_llm"),
        ("TensorRT-LLM 0.14", "tensorrt_llm"),
        ("tgi", None),
    ],
)
def test_engines_by_name(name: str, engine: str | None) -> None:
    assert engine_of(name) == engine


@pytest.mark.parametrize(
    ("engine", "model", "budget", "prompt"),
    [
        ("vllm", "Qwen/Qwen3-32B", 1024 + 15, 1024),
        ("trtllm", "Qwen/Qwen3-32B", 1024 + 15, 1024),
        ("trtllm", "meta-llama/Llama-3.1-8B-Instruct", 1024 + 15, 1025),
        ("sglang", "Qwen/Qwen3-32B", 8192, 1024),
    ],
)
def test_equal_clients_have_a_step_of_one_prompt(
    tmp_path: Path, engine: str, model: str, budget: int, prompt: int
) -> None:
    found = setting(tmp_path, engine, model, EQUAL)
    assert found.max_num_batched_tokens == budget
    assert (found.prompt_tokens, found.output_tokens) == (Fixed(prompt), Fixed(128))
    assert (found.load.requests, found.load.warmup) == (200, 0)


@pytest.mark.parametrize(
    ("engine", "gpu", "seqs", "budget"),
    [
        ("vllm", "h100-sxm", 1024, 8192),
        ("vllm", "a100-sxm-80gb", 256, 2048),
        ("trtllm", "h100-sxm", 2048, 8192),
        ("sglang", "h100-sxm", 1024, 8192),
    ],
)
def test_others_have_the_engines_defaults_and_spread_lengths(
    tmp_path: Path, engine: str, gpu: str, seqs: int, budget: int
) -> None:
    found = setting(tmp_path, engine, "meta-llama/Llama-3.1-8B", "somebody else")
    short = replace(found, gpu=gpu, load=replace(found.load, requests=20))
    engine_facts = replay([short], 0)[0].engine
    assert (engine_facts["max_num_seqs"], engine_facts["max_num_batched_tokens"]) == (seqs, budget)
    assert isinstance(found.prompt_tokens, LogNormal)
    assert isinstance(found.output_tokens, LogNormal)
    assert (found.load.requests, found.load.warmup) == (200, 16)


@pytest.mark.parametrize("engine", ["trtllm", "sglang"])
def test_measured_closed_loops_are_met(shared: Path, engine: str) -> None:
    """A few rows with 16 clients; the aims are those for all rows."""
    rows = [row for row in read_rows(shared / "truth" / "closed_loop_h100.csv") if row.labels["engine"] == engine]
    few = [row for row in rows if row.setting is not None and row.setting.load.concurrency == 16]
    errors: dict[str, list[float]] = {}
    for entry in compare(few[::7], jobs=1):
        for name, measured, predicted in entry.pairs():
            errors.setdefault(name, []).append(abs(predicted / measured - 1))
    assert np.median(errors["ttft_mean_ms"]) < 0.25
    assert np.median(errors["tpot_mean_ms"]) < 0.10
