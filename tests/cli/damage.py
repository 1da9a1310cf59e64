"""Valid inputs of every kind that the command line reads, and ways to damage them."""

from __future__ import annotations

import gzip
import json
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cost_models.library import gpu_file
from tests.conftest import ROOT

SCENARIO = """\
name: small
model: llama-3.1-8b
seed: 3
workload:
  arrivals: {process: gamma, rate: 20, cv: 1.5}
  requests: 12
  prompt_tokens: {distribution: lognormal, mean: 100, cv: 0.5, max: 300}
  output_tokens: {distribution: uniform, min: 2, max: 9}
  rate_scale: 1.5
deployment:
  pools:
    main:
      gpu: l40s
      replicas: 2
      scheduler: {policy: vllm, version: vllm-0.33, max_num_seqs: 8, max_num_batched_tokens: 256}
      memory: {block_size: 16, kv_blocks: 400}
      cost_model: {kind: linear, base: 5ms, per_token: 20us}
router: {policy: power_of_d, d: 2}
slo: {ttft: 2s, tpot: 50ms}
cost: {usd_per_gpu_hour: 2.5}
run: {horizon: 20s, warmup: 100ms}
"""
SPLIT = """\
name: split
model: {name: llama-3.1-8b, weights: fp8}
workload: {arrivals: {process: closed_loop, concurrency: 3, think_time: {mean: 1s}}, requests: 8, prompt_tokens: 50,
  output_tokens: 5}
deployment:
  pools:
    p: {gpu: l40s, role: prefill, memory: {gpu_memory_utilization: 0.8}}
    d:
      gpu: l40s
      role: decode
      speculation: {method: ngram, num_speculative_tokens: 2, acceptance: {law: iid, alpha: 0.5}}
  handover: {mode: push, setup: 1ms, failure_rate: 0.1, max_retries: 2}
links: {gpus_per_node: 4, network: {bandwidth: 25GB/s, latency: 5us}}
"""
ROOFLINE = """\
name: roofline
model: llama-3.1-8b
workload: {arrivals: {process: poisson, rate: 5}, requests: 4, prompt_tokens: 50, output_tokens: 4}
deployment: {pools: {m: {gpu: l40s}}}
"""
DRAFTING = """\
name: drafting
model: llama-3.1-8b
workload: {arrivals: {process: poisson, rate: 5}, requests: 4, prompt_tokens: 50, output_tokens: 9}
deployment: {pools: {m: {gpu: l40s, speculation: {method: ngram, num_speculative_tokens: 3,
  acceptance: {law: replay, file: FILE}}}}}
"""
BENCH = {
    "model_id": "llama-3.1-8b",
    "request_rate": 4.0,
    "max_concurrency": None,
    "input_lens": [10, 20, 30],
    "output_lens": [3, 2, 4],
    "ttfts": [0.1, 0.2, 0.1],
    "itls": [[0.01, 0.01], [0.02], [0.01, 0.01, 0.01]],
    "errors": ["", "", ""],
    "start_times": [0.0, 0.2, 0.5],
}
MEANS = {
    "model_id": "llama-3.1-8b",
    "request_rate": 4.0,
    "completed": 10,
    "total_input_tokens": 1000,
    "total_output_tokens": 100,
    "mean_ttft_ms": 30.5,
    "mean_itl_ms": 8.5,
    "p99_ttft_ms": 60.5,
}
ROWS = """\
engine,model,gpu,tp,weight_dtype,concurrency,request_rate,n_requests,input_tokens_mean,output_tokens,ttft_mean_ms,itl_mean_ms
vllm,llama-3.1-8b,l40s,1,BF16,,2,8,100,6,100.5,20.5
vllm,llama-3.1-8b,l40s,1,fp8,2,,8,100,6,100.5,20.5
"""
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "sliding_window": None,
    "quantization_config": {"quant_method": "awq", "bits": 4},
}


