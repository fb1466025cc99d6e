"""Training steps in fp32 against stored curves, run by ONNX Runtime.

For each model of train/ with stored losses, `ampc train-step --fp32` makes a step for SGD and for Adam; ONNX Runtime runs it
20 times from the state that comes with it. onnx.checker and strict inference accept the step, with the functions of ai.ampc
and with these inlined. The stored losses are those of torch in float32 and in float64. A loss may be
off the one in float64 by 10 times the most that torch in float32 is off it, and by 1e-5 of the first loss besides: two
implementations in float32 differ like that, and a ReLU whose operand is near 0 opens in one of them only.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
import onnxruntime
from safetensors.numpy import load_file

import ampc
import measure

onnxruntime.set_default_logger_severity(3)
OPTIMIZERS = {"sgd": ("sgd", 0.05), "adam": ("adam", 1e-3)}
REFUSED = {"lstm_cls": "LSTM", "rnn_cls": "RNN"}
# A deep network of 8 images whose loss is chaotic after some steps.
STEPS = {"resnet50": 10}


def make(binary: str, model: Path, step: Path, *options: str) -> measure.Run:
    """`ampc train-step MODEL -o STEP --state STATE OPTIONS`."""
    state = step.with_suffix(".safetensors")
    command = [binary, "train-step", str(model), "-o", str(step), "--state", str(state), "--force", "-q", *options]
    return measure.run(command, 120)


def run(step: Path, feeds: dict, rate: float, steps: int) -> np.ndarray:
    """The losses of some steps on the same data."""
    session = onnxruntime.InferenceSession(step, providers=["CPUExecutionProvider"])
    state = load_file(step.with_suffix(".safetensors"))
    names = [output.name for output in session.get_outputs()]
    given = {i.name for i in session.get_inputs()}
    data = {name: value for name, value in feeds.items() if name in given}
    losses = []
    for _ in range(steps):
        found = dict(zip(names, session.run(None, {**data, **state, "lr": np.array(rate, np.float32)})))
        losses.append(found["loss"].item())
        state = {name: np.asarray(found[f"{name}_next"]) for name in state}
    return np.array(losses)


def check(model: onnx.ModelProto) -> None:
    """What onnx itself says of a model: its checker, and inference that is strict."""
    onnx.checker.check_model(model, full_check=True)
    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)


def compare(name: str, optimizer: str, got: np.ndarray, oracle: dict) -> list[str]:
    """What is wrong with the losses of a model, which are judged against those that are stored."""
    problems = []
    want, torch32 = oracle[f"losses_{optimizer}64"][: len(got)], oracle[f"losses_{optimizer}"][: len(got)]
    finite = np.isfinite(torch32)
    until = len(got) if finite.all() else int(np.argmin(finite))
    off, noise = np.abs(got - want)[:until], np.abs(torch32 - want)[:until].max()
    worst, allowed = int(np.argmax(off)), 10 * noise + 1e-5 * abs(want[0])
    print(f"{name:20} {optimizer:5} {until:2} losses, at most {off.max():.1e} off ({noise:.1e} in torch)")
    if not (off <= allowed).all():
        problems.append(f"{optimizer}: loss {worst} is {got[worst]} instead of {want[worst]} +- {allowed:.1e}")
    if until < len(got) and np.isfinite(got[until:]).any():
        problems.append(f"{optimizer}: loss {until} is {got[until]} where it diverges")
    return problems


def judge(binary: str, model: Path, work: Path) -> list[str]:
    name, problems = model.parent.name, []
    oracle = np.load(model.parent / "oracle.npz")
    feeds = {key.removeprefix("in_"): oracle[key] for key in oracle.files if key.startswith("in_")}
    for optimizer, (spelling, rate) in OPTIMIZERS.items():
        step = work / f"{name}.{optimizer}.onnx"
        made = make(binary, model, step, "--fp32", "--loss", "output:loss", "--optimizer", spelling)
        if name in REFUSED:
            if made.code != 4 or REFUSED[name] not in made.stderr:
                problems.append(f"expected exit code 4 and an error that names {REFUSED[name]}: {made.stderr}")
            continue
        if made.code != 0:
            problems.append(f"{optimizer}: exit code {made.code}: {made.stderr.strip()}")
            continue
        check(onnx.load(step))
        check(onnx.inliner.inline_local_functions(onnx.load(step)))
        count = len(oracle[f"losses_{optimizer}64"])
        problems += compare(name, optimizer, run(step, feeds, rate, min(count, STEPS.get(name, count))), oracle)
    return problems


if __name__ == "__main__":
    sys.exit(ampc.judge_models(__doc__, "train", judge, beside="oracle.npz"))
