"""Acceptance of drafts in a measured run: from its own rows, else from a shipped table."""

from __future__ import annotations

import re

from simulator.speculation.expectation import equivalent_alpha, iid_cumulative
from simulator.speculation.tables import AcceptanceTable, default_table, load_table, table_names

#: References to a source in the provenance of a row: the number of an issue or pull request, else a repository.
_NUMBER = re.compile(r"#(\d+)")
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def geometric(length: float, drafts: int) -> tuple[float, ...]:
    """Return cumulative rates of `drafts` positions that fall geometrically, with 1 + their sum = `length`.

    In a run with a fixed number of drafts, the time per token depends on the rates only through the acceptance length.
    Raises ValueError if no rates have that sum.
    """
    return iid_cumulative(equivalent_alpha(length, drafts), drafts)


def shipped(method: str, model: str, dataset: str) -> AcceptanceTable | None:
    """Return the shipped table of the method with the model and the dataset, else the method's default table, or None.

    Of several tables of a dataset it is the default, if that is one of them, else the first.
    """
    default = default_table(method, model)
    fitting = [
        table
        for table in map(load_table, table_names())
        if (table.method, table.model) == (method, model) and _plain(table.dataset) == _plain(dataset)
    ]
    return default if not fitting or default in fitting else fitting[0]


def has_source(table: AcceptanceTable, provenance: str) -> bool:
    """Return whether the table has the same source as a row, so that its rates are no prediction of the row."""
    references = _NUMBER.findall(provenance) or _REPOSITORY.findall(provenance)
    return any(re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", table.source) for name in references)


def _plain(dataset: str) -> str:
    """Return `mtbench` for `MT-Bench (author's series)` and `MT-Bench, temperature 0`, `cnn` for `CNN/DailyMail`."""
    return re.split(r"[\s,(/]", dataset.lower().replace("-", "").replace("_", ""))[0]
