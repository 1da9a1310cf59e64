"""The budget of CPU time by part."""

from __future__ import annotations

import pytest

from tests.bench.budget import PARTS, Budget, part_of, table_of

_FORM, _RUN = "simulator/engine/batches/lazy.py:LazyBatch._form", "simulator/engine/core.py:EngineCore._run"


@pytest.mark.parametrize(
    ("functions", "name"),
    [
        ([_FORM, _RUN], "forming"),
        ([_RUN], "loop and clock"),
        (["simulator/common/helper.py:f", "simulator/memory/pool.py:Pool.grow", _FORM, _RUN], "KV blocks"),
        (["simulator/engine/batches/lazy.py:LazyBatch._finish", _RUN], "end"),
        (["simulator/engine/core.py:EngineCore._finish", _RUN], "end"),
        (["simulator/results/itl.py:f", "simulator/cli/run.py:g"], None),
    ],
)
def test_the_innermost_function_of_a_part_counts(functions: list[str], name: str | None) -> None:
    part = part_of(functions)
    assert (part and part.name) == name


def test_units() -> None:
    budget = Budget(dict.fromkeys(PARTS, 0.5), requests=100_000, steps=250_000)
    requests = [part for part in PARTS if part.unit == "request"]
    assert {budget.part_us(part) for part in PARTS} == {5.0, 2.0}
    assert f"{5.0 * len(requests):.2f} us, of 100,000" in table_of(budget)
