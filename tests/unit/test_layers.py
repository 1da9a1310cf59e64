"""Layers: imports between packages have one direction, and only the engine imports SimPy."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

#: For each package, the packages that it may import from, `simulator.common` and `simulator.errors` aside.
MAY_IMPORT = {
    "cost_models": set(),
    "simulator.common": set(),
    "simulator.scenario": set(),
    "simulator.workload": {"scenario"},
    "simulator.memory": {"scenario"},
    "simulator.scheduling": {"scenario", "memory"},
    "simulator.routing": {"scenario"},
    "simulator.speculation": {"scenario"},
    "simulator.network": {"scenario"},
    "simulator.results": {"scenario", "speculation.quality"},
    "simulator.engine": {
        "scenario",
        "workload",
        "memory",
        "scheduling",
        "routing",
        "network",
        "speculation",
        "results.record",
        "results.columns",
    },
    "simulator.deployment": {"scenario", "workload", "engine", "scheduling", "speculation"},
    "simulator.recordings": {"scenario", "workload", "engine", "scheduling", "memory"},
    "simulator.study": {"scenario", "workload", "deployment", "engine", "results", "scheduling", "speculation"},
    "simulator.comparison": {"scenario", "workload", "deployment", "study", "results", "scheduling", "speculation"},
    "simulator.validation": {"scenario", "workload", "deployment", "engine", "results", "speculation"},
    "simulator.calibration": {"validation", "scenario", "results"},
    "simulator.api": {"scenario", "results", "study", "comparison", "validation"},
    "simulator.cli": {
        "scenario",
        "workload",
        "speculation",
        "results",
        "study",
        "comparison",
        "validation",
        "recordings",
        "calibration",
    },
}
#: What every package may use.
COMMON = {"errors", "common"}


def imports_of(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package.replace(".", "/")).rglob("*.py"))


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_go_one_way(room: str) -> None:
    assert sources(room)
    for path in sources(room):
        for name in imports_of(path):
            if name == "simulator" or not name.startswith("simulator."):
                assert name != "simulator", f"{path} imports all of simulator"
                continue
            below = name.removeprefix("simulator.")
            allowed = MAY_IMPORT[room] | {room.removeprefix("simulator.")}
            inside = room != "cost_models" and (below.split(".")[0] in COMMON | allowed or below in allowed)
            assert inside, f"{path.relative_to(ROOT)} imports {name}"


def test_only_the_engine_imports_simpy() -> None:
    for path in sources("simulator") + sources("cost_models"):
        if "engine" not in path.relative_to(ROOT).parts:
            assert not any(name.split(".")[0] == "simpy" for name in imports_of(path)), path


def test_every_room_is_walled() -> None:
    rooms = {path.parent.name for path in (ROOT / "simulator").glob("*/__init__.py")}
    assert rooms == {room.removeprefix("simulator.") for room in MAY_IMPORT if room != "cost_models"}
