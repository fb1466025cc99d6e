#!/usr/bin/env python3
"""Lets each call of a training and of a convolution on a simulated CUDA device fail once: exit code, message, and the
files that are left.

The library of tests/cuda-sim has to be found by the dynamic loader (LD_LIBRARY_PATH), as scripts/cuda-sim sets it up. A
training saves a checkpoint after every step; after a failure there is one clear message, no panic, and the checkpoint is
that of a step or none. A run of a convolution writes its results or nothing.

    tests/judge/cuda_faults.py --ampc target/release/ampc [--all]
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
TESTDATA = HERE.parent.parent / "testdata"
STEPS = 3
CONVOLUTION = """\
module ir=10
opset ai.onnx=21

graph @main {
  input %x : f32[2, 3, 9, 9]
  const %w : f32[4, 3, 3, 3] = random(1)
  const %b : f32[4] = random(2)
  %c = Conv(%x, %w, %b) {pads=[1, 1, 1, 1], strides=[2, 2]} : f32[2, 4, 5, 5]
  %y = Relu(%c) : f32[2, 4, 5, 5]
  output %y : f32[2, 4, 5, 5]
}
"""
# Codes of the driver, and the exit codes that they may end with. A run may also go on, with exit code 0, if its checkpoint is
# that of a run without failures, except for the algorithms of products without their epilogues.
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
# Not initialized, an invalid parameter, an internal error, a failed allocation on the device, a failed execution.
CUDNN = {1001: {REFUSED}, 2000: {BUG}, 4000: {REFUSED}, 4004: {REFUSED}, 5000: {REFUSED}}
# While cuDNN is loaded, every failure says that this cuDNN cannot be used.
CUDNN_OPENING = {1001: {REFUSED}, 2000: {BUG}, 4000: {REFUSED}, 4004: {REFUSED}}
# An engine that does not support a graph is passed over; without an engine the convolution is not supported. When a
# convolution is launched, nothing can be passed over.
CUDNN_CHOICE = CUDNN | {3000: {UNSUPPORTED, REFUSED}}
# Errors of the functions that choose an algorithm and compute.
CUBLASLT_PRODUCT = CUBLASLT | {13: {REFUSED}, 15: {UNSUPPORTED}}


def codes(function: str) -> dict[int, set[int]]:
    """The errors that a function may return, with the exit codes that they may end with."""
    if function.startswith("nvrtc"):
        return NVRTC if function != "nvrtcVersion" else {1: {UNSUPPORTED}}
    if function == "cudnnCreate":
        return CUDNN_OPENING
    if function.startswith("cudnn"):
        return CUDNN_CHOICE if function == "cudnnBackendFinalize" else CUDNN
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


def is_no_memory(function: str, code: int) -> bool:
    """True if the error of a function says that memory is exhausted."""
    if function.startswith("nvrtc"):
        return code == 1 and function != "nvrtcVersion"
    if function.startswith(("cublas", "cudnn")):
        return code == (3 if function.startswith("cublas") else 4004)
    return code == 2


def without_algorithms(checkpoint: Path) -> tuple[dict, bytes]:
    """Header and tensors of a checkpoint, without its record of the algorithms of libraries."""
    content = checkpoint.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"].pop("ampc.algorithms")
    return header, content[end:]


def run(ampc: str, args: list[str], cache: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A run with a cache of kernels of its own: kernels that are there are not compiled."""
    env = dict(os.environ, XDG_CACHE_HOME=str(cache), **variables)
    return subprocess.run([ampc, *args], capture_output=True, text=True, env=env, timeout=300)


@dataclass(frozen=True)
class Scenario:
    """A command that writes one file, and a command that checks the file after a failure."""

    name: str
    command: Callable[[Path], list[str]]
    check: Callable[[Path], list[str]] | None
    ending: str
    functions: str
    """The functions whose calls fail, as a regular expression."""


def training(folder: Path) -> Scenario:
    """A training that saves a checkpoint after every step."""
    step, state, samples = folder / "step.onnx", folder / "state.safetensors", TESTDATA / "mlp_samples.npz"
    args = ["train", str(step), "--state", str(state), "--data", str(samples), "--steps", str(STEPS), "--batch", "8"]
    saves = lambda saved: [*args, "--lr", "1e-3", "--save", str(saved), "--save-every", "1", "--device", "cuda"]
    return Scenario("training", saves, lambda saved: ["check", str(step), "--state", str(saved)], "safetensors", ".")


