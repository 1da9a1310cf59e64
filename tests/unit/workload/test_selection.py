"""Order, window, limit, scale and `max_tokens`, in this order, and the notes about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulator.errors import InputError
from simulator.scenario.lengths import Fixed, Uniform
from simulator.scenario.traffic import Constant, Poisson, PromptPool, Workload
from simulator.workload import RequestTable, load_requests

NS = 10**9


@pytest.fixture
def load(tmp_path: Path):
    """Return a function that loads the requests of a native CSV trace."""

    def load_trace(text: str, **options: Any) -> RequestTable:
        (tmp_path / "t.csv").write_text(text)
        return load_requests(Workload(trace="t.csv", **options), 0, lambda name: tmp_path / name)

    return load_trace


def trace(*arrivals_s: float) -> str:
    """Return a trace whose prompt lengths are the numbers of its rows, from 1."""
    rows = (f"{arrival},{i},10\n" for i, arrival in enumerate(arrivals_s, start=1))
    return "arrival_s,prompt_tokens,output_tokens\n" + "".join(rows)


def arrivals_s(table: RequestTable) -> list[float]:
    return (table.arrival_ns / NS).tolist()


def codes(table: RequestTable) -> list[str]:
    return [note.code for note in table.notes]


def test_the_first_arrival_is_zero(load) -> None:
    table = load(trace(100, 100.5, 103))
    assert arrivals_s(table) == [0, 0.5, 3]
    assert table.notes == ()


def test_arrivals_are_sorted_stably_and_that_is_said_once(load) -> None:
    table = load(trace(5, 3, 5, 3, 4, 9))
    assert arrivals_s(table) == [0, 0, 1, 2, 2, 6]
    assert table.prompt_tokens.tolist() == [2, 4, 5, 1, 3, 6]
    assert [(note.code, note.text) for note in table.notes] == [
        (
            "arrivals_sorted",
            "of 6 arrivals, 3 stood after a later one and were sorted; 2 share the time of another, "
            "and keep the order of the file",
        )
    ]


def test_equal_arrivals_alone_are_kept_and_nothing_was_sorted(load) -> None:
    """As on every trace that is written in whole milliseconds."""
    table = load(trace(1, 1, 2))
    assert table.prompt_tokens.tolist() == [1, 2, 3]
    assert table.notes == ()


def test_the_window_is_half_open_and_counts_from_the_first_arrival(load) -> None:
    table = load(trace(100, 101, 102, 103, 104), time_window=(NS, 3 * NS))
    assert table.prompt_tokens.tolist() == [2, 3]
    assert arrivals_s(table) == [0, 1]


def test_the_window_comes_before_the_limit_and_both_before_the_scale(load) -> None:
    table = load(trace(5, 0, 1, 2, 3, 4), time_window=(NS, 9 * NS), limit=3, rate_scale=2.0)
    assert table.prompt_tokens.tolist() == [3, 4, 5]
    assert arrivals_s(table) == [0, 0.5, 1]


def test_the_scale_rounds_to_whole_nanoseconds_and_keeps_the_order(load) -> None:
    table = load(trace(0, 1e-9, 2e-9, 3e-9, 1), rate_scale=3.0)
    assert table.arrival_ns.tolist() == [0, 0, 1, 1, 333_333_333]


def test_a_scale_below_one_stretches(load) -> None:
    assert arrivals_s(load(trace(0, 2), rate_scale=0.5)) == [0, 4]


def test_a_limit_beyond_the_trace_keeps_it(load) -> None:
    assert len(load(trace(0, 1), limit=5)) == 2


def test_an_empty_window_is_an_error_that_says_so(load) -> None:
    with pytest.raises(InputError) as error:
        load(trace(10, 11.5), time_window=(2 * NS, 4 * NS))
    assert str(error.value) == "workload.time_window: no request arrives from 2 s to 4 s; the last one is at 1.5 s"


def test_a_scale_of_centuries_is_an_error(load) -> None:
    with pytest.raises(InputError, match=r"workload\.rate_scale: the arrivals would last more than a century"):
        load(trace(0, 1000), rate_scale=1e-9)


def test_selection_takes_every_column_along(load) -> None:
    text = (
        "arrival_s,prompt_tokens,output_tokens,max_tokens,id,class,session,prefix_id,prefix_tokens\n"
        "9,90,5,50,late,b,s9,p,9\n1,10,5,20,early,a,s1,q,1\n5,50,5,,middle,b,s5,p,5\n"
    )
    table = load(text, limit=2)
    assert table.ids == ("early", "middle")
    assert table.max_tokens.tolist() == [20, 5]
    assert [table.class_names[i] for i in table.class_id] == ["a", "b"]
    assert table.extras["session"].tolist() == ["s1", "s5"]
    assert (table.prefix_id.tolist(), table.prefix_tokens.tolist()) == ([1, 0], [1, 5])
    assert table[1].id == "middle"


def test_max_tokens_is_the_output_length_unless_told(load) -> None:
    assert load(trace(0, 1)).max_tokens.tolist() == [10, 10]
    table = load(trace(0, 1), max_tokens=64)
    assert (table.max_tokens.tolist(), table.output_tokens.tolist()) == ([64, 64], [10, 10])
    assert table.notes == ()


def test_a_request_keeps_its_own_max_tokens_and_outputs_end_there(load) -> None:
    text = "arrival_s,prompt_tokens,output_tokens,max_tokens\n0,1,100,40\n1,1,100,\n2,1,20,\n3,1,20,99\n"
    table = load(text, max_tokens=30)
    assert table.max_tokens.tolist() == [40, 30, 30, 99]
    assert table.output_tokens.tolist() == [40, 30, 20, 20]
    assert [(note.code, note.text) for note in table.notes] == [
        ("output_cut", "max_tokens cuts 2 of 4 outputs short, by 130 tokens in all")
    ]


def test_columns_that_are_not_simulated_are_named(load) -> None:
    text = "arrival_s,prompt_tokens,output_tokens,session,priority,cancel_s\n0,1,1,s,0,4\n"
    table = load(text)
    assert codes(table) == ["columns_not_simulated"]
    assert table.notes[0].text.endswith("not simulated yet: session, cancel_s")  # every priority is the default


@pytest.mark.parametrize(("ids", "noted"), [("p,q", False), ("p,p", True), (",", False)])
def test_shared_prefixes_are_noted(load, ids: str, noted: bool) -> None:
    rows = "".join(f"{i},9,1,{name},{8 if name else ''}\n" for i, name in enumerate(ids.split(",")))
    table = load("arrival_s,prompt_tokens,output_tokens,prefix_id,prefix_tokens\n" + rows)
    assert codes(table) == (["prefix_sharing_not_simulated"] if noted else [])


def synthetic(**options: Any) -> RequestTable:
    given = {"arrivals": Constant(10.0), "requests": 20, "prompt_tokens": Uniform(1, 100), "output_tokens": Fixed(5)}
    return load_requests(Workload(**(given | options)), 3, Path)


def test_synthetic_requests_are_selected_alike() -> None:
    table = synthetic(time_window=(NS // 2, NS), limit=4, rate_scale=0.5, max_concurrency=2)
    assert arrivals_s(table) == pytest.approx([0, 0.2, 0.4, 0.6])
    assert table.prompt_tokens.tolist() == synthetic().prompt_tokens[5:9].tolist()
    assert table.max_concurrency == 2


def test_synthetic_arrivals_keep_the_clock_of_their_process() -> None:
    assert synthetic(arrivals=Poisson(1.0)).arrival_ns[0] > 0
    assert synthetic(arrivals=Poisson(1.0), time_window=(5 * 10**9, 9 * 10**9)).arrival_ns[0] == 0


def test_a_pool_whose_prompts_come_again_is_noted() -> None:
    assert codes(synthetic(prompt_pool=PromptPool(prompts=20))) == []
    assert codes(synthetic(prompt_pool=PromptPool(prompts=10))) == ["prefix_sharing_not_simulated"]
    shared = PromptPool(prompts=20, groups=2, shared_prefix_tokens=10)
    assert codes(synthetic(prompt_pool=shared)) == ["prefix_sharing_not_simulated"]


def test_a_prefix_that_fills_the_prompts_is_noted() -> None:
    pool = PromptPool(prompts=20, groups=20, shared_prefix_tokens=100)
    table = synthetic(prompt_pool=pool)
    assert codes(table) == ["prefix_fills_prompts"]
    assert "20 of 20 prompts have no more than 100 tokens" in table.notes[0].text
    longer = synthetic(prompt_pool=pool, prompt_tokens=Fixed(101))
    assert codes(longer) == []


def test_errors_of_the_finder_and_of_the_reader_are_passed_on(tmp_path: Path) -> None:
    def find(name: str) -> Path:
        raise InputError(f"{name}: not found")

    with pytest.raises(InputError, match=r"t\.csv: not found"):
        load_requests(Workload(trace="t.csv"), 0, find)
    with pytest.raises(InputError, match=r"t\.csv: cannot be read: No such file"):
        load_requests(Workload(trace="t.csv"), 0, lambda name: tmp_path / name)
