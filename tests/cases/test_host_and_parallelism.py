"""Public reports on the CPU between steps, on CUDA graphs, and on how a model is split over GPUs.

Signs and shapes are compared, not the exact values of other hardware.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from cost_models import BatchShape, HostModel, Roofline, load_gpu, load_model
from simulator.scenario import parse_scenario
from simulator.study.prepare import prepare
from simulator.study.run import execute
from tests.costs import build_roofline, kv_capacity
from tests.helpers import request_table

SMALL, LARGE = "qwen2.5-0.5b", "llama-3.1-70b"
CONTEXT = 1000
OUTPUT = 33
#: From token to token the contexts grow, so that the GPU part of a step does, by less than this share of the step.
NEARLY = 1e-4


def decode(batch: int) -> BatchShape:
    """Return a step of `batch` decodes, each with `CONTEXT` tokens before it."""
    return BatchShape(decodes=batch, decode_context=batch * CONTEXT, sampled=batch)


def device_s(law: Roofline, batch: int) -> float:
    return law.step_cost(decode(batch)).device_ns / 1e9


def tpot_s(folder: Path, host: HostModel, *, batch: int, asynchronous: bool, gpu: str = "h100-sxm") -> float:
    """Return the TPOT in s of `batch` short requests of the small model, decoded together.

    The median over steps: under asynchronous scheduling the first and the last one are not of the steady state.
    """
    document = {"engine": "test", "source": "test", "terms": asdict(host)}
    path = folder / "host.yaml"
    path.write_text(json.dumps(document))  # which is YAML, too
    pool = {
        "gpu": gpu,
        "scheduler": {"version": "none", "async_scheduling": asynchronous, "max_num_seqs": 256},
        "cost_model": {"kind": "roofline", "host": str(path)},
    }
    workload = {"arrivals": {"process": "all_at_once"}, "requests": 1, "prompt_tokens": 1, "output_tokens": 1}
    scenario = {"name": "test", "model": SMALL, "workload": workload, "deployment": {"pools": {"main": pool}}}
    prepared = prepare(parse_scenario(json.dumps(scenario)))
    table = request_table([0] * batch, [8] * batch, [OUTPUT] * batch)
    finished = execute(prepared._replace(table=table))
    return float(np.median(np.diff(finished.record.steps.end_ns))) / 1e9


# --- the CPU


@pytest.mark.parametrize("batch", [1, 50, 200])
def test_a_step_is_gpu_and_cpu_in_turn_or_the_longer_of_them(tmp_path: Path, batch: int) -> None:
    """vllm#6854: bubbles of 5-13 ms a step, ~20 ms at 200 sequences: scheduler, sampling and output on the CPU."""
    cpu = HostModel(cpu_step=5e-3, cpu_sequence=75e-6)
    cpu_s = 5e-3 + 75e-6 * batch
    gpu_s = tpot_s(tmp_path, HostModel(), batch=batch, asynchronous=False)
    assert gpu_s < cpu_s
    assert tpot_s(tmp_path, cpu, batch=batch, asynchronous=False) == pytest.approx(gpu_s + cpu_s, rel=NEARLY)
    assert tpot_s(tmp_path, cpu, batch=batch, asynchronous=True) == pytest.approx(cpu_s, rel=NEARLY)
    hidden = HostModel(cpu_step=gpu_s / 3)
    assert tpot_s(tmp_path, hidden, batch=batch, asynchronous=True) == pytest.approx(gpu_s, rel=NEARLY)


def test_a_small_model_is_as_fast_on_any_gpu(tmp_path: Path) -> None:
    """vllm#6854: if the CPU limits the rate, a faster GPU does not raise it."""
    gpus = ("a100-sxm-80gb", "h100-sxm", "h200-sxm")
    bare = [tpot_s(tmp_path, HostModel(), batch=64, asynchronous=True, gpu=gpu) for gpu in gpus]
    assert bare == sorted(set(bare), reverse=True)
    cpu = HostModel(cpu_step=8e-3)
    assert bare[0] < cpu.cpu_step
    bound = [tpot_s(tmp_path, cpu, batch=64, asynchronous=True, gpu=gpu) for gpu in gpus]
    assert bound == pytest.approx([cpu.cpu_step] * 3, rel=NEARLY)


