#!/usr/bin/env python3
"""The time and the memory of `ampc stats`, as shares of those of `ampc run` on the same inputs.

Both read the model, and run it once on the inputs in `io.npz` beside it. Runs alternate, each in a process of its own; times
are medians of wall-clock times, memory is the peak of resident memory.

    stats.py --ampc target/release/ampc [--repeats N] MODEL.onnx ...
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path
from statistics import median

import numpy as np

COMMANDS = ("run", "stats")


def measured(command: list[str]) -> tuple[float, int]:
    """The seconds and the peak of resident kB of a command."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    message = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - start
    if status != 0:
        raise SystemExit(f"{' '.join(command)}: {message}")
    return seconds, usage.ru_maxrss


def row(args, model: Path) -> str:
    with tempfile.TemporaryDirectory() as name:
        inputs = Path(name) / "inputs.npz"
        with np.load(model.parent / "io.npz") as arrays:
            given = {key.removeprefix("in_"): arrays[key] for key in arrays.files if key.startswith("in_")}
        np.savez(inputs, **given)
        found = {command: [] for command in COMMANDS}
        for _ in range(args.repeats):
            for command in COMMANDS:
                found[command].append(measured([args.ampc, command, str(model), "--inputs", str(inputs), "--quiet"]))
    seconds = {command: median(time for time, _ in runs) for command, runs in found.items()}
    memory = {command: max(kilobytes for _, kilobytes in runs) / 1024 for command, runs in found.items()}
    return (
        f"| {model.parent.name} | {seconds['run']:.2f} s | {seconds['stats']:.2f} s | {seconds['stats'] / seconds['run']:.2f} "
        f"| {memory['run']:.0f} MiB | {memory['stats']:.0f} MiB | {memory['stats'] / memory['run']:.2f} |"
    )


def main() -> None:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ampc", required=True, help="the binary")
    parser.add_argument("--repeats", type=int, default=9, help="runs of each command [9]")
    parser.add_argument("models", nargs="+", type=Path)
    args = parser.parse_args()
    print("| model | run | stats | time | run | stats | memory |\n|---|---|---|---|---|---|---|")
    for model in args.models:
        print(row(args, model), flush=True)


if __name__ == "__main__":
    main()
