"""Runs of given requests under an affine step law, which several files of cases share.

The law is a step of 8 ms and 50 us a token unless a case says otherwise: that of the catalogue's reference simulator.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.study.run import Run
from tests.helpers import PLACEHOLDER, request_table, run, scenario

LAW = {"base": "8ms", "per_token": "50us"}
#: Arrival in seconds, prompt tokens and output tokens of each request.
Requests = list[tuple[float, int, int]]


def simulate(requests: Requests, *, law: dict[str, Any] = LAW, blocks: int = 10**8, **scheduler: Any) -> Run:
    arrivals, prompts, outputs = zip(*requests, strict=True)
    table = request_table([round(arrival * 1e9) for arrival in arrivals], prompts, outputs)
    settings = {"max_num_batched_tokens": 8192, "max_num_seqs": 256} | scheduler
    return run(scenario(PLACEHOLDER, law, scheduler=settings, memory={"kv_blocks": blocks}), table)


def ttft_s(finished: Run, chosen: slice) -> np.ndarray:
    requests = finished.record.requests
    return ((requests.first_token_ns - requests.arrival_ns) / 1e9)[chosen]
