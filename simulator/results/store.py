"""The results directory, which is written as a whole or not at all, and read again.

`summary.json` holds the summary, the resolved scenario, the rest of the record and the versions of the software; the
columns are in `requests.npz`, `segments.npz`, `events.npz` and so on, typed and uncompressed; `pictures` adds figures
on demand. Equal runs give equal bytes. A folder with the file `PARTIAL` is not a finished run.
"""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from dataclasses import asdict, fields, replace
from importlib import metadata
from pathlib import Path
from platform import python_version
from typing import Any, Literal, TypeVar

import numpy as np

from cost_models.files.documents import read_json
from simulator.common.disk_arrays import release, stored
from simulator.common.version import version
from simulator.errors import InputError
from simulator.results.column_checks import check_columns
from simulator.results.columns import (
    DraftColumns,
    DraftPositions,
    OffloadColumns,
    PreemptionColumns,
    ReplicaColumns,
    RequestColumns,
    SegmentColumns,
    StepColumns,
    TransferColumns,
)
from simulator.results.metrics import SCHEMA_VERSION
from simulator.results.provenance import file_of
from simulator.results.record import PoolFacts, RunRecord, TierFacts
from simulator.results.staging import NEW, OLD, staging_folder
from simulator.results.view import RunView
from simulator.scenario.plain_values import plain
from simulator.scenario.schema import Scenario
from simulator.scenario.units import parse_duration

PARTIAL = "PARTIAL"
LATENCY_PICTURE, LOAD_PICTURE = "latency.png", "load.png"
_SUMMARY = "summary.json"
_COLUMNS = {
    "requests": RequestColumns,
    "segments": SegmentColumns,
    "preemptions": PreemptionColumns,
    "steps": StepColumns,
    "transfers": TransferColumns,
    "offload": OffloadColumns,
    "drafts": DraftColumns,
    "draft_positions": DraftPositions,
    "replica_states": ReplicaColumns,
}
#: The column outside of tables: the number of tokens of each event.
_EVENTS = "events.npz"
#: The files of a results directory. A folder with any other file is never replaced.
_FILES = {_SUMMARY, PARTIAL, LATENCY_PICTURE, LOAD_PICTURE, _EVENTS, *(f"{name}.npz" for name in _COLUMNS)}
#: The fields of the record that are not columns.
_FACTS = ("class_names", "start_ns", "end_ns", "complete")

C = TypeVar("C")


class Results(RunView):
    """A run read from its results directory.

    `summary` is the document that `servesim run --json` printed, `record` has the columns, `scenario` is the resolved
    scenario as plain values, and `versions` has the versions of the software that wrote it. `partial` is True if the
    run was interrupted.
    """

    def __init__(self, folder: Path, contents: dict[str, Any], record: RunRecord) -> None:
        self.folder = folder
        self.scenario: dict[str, Any] = contents.pop("resolved_scenario")
        self.versions: dict[str, str] = contents.pop("versions")
        contents.pop("file", None)
        self.summary = contents
        self.record = record
        self.partial = not record.complete or (folder / PARTIAL).exists()

    @property
    def _warmup(self) -> Literal["none", "mser5"] | int:
        """Rule for the warm-up: none, MSER-5, or a time in ns."""
        rule = self.scenario["run"]["warmup"]
        return rule if rule in ("none", "mser5") else parse_duration(rule)


