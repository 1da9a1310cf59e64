"""The documentation corresponds to the code: keys, defaults, examples."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from simulator.errors import InputError
from simulator.scenario import load_scenario, parse_scenario, schedulers, schema, speculation, traffic
from tests.conftest import ROOT

DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *(ROOT / "traces").rglob("README.md")]


def fields_of(*classes: type) -> Iterator[str]:
    for each in classes:
        yield from (field.name for field in dataclasses.fields(each) if field.metadata.get("key", True))


def test_every_key_is_described() -> None:
    text = (ROOT / "docs" / "scenarios.md").read_text()
    known = [value for module in (schema, schedulers, speculation, traffic) for value in vars(module).values()]
    classes = [each for each in known if isinstance(each, type) and dataclasses.is_dataclass(each)]
    classes = [each for each in classes if each not in (schema.Node, schema.Origin)]
    for name in fields_of(*classes):
        assert re.search(rf"\b{name}\b", text), f"docs/scenarios.md does not mention {name}"


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_examples_of_scenarios_are_scenarios(path: Path) -> None:
    for example in re.findall(r"```yaml\n(.*?)```", path.read_text(), re.DOTALL):
        assert parse_scenario(example, path.name).name == yaml.safe_load(example)["name"]


def test_the_readme_shows_an_example() -> None:
    assert "```yaml" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("path", DOCS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
        assert "://" in target or (path.parent / target).exists(), target


def test_the_mistake_in_the_readme_is_told_as_printed_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = (ROOT / "README.md").read_text()
    scenario = readme.split("```yaml\n")[1].split("```")[0].replace("replicas:", "replcas:")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-service.yaml").write_text(scenario)
    with pytest.raises(InputError) as error:
        load_scenario("my-service.yaml")
    assert str(error.value) in readme


GUIDES = [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "architecture.md"]


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.name)
def test_files_that_the_guides_name_exist(path: Path) -> None:
    """By their whole path, or by the end of it: `engine/core.py`."""
    files = [str(each.relative_to(ROOT)) for each in ROOT.rglob("*.py") if ".venv" not in each.parts]
    named = set(re.findall(r"`([\w/]+\.py)\b", path.read_text()))
    assert named
    assert not [name for name in named if not any(file == name or file.endswith(f"/{name}") for file in files)]


def test_the_page_on_architecture_stays_short() -> None:
    assert len((ROOT / "docs" / "architecture.md").read_text().splitlines()) <= 250
