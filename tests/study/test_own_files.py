"""A user's own calibrations, host models and GPUs: their folders, their use by runs, and notes on them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import cost_models
from cost_models import CostModelError, gpu_names, host_names, load_gpu, load_host
from cost_models.files.user_files import own_folder
from cost_models.kernels.files import calibrated_path, shipped_path
from simulator.cli import main
from simulator.deployment.resolve import resolve
from simulator.scenario import load_scenario, parse_scenario

PACKAGE = Path(cost_models.__file__).parent


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of the user's files, empty."""
    folder = tmp_path / "home"
    monkeypatch.setenv("SERVESIM_HOME", str(folder))
    for kind in ("calibrated", "hosts", "hardware"):
        (folder / kind).mkdir(parents=True)
    return folder


def document(**pool: Any) -> dict[str, Any]:
    work = {"arrivals": {"process": "all_at_once"}, "requests": 2, "prompt_tokens": 100, "output_tokens": 10}
    pools = {"main": {"gpu": "l40s", **pool}}
    return {"name": "own", "model": "llama-3.1-8b", "workload": work, "deployment": {"pools": pools}}


def notes(**pool: Any) -> dict[str, str]:
    found = resolve(parse_scenario(json.dumps(document(**pool)))).notes
    return {note.code: note.text for note in found}


