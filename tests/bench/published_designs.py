"""Simulations of published runs of chunked and disaggregated prefill: the tables of docs/designs.md.

    python -m tests.bench.published_designs sarathi|distserve|splitwise|xpyd

Settings that the sources do not give are assumed here; they were chosen before any comparison. The tables also show
other assumptions.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

from simulator.api.runs import run
from simulator.scenario import parse_scenario
from simulator.study.run import Run
from tests.conftest import ROOT

ROWS = ROOT.parent / "shared" / "truth" / "disagg_chunk_prefix.csv"
Mapping = dict[str, Any]
_Z90 = 1.2815515655  # of the standard normal law


def measured(path: Path = ROWS) -> list[dict[str, str]]:
    """Return the published rows."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def simulate(model: str, workload: Mapping, pools: Mapping, **keys: Any) -> Run:
    deployment: Mapping = {"pools": pools}
    if "handover" in keys:
        deployment["handover"] = keys.pop("handover")
    document = {"name": "published", "model": model, "workload": workload, "deployment": deployment}
    return run(parse_scenario(json.dumps(document | keys)))


def lognormal(median: float, p90: float, most: int) -> Mapping:
    """Return a lognormal law by its median and 90th percentile."""
    variance = (math.log(p90 / median) / _Z90) ** 2
    mean, cv = median * math.exp(variance / 2), math.sqrt(math.exp(variance) - 1)
    return {"distribution": "lognormal", "mean": mean, "cv": cv, "max": most}


def poisson(rate: float, requests: int, prompts: Any, outputs: Any) -> Mapping:
    arrivals = {"process": "poisson", "rate": rate}
    return {"arrivals": arrivals, "requests": requests, "prompt_tokens": prompts, "output_tokens": outputs}


# --- Sarathi-Serve, table 4: Yi-34B on two A100, token budget 1,024, 128 requests

#: The paper's two halves and the whole, by the names of the rows.
SARATHI: dict[str, Mapping] = {
    "hybrid-batching-only": {"chunked": False, "max_num_batched_tokens": 32_768},
    "chunked-prefills-only": {"batching": "alternating", "max_num_batched_tokens": 1024},
    "Sarathi-Serve (combined)": {"max_num_batched_tokens": 1024},
}
#: Lengths by median and 90th percentile, at most 8,192 and 16,384 tokens in all as the paper has it.
SARATHI_LENGTHS = {
    "openchat_sharegpt4": (lognormal(1730, 5696, 7000), lognormal(415, 834, 1192)),
    "arxiv_summarization": (lognormal(7059, 12_985, 15_000), lognormal(208, 371, 1384)),
}
#: Requests a second; the table does not say. Somewhat below saturation, where TTFT is a few prefills.
SARATHI_RATE = {"openchat_sharegpt4": 1.0, "arxiv_summarization": 0.3}


def sarathi(dataset: str, rate: float, seeds: int = 1) -> dict[str, tuple[float, float]]:
    """Return TTFT p50 and TBT p99 in s for each variant, as medians over seeds."""
    found = {}
    for variant, settings in SARATHI.items():
        scheduler = {"policy": "sarathi", "max_model_len": 16_384, **settings}
        pool = {"gpu": "a100-sxm-80gb", "tensor_parallel": 2, "scheduler": scheduler}
        load = poisson(rate, 128, *SARATHI_LENGTHS[dataset])
        runs = [simulate("yi-34b", load, {"main": pool}, seed=seed).summary["latency"] for seed in range(seeds)]
        pairs = np.median([(each["ttft_ms"]["p50"], each["itl_ms"]["p99"]) for each in runs], axis=0) / 1e3
        found[variant] = (float(pairs[0]), float(pairs[1]))
    return found


def sarathi_measured(dataset: str) -> dict[str, tuple[float, float]]:
    """Return the table's values, as `sarathi` gives them."""
    rows = [row for row in measured() if row["feature"] == "chunked_prefill" and row["dataset"].startswith(dataset)]

    def value(variant: str, metric: str) -> float:
        (found,) = (row for row in rows if (row["draft_or_method"], row["metric"]) == (variant, metric))
        return float(found["value"])

    return {variant: (value(variant, "TTFT P50"), value(variant, "TBT P99")) for variant in SARATHI}


