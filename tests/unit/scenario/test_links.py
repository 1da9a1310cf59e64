"""The links of a scenario: keys, units, and errors."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest

from cost_models.files.nodes import parse_yaml
from simulator.errors import InputError
from simulator.scenario import links, plain_values, reader
from simulator.scenario.links import Links, Nics, NvLink
from tests.conftest import ROOT


def read(document: dict[str, Any]) -> Links:
    return reader.read(Links, parse_yaml(json.dumps(document), "links.yaml"))


def test_bandwidths_have_a_unit() -> None:
    found = read(
        {
            "gpus_per_node": 4,
            "placement": "apart",
            "sharing": "fifo",
            "nvlink": {"bandwidth": "450GB/s", "latency": "2us"},
            "network": {"bandwidth": "200Gb/s", "efficiency": 0.9, "per_descriptor": "0.5us", "nics_per_node": 2},
        }
    )
    nvlink = NvLink(bandwidth=450 * 10**9, latency=2000)
    network = Nics(bandwidth=25 * 10**9, efficiency=0.9, per_descriptor=500, nics_per_node=2)
    assert found == Links(4, "apart", "fifo", nvlink, network)


def test_what_is_written_is_read_back() -> None:
    found = read({"network": {"bandwidth": "12.5GB/s", "latency": "0s"}, "nvlink": {"bandwidth": "1B/s"}})
    plain = plain_values.plain(found)
    assert plain["network"]["bandwidth"] == "12500MB/s"
    assert plain["pcie"]["bandwidth"] is None
    assert read(plain) == found


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"network": {"bandwidth": 25}}, "a bandwidth needs a unit, such as 25GB/s or, in bits, 200Gb/s; found 25"),
        ({"network": {"bandwidth": "25GB"}}, "expected a bandwidth such as"),
        ({"network": {"bandwidth": "0GB/s"}}, "must be at least 1"),
        ({"network": {"efficiency": 1.5}}, "must be at most 1"),
        ({"network": {"efficiency": 0.0}}, "must be more than 0"),
        ({"sharing": "fair"}, "'fair' is not known"),
        ({"nvlink": {"nics_per_node": 1}}, "unknown key"),
        ({"gpus_per_node": 0}, "must be at least 1"),
    ],
)
def test_mistakes_are_named(document: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=re.escape(why)):
        read(document)


@pytest.mark.parametrize(
    ("section", "settings"),
    [("links", links.Links), ("links.nvlink", NvLink), ("links.network", Nics), ("links.pcie", links.Pcie)],
)
def test_every_key_is_described(section: str, settings: type) -> None:
    text = (ROOT / "docs" / "scenarios.md").read_text()
    for field in dataclasses.fields(settings):
        assert f"`{section}.{field.name}" in text, field.name
