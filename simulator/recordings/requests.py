"""Reads the requests of a recording: `trace.jsonl`, one request a line, plain or gzip."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cost_models.files.documents import json_lines
from cost_models.files.fields import Fields
from simulator.engine.replay import ReplayRequest
from simulator.memory import Content, Contents
from simulator.workload.tables import MAX_SECONDS, MAX_TOKENS, NS

#: Of requests, of parts of prompts that several requests share, and of blocks.
Name = str | int

_MOST_PRIORITY = 2**31 - 1
_MOST_BLOCK = 10**6
_MOST_STEPS = 10**12


@dataclass(frozen=True, slots=True)
class _Told:
    """A line: what is told of a request, and the place where errors say that it is."""

    fields: Fields
    id: Name
    arrival_ns: int
    prompt_tokens: int
    output_tokens: int
    max_tokens: int
    priority: int
    behind_step: int
    prefix: tuple[Name | None, int]
    prompt: Name | None
    parent: Name | None
    hash_ids: list[Name]
    hash_block: int


def read_requests(folder: Path, limit: int) -> tuple[list[ReplayRequest], Contents]:
    """The requests with fewer prompt tokens than `limit`, by arrival, and the contents of all: theirs, then the rest.

    Raises:
        InputError: the file cannot be read, or a line has a number out of range, a name that is none, an id that is
            there twice, or a parent that is not there or descends from the request.
    """
    told = [_told(place, line) for place, line in json_lines(line_file(folder, "trace"))]
    told.sort(key=lambda each: each.arrival_ns)
    told.sort(key=lambda each: each.prompt_tokens >= limit)  # who is refused goes to the end
    requests = [_request(each, limit) for each in told if each.prompt_tokens < limit]
    contents = Contents(_contents(told), [each.prompt_tokens for each in told], [each.output_tokens for each in told])
    return requests, contents


def line_file(folder: Path, stem: str) -> Path:
    """The file of lines of that name, plain or, where there is no such one, packed."""
    plain, packed = folder / f"{stem}.jsonl", folder / f"{stem}.jsonl.gz"
    return packed if packed.exists() and not plain.exists() else plain


def _told(place: str, line: object) -> _Told:
    fields = Fields(place, line)
    output = fields.integer("num_decode_tokens", most=MAX_TOKENS)
    identity = _name(fields, "id")
    if identity is None:
        raise fields.error("id", "missing")
    return _Told(
        fields,
        id=identity,
        arrival_ns=_arrival_ns(fields),
        prompt_tokens=fields.integer("num_prefill_tokens", most=MAX_TOKENS),
        output_tokens=output,
        max_tokens=fields.integer("max_tokens", default=output, most=MAX_TOKENS),
        priority=fields.integer("priority", default=0, least=-_MOST_PRIORITY, most=_MOST_PRIORITY),
        behind_step=fields.integer("behind_step", default=-1, least=-1, most=_MOST_STEPS),
        prefix=(_name(fields, "prefix_id"), fields.integer("prefix_len", default=0, least=0, most=MAX_TOKENS)),
        prompt=_name(fields, "prompt_id"),
        parent=_name(fields, "parent"),
        hash_ids=_hash_ids(fields),
        hash_block=fields.integer("hash_block", default=1, most=_MOST_BLOCK),
    )


def _arrival_ns(fields: Fields) -> int:
    """When the request arrives: `arrival_ns`, or `arrival_time` in seconds."""
    if fields.value("arrival_ns")[1] is not None:
        return fields.integer("arrival_ns", least=0, most=MAX_SECONDS * NS)
    return round(fields.number("arrival_time", most=MAX_SECONDS, zero=True) * NS)


def _name(fields: Fields, key: str) -> Name | None:
    found = fields.value(key)[1]
    if found is None or (isinstance(found, str | int) and not isinstance(found, bool)):
        return found
    raise fields.error(key, "expected a text or a whole number")


def _hash_ids(fields: Fields) -> list[Name]:
    found = fields.value("hash_ids")[1]
    if found is None:
        return []
    if not isinstance(found, list) or not all(type(each) in (str, int) for each in found):
        raise fields.error("hash_ids", "expected a list of texts or whole numbers")
    return found


def _request(told: _Told, limit: int) -> ReplayRequest:
    return ReplayRequest(
        id=told.id,
        arrival_ns=told.arrival_ns,
        prompt_tokens=told.prompt_tokens,
        output_tokens=min(told.output_tokens, limit - told.prompt_tokens),
        max_tokens=told.max_tokens,
        priority=told.priority,
        behind_step=told.behind_step,
    )


def _contents(told: list[_Told]) -> list[Content]:
    numbers: dict[Name, int] = {}
    for number, each in enumerate(told):
        if numbers.setdefault(each.id, number) != number:
            raise each.fields.error("id", f"{each.id!r} is there twice; each request needs one of its own")
    texts: dict[tuple[str, Name], int] = {}
    contents = [_content(each, numbers, texts) for each in told]
    sound: set[int] = set()
    for number, each in enumerate(told):
        line: list[int] = []
        at: int | None = number
        while at is not None and at not in sound:
            if len(line) > len(contents):
                raise each.fields.error("parent", f"request {each.id!r} descends from itself by way of its parents")
            line.append(at)
            at = contents[at].parent
        sound.update(line)
    return contents


def _content(told: _Told, numbers: dict[Name, int], texts: dict[tuple[str, Name], int]) -> Content:
    named: list[tuple[int, int]] = []
    prefix, length = told.prefix
    for key, name, tokens in (("prefix_id", prefix, length), ("prompt_id", told.prompt, told.prompt_tokens)):
        if name is not None and tokens:
            named.append((texts.setdefault((key, name), len(texts)), tokens))
    if told.parent is not None and told.parent not in numbers:
        raise told.fields.error("parent", f"{told.parent!r} is not among the requests")
    return Content(
        texts=tuple(named),
        hash_ids=[texts.setdefault(("hash_id", each), len(texts)) for each in told.hash_ids],
        hash_block=told.hash_block,
        parent=None if told.parent is None else numbers[told.parent],
    )
