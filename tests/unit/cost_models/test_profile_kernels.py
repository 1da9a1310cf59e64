"""The command that measures kernels, on a GPU made of arithmetic."""

from __future__ import annotations

import csv
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cost_models.calibration.schema import COLUMNS, REQUIRED, WORDS, parse_row
from cost_models.profile_kernels import Backend, main
from cost_models.profiling.campaign import Kernel
from cost_models.profiling.grid import Shape, build_grid
from cost_models.profiling.timing import KernelError
from tests.conftest import ROOT
from tests.unit.cost_models.profiling.fakes import VirtualGpu

Prepare = Callable[[Shape], Kernel]


def backend(gpu: VirtualGpu, prepare: Prepare | None = None, **changes: object) -> Callable[[], Backend]:
    whole = Backend("Card", dict.fromkeys(REQUIRED, prepare or gpu.prepare), gpu)
    return lambda: whole._replace(**changes)  # type: ignore[arg-type]


def read(path: Path) -> list[dict[str, object]]:
    with path.open(newline="") as file:
        return [dict(parse_row(row, str(path))) for row in csv.DictReader(file)]


@pytest.fixture
def gpu() -> VirtualGpu:
    return VirtualGpu(lambda _: 25.0, lambda _: 0.01)


def test_a_quick_run_measures_all_that_one_gpu_can(
    tmp_path: Path, gpu: VirtualGpu, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "card.csv"
    assert main(["--out", str(out), "--quick"], backend(gpu)) == 0
    rows = read(out)
    assert {row["operator"] for row in rows} == set(REQUIRED) - {"all_reduce", "p2p"}
    assert {row["latency_us"] for row in rows} == {25.0}
    assert len(rows) == len(gpu.prepared)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"Card: {len(rows)} shapes, in at most 570 s"
    assert said[-1] == f"{out}: {len(rows)} shapes of Card"


def test_operators_and_formats_can_be_chosen(tmp_path: Path, gpu: VirtualGpu) -> None:
    out = tmp_path / "card.csv"
    arguments = ["--out", str(out), "--quick", "--operators", "p2p, gemm", "--dtypes", "fp8"]
    assert main(arguments, backend(gpu, peers=2)) == 0
    assert {(row["operator"], row.get("dtype")) for row in read(out)} == {("gemm", "fp8"), ("p2p", None)}


def test_a_budget_that_is_too_small_is_said(
    tmp_path: Path, gpu: VirtualGpu, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "card.csv"
    assert main(["--out", str(out), "--operators", "gemm", "--budget", "5s"], backend(gpu)) == 0
    measured = len(read(out))
    assert 100 < measured < 500
    assert "finer ones left out when its time was up" in capsys.readouterr().err
    assert {row["m"] for row in read(out)} >= {1, 32768}


def test_kernels_that_fail_are_said_and_do_not_stop_the_rest(
    tmp_path: Path, gpu: VirtualGpu, capsys: pytest.CaptureFixture[str]
) -> None:
    def without_vllm(shape: Shape) -> Kernel:
        if shape.operator == "moe":
            raise KernelError("needs vLLM's fused experts; install vllm to measure MoE layers")
        return gpu.prepare(shape)

    out = tmp_path / "card.csv"
    arguments = ["--out", str(out), "--quick", "--operators", "moe,elementwise"]
    assert main(arguments, backend(gpu, without_vllm)) == 0
    assert {row["operator"] for row in read(out)} == {"elementwise"}
    assert "install vllm to measure MoE layers" in capsys.readouterr().err


def test_an_interrupt_keeps_what_was_measured(
    tmp_path: Path, gpu: VirtualGpu, capsys: pytest.CaptureFixture[str]
) -> None:
    def until_tenth(shape: Shape) -> Kernel:
        if len(gpu.prepared) == 10:
            raise KeyboardInterrupt
        return gpu.prepare(shape)

    out = tmp_path / "card.csv"
    assert main(["--out", str(out), "--operators", "gemm"], backend(gpu, until_tenth)) == 130
    assert len(read(out)) == 10
    left_out = len(build_grid("gemm")) - 10
    assert f"interrupted; {out} is partial: 10 shapes measured, {left_out} left out" in capsys.readouterr().err


def test_nothing_measured_writes_nothing(tmp_path: Path, gpu: VirtualGpu, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(shape: Shape) -> Kernel:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    out = tmp_path / "card.csv"
    out.write_text("earlier")
    assert main(["--out", str(out), "--quick"], backend(gpu, broken)) == 1
    assert out.read_text() == "earlier"
    assert "nothing was measured, nothing is written" in capsys.readouterr().err


def test_under_torchrun_the_leader_writes(tmp_path: Path, gpu: VirtualGpu, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "card.csv"
    assert main(["--out", str(out)], backend(gpu, peers=4, world=4, leader=False)) == 0
    assert not out.exists()
    assert capsys.readouterr().err == ""
    assert main(["--out", str(out)], backend(gpu, peers=4, world=4)) == 0
    assert {(row["operator"], row["gpus"]) for row in read(out)} == {("all_reduce", 4)}


@pytest.mark.parametrize(
    ("arguments", "changes", "message"),
    [
        (["--operators", "gem"], {}, "unknown operator 'gem'; did you mean gemm"),
        (["--dtypes", "fp9"], {}, "unknown dtype 'fp9'; did you mean fp8"),
        (["--budget", "10"], {}, "--budget: expected a time such as 90s or 10min, found '10'"),
        (["--budget", "0s"], {}, "--budget: expected a time such as 90s or 10min, found '0s'"),
        (["--operators", "all_reduce"], {}, "all_reduce takes a process a GPU; run torchrun --nproc-per-node GPUS"),
        (["--operators", "p2p"], {}, "p2p takes two GPUs, and there is one here; leave it out of --operators"),
        (["--operators", "gemm"], {"world": 2}, "under torchrun only all_reduce is measured"),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path,
    gpu: VirtualGpu,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    changes: dict[str, object],
    message: str,
) -> None:
    assert main(["--out", str(tmp_path / "card.csv"), *arguments], backend(gpu, **changes)) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"profile_kernels: {message}")
    assert said.count("\n") == 1
    assert gpu.prepared == []


def test_a_place_that_cannot_be_written_is_found_before_measuring(tmp_path: Path, gpu: VirtualGpu) -> None:
    assert main(["--out", str(tmp_path)], backend(gpu)) == 2
    assert gpu.prepared == []


def test_without_pytorch_the_command_says_what_to_do(tmp_path: Path) -> None:
    if importlib.util.find_spec("torch") is not None:
        pytest.skip("PyTorch is installed here")
    command = [sys.executable, "-m", "cost_models.profile_kernels", "--out", str(tmp_path / "card.csv")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(
        "profile_kernels: measuring kernels needs PyTorch with CUDA, which cannot be imported"
    )
    assert done.stderr.count("\n") == 1


def test_the_documentation_has_every_option_column_and_word(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "profiling.md").read_text()
    with pytest.raises(SystemExit):
        main(["--help"])
    options = set(re.findall(r"--[a-z]+", capsys.readouterr().out)) - {"--help"}
    assert len(options) == 5
    assert [name for name in sorted(options) if f"`{name}" not in text] == []
    words = [word for words in WORDS.values() for word in words]
    assert [name for name in (*COLUMNS, *words) if f"`{name}`" not in text] == []
