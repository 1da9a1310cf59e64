"""The shipped tables of acceptance: strict reading, sources, and equality with published values."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cost_models.errors import CostModelError
from simulator.scenario import reader, schema
from simulator.speculation import tables
from simulator.speculation.expectation import expected_tokens
from simulator.speculation.tables import AcceptanceTable, default_table, load_table, table_names

#: Published acceptance lengths, with their number of digits.
PUBLISHED = {
    "ngram-qwen3-32b-first-10s": 2.16,
    "ngram-qwen3-32b-second-10s": 2.46,
    "eagle3-llama-3.1-8b-mtbench-k7": 1 + 12208 / 4816,
    "eagle-llama-3.1-8b-edit": 1 + 3187 / 2189,
    "ngram-llama-3.1-8b-edit": 1 + 3562 / 993,
    "eagle3-humaneval-k3": 2.605,
    "eagle3-humaneval-k5": 2.925,
    "eagle3-llama-3.1-8b-redhat-mtbench": 2.60,
    "eagle3-qwen3-8b-mtbench": 2.26,
    "eagle3-gpt-oss-20b-mtbench": 2.56,
    "mtp-deepseek-v3-low": 1.85,
    "mtp-deepseek-v3-high": 1.90,
    "mtp-eight-layers-gsm8k": 1 + 8 * 356839 / 839040,
    "eagle3-llama-3.3-70b": 1.83,
    "eagle3-llama-4-maverick": 2.90,
}
DATASETS = ("gsm8k", "instructcoder", "sharegpt", "cnn")


@pytest.mark.parametrize("name", table_names())
def test_a_table_is_a_law_with_a_source(name: str) -> None:
    table = load_table(name)
    assert table.name == name
    assert table.method in reader.tags(schema.Speculation)
    assert name.startswith(table.method.replace("_", "-"))
    assert len(table.source) > 20
    assert all(later <= earlier for earlier, later in itertools.pairwise((1.0, *table.cumulative, 0.0)))


@pytest.mark.parametrize(("name", "length"), PUBLISHED.items())
def test_a_table_has_the_length_that_was_published(name: str, length: float) -> None:
    assert expected_tokens(load_table(name).cumulative) == pytest.approx(length, abs=0.0101)


def test_eagle_3_with_eight_drafts_misses_its_length_by_what_rounding_explains() -> None:
    """Eight rates rounded to 0.01 give 3.04; the share of accepted drafts, 25.7%, gives 3.056."""
    found = expected_tokens(load_table("eagle3-humaneval-k8").cumulative)
    assert found == pytest.approx(3.04)
    assert found == pytest.approx(1 + 8 * 0.257, abs=8 * 0.005)


def published_lengths(shared: Path) -> dict[tuple[str, str, str, int], float]:
    """Return lengths in the reference data, by model, method, dataset and k."""
    lengths = {}
    with (shared / "truth" / "spec_decode.csv").open() as file:
        for row in csv.DictReader(file):
            if "acceptance length" in row["metric"] or "tokens per step" in row["metric"]:
                method, dataset = (row[column].partition(" ")[0] for column in ("draft_or_method", "dataset"))
                key = (row["model"], method, dataset, int(row["k"]))
                lengths[key] = float(row["value"].split()[0])
    return lengths


@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_lengths_at_each_k_are_those_of_the_series(method: str, shared: Path) -> None:
    lengths, label = published_lengths(shared), {"eagle": "EAGLE-1", "eagle3": "EAGLE-3"}[method]
    table = load_table(f"{method}-llama-3.1-8b-mtbench")
    for k in range(2, 8):
        published = lengths["Llama-3.1-8B-Instruct", label, "MT-Bench", k]
        assert expected_tokens(table.cumulative[:k]) == pytest.approx(published, abs=2e-4)


def test_lengths_of_eagle_on_llama_3(shared: Path) -> None:
    lengths, table = published_lengths(shared), load_table("eagle-llama-3-8b-mtbench")
    for k in (2, 4):
        published = lengths["Meta-Llama-3-8B-Instruct", "EAGLE-1", "MT-Bench", k]
        assert expected_tokens(table.cumulative[:k]) == pytest.approx(published, abs=2e-4)


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("method", ["eagle3", "ngram"])
def test_lengths_of_specdecode_bench(method: str, dataset: str, shared: Path) -> None:
    lengths, label = published_lengths(shared), {"eagle3": "EAGLE-3", "ngram": "n-gram"}[method]
    table = load_table(f"{method}-llama-3.1-8b-{dataset}")
    for k in (1, 3, 5):
        published = lengths["Llama-3.1-8B-Instruct", label, dataset, k]
        assert expected_tokens(table.cumulative[:k]) == pytest.approx(published, abs=2e-4)


def test_positions_known_by_their_sum_are_split_as_their_table_says() -> None:
    """In the ratio of another table, or so that each is the same share of the one before it."""
    for name, ratio in (
        ("eagle-llama-3.1-8b-mtbench", "eagle-llama-3.1-8b-edit"),
        ("eagle-llama-3-8b-mtbench", "eagle-llama-3.1-8b-edit"),
        ("eagle3-llama-3.1-8b-mtbench", "eagle3-llama-3.1-8b-mtbench-k7"),
    ):
        first, second, *_ = load_table(name).cumulative
        other_first, other_second, *_ = load_table(ratio).cumulative
        assert second / first == pytest.approx(other_second / other_first, abs=2e-4)
    for method, dataset in itertools.product(("eagle3", "ngram"), DATASETS):
        one, two, three, four, five = load_table(f"{method}-llama-3.1-8b-{dataset}").cumulative
        assert two / one == pytest.approx(three / two, abs=0.003)
        assert four / three == pytest.approx(five / four, abs=0.01)


@pytest.mark.parametrize(
    ("method", "model", "name"),
    [
        ("eagle3", "llama-3.1-8b", "eagle3-llama-3.1-8b-mtbench"),
        ("eagle3", "meta-llama/Llama-3.1-8B-Instruct", "eagle3-llama-3.1-8b-mtbench"),
        ("eagle3", "qwen3-8b", "eagle3-qwen3-8b-mtbench"),
        ("eagle3", "llama-3.1-70b", "eagle3-llama-3.1-8b-mtbench"),
        ("eagle", "a/path/to/some/config.json", "eagle-llama-3.1-8b-mtbench"),
        ("ngram", "qwen3-32b", "ngram-llama-3.1-8b-sharegpt"),
        ("mtp", "deepseek-v3", "mtp-deepseek-v3-low"),
        ("draft_model", "llama-3.1-70b", "draft-model-t5-cnndm"),
        ("medusa", "llama-3.1-8b", None),
    ],
)
def test_the_table_that_stands_for_a_method(method: str, model: str, name: str | None) -> None:
    found = default_table(method, model)
    assert (found and found.name) == name


def test_a_default_of_a_model_was_measured_on_it() -> None:
    for path in tables._FOLDER.glob("*.yaml"):
        document = yaml.safe_load(path.read_text())
        assert "any" in document["defaults"]
        for model, name in document["defaults"].items():
            assert document["tables"][name]["model"] == model or model == "any"


def test_an_unknown_name() -> None:
    with pytest.raises(ValueError, match=r"^'eagle3-lama-3\.1-8b' is no acceptance table; did you mean eagle3-llama-3"):
        load_table("eagle3-lama-3.1-8b")


TABLES = """
method: eagle
defaults: {any: one}
tables:
  one: {model: m, dataset: d, cumulative: [0.5, 0.25], source: s}
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Provide a file that replaces the shipped tables, to be written before the first read."""
    monkeypatch.setattr(tables, "_FOLDER", tmp_path)
    tables._library.cache_clear()
    yield tmp_path / "eagle.yaml"
    tables._library.cache_clear()


def test_what_a_file_says(library: Path) -> None:
    library.write_text(TABLES)
    one = AcceptanceTable("one", "eagle", "m", "d", (0.5, 0.25), "s")
    assert table_names() == ["one"]
    assert load_table("one") == default_table("eagle", "m") == one


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("source: s", "source: s, colour: red", "eagle.yaml: tables.one.colour: unknown key"),
        (", source: s", "", "eagle.yaml: tables.one.source: missing"),
        ("0.25]", "0.75]", "eagle.yaml: tables.one.cumulative: must be between 0 and 1, and must not rise"),
        ("[0.5, 0.25]", "0.5", "eagle.yaml: tables.one.cumulative: expected a list of numbers such as 0.7"),
        ("any: one", "any: two", "eagle.yaml: defaults.any: 'two' is none of the tables"),
        ("method: eagle", "method: eagle\nmood: blue", "eagle.yaml: mood: unknown key"),
    ],
)
def test_mistakes_in_a_file(library: Path, old: str, new: str, message: str) -> None:
    library.write_text(TABLES.replace(old, new))
    with pytest.raises(CostModelError) as error:
        table_names()
    file, _, what = message.partition(": ")
    assert re.fullmatch(rf".*/{file}:\d+:\d+: {re.escape(what)}", str(error.value))
