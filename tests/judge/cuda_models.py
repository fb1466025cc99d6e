#!/usr/bin/env python3
"""Runs models on a CUDA device and on the CPU: outputs in fp32, fp16 and bf16, and losses of training steps.

Without a GPU the library of tests/cuda-sim stands in for it, if the dynamic loader finds it (scripts/cuda-sim sets
LD_LIBRARY_PATH). Outputs in fp32 may differ by 2e-5 of the greatest element, which sums in another order explain. In a
16-bit format, the distance from the fp32 outputs may be 1.5 times that of the CPU, or half a bit of the format. Where
operations of a library round in other places than the nodes, the greatest distance of one input is a matter of chance: if
it is beyond that, the mean distance of several inputs counts.

    tests/judge/cuda_models.py --ampc target/release/ampc --corpus DIR [--sets small] [--filter '*mlp*']
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

import ampc

FP32 = 2e-5
# Half the distance of 1 to the next number of the format.
NOISE = {"fp16": 2.0**-11, "bf16": 2.0**-8}
FACTOR = 1.5
# Further inputs of a model whose outputs on one input are too far away.
INPUTS = 5
TIMEOUT = 900


def run(binary: str, *args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([binary, *map(str, args)], capture_output=True, text=True, timeout=TIMEOUT)


def outputs(binary: str, model: Path, device: str, folder: Path, seed: int = 0) -> dict[str, np.ndarray]:
    """The outputs on random inputs, or an error."""
    to = folder / f"{model.stem}.{device}.npz"
    done = run(binary, "run", model, "--random", seed, "--device", device, "--outputs", to, "--force")
    if done.returncode:
        raise RuntimeError(f"{device}: exit code {done.returncode}: {' '.join(done.stderr.split())[-400:]}")
    with np.load(to) as file:
        return {name: file[name] for name in file.files}


def distance(got: np.ndarray, wanted: np.ndarray) -> float:
    """The greatest distance of finite elements, as a share of the greatest element wanted."""
    got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(wanted)
    if not wanted.size:
        return 0.0
    if not np.array_equal(finite, np.isfinite(got)):
        return float("inf")
    greatest = np.abs(wanted[finite]).max(initial=0.0)
    return float(np.abs(got[finite] - wanted[finite]).max(initial=0.0) / max(greatest, 1e-30))


def is_too_far(far: float, permitted: float, form: str) -> bool:
    return far > max(FACTOR * permitted, permitted + NOISE[form])


def means(binary: str, models: tuple[Path, Path], name: str, folder: Path) -> tuple[float, float]:
    """The mean distance of an output of the second model on a device, and on the CPU, from the first model."""
    far = []
    for seed in range(INPUTS):
        wanted = outputs(binary, models[0], "cpu", folder, seed)[name]
        found = [outputs(binary, models[1], device, folder, seed)[name] for device in ("cuda", "cpu")]
        far.append([distance(of, wanted) for of in found])
    on_cuda, on_cpu = np.mean(far, axis=0)
    return float(on_cuda), float(on_cpu)


def judge(binary: str, path: Path, folder: Path) -> list[str]:
    """The problems of a model."""
    problems = []
    try:
        wanted = outputs(binary, path, "cpu", folder)
    except RuntimeError as error:
        return [f"fp32, {error}"]
    for form in ("fp32", "fp16", "bf16"):
        model = path
        if form != "fp32":
            model = folder / f"{path.stem}.{form}.onnx"
            if (done := run(binary, "rewrite", path, "--to", form, "-o", model, "--force")).returncode:
                problems.append(f"{form}: not rewritten: {done.stderr[-200:]}")
                continue
        try:
            on_cpu, on_cuda = (outputs(binary, model, device, folder) for device in ("cpu", "cuda"))
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            problems.append(f"{form}, {error}")
            continue
        for name, want in wanted.items():
            if want.dtype.kind not in "fV" and form == "fp32":
                if not np.array_equal(on_cuda[name], want):
                    problems.append(f"{form}: output {name} differs")
                continue
            if form == "fp32":
                if (far := distance(on_cuda[name], want)) > FP32:
                    problems.append(f"{form}: output {name} is {far:.1e} away")
                continue
            far, permitted = distance(on_cuda[name], want), distance(on_cpu[name], want)
            if is_too_far(far, permitted, form):
                far, permitted = means(binary, (path, model), name, folder)
            if is_too_far(far, permitted, form):
                problems.append(f"{form}: output {name} is {far:.1e} away, on the CPU {permitted:.1e}")
    return problems


if __name__ == "__main__":
    sys.exit(ampc.judge_models(__doc__, "small", judge))
