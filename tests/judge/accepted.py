#!/usr/bin/env python3
"""Wrong outputs that a verification on given inputs accepts, and right outputs that it refuses.

The models are those of `adversarial.py` on which careless lowering goes wrong. Each is rewritten with the policy `all`, which
has no guards, and with `safe`; `ampc verify --accept-excused` compares the rewrite and the model on the inputs of the model.
The error is that of the emulated export in ONNX Runtime.

- An output is wrong if its error is more than 1.5 times the larger of two: 3 times the error with hand-made pins, and the
  tolerance of the verification, 16 unit roundoffs; or if it is not finite. `verify` has to refuse the rewrite.
- An output is right if its error is within half of that tolerance, which leaves room for other orders of sums: `verify`
  has to accept the rewrite.

    tests/judge/accepted.py --corpus DIR --ampc target/release/ampc [--set NAME] [--filter GLOB] [--generated] [--table]
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from argparse import ArgumentParser
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import adversarial
import ampc
import measure
import search

TOLERANCE = {"fp16": 16 * 2.0**-11, "bf16": 16 * 2.0**-8}
POLICIES = ("all", "safe")
# The sums of ONNX Runtime and of the CPU runtime differ, which models that amplify roundings show.
SLACK = 1.5


def judge(args: Any, row: dict[str, Any], policy: str, folder: Path) -> dict[str, Any]:
    """The row with the error of a rewrite, and whether `verify` accepts it."""
    source, given, form = row["source"], row["given"], row["format"]
    row = {**row, "policy": policy, "wrong": ""}
    wanted = adversarial.run(source, given)
    if row.get("pins") is not None:
        pinned = adversarial.rewritten(args, source, form, folder, row["pins"])
        if isinstance(pinned, str):
            return {**row, "wrong": pinned}
        row["alt"] = adversarial.error(wanted, adversarial.run_anyhow(args, pinned[0], given, folder))
    found = adversarial.rewritten(args, source, form, folder, [], ("--policy", policy))
    if isinstance(found, str):
        return {**row, "wrong": found}
    got = adversarial.run_anyhow(args, found[0], given, folder)
    row["error"] = adversarial.error(wanted, got)
    # Indices and comparisons have to be equal, which no error of floats says.
    is_equal = all(np.array_equal(full, got[name]) for name, full in wanted.items() if full.dtype.kind != "f")
    lowered, data = folder / "lowered.onnx", folder / "data.npz"
    np.savez(data, **given)
    options = ("--to", form, *adversarial.OPSET[form], "--policy", policy, "--force", "--quiet")
    done = ampc.rewrite(args.ampc, source, lowered, *options, timeout=args.timeout)
    if done.code != 0:
        return {**row, "wrong": ampc.problem(done)}
    command = [args.ampc, "verify", str(source), str(lowered), "--inputs", str(data), "--accept-excused", "--quiet"]
    verified = measure.run(command, args.timeout)
    row["accepted"] = verified.code == 0
    if not math.isfinite(row["error"]):
        # ONNX Runtime's ReduceLogSumExp has no number for infinite operands that add nothing to the sum.
        found_file = folder / "found.npz"
        ampc.execute(args.ampc, lowered, "--inputs", str(data), "--outputs", str(found_file), "--quiet", timeout=args.timeout)
        with np.load(found_file) as arrays:
            row["error"] = adversarial.error(wanted, {name: arrays[name] for name in arrays.files})
    is_wrong = not row["error"] <= SLACK * max(adversarial.FACTOR * row["alt"], TOLERANCE[form])
    row["is"] = "wrong" if is_wrong else "right" if row["error"] <= TOLERANCE[form] / 2 and is_equal else "between"
    if verified.code not in (0, 1):
        row["wrong"] = ampc.problem(verified)
    elif is_wrong and row["accepted"]:
        row["wrong"] = f"error {row['error']:.1e} is accepted"
    elif row["is"] == "right" and not row["accepted"]:
        row["wrong"] = f"error {row['error']:.1e} is refused"
    return row


def main() -> int:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--corpus", type=Path, default=os.environ.get("AMPC_CORPUS"), help="[AMPC_CORPUS]")
    parser.add_argument("--ampc", default=os.environ.get("AMPC_BIN"), help="the binary [AMPC_BIN]")
    parser.add_argument("--filter", default="*", help="glob over names of models")
    parser.add_argument("--set", default="adversarial2", help="the folder of the corpus [adversarial2]")
    parser.add_argument("--generated", action="store_true", help="the generators of realistic/")
    parser.add_argument("--timeout", type=float, default=300, help="seconds per step [300]")
    parser.add_argument("--workers", type=int, default=2, help="processes [2]")
    parser.add_argument("--table", action="store_true", help="print every row")
    args = parser.parse_args()
    args.ampc = str(Path(args.ampc).resolve())
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        rows = [row for row in search.rows_of(args, scratch) if math.isfinite(row.get("alt") or 0.0)]
        rows = [row for row in rows if row.get("alt") is not None or row.get("pins") is not None]

        def judged(numbered: tuple[int, tuple[dict[str, Any], str]]) -> dict[str, Any]:
            number, (row, policy) = numbered
            folder = scratch / str(number)
            folder.mkdir()
            try:
                return judge(args, row, policy, folder)
            except Exception as problem:  # noqa: BLE001  what a library raises is a verdict about the row
                return {**row, "policy": policy, "wrong": f"{type(problem).__name__}: {problem}"[:300]}

        work = enumerate((row, policy) for row in rows for policy in POLICIES)
        with ThreadPoolExecutor(args.workers) as pool:
            done = list(pool.map(judged, work))
    for row in done:
        if args.table or row["wrong"]:
            figures = " ".join(f"{key}={row[key]:.1e}" for key in ("error", "alt") if row.get(key) is not None)
            print(f"{row['model']:32} {row['format']}  {row['policy']:4} {figures}  {row.get('is')}  {row['wrong']}")
    n = {
        (kind, accepted): sum(row.get("is") == kind and row.get("accepted") == accepted for row in done)
        for kind in ("wrong", "between", "right")
        for accepted in (True, False)
    }
    said = ", ".join(f"{n[kind, True]} of {n[kind, True] + n[kind, False]} {kind}" for kind in ("wrong", "between", "right"))
    problems = sum(bool(row["wrong"]) for row in done)
    print(f"{len(done)} rewrites judged, {problems} problems; accepted: {said}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
