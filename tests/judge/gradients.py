"""Gradients of models with stored float64 autograd, computed by ONNX Runtime.

For each model of train/, `ampc opt` makes the model whose outputs are the gradients of its parameters; ONNX Runtime runs
it on the stored inputs. A gradient g may be off the stored one g64 by 1e-4 of the largest element of all gradients of the
model: some gradients are 0 in theory, and relative errors of those say nothing.

Where a ReLU's operand is nearer to 0 than float32 can tell, the gate opens in one implementation only, and gradients differ
by what comes through it. So a model that is farther off is judged once more in float64, by the CPU runtime of ampc, since
ONNX Runtime has no convolutions in it: there it may be off by 1e-6.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import ampc
import float64

# Gradients in float64 are stored in float32.
TOLERANCE64 = 1e-6
PASSES = "parameters{loss=loss}, expose-parameters, autodiff{outputs=gradients}"
onnxruntime.set_default_logger_severity(3)
TOLERANCE = 1e-4
# Their operators have no gradient: the error names the first of these.
REFUSED = {"lstm_cls": "LSTM", "rnn_cls": "RNN"}


def judge(binary: str, model: Path, work: Path) -> list[str]:
    name = model.parent.name
    output = work / f"{name}.onnx"
    made = ampc.opt(binary, model, output, "--passes", PASSES, "--force", "-q")
    if name in REFUSED:
        if made.code == 4 and REFUSED[name] in made.stderr:
            print(f"{name:20} refused: {made.stderr.splitlines()[0]}")
            return []
        return [f"expected exit code 4 and an error that names {REFUSED[name]}, found {made.code}: {made.stderr}"]
    if made.code != 0:
        return [f"exit code {made.code}: {made.stderr.strip()}"]
    onnx.checker.check_model(onnx.load(output), full_check=True)
    session = onnxruntime.InferenceSession(output, providers=["CPUExecutionProvider"])
    oracle = np.load(model.parent / "oracle.npz")
    feeds = {i.name: oracle[f"in_{i.name}"] for i in session.get_inputs() if f"in_{i.name}" in oracle}
    found = dict(zip((o.name for o in session.get_outputs()), session.run(None, feeds)))
    # A weight that stands for another one, as an embedding that is the last layer too, has its gradient in that one's.
    initializers = {i.name for i in onnx.load(model).graph.initializer}
    wanted = {key.removeprefix("grad64_"): oracle[key] for key in oracle.files if key.startswith("grad64_")}
    wanted = {parameter: want for parameter, want in wanted.items() if parameter in initializers}
    largest = max(float(np.abs(want).max()) for want in wanted.values())
    missing = sorted(parameter for parameter in wanted if f"{parameter}.grad" not in found)
    more = sorted(key for key in found if key.endswith(".grad") and key.removesuffix(".grad") not in wanted)
    if missing or more:
        return [f"without gradient: {missing}; with one that is not wanted: {more}"]
    off = {p: float(np.abs(found[f"{p}.grad"].astype(np.float64) - want).max()) for p, want in wanted.items()}
    at = max(off, key=lambda parameter: np.nan_to_num(off[parameter], nan=np.inf))
    print(f"{name:20} {len(wanted):3} gradients, at most {off[at] / largest:.1e} of the largest element off (`{at}`)")
    if off[at] <= TOLERANCE * largest:
        return []
    wide = work / "wide.onnx"
    onnx.save(float64.widened(onnx.load(output)), wide)
    found = float64.run(binary, wide, float64.widened_feeds(feeds))
    if "error" in found:
        return [f"in float64: {found['error']}"]
    worst = np.max([np.abs(found[f"{p}.grad"] - want).max() for p, want in wanted.items()])
    print(f"{'':20} in float64 at most {worst / largest:.1e} of it off")
    if worst <= TOLERANCE64 * largest:
        return []
    return [f"{worst / largest:.2e} of the largest element off in float64"]


if __name__ == "__main__":
    sys.exit(ampc.judge_models(__doc__, "train", judge, beside="oracle.npz"))
