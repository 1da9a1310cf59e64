"""Search for scenarios and traces, shipped or the user's. The shipped ones are beside the packages in a checkout, and
inside the package in an installed wheel."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from cost_models.errors import near_names, suggestion
from simulator.common.stdin import is_stdin
from simulator.errors import InputError, did_you_mean

_PACKAGE = Path(__file__).resolve().parents[1]


def data_root() -> Path:
    """Return the folder that holds `scenarios/` and `traces/`."""
    installed = _PACKAGE / "_data"
    return installed if installed.is_dir() else _PACKAGE.parent


def scenario_names() -> list[str]:
    """Return the names of the shipped scenarios, such as `quickstart` and `bench/steady_100k`.

    A file whose name begins with `_` is left out: it is a part that scenarios extend.
    """
    folder = data_root() / "scenarios"
    files = [path for path in folder.rglob("*.yaml") if not path.name.startswith("_")]
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in files)


def find_scenario(name: str) -> Path:
    """Return the scenario file at the path `name`, or the shipped scenario of that name.

    Raises:
        InputError: there is neither.
    """
    if not name:
        raise InputError("the scenario's name is empty")
    if os.path.isfile(name) or is_stdin(name):
        return Path(name)
    shipped = data_root() / "scenarios" / f"{name.removesuffix('.yaml').removeprefix('scenarios/')}.yaml"
    if os.path.isfile(shipped):
        return shipped
    if os.path.isdir(name):
        raise InputError(f"{name}: is a folder, not a scenario file")
    raise InputError(f"{name}: no such file, and no shipped scenario has that name{_nearest(name, scenario_names())}")


def _nearest(name: str, known: Sequence[str]) -> str:
    """Return the end of an error about an unknown scenario; the folder of a shipped one may be left out."""
    near = near_names(name, known)
    inside = [each for each in known if near_names(name, [each.rpartition("/")[2]], 0.8)]
    found = list(dict.fromkeys([*inside, *near]))[:3]
    return suggestion(found) or "; servesim list scenarios names those that are shipped"


def measured_names() -> list[str]:
    """Return the names of the shipped files of measured runs, such as `open_loop_vllm.csv`."""
    return sorted(path.name for path in (data_root() / "traces" / "measured").glob("*.csv"))


def find_measured(name: Path) -> Path:
    """Return the file at the path `name`, or the shipped file of measured runs of that name, with or without `.csv`.

    Raises:
        InputError: there is neither.
    """
    if os.path.exists(name):
        return name
    shipped = data_root() / "traces" / "measured" / f"{str(name).removesuffix('.csv')}.csv"
    if os.path.isfile(shipped):
        return shipped
    known = [known.removesuffix(".csv") for known in measured_names()]
    near = did_you_mean(name.stem, known) if not name.parent.parts else ""
    raise InputError(f"{name}: no such file, and no shipped file of measured runs has that name{near}")


def file_finder(scenario: Path | None) -> Callable[[str], Path]:
    """Return a function that finds a file named in a scenario, such as a trace: beside the scenario, in the working
    directory, or among the shipped files.

    The function raises InputError if the file is in none of these places.
    """

    def find(name: str) -> Path:
        if not name:
            raise InputError("the name of a file is empty")
        if is_stdin(name):
            return Path(name)
        folders = [Path(), data_root(), data_root() / "traces"]
        if scenario is not None:
            folders.insert(0, scenario.parent)
        for folder in folders:
            if os.path.exists(folder / name):
                return folder / name
        looked = ", ".join(str(folder.resolve()) for folder in folders)
        raise InputError(f"{name}: no such file (looked in {looked})")

    return find
