"""The complete vLLM policy against recordings of the real scheduler, step for step and to the nanosecond.

A few recordings are in tests/recordings; all of them are beside the checkout where there is reference data.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cost_models import LinearLaw
from simulator.engine.logs.step_recorder import StepRecorder
from simulator.engine.service import Service
from simulator.engine.simulation import simulate
from simulator.recordings.check import check_scheduler, replay_of
from simulator.recordings.reader import Recording, read_recording
from simulator.scheduling import Speculation
from simulator.workload.requests import RequestTable
from tests.conftest import ROOT
from tests.helpers import PLACEHOLDER, request_table, scenario

KEPT = sorted(path.parent for path in (ROOT / "tests" / "recordings").glob("*/config.json"))
ALL = sorted(path.parent for path in (ROOT.parent / "shared" / "oracle").glob("*/config.json"))


def name_of(folder: Path) -> str:
    return folder.name


@pytest.mark.parametrize("folder", KEPT, ids=name_of)
def test_kept_recordings_are_identical(folder: Path) -> None:
    verdict = check_scheduler(folder, checks=True)
    assert verdict.identical, verdict
    assert verdict.steps == len(read_recording(folder).steps) > 0


@pytest.mark.parametrize("folder", ALL, ids=name_of)
def test_all_recordings_are_identical(folder: Path) -> None:
    verdict = check_scheduler(folder)
    assert verdict.identical, verdict


def by_clock(folder: Path) -> bool:
    """Return whether a request table can have this recording's trace, and a scenario its numbers of drafts."""
    config = json.loads((folder / "config.json").read_text())
    if config.get("spec", {}).get("method") == "ngram" and not config.get("async_scheduling"):
        return False  # each proposal has a random number of drafts
    return folder.name not in ("apc_hash_ids", "small_multiturn", "tiny_apc")


@pytest.mark.parametrize("folder", [folder for folder in ALL or KEPT if by_clock(folder)], ids=name_of)
def test_the_engine_with_its_clock_writes_the_same_recording(folder: Path, tmp_path: Path) -> None:
    recording = read_recording(folder)
    settings, law = recording.settings, recording.law
    assert law is not None
    keys = {name: getattr(settings.scheduler, name) for name in settings.scheduler.__slots__ if name != "version"}
    keys |= {"context_overflow": "cut", "pool_overflow": "wait"}
    speculation = settings.speculation
    pool = {} if speculation is None else {"speculation": speculating(speculation)}
    asked = scenario(
        PLACEHOLDER, {"base": "5ms"}, scheduler=keys, memory={"block_size": settings.block_size}, pool=pool
    )
    cost = LinearLaw(law["base_ns"], law["per_token_ns"], per_context_token_ns=law["per_ctx_ns"])
    table = table_of(recording)
    recorder = StepRecorder(
        tmp_path / "0", asked.deployment.pools["main"], settings.kv_blocks, settings.max_model_len, table
    )
    service = Service(
        cost=cost,
        kv_blocks=settings.kv_blocks,
        max_model_len=settings.max_model_len,
        gpus=1,
        acceptance=accepted_in(recording),
    )
    if folder.name == "tiny_oversize":
        with pytest.raises(RuntimeError, match="nothing can be scheduled any more"):
            simulate(asked, table, [service], observers=lambda _: recorder)
    else:
        simulate(asked, table, [service], observers=lambda _: recorder)
    recorder.close()
    text = gzip.decompress((tmp_path / "0" / "steps.jsonl.gz").read_bytes()).decode()
    for ours, theirs in zip(text.splitlines(), recording.steps, strict=True):
        assert json.loads(ours) == with_text_ids(theirs)


def speculating(speculation: Speculation) -> dict[str, Any]:
    """Return the section of a scenario; accepted drafts are given separately."""
    keys: dict[str, Any] = {"method": speculation.method, "num_speculative_tokens": speculation.k}
    if speculation.method == "draft_model":
        keys["model"] = "llama-3.2-1b"
    return keys if speculation.method == "ngram" else keys | {"pass_time": "1ms"}


class Recorded:
    """Accepted drafts of each verification of a request in the record."""

    def __init__(self, recording: Recording) -> None:
        self._runs: dict[str, list[int]] = {str(request.id): [] for request in recording.requests}
        self._names = list(self._runs)
        for line in recording.steps:
            padded = {str(name) for name in line.get("draft_pad", ())}
            for name, (_, accepted) in line.get("accepted", {}).items():
                if name not in padded:
                    self._runs[name].append(accepted)

    def runs(self, index: int) -> Iterator[int]:
        yield from self._runs[self._names[index]]
        while True:
            yield 0  # drafts that no step verifies


def accepted_in(recording: Recording) -> Recorded | None:
    return None if recording.settings.speculation is None else Recorded(recording)


def table_of(recording: Recording) -> RequestTable:
    requests, count = recording.requests, len(recording.requests)
    texts = [recording.contents.contents[index].texts or ((-1, 0),) for index in range(count)]
    return request_table(
        arrival_ns=[request.arrival_ns for request in requests],
        prompt_tokens=[request.prompt_tokens for request in requests],
        output_tokens=[request.output_tokens for request in requests],
        max_tokens=[request.max_tokens for request in requests],
        ids=[str(request.id) for request in requests],
        priority=[request.priority for request in requests],
        prefix_id=[text[0][0] for text in texts],
        prefix_tokens=[text[0][1] for text in texts],
    )


def with_text_ids(line: dict[str, Any]) -> dict[str, Any]:
    ids = {key: [str(each) for each in line[key]] for key in ("new", "resumed", "preempted", "finished")}
    return line | ids | {"sched": [[str(index), *counts] for index, *counts in line["sched"]]}


def test_memory_is_bounded_by_the_pool() -> None:
    replay = replay_of(read_recording(ROOT / "tests" / "recordings" / "apc_hash_ids"))
    replay.run()
    pool = replay.pool
    state = (pool._key, pool._owner, pool._heirs, pool._idle, pool._unhashed, pool._extra)  # type: ignore[attr-defined]
    assert all(len(each) <= pool.blocks for each in state)
    assert pool.free == pool.blocks
