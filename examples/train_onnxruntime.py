"""Trains a model in mixed precision with stock ONNX Runtime: ampc makes the step, the runtime repeats it.

    python examples/train_onnxruntime.py MODEL.onnx [FOLDER]

The model is a classifier such as testdata/mlp.onnx: `x: f32[N, 32]` to ten probabilities. The step is emulated: on any
CPU it rounds to fp16 where a GPU would. Leave `--emit emulated` out for a step whose tensors are fp16.
"""

import os, subprocess, sys
from pathlib import Path

import numpy as np
import onnxruntime
from safetensors.numpy import load_file, save_file


def main(model, folder="."):
    step, state_file = Path(folder) / "step.onnx", Path(folder) / "state.safetensors"
    options = "--loss mse --optimizer adamw --clip-norm 1 --emit emulated --force --state".split()
    ampc = os.environ.get("AMPC_BIN", "ampc")
    subprocess.run([ampc, "train-step", model, "-o", step, *options, state_file], check=True)
    session = onnxruntime.InferenceSession(step, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    state = load_file(state_file)
    data = np.random.default_rng(0)
    teacher = data.normal(size=(32, 10))
    for i in range(301):
        x = data.normal(size=(64, 32)).astype(np.float32)
        target = np.eye(10, dtype=np.float32)[(x @ teacher).argmax(1)]
        feeds = {"x": x, "target": target, "lr": np.array(3e-3, np.float32)}
        out = dict(zip(names, session.run(None, feeds | state)))
        state = {name: np.asarray(out[f"{name}_next"]) for name in state}
        if i % 50 == 0:
            print(f"step {i}: loss {out['loss']:.4f}, found_inf {out['found_inf']:.0f}, scale {state['loss_scale']:.0f}")
    save_file(state, state_file)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    main(*sys.argv[1:])
