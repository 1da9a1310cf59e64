"""Runs whose columns are in files and are read in chunks: the same bytes as runs in memory."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path

import numpy as np
import pytest

import simulator
from simulator.common import disk_arrays
from simulator.engine.logs import step_log

PREEMPTED = {"deployment.pools.main.memory": {"kv_blocks": 1000}, "workload.arrivals.rate": 40}
HORIZON = {"run.horizon": "4s"}


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put every array into a file, in pieces of a few entries."""
    monkeypatch.setattr(disk_arrays, "LEAST_BYTES", 1)
    monkeypatch.setattr(disk_arrays, "CHUNK", 37)
    pack = step_log.Rows.pack
    monkeypatch.setattr(step_log.Rows, "pack", lambda rows, least=50: pack(rows, min(least, 50)))


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("bench/steady_100k", {}),
        ("bench/steady_100k", PREEMPTED | {"slo": {"ttft": "1s", "itl": {"p99": "50ms"}}}),
        ("bench/steady_100k", HORIZON | {"run.warmup": "mser5"}),
        ("bench/prompt_pool_12k", {}),
        ("bench/fleet_1m", {"workload.max_concurrency": 30}),
        ("bench/speculative_100k", {}),
        ("designs/disaggregated", {}),
        ("designs/support_chat_both", {}),
    ],
    ids=["plain", "preempted", "cut", "prefixes", "fleet", "drafts", "transfers", "offload"],
)
def test_the_bytes_are_the_same(
    name: str, overrides: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"workload.requests": 300} | overrides
    simulator.run(name, given, out=tmp_path / "memory")
    in_files(monkeypatch)
    finished = simulator.run(name, given, out=tmp_path / "files")
    assert written(tmp_path / "files") == written(tmp_path / "memory")
    read = simulator.load_results(tmp_path / "files")
    assert is_mapped(finished.record.steps.end_ns)
    assert is_mapped(read.record.requests.arrival_ns)
    assert read.requests.equals(finished.requests)


def is_mapped(column: np.ndarray) -> bool:
    base: object = column
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, memoryview) and isinstance(base.obj, mmap.mmap)


def test_a_file_goes_with_the_last_array_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_arrays, "LEAST_BYTES", 1)
    gc.collect()
    before = len(disk_arrays._mappings)
    column = disk_arrays.zeros(1000, np.int64)[500:]
    assert len(disk_arrays._mappings) == before + 1
    column[:] = 7
    disk_arrays.release()
    assert column.tolist() == [7] * 500
    del column
    assert len(disk_arrays._mappings) == before


def test_without_space_on_the_disk_columns_are_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk_arrays, "LEAST_BYTES", 1)
    monkeypatch.setattr(disk_arrays.os, "posix_fallocate", full)
    monkeypatch.setattr(disk_arrays.os, "pwrite", full)
    assert not is_mapped(disk_arrays.zeros(10, np.int64))
    spool, column = disk_arrays.Spool(), np.arange(10)
    pieces = [*spool.keep([column]), *spool.keep([column + 10])]
    assert [spool.read(piece).tolist() for piece in pieces] == [list(range(10)), list(range(10, 20))]


def test_a_spool_keeps_what_a_short_write_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_arrays, "LEAST_BYTES", 1)
    spool, column = disk_arrays.Spool(), np.arange(10)
    pieces = [*spool.keep([column]), *spool.keep([column + 10])]
    monkeypatch.setattr(disk_arrays.os, "pwrite", lambda *_: 3)
    pieces += spool.keep([column + 20])
    assert [spool.read(piece).tolist()[0] for piece in pieces] == [0, 10, 20]
