"""Small HTML tables, which notebooks show instead of a `repr`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_CELL = "padding:2px 10px;text-align:{};white-space:nowrap"


def table(first: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table with names in its first column, headed `first`, and numbers in the others. All are escaped."""
    lines = "".join(_row("td", row) for row in rows)
    return f"<table><thead>{_row('th', (first, *columns))}</thead><tbody>{lines}</tbody></table>"


def heading(text: str) -> str:
    """Return the heading of a table."""
    return f"<div><b>{escape(text)}</b></div>"


def paragraph(text: str) -> str:
    """Return a line of plain text."""
    return f"<div>{escape(text)}</div>"


def listed(warnings: Iterable[dict[str, str]]) -> str:
    """Return a list of the warnings of a summary; an empty text if there are none."""
    lines = "".join(f"<li><b>{escape(each['code'])}</b>: {escape(each['text'])}</li>" for each in warnings)
    return f"<ul>{lines}</ul>" if lines else ""


def _row(tag: str, cells: Sequence[str]) -> str:
    aligned = zip(("left", *["right"] * (len(cells) - 1)), cells, strict=True)
    return (
        "<tr>" + "".join(f'<{tag} style="{_CELL.format(to)}">{escape(cell)}</{tag}>' for to, cell in aligned) + "</tr>"
    )
