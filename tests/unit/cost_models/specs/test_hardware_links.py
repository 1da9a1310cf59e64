"""The links of the shipped GPUs: copies by the hardware files, against measured ones."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cost_models import gpu_names, load_gpu
from cost_models.files.fields import Fields
from cost_models.laws.communication import P2pLaw
from tests.conftest import ROOT

CALIBRATED = ROOT / "cost_models" / "calibrated"


@pytest.mark.parametrize(
    ("name", "kind"), [("h100-sxm", "node"), ("h100-sxm", "network"), ("a100-sxm-80gb", "node")], ids=str
)
def test_large_copies_take_what_was_measured(name: str, kind: str) -> None:
    """Latency + bytes / (line rate x share) is within 5% of the calibrated law from 64 MiB on."""
    fitted = json.loads((CALIBRATED / f"{name}.json").read_text())["operators"]["p2p"][kind]["law"]
    gpu = load_gpu(name)
    link = gpu.nvlink if kind == "node" else gpu.network
    sizes = np.array([2.0**26, 2.0**28, 2.0**30])
    simple = link.latency_ns + sizes * 1e9 / (link.bandwidth * link.share)
    assert simple == pytest.approx(P2pLaw.from_json(Fields("law", fitted)).ns(sizes), rel=0.05)


@pytest.mark.parametrize(("name", "kind"), [("h100-sxm", "node"), ("h100-sxm", "network"), ("a100-sxm-80gb", "node")])
def test_the_latency_is_that_of_the_smallest_measured_copy(name: str, kind: str) -> None:
    fitted = json.loads((CALIBRATED / f"{name}.json").read_text())["operators"]["p2p"][kind]["law"]
    gpu = load_gpu(name)
    link = gpu.nvlink if kind == "node" else gpu.network
    assert link.latency_ns == pytest.approx(fitted["ns"][0], rel=0.05)


@pytest.mark.parametrize("name", gpu_names())
def test_line_rates_are_those_of_the_gpu(name: str) -> None:
    gpu = load_gpu(name)
    assert gpu.nvlink.bandwidth == gpu.nvlink_bandwidth
    assert 0 < gpu.pcie.bandwidth * gpu.pcie.share < 64e9
    assert gpu.network.bandwidth in (25e9, 50e9)
