"""Markdown tables."""

from __future__ import annotations

from typing import Any, Sequence


def cell(value: Any) -> str:
    """A value as a table cell."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    if isinstance(value, float):
        return "0" if value == 0 else f"{value:.2e}" if abs(value) < 0.01 else f"{value:.3g}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def markdown(columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> str:
    """A table of the columns; a column is a row's key with `_` for the heading's spaces."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        lines.append("| " + " | ".join(cell(row.get(name.replace(" ", "_"))) for name in columns) + " |")
    return "\n".join(lines) + "\n"
