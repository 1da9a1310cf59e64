"""vLLM's groups of layers with and without a sliding window, and the blocks of a request."""

from __future__ import annotations

import csv
import dataclasses
import re
from pathlib import Path

import pytest

from cost_models import KvGroups, ModelSpec, layer_groups, load_model


def model(full: int, windowed: int, window: int) -> ModelSpec:
    llama = load_model("llama-3.1-8b")
    return dataclasses.replace(llama, layers=full + windowed, window_layers=windowed, sliding_window=window)


@pytest.mark.parametrize(
    ("full", "windowed", "expected"),
    [
        (32, 0, (32, 1, 0)),
        (12, 12, (12, 1, 1)),  # gpt-oss-20b
        (8, 40, (8, 1, 5)),  # gemma-3-12b
        (5, 29, (5, 1, 6)),  # gemma-3-4b: one layer of padding
        (12, 13, (13, 1, 1)),  # less than half as many more: one group, padded
        (0, 32, (32, 0, 1)),
    ],
)
def test_layers_are_grouped_by_the_smaller_kind(full: int, windowed: int, expected: tuple[int, int, int]) -> None:
    found = layer_groups(model(full, windowed, 1024 if windowed else 0), 16)
    assert (found.layers, found.full, found.windowed) == expected


def test_blocks_of_a_request() -> None:
    groups = KvGroups(layers=8, full=1, windowed=5, window=1024, block_size=16)
    # All of 32,000 tokens in the full group; in the others 1,023 earlier tokens and one, and a block cut by the window.
    assert groups.blocks(32_000) == 2000 + 5 * (64 + 1)
    assert groups.blocks(32_000, in_flight=8192) == 2000 + 5 * (576 + 1)
    assert groups.blocks(100, in_flight=8192) == 7 + 5 * 8


def test_attention_in_chunks_is_held_in_full() -> None:
    """vllm 0.33 turns the hybrid manager off for Llama-4, unless an environment variable allows it."""
    assert layer_groups(load_model("llama-4-scout"), 16) == KvGroups(48, 1, 0, 0, 16)


def test_every_row_of_the_planner_with_attention_alone(shared: Path) -> None:
    """Rows of vLLM 0.33's own planner: layers of a block, blocks of a request, and refusals."""
    rows = 0
    with (shared / "oracle/hybrid/sizing.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["hybrid"] == "off" or re.search("mamba|chunk", row["groups"]):
                continue
            windows = [
                (int(window), int(layers)) for window, layers in re.findall(r"sliding(\d+)x(\d+)", row["groups"])
            ]
            full = sum(int(layers) for layers in re.findall(r"fullx(\d+)", row["groups"]))
            shape = model(full, sum(layers for _, layers in windows), windows[0][0] if windows else 0)
            groups = layer_groups(shape, int(row["block_size"]))
            block_bytes = groups.layers * int(row["page_size_bytes"])
            assert block_bytes == int(row["bytes_per_block"])
            in_flight = int(row["max_num_batched_tokens"]) * (1 + int(row["async_scheduling"]))
            need = groups.blocks(int(row["max_model_len"]), in_flight)
            assert (need > int(row["available_bytes"]) // block_bytes - 1) == (row["refused"] == "1")
            assert row["refused"] == "1" or need == int(row["blocks_per_request"])
            rows += 1
    assert rows > 400
