"""Training in mixed precision against references with the rounding of CUDA autocast, run by ONNX Runtime.

    mixed_training.py --corpus DIR --ampc BIN [--all]

`ampc train-step --emit emulated` makes a step of each model of oracles/mixed, with policy `torch` and the settings of the
reference; ONNX Runtime runs it 300 times. Compared with the runs `emu_cuda_fp16_s16`, `emu_cuda_fp16_s24` (loss scales that
begin at 2^16 and 2^24) and `emu_cuda_bf16`, by what the reference says of its own noise:

- the loss of the first step within 1e-4 of itself;
- scale, skipped steps and count of good steps the same, up to 10 steps before the reference's own trace depends on the order
  of sums, and the first 9 steps always;
- losses within 3 times the spread of the reference up to each of its horizons before that, and within 1e-4 of the first loss
  besides: a GELU that is written out rounds five times where the reference rounds once;
- the mean of the last 8 losses within a factor of 2.

And `mlp_small_grad` without a loss scale ends at more than 4 times the loss that it ends at with one. Without `--all` one
run of each model: the one that begins at 2^24, with AdamW.
"""

from __future__ import annotations

import json
import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import onnxruntime
from safetensors.numpy import load_file

import ampc
from step_curves import make

onnxruntime.set_default_logger_severity(3)
VARIANTS = ("emu_cuda_fp16_s24", "emu_cuda_fp16_s16", "emu_cuda_bf16")
# Overflows of these steps are certain, whatever the order of sums.
EARLY = 9


def optimizer(kind: str, settings: dict) -> str:
    """The reference's optimizer as the command line spells it."""
    if kind == "sgd":
        nesterov = int(settings.get("nesterov", False))
        return f"sgd:momentum={settings['momentum']},nesterov={nesterov},weight_decay={settings['weight_decay']}"
    beta1, beta2 = settings["betas"]
    return f"adamw:beta1={beta1},beta2={beta2},eps={settings['eps']},weight_decay={settings['weight_decay']}"


def run(binary: str, folder: Path, name: str, kind: str, variant: str, work: Path, scaler: str | None = None) -> dict:
    """Losses, scales, skipped steps and counts of good steps, step by step."""
    about, data = json.loads((folder / f"{name}.json").read_text()), np.load(folder / f"{name}.npz")
    settings = about["optimizers"][kind]
    options = ["--loss", "output:loss", "--optimizer", optimizer(kind, settings), "--emit", "emulated", "--policy", "torch"]
    if variant.startswith("emu_cuda_fp16"):
        start = 2 ** int(variant[-2:])
        scaler = scaler or f"torch:init={start},interval={about['growth_interval']}"
        options += ["--to", "fp16", "--scaler", scaler]
    else:
        options += ["--to", "bf16", "--opset", "auto", "--scaler", "none"]
    if about["clip_global_norm"]:
        options += ["--clip-norm", str(about["clip_global_norm"])]
    step = work / "step.onnx"
    made = make(binary, folder / about["onnx"], step, *options)
    if made.code != 0:
        raise RuntimeError(f"exit code {made.code}: {made.stderr}")
    session = onnxruntime.InferenceSession(step, providers=["CPUExecutionProvider"])
    names, state = [o.name for o in session.get_outputs()], load_file(step.with_suffix(".safetensors"))
    rate, inputs = np.array(settings["lr"], np.float32), about["input_names"]
    found: dict[str, list[float]] = {"loss": [], "scale": [], "skipped": [], "good": []}
    for at in range(about["steps"]):
        batch = at % about["batches"]
        feeds = {inputs[0]: data["batch/x"][batch], inputs[1]: data["batch/t"][batch], "lr": rate}
        out = dict(zip(names, session.run(None, feeds | state)))
        found["loss"].append(out["loss"].item())
        found["scale"].append(state["loss_scale"].item() if "loss_scale" in state else 1.0)
        found["skipped"].append(out["found_inf"].item() if "found_inf" in out else 0.0)
        state = {key: np.asarray(out[f"{key}_next"]) for key in state}
        found["good"].append(state["good_steps"].item() if "good_steps" in state else 0)
    return {key: np.array(values) for key, values in found.items()}


def judge(binary: str, folder: Path, name: str, kind: str, variant: str, work: Path) -> list[str]:
    about, data = json.loads((folder / f"{name}.json").read_text()), np.load(folder / f"{name}.npz")
    got = run(binary, folder, name, kind, variant, work)
    want = {key: data[f"{kind}/{variant}/{key}"].astype(np.float64) for key in ("loss", "scale", "skipped")}
    noise = about["noise_floor_of_emu_cuda"].get(f"{kind}/{variant[-3:]}")
    problems, where = [], f"{name}, {kind}, {variant}"
    fixed = about["steps"]
    if noise:
        want["good"] = data[f"{kind}/{variant}/good"].astype(np.float64)
        fixed = noise["scale_trace_equal_until"]
        fixed = fixed if fixed == about["steps"] else max(EARLY, fixed - 10)
        for key in ("scale", "skipped", "good"):
            differs = np.nonzero(got[key][:fixed] != want[key][:fixed])[0]
            if len(differs):
                at = differs[0]
                problems.append(f"{where}: {key} of step {at} is {got[key][at]} instead of {want[key][at]}")
    first = want["loss"][0]
    off = np.abs(got["loss"] - want["loss"])
    if not off[0] <= 1e-4 * abs(first):
        problems.append(f"{where}: the first loss is {got['loss'][0]} instead of {first}")
    for horizon, spread in (noise["loss_spread_max_abs"] if noise else {}).items():
        worst = off[: int(horizon)].max()
        if int(horizon) <= fixed and not worst <= 3 * spread + 1e-4 * abs(first):
            problems.append(f"{where}: a loss of the first {horizon} is {worst:.2e} off, of {3 * spread:.2e}")
    last = got["loss"][-8:].mean() / want["loss"][-8:].mean()
    if not 0.5 <= last <= 2:
        problems.append(f"{where}: the last losses are {last:.2f} times the reference's")
    skipped = np.nonzero(got["skipped"])[0].tolist()
    print(f"{where:45} the same scale for {fixed} steps, first loss {off[0]:.1e} off, the first 50 at most {off[:50].max():.1e}, "
          f"the last 8 at {last:.3f} of the reference; skipped {skipped}")
    return problems


def main() -> int:
    parser = ArgumentParser(description=__doc__)
    ampc.add_arguments(parser, "train")
    parser.add_argument("--all", action="store_true", help="every optimizer and variant")
    args = parser.parse_args()
    ampc.require(parser, args)
    folder = args.corpus / "oracles" / "mixed"
    problems = []
    with tempfile.TemporaryDirectory() as work:
        for about in sorted(folder.glob("*.json")):
            for kind in ("adamw", "sgd") if args.all else ("adamw",):
                for variant in VARIANTS if args.all else VARIANTS[:1]:
                    problems += judge(args.ampc, folder, about.stem, kind, variant, Path(work))
        scaled = run(args.ampc, folder, "mlp_small_grad", "adamw", VARIANTS[1], Path(work))["loss"]
        alone = run(args.ampc, folder, "mlp_small_grad", "adamw", VARIANTS[1], Path(work), "none")["loss"]
        ratio = alone[-8:].mean() / scaled[-8:].mean()
        print(f"mlp_small_grad ends at {ratio:.1f} times the loss without a loss scale")
        if not ratio > 4:
            problems.append(f"mlp_small_grad without a loss scale ends at {ratio:.2f} times the loss only")
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
