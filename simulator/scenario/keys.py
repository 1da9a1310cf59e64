"""Hints in errors about unknown keys, from an index over the types of a file.

The index has every key of a dataclass, and of the dataclasses inside it, by its name. So an error can name the right
place of a misplaced key, and of a key that another program calls differently.
"""

from __future__ import annotations

import difflib
import functools
import re
import typing
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from simulator.errors import did_you_mean
from simulator.scenario.field_types import fields_of, members, tagged_at, types_at, unwrap, words_in
from simulator.scenario.nodes import Node

#: Placeholders in paths: for the name of an entry, such as that of a pool, and for the number of a list's entry.
_NAME, _NUMBER = "NAME", "[N]"
#: Least similarity of a word and a key for a hint: of a key of the same mapping, and of any other.
_ALIKE, _ALIKE_ELSEWHERE = 0.85, 0.8
_MOST_PLACES = 3

#: Keys by the names that they have in other programs and papers.
ALIASES: dict[str, tuple[str, ...]] = {
    "accelerator": ("gpu",),
    "acceptance_rate": ("acceptance",),
    "arrival_rate": ("rate",),
    "batch_size": ("max_num_seqs",),
    "chunked_prefill": ("enable_chunked_prefill",),
    "chunked_prefill_size": ("max_num_batched_tokens",),
    "concurrency": ("max_concurrency",),
    "context_length": ("max_model_len",),
    "dp": ("data_parallel",),
    "dp_size": ("data_parallel",),
    "data_parallel_size": ("data_parallel",),
    "dtype": ("weights",),
    "enable_expert_parallel": ("expert_parallel",),
    "ep": ("expert_parallel",),
    "ep_size": ("expert_parallel",),
    "gpu_count": ("replicas", "tensor_parallel"),
    "gpu_memory_utilisation": ("gpu_memory_utilization",),
    "gpu_type": ("gpu",),
    "gpus": ("replicas", "tensor_parallel"),
    "hardware": ("gpu",),
    "inter_token_latency": ("itl",),
    "input_len": ("prompt_tokens",),
    "input_tokens": ("prompt_tokens",),
    "instances": ("replicas",),
    "isl": ("prompt_tokens",),
    "kv_cache_dtype": ("kv_cache",),
    "max_batch_size": ("max_num_seqs",),
    "max_context_len": ("max_model_len",),
    "max_num_tokens": ("max_num_batched_tokens",),
    "max_running_requests": ("max_num_seqs",),
    "max_seq_len": ("max_model_len",),
    "mem_fraction_static": ("gpu_memory_utilization",),
    "num_gpu_blocks": ("kv_blocks",),
    "num_gpu_blocks_override": ("kv_blocks",),
    "num_gpus": ("replicas", "tensor_parallel"),
    "num_prompts": ("requests",),
    "num_replicas": ("replicas",),
    "num_requests": ("requests",),
    "num_spec_tokens": ("num_speculative_tokens",),
    "osl": ("output_tokens",),
    "output_len": ("output_tokens",),
    "page_size": ("block_size",),
    "pp": ("pipeline_parallel",),
    "pp_size": ("pipeline_parallel",),
    "pipeline_parallel_size": ("pipeline_parallel",),
    "prefix_caching": ("enable_prefix_caching",),
    "price": ("usd_per_gpu_hour",),
    "qps": ("rate",),
    "quantization": ("weights",),
    "request_rate": ("rate",),
    "rps": ("rate",),
    "speculative_config": ("speculation",),
    "tbt": ("itl",),
    "time_between_tokens": ("itl",),
    "time_per_output_token": ("tpot",),
    "time_to_first_token": ("ttft",),
    "token_budget": ("max_num_batched_tokens",),
    "tp": ("tensor_parallel",),
    "tp_size": ("tensor_parallel",),
    "tensor_parallel_size": ("tensor_parallel",),
}


class Place(NamedTuple):
    """A mapping that may have a key: its path, and for one of several kinds its tag, as key and value."""

    path: tuple[str, ...]
    tag: tuple[str, str] | None


def advice(root: type, document: Node, path: str, key: str, cls: type) -> str:
    """Return the hint after `unknown key` in an error about `key` in the mapping at `path`, which is read as a `cls`.

    `root` is the type of the whole document.
    """
    known, word = fields_of(cls), _snake_case(key)
    here = [name for name in ALIASES.get(word, (word,)) if name in known]
    here = here or [f"{path}.{name}" if path else name for name in _nested(cls, word)]
    if here:
        return f"; did you mean {' or '.join(here)}?"
    index, at = _index(root), tuple(_segments(path))
    names = [word] if word in index else [name for name in ALIASES.get(word, ()) if name in index]
    kinds = [place.tag for name in names for place in index[name] if place.tag and _same(place.path, at)]
    if kinds:
        return f"; it is one of {kinds[0][0]}: {' or '.join(tag for _, tag in kinds)}"
    if not difflib.get_close_matches(word, known, 1, _ALIKE):
        if not names and not difflib.get_close_matches(word, known):
            names = difflib.get_close_matches(word, index, 1, _ALIKE_ELSEWHERE)
        if names:
            return f"; {_belongs(names[0], index[names[0]], at, document)}"
    return did_you_mean(word, known)


