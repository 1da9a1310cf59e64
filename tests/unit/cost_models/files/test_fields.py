"""Every number that enters from a file has a range, and its error names the place and the key."""

from __future__ import annotations

import math

import pytest

from cost_models.errors import CostModelError
from cost_models.files.fields import Fields
from cost_models.files.nodes import parse_yaml


@pytest.mark.parametrize("value", ["1", True, 1.5, 0, -1, 10**13, 10**300, math.nan, math.inf, [1], {}])
def test_integers(value: object) -> None:
    with pytest.raises(CostModelError, match=r"^f: a\.n: expected an integer"):
        Fields("f", {"n": value}, "a.").integer("n")
    assert Fields("f", {"n": 7}).integer("n") == 7


@pytest.mark.parametrize("value", ["1", True, 0, -1, -0.5, 1e19, 10**300, math.nan, math.inf, [1], {}])
def test_numbers(value: object) -> None:
    with pytest.raises(CostModelError, match=r"^f: n: expected a number above 0 and at most 1e"):
        Fields("f", {"n": value}).number("n")
    assert Fields("f", {"n": 7}).number("n") == 7.0


@pytest.mark.parametrize("value", [1.5, "1", {}, [1, "2"], [1, True], [math.nan], [math.inf], [-1], [10**300], [[1]]])
def test_lists_of_numbers(value: object) -> None:
    with pytest.raises(CostModelError, match=r"^f: n(\[[01]\])?: expected a"):
        Fields("f", {"n": value}).numbers("n")
    assert Fields("f", {"n": [0, 1.5]}).numbers("n") == [0, 1.5]
    with pytest.raises(CostModelError, match=r"^f: n\[1\]: expected an integer, found 1\.5"):
        Fields("f", {"n": [0, 1.5]}).numbers("n", whole=True)


def test_errors_of_yaml_have_line_and_column() -> None:
    fields = Fields("f.yaml", parse_yaml("a: {b: {c: -1}}\nd: [{e: 1}, 2]\nnothing:\n", "f.yaml"))
    with pytest.raises(CostModelError, match=r"^f\.yaml:1:9: a\.b\.c: expected a number above 0"):
        fields.required_section("a").required_section("b").number("c")
    with pytest.raises(CostModelError, match=r"^f\.yaml:1:8: a\.b\.x: missing"):
        fields.required_section("a").required_section("b").number("x")
    with pytest.raises(CostModelError, match=r"^f\.yaml:2:1: d\[1\]: expected a mapping, found 2"):
        fields.sections("d")
    assert fields.section("nothing") is None
    fields.finish()


def test_long_values_and_keys_are_cut() -> None:
    fields = Fields("f", {"n" * 10_000: "x" * 10_000, "m": [[1] * 1000] * 1000})
    for key in ("n" * 10_000, "m"):
        with pytest.raises(CostModelError) as error:
            fields.integer(key)
        assert len(str(error.value)) < 250
