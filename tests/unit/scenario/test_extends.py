"""`extends`: a file that extends another, and the places of their keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.common.shipped import find_scenario, scenario_names
from simulator.errors import InputError
from simulator.scenario import Scenario, load_scenario, parse_scenario
from simulator.scenario.slo import Limits
from simulator.study.prepare import prepare

BASE = """\
name: base
model: llama-3.1-8b
workload: {trace: requests.csv, limit: 5}
slo: {ttft: 1s, e2e: 9s}
deployment:
  pools:
    main: {gpu: h100-sxm, replicas: 2, scheduler: {max_num_seqs: 8, watermark: 0.1}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "base.yaml").write_text(BASE)
    return tmp_path


def top(folder: Path, text: str, name: str = "top.yaml", *overrides: str) -> Scenario:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return load_scenario(folder / name, overrides)


def test_mappings_are_merged_and_the_rest_is_replaced(folder: Path) -> None:
    text = "extends: base.yaml\nname: top\ndeployment: {pools: {main: {replicas: 4, scheduler: {max_num_seqs: 9}}}}\n"
    scenario, base = top(folder, text), load_scenario(folder / "base.yaml")
    assert (scenario.name, scenario.workload, scenario.slo) == ("top", base.workload, base.slo)
    pool = scenario.deployment.pools["main"]
    assert (pool.gpu, pool.replicas, pool.scheduler.max_num_seqs, pool.scheduler.watermark) == ("h100-sxm", 4, 9, 0.1)


def test_null_takes_an_inherited_key_away(folder: Path) -> None:
    text = "extends: base.yaml\nslo: {e2e: null}\ndeployment: {pools: {main: null, other: {gpu: a100-sxm-80gb}}}\n"
    scenario = top(folder, text)
    assert list(scenario.deployment.pools) == ["other"]
    assert scenario.slo is not None
    assert (scenario.slo.ttft, scenario.slo.e2e) == (Limits(limit=10**9), None)


def test_a_mapping_of_another_kind_takes_the_place_of_the_inherited_one(folder: Path) -> None:
    """Keys of another scheduler are not inherited: `watermark` and `max_num_seqs` differ or are missing in SGLang."""
    for below, above in (("", "sglang"), ("", "vllm"), ("policy: vllm, ", "sglang")):
        (folder / "base.yaml").write_text(BASE.replace("scheduler: {", "scheduler: {" + below))
        own = f"scheduler: {{policy: {above}}}"
        pool = top(folder, f"extends: base.yaml\ndeployment: {{pools: {{main: {{{own}}}}}}}\n").deployment.pools["main"]
        alone = top(folder, BASE.replace("scheduler: {max_num_seqs: 8, watermark: 0.1}", own)).deployment
        assert pool == alone.pools["main"]


def test_mappings_of_the_same_kind_are_merged(folder: Path) -> None:
    (folder / "base.yaml").write_text(BASE.replace("scheduler: {", "scheduler: {policy: vllm, "))
    pools = "deployment: {pools: {main: {scheduler: {policy: vllm, max_num_seqs: 9}}}}\n"
    scheduler = top(folder, "extends: base.yaml\n" + pools).deployment.pools["main"].scheduler
    assert (scheduler.max_num_seqs, scheduler.watermark) == (9, 0.1)


def test_a_pool_may_have_the_name_of_such_a_key(folder: Path) -> None:
    scenario = top(folder, "extends: base.yaml\ndeployment: {pools: {kind: {gpu: a100-sxm-80gb}}}\n")
    assert list(scenario.deployment.pools) == ["main", "kind"]


def test_files_extend_each_other_in_a_row_and_overrides_come_last(folder: Path) -> None:
    top(folder, "extends: base.yaml\nname: middle\nseed: 3\nworkload: {limit: 7}\n", "middle.yaml")
    scenario = top(folder, "extends: middle.yaml\nname: top\n", "top.yaml", "workload.limit=1")
    assert (scenario.name, scenario.seed, scenario.workload.limit) == ("top", 3, 1)


def test_a_mistake_is_named_in_the_file_in_which_it_is(folder: Path) -> None:
    (folder / "base.yaml").write_text(BASE.replace("limit: 5", "limit: none"))
    with pytest.raises(InputError, match=r"base\.yaml:3:40: workload\.limit: expected an integer"):
        top(folder, "extends: base.yaml\n")
    (folder / "base.yaml").write_text(BASE)
    with pytest.raises(InputError, match=r"top\.yaml:2:12: workload\.limt: unknown key"):
        top(folder, "extends: base.yaml\nworkload: {limt: 4}\n")


def test_a_trace_lies_beside_the_file_that_names_it(folder: Path) -> None:
    (folder / "requests.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,2\n")
    scenario = top(folder, "extends: ../base.yaml\n", "designs/top.yaml")
    assert len(prepare(scenario).table) == 1
    own = top(folder, "extends: ../base.yaml\nworkload: {trace: own.csv}\n", "designs/top.yaml")
    assert own.workload.trace == "own.csv"


def test_a_shipped_scenario_can_be_extended(folder: Path) -> None:
    assert top(folder, "extends: quickstart\nseed: 4\n").seed == 4
    assert parse_scenario("extends: quickstart\nseed: 5\n").seed == 5


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("extends: bse.yaml\n", r"top\.yaml:1:10: extends: bse\.yaml: no such file"),
        ("extends: [base.yaml]\n", r"top\.yaml:1:10: extends: expected the path of a scenario file, found a list"),
        ("extends: ''\n", r"top\.yaml:1:10: extends: expected the path"),
        ("extends: top.yaml\n", r"top\.yaml:1:10: extends: .*circle: top\.yaml -> top\.yaml"),
        ("extends: circle.yaml\n", r"circle\.yaml:1:10: extends: .*circle: top\.yaml -> circle\.yaml -> top\.yaml"),
    ],
)
def test_what_cannot_be_extended(folder: Path, text: str, expected: str) -> None:
    (folder / "circle.yaml").write_text("extends: top.yaml\n")
    with pytest.raises(InputError, match=expected):
        top(folder, text)


def test_parts_are_no_scenarios() -> None:
    assert not [name for name in scenario_names() if Path(name).name.startswith("_")]
    assert find_scenario("quickstart").is_file()