@dataclass(frozen=True)
class Kind:
    """A kind of input: `make(folder)` writes valid files and returns the one to damage, and the command that reads it.

    Beside 0 and 2, `codes` are right, too.
    """

    make: Callable[[Path], tuple[Path, list[str]]]
    codes: tuple[int, ...] = ()


def _text(name: str, text: str, *command: str) -> Kind:
    """Return a file of this text; FILE in the command is its path."""

    def make(folder: Path) -> tuple[Path, list[str]]:
        path = folder / name
        path.write_text(text)
        return path, [word.replace("FILE", str(path)) for word in command]

    return Kind(make)


def _beside(name: str, text: str, scenario: str, setting: str) -> Kind:
    """Return a file of this text that a scenario names: FILE in the scenario or in the setting is its path."""

    def make(folder: Path) -> tuple[Path, list[str]]:
        path, beside = folder / name, folder / "scenario.yaml"
        path.write_text(text)
        beside.write_text(scenario.replace("FILE", str(path)))
        return path, ["run", str(beside), "-q", *(["--set", setting.replace("FILE", str(path))] if setting else [])]

    return Kind(make)


def _recording(victim: str) -> Kind:
    def make(folder: Path) -> tuple[Path, list[str]]:
        shutil.copytree(ROOT / "tests" / "recordings" / "small_spec_ngram_apc", folder / "recording")
        return _plain(folder / "recording", victim), ["check-scheduler", str(folder / "recording")]

    return Kind(make, codes=(1,))


def _plain(folder: Path, name: str) -> Path:
    """Return the file of that name, unpacked and short, so that damage can be found."""
    packed = folder / f"{name}.gz"
    if packed.exists():
        (folder / name).write_bytes(gzip.decompress(packed.read_bytes()))
        packed.unlink()
    if name != "config.json":
        lines = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(lines[:40]))
    return folder / name


_NATIVE = "arrival_s,prompt_tokens,output_tokens,max_tokens,class,id\n" + "".join(
    f"{i}.5,{100 + i},{3 + i},{20 + i},chat,r{i}\n" for i in range(8)
)
_AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:4{i}.6805900,{374 + i},{44 + i}\n" for i in range(8)
)
_LINES = "".join(
    json.dumps({"arrival_s": i / 2, "prompt_tokens": 10 + i, "output_tokens": 3, "session": f"s{i}"}) + "\n"
    for i in range(8)
)
_HOST = (ROOT / "cost_models" / "hosts" / "vllm.yaml").read_text()
_POOL = "deployment.pools.m"

KINDS = {
    "scenario": _text("small.yaml", SCENARIO, "run", "FILE", "-q"),
    "split": _text("split.yaml", SPLIT, "run", "FILE", "-q"),
    "dry_run": _text("small.yaml", SCENARIO, "run", "FILE", "-q", "--dry-run"),
    "trace_csv": _text("trace.csv", _NATIVE, "trace", "stats", "FILE", "--json"),
    "trace_azure": _text("azure.csv", _AZURE, "trace", "stats", "FILE", "--json"),
    "trace_jsonl": _text("trace.jsonl", _LINES, "trace", "stats", "FILE", "--json"),
    "trace_run": _beside("trace.csv", _NATIVE, ROOFLINE.split("workload")[0] + "workload: {trace: FILE}\n"
                         + ROOFLINE[ROOFLINE.index("deployment") :], ""),
    "host": _beside("host.yaml", _HOST, ROOFLINE, f"{_POOL}.cost_model.host=FILE"),
    "calibration": _beside("l40s.json", (ROOT / "cost_models/calibrated/l40s.json").read_text(), ROOFLINE,
                           f"{_POOL}.cost_model.calibration=FILE"),
    "config": _beside("config.json", json.dumps(CONFIG, indent=1), ROOFLINE, "model=FILE"),
    "acceptance": _beside("accepted.jsonl", '{"accepted": [2, 0, 3]}\n{"accepted": [1]}\n', DRAFTING, ""),
    "bench": _text("bench.json", json.dumps(BENCH), "validate", "FILE", "--gpu", "l40s", "--seeds", "1", "--jobs", "1"),
    "means": _text("means.json", json.dumps(MEANS), "validate", "FILE", "--gpu", "l40s", "--seeds", "1", "--jobs", "1"),
    "rows": _text("rows.csv", ROWS, "validate", "FILE", "--seeds", "1", "--jobs", "1"),
    "recording_config": _recording("config.json"),
    "recording_trace": _recording("trace.jsonl"),
    "recording_steps": _recording("steps.jsonl"),
}  # fmt: skip