def convolution(folder: Path) -> Scenario:
    """A run of a convolution, whose calls of cuDNN fail."""
    args = ["run", str(folder / "convolution.ir"), "--device", "cuda", "--outputs"]
    return Scenario("convolution", lambda written: [*args, str(written)], None, "npz", "cudnn")


def judge(ampc: str, folder: Path, scenario: Scenario, function: str, number: int, code: int, expected: set[int]) -> list[str]:
    """The problems of a command whose call fails."""
    about = f"{scenario.name}: call {number} of {function} fails with {code}"
    own = folder / f"{scenario.name}_{function}_{number}_{code}"
    own.mkdir()
    written, whole = own / f"written.{scenario.ending}", folder / f"whole.{scenario.ending}"
    try:
        done = run(ampc, scenario.command(written), own, AMPC_SIM_FAIL=f"{function}:{number}:{code}")
    except subprocess.TimeoutExpired:
        return [f"{about}: the run does not end"]
    problems = []
    goes_on = done.returncode == 0 and written.exists() and written.read_bytes() == whole.read_bytes()
    # A product whose epilogue is refused runs node by node, with another algorithm. In f32 a Relu behind it has the same bits.
    if done.returncode == 0 and written.exists() and function == "cublasLtMatmulDescSetAttribute":
        goes_on = without_algorithms(written) == without_algorithms(whole)
    if done.returncode not in expected and not goes_on:
        problems.append(f"{about}: exit code {done.returncode}, expected {sorted(expected)}: {' '.join(done.stderr.split())[-300:]}")
    if done.returncode and "ampc::" not in done.stderr:
        problems.append(f"{about}: no message")
    message = " ".join(done.stderr.split())
    if done.returncode and is_no_memory(function, code) and not re.search("out of (device )?memory|bytes of memory", message):
        problems.append(f"{about}: the message does not say that memory is exhausted: {message[-300:]}")
    if "panicked" in done.stderr or "without a message" in done.stderr:
        problems.append(f"{about}: a panic: {' '.join(done.stderr.split())[-300:]}")
    if left := list(own.glob(".ampc-*")):
        problems.append(f"{about}: left {left[0].name}")
    if written.exists() and scenario.check:
        checked = run(ampc, scenario.check(written), own)
        if checked.returncode:
            problems.append(f"{about}: the checkpoint is damaged: {' '.join(checked.stderr.split())[:200]}")
    elif written.exists() and written.read_bytes() != whole.read_bytes():
        problems.append(f"{about}: wrong results are written")
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
        (folder / "convolution.ir").write_text(CONVOLUTION)
        state = ["--state", str(folder / "state.safetensors"), "--loss", "cross-entropy"]
        made = run(ampc, ["train-step", str(TESTDATA / "mlp.onnx"), "-o", str(folder / "step.onnx"), *state], folder)
        if made.returncode:
            print(made.stderr)
            return 1
        tasks, calls_made, functions = [], 0, set()
        for scenario in (training(folder), convolution(folder)):
            calls = folder / f"calls of {scenario.name}"
            whole = run(ampc, scenario.command(folder / f"whole.{scenario.ending}"), folder / scenario.name, AMPC_SIM_CALLS=str(calls))
            if whole.returncode:
                print(whole.stderr)
                return 1
            counts = Counter(name for name in calls.read_text().split() if re.match(scenario.functions, name))
            calls_made += counts.total()
            functions |= counts.keys()
            for function, count in sorted(counts.items()):
                numbers = range(1, count + 1) if args.all else sorted({1, (count + 1) // 2, count})
                tasks += [(scenario, function, number, code, exits) for number in numbers for code, exits in codes(function).items()]
        with ThreadPoolExecutor(args.workers) as pool:
            judged = pool.map(lambda task: judge(ampc, folder, *task), tasks)
            problems = [problem for found in judged for problem in found]
    print("\n".join(problems))
    print(f"faults: {len(tasks)} failures of {calls_made} calls of {len(functions)} functions; {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
