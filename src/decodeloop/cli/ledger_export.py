"""The ledger to a file of costs and usage."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from decodeloop.governance.focus import COLUMNS, csv_text, focus_rows
from decodeloop.governance.ledger import LedgerRow

__all__ = ["write_focus"]


def write_focus(rows: Sequence[LedgerRow], currency: str, out: Path | None) -> None:
    """FOCUS rows as CSV or, by the file's name, Parquet; None: CSV to stdout.

    Raises:
        ValueError: a name of neither kind.
        ImportError: Parquet without its package.
    """
    if out is not None and out.suffix == ".parquet":
        _write_parquet(rows, currency, out)
    elif out is None or out.suffix == ".csv":
        text = csv_text(focus_rows(rows, currency))
        if out is None:
            sys.stdout.write(text)
        else:
            out.write_text(text)
    else:
        raise ValueError(f"{out}: choose a name that ends with .csv or .parquet")


def _write_parquet(rows: Sequence[LedgerRow], currency: str, out: Path) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ImportError("Parquet needs the package pyarrow: pip install 'decodeloop[parquet]'") from None
    made = list(focus_rows(rows, currency))
    columns = {name: [row[name] for row in made] for name in COLUMNS}
    parquet.write_table(pyarrow.table(columns), str(out))
