"""Generator of the sample traces of this folder: `python traces/generate_samples.py [FOLDER]`.

The Azure-like samples are no excerpts. They are drawn from percentiles that were measured once on the public
Azure LLM inference traces of 2023 (https://github.com/Azure/AzurePublicDataset,
AzureLLMInferenceDataset2023.md): of the gaps between arrivals, the prompt tokens and the generated tokens,
each independent of the others and of earlier values. Each quantity takes one value from each of N equal
shares of probability, in random order, so that even a small sample has the rate, the burstiness and the
quantiles of the original.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator.common.randomness import stream
from simulator.scenario import lengths, traffic
from simulator.workload import load_requests

SEED = 2023
PERCENTILES = (0, 1, 5, 10, 25, 50, 75, 90, 95, 98, 99, 99.5, 99.9, 100)
BEGIN = datetime(2024, 1, 1)


@dataclass(frozen=True, slots=True)
class Measured:
    """Values at `PERCENTILES` of one public trace: of the gaps between arrivals in us, and of the tokens."""

    name: str
    rows: int
    gap_us: tuple[int, ...]
    context_tokens: tuple[int, ...]
    generated_tokens: tuple[int, ...]


#: From AzureLLMInferenceTrace_conv.csv, 19,366 requests.
CONV = Measured(
    name="azure_conv_sample",
    rows=2000,
    gap_us=(
        *(2, 546, 6320, 16144, 48272, 118424, 246733, 420656),
        *(565194, 749268, 889671, 1034205, 1411171, 4314579),
    ),
    context_tokens=(2, 29, 181, 207, 396, 1020, 1189, 2734, 4083, 4098, 4142, 4831, 6179, 14050),
    generated_tokens=(7, 16, 41, 54, 85, 129, 395, 424, 451, 540, 601, 643, 954, 1000),
)
#: From AzureLLMInferenceTrace_code.csv, 8,819 requests.
CODE = Measured(
    name="azure_code_sample",
    rows=1000,
    gap_us=(
        *(6, 22, 88, 209, 2077, 63798, 103996, 272856),
        *(400776, 798746, 2205070, 9978331, 79232503, 217168952),
    ),
    context_tokens=(3, 17, 75, 147, 578, 1469, 2744, 5188, 7303, 7436, 7436, 7436, 7437, 7437),
    generated_tokens=(6, 6, 6, 7, 9, 13, 24, 55, 90, 171, 251, 359, 825, 1899),
)

#: Made up, not measured: an assistant with three kinds of requests and a burst in every half minute.
CHAT = traffic.Workload(
    arrivals=traffic.Bursts(rate=2.5, burst_rate=12.0, every=30 * 10**9, length=5 * 10**9),
    requests=600,
    correlation=0.3,
    classes=(
        traffic.RequestClass(
            name="chat",
            weight=7.0,
            prompt_tokens=lengths.LogNormal(mean=600.0, cv=1.2, max=8000),
            output_tokens=lengths.LogNormal(mean=250.0, cv=0.8, max=2000),
        ),
        traffic.RequestClass(
            name="summary",
            weight=2.0,
            prompt_tokens=lengths.LogNormal(mean=5000.0, cv=0.6, max=16000),
            output_tokens=lengths.Uniform(min=100, max=400),
        ),
        traffic.RequestClass(
            name="title",
            weight=1.0,
            prompt_tokens=lengths.Uniform(min=100, max=800),
            output_tokens=lengths.Geometric(mean=8.0, max=32),
        ),
    ),
)


def azure_sample(measured: Measured) -> str:
    """Return the text of an Azure trace with the percentiles of `measured`."""
    gaps_us = _drawn(measured, "gap_us", measured.rows)
    arrivals_us = np.cumsum(gaps_us) - gaps_us[0]
    context = _drawn(measured, "context_tokens", measured.rows)
    generated = _drawn(measured, "generated_tokens", measured.rows)
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens"]
    for arrival_us, *tokens in zip(arrivals_us.tolist(), context.tolist(), generated.tolist(), strict=True):
        time = BEGIN + timedelta(microseconds=arrival_us)
        lines.append(f"{time:%Y-%m-%d %H:%M:%S.%f}0,{tokens[0]},{tokens[1]}")
    return "\n".join(lines) + "\n"


def _drawn(measured: Measured, quantity: str, n: int) -> NDArray[np.int64]:
    """Return one value from the middle of each of `n` equal shares of probability, in random order."""
    logs = np.log(getattr(measured, quantity))
    quantiles = np.interp((np.arange(n) + 0.5) / n, np.array(PERCENTILES) / 100, logs)
    order = stream(SEED, f"samples.{measured.name}.{quantity}").permutation(n)
    values: NDArray[np.int64] = np.rint(np.exp(quantiles)).astype(np.int64)
    return values[order]


def chat_sample() -> str:
    """Return the text of a native JSON lines trace with classes."""
    table = load_requests(CHAT, SEED, Path)
    lines = []
    for request in (table[i] for i in range(len(table))):
        row = {
            "arrival_s": round((request.arrival_ns - int(table.arrival_ns[0])) / 10**9, 6),
            "prompt_tokens": request.prompt_tokens,
            "output_tokens": request.output_tokens,
            "class": request.class_name,
        }
        lines.append(json.dumps(row))
    return "\n".join(lines) + "\n"


def write_samples(folder: Path) -> None:
    """Write all samples into `folder`."""
    for measured in (CONV, CODE):
        (folder / f"{measured.name}.csv").write_text(azure_sample(measured), encoding="utf-8", newline="\n")
    (folder / "chat_sample.jsonl").write_text(chat_sample(), encoding="utf-8", newline="\n")


if __name__ == "__main__":
    write_samples(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