def slower(path: Path, factor: float = 2.0) -> Path:
    """Return a copy of L40S's shipped calibration whose prompts take `factor` times as long a pair of tokens."""
    data = json.loads((PACKAGE / "calibrated" / "l40s.json").read_text())
    for kind in data["operators"]["attention"]["all"]["law"]["prefill"]:
        kind["new"] *= factor
    path.write_text(json.dumps(data))
    return path


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"SERVESIM_HOME": "/a", "XDG_CONFIG_HOME": "/b"}, Path("/a")),
        ({"SERVESIM_HOME": "", "XDG_CONFIG_HOME": "/b"}, Path("/b/servesim")),
        ({"SERVESIM_HOME": "", "XDG_CONFIG_HOME": "", "HOME": "/c"}, Path("/c/.config/servesim")),
    ],
)
def test_the_folder(variables: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert own_folder() == folder


def test_nothing_is_said_of_shipped_files(home: Path) -> None:
    assert "own_files" not in notes()
    assert calibrated_path(load_gpu("l40s")) == shipped_path(load_gpu("l40s"))


def test_an_own_calibration_is_used_and_named(home: Path) -> None:
    own = slower(home / "calibrated" / "l40s.json")
    assert str(own) in notes()["own_files"]
    assert "own_files" not in notes(cost_model={"calibration": "shipped"})
    assert "own_files" not in notes(cost_model={"calibration": "none"})
    ours, shipped = (
        resolve(parse_scenario(json.dumps(document(cost_model={"calibration": name})))).services[0].cost
        for name in ("auto", "shipped")
    )
    step = cost_models.BatchShape(0, 0, 0, ((8192, 0),), 0, 1)
    assert ours.step_cost(step).device_ns > 1.05 * shipped.step_cost(step).device_ns


def test_an_own_calibration_of_another_gpu_is_refused(home: Path) -> None:
    slower(home / "calibrated" / "h100-sxm.json")
    with pytest.raises(ValueError, match=r"h100-sxm\.json: is of 'l40s', not of h100-sxm"):
        notes(gpu="h100-sxm")


def test_a_chip_with_a_calibration_of_its_own_no_longer_borrows(home: Path) -> None:
    data = json.loads((PACKAGE / "calibrated" / "a100-sxm-80gb.json").read_text()) | {"gpu": "a100-sxm-40gb"}
    assert "kernels of a100-sxm-80gb" in notes(gpu="a100-sxm-40gb")["outside_calibrated_range"]
    (home / "calibrated" / "a100-sxm-40gb.json").write_text(json.dumps(data))
    assert "kernels of a100-sxm-80gb" not in notes(gpu="a100-sxm-40gb").get("outside_calibrated_range", "")


def test_an_own_host_model_by_name(home: Path) -> None:
    shutil.copy(PACKAGE / "hosts" / "vllm.yaml", home / "hosts" / "rack-7.yaml")
    assert "rack-7" in host_names()
    assert load_host("rack-7", "h100-sxm") == load_host("vllm", "h100-sxm")
    assert str(home / "hosts" / "rack-7.yaml") in notes(cost_model={"host": "rack-7"})["own_files"]
    with pytest.raises(CostModelError, match=r"unknown host model .* 'rack-8'; did you mean rack-7"):
        load_host("rack-8", "h100-sxm")


def test_an_own_gpu_by_name(home: Path) -> None:
    shutil.copy(PACKAGE / "hardware" / "l40s.yaml", home / "hardware" / "l40s-oc.yaml")
    assert "l40s-oc" in gpu_names()
    said = notes(gpu="L40S OC")
    assert "l40s-oc.yaml" in said["own_files"]
    assert "estimates" in said["not_calibrated"]


def test_a_broken_own_gpu_is_named_in_full_and_hurts_no_other(home: Path) -> None:
    broken = home / "hardware" / "broken.yaml"
    broken.write_text("hbm_bytes: -3\n")
    assert load_gpu("h100-sxm").name == "h100-sxm"
    with pytest.raises(CostModelError, match=str(broken)):
        load_gpu("broken")


@pytest.mark.parametrize("elsewhere", [False, True])
def test_paths_are_looked_up_beside_the_scenario(
    tmp_path: Path, elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "study"
    folder.mkdir()
    shutil.copy(PACKAGE / "hosts" / "vllm.yaml", folder / "host.yaml")
    shutil.copy(PACKAGE / "hardware" / "l40s.yaml", folder / "mine.yaml")
    slower(folder / "l40s.json")
    (folder / "mine.json").write_text((folder / "l40s.json").read_text().replace('"gpu": "l40s"', '"gpu": "mine"'))
    given = document(gpu="mine.yaml", cost_model={"host": "host.yaml", "calibration": "mine.json"})
    (folder / "base.yaml").write_text(json.dumps(given))
    (folder / "top.yaml").write_text("extends: base.yaml\nname: top\n")
    monkeypatch.chdir(tmp_path if elsewhere else folder)
    for name in ("base.yaml", "top.yaml"):
        resolved = resolve(load_scenario(Path("study") / name if elsewhere else name))
        said = next(note.text for note in resolved.notes if note.code == "own_files")
        assert all(file in said for file in ("host.yaml", "mine.yaml", "mine.json"))


def test_calibrate_writes_into_the_users_folder(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shipped = (PACKAGE / "calibrated" / "l40s.json").read_bytes()
    rows = "".join(f"l40s,p2p,{2**power},{5 + 2**power / 20_000},copy\n" for power in range(12, 28))
    (tmp_path / "p2p.csv").write_text("gpu,operator,bytes,latency_us,source\n" + rows)
    assert main(["calibrate", "--gpu", "l40s", "--source", str(tmp_path / "p2p.csv")]) == 0
    assert str(home / "calibrated" / "l40s.json") in capsys.readouterr().out.replace("\n", "")
    assert (PACKAGE / "calibrated" / "l40s.json").read_bytes() == shipped
    written = json.loads((home / "calibrated" / "l40s.json").read_text())
    assert written["operators"]["p2p"]["node"]["rows"] == 16
    assert written["operators"]["gemm"] == json.loads(shipped)["operators"]["gemm"]


def test_calibrate_updates_the_shipped_file_only_if_asked(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("simulator.calibration.gpu.SHIPPED", tmp_path / "shipped")
    shutil.copytree(PACKAGE / "calibrated", tmp_path / "shipped")
    rows = "".join(f"l40s,p2p,{2**power},{5 + 2**power / 20_000},copy\n" for power in range(12, 28))
    (tmp_path / "p2p.csv").write_text("gpu,operator,bytes,latency_us,source\n" + rows)
    arguments = ["calibrate", "--gpu", "l40s", "--source", str(tmp_path / "p2p.csv"), "--update-shipped"]
    assert main(arguments) == 0
    assert "p2p" in json.loads((tmp_path / "shipped" / "l40s.json").read_text())["operators"]
    assert not list((home / "calibrated").iterdir())
    assert main([*arguments, "--out", str(tmp_path)]) == 2
    assert "--update-shipped writes over the shipped calibration" in capsys.readouterr().err


def test_own_files_are_listed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slower(home / "calibrated" / "l40s.json")
    shutil.copy(PACKAGE / "hardware" / "l40s.yaml", home / "hardware" / "l40s-oc.yaml")
    assert main(["list", "gpus", "--json"]) == 0
    kernels = {row["name"]: row["kernels"] for row in json.loads(capsys.readouterr().out)}
    assert kernels["l40s"] == "your own calibration"
    assert kernels["l40s-oc"] == "estimated"
    assert kernels["h100-sxm"] == "calibrated"


def test_a_folder_that_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in place of the folder, or no home folder: there are no files, and runs work."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SERVESIM_HOME", str(tmp_path / "file"))
    assert "own_files" not in notes()
    for name in ("SERVESIM_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    assert own_folder().name == "servesim"
    assert "own_files" not in notes()
