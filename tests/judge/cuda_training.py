#!/usr/bin/env python3
"""Trains on a CUDA device and on the CPU: losses in fp32, fp16 and bf16, and a resumed run.

Without a GPU the library of tests/cuda-sim stands in for it, if the dynamic loader finds it (scripts/cuda-sim sets
LD_LIBRARY_PATH). The first losses may differ by 1e-4 of the loss in fp32 and by 1 % in a 16-bit format, which sums in
another order explain. A training that is more sensitive may differ by twice the most that two runs on the CPU differ whose
weights are changed by one unit in the last place. A training that diverges on the CPU diverges on the device. A run that is
resumed from a checkpoint on the device ends with the bytes of a run without a stop.

With `--spread` the losses of every form are compared with three runs on the CPU whose weights are changed by one unit in the
last place. The spread at a step is the distance of the farthest of the three from the unchanged run so far, or 1e-6 of the
loss in fp32 and 1e-3 in a 16-bit format where the three agree. Of four runs that differ by chance each is the farthest one
time in four, so the device may be twice as far. The losses beyond the spread itself are counted for the device and, as a
comparison, for a fourth changed run on the CPU; a device that rounds as well as the CPU is beyond as often.

    tests/judge/cuda_training.py --ampc target/release/ampc --corpus DIR [--filter '*mlp*'] [--steps 100 --spread]
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from functools import partial
from pathlib import Path

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

import ampc
import measure
from step_curves import REFUSED

STEPS = 10
# Runs whose weights are changed, for a bound and for `--spread`.
CHANGED, COMPARED = 2, 3
# The permitted distance of a device, as a multiple of the spread.
PERMITTED = 2
# The distance that is permitted where the changed runs agree, as a share of the loss.
LEAST = {"fp32 sgd": 1e-6, "fp32 adamw": 1e-6, "fp16": 1e-3, "bf16": 1e-3}
FORMS = {
    "fp32 sgd": (("--fp32", "--optimizer", "sgd"), 0.05, 1e-4),
    "fp32 adamw": (("--fp32", "--optimizer", "adamw"), 1e-3, 1e-4),
    "fp16": (("--to", "fp16", "--optimizer", "adamw"), 1e-3, 1e-2),
    "bf16": (("--to", "bf16", "--optimizer", "adamw"), 1e-3, 1e-2),
}
TIMEOUT = 1200


def train(
    binary: str, step: Path, data: Path, rate: float, steps: int, save: Path, *options: str, state: Path | None = None
) -> measure.Run:
    command = [binary, "train", str(step), "--state", str(state or step.with_suffix(".safetensors")), "--data", str(data)]
    command += ["--steps", str(steps), "--lr", str(rate), "--no-shuffle", "--save", str(save), "--force"]
    return measure.run([*command, "--log", str(save.with_suffix(".jsonl")), *options], TIMEOUT)


def losses(save: Path) -> np.ndarray:
    lines = [json.loads(line) for line in save.with_suffix(".jsonl").read_text().splitlines()]
    return np.array([float(line["loss"]) for line in lines if "loss" in line])


def apart(cpu: np.ndarray, other: np.ndarray) -> float:
    """The most that finite losses are apart, as a share of the loss."""
    count = min(len(cpu), len(other))
    cpu, other = cpu[:count], other[:count]
    finite = np.isfinite(cpu) & np.isfinite(other)
    return float((np.abs(cpu - other) / np.abs(cpu))[finite].max(initial=0.0))


def changed(state: Path, to: Path, seed: int) -> None:
    """A state whose fp32 weights are changed by one unit in the last place, up or down."""
    random = np.random.default_rng(seed)
    with safe_open(state, framework="numpy") as file:
        metadata, tensors = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}
    for key, tensor in tensors.items():
        if tensor.dtype == np.float32 and tensor.ndim > 0 and not key.startswith(("m.", "v.")):
            towards = np.where(random.random(tensor.shape) < 0.5, np.float32(-np.inf), np.float32(np.inf))
            tensors[key] = np.nextafter(tensor, towards)
    save_file(tensors, to, metadata)


def changed_runs(binary: str, step: Path, data: Path, rate: float, work: Path, count: int, steps: int) -> list[np.ndarray]:
    """The losses of runs on the CPU whose weights are changed in the last digit."""
    found = []
    for seed in range(count):
        state, save = work / f"changed{seed}.safetensors", work / f"changed{seed}.saved.safetensors"
        changed(step.with_suffix(".safetensors"), state, seed)
        if train(binary, step, data, rate, steps, save, "--device", "cpu", state=state).code in (0, 1):
            found.append(losses(save))
    return found


def spread(binary: str, step: Path, data: Path, rate: float, cpu: np.ndarray, work: Path) -> float:
    """The most that losses on the CPU change with the last digit of the weights."""
    runs = changed_runs(binary, step, data, rate, work, CHANGED, len(cpu))
    return max((apart(cpu, run) for run in runs), default=0.0)


def spreads(cpu: np.ndarray, other: np.ndarray, runs: list[np.ndarray], least: float) -> np.ndarray:
    """The distance of losses from those of the CPU at each step, as a multiple of the spread of changed runs up to there.
    Losses that are not finite are not compared."""
    count = min(len(run) for run in [cpu, other, *runs])
    of_runs = np.zeros(count)
    for run in runs:
        of_runs = np.fmax(of_runs, np.abs(run[:count] - cpu[:count]))
    spread = np.maximum(np.maximum.accumulate(of_runs), least * np.abs(cpu[:count]))
    off = np.abs(other[:count] - cpu[:count])
    return np.where(np.isfinite(off) & np.isfinite(spread), off / spread, 0.0)


def judge(binary: str, model: Path, work: Path, steps: int = STEPS, with_spread: bool = False) -> list[str]:
    name, problems = model.parent.name, []
    if name in REFUSED:
        return []
    stored = np.load(model.parent / "oracle.npz")
    data = work / f"{name}.npz"
    np.savez(data, **{key.removeprefix("in_"): stored[key] for key in stored.files if key.startswith("in_")})
    for form, (options, rate, permitted) in FORMS.items():
        step = work / f"{name}.{form.replace(' ', '.')}.onnx"
        command = [binary, "train-step", str(model), "-o", str(step), "--state", str(step.with_suffix(".safetensors"))]
        made = measure.run([*command, "--loss", "output:loss", "--force", "-q", *options], 120)
        if made.code:
            problems.append(f"{form}: no step: {made.stderr.strip()[-300:]}")
            continue
        found = {}
        for device in ("cpu", "cuda"):
            save = work / f"{step.stem}.{device}.safetensors"
            done = train(binary, step, data, rate, steps, save, "--device", device)
            # A run ends with the first loss that is not finite, with exit code 1.
            if done.code not in (0, 1):
                problems.append(f"{form}, {device}: exit code {done.code}: {' '.join(done.stderr.split())[-400:]}")
                break
            found[device] = (losses(save), done.code)
        if len(found) < 2:
            continue
        (cpu, cpu_code), (cuda, cuda_code) = found["cpu"], found["cuda"]
        if cpu_code != cuda_code or abs(len(cpu) - len(cuda)) > (1 if cpu_code else 0):
            problems.append(f"{form}: exit code {cuda_code} after {len(cuda)} losses, on the CPU {cpu_code} after {len(cpu)}")
            continue
        far = apart(cpu, cuda)
        if with_spread:
            *runs, control = changed_runs(binary, step, data, rate, work, COMPARED + 1, steps)
            device, fourth = (spreads(cpu, run, runs, LEAST[form]) for run in (cuda, control))
            print(
                f"{name:20} {form:10} {len(cpu):3} losses, {cpu[0]:.4f} to {cpu[-1]:.4f}, at most {far:.1e} apart: {(device > 1).sum():2} "
                f"beyond the spread of {COMPARED} changed runs, at most {device.max():4.2f} times; of a fourth {(fourth > 1).sum():2}, "
                f"{fourth.max():4.2f} times",
                flush=True,
            )
            if not device.max() <= PERMITTED:
                at = int(np.argmax(device))
                problems.append(f"{form}: loss {at} is {cuda[at]}, on the CPU {cpu[at]}, {device[at]:.2f} times the spread of changed runs")
            continue
        bound = permitted if far <= permitted else max(permitted, 2 * spread(binary, step, data, rate, cpu, work))
        print(f"{name:20} {form:10} {len(cpu):2} losses, {cpu[0]:.4f} to {cpu[-1]:.4f}, at most {far:.1e} apart, permitted {bound:.1e}")
        if not far <= bound:
            problems.append(f"{form}: losses {cuda} instead of {cpu}")
    if name == "mlp" and not with_spread:
        problems += resumed(binary, work / "mlp.fp16.onnx", data, work)
    return problems


def resumed(binary: str, step: Path, data: Path, work: Path) -> list[str]:
    """The problems of a run that is resumed."""
    whole, half, rest = (work / f"{name}.safetensors" for name in ("whole", "half", "rest"))
    train(binary, step, data, 1e-3, STEPS, whole, "--device", "cuda")
    first = train(binary, step, data, 1e-3, STEPS // 2, half, "--device", "cuda")
    command = [binary, "train", str(step), "--resume", str(half), "--data", str(data), "--steps", str(STEPS)]
    second = measure.run([*command, "--save", str(rest), "--force", "--device", "cuda", "--no-shuffle", "--lr", "1e-3"], TIMEOUT)
    if first.code or second.code:
        return [f"resumed: exit codes {first.code} and {second.code}: {' '.join((first.stderr + second.stderr).split())[-400:]}"]
    problems = [] if whole.read_bytes() == rest.read_bytes() else ["resumed: other bytes than a run without a stop"]
    # The checkpoint has the algorithms; a run with others says so once.
    with safe_open(half, framework="numpy") as file:
        record = json.loads((file.metadata() or {}).get("ampc.algorithms", "{}"))
    if not record.get("device", {}).get("device") or not any("products" in name for name in record.get("algorithms", {})):
        problems.append(f"resumed: a checkpoint without device and algorithms: {record}")
    if "train.algorithms" in second.stderr:
        problems.append(f"resumed: a warning of equal algorithms: {second.stderr}")
    other = measure.run([*command, "--save", str(rest), "--force", "--device", "cpu", "--no-shuffle", "--lr", "1e-3"], TIMEOUT)
    if other.code or other.stderr.count("train.algorithms") != 1:
        problems.append(f"resumed on the CPU: exit code {other.code}, and expected a warning of algorithms: {other.stderr}")
    return problems


if __name__ == "__main__":
    own = ArgumentParser(add_help=False)
    own.add_argument("--steps", type=int, default=STEPS)
    own.add_argument("--spread", action="store_true")
    options, rest = own.parse_known_args()
    sys.argv[1:] = rest
    sys.exit(ampc.judge_models(__doc__, "train", partial(judge, steps=options.steps, with_spread=options.spread), beside="oracle.npz"))
