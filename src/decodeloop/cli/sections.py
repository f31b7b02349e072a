"""A report's sections on a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from decodeloop.evaluation.report_validity import Validity
from decodeloop.evaluation.report_words import Section, Table


def show(sections: Iterable[Section]) -> None:
    for section in sections:
        print(f"\n{_clean(section.title)}\n{_clean(section.lead)}")
        for table in section.tables:
            _show_table(table)
        for note in section.notes:
            print(f"  - {_clean(note)}")


def show_validity(found: Validity) -> None:
    print("the run is valid" if found.valid else "THE RUN IS INVALID: its figures say nothing about the configurations")
    for said in (*found.faults, *found.caveats):
        print(f"  - {_clean(said)}")


def show_json(found: Any) -> None:
    """Numbers without end are null: JSON has none."""
    print(orjson.dumps(found, option=orjson.OPT_NON_STR_KEYS).decode())


def _show_table(table: Table) -> None:
    if not table.rows:
        return
    rows = [[_clean(cell) for cell in row] for row in (table.heads, *table.rows)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.heads))]
    for row in rows:
        if any(row):
            first, *rest = (
                cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            print("  " + "  ".join([first, *rest]).rstrip())


def _clean(text: str) -> str:
    """No control characters: what a workload says must not drive the terminal."""
    return "".join(each if each.isprintable() else " " for each in text)
