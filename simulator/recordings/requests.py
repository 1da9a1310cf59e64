"""Reader of the requests of a recording: `trace.jsonl`, one request a line, plain or gzip."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cost_models.files.documents import json_lines
from cost_models.files.fields import Fields
from simulator.engine.replay import ReplayRequest
from simulator.memory import Content, Contents
from simulator.workload.tables import MAX_SECONDS, MAX_TOKENS, NS

#: Name of a request, of a part of prompts that several requests share, or of a block's content.
Name = str | int

_MOST_PRIORITY = 2**31 - 1
_MOST_BLOCK = 10**6
_MOST_STEPS = 10**12


@dataclass(frozen=True, slots=True)
class _Line:
    """The values of a line, and its `fields`, for errors that name the place."""

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
    """Read the requests with fewer prompt tokens than `limit`, by arrival, and the contents of all: theirs first.

    Raises:
        InputError: the file cannot be read; or a line has a number out of range, an invalid name, the id of another
            request, an unknown parent, or a parent that descends from the request.
    """
    lines = [_line(place, line) for place, line in json_lines(line_file(folder, "trace"))]
    lines.sort(key=lambda each: each.arrival_ns)
    lines.sort(key=lambda each: each.prompt_tokens >= limit)  # refused requests last
    requests = [_request(each, limit) for each in lines if each.prompt_tokens < limit]
    prompts, outputs = [each.prompt_tokens for each in lines], [each.output_tokens for each in lines]
    return requests, Contents(_contents(lines), prompts, outputs)


def line_file(folder: Path, stem: str) -> Path:
    """Return the file of JSON lines of that name: the plain one, or the packed one if only that exists."""
    plain, packed = folder / f"{stem}.jsonl", folder / f"{stem}.jsonl.gz"
    return packed if packed.exists() and not plain.exists() else plain


def _line(place: str, line: object) -> _Line:
    fields = Fields(place, line)
    output = fields.integer("num_decode_tokens", most=MAX_TOKENS)
    identity = _name(fields, "id")
    if identity is None:
        raise fields.error("id", "missing")
    return _Line(
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
    """Return the arrival in ns: `arrival_ns`, or `arrival_time` in seconds."""
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


def _request(line: _Line, limit: int) -> ReplayRequest:
    return ReplayRequest(
        id=line.id,
        arrival_ns=line.arrival_ns,
        prompt_tokens=line.prompt_tokens,
        output_tokens=min(line.output_tokens, limit - line.prompt_tokens),
        max_tokens=line.max_tokens,
        priority=line.priority,
        behind_step=line.behind_step,
    )


def _contents(lines: list[_Line]) -> list[Content]:
    """Return the content of each prompt. Raises InputError for a repeated id, and for parents that form a cycle."""
    numbers: dict[Name, int] = {}
    for number, each in enumerate(lines):
        if numbers.setdefault(each.id, number) != number:
            raise each.fields.error("id", f"{each.id!r} is there twice; each request needs one of its own")
    texts: dict[tuple[str, Name], int] = {}
    contents = [_content(each, numbers, texts) for each in lines]
    checked: set[int] = set()
    for number, each in enumerate(lines):
        ancestors: list[int] = []
        at: int | None = number
        while at is not None and at not in checked:
            if len(ancestors) > len(contents):
                raise each.fields.error("parent", f"request {each.id!r} descends from itself by way of its parents")
            ancestors.append(at)
            at = contents[at].parent
        checked.update(ancestors)
    return contents


def _content(line: _Line, numbers: dict[Name, int], texts: dict[tuple[str, Name], int]) -> Content:
    named: list[tuple[int, int]] = []
    prefix, length = line.prefix
    for key, name, tokens in (("prefix_id", prefix, length), ("prompt_id", line.prompt, line.prompt_tokens)):
        if name is not None and tokens:
            named.append((texts.setdefault((key, name), len(texts)), tokens))
    if line.parent is not None and line.parent not in numbers:
        raise line.fields.error("parent", f"{line.parent!r} is not among the requests")
    return Content(
        texts=tuple(named),
        hash_ids=[texts.setdefault(("hash_id", each), len(texts)) for each in line.hash_ids],
        hash_block=line.hash_block,
        parent=None if line.parent is None else numbers[line.parent],
    )