def keys_of(root: type, document: Node) -> list[str]:
    """Return the dotted keys that may be set in a document of type `root`, with the names of its entries."""
    found: dict[str, None] = {}
    for name, places in _index(root).items():
        for place in places:
            if _NUMBER not in place.path:
                found.update(dict.fromkeys(_written(path, name) for path in _filled(place.path, document)))
    return sorted(found)


def values_of(root: type, key: str) -> list[str]:
    """Return the values that a dotted key may have, where they are words of a choice or true and false."""
    above, _, last = key.rpartition(".")
    path = above.split(".") if above else []
    tag = tagged_at(root, path)
    words: dict[str, None] = {}
    for kind in types_at(root, path):
        if tag is not None and tag.key == last:
            words.update(dict.fromkeys(member.TAG for member, _ in members(kind)))
    for kind in types_at(root, [*path, last]):
        words.update(dict.fromkeys(words_in(kind)))
    return list(words)


def _filled(pattern: Sequence[str], document: Node) -> Iterator[list[str]]:
    """Yield the pattern with each name that the document has instead of NAME."""
    if _NAME not in pattern:
        yield list(pattern)
        return
    at = list(pattern).index(_NAME)
    node: Node | None = document
    for name in pattern[:at]:
        node = node.value.get(name) if node is not None and isinstance(node.value, dict) else None
    for name in node.value if node is not None and isinstance(node.value, dict) else ():
        yield from _filled([*pattern[:at], name, *pattern[at + 1 :]], document)


def _belongs(name: str, places: Sequence[Place], at: tuple[str, ...], document: Node) -> str:
    """Return the hint with those `places` of the key `name` that are nearest to the mapping `at`."""
    least = min(_distance(place.path, at) for place in places)
    paths = list(dict.fromkeys(place.path for place in places if _distance(place.path, at) == least))[:_MOST_PLACES]
    shown = [_written(_named(path, at, document), name) for path in paths]
    return f"did you mean {' or '.join(shown)}?"


def _nested(cls: type, word: str) -> list[str]:
    """Return the keys inside keys of a `cls` whose names together are `word`: `ttft.p95` for ttft_p95 or p95_ttft."""
    parts = word.split("_")
    found = []
    for at in range(1, len(parts)):
        first, second = "_".join(parts[:at]), "_".join(parts[at:])
        for outer, inner in ((first, second), (second, first)):
            for each, _ in members(fields_of(cls)[outer]) if outer in fields_of(cls) else ():
                names = [inner] if inner in fields_of(each) else _nested(each, inner)
                found += [f"{outer}.{name}" for name in names]
    return list(dict.fromkeys(found))


@functools.cache
def _index(root: type) -> dict[str, list[Place]]:
    """Return the places of each key that may occur in a `root`."""
    index: dict[str, list[Place]] = {}
    for name, place in _walk(root, (), None, ()):
        index.setdefault(name, []).append(place)
    return index


def _walk(
    cls: type, path: tuple[str, ...], tag: tuple[str, str] | None, above: tuple[type, ...]
) -> Iterator[tuple[str, Place]]:
    for name, hint in fields_of(cls).items():
        yield name, Place(path, tag)
        inside, kind = (*path, name), hint
        while typing.get_origin(unwrap(kind)[0]) in (dict, tuple):
            inner = typing.get_args(unwrap(kind)[0])
            named = typing.get_origin(unwrap(kind)[0]) is dict
            inside, kind = (*inside, _NAME if named else _NUMBER), inner[1 if named else 0]
        for member, key in members(kind):
            if key is not None:
                yield key, Place(inside, None)
            if member not in above:
                yield from _walk(member, inside, None if key is None else (key, member.TAG), (*above, cls))


def _segments(path: str) -> Iterator[str]:
    for part in path.split(".") if path else ():
        name, *numbers = re.split(r"(\[\d+\])", part)
        yield from (name, *(number for number in numbers if number))


def _same(pattern: Sequence[str], path: Sequence[str]) -> bool:
    return len(pattern) == len(path) and _common(pattern, path) == len(path)


def _common(pattern: Sequence[str], path: Sequence[str]) -> int:
    """Return the number of leading segments in which a path agrees with a pattern, such as deployment.pools.NAME."""
    for at, (expected, found) in enumerate(zip(pattern, path, strict=False)):
        if expected != found and expected != _NAME and not (expected == _NUMBER and found.startswith("[")):
            return at
    return min(len(pattern), len(path))


def _distance(pattern: Sequence[str], path: Sequence[str]) -> int:
    return len(pattern) + len(path) - 2 * _common(pattern, path)


def _named(pattern: Sequence[str], at: Sequence[str], document: Node) -> list[str]:
    """Return the pattern with the user's names: those of `at` where it agrees, or the only one in the document."""
    common, node, path = _common(pattern, at), document, []
    for number, expected in enumerate(pattern):
        entries = node.value if isinstance(node.value, dict) else {}
        name = at[number] if number < common else expected
        if name == _NAME and len(entries) == 1:
            (name,) = entries
        path.append(name)
        node = entries.get(name, Node(node.where, None))
    return path


def _written(path: Sequence[str], key: str) -> str:
    return ".".join((*path, key)).replace(".[", "[")


def _snake_case(word: str) -> str:
    """Return a key in the style of scenario keys: maxNumSeqs and max-num-seqs become max_num_seqs."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", word).replace("-", "_").lower()
