#!/usr/bin/env python3
"""Training steps that become forward models again.

For each model of small/ that a step can be made of, the CPU runtime takes two steps in fp16, with Adam. `ampc train-step
--export` writes the forward model with the weights of the state before each of them: onnx.checker accepts it, it has the
inputs and outputs of the model that the step was made of and nothing of ai.ampc, and the CPU runtime computes the outputs
that the step gave, bit for bit.

A model with BatchNormalization and Dropout in training mode is among the judge's own: its step drops the same elements in
ONNX Runtime as in the CPU runtime, other ones in the next step, and what is exported of it drops nothing and normalises by
the running statistics of the state. A step of it that is skipped keeps them in ONNX Runtime too.

    tests/judge/exported.py --corpus DIR --ampc target/release/ampc
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from safetensors.numpy import load_file, save_file

import ampc
import measure
from directional import REFUSED, Judged, in_onnxruntime
from step_curves import make

# A model that trains: what a dropout gives is an output, so that what it drops can be seen.
TRAINING = """module ir=10
opset ai.onnx=21

graph @main {
  input %x : f32[8, 16]
  const %w : f32[16, 32] = random(1)
  const %scale : f32[32] = random(2)
  const %bias : f32[32] = random(3)
  const %mean : f32[32] = random(4)
  const %var : f32[32] = VARIANCES
  const %v : f32[32, 4] = random(6)
  const %true : bool = [true]
  const %ratio : f32 = [0.25]
  %h = MatMul(%x, %w) : f32[8, 32] @product
  %n, %mean_next, %var_next = BatchNormalization(%h, %scale, %bias, %mean, %var) {training_mode=1} : f32[8, 32], f32[32], f32[32] @norm
  %d = Dropout(%n, %ratio, %true) : f32[8, 32] @drop
  %y = MatMul(%d, %v) : f32[8, 4] @last
  output %y
  output %d
}
""".replace("VARIANCES", str([1 + i / 32 for i in range(32)]))


def run(binary: str, model: Path, values: dict, work: Path) -> dict:
    """What the CPU runtime computes of a model, of which it takes the inputs that it has."""
    given, out = work / "given.npz", work / "out.npz"
    names = {i.name for i in onnx.load(model, load_external_data=False).graph.input}
    np.savez(given, **{name: value for name, value in values.items() if name in names})
    out.unlink(missing_ok=True)
    done = ampc.execute(binary, model, "--inputs", str(given), "--outputs", str(out), "-q")
    if done.code != 0:
        raise RuntimeError(f"{model.name}: exit code {done.code}: {done.stderr}")
    with np.load(out) as arrays:
        return {name: arrays[name] for name in arrays.files}


def export(binary: str, step: Path, state: dict, output: Path) -> measure.Run:
    """The forward model of a step with a state."""
    stored = output.with_suffix(".safetensors")
    # `ascontiguousarray` makes lists of scalars.
    save_file({name: np.ascontiguousarray(value).reshape(value.shape) for name, value in state.items()}, stored)
    command = [binary, "train-step", "--export", str(step), "--state", str(stored), "-o", str(output), "--force", "-q"]
    return measure.run(command, 60)


def interface(model: onnx.ModelProto) -> tuple[list[str], list[str]]:
    given = {i.name for i in model.graph.initializer}
    return [i.name for i in model.graph.input if i.name not in given], [o.name for o in model.graph.output]


def shell(source: onnx.ModelProto, made: onnx.ModelProto) -> list[str]:
    """Problems of what is around the nodes of an exported model."""
    onnx.checker.check_model(made, full_check=True)
    problems = []
    if interface(made) != interface(source):
        problems.append(f"it has {interface(made)} instead of {interface(source)}")
    if any("ampc" in opset.domain for opset in made.opset_import) or made.functions:
        problems.append("something of ai.ampc is left")
    if any(entry.key.startswith("ampc.") for entry in made.metadata_props if entry.key != "ampc.provenance"):
        problems.append("its metadata says that it is a step")
    return problems


def judge(binary: str, model: Path, work: Path) -> list[str]:
    """Problems of a model's steps, exported."""
    judged = Judged(binary, model, work)
    if judged.name in REFUSED:
        return []
    step, made = judged.train_step(judged.loss)
    if made.code != 0:
        return [f"train-step: exit code {made.code}: {made.stderr.strip()}"]
    source, problems = onnx.load(model), []
    outputs = interface(source)[1]
    state = load_file(step.with_suffix(".safetensors"))
    for number in range(2):
        forward = work / "forward.onnx"
        written = export(binary, step, state, forward)
        if written.code != 0:
            return [f"export: exit code {written.code}: {written.stderr.strip()}"]
        problems += shell(source, onnx.load(forward))
        given = {**judged.feeds, **state, "lr": np.array(1e-3, np.float32)}
        found, want = run(binary, forward, judged.feeds, work), run(binary, step, given, work)
        differ = [name for name in outputs if found[name].tobytes() != want[name].tobytes()]
        if differ:
            problems.append(f"step {number}: {differ} are not those of the step")
        state = {name: want[f"{name}_next"] for name in state}
    print(f"{judged.name:28} {len(outputs)} outputs of 2 steps")
    return problems


