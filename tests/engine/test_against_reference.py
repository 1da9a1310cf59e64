"""The complete policy against an independent statement of the rules, which itself is held to the recordings.

The recordings are few and each has few settings; here are hundreds of short runs that mix all of them.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from simulator.recordings.check import check_scheduler
from tests.conftest import ROOT
from tests.engine import reference_vllm

Line = dict[str, Any]

RECORDINGS = sorted(path.parent for path in (ROOT / "tests" / "recordings").glob("*/config.json"))
BATCHES, RUNS, MOST_STEPS = 10, 60, 400
#: What every batch of runs must show, or it would prove little.
EVENTS = ("preempted", "resumed", "hits", "drafts", "accepted", "draft_pad")


class RecordedDrafts:
    """Outcomes of drafts in a recording."""

    def __init__(self, steps: list[Line]) -> None:
        self.steps = steps

    def accepted(self, step: int, name: str, drafts: int, padded: bool) -> int:
        return self.steps[step]["accepted"][name][1]

    def proposed(self, step: int, name: str, prefilling: bool) -> int | None:
        return self.steps[step]["proposed"].get(name)


class RandomDrafts:
    """Every draft is right with the same chance, up to the first that is not; fillers never are."""

    def __init__(self, rng: Random, spec: Line | None) -> None:
        self.rng, self.spec = rng, spec or {}

    def accepted(self, step: int, name: str, drafts: int, padded: bool) -> int:
        right = 0
        while right < drafts and not padded and self.rng.random() < self.spec["accept_p"]:
            right += 1
        return right

    def proposed(self, step: int, name: str, prefilling: bool) -> int | None:
        if prefilling:
            return None
        return self.rng.randint(0, self.spec["k"]) if self.spec["method"] == "ngram" else self.spec["k"]


@pytest.mark.parametrize("folder", RECORDINGS, ids=lambda folder: folder.name)
def test_the_reference_equals_the_recordings(folder: Path) -> None:
    recorded, config = lines(folder, "steps"), json.loads((folder / "config.json").read_text())
    ours = reference_vllm.steps(config, lines(folder, "trace"), RecordedDrafts(recorded), 1 + len(recorded))
    for line, theirs in zip(ours, recorded, strict=True):
        assert line == theirs
        assert all(list(line[key]) == list(theirs[key]) for key in ("hits", "emitted"))


@pytest.mark.parametrize("batch", range(BATCHES))
def test_the_complete_policy_equals_the_reference(batch: int, tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for seed in range(batch * RUNS, (batch + 1) * RUNS):
        rng = Random(seed)
        config = random_config(rng)
        trace = random_trace(rng, config)
        steps = reference_vllm.steps(config, trace, RandomDrafts(rng, config["spec"]), MOST_STEPS)
        folder = tmp_path / f"seed_{seed}"
        write(folder, config | {"stopped": len(steps) == MOST_STEPS}, trace, steps)
        verdict = check_scheduler(folder, checks=True)
        assert verdict.identical, f"{config}\n{verdict}"
        for line in steps:
            happened = line | {"hits": any(line["hits"].values())}
            seen.update(key for key in EVENTS if happened.get(key))
    assert min(seen[key] for key in EVENTS) > 10, seen


def random_config(rng: Random) -> Line:
    """Return settings that limit each other: context, budget and pool are small."""
    context, block_size = rng.choice([10, 24, 33, 48, 64, 100, 128, 200]), rng.choice([1, 2, 3, 4, 4, 5, 8, 16, 32])
    full, chunked = -(-context // block_size), chance(rng, 0.8)  # blocks of the longest request
    scarce, tight, ample = rng.randint(1, full), full + rng.randint(0, full), full * rng.randint(2, 5)
    budgets = [2, 3, 5, 8, 8, 12, 16, 24, 48, 97, 256] if chunked else [context, context + 1, 2 * context]
    seqs = rng.choice([1, 2, 4, 6, 8, 16, 32])
    return {
        "max_num_seqs": seqs,
        "max_num_active_seqs": rng.randint(1, seqs) if chance(rng, 0.2) else None,
        "max_num_batched_tokens": rng.choice(budgets),
        "max_model_len": context,
        "block_size": block_size,
        "num_gpu_blocks": 1 + rng.choices([scarce, tight, ample], [1, 6, 3])[0],
        "enable_chunked_prefill": chunked,
        "enable_prefix_caching": chance(rng, 0.6),
        "policy": rng.choice(["fcfs", "priority"]),
        "long_prefill_token_threshold": rng.choice([0, 0, 0, 1, 3, 8, 30]),
        "long_prefill_token_threshold_adaptive": chance(rng, 0.2),
        "scheduler_reserve_full_isl": chance(rng, 0.6),
        "watermark": rng.choice([0.0, 0.0, 0.0, 0.05, 0.1, 0.33]),
        "prefill_schedule_interval": rng.choice([1, 1, 1, 2, 3, 5]),
        "async_scheduling": chance(rng, 0.45),
        "spec": random_speculation(rng),
        "time": {"base_ns": rng.choice([0, 1000, 5_000_000]), "per_token_ns": 20_000, "per_ctx_ns": 10},
    }


def random_speculation(rng: Random) -> Line | None:
    if chance(rng, 0.4):
        return None
    method = rng.choice(["ngram", "eagle", "draft_model"])
    return {"method": method, "k": rng.randint(1, 5), "accept_p": rng.choice([0.0, 0.3, 0.6, 0.8, 1.0])}


def random_trace(rng: Random, config: Line) -> list[Line]:
    """Return requests that arrive together or one by one, some of them too long for the context."""
    context, size = config["max_model_len"], config["block_size"]
    longest_prompt = rng.choice([2, size + 1, context // 2, context + 3])
    longest_output = rng.choice([2, 10, 30, context])
    gap, urgencies = rng.choice([0, 100_000, 2_000_000, 30_000_000]), rng.choice([1, 2, 5])
    kinds = rng.choice([["own"], ["prefix"], ["hash_ids"], ["parent"], ["own", "prefix", "hash_ids", "parent"]])
    trace: list[Line] = []
    arrival = 0
    for number in range(rng.randint(4, 40)):
        arrival += rng.choice([0, 1, 1]) * rng.randint(0, gap)
        prompt = rng.randint(1, longest_prompt)
        line = {
            "id": f"r{number:02d}",
            "arrival_ns": arrival,
            "num_prefill_tokens": rng.choice([prompt, prompt, prompt, max(1, prompt // size * size), 1]),
            "num_decode_tokens": rng.randint(1, longest_output),
            "priority": rng.randint(0, urgencies),
        }
        trace.append(line | random_content(rng, rng.choice(kinds), line["num_prefill_tokens"], trace[-4:]))
    if chance(rng, 0.1):
        rng.shuffle(trace)
    return trace


def random_content(rng: Random, kind: str, prompt: int, others: list[Line]) -> Line:
    """Return the part of a prompt that it shares with others."""
    if kind == "prefix":
        return {"prefix_id": rng.randrange(2), "prefix_len": rng.randint(1, prompt)}
    if kind == "hash_ids":
        width = rng.choice([1, 3, 8, 16])
        count = -(-prompt // width)
        common, own = rng.randint(0, count), rng.randrange(10**9)
        return {"hash_block": width, "hash_ids": [*range(common), *(own + at for at in range(common, count))]}
    if kind == "parent" and others:
        parent = rng.choice(others)
        text = parent["num_prefill_tokens"] + parent["num_decode_tokens"]
        return {"parent": parent["id"], "num_prefill_tokens": max(1, text + rng.randint(-1, 9))}
    return {}


def chance(rng: Random, probability: float) -> bool:
    return rng.random() < probability


def lines(folder: Path, stem: str) -> list[Line]:
    packed = folder / f"{stem}.jsonl.gz"
    text = gzip.decompress(packed.read_bytes()).decode() if packed.exists() else (folder / packed.stem).read_text()
    return [json.loads(line) for line in text.splitlines()]


def write(folder: Path, config: Line, trace: list[Line], steps: list[Line]) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    for stem, rows in (("trace", trace), ("steps", steps)):
        (folder / f"{stem}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
