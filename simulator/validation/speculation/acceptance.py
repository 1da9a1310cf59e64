"""Acceptance of drafts in a measured run: from its own rows, else from a shipped table."""

from __future__ import annotations

import re

from simulator.speculation.expectation import equivalent_alpha, iid_cumulative
from simulator.speculation.tables import AcceptanceTable, default_table, load_table, table_names

#: What names a source in the provenance of a row: the number of an issue or pull request, else a repository.
_NUMBER = re.compile(r"#(\d+)")
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")


def geometric(length: float, drafts: int) -> tuple[float, ...]:
    """Cumulative rates of `drafts` positions, each the same share of the one before, with 1 + their sum = `length`.

    For a run with a fixed number of drafts the time per token follows from the acceptance length, whatever the rates
    are. Raises ValueError if no rates have that sum.
    """
    return iid_cumulative(equivalent_alpha(length, drafts), drafts)


def shipped(method: str, model: str, dataset: str) -> AcceptanceTable | None:
    """The shipped table of the method on the model and the dataset, else the default one of the method; or None.

    Of several tables of a dataset it is the default, if that is one of them.
    """
    default = default_table(method, model)
    fitting = [
        table
        for table in map(load_table, table_names())
        if (table.method, table.model) == (method, model) and _plain(table.dataset) == _plain(dataset)
    ]
    return default if not fitting or default in fitting else fitting[0]


def made_from(table: AcceptanceTable, provenance: str) -> bool:
    """Whether the table has the source that a row has, so that it predicts nothing of it."""
    references = _NUMBER.findall(provenance) or _REPOSITORY.findall(provenance)
    return any(re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", table.source) for name in references)


def _plain(dataset: str) -> str:
    """`mtbench` of `MT-Bench (author's series)` and `MT-Bench, temperature 0`, `cnn` of `CNN/DailyMail`."""
    return re.split(r"[\s,(/]", dataset.lower().replace("-", "").replace("_", ""))[0]
