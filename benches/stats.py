#!/usr/bin/env python3
"""The time and the memory of `ampc stats`, as shares of those of `ampc run` on the same inputs.

Both read the model, and run it once on the inputs in `io.npz` beside it. Runs alternate, each in a process of its own;
times are medians of wall-clock times, memory is the peak of resident memory.

    stats.py --ampc target/release/ampc [--repeats N] MODEL.onnx ...
"""

from __future__ import annotations

import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path
from statistics import median

from stored_inputs import copy_inputs

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "judge"))

import measure  # noqa: E402

COMMANDS = ("run", "stats")


def measured(command: list[str], timeout: float) -> measure.Run:
    """The measures of a command, which has to succeed."""
    done = measure.run(command, timeout)
    if done.code != 0:
        raise SystemExit(f"{' '.join(command)}: exit {done.ending()}\n{done.stderr}")
    return done


def row(args, model: Path) -> str:
    """The line of a model in the table."""
    with tempfile.TemporaryDirectory() as name:
        inputs = Path(name) / "inputs.npz"
        copy_inputs(model.parent / "io.npz", inputs)
        found: dict[str, list[measure.Run]] = {command: [] for command in COMMANDS}
        for _ in range(args.repeats):
            for command in COMMANDS:
                options = ["--inputs", str(inputs), "--quiet"]
                found[command].append(measured([args.ampc, command, str(model), *options], args.timeout))
    seconds = {command: median(run.wall for run in runs) for command, runs in found.items()}
    memory = {command: max(run.rss_mb for run in runs) for command, runs in found.items()}
    times = f"{seconds['run']:.2f} s | {seconds['stats']:.2f} s | {seconds['stats'] / seconds['run']:.2f}"
    peaks = f"{memory['run']:.0f} MiB | {memory['stats']:.0f} MiB | {memory['stats'] / memory['run']:.2f}"
    return f"| {model.parent.name} | {times} | {peaks} |"


def main() -> None:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ampc", required=True, help="the binary")
    parser.add_argument("--repeats", type=int, default=9, help="runs of each command [9]")
    parser.add_argument("--timeout", type=float, default=600, help="seconds per run [600]")
    parser.add_argument("models", nargs="+", type=Path)
    args = parser.parse_args()
    print("| model | run | stats | time | run | stats | memory |\n|---|---|---|---|---|---|---|")
    for model in args.models:
        print(row(args, model), flush=True)


if __name__ == "__main__":
    main()