def check_target(folder: str | Path) -> None:
    """Verify, before the simulation, that results can be written to `folder`.

    Raises:
        InputError: it is a file, holds other files than results, or cannot be written.
    """
    target = Path(folder).resolve()
    if target.is_dir():
        names = sorted(entry.name for entry in target.iterdir())
        foreign = [name for name in names if name not in _FILES]
        if foreign:
            raise InputError(f"{folder}: holds {foreign[0]}, which is not a result; choose another folder")
        if names:
            _contents(target)
    elif target.exists():
        raise InputError(f"{folder}: is a file; results need a folder")
    above = next(parent for parent in target.parents if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise InputError(f"{folder}: no folder can be created in {above}")


def write_results(folder: str | Path, record: RunRecord, summary: dict[str, Any], scenario: Scenario) -> None:
    """Write the results directory of a run, replacing an earlier one once the new one is complete.

    Raises:
        InputError: as `check_target`, or the disk is full or fails. The folder is then left as it was.
    """
    check_target(folder)
    target = Path(folder).resolve()
    try:
        with staging_folder(target) as place:
            new = place / NEW
            new.mkdir()
            _write(new, record, summary, scenario)
            _exchange(new, target, place / OLD)
    except OSError as error:
        raise InputError(f"{folder}: results could not be written: {error.strerror or error}") from error


def load_results(folder: str | Path) -> Results:
    """Read the results directory at `folder`; for an interrupted run `partial` is True.

    Raises:
        InputError: the folder is missing, is damaged, or was written by another version.
    """
    place = Path(folder)
    contents = _read_summary(place)
    try:
        facts = contents.pop("record")
        pools = tuple(PoolFacts(**pool) for pool in facts.pop("pools"))
        tiers = tuple(TierFacts(**tier) for tier in facts.pop("tiers"))
        record = RunRecord(
            **{name: _read(kind, place / f"{name}.npz") for name, kind in _COLUMNS.items()},
            **_arrays(place / _EVENTS),
            pools=pools,
            tiers=tiers,
            **facts | {"class_names": tuple(facts["class_names"])},
        )
        check_columns(record)
        for name in ("resolved_scenario", "versions"):
            if not isinstance(contents[name], dict):
                raise ValueError(f"{name}: expected a mapping")
        return Results(place, contents, record)
    except KeyError as error:
        raise InputError(f"{folder}: damaged results directory: {error.args[0]}: missing") from None
    except (OSError, EOFError, ValueError, AttributeError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{folder}: damaged results directory: {error}; simulate it again") from None


def _write(new: Path, record: RunRecord, summary: dict[str, Any], scenario: Scenario) -> None:
    (new / PARTIAL).write_text("The run or the writing of its results was interrupted: these results are incomplete.\n")
    contents = summary | {
        "record": {name: getattr(record, name) for name in _FACTS}
        | {name: [asdict(each) for each in getattr(record, name)] for name in ("pools", "tiers")},
        # The number of processes changes no result.
        "resolved_scenario": plain(replace(scenario, run=replace(scenario.run, jobs=1))),
        "file": file_of(scenario),
        "versions": _versions(),
    }
    text = json.dumps(contents, indent=2, ensure_ascii=False, allow_nan=False)
    # Names of files that the locale cannot decode have surrogates, which UTF-8 cannot encode.
    readable = text.encode(errors="surrogateescape").decode(errors="replace")
    (new / _SUMMARY).write_text(readable + "\n", encoding="utf-8")
    for name in _COLUMNS:
        columns = getattr(record, name)
        arrays = {field.name: getattr(columns, field.name) for field in fields(columns)}
        _save(new / f"{name}.npz", arrays)
    _save(new / _EVENTS, {"event_tokens": record.event_tokens})
    if record.complete:
        (new / PARTIAL).unlink()


def _save(path: Path, arrays: dict[str, Any]) -> None:
    """Write arrays as `numpy.savez` does, with the same bytes, and release the pages of each from memory."""
    with zipfile.ZipFile(path, "w") as file:
        for name, array in arrays.items():
            with file.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)
            release()


def _versions() -> dict[str, str]:
    versions = {"servesim": version(), "python": python_version()}
    return versions | {package: metadata.version(package) for package in ("numpy", "simpy")}


def _exchange(new: Path, target: Path, old: Path) -> None:
    """Move `target` to `old` and `new` to `target`; undo both if that fails."""
    replaced = target.exists()
    if replaced:
        target.rename(old)
    try:
        new.rename(target)
    except OSError:
        if replaced:
            old.rename(target)
        raise


def _contents(place: Path) -> dict[str, Any]:
    """Return the contents of summary.json, of any version. Raises InputError if servesim did not write it."""
    if not (place / _SUMMARY).is_file():
        problem = "not a results directory (no summary.json)" if place.is_dir() else "no such results directory"
        raise InputError(f"{place}: {problem}")
    contents = read_json(place / _SUMMARY)
    if not isinstance(contents, dict) or type(contents.get("schema_version")) is not int:
        raise InputError(f"{place}: summary.json was not written by servesim: it has no schema_version")
    return contents


def _read_summary(place: Path) -> dict[str, Any]:
    """Return the contents of summary.json. Raises InputError if this version did not write it."""
    contents = _contents(place)
    schema = contents["schema_version"]
    if schema != SCHEMA_VERSION:
        known = f"this servesim reads version {SCHEMA_VERSION}"
        remedy = "simulate it again" if schema < SCHEMA_VERSION else "update servesim"
        raise InputError(f"{place}: written with schema version {schema}, and {known}; {remedy}")
    return contents


def _read(cls: type[C], path: Path) -> C:
    return cls(**_arrays(path))


def _arrays(path: Path) -> dict[str, Any]:
    with np.load(path) as arrays:
        return {name: stored(arrays[name]) for name in arrays.files}
