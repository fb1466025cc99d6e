"""Forward models as training steps: gradients against finite differences along random directions, steps in ONNX Runtime.

For each model of small/, `ampc opt` adds a loss that fits its outputs and the gradients of all parameters. These are compared
with the loss before and behind the parameters, along random directions in the space of all parameters together:

- Losses and gradients are computed in float64, by the CPU runtime of ampc: in float32 a difference of two losses has a noise
  of 1e-7 of the loss, which over a step of 1e-5 would be all that is seen.
- A direction is Gaussian, in units of the root mean square of each parameter, and each parameter's part is divided by the norm
  of its gradient in these units: so every parameter has a share of about 1 in the derivative and none hides behind another;
  one whose gradient is wrong by 1 % is 1e-2 off. Gradients below 1e-3 of the largest (some are 0 in theory, as that of what is
  added to all scores of a softmax) count as that much.
- A step moves no parameter by more than about 1e-5 of itself: the error of a central difference is of its square, the noise
  of losses in float64 (1e-16) over the change of the loss, mostly 1e-9. What is left are ReLUs and maxima that change sides
  within the step. So, where it is off, steps of 1e-6 and 1e-7 are tried, in which fewer do; a gradient that is wrong is off
  in all of them.

Derivatives may be off by 1e-5 of the root of the number of parameters, which their shares come to together; 2e-6 was found.

Gradients in float32 by ONNX Runtime, along the same directions, may be off by 1e-3 of it (1e-5 was found, the noise of a
gradient that is 1e-3 of the largest; a ReLU that opens in one of both only is more): so the file says what was meant.
The step that `ampc train-step` makes of the model, in fp16 where that is safe, passes onnx.checker and strict inference, and
ONNX Runtime runs it: the first loss is within 5e-3 of that in float64, some roundings of fp16, and every state comes back.

Operators without a gradient end both commands with one error that names a node of them, and exit code 4.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from safetensors.numpy import load_file

import ampc
import float64
import measure
from step_curves import make

onnxruntime.set_default_logger_severity(3)
TOLERANCE, TOLERANCE32, OF_LOSS = 1e-5, 1e-3, 5e-3
DIRECTIONS, STEPS = 2, (1e-5, 1e-6, 1e-7)
# Their operators have no gradient: the error names this one.
REFUSED = {"lstm_cls.dynamo": "LSTM", "lstm_cls.legacy": "LSTM", "rnn_cls.legacy": "RNN", "script_loop_if.legacy": "If"}
# By what models give; without one of these, the mean squared error of the first output.
LOSSES = {"logits": "cross-entropy", "mask": "bce-with-logits", "pooler_output": "mse:of=pooler_output"}
# A mask of zeros and ones is an initializer like others.
FREEZE = {"nanogpt.dynamo": "h.0.bias", "hot_nanogpt.dynamo": "h.0.bias"}


def targets(loss: str, prediction: np.ndarray) -> np.ndarray:
    """Targets for a prediction, the same whenever they are drawn."""
    data = np.random.default_rng(0)
    if loss == "cross-entropy":
        return data.integers(0, prediction.shape[-1], prediction.shape[:-1])
    if loss == "bce-with-logits":
        return data.uniform(size=prediction.shape).astype(np.float32)
    return (prediction + data.normal(size=prediction.shape)).astype(np.float32)


class Judged:
    """A model with its data, and what is made of it."""

    def __init__(self, binary: str, model: Path, work: Path) -> None:
        self.binary, self.model, self.work = binary, model, work
        self.name = model.name.removesuffix(".onnx")
        graph = onnx.load(model).graph
        names = [output.name for output in graph.output]
        self.loss = next((LOSSES[name] for name in names if name in LOSSES), "mse")
        stored = np.load(model.parent / "io.npz")
        self.feeds = {i.name: stored[f"in_{i.name}"] for i in graph.input}
        self.feeds["target"] = targets(self.loss, stored[f"out_{self.loss.partition('of=')[2] or names[0]}"])

    def opt(self, name: str, more: str = "") -> tuple[Path, measure.Run]:
        """The model with its loss, and with what more passes add."""
        output, freeze = self.work / f"{name}.onnx", FREEZE.get(self.name, "")
        passes = f'parameters{{freeze={freeze}}}, loss{{kind="{self.loss}"}}, expose-parameters{more}'
        return output, ampc.opt(self.binary, self.model, output, "--passes", passes, "--force", "-q")

    def train_step(self, loss: str) -> tuple[Path, measure.Run]:
        """The model as a training step."""
        output = self.work / "step.onnx"
        freeze = ["--freeze", FREEZE[self.name]] if self.name in FREEZE else []
        return output, make(self.binary, self.model, output, "--loss", loss, *freeze)

    def in_float64(self, model: Path, parameters: dict) -> dict:
        """What the CPU runtime computes of a model that is in float64."""
        found = float64.run(self.binary, model, {**float64.widened_feeds(self.feeds), **parameters})
        if "error" in found:
            raise RuntimeError(f"in float64: {found['error']}")
        return found


def in_onnxruntime(model: Path, values: dict, level: onnxruntime.GraphOptimizationLevel | None = None) -> dict:
    """What ONNX Runtime computes of a model, of which it takes the inputs that it has."""
    options = onnxruntime.SessionOptions()
    if level is not None:
        options.graph_optimization_level = level
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    given = {i.name for i in session.get_inputs()}
    found = session.run(None, {name: value for name, value in values.items() if name in given})
    return dict(zip((output.name for output in session.get_outputs()), found))


def refusal(run: measure.Run, operator: str) -> str | None:
    """What is wrong with a run that has to end with one error that names an operator."""
    text = " ".join(run.stderr.replace("\n  | ", " ").split())
    if run.code == 4 and f" x {operator} `" in text and text.count(" has no gradient: ") == 1:
        print(f"{'':28} refused: {text.partition(' x ')[2]}")
        return None
    return f"expected exit code 4 and one error that names {operator}, found {run.code}: {text}"


def direction(weights: dict, gradients: dict, seed: int) -> tuple[dict, float]:
    """A direction along which every parameter has a share of about 1 in the derivative, and how far to go along it to move a
    parameter by about itself."""
    data = np.random.default_rng(seed)
    size = {name: float(np.sqrt((weight**2).mean())) or 0.1 for name, weight in weights.items()}
    effect = {name: size[name] * float(np.linalg.norm(gradients[name])) for name in weights}
    least = 1e-3 * max(effect.values())
    effect = {name: max(value, least) for name, value in effect.items()}
    towards = {name: data.normal(size=weights[name].shape) * size[name] / effect[name] for name in weights}
    return towards, min(effect.values())


def along(gradients: dict, towards: dict) -> float:
    """The derivative along a direction by gradients."""
    return sum(float((gradients[name].astype(np.float64) * towards[name]).sum()) for name in towards)


def slope(loss: Callable[[float], float], h: float) -> float:
    """The derivative of a function at 0 by a central difference."""
    return (loss(h) - loss(-h)) / (2 * h)


def gradients_of(judged: Judged, made: Path) -> list[str]:
    """Problems of the gradients of a model."""
    onnx.checker.check_model(onnx.load(made), full_check=True)
    wide, forward = judged.work / "wide.onnx", judged.work / "forward.onnx"
    onnx.save(float64.widened(onnx.load(made)), wide)
    found = judged.in_float64(wide, {})
    gradients = {key.removesuffix(".grad"): value for key, value in found.items() if key.endswith(".grad")}
    narrow, run = judged.opt("narrow")
    if run.code != 0:
        return [f"without gradients: exit code {run.code}: {run.stderr}"]
    model = float64.widened(onnx.load(narrow))
    onnx.save(model, forward)
    weights = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer if i.name in gradients}
    in_float32 = in_onnxruntime(made, judged.feeds)
    in_float32 = {name: in_float32[f"{name}.grad"] for name in gradients}
    worst = worst32 = 0.0
    for seed in range(DIRECTIONS):
        towards, scale = direction(weights, gradients, seed)

        def loss(h: float) -> float:
            moved = {name: weight + h * towards[name] for name, weight in weights.items()}
            return float(judged.in_float64(forward, moved)["loss"])

        want, unit = along(gradients, towards), np.sqrt(len(gradients))
        off = np.inf
        for step in STEPS:
            off = min(off, abs(slope(loss, step * scale) - want) / unit)
            if off <= TOLERANCE:
                break
        # Of numpy, so that a NaN stays.
        worst, worst32 = np.maximum(worst, off), np.maximum(worst32, abs(along(in_float32, towards) - want) / unit)
    elements = sum(weight.size for weight in weights.values())
    print(f"{judged.name:28} {len(weights):3} parameters, {elements:5} elements: {worst:.1e} off, {worst32:.1e} in float32")
    problems = [f"derivatives are {worst:.1e} off"] if worst > TOLERANCE else []
    problems += [f"those in float32 are {worst32:.1e} off"] if not worst32 <= TOLERANCE32 else []
    return problems + step_of(judged, float(found["loss"]))


def step_of(judged: Judged, want: float) -> list[str]:
    """Problems of the training step of a model, whose loss in the beginning is known."""
    made, run = judged.train_step(judged.loss)
    if run.code != 0:
        return [f"train-step: exit code {run.code}: {run.stderr.strip()}"]
    onnx.checker.check_model(onnx.load(made), full_check=True)
    onnx.shape_inference.infer_shapes(onnx.load(made), check_type=True, strict_mode=True, data_prop=True)
    state = load_file(made.with_suffix(".safetensors"))
    found = in_onnxruntime(made, {**judged.feeds, **state, "lr": np.array(1e-3, np.float32)})
    loss = float(found["loss"])
    print(f"{'':28} step: loss {loss:.6g}, {abs(loss / want - 1):.1e} off; found_inf {float(found['found_inf']):.0f}")
    missing = sorted(name for name in state if f"{name}_next" not in found)
    problems = [f"states that do not come back: {missing}"] if missing else []
    return problems if abs(loss / want - 1) <= OF_LOSS else [*problems, f"the loss of the step is {loss}, not {want}"]


def judge(binary: str, model: Path, work: Path) -> list[str]:
    judged = Judged(binary, model, work)
    made, run = judged.opt("gradients", ", autodiff{outputs=gradients}")
    if judged.name in REFUSED:
        print(f"{judged.name:28} without gradients")
        runs = (run, judged.train_step(judged.loss)[1])
        return [problem for run in runs if (problem := refusal(run, REFUSED[judged.name]))]
    if run.code != 0:
        return [f"exit code {run.code}: {run.stderr.strip()}"]
    return gradients_of(judged, made)


if __name__ == "__main__":
    sys.exit(ampc.judge_models(__doc__, "small", judge))
