"""Limits of the code that keep it readable: arguments, lengths, attributes, docstrings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

MODULES = sorted(path for package in ("simulator", "cost_models") for path in (ROOT / package).rglob("*.py"))
#: Functions with more than five arguments: the keyword options of the Python interface, and three of the engine and the
#: cost models whose arguments are of different kinds. There are to be no more than ten.
MANY_ARGUMENTS = {
    "simulator/api/comparisons.py: compare",
    "simulator/api/measured.py: validate",
    "simulator/api/replications.py: replicate",
    "simulator/api/runs.py: run",
    "simulator/engine/simulation.py: simulate",
    "cost_models/roofline/attention.py: __init__",
    "cost_models/shape.py: costs_one_by_one",
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


def place(path: Path, node: Function | ast.ClassDef) -> str:
    return f"{path.relative_to(ROOT)}: {node.name}"


def nodes(kind: type[ast.AST] | tuple[type[ast.AST], ...]) -> Iterator[tuple[Path, ast.AST]]:
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, kind):
                yield path, node


def arguments(node: Function) -> int:
    given = node.args
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")]) + bool(given.vararg) + bool(given.kwarg)


def attributes(node: ast.ClassDef) -> set[str]:
    """Return the attributes that the methods of a class set on `self`."""
    found = set()
    for each in ast.walk(node):
        targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
        for target in targets if isinstance(each, ast.Assign | ast.AnnAssign | ast.AugAssign) else ():
            for part in ast.walk(target) if target is not None else ():
                if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "self":
                    found.add(part.attr)
    return found


def test_functions_have_at_most_five_arguments() -> None:
    found = {place(path, node) for path, node in nodes((ast.FunctionDef, ast.AsyncFunctionDef)) if arguments(node) > 5}
    assert found == MANY_ARGUMENTS
    assert len(found) <= 10


def test_functions_have_at_most_fifty_lines() -> None:
    functions = nodes((ast.FunctionDef, ast.AsyncFunctionDef))
    assert not [place(path, node) for path, node in functions if node.end_lineno - node.lineno >= 50]


def test_classes_that_are_no_records_have_at_most_fifteen_attributes() -> None:
    assert not [place(path, node) for path, node in nodes(ast.ClassDef) if len(attributes(node)) > 15]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_have_at_most_three_hundred_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 300


def test_no_docstring_only_sends_the_reader_elsewhere() -> None:
    documented = nodes((ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    texts = [(place(path, node), ast.get_docstring(node) or "") for path, node in documented]
    assert not [where for where, text in texts if re.fullmatch(r"See [^.]*\.?[^.]*\.", text)]


def test_every_module_says_what_it_has() -> None:
    for path in MODULES:
        text = ast.get_docstring(ast.parse(path.read_text()))
        assert text, path
        assert text.split("\n\n")[0].rstrip().endswith((".", ":")), path
