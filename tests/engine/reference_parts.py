"""Data of the reference scheduler: settings, requests, the entries of a step, blocks and their hashes.

It shares no code with the simulator. The rules are in `reference_vllm`.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

Line = dict[str, Any]

DEFAULTS: Line = {
    "max_num_seqs": 128,
    "max_num_batched_tokens": 2048,
    "max_model_len": 8192,
    "block_size": 16,
    "num_gpu_blocks": 1001,
    "enable_chunked_prefill": True,
    "enable_prefix_caching": False,
    "policy": "fcfs",
    "long_prefill_token_threshold": 0,
    "long_prefill_token_threshold_adaptive": False,
    "scheduler_reserve_full_isl": True,
    "watermark": 0.0,
    "prefill_schedule_interval": 1,
    "max_num_active_seqs": None,
    "async_scheduling": False,
    "spec": None,
    "time": {"base_ns": 5_000_000, "per_token_ns": 20_000, "per_ctx_ns": 10},
}


@dataclass(eq=False)
class Request:
    """A request and its state."""

    number: int  # the place in the trace
    name: str
    arrival_ns: int
    prompt: int
    max_tokens: int
    priority: int
    output: int = 0
    computed: int = 0  # tokens with KV in memory after the steps in flight
    in_flight: int = 0  # of these, the tokens of steps whose results are not in yet
    placeholders: int = 0  # tokens that those steps will give, drafts among them
    drafts: int = 0  # to be verified in the next step
    prefilling: bool = False  # after the latest step that was scheduled
    blocks: list[int] = field(default_factory=list)
    registered: int = 0  # leading blocks that can be found
    preemptions: int = 0
    finished: bool = False

    @property
    def known(self) -> int:
        """Return the number of known tokens."""
        return self.prompt + self.output


@dataclass
class Entry:
    """Work of a step for one request."""

    request: Request
    tokens: int
    before: int  # computed tokens before the step
    drafts: int
    padded: bool = False  # the drafts are fillers, not proposals
    prefilling: bool = False
    preemptions: int = 0  # how often the request had been preempted: if more by the end, the results are stale


class Pool:
    """The blocks: a free list, a count of holders each, and the blocks of each hash in order of registration."""

    def __init__(self, blocks: int) -> None:
        """Create the blocks, of which block 0 is never allocated."""
        self.size = blocks - 1
        self.free = list(range(1, blocks))
        self.holders = [0] * blocks
        self.hash_of: dict[int, Hashable] = {}
        self.found: dict[Hashable, list[int]] = {}

    @property
    def used(self) -> int:
        return self.size - len(self.free)

    def take(self) -> int:
        """Allocate the front of the free list, whose content can no longer be found."""
        block = self.free.pop(0)
        if block in self.hash_of:
            key = self.hash_of.pop(block)
            self.found[key].remove(block)
            if not self.found[key]:
                del self.found[key]
        self.holders[block] = 1
        return block

    def share(self, block: int) -> None:
        """Add a holder to a found block, free or not."""
        if not self.holders[block]:
            self.free.remove(block)
        self.holders[block] += 1

    def release(self, blocks: list[int]) -> None:
        """Free blocks, the last one first: cached ones to the back of the free list, others to the front."""
        for block in reversed(blocks):
            self.holders[block] -= 1
            if not self.holders[block]:
                self.free.insert(len(self.free) if block in self.hash_of else 0, block)

    def register(self, block: int, key: Hashable) -> None:
        self.hash_of[block] = key
        self.found.setdefault(key, []).append(block)


class Texts:
    """The tokens of every request, and the hashes of its blocks, chained over the whole text before them."""

    def __init__(self, trace: list[Line], block_size: int, next_token: bool) -> None:
        """Create the texts; with `next_token` (EAGLE) a block's hash covers the token after it, too."""
        self.lines = {line["id"]: line for line in trace}
        self.block_size, self.extra = block_size, int(next_token)
        self.numbers: dict[Hashable, int] = {}
        self.hashes: dict[str, list[int]] = {}

    def token(self, name: str, at: int) -> Hashable:
        """Return the token at a position: of a hash id, a shared prefix, the parent's prompt and output, or its own."""
        line = self.lines[name]
        if at < line["num_prefill_tokens"]:
            if "hash_ids" in line:
                block, rest = divmod(at, line["hash_block"])
                if block < len(line["hash_ids"]):
                    return "hash id", line["hash_ids"][block], rest
            elif line.get("prefix_id") is not None and at < line.get("prefix_len", 0):
                return "prefix", line["prefix_id"], at
            elif line.get("parent") is not None:
                parent = self.lines[line["parent"]]
                if at < parent["num_prefill_tokens"] + parent["num_decode_tokens"]:
                    return self.token(parent["id"], at)
        return "own", name, at

    def hash(self, name: str, block: int) -> int:
        hashes = self.hashes.setdefault(name, [])
        while len(hashes) <= block:
            start = len(hashes) * self.block_size
            tokens = [self.token(name, at) for at in range(start, start + self.block_size + self.extra)]
            content = (hashes[-1] if hashes else None, *tokens)
            hashes.append(self.numbers.setdefault(content, len(self.numbers)))
        return hashes[block]
