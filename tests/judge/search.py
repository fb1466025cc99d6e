#!/usr/bin/env python3
"""Searches on models on which lowering goes wrong, against pins made by hand.

Each model is rewritten with `--search`, its own inputs and the tolerance 2e-3 in fp16 or 1.5e-2 in bf16; the rewrite is
exported emulated and run by ONNX Runtime without optimizations. The models are those of `adversarial.py`.

- A row whose hand-made pins reach the tolerance has to reach it: at least 95 % of these rows.
- In the median, a search keeps no more nodes in fp32 than the pins.
- A search that reports success has an error within the tolerance, up to the order of sums (a factor of 2, in models
  that amplify roundings).

    tests/judge/search.py --corpus DIR --ampc target/release/ampc [--set NAME] [--filter GLOB] [--generated]
        [--policy NAME] [--table]
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import adversarial
import rows
from rows import Row

SLACK = 2.0
FIGURES = ("error", "alt", "full", "full_alt", "low", "seconds")


def judge(args: Any, row: Row, folder: Path) -> Row:
    """The row with the error and the fp32 nodes of the search, and those of the pins."""
    source, given, form = row["source"], row["given"], row["format"]
    tolerance = rows.FLOOR[form]
    wanted = adversarial.run(source, given)
    if row.get("pins"):
        pinned, report = adversarial.rewritten(args, source, form, folder / "pins", row["pins"])
        row["alt"] = adversarial.error(wanted, adversarial.run_anyhow(args, pinned, given, folder))
        row["full_alt"] = report["summary"]["full"]
    row["must"] = row.get("alt") is not None and row["alt"] <= tolerance
    data = folder / "data.npz"
    np.savez(data, **given)
    options = ("--search", "--inputs", str(data), "--tolerance", str(tolerance), "--policy", args.policy)
    start = time.monotonic()
    try:
        emulated, report = adversarial.rewritten(args, source, form, folder, [], options)
    except rows.Refused as problem:
        said, seconds = str(problem), time.monotonic() - start
        wrong = "" if "search::beyond" in said else said
        return {**row, "seconds": seconds, "reached": False, "wrong": wrong, "said": said}
    row["seconds"] = time.monotonic() - start
    row["error"] = adversarial.error(wanted, adversarial.run_anyhow(args, emulated, given, folder))
    row["full"], row["low"] = report["summary"]["full"], report["summary"]["allow_low"]
    row["reached"] = row["error"] <= tolerance * SLACK
    wrong = "" if row["reached"] else f"error {row['error']:.1e} of a search that succeeded"
    return {**row, "wrong": wrong}


def rows_of(args: Any, folder: Path) -> list[Row]:
    """The rows on which careless lowering goes wrong, with lists of pins."""
    if args.generated:
        return [row for row in adversarial.generated_rows(args, folder) if row["pins"]]
    stored = adversarial.stored_rows(args)
    if stored is None:
        raise SystemExit(f"{args.set} has no index.csv with bounds")
    return [row for row in stored if row["kind"] != "N"]


def main() -> int:
    parser = rows.parser(__doc__, timeout=300)
    parser.add_argument("--policy", default="safe", help="the policy that the search starts from [safe]")
    args = rows.arguments(parser)
    done = rows.judge_all(args, rows_of, judge)
    for row in done:
        if args.table or row["wrong"] or (row.get("must") and not row.get("reached")):
            said = row["wrong"] or row.get("said", "")
            print(f"{row['model']:32} {row['format']}  {rows.figures(row, FIGURES)}  {said}")
    must = [row for row in done if row.get("must")]
    reached = [row for row in must if row.get("reached")]
    # Pins whose error is stored are not known themselves.
    more = [row["full"] - row["full_alt"] for row in reached if "full_alt" in row]
    median = statistics.median(more) if more else 0
    wrong = [row for row in done if row["wrong"]]
    print(
        f"{len(done)} rows judged, {len(wrong)} problems; "
        f"{len(reached)} of {len(must)} that the pins reach are reached; "
        f"fp32 nodes beyond those of the pins: median {median:g}, most {max(more, default=0)}"
    )
    return 1 if wrong or len(reached) < 0.95 * len(must) or median > 0 else 0


if __name__ == "__main__":
    sys.exit(main())