#: What takes the place of a value.
VALUES = [
    *("-1", "0", "0.5", "1.5", "-0.0", "1e308", "1e999", "-1e400", ".inf", ".nan", "NaN", "Infinity", "1e-320"),
    *("null", "true", '"x"', "x", "[]", "{}", "[1, [2]]", '{"a": 1}', "99999999999999999999", "9" * 400, "9" * 5000),
    *(
        "[" * 300,
        '{"a": ' * 300,
        "{a: " * 100,
        "2023-13-45",
        "!!int x",
        "!!float x",
        "*a",
        "&a 1",
        "",
        "007",
        "\\u0000",
    ),
    *('"\\ud800"', "模型", "x" * 5000, "1_000", "0x10", "- 1", "1s", "-1s", "99999999h", "1e9GiB", "'"),
]
_TOKEN = re.compile(rb"""[-+]?[0-9][0-9.e+-]*[a-zA-Z]*|"[^"\n]*"|[A-Za-z_.][\w.-]*""")


def damaged(content: bytes, choice: random.Random) -> bytes:
    """Return the content with one to three random changes."""
    for _ in range(choice.choice((1, 1, 1, 2, 3))):
        content = choice.choice(_WAYS)(content, choice)
    return content


def _value(content: bytes, choice: random.Random) -> bytes:
    tokens = list(_TOKEN.finditer(content))
    if not tokens:
        return content
    token = choice.choice(tokens)
    return content[: token.start()] + choice.choice(VALUES).encode() + content[token.end() :]


def _truncated(content: bytes, choice: random.Random) -> bytes:
    return content[: choice.randrange(len(content) + 1)]


def _byte(content: bytes, choice: random.Random) -> bytes:
    at = choice.randrange(len(content) + 1)
    return (
        content[:at]
        + choice.choice((b"\xff", b"\x00", b"\r", b"\n", b"\t", b",", b":", b'"', b"\x1f\x8b"))
        + content[at:]
    )


def _line(content: bytes, choice: random.Random) -> bytes:
    lines = content.splitlines(keepends=True)
    if not lines:
        return content
    at, to = choice.randrange(len(lines)), choice.randrange(len(lines))
    return b"".join(
        choice.choice(([*lines, lines[at]], lines[:at] + lines[at + 1 :], [*lines[:to], lines[at], *lines[to:]]))
    )


def _whole(content: bytes, choice: random.Random) -> bytes:
    text = content.decode(errors="replace")
    return choice.choice(
        (b"", b"\n\n", b"null", b"[]", b"3", b"{", b"\xef\xbb\xbf" + content, text.encode("utf-16"), content * 2,
         content.replace(b"\n", b""), b"[" * 100_000, b'{"a":' * 100_000, b"\x1f\x8b" + content)
    )  # fmt: skip


_WAYS: list[Callable[[bytes, random.Random], bytes]] = [_value] * 6 + [_truncated, _byte, _line, _whole]


def gpu_kind(home: Path) -> tuple[Path, list[str]]:
    """Return a GPU of the user, in the folder of the user's files."""
    path = home / "hardware" / "mine.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(re.sub(r"(?m)^names:.*\n", "", gpu_file("l40s").read_text()))
    scenario = home / "scenario.yaml"
    scenario.write_text(ROOFLINE.replace("l40s", "mine"))
    return path, ["run", str(scenario), "-q"]
