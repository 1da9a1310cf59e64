"""The results directory: whole or marked, replaced at once, the same bytes, and read back as it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.results import staging as staging_folder
from simulator.results import store
from simulator.results.columns import Status
from simulator.results.metrics import summarise
from simulator.results.record import RunRecord
from simulator.results.store import check_target, load_results, write_results
from simulator.scenario.plain_values import plain
from tests.unit.results.synthetic import MS, refused, replay, scenario

FILES = [
    *("draft_positions.npz", "drafts.npz", "events.npz", "offload.npz", "preemptions.npz", "replica_states.npz"),
    *("requests.npz", "segments.npz", "steps.npz", "summary.json", "transfers.npz"),
]


def small(complete: bool = True) -> RunRecord:
    generator = np.random.default_rng(50)
    record = replay(
        np.sort(generator.integers(0, 900 * MS, 40)),
        generator.integers(1, 3000, 40),
        generator.integers(1, 50, 40),
        replicas=2,
        class_id=np.arange(40) % 2,
        class_names=("chat", "batch"),
        preempt_at=frozenset({6, 11}),
    )
    return replace(record, complete=complete)


def speculating() -> RunRecord:
    return replay([0, MS, 2 * MS], [50, 60, 70], [20, 9, 14], drafts=3, accepts=(1, 3, 0))


def write(folder: Path, record: RunRecord | None = None) -> dict[str, Any]:
    record = small() if record is None else record
    summary = summarise(record, scenario())
    write_results(folder, record, summary, scenario())
    return summary


def listing(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def contents(folder: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()}


def assert_same(one: RunRecord, other: RunRecord) -> None:
    for part in ("requests", "segments", "preemptions", "steps", "transfers", "offload", "drafts", "draft_positions"):
        for field in fields(getattr(one, part)):
            mine, theirs = (getattr(getattr(record, part), field.name) for record in (one, other))
            assert mine.dtype == theirs.dtype
            assert np.array_equal(mine, theirs)
    assert one.event_tokens.dtype == other.event_tokens.dtype
    assert np.array_equal(one.event_tokens, other.event_tokens)
    rest = ("class_names", "pools", "tiers", "start_ns", "end_ns", "complete")
    assert [getattr(one, name) for name in rest] == [getattr(other, name) for name in rest]


# --- there and back


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    summary = write(tmp_path / "deep" / "out")
    results = load_results(tmp_path / "deep" / "out")
    assert listing(tmp_path / "deep" / "out") == FILES
    assert listing(tmp_path / "deep") == ["out"]
    assert_same(results.record, small())
    assert results.summary == summary
    assert results.scenario == plain(scenario())
    assert set(results.versions) == {"servesim", "python", "numpy", "simpy"}
    assert results.partial is False


def test_a_run_that_speculates_is_read_back(tmp_path: Path) -> None:
    write(tmp_path / "out", speculating())
    assert speculating().event_tokens.max() > 1
    assert_same(load_results(tmp_path / "out").record, speculating())


def test_a_run_without_steps_can_be_written(tmp_path: Path) -> None:
    write(tmp_path / "out", refused())
    assert_same(load_results(str(tmp_path / "out")).record, refused())


def test_frames(tmp_path: Path) -> None:
    record = small()
    requests = replace(record.requests, status=np.where(np.arange(40) == 5, Status.IN_FLIGHT, record.requests.status))
    requests = replace(requests, finish_ns=np.where(np.arange(40) == 5, -1, requests.finish_ns))
    write(tmp_path / "out", replace(record, requests=requests))
    results = load_results(tmp_path / "out")
    frame = results.requests
    assert len(frame) == 40
    assert results.requests is frame
    assert frame["status"].value_counts()[["completed", "in_flight", "rejected"]].tolist() == [39, 1, 0]
    assert frame["class_name"].tolist() == ["chat", "batch"] * 20
    assert frame["ttft_ms"].notna().all()
    assert frame["e2e_ms"].isna().tolist() == [index == 5 for index in range(40)]
    assert np.array_equal(frame["tpot_ms"].isna(), (requests.emitted_tokens == 1) | (np.arange(40) == 5))
    kept = frame[frame["status"] == "completed"]
    assert kept["e2e_ms"].mean() == pytest.approx(results.summary["latency"]["e2e_ms"]["mean"])
    segments = results.segments
    assert segments["request"].tolist() == record.segments.request.tolist()
    firsts = segments.groupby("request")["first_token_ns"].min()
    assert firsts.tolist() == record.requests.first_token_ns.tolist()
    finished = segments[segments["request"] != 5].groupby("request")["last_token_ns"].max()
    assert finished.tolist() == np.delete(record.requests.finish_ns, 5).tolist()
    steps = results.steps
    assert steps["replica"].value_counts().sort_index().tolist() == np.diff(record.steps.offsets).tolist()
    assert steps.groupby("replica")["step"].max().tolist() == (np.diff(record.steps.offsets) - 1).tolist()


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path / "one")
    write(tmp_path / "two")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


# --- atomic


def test_an_earlier_run_is_replaced(tmp_path: Path) -> None:
    write(tmp_path / "out", refused())
    write(tmp_path / "out")
    assert_same(load_results(tmp_path / "out").record, small())
    assert listing(tmp_path) == ["out"]


def test_an_empty_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write(tmp_path / "out")
    assert listing(tmp_path / "out") == FILES


@pytest.mark.parametrize("crash", [KeyboardInterrupt, MemoryError, OSError(28, "No space left on device")])
@pytest.mark.parametrize("writes", [0, 1, 2])
def test_a_crash_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash: BaseException, writes: int
) -> None:
    """The crash comes at the first, second or third file of columns."""
    write(tmp_path / "out", refused())
    before = contents(tmp_path / "out")
    left, save = [None] * writes, store._save

    def failing(path: Path, arrays: dict[str, Any]) -> None:
        if not left:
            raise crash
        left.pop()
        save(path, arrays)

    monkeypatch.setattr(store, "_save", failing)
    with pytest.raises(InputError if isinstance(crash, OSError) else crash):  # type: ignore[arg-type]
        write(tmp_path / "out")
    assert contents(tmp_path / "out") == before
    assert listing(tmp_path) == ["out"]


def test_columns_have_the_bytes_of_savez(tmp_path: Path) -> None:
    columns = {"a": np.arange(9), "b": np.broadcast_to(np.int64(3), 7), "c": np.zeros(0, np.int8)}
    store._save(tmp_path / "ours.npz", columns)
    np.savez(tmp_path / "numpys.npz", **columns)
    assert (tmp_path / "ours.npz").read_bytes() == (tmp_path / "numpys.npz").read_bytes()


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "_save", full)
    with pytest.raises(InputError, match="out: results could not be written: No space left on device"):
        write(tmp_path / "out")
    assert listing(tmp_path) == []


def test_a_killed_process_leaves_a_marked_folder_beside_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "out", refused())
    before = contents(tmp_path / "out")
    monkeypatch.setattr(store, "_exchange", lambda *_: (_ for _ in ()).throw(SystemExit))
    monkeypatch.setattr(staging_folder.shutil, "rmtree", lambda *_, **__: None)  # a killed process cleans nothing
    with pytest.raises(SystemExit):
        write(tmp_path / "out", small(complete=False))
    assert contents(tmp_path / "out") == before
    (left,) = (entry for entry in listing(tmp_path) if entry != "out")
    assert left.startswith("out.partial-")
    assert "PARTIAL" in listing(tmp_path / left / "new")


def test_a_failed_exchange_puts_the_old_run_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "out", refused())
    before = contents(tmp_path / "out")
    rename = Path.rename

    def failing(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(InputError, match="Input/output error"):
        write(tmp_path / "out")
    assert contents(tmp_path / "out") == before


def test_an_interrupted_run_is_kept_and_marked(tmp_path: Path) -> None:
    write(tmp_path / "out", small(complete=False))
    assert listing(tmp_path / "out") == sorted(["PARTIAL", *FILES])
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["partial"] is True
    assert load_results(tmp_path / "out").partial is True
    write(tmp_path / "out")
    assert load_results(tmp_path / "out").partial is False


# --- refused


def test_a_folder_of_the_users_is_refused_before_and_after_the_run(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "summary.json").write_text("{}")
    for refuse in (check_target, write):
        with pytest.raises(InputError, match=r"holds thesis\.tex, which is not a result; choose another folder"):
            refuse(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_names_like_ours_do_not_make_a_results_directory(tmp_path: Path) -> None:
    (tmp_path / "load.png").write_bytes(b"a holiday")
    with pytest.raises(InputError, match="no summary"):
        check_target(tmp_path)
    (tmp_path / "summary.json").write_text('{"of": "another tool"}')
    with pytest.raises(InputError, match=r"summary\.json was not written by servesim"):
        check_target(tmp_path)


def test_a_file_and_a_place_below_a_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file; results need a folder"):
        check_target(tmp_path / "file")
    with pytest.raises(InputError, match="no folder can be created in"):
        check_target(tmp_path / "file" / "out")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_place_without_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="no folder can be created in"):
        check_target(tmp_path / "out")


def test_a_good_target_is_accepted(tmp_path: Path) -> None:
    write(tmp_path / "old")
    (tmp_path / "empty").mkdir()
    for name in ("old", "empty", "new", "deep/er"):
        check_target(tmp_path / name)
    assert listing(tmp_path) == ["empty", "old"]


def test_what_is_no_results_directory_is_not_loaded(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such results directory"):
        load_results(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"not a results directory \(no summary.json\)"):
        load_results(tmp_path)
    (tmp_path / "summary.json").write_text('{"something": "else"}')
    with pytest.raises(InputError, match=r"summary.json was not written by servesim"):
        load_results(tmp_path)
    for content, message in (
        ('{"schema', r"summary\.json:1:2: not valid JSON"),
        ("[" * 100_000, r"summary\.json: not valid JSON: nested too deeply"),
        ("[1]", r"summary\.json was not written by servesim"),
        ('{"schema_version": "3"}', r"summary\.json was not written by servesim"),
    ):
        (tmp_path / "summary.json").write_text(content)
        with pytest.raises(InputError, match=message):
            load_results(tmp_path)


@pytest.mark.parametrize(("schema", "cure"), [(3, "simulate it again"), (5, "update servesim")])
def test_another_schema_is_not_guessed_at(tmp_path: Path, schema: int, cure: str) -> None:
    write(tmp_path / "out")
    summary = tmp_path / "out" / "summary.json"
    summary.write_text(summary.read_text().replace('"schema_version": 4', f'"schema_version": {schema}'))
    with pytest.raises(InputError, match=f"schema version {schema}, and this servesim reads version 4; {cure}"):
        load_results(tmp_path / "out")


@pytest.mark.parametrize("damage", ["missing", "truncated", "foreign"])
def test_damage_is_one_line(tmp_path: Path, damage: str) -> None:
    write(tmp_path / "out")
    victim = tmp_path / "out" / "steps.npz"
    if damage == "missing":
        victim.unlink()
    elif damage == "truncated":
        victim.write_bytes(victim.read_bytes()[:500])
    else:
        np.savez(victim, something=np.arange(3))
    with pytest.raises(InputError, match="damaged results directory") as error:
        load_results(tmp_path / "out")
    assert "\n" not in str(error.value)


def _shorter(columns: dict[str, Any]) -> None:
    columns["running"] = columns["running"][:-1]


def _square(columns: dict[str, Any]) -> None:
    columns["end_ns"] = columns["end_ns"].reshape(-1, 1)


def _floats(columns: dict[str, Any]) -> None:
    columns["kv_used"] = columns["kv_used"] / 2


def _objects(columns: dict[str, Any]) -> None:
    columns["decodes"] = columns["decodes"].astype(object)


def _other_offsets(columns: dict[str, Any]) -> None:
    columns["offsets"] = columns["offsets"] + 1


def _paused_nowhere(columns: dict[str, Any]) -> None:
    columns["paused"] = np.array([10**9])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_shorter, "steps.running: "),
        (_square, "steps.end_ns: expected a column of integers, found int64 of shape"),
        (_floats, "steps.kv_used: expected a column of integers, found float64"),
        (_objects, "Object arrays cannot be loaded"),
        (_other_offsets, "steps.offsets: must rise from 0"),
        (_paused_nowhere, "steps.paused: expected numbers from 0"),
    ],
)
def test_columns_of_another_shape(tmp_path: Path, damage: Callable[[dict[str, Any]], None], message: str) -> None:
    write(tmp_path / "out")
    victim = tmp_path / "out" / "steps.npz"
    with np.load(victim) as arrays:
        columns = dict(arrays)
    damage(columns)
    np.savez(victim, **columns)
    with pytest.raises(InputError, match=message) as error:
        load_results(tmp_path / "out")
    assert str(error.value).startswith(f"{tmp_path / 'out'}: damaged results directory: ")


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("requests", "status", 9),
        ("requests", "class_id", 2),
        ("requests", "emitted_tokens", 10**6),
        ("segments", "request", -1),
        ("segments", "replica", 2),
        ("segments", "last_step", 10**6),
        ("segments", "first_step", -1),
        ("preemptions", "request", 40),
    ],
)
def test_numbers_that_point_nowhere(tmp_path: Path, table: str, column: str, value: int) -> None:
    write(tmp_path / "out")
    victim = tmp_path / "out" / f"{table}.npz"
    with np.load(victim) as arrays:
        columns = {name: array.astype(np.int64) for name, array in arrays.items()}
    columns[column][0] = value
    np.savez(victim, **columns)
    with pytest.raises(InputError, match=r"damaged results directory: [a-z]+"):
        load_results(tmp_path / "out")


@pytest.mark.parametrize("key", ["record", "resolved_scenario", "versions"])
def test_a_summary_without_a_part(tmp_path: Path, key: str) -> None:
    write(tmp_path / "out")
    path = tmp_path / "out" / "summary.json"
    contents = json.loads(path.read_text())
    del contents[key]
    path.write_text(json.dumps(contents))
    with pytest.raises(InputError, match=f"damaged results directory: {key}: missing"):
        load_results(tmp_path / "out")
    contents[key] = 3
    path.write_text(json.dumps(contents))
    with pytest.raises(InputError, match="damaged results directory"):
        load_results(tmp_path / "out")


# --- what killed processes leave --------------------------------------------------------------------------------------


def test_the_next_run_clears_what_killed_ones_left(tmp_path: Path) -> None:
    for name in ("out.partial-abcd1234", "other.partial-efgh5678"):
        (tmp_path / name / "new").mkdir(parents=True)
        (tmp_path / name / "new" / "summary.json").write_text("half of it")
    write(tmp_path / "out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_results_that_were_changing_places_come_back(tmp_path: Path) -> None:
    write(tmp_path / "mine")
    (tmp_path / "mine.partial-abcd1234" / "new").mkdir(parents=True)
    (tmp_path / "mine").rename(tmp_path / "mine.partial-abcd1234" / "old")
    write(tmp_path / "out")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["mine", "out"]
    assert not load_results(tmp_path / "mine").partial


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    for name in ("a.partial-mine", "b.partial-abcd1234", "c.partial-toolong123"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.txt").write_text("years of work")
    (tmp_path / "d.partial-abcd1234").symlink_to(tmp_path / "a.partial-mine")
    (tmp_path / "e.partial-abcd1234").write_text("a file")
    before = sorted(entry.name for entry in tmp_path.iterdir())
    write(tmp_path / "out")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted([*before, "out"])


def test_the_folder_of_a_live_process_stays(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from simulator.results.staging import staging_folder\n"
        "with staging_folder(Path(sys.argv[1])) as place:\n"
        "    (place / 'new').mkdir(); print(place, flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "other")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        place = Path(process.stdout.readline().strip())
        write(tmp_path / "out")
        assert place.is_dir()
        process.kill()
    assert place.is_dir()
    write(tmp_path / "out")
    assert not place.exists()
