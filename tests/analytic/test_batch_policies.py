"""Batch policies against closed forms: chunk sizes, static batches, reservations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.results.record import RunRecord
from simulator.results.segments import token_times
from simulator.scenario.units import parse_duration
from simulator.workload.requests import RequestTable
from tests.helpers import PLACEHOLDER, request_table, run, scenario

MS = 10**6
DECODES, PROMPT = 32, 8192
#: 8 ms + 0.05 ms a token.
LAW = {"base": "8ms", "per_token": "50us"}


def step_ns(tokens: int) -> int:
    return 8 * MS + 50_000 * tokens


def beside_decodes(**scheduler: Any) -> tuple[RunRecord, int, int]:
    """Return the record of a prompt at the end of a step of 32 decodes, its TTFT, and their longest gap."""
    at_ns = 20 * step_ns(DECODES)  # the first step computes 32 prompts of one token, the others decode
    table = request_table([0] * DECODES + [at_ns], [1] * DECODES + [PROMPT], [400] * DECODES + [1])
    record = run(scenario(PLACEHOLDER, LAW, scheduler=scheduler), table).record
    gaps = [int(np.diff(token_times(record, decode)).max()) for decode in range(DECODES)]
    assert len(set(gaps)) == 1
    return record, int(record.requests.first_token_ns[-1] - record.requests.arrival_ns[-1]), gaps[0]


def ms(text: str) -> int:
    return parse_duration(text)


@pytest.mark.parametrize("policy", ["sarathi", "vllm"])
@pytest.mark.parametrize(
    ("budget", "chunks", "gap", "ttft"),
    [
        (256, 37, "20.8ms", "764.8ms"),
        (512, 18, "33.6ms", "582.4ms"),
        (1024, 9, "59.2ms", "496ms"),
        (2048, 5, "110.4ms", "457.6ms"),
        (4096, 3, "212.8ms", "438.4ms"),
        (8192, 2, "417.6ms", "428.8ms"),
    ],
)
def test_a_chunk_size_trades_ttft_for_the_gaps_of_others(
    policy: str, budget: int, chunks: int, gap: str, ttft: str
) -> None:
    """Each chunk has the budget without the decodes; each token comes at most a full step after the one before."""
    record, ttft_ns, gap_ns = beside_decodes(policy=policy, max_num_batched_tokens=budget)
    assert np.count_nonzero(record.steps.prefill_tokens) - 1 == chunks == -(-PROMPT // (budget - DECODES))
    assert gap_ns == step_ns(budget) == ms(gap)
    assert ttft_ns == ms(ttft)


@pytest.mark.parametrize(
    ("scheduler", "gap", "ttft"),
    [
        ({"policy": "orca"}, "419.2ms", "419.2ms"),
        ({"policy": "sarathi", "chunked": False}, "419.2ms", "419.2ms"),
        ({"policy": "vllm", "enable_chunked_prefill": False}, "419.2ms", "419.2ms"),
        ({"policy": "prefill_first"}, "427.2ms", "417.6ms"),
        ({"policy": "sarathi", "chunked": False, "batching": "alternating"}, "427.2ms", "417.6ms"),
    ],
)
def test_a_prompt_that_is_not_cut(scheduler: dict[str, Any], gap: str, ttft: str) -> None:
    """Beside the decodes it is a step of 8,224 tokens; before them one of 8,192, and their own step comes on top."""
    _, ttft_ns, gap_ns = beside_decodes(**scheduler)
    assert gap_ns == ms(gap)
    assert ttft_ns == ms(ttft)


def test_chunks_and_decodes_in_turn() -> None:
    """A gap is a chunk and a step of decodes, and so is what each chunk but the last adds to the TTFT."""
    _, ttft_ns, gap_ns = beside_decodes(policy="sarathi", batching="alternating", max_num_batched_tokens=1024)
    assert gap_ns == step_ns(1024) + step_ns(DECODES)
    assert ttft_ns == 8 * step_ns(1024) + 7 * step_ns(DECODES)


# --- static batches


def exponential_table(requests: int, mean: float) -> RequestTable:
    outputs = np.ceil(np.random.default_rng(4).exponential(mean, requests)).astype(int)
    return request_table([0] * requests, [1] * requests, outputs.tolist())


def useful_share(record: RunRecord, rows: int) -> float:
    """Return the share of the batch positions of all steps with a token."""
    return float(record.requests.emitted_tokens.sum()) / (rows * len(record.steps.end_ns))


def test_a_static_batch_runs_as_long_as_its_longest() -> None:
    """Of 8 exponential lengths the longest is H_8 times the mean: 1/H_8 = 36.8% of the places are useful.

    Lengths are whole tokens, and so half a token longer in the mean.
    """
    table = exponential_table(8 * 400, mean=60.0)
    record = run(scenario(PLACEHOLDER, {"base": "1ms"}, scheduler={"policy": "static"}), table).record
    batches = table.output_tokens.reshape(-1, 8)
    longest = batches.max(axis=1)
    assert len(record.steps.end_ns) == longest.sum()
    shares = batches.mean(axis=1) - longest * (batches.mean() / longest.mean())
    error = shares.std() / longest.mean() / np.sqrt(len(batches))
    harmonic = sum(1 / n for n in range(1, 9))
    assert useful_share(record, 8) == pytest.approx(60.5 / (60 * harmonic + 0.5), abs=3 * error)
    assert 60.5 / (60 * harmonic + 0.5) == pytest.approx(0.368, abs=0.003)


def test_iteration_level_scheduling_fills_the_places() -> None:
    table = exponential_table(8 * 100, mean=60.0)
    record = run(scenario(PLACEHOLDER, {"base": "1ms"}, scheduler={"policy": "orca", "max_num_seqs": 8}), table).record
    assert useful_share(record, 8) > 0.95


def test_a_padded_batch_takes_the_time_of_its_rectangle() -> None:
    """Prompts of 10, 20 and 30 tokens, answers of 2, 3 and 5: 3 x 30 tokens, then 3 rows of 31, 32, 33, 34."""
    table = request_table([0] * 3, [10, 20, 30], [2, 3, 5])
    law = {"base": "1ms", "per_token": "1us", "per_context_token": "1ns"}
    ends = {}
    for padded in (False, True):
        asked = scenario(PLACEHOLDER, law, scheduler={"policy": "static", "padded": padded})
        ends[padded] = np.diff(run(asked, table).record.steps.end_ns, prepend=0).tolist()
    assert ends[True] == [MS + 90_000 + 90] + [MS + 3_000 + 3 * context for context in (31, 32, 33, 34)]
    contexts = [11 + 21 + 31, 22 + 32, 33, 34]
    tokens = [3, 2, 1, 1]
    assert ends[False] == [MS + 60_000 + 60] + [
        MS + 1_000 * n + context for n, context in zip(tokens, contexts, strict=True)
    ]


# --- reservations


@pytest.mark.parametrize("scheduler", [{"policy": "orca"}, {"policy": "vllm"}])
@pytest.mark.parametrize(("max_tokens", "admitted"), [(256, 26), (1000, 10)])
def test_a_reservation_limits_how_many_run(scheduler: dict[str, Any], max_tokens: int, admitted: int) -> None:
    """TGI#1435 and #1221: as many run as could reach `max_tokens`, KV / (prompt + max_tokens); waiting requests,
    of any number, do not slow down running ones."""
    memory = {"kv_blocks": 12_288, "block_size": 1, "allocation": "contiguous_exact"}
    served_ns = []
    for clients in (60, 300):
        table = request_table([0] * clients, [200] * clients, [20] * clients, [max_tokens] * clients)
        record = run(scenario(PLACEHOLDER, LAW, scheduler=scheduler, memory=memory), table).record
        assert record.steps.running.max() == admitted == 12_288 // (200 + max_tokens)
        requests = record.requests
        served_ns.append(requests.finish_ns - requests.scheduled_ns)
        assert record.steps.waiting[0] == clients - admitted
    assert np.median(served_ns[0]) == np.median(served_ns[1])


# --- fragmentation


def wasted(table: RequestTable, **memory: Any) -> float:
    asked = scenario(PLACEHOLDER, LAW, scheduler={"max_model_len": 2048, "max_num_seqs": 10**6}, memory=memory)
    share: float = run(asked, table).summary["kv"]["wasted_share"]
    return share


def geometric_prompts(requests: int) -> RequestTable:
    """Return prompt lengths with a mean of 338, for requests of one step each."""
    lengths = np.minimum(np.random.default_rng(3).geometric(1 / 338, requests), 2047)
    return request_table([0] * requests, lengths.tolist(), [1] * requests)


@pytest.mark.parametrize(("block_size", "share"), [(1, 0.0), (8, 0.0103), (16, 0.0219), (32, 0.0445), (128, 0.1665)])
def test_paging_wastes_a_part_of_the_last_block(block_size: int, share: float) -> None:
    """1 - m / (B / (1 - (1 - 1/m)^B)) for geometric lengths of mean m."""
    exact = 1 - 338 / (block_size / (1 - (1 - 1 / 338) ** block_size))
    assert exact == pytest.approx(share, abs=5e-5)
    assert wasted(geometric_prompts(20_000), block_size=block_size) == pytest.approx(exact, rel=0.02, abs=1e-9)


def test_memory_in_one_piece_for_the_longest_context_is_mostly_empty() -> None:
    """1 - 338 / 2048 = 83.5%."""
    share = wasted(geometric_prompts(20_000), block_size=16, allocation="contiguous")
    assert share == pytest.approx(1 - 338 / 2048, abs=0.005)


def test_chats_waste_most_of_a_reservation_and_less_than_4_percent_of_pages() -> None:
    """Kwon et al. (SOSP '23, figure 2): 79.6% of the longest context's slots are wasted, 61.8% of a known length
    (there with holes between them, which are left out here), and 3.7% of pages.

    The means of lengths are those of its ShareGPT load, 161 and 338 tokens.
    """
    draw = np.random.default_rng(8)
    prompts, outputs = (np.minimum(np.ceil(draw.exponential(mean, 1000)), 1000).astype(int) for mean in (161, 338))
    table = request_table(np.arange(1000) * 10 * MS, prompts.tolist(), outputs.tolist())
    assert wasted(table, allocation="contiguous") == pytest.approx(0.808, abs=0.005)
    assert wasted(table, allocation="contiguous_exact") == pytest.approx(0.383, abs=0.005)
    assert wasted(table) == pytest.approx(0.019, abs=0.001)
