"""The all-to-all of expert parallelism: its law, and the fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cost_models.errors import CostModelError
from cost_models.files.fields import Fields
from cost_models.laws.all_to_all import AllToAllLaw, remote_copies
from cost_models.laws.table import Table
from cost_models.library import load_gpu

H100 = load_gpu("h100-sxm")
KNOTS = (np.array([2.0, 8.0]), np.array([2.0**12, 2.0**20, 2.0**30]))
#: Twice the base at most sizes; in the middle less, so that a law that took it as it is would not be monotone.
LAW = AllToAllLaw(
    gpu=H100,
    copy_bytes=4096.0,
    launch_ns={"dispatch": 50_000.0, "combine": 30_000.0},
    above={
        phase: Table(("gpus", "bytes"), KNOTS, np.array([[2.0, 1.2, 2.0], [2.0, 1.0, 2.0]]))
        for phase in ("dispatch", "combine")
    },
)
TOKENS = np.unique(np.geomspace(1, 1e6, 200).round())


def test_copies_by_hand() -> None:
    # Of two GPUs the other one is hit by two draws with the chance 3/4.
    assert remote_copies(2, np.array([100.0]), 2).tolist() == [75.0]


def test_time_by_hand() -> None:
    # 10,000 tokens of 4,096 BF16 numbers: 7,500 copies of 8,192 + 4,096 bytes = 92,160,000 bytes at 450 GB/s.
    table = Table(("gpus", "bytes"), (np.array([2.0]), np.array([1.0])), np.array([[2.0]]))
    law = AllToAllLaw(H100, 4096.0, {"dispatch": 50_000.0}, {"dispatch": table})
    assert law.ns(2, np.array([1e4]), 4096, 2, "dispatch")[0] == pytest.approx(2 * (50_000 + 204_800), rel=1e-9)


@pytest.mark.parametrize("gpus", [2, 3, 8])
@pytest.mark.parametrize("phase", ["dispatch", "combine"])
def test_monotone_and_never_below_the_bound(gpus: int, phase: str) -> None:
    times = LAW.ns(gpus, TOKENS, 4096, 8, phase)
    assert (np.diff(times) >= 0).all()
    assert (times >= remote_copies(gpus, TOKENS, 8) * 8192 / 450).all()


def test_a_time_does_not_depend_on_the_others() -> None:
    alone = [LAW.ns(8, np.array([count]), 4096, 8, "combine")[0] for count in TOKENS]
    assert LAW.ns(8, TOKENS, 4096, 8, "combine").tolist() == alone


def test_one_gpu_sends_nothing() -> None:
    assert LAW.ns(1, TOKENS, 4096, 8, "combine").tolist() == [0.0] * len(TOKENS)


def test_what_is_not_known() -> None:
    with pytest.raises(CostModelError, match="all-to-all of h100-sxm is known for up to 8 GPUs, not for the 16"):
        LAW.ns(16, TOKENS, 4096, 8, "combine")
    with pytest.raises(CostModelError, match="unknown phase of an all-to-all 'combined'; did you mean combine"):
        LAW.ns(8, TOKENS, 4096, 8, "combined")


def test_outside() -> None:
    assert LAW.outside(8, 100, 4096, 8, "combine") == []
    assert LAW.outside(8, 1e6, 4096, 8, "combine") == ["bytes 5.64601e+10 (calibrated 4096 to 1.07374e+09)"]


def test_json_round_trip() -> None:
    again = AllToAllLaw.from_json(Fields("law", LAW.to_json()), H100)
    assert again.ns(8, TOKENS, 4096, 8, "dispatch").tolist() == LAW.ns(8, TOKENS, 4096, 8, "dispatch").tolist()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "law: phases: missing"),
        ({"copy_bytes": 1, "phases": {"dispatch": {}}}, r"law: phases\.dispatch\.launch_ns: missing"),
        ({"copy_bytes": 1, "phases": 2}, "law: phases: expected a mapping, found 2"),
    ],
)
def test_json_that_is_no_law(data: dict[str, object], message: str) -> None:
    with pytest.raises(CostModelError, match=message):
        AllToAllLaw.from_json(Fields("law", data), H100)


def test_a_law_is_found_again() -> None:
    pd = pytest.importorskip("pandas", reason="fitting needs the calibrate extra")
    pytest.importorskip("scipy", reason="fitting needs the calibrate extra")
    from cost_models.calibration.all_to_all import fit_all_to_all

    copies = remote_copies(8, 2.0 ** np.arange(0, 17), 8)
    parts = []
    for phase, launch_ns in (("dispatch", 90_000.0), ("combine", 40_000.0)):
        for hidden in (2048, 4096, 7168):
            size = copies * hidden * 2
            time = launch_ns + 3 * (size + copies * 4096) / 450
            part = {"phase": phase, "gpus": 8, "copies": copies, "bytes": size, "latency_ns": time}
            parts.append(pd.DataFrame({**part, "hidden": hidden, "top_k": 8, "experts": 64}))
    rows = pd.concat(parts, ignore_index=True)
    rows.loc[0, "latency_ns"] = 1.0
    fitted = fit_all_to_all(rows, H100, 4096.0, "made")
    assert fitted.dropped == {"faster than physics allows": 1}
    assert fitted.errors["whole models left out"].median_pct < 1
    assert fitted.errors["all"].median_pct < 1


@pytest.mark.parametrize("gpu", ["h100_sxm", "a100_sxm"])
def test_measured_rows(gpu: str) -> None:
    pytest.importorskip("pandas", reason="fitting needs the calibrate extra")
    package = pytest.importorskip("aiconfigurator_core", reason="the measured timings are in the calibrate extra")
    from cost_models.calibration.read_moe import read_all_to_all

    found = read_all_to_all(Path(package.__file__).parent / "systems" / "data", gpu)
    assert set(found) == ({"deepep_ht", "deepep_ll", "nccl"} if gpu == "h100_sxm" else {"nccl"})
    for _, rows, source in found.values():
        # The slowest call moves at least a tenth of NVLink's bandwidth: times are in the unit they claim.
        slowest = rows.loc[rows["latency_ns"].idxmax()]
        assert 10 < slowest["bytes"] / slowest["latency_ns"] < 450
        assert set(rows["phase"]) == {"dispatch", "combine"}
        assert gpu in source


def test_a_gpu_without_measurements(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="fitting needs the calibrate extra")
    from cost_models.calibration.read_moe import read_all_to_all

    assert read_all_to_all(tmp_path, "l40s") == {}
