#!/usr/bin/env python3
"""The time of `ampc rewrite --search`, in runs of the fp32 model on the data of the search.

Each model is searched on three batches: the inputs in `io.npz` beside it, and two batches made of them (elements in
another order with noise for floats, other integers below the largest for indices). The model is run on each batch
first; the sum of the mean times is one run on the data. Searches and runs alternate, in one process each.

    searches.py --ampc target/release/ampc [--tolerance X] [--to FORMAT] [--budget N] MODEL.onnx ...
"""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path

import numpy as np

from stored_inputs import copy_inputs

UNITS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}


def batches(model: Path, folder: Path) -> list[Path]:
    """Writes the batches, of which the first is the stored inputs."""
    paths = [folder / f"b{number}.npz" for number in range(3)]
    copy_inputs(model.parent / "io.npz", paths[0])
    with np.load(paths[0]) as arrays:
        given = {name: arrays[name] for name in arrays.files}
    rng = np.random.default_rng(0)
    for path in paths[1:]:
        np.savez(path, **{name: varied(array, rng) for name, array in given.items()})
    return paths


def varied(array: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Other values of the same kind; flags stay."""
    if array.dtype.kind == "f":
        noise = 0.5 * array.std() * rng.standard_normal(array.shape)
        return (0.8 * array[..., ::-1] + noise).astype(array.dtype)
    if array.dtype.kind == "i" and array.max() > 1:
        return rng.integers(0, array.max() + 1, array.shape).astype(array.dtype)
    return array


def seconds_of_run(ampc: str, model: Path, batch: Path) -> float:
    """The mean time of a run, as `--bench` prints it."""
    command = [ampc, "run", str(model), "--inputs", str(batch), "--bench", "10"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    number, unit = re.search(r"^mean +([\d.]+) (\S+)", done.stdout + done.stderr, re.MULTILINE).groups()
    return float(number) * UNITS[unit]


def row(args, model: Path) -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = folder / "data"
        data.mkdir()
        one = sum(seconds_of_run(args.ampc, model, batch) for batch in batches(model, data))
        pareto = folder / "pareto.json"
        command = [args.ampc, "rewrite", str(model), "-o", str(folder / "low.onnx"), "--to", args.to, "--search"]
        command += ["--inputs", str(data), "--tolerance", str(args.tolerance), "--pareto", str(pareto), "--quiet"]
        if args.budget:
            command += ["--budget", args.budget]
        if args.to == "bf16":
            command += ["--opset", "auto"]
        start = time.monotonic()
        done = subprocess.run(command, capture_output=True, text=True)
        seconds = time.monotonic() - start
        cells = [model.parent.name, f"{1e3 * one:.0f}", f"{seconds:.2f}", f"{seconds / one:.0f}"]
        if done.returncode != 0:
            said = (done.stderr.strip().splitlines() or ["no message"])[0]
            return " | ".join([*cells, "", "", said[:90]])
        found = json.loads(pareto.read_text())
        held_out = found.get("held_out")
        said = "on all batches" if held_out is None else f"{held_out['error']:.1e}"
        return " | ".join([*cells, str(found["chosen"]["pins"]), f"{found['chosen']['error']:.1e}", said])


def main() -> None:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ampc", required=True)
    parser.add_argument("--to", default="fp16", choices=("fp16", "bf16"))
    parser.add_argument("--tolerance", type=float, default=1e-3)
    parser.add_argument("--budget", help="that of the search [its default]")
    parser.add_argument("models", type=Path, nargs="+")
    args = parser.parse_args()
    print("| model | a run on the data, ms | search, s | runs | pins | error | on the held-out batch |")
    print("|---|---|---|---|---|---|---|")
    for model in args.models:
        print(f"| {row(args, model)} |", flush=True)


if __name__ == "__main__":
    main()
