"""How many drafts were accepted in a measured run: by its own rows, else by a shipped table."""

from __future__ import annotations

import re

from simulator.speculation.tables import AcceptanceTable, default_table, load_table, table_names

#: What names a source: `#20780`, and the name of a repository.
_REFERENCE = re.compile(r"#\d+|[\w.-]+/[\w.-]+")
#: A repository of very many sources, in which the number alone tells one.
_COMMON = "vllm-project/vllm"
_HALVINGS = 60


def geometric(length: float, drafts: int) -> tuple[float, ...]:
    """Cumulative rates of `drafts` positions, each the same share of the one before, with 1 + their sum = `length`.

    For a run with a fixed number of drafts the time per token follows from the acceptance length, whatever the rates
    are. Raises ValueError if no rates have that sum.
    """
    if not 1 <= length <= drafts + 1:
        raise ValueError(f"{drafts} drafts cannot have an acceptance length of {length:g}")
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _sum(middle, drafts) < length - 1 else (low, middle)
    return tuple(high**position for position in range(1, drafts + 1))


def _sum(share: float, drafts: int) -> float:
    return sum(share**position for position in range(1, drafts + 1))


def shipped(method: str, model: str, dataset: str) -> AcceptanceTable | None:
    """The shipped table of the method on the model and the dataset, else the default one of the method; or None."""
    tables = (load_table(name) for name in table_names())
    for table in tables:
        if (table.method, table.model) == (method, model) and _plain(table.dataset) == _plain(dataset):
            return table
    return default_table(method, model)


def made_from(table: AcceptanceTable, provenance: str) -> bool:
    """Whether the table has the source that a row has, so that it predicts nothing of it."""
    references = {found for found in _REFERENCE.findall(provenance) if found != _COMMON}
    return any(reference in table.source for reference in references)


def _plain(dataset: str) -> str:
    """`mtbench` of `MT-Bench (author's series)`, `gsm8k` of `gsm8k (300 requests)`, `humaneval` of `HumanEval`."""
    words = re.sub(r"\(.*?\)", "", dataset.lower()).replace("-", "").replace("_", "").split()
    return words[0] if words else ""