def test_a_faster_cpu_helps_where_it_is_the_slower_part(tmp_path: Path) -> None:
    """vllm#8147: the same GPU is 3.8 times as fast with a faster CPU."""
    batch = 64
    gpu_s = tpot_s(tmp_path, HostModel(), batch=batch, asynchronous=True)

    def throughput(cpu_s: float) -> float:
        return batch / tpot_s(tmp_path, HostModel(cpu_step=cpu_s), batch=batch, asynchronous=True)

    assert throughput(2 * gpu_s) / throughput(4 * gpu_s) == pytest.approx(2, rel=NEARLY)
    assert throughput(0.4 * gpu_s) == throughput(0.8 * gpu_s)


def test_beyond_the_captured_sizes_throughput_falls(tmp_path: Path) -> None:
    """vllm#57355: sizes captured in multiples of 8, so 97 to 100 decodes run piecewise and stay there."""
    host = HostModel(graph_tokens=96, graph_miss=3e-3)

    def throughput(batch: int) -> float:
        return batch / tpot_s(tmp_path, host, batch=batch, asynchronous=True)

    assert throughput(95) < throughput(96)
    assert throughput(97) < throughput(100) < throughput(96)


# --- the split over GPUs


def split(gpus: int, host: HostModel) -> Roofline:
    """Return Llama 70B in FP8 on this number of H100s."""
    return build_roofline(load_model(LARGE), load_gpu("h100-sxm"), tensor_parallel=gpus, weights="fp8", host=host)


def test_weights_stored_once_leave_more_than_twice_the_memory() -> None:
    """vllm#8089: 70B in FP8 on 8 H100s: 21.9 times the longest context with TP8, 7.6 with each of two TP4."""
    four, eight = (
        kv_capacity(load_model(LARGE), load_gpu("h100-sxm"), tensor_parallel=gpus, weights="fp8") for gpus in (4, 8)
    )
    assert eight.blocks > 2 * four.blocks


def test_one_replica_of_eight_gpus_or_two_of_four() -> None:
    """vllm#8089, #16011: TP8 serves fewer tokens in all, but a single stream sooner: both signs are reachable."""
    cpu = HostModel(cpu_step=5e-3, cpu_sequence=75e-6)
    four, eight = split(4, cpu), split(8, cpu)
    # Prompts are communication-bound: TP8 takes more than half the time of TP4, which two replicas share.
    prompt = BatchShape(chunks=((8192, 0),), sampled=1)
    assert eight.step_cost(prompt).device_ns > four.step_cost(prompt).device_ns / 2
    # Decodes with the CPU in the loop: a replica of four has a half of the 64 sequences to prepare.
    assert sum(eight.step_cost(decode(64))) > sum(four.step_cost(decode(32)))
    # The other sign: with kernels alone the weights that eight GPUs share weigh more than the all-reduces.
    assert device_s(eight, 64) < device_s(four, 32)
    # A single stream, however, is faster the more GPUs share its weights; by less than their number.
    alone = [1 / device_s(split(gpus, cpu), 1) for gpus in (2, 4, 8)]
    assert alone == sorted(alone)
    assert alone[2] < 4 * alone[0]


@pytest.mark.parametrize("batch", [4, 32, 100])
def test_micro_batches_do_not_cut_the_reading_of_weights(batch: int) -> None:
    """vllm#15330, TensorRT-LLM#1144: decoding over four pipeline stages is a third as fast as over TP4.

    By arithmetic, as stages are not simulated: a stage is a model of a quarter of the layers, and takes the four
    micro-batches of a quarter of the batch one after the other; a token passes all four stages.
    """
    model = load_model("opt-13b")
    gpu = load_gpu("a100-sxm-80gb")
    stage = build_roofline(dataclasses.replace(model, layers=model.layers // 4), gpu)
    whole = build_roofline(model, gpu)

    def layers_s(law: Roofline, sequences: int) -> float:
        """Return a step without the LM head, which one stage alone has."""
        return law.step_cost(decode(sequences)._replace(sampled=0)).device_ns / 1e9

    pipeline_s = 4 * layers_s(stage, batch // 4)
    # One micro-batch: a quarter of its time in each stage, the others idle: as long a token as on one GPU.
    assert 4 * layers_s(stage, batch) == pytest.approx(layers_s(whole, batch), rel=0.02)
    # Four: each reads the stage's weights anew, so a quarter of the sequences takes more than a quarter of the time.
    assert pipeline_s > layers_s(whole, batch) / 4
    weights_s = whole.bound_ns(BatchShape(decodes=1, decode_context=1)) / 1e9
    assert pipeline_s > weights_s
    tensor_s = device_s(build_roofline(model, gpu, tensor_parallel=4), batch)
    assert pipeline_s > tensor_s
