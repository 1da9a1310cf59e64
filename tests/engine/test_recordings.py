"""The vLLM policy and the engine's loop against recordings of the real scheduler, step for step.

Only recordings without the features that are not modelled yet: prefix caching, priorities, speculation, prefill
intervals, adaptive thresholds and active-sequence caps. What the real front end refused, and what the
real engine cut at the context limit, is left out and cut before it is sent.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from cost_models import LinearLaw
from simulator.engine import Service, simulate
from simulator.engine.recording import StepRecorder
from simulator.scenario import Scenario, parse_scenario
from tests.helpers import request_table

NAMES = [
    "async_fcfs",
    "burst_t0",
    "chunked_fcfs",
    "chunked_small_budget",
    "corner_unchunked_budget",
    "corner_watermark_noreserve",
    "long_prefill_256",
    "max_seqs_1",
    "no_chunked_prefill",
    "preempt_fcfs",
    "small_async_preempt",
    "small_caps",
    "small_noreserve",
    "small_watermark",
    "tiny_async",
    "tiny_basic",
]


@pytest.mark.parametrize("name", NAMES)
def test_every_step_equals_the_recording(name: str, shared: Path, tmp_path: Path) -> None:
    recording = shared / "oracle" / name
    config = _defaults() | json.loads((recording / "config.json").read_text())
    blocks, limit = config["num_gpu_blocks"] - 1, config["max_model_len"]
    trace = [line for line in _lines(recording, "trace") if line["num_prefill_tokens"] < limit]
    scenario = _scenario(config)
    table = request_table(
        arrival_ns=[_arrival_ns(line) for line in trace],
        prompt_tokens=[line["num_prefill_tokens"] for line in trace],
        output_tokens=[min(line["num_decode_tokens"], limit - line["num_prefill_tokens"]) for line in trace],
        ids=[str(line["id"]) for line in trace],
    )
    law = LinearLaw(base_ns=5_000_000, per_token_ns=20_000, per_context_token_ns=10)
    service = Service(cost=law, kv_blocks=blocks, max_model_len=limit, gpus=1)
    recorder = StepRecorder(tmp_path / "0", scenario.deployment.pool, blocks, limit, table)
    simulate(scenario, table, service, observers=lambda _: recorder)
    recorder.close()
    expected, found = _lines(recording, "steps"), _lines(tmp_path / "0", "steps")
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == _with_text_ids(theirs)


def _defaults() -> dict[str, Any]:
    return {
        "max_num_seqs": 128,
        "max_num_batched_tokens": 2048,
        "max_model_len": 8192,
        "block_size": 16,
        "num_gpu_blocks": 1001,
    }


def _scenario(config: dict[str, Any]) -> Scenario:
    unsupported = {"prefill_schedule_interval", "long_prefill_token_threshold_adaptive", "max_num_active_seqs"}
    assert not unsupported & set(config)
    names = (
        "max_num_seqs",
        "max_num_batched_tokens",
        "max_model_len",
        "enable_chunked_prefill",
        "long_prefill_token_threshold",
        "scheduler_reserve_full_isl",
        "watermark",
        "async_scheduling",
    )
    scheduler = {name: config[name] for name in names if name in config}
    pool = {"gpu": "h100-sxm", "scheduler": scheduler, "memory": {"block_size": config["block_size"]}}
    return parse_scenario(
        json.dumps(
            {
                "name": "recording",
                "model": "llama-3.1-8b",
                "workload": {
                    "arrivals": {"process": "all_at_once"},
                    "requests": 1,
                    "prompt_tokens": 1,
                    "output_tokens": 1,
                },
                "deployment": {"pools": {"main": pool}},
                "run": {"checks": True},
            }
        )
    )


def _lines(folder: Path, stem: str) -> list[dict[str, Any]]:
    plain, packed = folder / f"{stem}.jsonl", folder / f"{stem}.jsonl.gz"
    text = plain.read_text() if plain.exists() else gzip.decompress(packed.read_bytes()).decode()
    return [json.loads(line) for line in text.splitlines()]


def _arrival_ns(line: dict[str, Any]) -> int:
    return int(line["arrival_ns"]) if "arrival_ns" in line else round(line["arrival_time"] * 1e9)


def _with_text_ids(line: dict[str, Any]) -> dict[str, Any]:
    line["sched"] = [[str(index), tokens, computed] for index, tokens, computed in line["sched"]]
    for key in ("new", "resumed", "preempted", "finished"):
        line[key] = [str(index) for index in line[key]]
    return line