def print_sarathi() -> None:
    print("| dataset | rate, 1/s | variant | TTFT p50, s | paper | TBT p99, s | paper |\n|---|---|---|---|---|---|---|")
    for dataset, assumed in SARATHI_RATE.items():
        paper = sarathi_measured(dataset)
        for share in (0.5, 0.75, 1.0, 1.25):
            for variant, pair in sarathi(dataset, share * assumed, seeds=5).items():
                cells = [
                    f"{ours:.2f} | {theirs} ({ours / theirs - 1:+.0%})"
                    for ours, theirs in zip(pair, paper[variant], strict=True)
                ]
                print(f"| {dataset} | {share * assumed:.3g} | {variant} | {cells[0]} | {cells[1]} |", flush=True)


# --- DistServe, table 2: SLO attainment of OPT-13B on ShareGPT, on A100

#: Limits of the paper's chatbot with OPT-13B, in s.
SLO_TTFT_S, SLO_TPOT_S = 0.25, 0.1
DISTSERVE_RATES = (1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0)
#: Means of the paper's ShareGPT; spread and cuts are assumed, so that prompt and answer fit OPT's 2,048 tokens.
DISTSERVE_LENGTHS = (
    {"distribution": "lognormal", "mean": 755.5, "cv": 0.8, "min": 4, "max": 1536},
    {"distribution": "lognormal", "mean": 200.3, "cv": 0.8, "min": 4, "max": 511},
)
#: Prefill and decode instances with their tensor parallelism, and how often vLLM's rate they get. The paper's split has
#: three GPUs, and its artifact runs it at three times vLLM's rates; the table says requests a second, and no more.
DISTSERVE_READINGS = {
    "3 GPUs, the same rate": ((1, 2), (1, 1), 1),
    "3 GPUs, the same rate a GPU": ((1, 2), (1, 1), 3),
    "1P1D, the same rate a GPU": ((1, 1), (1, 1), 2),
}


def attainment(finished: Run) -> float:
    """Return the share of requests within both limits."""
    requests = finished.record.requests
    ttft_s = (requests.first_token_ns - requests.arrival_ns) / 1e9
    tpot_s = (requests.finish_ns - requests.first_token_ns) / 1e9 / np.maximum(requests.emitted_tokens - 1, 1)
    return float(np.mean((ttft_s <= SLO_TTFT_S) & (tpot_s <= SLO_TPOT_S)))


def _a100(policy: str, replicas: int = 1, tensor_parallel: int = 1, **keys: Any) -> Mapping:
    pool = {"gpu": "a100-sxm-80gb", "replicas": replicas, "tensor_parallel": tensor_parallel}
    return pool | {"scheduler": {"policy": policy, "max_model_len": 2048}} | keys


def vllm_attainment(rate: float, requests: int = 1000) -> float:
    """Return the attainment of vLLM without chunked prefill on one GPU."""
    load = poisson(rate, requests, *DISTSERVE_LENGTHS)
    return attainment(simulate("opt-13b", load, {"main": _a100("prefill_first")}))


def distserve(rate: float, reading: str, requests: int = 1000) -> Run:
    """Return the attainment of DistServe in a node, prefill TP2 and decode TP1, or 1P1D; `rate` is that of vLLM."""
    prefill, decode, times = DISTSERVE_READINGS[reading]
    pools = {
        "prefill": _a100("distserve", *prefill, role="prefill"),
        "decode": _a100("distserve", *decode, role="decode"),
    }
    load = poisson(rate * times, requests, *DISTSERVE_LENGTHS)
    return simulate("opt-13b", load, pools, handover={"first_token": "prefill"})


def distserve_measured(engine: str) -> dict[float, float]:
    """Return the published attainment by rate, as a share."""
    rows = (row for row in measured() if row["feature"] == "slo_attainment" and row["engine"] == engine)
    return {float(row["batch_or_concurrency"].split()[0]): float(row["value"]) / 100 for row in rows}


def print_distserve() -> None:
    theirs = distserve_measured("vLLM"), distserve_measured("DistServe-Low")
    print("| rate, 1/s | vLLM | paper | " + " | ".join(DISTSERVE_READINGS) + " | paper |")
    print("|---" * (4 + len(DISTSERVE_READINGS)) + "|")
    for rate in DISTSERVE_RATES:
        ours = [vllm_attainment(rate), *(attainment(distserve(rate, reading)) for reading in DISTSERVE_READINGS)]
        cells = [f"{share:.0%}" for share in ours]
        papers = [f"{each[rate]:.0%}" for each in theirs]
        print(f"| {rate} | {cells[0]} | {papers[0]} | {' | '.join(cells[1:])} | {papers[1]} |", flush=True)
    full = distserve(2.5, "3 GPUs, the same rate a GPU").summary["pools"]["decode"]
    used = " and ".join(
        f"{full['kv'][key]:.0%} {word}" for key, word in (("peak_use", "at most"), ("mean_use", "in the mean"))
    )
    print(f"the decode instance at 2.5 a GPU: {used} of its KV memory in use")


