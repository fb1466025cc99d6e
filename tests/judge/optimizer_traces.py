#!/usr/bin/env python3
"""Optimizers over hundreds of steps, against traces of torch.optim and of the formula of Hugging Face's transformers.

Every case of `oracles/optimizer_traces.json` that is of an optimizer of ai.ampc runs in ONNX Runtime and in the CPU
runtime: a Scan over its steps with a check of all gradients, the factor of a clip where it has one, and the optimizer
for each of four weights. States are within the distance of the trace's own float32 from its float64; which steps are
skipped and the count of steps are exact, and a step that is skipped changes no bit of a state.

    tests/judge/optimizer_traces.py --corpus DIR --ampc target/release/ampc
    tests/judge/optimizer_traces.py --corpus DIR --sample FOLDER    # a sample for testdata/corpus
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import numpy as np

from training import Both

OPSETS = (17, 21, 26)
OPERATORS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "adamw_hf": "AdamW"}
CLIP_EPSILON = 1e-6
# Of a norm: a sum of 32 squares in f32, and its root.
NORM_BOUND = 1e-6
# Of a sample, the steps and cases.
SAMPLED_STEPS = 25
SAMPLED = (
    "sgd/scaled16_clip",
    "sgd_mom_damp_wd/skip",
    "sgd_nesterov_wd/big_clip_skip",
    "adam_l2/scaled16_clip",
    "adam/tiny",
    "adamw/schedule",
    "adamw_eps/skip",
    "adamw_hf/scaled16",
)

Arrays = dict[str, np.ndarray]


def number(value: float) -> str:
    return f"tensor(f64 = {float(value)!r})"


def momenta(case: dict[str, Any]) -> list[str]:
    """The states of an optimizer beside the weights."""
    if case["opt"] == "sgd":
        return ["v"] if case.get("momentum") else []
    return ["m", "v"]


def attributes(case: dict[str, Any]) -> str:
    attrs: dict[str, str] = {"weight_decay": number(case.get("weight_decay", 0.0))}
    if case["opt"] == "sgd":
        attrs |= {name: number(case.get(name, 0.0)) for name in ("dampening", "momentum")}
        attrs |= {"nesterov": str(int(case.get("nesterov", False))), "on_overflow": '"skip"'}
    else:
        attrs |= {"beta1": number(case["betas"][0]), "beta2": number(case["betas"][1])}
        attrs |= {"bias_correction": "1", "epsilon": number(case["eps"])}
    if OPERATORS[case["opt"]] == "AdamW":
        attrs["mode"] = '"hf"' if case["opt"] == "adamw_hf" else '"torch"'
    return ", ".join(f"{name}={value}" for name, value in sorted(attrs.items()))


def model(case: dict[str, Any], shapes: dict[str, list[int]], opset: int) -> str:
    """A Scan over steps: what is skipped besides what GradCheck finds comes with the step."""
    grad = "f16" if case["grads"] == "scaled16" else "f32"
    ty = lambda dtype, dims: f"{dtype}[{', '.join(map(str, dims))}]" if dims else dtype
    own = momenta(case)
    states = {"step": "i64"} | {f"{s}_{p}": ty("f32", dims) for s in ("w", *own) for p, dims in shapes.items()}
    rows = {"inv_scale": ("f32", []), "lr": ("f32", []), "skip": ("f32", [])}
    rows |= {f"g_{p}": (grad, dims) for p, dims in shapes.items()}
    kept = {**states, "norm": "f32", "found": "f32"}
    lines = [f"module ir=10\nopset ai.onnx={opset}, ai.ampc=1\n\ngraph @main {{"]
    lines += [f"  input %{name}_0 : {state}" for name, state in states.items()]
    lines += [f"  input %{name} : {ty(dtype, ['T', *dims])}" for name, (dtype, dims) in rows.items()]
    results = [f"%{name}_last" for name in states] + [f"%{name}_all" for name in kept]
    operands = [f"%{name}_0" for name in states] + [f"%{name}" for name in rows]
    lines += [f"  {', '.join(results)} = Scan({', '.join(operands)}) {{", f"    num_scan_inputs={len(rows)},"]
    lines.append("    body: graph {")
    lines += [f"      input %{name} : {state}" for name, state in states.items()]
    lines += [f"      input %{name}_row : {ty(dtype, dims)}" for name, (dtype, dims) in rows.items()]
    grads = ", ".join(f"%g_{p}_row" for p in shapes)
    clip = f"epsilon={number(CLIP_EPSILON)}, max_norm={number(case.get('clip', float('inf')))}"
    lines += [
        f"      %found_inf, %sumsq = ai.ampc::GradCheck(%inv_scale_row, {grads}) : f32, f32",
        "      %found_row = Max(%found_inf, %skip_row) : f32",
        f"      %clipped, %norm_row = ai.ampc::ClipCoef(%sumsq, %inv_scale_row) {{{clip}}} : f32, f32",
    ]
    mult = "%clipped" if "clip" in case else "%inv_scale_row"
    for p, dims in shapes.items():
        scalars = f"%lr_row, {mult}, %step, %found_row"
        held = ", ".join(f"%{s}_{p}" for s in own)
        if case["opt"] == "sgd":
            operands = f"%w_{p}, %g_{p}_row, {scalars}{', ' if held else ''}{held}"
        else:
            operands = f"%w_{p}, %g_{p}_row, {held}, {scalars}"
        nexts = ", ".join(f"%{s}_{p}_next" for s in ("w", *own))
        types = ", ".join([ty("f32", dims)] * (1 + len(own)))
        lines.append(f"      {nexts} = ai.ampc::{OPERATORS[case['opt']]}({operands}) {{{attributes(case)}}} : {types}")
    lines += [
        "      %none = Constant() {value=tensor(f32 = 0.0)} : f32",
        "      %proceeds = Equal(%found_row, %none) : bool",
        "      %counts = Cast(%proceeds) {to=7} : i64",
        "      %step_next = Add(%step, %counts) : i64",
    ]
    lines += [f"      %{name}_kept = Identity(%{name}_next) : {state}" for name, state in states.items()]
    lines += [f"      %{name}_kept = Identity(%{name}_row) : f32" for name in ("norm", "found")]
    lines += [f"      output %{name}_next" for name in states] + [f"      output %{name}_kept" for name in kept]
    stacked = lambda text: text.replace("[", "[T, ") if "[" in text else f"{text}[T]"
    types = [*states.values(), *map(stacked, kept.values())]
    lines += ["    }", f"  }} : {', '.join(types)}"]
    lines += [f"  output %{name}_all : {stacked(dtype)}" for name, dtype in kept.items()]
    return "\n".join([*lines, "}", ""])


def feeds_of(case: dict[str, Any], shapes: dict[str, list[int]], data: Arrays) -> Arrays:
    n = len(data["flags/skip"])
    scale = data["grads/scaled16/scale"] if case["grads"] == "scaled16" else np.ones(n, np.float32)
    factor = data["lr_factor"].astype(np.float64) if case.get("lr_schedule") else np.ones(n)
    feeds = {
        "step_0": np.array(0, np.int64),
        "inv_scale": (1.0 / scale.astype(np.float64)).astype(np.float32),
        "lr": (case["lr"] * factor).astype(np.float32),
        "skip": (data["flags/skip"] if case.get("skip") else np.zeros(n)).astype(np.float32),
    }
    for p, dims in shapes.items():
        feeds[f"g_{p}"] = data[f"grads/{case['grads']}/{p}"]
        feeds[f"w_{p}_0"] = data[f"p0/{p}"]
        feeds |= {f"{s}_{p}_0": np.zeros(dims, np.float32) for s in momenta(case)}
    return feeds


def distance(found: np.ndarray, want: np.ndarray) -> float:
    """Of the largest value of what is wanted."""
    if not np.isfinite(found).all():
        return float("inf")
    return float(np.abs(found.astype(np.float64) - want).max() / max(np.abs(want).max(), 1e-300))


def judge(binary: str, folder: Path, name: str, case: dict[str, Any], data: Arrays, opset: int) -> list[str]:
    shapes = {p: list(data[f"p0/{p}"].shape) for p in "abcs"}
    both = Both(binary, model(case, shapes, opset), folder)
    feeds = feeds_of(case, shapes, data)
    selected = data["selected_steps"]
    expected_found = feeds["skip"] != 0
    if case["grads"] == "scaled16":
        expected_found = expected_found | (data["grads/scaled16/found_inf"] != 0)
    problems = []
    outputs = [output.name.removesuffix("_all") for output in both.session.get_outputs()]
    for who, results in (("ONNX Runtime", both.peer(feeds)), ("the CPU runtime", both.own(feeds))):
        found = dict(zip(outputs, results, strict=True))
        if not np.array_equal(found["found"] != 0, expected_found):
            problems.append(f"{who}: other steps are skipped")
        if not np.array_equal(found["step"][selected], data[f"{name}/step"]):
            problems.append(f"{who}: the count of steps differs")
        for state, stored, margin in (("w", "p", ""), ("m", "m", "_m"), ("v", "v", "_v")):
            if state != "w" and state not in momenta(case):
                continue
            for p in shapes:
                steps = found[f"{state}_{p}"]
                before = np.concatenate([feeds[f"{state}_{p}_0"][None], steps[:-1]])
                bits = lambda x: x.reshape(len(x), -1).view(np.uint32)
                if not np.array_equal(bits(steps)[expected_found], bits(before)[expected_found]):
                    problems.append(f"{who}: a step that is skipped changes {state} of {p}")
                off = distance(steps[selected], data[f"{name}/{stored}/{p}64"])
                limit = 2 * case[f"max_rel_f32_vs_f64{margin}"] + 1e-6
                if off > limit:
                    problems.append(f"{who}: {state} of {p} is {off:.1e} off, where {limit:.1e} is allowed")
        if f"{name}/norm64" in data:
            want = data[f"{name}/norm64"]
            there = ~expected_found
            off = np.abs(found["norm"][there] - want[there]) / np.maximum(want[there], 1e-300)
            if not off.max() <= NORM_BOUND:
                problems.append(f"{who}: a norm is {off.max():.1e} off")
    return [f"{name}: {problem}" for problem in problems]


def sample(cases: dict[str, dict[str, Any]], data: Arrays) -> tuple[dict[str, dict[str, Any]], Arrays]:
    """The first steps of a few cases."""
    kept = {name: case for name, case in cases.items() if name in SAMPLED}
    n_selected = int((data["selected_steps"] < SAMPLED_STEPS).sum())
    grads = tuple(f"grads/{case['grads']}/" for case in kept.values())
    found: Arrays = {}
    for name, array in data.items():
        if name.startswith((*grads, "flags/", "lr_factor")):
            found[name] = array[:SAMPLED_STEPS]
        elif name.startswith("p0/"):
            found[name] = array
        elif name == "selected_steps" or name.startswith(tuple(f"{case}/" for case in kept)):
            is_norm = name.endswith("/norm64")
            if is_norm or name.endswith("64") or name.endswith("/step") or name == "selected_steps":
                found[name] = array[:SAMPLED_STEPS] if is_norm else array[:n_selected]
    return kept, found


def main() -> int:
    parser = ArgumentParser(description="Judge SGD, Adam and AdamW by traces of optimizers.")
    parser.add_argument("--corpus", default=os.environ.get("AMPC_CORPUS"), help="[AMPC_CORPUS]")
    parser.add_argument("--ampc", default=os.environ.get("AMPC_BIN"), help="the binary [AMPC_BIN]")
    parser.add_argument("--sample", type=Path, help="write a sample of the traces here, and judge nothing")
    args = parser.parse_args()
    source = Path(args.corpus or "") / "oracles" / "optimizer_traces.json"
    if not source.is_file():
        parser.error(f"no corpus with {source.name}: give --corpus or set AMPC_CORPUS")
    listing = json.loads(source.read_text())
    # LAMB is no operator of ai.ampc.
    cases = {name: case for name, case in listing["cases"].items() if case["opt"] in OPERATORS}
    with np.load(source.with_suffix(".npz")) as stored:
        data = {name: stored[name] for name in stored.files}
    if args.sample:
        cases, data = sample(cases, data)
        written = json.dumps({"format": listing["format"], "torch": listing["torch"], "cases": cases}, indent=1)
        (args.sample / source.name).write_text(written + "\n")
        np.savez_compressed(args.sample / source.with_suffix(".npz").name, **data)
        return 0
    if not args.ampc or not Path(args.ampc).exists():
        parser.error("no binary: give --ampc or set AMPC_BIN")
    binary = str(Path(args.ampc).resolve())
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as temporary:
        for i, (name, case) in enumerate(cases.items()):
            problems += judge(binary, Path(temporary), name, case, data, OPSETS[i % len(OPSETS)])
    for problem in problems:
        print(problem)
    print(f"{len(cases)} traces of optimizers, {len(data['flags/skip'])} steps each: {len(problems)} wrong")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