def judge_training(binary: str, work: Path) -> list[str]:
    """Problems of the model that trains."""
    source, step = work / "training.ir", work / "training.onnx"
    source.write_text(TRAINING)
    made = make(binary, source, step, "--fp32", "--loss", "mse", "--optimizer", "sgd", "--dropout-seed", "11")
    if made.code != 0:
        return [f"exit code {made.code}: {made.stderr.strip()}"]
    data, problems, dropped = np.random.default_rng(0), [], []
    state = load_file(step.with_suffix(".safetensors"))
    x, target = data.normal(size=(8, 16)).astype(np.float32), data.normal(size=(8, 4)).astype(np.float32)
    for _ in range(2):
        given = {"x": x, "target": target, "lr": np.array(0.1, np.float32), **state}
        here, there = run(binary, step, given, work), in_onnxruntime(step, given)
        dropped.append(here["d"] == 0)
        if (dropped[-1] != (there["d"] == 0)).any():
            problems.append("ONNX Runtime drops other elements")
        # Sums of 16 products in another order.
        if not np.allclose(here["w_next"], there["w_next"], rtol=1e-5, atol=1e-6):
            problems.append("ONNX Runtime computes other weights")
        state = {name: here[f"{name}_next"] for name in state}
    # 256 elements, each dropped with a probability of 1/4: 64 with a standard deviation of 7.
    if not 64 - 35 <= dropped[0].sum() <= 64 + 35 or (dropped[0] == dropped[1]).all():
        problems.append(f"{dropped[0].sum()} and {dropped[1].sum()} of 256 elements are dropped, a quarter was asked for")
    forward = work / "forward.onnx"
    written = export(binary, step, state, forward)
    if written.code != 0:
        return [*problems, f"export: exit code {written.code}: {written.stderr.strip()}"]
    found = run(binary, forward, {"x": x}, work)
    h = x.astype(np.float64) @ state["w"].astype(np.float64)
    mean, var = (state[name].astype(np.float64) for name in ("mean", "var") if name in state)
    want = (h - mean) / np.sqrt(var + 1e-5) * state["scale"] + state["bias"]
    if not np.allclose(found["d"], want, rtol=1e-4, atol=1e-5):
        problems.append("what is exported normalises by something else than its running statistics, or drops something")
    return problems


def judge_skip(binary: str, work: Path) -> list[str]:
    """Problems of a step of that model that is skipped, in ONNX Runtime: its BatchNormalization computes the next running
    statistics in the memory of those that it reads."""
    source, step = work / "training.ir", work / "skip.onnx"
    source.write_text(TRAINING)
    made = make(binary, source, step, "--fp32", "--loss", "mse", "--optimizer", "sgd", "--scaler", "torch:init=1024")
    if made.code != 0:
        return [f"exit code {made.code}: {made.stderr.strip()}"]
    data, state = np.random.default_rng(0), load_file(step.with_suffix(".safetensors"))
    given = {"x": data.normal(size=(8, 16)), "target": np.full((8, 4), np.inf), "lr": np.array(0.1)}
    given = {name: value.astype(np.float32) for name, value in given.items()} | state
    before = {name: value.tobytes() for name, value in given.items()}
    problems = []
    for level in (onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL):
        found = in_onnxruntime(step, given, level)
        changed = {name for name in state if found[f"{name}_next"].tobytes() != before[name]}
        if found["found_inf"] != 1 or changed - {"loss_scale", "dropout_offset"}:
            problems.append(f"a step that is skipped changes {sorted(changed)}")
        overwritten = [name for name, value in given.items() if value.tobytes() != before[name]]
        if overwritten:
            problems.append(f"ONNX Runtime writes to its inputs {overwritten}")
    return problems


if __name__ == "__main__":
    own = {"a model in training mode": judge_training, "a step that is skipped": judge_skip}
    sys.exit(ampc.judge_models(__doc__, "small", judge, own=own))
