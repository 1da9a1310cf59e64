"""Prices of GPUs: one for all, or by kind, and the cost of a run of several pools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import simulator
from simulator.results.table import print_summary
from tests.conftest import ROOT

WORKLOAD = {"arrivals": {"process": "constant", "rate": 5}, "requests": 20, "prompt_tokens": 100, "output_tokens": 10}
LAW = {"kind": "linear", "base": "5ms"}
APART = {
    "prefill": {"role": "prefill", "gpu": "h100-sxm", "cost_model": LAW},
    "decode": {"role": "decode", "gpu": "a100-sxm-80gb", "replicas": 3, "cost_model": LAW},
}
DRAFTER = {
    "method": "draft_model",
    "model": "llama-3.2-1b",
    "gpu": "l40s",
    "num_speculative_tokens": 2,
    "pass_time": "1ms",
    "acceptance": {"law": "iid", "alpha": 0.5},
}


def cost_of(prices: Any, pools: dict[str, Any]) -> dict[str, Any]:
    scenario = {
        "name": "priced",
        "model": "llama-3.1-8b",
        "workload": WORKLOAD,
        "deployment": {"pools": pools},
        "cost": {"usd_per_gpu_hour": prices},
    }
    cost: dict[str, Any] = simulator.run(scenario).summary["cost"]
    return cost


def test_each_pool_has_the_price_of_its_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    cost = cost_of({"h100-sxm": 2.5, "a100-sxm-80gb": 1.25, "l40s": 9}, APART)
    hours = cost["gpu_hours"] / 4
    assert cost["usd"] == pytest.approx(hours * (2.5 + 3 * 1.25))
    assert cost["pools"]["prefill"]["usd"] == pytest.approx(hours * 2.5)
    assert cost["pools"]["decode"]["usd"] == pytest.approx(hours * 3.75)
    assert cost["pools"]["decode"]["gpu_hours"] == pytest.approx(3 * hours)
    assert cost["usd_per_1k_tokens"] == pytest.approx(cost["usd"] / (20 * 110) * 1e3)


def test_one_price_for_all_is_that_price_by_kind() -> None:
    assert cost_of(2, APART) == cost_of({"h100-sxm": 2, "a100-sxm-80gb": 2.0}, APART)
    assert "pools" not in cost_of(2, {"main": {"gpu": "h100-sxm", "cost_model": LAW}})


def test_a_drafter_has_the_price_of_its_own_gpus() -> None:
    pools = {"main": {"gpu": "h100-sxm", "cost_model": LAW, "speculation": DRAFTER, "replicas": 2}}
    cost = cost_of({"h100-sxm": 2.0, "l40s": 0.5}, pools)
    assert cost["usd"] == pytest.approx(cost["gpu_hours"] / 4 * (2 * 2.0 + 2 * 0.5))
    with pytest.raises(simulator.InputError, match="has no price of l40s, which pool main uses; add it to h100-sxm"):
        cost_of({"h100-sxm": 2.0}, pools)


def test_a_gpu_has_the_price_under_any_of_its_names() -> None:
    pools = {"main": {"gpu": "NVIDIA H100 80GB HBM3", "cost_model": LAW}}
    assert cost_of({"H100_SXM": 3}, pools) == cost_of({"h100-sxm": 3}, pools)


def test_a_gpu_of_ones_own_file_is_priced_by_its_name_or_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text((ROOT / "cost_models" / "hardware" / "h100-sxm.yaml").read_text())
    pools = {"main": {"gpu": str(path), "cost_model": LAW}}
    assert cost_of({"mine": 3}, pools) == cost_of({str(path): 3}, pools)
    with pytest.raises(simulator.InputError, match="has no price of mine, which pool main uses"):
        cost_of({"h100-sxm": 3}, pools)


@pytest.mark.parametrize(
    ("prices", "expected"),
    [
        ({"h100-sxm": 2.5}, r"usd_per_gpu_hour: has no price of a100-sxm-80gb, which pool decode uses; add it"),
        ({"h100-sxm": 2.5, "h1000": 1}, r"usd_per_gpu_hour.h1000: unknown GPU 'h1000'.* h100-sxm"),
        ({"h100-sxm": 2.5, "H100_SXM": 1}, r"usd_per_gpu_hour.H100_SXM: h100-sxm has a price already"),
        ({"h100-sxm": "2.5"}, r"usd_per_gpu_hour.h100-sxm: expected a number, found text"),
        ({"h100-sxm": -1}, r"usd_per_gpu_hour.h100-sxm: must be at least 0"),
        ({}, r"usd_per_gpu_hour: needs the price of each GPU"),
        ("2.5", r"usd_per_gpu_hour: expected a number, found text"),
        ([2.5], r"usd_per_gpu_hour: expected a number, found a list"),
    ],
)
def test_prices_that_are_none(prices: Any, expected: str) -> None:
    with pytest.raises(simulator.InputError, match=expected):
        cost_of(prices, APART)


def test_a_price_by_kind_cannot_be_set_inside_one_for_all() -> None:
    with pytest.raises(simulator.InputError, match="usd_per_gpu_hour: is a number, so no key can be set inside it"):
        simulator.run("quickstart", ["cost.usd_per_gpu_hour.h100-sxm=3"])
    assert simulator.dry_run("quickstart", ["cost.usd_per_gpu_hour={h100-sxm: 3}"])["gpus"] == 1


def test_a_dry_run_finds_a_missing_price() -> None:
    with pytest.raises(simulator.InputError, match="no price of h100-sxm"):
        simulator.dry_run("quickstart", {"cost.usd_per_gpu_hour": {"l40s": 1}})


def test_the_table_names_the_pools(capsys: pytest.CaptureFixture[str]) -> None:
    scenario = {"name": "priced", "model": "llama-3.1-8b", "workload": WORKLOAD, "deployment": {"pools": APART}}
    print_summary(simulator.run(scenario | {"cost": {"usd_per_gpu_hour": 2}}).summary)
    assert "USD (prefill 0.00" in " ".join(capsys.readouterr().out.split())


def test_prices_are_written_back_unchanged() -> None:
    scenario = simulator.load_scenario("quickstart", {"cost": {"usd_per_gpu_hour": {"h100-sxm": 3}}})
    assert simulator.load_scenario(scenario.to_dict()) == scenario
