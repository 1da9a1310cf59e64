"""The scenario of the results in a folder, so that results of another one are not replaced by mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cost_models.files.documents import read_json
from simulator.common.stdin import NAME
from simulator.errors import InputError
from simulator.scenario.schema import Scenario

#: Advice of errors on how to replace them.
REPLACE = "choose another folder, or replace them with --force (in Python, force=True)"


def file_of(scenario: Scenario) -> str | None:
    """Return the name of the file that a scenario was read from, without its folder; None if it is unknown."""
    path = None if scenario.origin is None else scenario.origin.path
    return None if path is None or str(path) == NAME else path.name


def check_same_scenario(folder: str | Path, scenario: Scenario) -> None:
    """Verify that results in `folder`, if there are any, come from this scenario: same name, and same file name if
    known.

    Raises:
        InputError: they come from another scenario.
    """
    summary = Path(folder) / "summary.json"
    if not summary.is_file():
        return
    contents: Any = read_json(summary)
    name, file = (contents.get(key) if isinstance(contents, dict) else None for key in ("scenario", "file"))
    own = file_of(scenario)
    if name != scenario.name or (file is not None and own is not None and file != own):
        raise InputError(f"{folder}: holds results of the scenario {name}{f' ({file})' if file else ''}; {REPLACE}")
