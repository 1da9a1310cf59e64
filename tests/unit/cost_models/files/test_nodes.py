"""YAML with places and bounds."""

from __future__ import annotations

import pytest
import yaml

from cost_models.errors import InputError
from cost_models.files import nodes
from cost_models.files.nodes import parse_yaml


@pytest.fixture(params=["C", "Python"], autouse=True)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "Python":
        monkeypatch.setattr(nodes, "_PARSER", yaml.SafeLoader)


BOMB = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + "".join(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"^f:1:1: expected a mapping of keys to values, found nothing"),
        ("- 1", r"^f:1:1: expected a mapping of keys to values, found a list"),
        ("a: 1\nb: [", r"^f:\d:\d+: not valid YAML"),
        ("a: 1\n---\nb: 2\n", r"^f:\d:\d: a second document"),
        ("a: 1\nb: 2\na: 3\n", r"^f:3:1: a: given twice; the first one is at f:1:1"),
        ("? [1]\n: 2", r"^f:1:3: a key must be text"),
        ("a: &x [1]\n*x : 2", r"^f:2:1: a key must be text, not an alias"),
        ("a: &x [*x]", r"^f:1:8: \*x: an alias inside its own anchor"),
        ("a: *y", r"^f:1:4: .*(no such anchor above|undefined alias)"),
        (BOMB, r"^f:\d+:\d+: more than 200000 values"),
        ("a: " + "[" * 100 + "]" * 100, r"^f:1:\d+: nested more than 64 levels deep"),
        ("a: " + "{b: " * 5000, r"^f:1:\d+: (nested more than 64 levels deep|not valid YAML)"),
        ("a: !!float x", r"^f:1:4: the tag !!float is not supported"),
        ("a: !!python/object:os.system {}", r"^f:1:4: the tag .* is not supported"),
        ("a: !mine [1]", r"^f:1:4: the tag !mine is not supported"),
        ("a: " + "9" * 5000, r"^f:1:4: '9+\.\.\.': a whole number of 5000 digits is too large"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        parse_yaml(text, "f")
    assert len(str(error.value)) < 200
    assert "\n" not in str(error.value)


def test_values() -> None:
    text = "a: 1\nb: 1.5\nc: [true, null, ~, 2001-01-01, 010, 1:30, '1', 0x10]\nd: {e: &x {f: .inf}, g: *x}"
    assert parse_yaml(text, "f").plain() == {
        "a": 1,
        "b": 1.5,
        "c": [True, None, None, "2001-01-01", "010", "1:30", "1", "0x10"],
        "d": {"e": {"f": float("inf")}, "g": {"f": float("inf")}},
    }


def test_what_aliases_stand_for_are_nodes_of_their_own() -> None:
    root = parse_yaml("a: &x {b: 1}\nc: *x", "f")
    assert isinstance(root.value, dict)
    first, second = root.value["a"], root.value["c"]
    assert first is not second and first.plain() == second.plain()
    assert isinstance(first.value, dict) and isinstance(second.value, dict)
    first.value["b"].value = 2
    assert second.plain() == {"b": 1}
    assert second.value["b"].where == "f:1:11"
