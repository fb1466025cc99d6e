#!/usr/bin/env python3
"""How long the CPU runtime takes for one run of a model, next to ONNX Runtime on the CPU.

Both compute the same inputs with the same number of threads, in turns: in each round ONNX Runtime warms up and runs
some times, then `ampc run --bench` does. A time is the least median of the rounds, in milliseconds; the table has the
ratio too, and how far the outputs are apart, as a share of the largest element. A model is an .onnx file with an
`io.npz` beside it, whose arrays `in_NAME` are the inputs.

    runtime.py --ampc target/release/ampc [--threads 1 2] [--runs 10] [--rounds 3] MODEL...
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnxruntime

from stored_inputs import copy_inputs

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "judge"))

from tables import markdown  # noqa: E402

MEDIAN = re.compile(r"^median\s+([\d.]+) (s|ms|µs|ns)$", re.MULTILINE)
MILLISECONDS = {"s": 1e3, "ms": 1.0, "µs": 1e-3, "ns": 1e-6}


def session_of(model: Path, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def time_of_session(session: onnxruntime.InferenceSession, feeds: dict[str, np.ndarray], runs: int) -> float:
    session.run(None, feeds)
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        session.run(None, feeds)
        times.append(time.perf_counter() - start)
    return median(times) * 1e3


def run_ampc(ampc: Path, model: Path, inputs: Path, outputs: Path, threads: int, runs: int) -> float:
    command = [str(ampc), "run", str(model), "--inputs", str(inputs), "--outputs", str(outputs), "--force"]
    ran = subprocess.run([*command, "--bench", str(runs), "--threads", str(threads)], capture_output=True, text=True)
    found = MEDIAN.search(ran.stdout)
    if ran.returncode or not found:
        sys.exit(f"{model}: exit {ran.returncode}\n{ran.stderr}")
    return float(found[1]) * MILLISECONDS[found[2]]


def error(got: np.ndarray, want: np.ndarray) -> float:
    scale = float(np.max(np.abs(want), initial=0.0)) or 1.0
    return float(np.max(np.abs(got.astype(np.float64) - want), initial=0.0)) / scale


def measure(ampc: Path, model: Path, threads: int, runs: int, rounds: int) -> dict[str, Any]:
    session = session_of(model, threads)
    names = [output.name for output in session.get_outputs()]
    with tempfile.TemporaryDirectory() as folder:
        inputs, outputs = Path(folder, "in.npz"), Path(folder, "out.npz")
        copy_inputs(model.parent / "io.npz", inputs)
        with np.load(inputs) as arrays:
            feeds = {name: arrays[name] for name in arrays.files}
        ours, theirs = [], []
        for _ in range(rounds):
            theirs.append(time_of_session(session, feeds, runs))
            ours.append(run_ampc(ampc, model, inputs, outputs, threads, runs))
        with np.load(outputs) as made:
            worst = max(error(made[name], want) for name, want in zip(names, session.run(None, feeds)))
    own, other = min(ours), min(theirs)
    shapes = ", ".join("x".join(map(str, a.shape)) for a in feeds.values())
    return {
        "model": model.stem,
        "inputs": shapes,
        "threads": threads,
        "ampc_ms": f"{own:.3g}",
        "ONNX_Runtime_ms": f"{other:.3g}",
        "ratio": f"{own / other:.2f}",
        "apart": f"{worst:.0e}",
    }


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    parser.add_argument("--ampc", type=Path, required=True)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    rows = []
    for model in args.models:
        for threads in args.threads:
            rows.append(measure(args.ampc, model, threads, args.runs, args.rounds))
            print(*rows[-1].values(), file=sys.stderr)
    print(f"onnxruntime {version('onnxruntime')}, {args.rounds} rounds of {args.runs} runs\n")
    print(markdown(["model", "inputs", "threads", "ampc ms", "ONNX Runtime ms", "ratio", "apart"], rows))


if __name__ == "__main__":
    main()
