"""The examples of docs/python.md and of the README run, in their order, in an empty folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT


def examples_of(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)


@pytest.mark.parametrize("name", ["docs/python.md", "docs/comparing.md", "README.md"])
def test_examples_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    assert examples_of(name)
    for number, code in enumerate(examples_of(name)):
        exec(compile(code, f"{name}, example {number}", "exec"), names)
    assert "unknown key" not in capsys.readouterr().out or name == "docs/python.md"
