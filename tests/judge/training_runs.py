"""Runs of `ampc train`: against the stored curves of torch, in ONNX Runtime, and with other numbers of threads.

Of each model of train/ with stored losses, a step in fp32 is trained with for 20 steps, for SGD and for Adam; the losses of
its log are judged as step_curves.py judges those of ONNX Runtime. Then a step in fp16, whose loss scale begins too high, so
that steps are skipped: it is trained with in one thread and in two, which give the same bytes, and its emulated twin is
trained with in ONNX Runtime for 100 steps.

Both runtimes round every result to fp16, but sum products in another order, so that a result that lies between two numbers
of fp16 may become either, and losses drift apart: by at most 0.3 % of the first loss in 100 steps of the models here. They
may be 2 % of it apart.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from safetensors.numpy import load_file

import ampc
import measure
from step_curves import OPTIMIZERS, REFUSED, compare, make

LOW_STEPS = 100
# Those with few enough operations for 100 steps in two runtimes.
LOW = ("mlp", "conv1d3d", "nanogpt", "resnet18_cifar", "unet")
SCALER = "ampc:init=16777216"
# Its loss of 8 images is chaotic: in ONNX Runtime, weights that are changed by 1e-7 of themselves move the seventh loss by
# 5e-5 or by 4e-3, or not at all, by seed. Up to the sixth, any order of sums that leaves the second loss alone is near.
STEPS = {"resnet50": 6}


def train(binary: str, step: Path, data: Path, steps: int, rate: float, save: Path, *options: str) -> measure.Run:
    """`ampc train STEP --state STATE --data DATA --steps N --lr RATE --save SAVE --log LOG OPTIONS`."""
    command = [binary, "train", str(step), "--state", str(step.with_suffix(".safetensors")), "--data", str(data)]
    command += ["--steps", str(steps), "--lr", str(rate), "--save", str(save), "--log", str(save.with_suffix(".jsonl"))]
    return measure.run([*command, "--force", "--no-shuffle", *options], 600)


def records(save: Path) -> list[dict]:
    """The steps of the log beside a state."""
    lines = [json.loads(line) for line in save.with_suffix(".jsonl").read_text().splitlines()]
    return [line for line in lines if "loss" in line]


def losses(save: Path) -> np.ndarray:
    return np.array([float(record["loss"]) for record in records(save)])


def curves(binary: str, name: str, model: Path, oracle: dict, data: Path, work: Path) -> list[str]:
    problems = []
    for optimizer, (spelling, rate) in OPTIMIZERS.items():
        step = work / f"{name}.{optimizer}.onnx"
        made = make(binary, model, step, "--fp32", "--loss", "output:loss", "--optimizer", spelling)
        if made.code != 0:
            problems.append(f"{optimizer}: exit code {made.code}: {made.stderr.strip()}")
            continue
        count = len(oracle[f"losses_{optimizer}64"])
        done = train(binary, step, data, min(count, STEPS.get(name, count)), rate, work / f"{name}.saved.safetensors")
        found = losses(work / f"{name}.saved.safetensors") if done.code in (0, 1) else np.array([])
        diverged = "train::diverged" in done.stderr
        if done.code != 0 and not diverged:
            problems.append(f"{optimizer}: exit code {done.code}: {done.stderr.strip()}")
            continue
        # A run ends with the first loss that is NaN, as all later ones would be.
        rest = np.full(count - len(found) if diverged else 0, np.nan)
        problems += compare(name, optimizer, np.concatenate([found, rest]), oracle)
    return problems


def emulated(step: Path, feeds: dict, rate: float) -> np.ndarray:
    """The losses of a step in ONNX Runtime, on the same data."""
    session = onnxruntime.InferenceSession(step, providers=["CPUExecutionProvider"])
    state = load_file(step.with_suffix(".safetensors"))
    names = [output.name for output in session.get_outputs()]
    given = {i.name for i in session.get_inputs()}
    data = {key: value for key, value in feeds.items() if key in given}
    found = []
    for _ in range(LOW_STEPS):
        out = dict(zip(names, session.run(None, {**data, **state, "lr": np.array(rate, np.float32)})))
        found.append(out["loss"].item())
        state = {key: np.asarray(out[f"{key}_next"]) for key in state}
    return np.array(found)


def low(binary: str, name: str, model: Path, feeds: dict, data: Path, work: Path) -> list[str]:
    rate = 1e-3
    options = ("--loss", "output:loss", "--optimizer", "adamw", "--scaler", SCALER)
    steps = {emit: work / f"{name}.{emit}.onnx" for emit in ("onnx", "emulated")}
    for emit, step in steps.items():
        made = make(binary, model, step, "--emit", emit, *options)
        if made.code != 0:
            return [f"fp16: exit code {made.code}: {made.stderr.strip()}"]
    saves = [work / f"{name}.{threads}.safetensors" for threads in (1, 2)]
    for threads, save in enumerate(saves, 1):
        done = train(binary, steps["onnx"], data, LOW_STEPS, rate, save, "--threads", str(threads))
        if done.code != 0:
            return [f"fp16: exit code {done.code}: {done.stderr.strip()}"]
    problems = []
    if saves[0].read_bytes() != saves[1].read_bytes():
        problems.append("fp16: other bytes with two threads than with one")
    shown = re.search(r"^low +(\d+) of (\d+) nodes", done.stderr, re.M)
    skipped = re.search(r"^skipped +(\d+) of", done.stderr, re.M)
    if not shown or not skipped or int(shown[1]) == 0:
        return problems + [f"the summary does not say what is low and skipped: {done.stderr}"]
    ours, theirs = losses(saves[0]), emulated(steps["emulated"], feeds, rate)
    apart = np.abs(ours - theirs).max() / abs(ours[0])
    print(
        f"{name:20} fp16  {LOW_STEPS} losses, {ours[0]:.4f} to {ours[-1]:.4f}; ONNX Runtime at most "
        f"{apart:.1e} of the first apart; {shown[1]} of {shown[2]} nodes low, {skipped[1]} steps skipped"
    )
    if not apart <= 0.02:
        problems.append(f"fp16: ONNX Runtime's losses are up to {apart:.1e} of the first loss apart")
    if int(skipped[1]) == 0:
        problems.append("fp16: no step was skipped, with a loss scale that is too high")
    return problems


def judge(binary: str, model: Path, work: Path) -> list[str]:
    name = model.parent.name
    if name in REFUSED:
        return []
    stored = np.load(model.parent / "oracle.npz")
    oracle = {key: stored[key] for key in stored.files}
    feeds = {key.removeprefix("in_"): value for key, value in oracle.items() if key.startswith("in_")}
    data = work / f"{name}.npz"
    np.savez(data, **feeds)
    options = [] if name not in LOW else low(binary, name, model, feeds, data, work)
    return curves(binary, name, model, oracle, data, work) + options


if __name__ == "__main__":
    sys.exit(ampc.judge_models(__doc__, "train", judge, beside="oracle.npz"))
