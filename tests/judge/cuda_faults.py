#!/usr/bin/env python3
"""Lets each call of a training on a simulated CUDA device fail once: exit code, message, and the files that are left.

The library of tests/cuda-sim has to be found by the dynamic loader (LD_LIBRARY_PATH), as scripts/cuda-sim sets it up. A
training saves a checkpoint after every step; after a failure there is one clear message, no panic, and the checkpoint is
that of a step or none.

    tests/judge/cuda_faults.py --ampc target/release/ampc [--all]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
TESTDATA = HERE.parent.parent / "testdata"
STEPS = 3
# Codes of the driver, and the exit codes that they may end with. A run may also go on, with exit code 0, if its checkpoint is
# that of a run without failures.
UNSUPPORTED, REFUSED, BUG = 4, 5, 70
DRIVER = {
    1: {BUG},  # an invalid value
    2: {REFUSED},  # out of memory
    46: {REFUSED},  # the device is unavailable
    700: {BUG},  # an illegal address
    999: {REFUSED},  # unknown
}
# While a device is opened, no kernel has run that could have used an illegal address.
OPENING = DRIVER | {700: {REFUSED}}
# Errors by which a driver says that there is no device.
NO_DEVICE = {34: {UNSUPPORTED}, 100: {UNSUPPORTED}, 803: {UNSUPPORTED}, 804: {UNSUPPORTED}}
NVRTC = {1: {REFUSED}, 5: {BUG}, 6: {BUG}, 7: {REFUSED}}
CUBLASLT = {3: {REFUSED}, 7: {BUG}}
# Errors of the functions that choose an algorithm and compute.
CUBLASLT_PRODUCT = CUBLASLT | {13: {REFUSED}, 15: {UNSUPPORTED}}


def codes(function: str) -> dict[int, set[int]]:
    """The errors that a function may return, with the exit codes that they may end with."""
    if function.startswith("nvrtc"):
        return NVRTC if function != "nvrtcVersion" else {1: {UNSUPPORTED}}
    if function.startswith("cublas"):
        return CUBLASLT_PRODUCT if function.startswith("cublasLtMatmulAlgo") or function == "cublasLtMatmul" else CUBLASLT
    if function in ("cuInit", "cuDeviceGetCount"):
        return OPENING | NO_DEVICE
    if function.startswith("cuDevice"):
        return OPENING
    if function.startswith("cuCtx"):
        # Some calls are those of opening a device.
        return DRIVER | {700: {REFUSED, BUG}}
    return {1: {UNSUPPORTED}} if function == "cuDriverGetVersion" else DRIVER


def run(ampc: str, args: list[str], cache: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A run with a cache of kernels of its own: kernels that are there are not compiled."""
    env = dict(os.environ, XDG_CACHE_HOME=str(cache), **variables)
    return subprocess.run([ampc, *args], capture_output=True, text=True, env=env, timeout=300)


def training(step: Path, state: Path, saved: Path) -> list[str]:
    samples = str(TESTDATA / "mlp_samples.npz")
    args = ["train", str(step), "--state", str(state), "--data", samples, "--steps", str(STEPS), "--batch", "8"]
    return [*args, "--lr", "1e-3", "--save", str(saved), "--save-every", "1", "--device", "cuda"]


def judge(ampc: str, folder: Path, function: str, number: int, code: int, expected: set[int]) -> list[str]:
    """The problems of a training whose call fails."""
    about = f"call {number} of {function} fails with {code}"
    own = folder / f"{function}_{number}_{code}"
    own.mkdir()
    saved = own / "saved.safetensors"
    step, state = folder / "step.onnx", folder / "state.safetensors"
    try:
        done = run(ampc, training(step, state, saved), own, AMPC_SIM_FAIL=f"{function}:{number}:{code}")
    except subprocess.TimeoutExpired:
        return [f"{about}: the run does not end"]
    problems = []
    goes_on = done.returncode == 0 and saved.exists() and saved.read_bytes() == (folder / "whole.safetensors").read_bytes()
    if done.returncode not in expected and not goes_on:
        problems.append(f"{about}: exit code {done.returncode}, expected {sorted(expected)}: {' '.join(done.stderr.split())[-300:]}")
    if done.returncode and "ampc::" not in done.stderr:
        problems.append(f"{about}: no message")
    if "panicked" in done.stderr or "without a message" in done.stderr:
        problems.append(f"{about}: a panic: {' '.join(done.stderr.split())[-300:]}")
    if left := list(own.glob(".ampc-*")):
        problems.append(f"{about}: left {left[0].name}")
    if saved.exists():
        checked = run(ampc, ["check", str(step), "--state", str(saved)], own)
        if checked.returncode:
            problems.append(f"{about}: the checkpoint is damaged: {' '.join(checked.stderr.split())[:200]}")
    return problems


def main() -> int:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ampc", default=os.environ.get("AMPC_BIN"), help="the binary [AMPC_BIN]")
    parser.add_argument("--all", action="store_true", help="every call of each function, not the first, a middle and the last")
    parser.add_argument("--workers", type=int, default=2, help="processes [2]")
    args = parser.parse_args()
    if not args.ampc or not Path(args.ampc).exists():
        parser.error("no binary: give --ampc or set AMPC_BIN")
    ampc = str(Path(args.ampc).resolve())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        step, state, calls = folder / "step.onnx", folder / "state.safetensors", folder / "calls"
        made = run(ampc, ["train-step", str(TESTDATA / "mlp.onnx"), "-o", str(step), "--state", str(state), "--loss", "cross-entropy"], folder)
        if made.returncode:
            print(made.stderr)
            return 1
        whole = run(ampc, training(step, state, folder / "whole.safetensors"), folder, AMPC_SIM_CALLS=str(calls))
        if whole.returncode:
            print(whole.stderr)
            return 1
        counts = Counter(calls.read_text().split())
        tasks = []
        for function, count in sorted(counts.items()):
            numbers = range(1, count + 1) if args.all else sorted({1, (count + 1) // 2, count})
            tasks += [(function, number, code, exits) for number in numbers for code, exits in codes(function).items()]
        with ThreadPoolExecutor(args.workers) as pool:
            judged = pool.map(lambda task: judge(ampc, folder, *task), tasks)
            problems = [problem for found in judged for problem in found]
    print("\n".join(problems))
    print(f"faults: {len(tasks)} failures of {sum(counts.values())} calls of {len(counts)} functions; {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
