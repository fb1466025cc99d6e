#!/usr/bin/env python3
"""Searches on models on which lowering goes wrong, against pins made by hand.

Each model is rewritten with `--search`, its own inputs and the tolerance 2e-3 in fp16 or 1.5e-2 in bf16; the rewrite is
exported emulated and run by ONNX Runtime without optimizations. The models are those of `adversarial.py`.

- A row whose hand-made pins reach the tolerance has to reach it: at least 95 % of these rows.
- In the median, a search keeps no more nodes in fp32 than the pins.
- A search that reports success has an error within the tolerance, up to the order of sums (a factor of 2, in models
  that amplify roundings).

    tests/judge/search.py --corpus DIR --ampc target/release/ampc [--set NAME] [--filter GLOB] [--generated] [--policy NAME]
        [--table]
"""

from __future__ import annotations

import csv
import fnmatch
import json
import math
import os
import statistics
import sys
import tempfile
import time
from argparse import ArgumentParser
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import adversarial
import ampc

SLACK = 2.0


def judge(args: Any, row: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The row with the error and the fp32 nodes of the search, and those of the pins."""
    source, given, form = row["source"], row["given"], row["format"]
    tolerance = adversarial.FLOOR[form]
    wanted = adversarial.run(source, given)
    if row.get("pins") is not None:
        pinned = adversarial.rewritten(args, source, form, folder, row["pins"])
        if isinstance(pinned, str):
            return {**row, "wrong": pinned}
        row["alt"] = adversarial.error(wanted, adversarial.run_anyhow(args, pinned[0], given, folder))
        row["full_alt"] = pinned[1]["summary"]["full"]
    row["must"] = row.get("alt") is not None and row["alt"] <= tolerance
    data = folder / "data.npz"
    np.savez(data, **given)
    options = ("--search", "--inputs", str(data), "--tolerance", str(tolerance), "--policy", args.policy)
    start = time.monotonic()
    found = adversarial.rewritten(args, source, form, folder, [], options)
    row["seconds"] = time.monotonic() - start
    if isinstance(found, str):
        row["reached"] = False
        return {**row, "wrong": "" if "search::beyond" in found else found, "said": found}
    emulated, report = found
    row["error"] = adversarial.error(wanted, adversarial.run_anyhow(args, emulated, given, folder))
    row["full"], row["low"] = report["summary"]["full"], report["summary"]["allow_low"]
    row["reached"] = row["error"] <= tolerance * SLACK
    wrong = "" if row["reached"] else f"error {row['error']:.1e} of a search that succeeded"
    return {**row, "wrong": wrong}


def rows_of(args: Any, folder: Path) -> list[dict[str, Any]]:
    """The rows, with lists of pins."""
    if args.generated:
        return [row for row in adversarial.generated_rows(args, folder) if row["pins"]]
    with (args.corpus / args.set / "index.csv").open() as file:
        listed = {(line["model"], line["format"]): line for line in csv.DictReader(file)}
    rows = adversarial.stored_rows(args)
    for row in rows:
        line = listed[row["model"], row["format"]]
        row["kind"] = line.get("kind", "W")
        row["pins"] = [pin for pin in line.get("pins", "").split() if pin]
    return [row for row in rows if row["kind"] == "W"]


def main() -> int:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--corpus", type=Path, default=os.environ.get("AMPC_CORPUS"), help="[AMPC_CORPUS]")
    parser.add_argument("--ampc", default=os.environ.get("AMPC_BIN"), help="the binary [AMPC_BIN]")
    parser.add_argument("--filter", default="*", help="glob over names of models")
    parser.add_argument("--set", default="adversarial2", help="the folder of the corpus [adversarial2]")
    parser.add_argument("--generated", action="store_true", help="the generators of realistic/")
    parser.add_argument("--policy", default="safe", help="the policy that the search starts from [safe]")
    parser.add_argument("--timeout", type=float, default=300, help="seconds per step [300]")
    parser.add_argument("--workers", type=int, default=2, help="processes [2]")
    parser.add_argument("--table", action="store_true", help="print every row")
    args = parser.parse_args()
    args.ampc = str(Path(args.ampc).resolve())
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        rows = rows_of(args, scratch)

        def judged(numbered: tuple[int, dict[str, Any]]) -> dict[str, Any]:
            folder = scratch / str(numbered[0])
            folder.mkdir()
            try:
                return judge(args, numbered[1], folder)
            except Exception as problem:  # noqa: BLE001  what a library raises is a verdict about the row
                return {**numbered[1], "wrong": f"{type(problem).__name__}: {problem}"[:300]}

        with ThreadPoolExecutor(args.workers) as pool:
            done = list(pool.map(judged, enumerate(rows)))
    for row in done:
        if args.table or row["wrong"] or (row.get("must") and not row.get("reached")):
            figures = " ".join(
                f"{key}={row[key]:.1e}" if isinstance(row[key], float) else f"{key}={row[key]}"
                for key in ("error", "alt", "full", "full_alt", "low", "seconds")
                if row.get(key) is not None
            )
            print(f"{row['model']:32} {row['format']}  {figures}  {row['wrong'] or row.get('said', '')}")
    must = [row for row in done if row.get("must")]
    reached = [row for row in must if row.get("reached")]
    more = [row["full"] - row["full_alt"] for row in reached]
    median = statistics.median(more) if more else 0
    wrong = [row for row in done if row["wrong"]]
    print(
        f"{len(done)} rows judged, {len(wrong)} problems; {len(reached)} of {len(must)} that the pins reach are reached; "
        f"fp32 nodes beyond those of the pins: median {median:g}, most {max(more, default=0)}"
    )
    return 1 if wrong or len(reached) < 0.95 * len(must) or median > 0 else 0


if __name__ == "__main__":
    sys.exit(main())