# --- Splitwise: Llama-70B on DGX, one request alone

SPLITWISE_GPUS = {"A100": "a100-sxm-80gb", "H100": "h100-sxm"}
#: Tokens of the coding trace's median prompt.
SPLITWISE_PROMPT = 1500


def splitwise(gpu: str, overlap: str, nics: int | None, prompt: int = SPLITWISE_PROMPT) -> tuple[float, float, float]:
    """Return the times in ms of a prefill, of the transfer before the second token, and of a decode step.

    `nics` of a machine of eight GPUs that a transfer uses; all of them if None.
    """
    pool = {
        "gpu": SPLITWISE_GPUS[gpu],
        "tensor_parallel": 8,
        "scheduler": {"version": "none", "max_num_batched_tokens": 16_384},
    }
    load = {"arrivals": {"process": "all_at_once"}, "requests": 1, "prompt_tokens": prompt, "output_tokens": 10}
    handover = {"mode": "push", "overlap": overlap, "first_token": "prefill"}
    if overlap == "layerwise":
        handover["group_setup"] = "0s"  # MSCCL++: the GPU itself puts a layer's KV, without the CPU
    links: Mapping = {"placement": "apart"}
    if nics is not None:
        links["network"] = {"nics_per_node": nics}
    pools = {role: pool | {"role": role} for role in ("prefill", "decode")}
    record = simulate("llama-2-70b", load, pools, handover=handover, links=links).record
    exposed_ns = int(record.transfers.arrived_ns[0] - record.transfers.prefill_end_ns[0])
    decode = record.rows(record.pools[1])
    step_ns = int(record.steps.end_ns[decode][0] - record.steps.start_ns[decode][0])
    return float(record.requests.first_token_ns[0]) / 1e6, exposed_ns / 1e6, step_ns / 1e6


def print_splitwise() -> None:
    print("| GPU | transfer | NICs | prompt | prefill, ms | exposed, ms | of the prefill | of a decode step |")
    print("|---|---|---|---|---|---|---|---|")
    for gpu in SPLITWISE_GPUS:
        for overlap in ("none", "layerwise"):
            for nics in (None, 1):
                for prompt in (512, SPLITWISE_PROMPT, 4000):
                    prefill, exposed, step = splitwise(gpu, overlap, nics, prompt)
                    shares = f"{exposed / prefill:.1%} | {exposed / step:.1%}"
                    print(f"| {gpu} | {overlap} | {nics or 8} | {prompt} | {prefill:.1f} | {exposed:.2f} | {shares} |")


# --- xPyD: Llama-3.1-8B on up to four A100 behind a toy proxy, 100 requests of 1,000 and 100 tokens at 25 a second

XPYD = ("1P1D", "2P1D", "3P1D", "1P2D", "2P2D")


def xpyd(split: str) -> tuple[float, float, float]:
    """Return output tokens a second, median TTFT and median gap in ms."""
    prefills, decodes = int(split[0]), int(split[2])
    pool = {"gpu": "a100-sxm-80gb"}
    pools = {
        "prefill": pool | {"role": "prefill", "replicas": prefills},
        "decode": pool | {"role": "decode", "replicas": decodes},
    }
    summary = simulate("llama-3.1-8b", poisson(25.0, 100, 1000, 100), pools).summary
    latency = summary["latency"]
    return summary["throughput"]["output_tokens_per_s"], latency["ttft_ms"]["p50"], latency["itl_ms"]["p50"]


def print_xpyd() -> None:
    print("| | output tokens/s | measured | TTFT p50, ms | measured | ITL p50, ms | measured |")
    print("|---|---|---|---|---|---|---|")
    rows = {(row["draft_or_method"], row["metric"]): row["value"] for row in measured() if "xPyD" in row["feature"]}
    metrics = ("output throughput", "TTFT P50", "ITL P50")
    for split in XPYD:
        cells = (f"{ours:,.0f} | {rows[split, metric]}" for ours, metric in zip(xpyd(split), metrics, strict=True))
        print(f"| {split} | {' | '.join(cells)} |")


PRINTERS = {"sarathi": print_sarathi, "distserve": print_distserve, "splitwise": print_splitwise, "xpyd": print_xpyd}


def main() -> None:
    asked = sys.argv[1] if len(sys.argv) > 1 else ""
    if asked not in PRINTERS:
        raise SystemExit(__doc__)
    PRINTERS[asked]()


if __name__ == "__main__":
    main()
