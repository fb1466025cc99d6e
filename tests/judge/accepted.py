#!/usr/bin/env python3
"""Wrong outputs that a verification on given inputs accepts, and right outputs that it refuses.

The models are those of `adversarial.py` on which careless lowering goes wrong. Each is rewritten with the policy `all`,
which has no guards, and with `safe`; `ampc verify --accept-excused` compares the rewrite and the model on the inputs of
the model. The error is that of the emulated export in ONNX Runtime.

- An output is wrong if its error is more than 1.5 times the larger of two: 3 times the error with hand-made pins, and
  the tolerance of the verification, 16 unit roundoffs; or if it is not finite. `verify` has to refuse the rewrite.
- An output is right if its error is within half of that tolerance, which leaves room for other orders of sums: `verify`
  has to accept the rewrite.

    tests/judge/accepted.py --corpus DIR --ampc target/release/ampc [--set NAME] [--filter GLOB] [--generated]
        [--table]
"""

from __future__ import annotations

import math
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import adversarial
import ampc
import measure
import rows
import search
from rows import Row

TOLERANCE = {"fp16": 16 * 2.0**-11, "bf16": 16 * 2.0**-8}
POLICIES = ("all", "safe")
# The sums of ONNX Runtime and of the CPU runtime differ, which models that amplify roundings show.
SLACK = 1.5


def judge(args: Any, row: Row, folder: Path) -> Row:
    """The row with the error of its pins, and with its rewrites: a row for each policy."""
    wanted = adversarial.run(row["source"], row["given"])
    if row["pins"]:
        pinned, _ = adversarial.rewritten(args, row["source"], row["format"], folder / "pins", row["pins"])
        row["alt"] = adversarial.error(wanted, adversarial.run_anyhow(args, pinned, row["given"], folder))
    of_policy = partial(judge_rewrite, wanted)
    done = [rows.attempt(args, {**row, "policy": policy}, folder / policy, of_policy) for policy in POLICIES]
    return {**row, "rewrites": done, "wrong": ""}


def judge_rewrite(wanted: dict[str, np.ndarray], args: Any, row: Row, folder: Path) -> Row:
    """The row with the error of the rewrite with its policy, and with the verdict of `verify`."""
    source, given, form = row["source"], row["given"], row["format"]
    policy = ("--policy", row["policy"])
    emulated, _ = adversarial.rewritten(args, source, form, folder, [], policy)
    got = adversarial.run_anyhow(args, emulated, given, folder)
    row["error"] = adversarial.error(wanted, got)
    # Indices and comparisons have to be equal, which no error of floats says.
    is_equal = all(np.array_equal(full, got[name]) for name, full in wanted.items() if full.dtype.kind != "f")
    lowered, data = folder / "lowered.onnx", folder / "data.npz"
    np.savez(data, **given)
    options = ("--to", form, *adversarial.OPSET[form], *policy, "--force", "--quiet")
    done = ampc.rewrite(args.ampc, source, lowered, *options, timeout=args.timeout)
    if done.code != 0:
        raise rows.Refused(ampc.problem(done))
    command = [args.ampc, "verify", str(source), str(lowered), "--inputs", str(data), "--accept-excused", "--quiet"]
    verified = measure.run(command, args.timeout)
    row["accepted"] = verified.code == 0
    if not math.isfinite(row["error"]):
        # ONNX Runtime's ReduceLogSumExp has no number for infinite operands that add nothing to the sum.
        found, options = folder / "found.npz", ("--inputs", str(data), "--quiet")
        ampc.execute(args.ampc, lowered, *options, "--outputs", str(found), timeout=args.timeout)
        row["error"] = adversarial.error(wanted, rows.arrays(found))
    is_wrong = not row["error"] <= SLACK * max(rows.FACTOR * row["alt"], TOLERANCE[form])
    row["is"] = "wrong" if is_wrong else "right" if row["error"] <= TOLERANCE[form] / 2 and is_equal else "between"
    if verified.code not in (0, 1):
        wrong = ampc.problem(verified)
    elif is_wrong and row["accepted"]:
        wrong = f"error {row['error']:.1e} is accepted"
    elif row["is"] == "right" and not row["accepted"]:
        wrong = f"error {row['error']:.1e} is refused"
    else:
        wrong = ""
    return {**row, "wrong": wrong}


def rows_of(args: Any, folder: Path) -> list[Row]:
    """The rows of the searches that have pins, or a stored error of pins that is finite."""
    found = [row for row in search.rows_of(args, folder) if row["pins"] or row.get("alt") is not None]
    return [row for row in found if math.isfinite(row.get("alt") or 0.0)]


def main() -> int:
    args = rows.arguments(rows.parser(__doc__, timeout=300))
    # A row whose pins are at fault has no rewrites.
    done = [rewrite for row in rows.judge_all(args, rows_of, judge) for rewrite in row.get("rewrites", [row])]
    for row in done:
        if args.table or row["wrong"]:
            figures, policy = rows.figures(row, ("error", "alt")), row.get("policy", "pins")
            print(f"{row['model']:32} {row['format']}  {policy:4} {figures}  {row.get('is')}  {row['wrong']}")
    counts = []
    for kind in ("wrong", "between", "right"):
        accepted = [row["accepted"] for row in done if row.get("is") == kind]
        counts.append(f"{sum(accepted)} of {len(accepted)} {kind}")
    problems = sum(bool(row["wrong"]) for row in done)
    print(f"{len(done)} rewrites judged, {problems} problems; accepted: {', '.join(counts)}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
