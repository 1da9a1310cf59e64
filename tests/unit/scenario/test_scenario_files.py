"""The strict loader: every mistake is one line with its place, and nothing is coerced or ignored."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from simulator.common.shipped import find_scenario, scenario_names
from simulator.errors import InputError
from simulator.scenario import Scenario, load_scenario, parse_scenario
from simulator.scenario.lengths import Fixed, LogNormal
from simulator.scenario.plain_values import plain
from simulator.scenario.routers import PowerOfD
from simulator.scenario.schema import LinearCost
from simulator.scenario.traffic import Gamma

GOOD = """\
name: chat
model: llama-3.1-8b
workload:
  arrivals:
    process: poisson
    rate: 5
  requests: 100
  prompt_tokens: {distribution: lognormal, mean: 1000, cv: 0.8, max: 8192}
  output_tokens: 200
deployment:
  pools:
    main:
      gpu: h100-sxm
      scheduler: {max_num_seqs: 128}
      cost_model: {kind: linear, base: 8ms}
run:
  warmup: 10s
"""


def load(text: str = GOOD, *overrides: str) -> Scenario:
    return parse_scenario(text, "chat.yaml", overrides)


def test_values_are_typed() -> None:
    scenario = load()
    assert scenario.workload.prompt_tokens == LogNormal(mean=1000.0, cv=0.8, max=8192)
    assert scenario.workload.output_tokens == Fixed(200)
    assert scenario.deployment.pools["main"].scheduler.max_num_seqs == 128
    assert scenario.deployment.pools["main"].cost_model == LinearCost(base=8_000_000)
    assert scenario.run.warmup == 10_000_000_000
    assert scenario.seed == 0


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("requests: 100", "requsts: 100", "chat.yaml:7:3: workload.requsts: unknown key; did you mean requests?"),
        (
            "requests: 100",
            "requests: 1e3",
            "chat.yaml:7:13: workload.requests: expected an integer, found text '1e3', ",
        ),
        ("requests: 100", "requests: 100.0", "chat.yaml:7:13: workload.requests: expected an integer, found a number"),
        ("requests: 100", "requests: yes", "chat.yaml:7:13: workload.requests: expected an integer, found a boolean"),
        ("requests: 100", "requests: 0", "chat.yaml:7:13: workload.requests: must be at least 1, found 0"),
        (
            "requests: 100",
            "requests: 1:40",
            "chat.yaml:7:13: workload.requests: expected an integer, found text '1:40'",
        ),
        (
            "requests: 100",
            "requests: 0100",
            "chat.yaml:7:13: workload.requests: expected an integer, found text '0100'",
        ),
        (
            "requests: 100\n",
            "requests: 100\n  requests: 5\n",
            "chat.yaml:8:3: requests: given twice; the first one is at",
        ),
        ("  requests: 100\n", "", "workload: give exactly one of requests and duration"),
        ("rate: 5", "rate: .inf", "chat.yaml:6:11: workload.arrivals.rate: expected a finite number, found inf"),
        ("rate: 5", "rate: '5'", "expected a number, found text '5', which YAML reads as text; write 5"),
        ("rate: 5", "rate: -5", "workload.arrivals.rate: must be more than 0, found -5"),
        (
            "poisson",
            "poison",
            "chat.yaml:5:14: workload.arrivals.process: 'poison' is not known; did you mean poisson?",
        ),
        ("base: 8ms", "base: 8", "cost_model.base: a duration needs a unit, such as 250ms or 1.5s; found 8"),
        ("base: 8ms", "base: 8 parsec", "cost_model.base: expected a duration such as 250ms or 1.5s, found '8 parsec'"),
        ("warmup: 10s", "warmup: mser", "run.warmup: expected none or mser5, or a duration such as 250ms or 1.5s"),
        ("name: chat", "name: [a", "chat.yaml:2:6: not valid YAML"),
        ("name: chat\n", "", "chat.yaml:1:1: missing name"),
        ("name: chat", "name: !!int chat", "chat.yaml:1:7: the tag !!int is not supported; leave it out"),
        ("name: chat", "name: !mine chat", "chat.yaml:1:7: the tag !mine is not supported; leave it out"),
        ("name: chat", "name: 2024-01-01\n'': 3", "chat.yaml:2:1: a key must not be empty"),
        ("llama-3.1-8b", "null", "chat.yaml:2:8: model: expected a name or a mapping, found nothing"),
        ("run:", "seed: 9223372036854775808\nrun:", "seed: must be at most 9223372036854775807, found 92233720368547"),
        ("rate: 5", "rate: 1e-06", "found text '1e-06', which YAML reads as text; write 0.000001"),
        ("base: 8ms", "host: 8ms", "cost_model: needs a coefficient above 0"),
        ("scheduler:", "memory: {kv_blocks: 9, activations: 1GiB}\n      scheduler:", "has no effect beside kv_blocks"),
        ("run:", "faults: 3\nrun:", "faults: is a reserved key: it is not simulated yet"),
        ("max: 8192", "max: 8192, min: 9000", "workload.prompt_tokens.max: must be at least min (9000), found 8192"),
        ("gpu: h100-sxm", "gpu: 100", "deployment.pools.main.gpu: expected text, found an integer 100"),
        (
            "    main:",
            "    other: {gpu: l40s, role: decode}\n    main:",
            "deployment.pools: a pool with role decode needs another with role prefill",
        ),
        (
            "output_tokens: 200",
            "output_tokens: [1]",
            "workload.output_tokens: expected a mapping with the key distribution",
        ),
        (
            "requests: 100",
            "trace: x.csv\n  requests: 100",
            "describes a synthetic workload and cannot be combined with trace",
        ),
    ],
)
def test_a_mistake_names_its_place(old: str, new: str, expected: str) -> None:
    assert old in GOOD
    with pytest.raises(InputError) as error:
        load(GOOD.replace(old, new, 1))
    assert expected in str(error.value)
    assert str(error.value).startswith("chat.yaml:")
    assert "\n" not in str(error.value)


def test_an_override_goes_through_the_same_checks() -> None:
    scenario = load(GOOD, "seed=7", "workload.arrivals={process: gamma, rate: 3, cv: 2}", "router.policy=power_of_d")
    assert (scenario.seed, scenario.workload.arrivals, scenario.router) == (7, Gamma(3.0, cv=2.0), PowerOfD(2))
    for assignment, expected in [
        ("workload.requests=0", "--set workload.requests=0: workload.requests: must be at least 1"),
        ("workload.reqests=5", "workload.reqests: unknown key; did you mean requests?"),
        ("workload", "--set workload: expected KEY=VALUE"),
        ("=5", "expected KEY=VALUE"),
        ("name.x=5", "name: expected text"),
        ("workload.limit=[", "--set workload.limit=[: not valid YAML"),
    ]:
        with pytest.raises(InputError) as error:
            load(GOOD, assignment)
        assert expected in str(error.value)


def test_an_override_reaches_into_a_shorthand() -> None:
    scenario = load(GOOD, "model.weights=fp8")
    assert (scenario.model.name, scenario.model.weights) == ("llama-3.1-8b", "fp8")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "1:1: expected a mapping of keys to values, found nothing"),
        (b"- 1\n", "1:1: expected a mapping of keys to values, found a list"),
        (b"\xff\xfe\x00", "not UTF-8 text"),
        (b"a: &x [*x]\n", "1:8: *x: an alias inside its own anchor"),
        (b"? [1, 2]\n: 3\n", "a key must be text"),
    ],
)
def test_files_that_are_no_scenarios(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(content)
    with pytest.raises(InputError) as error:
        load_scenario(path)
    assert expected in str(error.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none.yaml: no such file, and no shipped scenario has that name"):
        load_scenario(tmp_path / "none.yaml")


@pytest.mark.parametrize("name", scenario_names())
def test_shipped_scenarios_are_written_back_unchanged(name: str) -> None:
    scenario = load_scenario(find_scenario(name))
    assert parse_scenario(yaml.safe_dump(plain(scenario), sort_keys=False)) == scenario


def test_a_trace_takes_the_place_of_the_synthetic_workload(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(GOOD.replace("  requests: 100", "  requests: 100\n  limit: 10"))
    scenario = load_scenario(path, trace="mine.csv", trace_format="native")
    assert (scenario.workload.trace, scenario.workload.trace_format) == ("mine.csv", "native")
    assert (scenario.workload.arrivals, scenario.workload.limit) == (None, 10)


def test_a_version_sets_what_is_left_out() -> None:
    version = "deployment.pools.main.scheduler.version"
    newest, newer, older, none = (
        load(GOOD, *overrides).deployment.pools["main"].scheduler
        for overrides in ((), (f"{version}=vllm-0.33",), (f"{version}=vllm-0.10",), (f"{version}=none",))
    )
    assert newest == newer
    assert (newer.scheduler_reserve_full_isl, newer.free_list) == (True, "unhashed_first")
    assert (older.scheduler_reserve_full_isl, older.free_list) == (False, "append")
    assert (none.async_scheduling, none.enable_prefix_caching) == (False, False)


def test_every_kind_of_value_is_written_back_unchanged() -> None:
    scenario = load(
        GOOD,
        "workload.arrivals={process: bursts, rate: 5, burst_rate: 20, every: 10s, length: 1500us}",
        "workload.prompt_tokens={distribution: quantiles, points: [[0, 1], [0.5, 10], [1, 100]]}",
        "workload.output_tokens={distribution: mixture, parts: [{weight: 1, law: 5}, {weight: 2, law: 7}]}",
        "workload.time_window=[1s, 3500ms]",
        "workload.prompt_pool={prompts: 10, groups: 2, shared_prefix_tokens: 5}",
        "deployment.pools.main.memory.activations=1GiB",
        "router={policy: power_of_d, d: 3}",
        "slo.ttft=1s",
        "run={horizon: 5min, warmup: mser5}",
    )
    assert plain(scenario)["workload"]["time_window"] == ["1s", "3500ms"]
    assert parse_scenario(yaml.safe_dump(plain(scenario), sort_keys=False)) == scenario


def test_a_list_of_classes_has_an_entry() -> None:
    with pytest.raises(InputError, match="classes: needs at least one class"):
        load(GOOD, "workload.classes=[]")


@pytest.mark.parametrize("key", ["workload.arrivals.cv", "workload.rate_scale"])
def test_numbers_whose_squares_and_inverses_are_not_finite(key: str) -> None:
    text = (
        "{name: n, model: llama-3.1-8b, deployment: {pools: {m: {gpu: h100-sxm}}}, "
        "workload: {arrivals: {process: gamma, rate: 2, cv: 1.5}, requests: 3, prompt_tokens: 5, output_tokens: 5}}"
    )
    with pytest.raises(InputError, match=rf"{key}: must be at least 1e-09, found 1e-300"):
        parse_scenario(text, overrides=[f"{key}=1.0e-300"])
