"""Rows that `adversarial.py`, `search.py` and `accepted.py` judge: their options, lists and figures.

A row is a dictionary of a model, a format, and the inputs and stored figures of both. A judge adds figures, and
`wrong`: the fault of the row, empty if there is no fault. `raised` is true if the judge ended with an exception, so
that figures may be missing.
"""

from __future__ import annotations

import csv
import fnmatch
import math
import os
import tempfile
from argparse import ArgumentParser
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

Row = dict[str, Any]
Judge = Callable[[Any, Row, Path], Row]

FACTOR = 3.0
FLOOR = {"fp16": 2e-3, "bf16": 1.5e-2}


class Refused(Exception):
    """A rewrite that ampc refuses: its exit code and its message."""


def parser(doc: str, timeout: float, default_set: str = "adversarial2") -> ArgumentParser:
    """A parser of the options that all judges of rows have; the description is the first line of `doc`."""
    made = ArgumentParser(description=doc.partition("\n")[0])
    made.add_argument("--corpus", type=Path, default=os.environ.get("AMPC_CORPUS"), help="[AMPC_CORPUS]")
    made.add_argument("--ampc", default=os.environ.get("AMPC_BIN"), help="the binary [AMPC_BIN]")
    made.add_argument("--filter", default="*", help="glob over names of models")
    made.add_argument("--set", default=default_set, help=f"the folder of the corpus [{default_set}]")
    made.add_argument("--generated", action="store_true", help="judge the generators of realistic/ instead")
    made.add_argument("--timeout", type=float, default=timeout, help=f"seconds per step [{timeout:g}]")
    made.add_argument("--workers", type=int, default=2, help="rows at once [2]")
    made.add_argument("--table", action="store_true", help="print every row")
    return made


def arguments(of: ArgumentParser) -> Any:
    """The arguments of the command line; a usage error if the binary or the corpus is missing."""
    args = of.parse_args()
    if not args.ampc or not Path(args.ampc).exists():
        of.error("no binary: give --ampc or set AMPC_BIN")
    if not args.generated and not (args.corpus and (args.corpus / args.set).is_dir()):
        of.error(f"no folder {args.set} in the corpus {args.corpus}: give --corpus or set AMPC_CORPUS")
    args.ampc = str(Path(args.ampc).resolve())
    return args


def judge_all(args: Any, rows_of: Callable[[Any, Path], list[Row]], judge: Judge) -> list[Row]:
    """All rows after the judge, which gets a folder for each row; `rows_of` gets the folder above them."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        found = rows_of(args, scratch)
        if not found:
            raise SystemExit(f"no row of {'realistic/' if args.generated else args.set} matches {args.filter}")

        def judged(numbered: tuple[int, Row]) -> Row:
            return attempt(args, numbered[1], scratch / str(numbered[0]), judge)

        with ThreadPoolExecutor(args.workers) as pool:
            return list(pool.map(judged, enumerate(found)))


def attempt(args: Any, row: Row, folder: Path, judge: Judge) -> Row:
    """The row after the judge in a new folder; an exception is its fault."""
    folder.mkdir()
    try:
        return judge(args, row, folder)
    except Refused as problem:
        return {**row, "wrong": str(problem), "raised": True}
    except Exception as problem:  # noqa: BLE001  an exception of a library is a verdict about the row
        return {**row, "wrong": f"{type(problem).__name__}: {problem}"[:300], "raised": True}


def figures(row: Row, keys: Iterable[str]) -> str:
    """The figures of a row that are known, as KEY=VALUE."""
    known = [(key, row[key]) for key in keys if row.get(key) is not None]
    return " ".join(f"{key}={value:.1e}" if isinstance(value, float) else f"{key}={value}" for key, value in known)


def arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file."""
    with np.load(path) as stored:
        return {name: stored[name] for name in stored.files}


def bound(alt: float, form: str) -> float:
    """The largest error that is acceptable where hand-made pins have the error `alt`."""
    return max(FACTOR * alt, FLOOR[form])


def number(text: str) -> float | None:
    """The number of a cell; None if the cell is empty."""
    return float(text) if text else None


def index(folder: Path, pattern: str = "*") -> list[Row] | None:
    """The rows of `index.csv` whose models match, without inputs; None if the folder has no such list.

    `kind` and `pins` are empty if the list has no such column.
    """
    path = folder / "index.csv"
    if not path.exists():
        return None
    with path.open() as file:
        lines = csv.DictReader(file)
        if "casts_alt" not in (lines.fieldnames or ()):
            return None
        return [_row(folder, line) for line in lines if fnmatch.fnmatchcase(line["model"], pattern)]


def _row(folder: Path, line: dict[str, str]) -> Row:
    """The row of a line of `index.csv`."""
    casts = number(line["casts_alt"])
    return {
        "model": line["model"],
        "format": line["format"],
        "kind": line.get("kind", ""),
        "source": folder / f"{line['model']}.onnx",
        "alt": number(line["alt"]),
        "before": number(line["error_today"]) or math.inf,
        "casts_alt": None if casts is None else int(casts),
        "casts_before": line["casts_today"],
        "pins": line.get("pins", "").split(),
    }
