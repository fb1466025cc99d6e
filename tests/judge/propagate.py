"""Counts the casts that are left in ONNX Runtime's own models for the propagation of casts.

Its propagate_cast_ops moves and fuses the casts of a model through operators that may be fp16: those of an allow
list, of level 1, or of level 2. propagate_cast_expected.csv has how many casts its tests expect per strategy. Here
operators of the list may be either (clear), all others are fp32, and ampc leaves the fewest casts there can be: never
more than the best strategy with the same list. What is written is valid, and the interface is that of the source.

    propagate.py --corpus DIR --ampc BIN [--table]
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import tempfile
from pathlib import Path

import ampc
import variants
from judge import SourceVerdicts, default_cache, is_valid, judge_output
from pool import Call, Pool
from tasks import nodes_of

LEVEL1 = ["Expand", "Transpose", "Relu", "Reshape", "Split", "Tanh", "Squeeze", "Unsqueeze"]
LEVEL2 = ["Add", "Dropout", "Gather", "Gelu", "LayerNormalization", "Where"]
# The strategies by what may be fp16.
LEVELS = {0: (["insertAndReduce0"], []), 1: (["insertAndReduce1", "floodFill1"], LEVEL1), 2: (["floodFill2"], LEVEL1 + LEVEL2)}


def policy(allowed: list[str]) -> str:
    """Operators of the list may be either, all others are fp32."""
    return json.dumps({"schema": "ampc-policy/1", "name": "propagate", "unlisted": "deny", "ops": {"clear": sorted(set(allowed))}})


def main() -> int:
    """Prints a line for each model that has more casts than it must, and the totals; 1 if there is one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ampc.add_arguments(parser, "ort")
    parser.add_argument("--table", action="store_true", help="a line for each model and list")
    parser.add_argument("--cache", type=Path, default=default_cache())
    args = parser.parse_args()
    ampc.require(parser, args)
    sources = SourceVerdicts(args.cache)
    with open(args.corpus / "propagate_cast_expected.csv", newline="") as file:
        jobs = [
            (row, level, min(expected))
            for row in csv.DictReader(file)
            for level, (names, _) in LEVELS.items()
            if (expected := [int(row[name]) for name in names if row[name]])
        ]

    def job(call: Call, what: tuple[dict[str, str], int, int]) -> tuple[int, str]:
        row, level, _ = what
        source = args.corpus / row["path"]
        with tempfile.TemporaryDirectory(prefix="ampc-propagate-") as folder:
            file, output = Path(folder) / "policy.json", Path(folder) / source.name
            file.write_text(policy(row["allow_ops"].split() + LEVELS[level][1]))
            run = ampc.rewrite(args.ampc, source, output, "--policy", str(file), "--objective", "casts", timeout=args.timeout)
            if run.code != 0:
                return -1, ampc.problem(run)
            judged = judge_output(call, source, output, sources.get(call, source), "fp16")
            fine = is_valid(judged) and judged["interface"] == "ok"
            return sum(node.op_type == "Cast" for node in nodes_of(variants.load(output))), "" if fine else str(judged)

    with Pool(args.workers, args.timeout) as pool:
        results = pool.map(job, jobs)
    sources.save()
    good = fewer = 0
    for (row, level, expected), (left, problem) in zip(jobs, results):
        name = f"{Path(row['path']).name} level {level}"
        fine = not problem and left <= expected
        good, fewer = good + fine, fewer + (fine and left < expected)
        if not fine:
            print(f"FAIL {name}: {problem or f'{left} casts, ONNX Runtime leaves {expected}'}")
        if args.table:
            print(f"| {name} | {row['casts_in']} | {expected} | {left} |")
    print(f"propagate: {good} of {len(jobs)} with no more casts than ONNX Runtime's best strategy, {fewer} with fewer")
    return 0 if good == len(jobs) else 1


if __name__ == "__main__":
    sys.exit(main())
