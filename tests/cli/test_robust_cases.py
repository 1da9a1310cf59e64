"""Inputs that once ended in a traceback, a hang or wrong numbers: each is one line now that names the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator import load_results
from simulator.cli import main
from simulator.errors import InputError
from tests.cli.damage import DRAFTING, ROOFLINE
from tests.conftest import ROOT

CASES = ROOT.parent / "shared" / "cases" / "min" / "robust"
pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="needs the inputs beside the checkout, ../shared/cases")

SCENARIOS = {
    "overflow.yaml": ":6:57: deployment.pools.m.cost_model.base: must be at most 86400s, found 20000d",
    "bigint.yaml": ":3:7: '9999",
    "bigfloat.yaml": ":3:7: seed: expected an integer, found text '1e99999'",
    "dur.yaml": ":3:16: run.horizon: '9999",
    "tagged_list.yaml": ":5:18: router.policy: expected one of round_robin",
    "bomb.yaml": "more than 200000 values",
    "deep.yaml": "nest",
    "deep2.yaml": "nested more than 64 levels deep",
}
HOSTS = {
    "host_inf.yaml": ":6:3: terms.device_step: expected a number of at least 0 and at most 60, found inf",
    "host/big_step.yaml": ":6:3: terms.device_step: expected a number of at least 0 and at most 60",
    "host/bigint.yaml": ":40:14: '1000",
    "host/date.yaml": ":40:5: gpus.l40s.request: expected a number",
    "host/deep.yaml": "nest",
    "host/floattag.yaml": ":40:14: the tag !!float is not supported",
    "host/hugeint.yaml": ":40:14: '9999",
    "host/inf_step.yaml": ":6:3: terms.device_step: expected a number",
    "host/intag.yaml": ":40:14: the tag !!int is not supported",
    "host/ts.yaml": ":40:14: the tag !!timestamp is not supported",
    "host/utf8.yaml": ":42: not UTF-8 text",
}
BENCHMARKS = {
    "neglen.json": "input_lens[0]: expected an integer from 0 to 1e+08, found -3",
    "bench/bigint.json": "input_lens[0]: expected an integer from 0",
    "bench/fsum.json": "itls[0][0]: expected a number from 0",
    "bench/itls_bigint.json": "itls[0][0]: expected a number from 0",
    "bench/len_huge.json": "input_lens[2]: expected an integer",
    "bench/start_huge.json": "start_times[2]: expected a number from 0",
    "deepjson/bench.json": "nested too deeply",
}


def _refused(capsys: pytest.CaptureFixture[str], command: list[str], name: str, message: str) -> None:
    assert main(command) == 2
    errors = capsys.readouterr().err
    assert len(errors.splitlines()) == 1
    assert name in errors and message in errors, errors


@pytest.mark.parametrize("name", SCENARIOS)
def test_scenarios(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    _refused(capsys, ["run", str(CASES / name)], name, SCENARIOS[name])


@pytest.mark.parametrize("name", HOSTS)
def test_hosts(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(ROOFLINE)
    _refused(
        capsys, ["run", str(path), "--set", f"deployment.pools.m.cost_model.host={CASES / name}"], name, HOSTS[name]
    )


@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmarks(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    _refused(capsys, ["validate", str(CASES / name), "--gpu", "h100-sxm", "--jobs", "1"], name, BENCHMARKS[name])


@pytest.mark.parametrize(
    ("key", "name", "message"),
    [
        (
            "deployment.pools.m.cost_model.calibration",
            "cal_index.json",
            "token_ns: expected a list of numbers, found inf",
        ),
        ("deployment.pools.m.cost_model.calibration", "deepjson/cal.json", "nested too deeply"),
        ("model", "hf_config.json", "a number has thousands of digits"),
        ("model", "deepjson/hf", "config.json: not valid JSON: nested too deeply"),
    ],
)
def test_files_of_a_scenario(
    key: str, name: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(ROOFLINE)
    _refused(capsys, ["run", str(path), "--set", f"{key}={CASES / name}"], name, message)


def test_recorded_acceptance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(DRAFTING.replace("FILE", str(CASES / "deepjson" / "acc.jsonl")))
    _refused(capsys, ["run", str(path)], "acc.jsonl:1", "nested too deeply")


@pytest.mark.parametrize("name", ["rec1", "rec2", "rec3"])
def test_recordings_nested_deeply(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    _refused(capsys, ["check-scheduler", str(CASES / "deepjson" / name)], name, "nested too deeply")


def test_a_recording_with_infinity(capsys: pytest.CaptureFixture[str]) -> None:
    _refused(capsys, ["check-scheduler", str(CASES / "rec_inf")], "trace.jsonl:1", "arrival_time: expected a number")


@pytest.mark.parametrize("name", ["t.jsonl", "t2.jsonl"])
def test_traces(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    _refused(capsys, ["trace", "stats", str(CASES / "deepjson" / name)], f"{name}:1", "JSON")


def test_results() -> None:
    with pytest.raises(InputError, match=r"res/summary\.json: not valid JSON: nested too deeply"):
        load_results(CASES / "deepjson" / "res")
