"""Synthetic workloads as a whole: streams, classes, correlation, prompt pools, closed loops."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from simulator.errors import InputError
from simulator.scenario.lengths import Fixed, Geometric, LogNormal, Uniform
from simulator.scenario.traffic import ClosedLoop, Poisson, PromptPool, RequestClass, ThinkTime, Workload
from simulator.workload.requests import RequestTable
from simulator.workload.synthetic import generate

PROMPT, OUTPUT = LogNormal(mean=1000.0, cv=0.8, max=8192), LogNormal(mean=200.0, cv=0.8, max=4096)
CLASSES = (
    RequestClass("chat", 3.0, LogNormal(mean=500.0, cv=1.0), Geometric(mean=200.0)),
    RequestClass("batch", 1.0, Uniform(min=4000, max=5000), Fixed(10)),
)


def workload(requests: int = 1000, **changes: Any) -> Workload:
    given = {"arrivals": Poisson(5.0), "requests": requests, "prompt_tokens": PROMPT, "output_tokens": OUTPUT}
    return Workload(**(given | changes))


def with_classes(requests: int = 1000, **changes: Any) -> Workload:
    return workload(requests, classes=CLASSES, prompt_tokens=None, output_tokens=None, **changes)


def columns(table: RequestTable, n: int | None = None) -> dict[str, list[int]]:
    fields = (field.name for field in dataclasses.fields(table))
    arrays = {name: getattr(table, name) for name in fields if isinstance(getattr(table, name), np.ndarray)}
    return {name: array[:n].tolist() for name, array in arrays.items()}


WORKLOADS = {
    "plain": workload(),
    "correlated": workload(correlation=0.5),
    "classes": with_classes(),
    "correlated classes": with_classes(correlation=-0.5),
    "pool": workload(prompt_pool=PromptPool(prompts=6, groups=3, shared_prefix_tokens=100)),
    "pool of classes": with_classes(prompt_pool=PromptPool(prompts=40), correlation=0.9),
    "closed loop": workload(arrivals=ClosedLoop(4, ThinkTime(10**9, "exponential"))),
}
each = pytest.mark.parametrize("given", WORKLOADS.values(), ids=WORKLOADS.keys())


@each
def test_the_first_requests_do_not_depend_on_their_number(given: Workload) -> None:
    few, many = (generate(dataclasses.replace(given, requests=n), 1) for n in (10, 1000))
    assert columns(few) == columns(many, 10)
    if few.closed_loop is not None and many.closed_loop is not None:
        assert few.closed_loop.think_ns.tolist() == many.closed_loop.think_ns[:10].tolist()


@each
def test_the_same_seed_gives_the_same_requests_and_another_seed_others(given: Workload) -> None:
    assert columns(generate(given, 1)) == columns(generate(given, 1))
    assert columns(generate(given, 1)) != columns(generate(given, 2))


def test_quantities_have_streams_of_their_own() -> None:
    plain = generate(workload(), 1)
    other_outputs = generate(workload(output_tokens=Geometric(mean=3.0)), 1)
    assert other_outputs.prompt_tokens.tolist() == plain.prompt_tokens.tolist()
    assert other_outputs.arrival_ns.tolist() == plain.arrival_ns.tolist()
    other_rate = generate(workload(arrivals=Poisson(50.0)), 1)
    assert other_rate.output_tokens.tolist() == plain.output_tokens.tolist()


def test_another_class_beside_it_does_not_change_the_lengths_of_a_class() -> None:
    third = RequestClass("third", 5.0, Fixed(1), Fixed(1))
    two = generate(with_classes(), 1)
    three = generate(dataclasses.replace(with_classes(), classes=(*CLASSES, third)), 1)
    chats = [table.prompt_tokens[table.class_id == 0][:50].tolist() for table in (two, three)]
    assert chats[0] == chats[1]


@pytest.mark.parametrize("law", [Geometric(mean=700.0), PROMPT], ids=["geometric", "lognormal"])
@pytest.mark.parametrize("output", [Geometric(mean=200.0), OUTPUT], ids=["geometric", "lognormal"])
def test_correlation_leaves_prompts_as_they_are(law: Geometric | LogNormal, output: Geometric | LogNormal) -> None:
    apart, tied = (
        generate(workload(prompt_tokens=law, output_tokens=output, correlation=correlation), 1)
        for correlation in (0.0, 0.5)
    )
    assert tied.prompt_tokens.tolist() == apart.prompt_tokens.tolist()
    assert tied.arrival_ns.tolist() == apart.arrival_ns.tolist()
    assert tied.output_tokens.tolist() != apart.output_tokens.tolist()


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_a_second_class_leaves_the_lengths_of_the_first(correlation: float) -> None:
    alone, both = (
        generate(dataclasses.replace(with_classes(correlation=correlation), classes=classes), 1)
        for classes in (CLASSES[:1], CLASSES)
    )
    for quantity in ("prompt_tokens", "output_tokens"):
        first = getattr(both, quantity)[both.class_id == 0].tolist()
        assert 600 < len(first) < 900
        assert first == getattr(alone, quantity)[: len(first)].tolist()


@pytest.mark.parametrize("correlation", [-0.7, 0.3, 0.9])
def test_correlation_is_that_of_a_gaussian_copula(correlation: float) -> None:
    table = generate(workload(50_000, correlation=correlation), 1)
    # The rank correlation of a Gaussian copula is 6 / pi asin(rho / 2).
    exact = 6 / np.pi * np.arcsin(correlation / 2)
    assert spearmanr(table.prompt_tokens, table.output_tokens)[0] == pytest.approx(exact, abs=0.02)
    assert table.prompt_tokens.mean() == pytest.approx(1000, rel=0.02)
    assert table.output_tokens.mean() == pytest.approx(200, rel=0.02)


def test_without_correlation_lengths_are_independent() -> None:
    table = generate(workload(50_000), 1)
    assert abs(spearmanr(table.prompt_tokens, table.output_tokens)[0]) < 0.02


def test_full_correlation_links_different_laws_monotonically() -> None:
    table = generate(workload(1000, correlation=1.0, output_tokens=Geometric(mean=300.0)), 1)
    by_prompt = np.argsort(table.prompt_tokens, kind="stable")
    longer = np.diff(table.prompt_tokens[by_prompt]) > 0
    assert (np.diff(table.output_tokens[by_prompt])[longer] >= 0).all()


def test_classes_have_their_shares_and_laws() -> None:
    table = generate(with_classes(40_000), 1)
    assert table.class_names == ("chat", "batch")
    batch = table.class_id == 1
    assert batch.mean() == pytest.approx(0.25, abs=0.011)
    assert (table.prompt_tokens[batch].min(), table.prompt_tokens[batch].max()) == (4000, 5000)
    assert set(table.output_tokens[batch].tolist()) == {10}
    assert table.prompt_tokens[~batch].mean() == pytest.approx(500, rel=0.03)
    assert table.output_tokens[~batch].mean() == pytest.approx(200, rel=0.03)


def test_a_class_name_twice_is_an_error() -> None:
    with pytest.raises(InputError, match=r"workload.classes: the name 'chat' is there twice"):
        generate(dataclasses.replace(with_classes(), classes=(CLASSES[0], CLASSES[0])), 1)


def test_a_prompt_pool_is_shuffled_once_and_cycled() -> None:
    table = generate(workload(20, prompt_pool=PromptPool(prompts=6, groups=3, shared_prefix_tokens=300)), 1)
    ids = table.prompt_id.tolist()
    assert sorted(ids[:6]) == list(range(6))
    assert ids[:6] != list(range(6))
    assert ids == (ids[:6] * 4)[:20]
    lengths = {prompt: set(table.prompt_tokens[table.prompt_id == prompt].tolist()) for prompt in range(6)}
    assert all(len(found) == 1 for found in lengths.values())
    assert len(set(table.output_tokens.tolist())) > 6  # one draw a request, not a prompt


def test_the_prompts_of_a_pool_form_equal_groups_with_a_shared_prefix() -> None:
    table = generate(workload(6, prompt_pool=PromptPool(prompts=6, groups=3, shared_prefix_tokens=300)), 1)
    assert np.bincount(table.prefix_id).tolist() == [2, 2, 2]
    assert table.prefix_tokens.tolist() == np.minimum(300, table.prompt_tokens).tolist()
    assert table.prefix_tokens.min() < 300 == table.prefix_tokens.max()


def test_a_pool_without_a_shared_prefix_shares_whole_prompts_only() -> None:
    table = generate(workload(10, prompt_pool=PromptPool(prompts=2)), 1)
    assert set(table.prompt_id.tolist()) == {0, 1}
    assert set(table.prefix_id.tolist()) == {-1}
    assert not table.prefix_tokens.any()


def test_the_prompts_of_a_pool_keep_their_class() -> None:
    table = generate(with_classes(400, prompt_pool=PromptPool(prompts=40)), 1)
    classes = {(int(prompt), int(number)) for prompt, number in zip(table.prompt_id, table.class_id, strict=True)}
    assert len(classes) == 40
    assert {number for _, number in classes} == {0, 1}


def test_a_pool_that_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(InputError, match=r"workload.prompt_pool: must have at most 100000000 prompts"):
        generate(workload(1, prompt_pool=PromptPool(prompts=10**9)), 1)


def test_a_closed_loop_has_its_concurrency_and_a_think_time_a_request() -> None:
    table = generate(workload(5, arrivals=ClosedLoop(concurrency=3, think_time=ThinkTime(2 * 10**9))), 1)
    assert table.arrival_ns.tolist() == [0] * 5
    assert table.closed_loop is not None
    assert table.closed_loop.concurrency == 3
    assert table.closed_loop.think_ns.tolist() == [2 * 10**9] * 5


def test_common_workloads_are_drawn_without_importing_scipy() -> None:
    code = (
        "import sys; from simulator.scenario import lengths, traffic as s;"
        "from simulator.workload.synthetic import generate;"
        "law = lengths.LogNormal(mean=100.0, cv=1.0);"
        "generate(s.Workload(arrivals=s.Poisson(1.0), requests=9, prompt_tokens=law, output_tokens=law), 0);"
        "sys.exit('scipy' in sys.modules)"
    )
    root = Path(__file__).resolve().parents[3]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
