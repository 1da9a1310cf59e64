"""Host models as files have them."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import yaml

from cost_models import CostModelError, HostModel, gpu_names, host_names, load_host
from cost_models.calibration.host import PRIOR
from simulator.calibration.host import host_file

HOST = HostModel(kernel_scale=0.9, cpu_step=1e-3, draft_step=1e-4, draft_pass=5e-4)


def written(tmp_path: Path, drop: str = "", **more: float) -> str:
    """Return a file with the terms of HOST without those that begin with `drop`, and with `more`."""
    data = yaml.safe_load(host_file({"h100-sxm": HOST}, "vLLM", "a test"))
    data["terms"] = {name: value for name, value in data["terms"].items() if not (drop and name.startswith(drop))}
    path = tmp_path / "host.yaml"
    path.write_text(yaml.safe_dump(data | {"terms": data["terms"] | more}))
    return str(path)


def test_a_file_that_was_written_is_read_back(tmp_path: Path) -> None:
    assert load_host(written(tmp_path), "h100-sxm") == HOST


def test_files_from_before_speculative_decoding_say_nothing_of_proposing(tmp_path: Path) -> None:
    assert load_host(written(tmp_path, drop="draft_"), "h100-sxm") == replace(HOST, draft_step=0.0, draft_pass=0.0)


@pytest.mark.parametrize(
    ("drop", "more", "message"),
    [
        ("cpu_step", {}, "cpu_step: "),
        ("", {"draft_passes": 1.0}, "draft_passes"),
        ("", {"draft_pass": -1.0}, "terms.draft_pass: expected a number of at least 0"),
    ],
)
def test_other_terms_must_be_there_and_known(tmp_path: Path, drop: str, more: dict[str, float], message: str) -> None:
    with pytest.raises(CostModelError, match=message):
        load_host(written(tmp_path, drop, **more), "h100-sxm")


@pytest.mark.parametrize("name", host_names())
def test_shipped_ones_have_terms_of_proposing(name: str) -> None:
    for gpu in gpu_names():
        terms = asdict(load_host(name, gpu))
        assert terms["draft_pass"] > 0
        assert terms["draft_lookup"] > 0


def test_a_fit_of_plain_runs_leaves_the_terms_of_proposing_as_shipped() -> None:
    shipped, prior = asdict(load_host("vllm", "h100-sxm")), asdict(PRIOR)
    assert {n: v for n, v in shipped.items() if n.startswith("draft_")} == {
        n: v for n, v in prior.items() if n.startswith("draft_")
    }
