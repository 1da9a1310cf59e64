"""Classes of a scenario's values behave as frozen dataclasses do."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, dataclass, field, replace

import pytest

from simulator.scenario import schema
from simulator.scenario.setting import setting


@setting()
class Pair:
    first: int
    second: tuple[str, ...] = ()
    note: str = field(default="", compare=False)


@setting(kw_only=True)
class Other:
    first: int
    second: tuple[str, ...] = ()


@setting()
class Named:
    name: str

    def __repr__(self) -> str:
        return f"named {self.name}"


@dataclass(frozen=True, slots=True)
class Plain:
    first: int
    second: tuple[str, ...] = ()
    note: str = field(default="", compare=False)


def test_values_of_one_class_are_equal_if_their_compared_fields_are() -> None:
    assert Pair(1, ("a",), "x") == Pair(1, ("a",), "y")
    assert Pair(1) != Pair(2)
    assert Pair(1) != Other(first=1)
    assert {Pair(1, note="x"), Pair(1, note="y"), Pair(2)} == {Pair(1), Pair(2)}
    with pytest.raises(TypeError, match="unhashable"):
        hash(Pair(1, []))  # type: ignore[arg-type]


def test_the_text_is_that_of_a_dataclass() -> None:
    assert repr(Pair(1, ("a",), "x")) == repr(Plain(1, ("a",), "x")).replace("Plain", "Pair")
    assert repr(schema.Memory()).startswith("Memory(")


def test_a_method_of_the_class_itself_stays() -> None:
    assert repr(Named("x")) == "named x"


def test_values_are_frozen_have_slots_and_can_be_replaced_and_pickled() -> None:
    pair = Pair(1, note="x")
    with pytest.raises(FrozenInstanceError):
        pair.first = 2  # type: ignore[misc]
    assert not hasattr(pair, "__dict__")
    assert replace(pair, first=2) == Pair(2)
    assert pickle.loads(pickle.dumps(pair)) == pair
    with pytest.raises(TypeError):
        Other(1)  # type: ignore[misc]
