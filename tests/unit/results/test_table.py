"""The table for people."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import numpy as np

from simulator.common.notes import Note
from simulator.results.columns import OffloadColumns, TransferColumns
from simulator.results.latency_table import latency_tables
from simulator.results.metrics import summarise
from simulator.results.record import PoolFacts, RunRecord, TierFacts
from simulator.results.table import print_summary
from tests.unit.results.synthetic import MS, always_up, queue_record, refused, replay, scenario

ONE_AT_A_TIME = "deployment.pools.main.scheduler.max_num_seqs=1"


def printed(
    record: RunRecord, *overrides: str, notes: tuple[Note, ...] = (), usd_per_hour: tuple[float, ...] | None = None
) -> str:
    stream = io.StringIO()
    print_summary(summarise(record, scenario(*overrides), notes, usd_per_hour), stream)
    return stream.getvalue()


def run() -> RunRecord:
    generator = np.random.default_rng(70)
    return replay(
        np.sort(generator.integers(0, 9_000 * MS, 400)),
        generator.integers(1, 9_000, 400),
        generator.integers(1, 90, 400),
        slots=32,
        kv_blocks=20_000,
        class_id=np.arange(400) % 2,
        class_names=("chat", "a class with quite a long name"),
    )


def test_it_says_what_a_planner_asks_for() -> None:
    text = printed(run(), "slo={ttft: 1s}", "run.warmup=1s", usd_per_hour=(2.5,))
    facts = ("400 submitted, 400 completed", "output tokens/s", "goodput", "mean batch", "no preemptions", "GPU-hours")
    rows = ("TTFT", "ITL", "TPOT", "E2E", "queue", "95% interval", "prompt tokens", "output tokens", "class", "(fixed)")
    for words in (*facts, *rows):
        assert words in " ".join(text.split())
    assert "client TTFT" not in text


def test_it_fits_80_columns_without_colour() -> None:
    long = Note("a_note", "a word and another " * 20)
    text = printed(run(), "slo={ttft: 1s}", "workload.max_concurrency=8", notes=(long,), usd_per_hour=(2.5,))
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text
    assert "…" in text  # the long class name, cut
    assert text.count("another") == 20


def test_missing_intervals_are_named_and_not_invented() -> None:
    words = " ".join(printed(queue_record(np.random.default_rng(71), 30, 0.5), ONE_AT_A_TIME).split())
    assert "No 95% intervals: the run has too few independent observations for this: simulate more" in words
    assert "95% interval, ms" not in words
    words = " ".join(printed(queue_record(np.random.default_rng(71), 500, 0.2), ONE_AT_A_TIME).split())
    assert "95% interval, ms" in words
    assert re.search(
        r"requests are equivalent to [0-9]+ independent observations; intervals need at least: mean 80, p50 16", words
    )


def test_intervals_that_are_missing_for_rare_values_are_told_so() -> None:
    """A statistic with enough observations may still have no interval."""

    def legend(reasons: dict[str, str]) -> str:
        block = {"mean": 1.0, "p50": 1.0, "p90": 1.0, "p95": 1.0, "p99": 1.0, "max": 1.0, "ci95_reason": reasons}
        block["ci95"] = dict.fromkeys(("mean", "p50", "p95", "p99"), None) | {"mean": [1.0, 1.0]}
        needed = {"independent_observations": 264, "needed": {"p95": 160}}
        *_, text = latency_tables({"latency": {"ttft_ms": block}, "intervals": {"method": "batches"} | needed})
        assert "equivalent to 264 independent observations; intervals need at least: p95 160." in str(text)
        return str(text)

    assert "(-), values beyond the statistic occurred too rarely." in legend({"p95": "tail_too_rare"})
    both = legend({"p95": "tail_too_rare", "p99": "run_too_short"})
    assert "the observations are too few, or values beyond the statistic occurred too rarely: ci95_reason" in both
    assert "rarely" not in legend({"p99": "run_too_short"}) and "(-)" not in legend({})


def test_beside_busy_stands_the_load() -> None:
    """A device that is busy all the time need not be full."""
    words = " ".join(printed(queue_record(np.random.default_rng(71), 500, 0.5), ONE_AT_A_TIME).split())
    assert re.search(r"busy a step ran [0-9.]+% of the time, .* load about [45][0-9]% of the capacity of full", words)
    words = " ".join(printed(queue_record(np.random.default_rng(71), 500, 3.0), ONE_AT_A_TIME).split())
    assert "load above the capacity of full batches" in words
    assert "load" not in printed(queue_record(np.random.default_rng(71), 50, 0.5), ONE_AT_A_TIME).split("KV memory")[0]


def test_refusals_are_explained() -> None:
    assert "1 rejected (refused: kv pool 1)" in printed(refused())


def test_an_interrupted_run_is_called_one() -> None:
    assert "interrupted: not complete" in printed(replace(run(), complete=False))
    assert "interrupted" not in printed(run())


def test_cpu_memory_has_a_line() -> None:
    record = replay([0, 0], [64, 64], [2, 2])
    found = OffloadColumns(
        *(np.array(column) for column in ([0, 1], [0, 0], [48, 32], [0, 0], [5, -1], [6 * 10**9, 0]))
    )
    record = replace(record, offload=found, tiers=(TierFacts(0, 9, 4, 1, 10**9, 10**9),))
    text = " ".join(printed(record).split())
    assert "48 tokens reloaded (6 GB), 32 recomputed instead, 4 GB written" in text


def test_pools_have_a_table_and_transfers_a_line() -> None:
    record = replay([0, 0], [64, 64], [2, 2], replicas=2, kv_blocks=50)
    times = [np.array(column) * MS for column in ([5, 6], [5, 6], [5, 6], [9, 12], [9, 12])]
    names = ([0, 1], [0, 0], [1, 1])
    moved = TransferColumns(*map(np.array, names), *times, np.array([10**9, 10**9]), np.array([0, 1]), np.array([0, 0]))
    pools = (PoolFacts("first", "prefill", 0, 1, 1, 2, 50, 16), PoolFacts("second", "decode", 1, 1, 1, 4, 80, 16))
    text = printed(replace(record, transfers=moved, pools=pools, replica_states=always_up(2)))
    assert "2 of 2, 2 GB, 1 failed, 0 prompts recomputed, prefill to arrival p50 5 ms" in " ".join(text.split())
    assert re.search(r"first +prefill +2 ", text)
    assert re.search(r"second +decode +4 ", text)
    assert "blocks a replica" not in text  # they differ
