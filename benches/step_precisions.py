#!/usr/bin/env python3
"""CPU time of a training step in fp16 and bf16, next to the same step in fp32, in the CPU runtime.

    step_precisions.py --ampc AMPC [--policy torch|safe] [--steps N] [--rounds R] FOLDER...

A folder has `NAME/NAME.train.onnx`, a model whose output `loss` is the loss, and in `oracle.npz` a batch: the array
`in_X` for each input X. Steps have AdamW; fp16 has loss scaling with one check of all gradients, bf16 and fp32 have
none.

A time is the CPU time of a process of `ampc train` with N + 5 steps less that of a process with 5 steps, over N: the
least of R rounds, in each of which every precision runs. Processes have one thread and are bound to one processor.
Printed are milliseconds, and the ratios to fp32.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from stored_inputs import copy_inputs

FP32 = "jmp:params=float32,compute=float32,output=float32"


def options(precision: str, policy: str) -> list[str]:
    """Those of `ampc train-step` for a precision."""
    if precision == "fp32":
        return ["--policy", FP32, "--scaler", "none"]
    scaler = "torch" if precision == "fp16" else "none"
    return ["--policy", policy, "--to", precision, "--scaler", scaler, "--opset", "auto"]


def run(command: list[object], cpu: int | None = None) -> float:
    """The CPU time of a process in seconds."""
    bind = None if cpu is None else lambda: os.sched_setaffinity(0, [cpu])
    child = subprocess.Popen([str(part) for part in command], stderr=subprocess.PIPE, preexec_fn=bind)
    text = child.stderr.read().decode()
    _, status, usage = os.wait4(child.pid, 0)
    if status != 0:
        sys.exit(f"{' '.join(map(str, command))}: {text}")
    return usage.ru_utime + usage.ru_stime


class Step:
    """A training step in one precision, in files of a folder."""

    def __init__(self, ampc: str, model: Path, folder: Path, precision: str, policy: str) -> None:
        self.ampc, self.data = ampc, folder / "batch.npz"
        self.step, self.state = folder / f"{precision}.onnx", folder / f"{precision}.safetensors"
        make = [ampc, "train-step", model, "--loss", "output:loss", *options(precision, policy), "-q", "--force"]
        run([*make, "-o", self.step, "--state", self.state])

    def time(self, steps: int, batch: int, cpu: int) -> float:
        """The CPU time of `steps` steps and of the start."""
        command = [self.ampc, "train", self.step, "--state", self.state, "--data", self.data, "--batch", batch]
        command += ["--steps", steps, "--threads", 1, "--lr", "1e-4", "--quiet", "--force"]
        return run([*command, "--save", self.state.with_suffix(".saved.safetensors")], cpu)


def measure(args: argparse.Namespace, folder: Path) -> None:
    """Prints a line of the table."""
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "batch.npz"
        copy_inputs(folder / "oracle.npz", data)
        with np.load(data) as inputs:
            batch = inputs[inputs.files[0]].shape[0]
        model = folder / f"{folder.name}.train.onnx"
        precisions = ("fp32", "fp16", "bf16")
        steps = {p: Step(args.ampc, model, Path(scratch), p, args.policy) for p in precisions}
        least: dict[tuple[str, int], float] = {}
        for _ in range(args.rounds):
            for precision, step in steps.items():
                for n in (5, 5 + args.steps):
                    key = (precision, n)
                    least[key] = min(least.get(key, np.inf), step.time(n, batch, args.cpu))
    ms = {p: 1000 * (least[p, 5 + args.steps] - least[p, 5]) / args.steps for p in precisions}
    ratios = " | ".join(f"{ms[p] / ms['fp32']:.2f}" for p in ("fp16", "bf16"))
    print(f"| {folder.name} | {ms['fp32']:.3g} | {ratios} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ampc", required=True)
    parser.add_argument("--policy", default="torch")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--cpu", type=int, default=0, help="the processor")
    parser.add_argument("folders", nargs="+", type=Path)
    args = parser.parse_args()
    print("| step | fp32, ms | fp16 | bf16 |\n|---|---|---|---|")
    for folder in args.folders:
        measure(args, folder)


if __name__ == "__main__":
    main()
