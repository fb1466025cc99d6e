#!/usr/bin/env python3
"""Operators of ai.ampc, which are functions of standard operators in a file.

Proves for GradCheck and AdamW, in every form, at opsets from the oldest that bodies are written for to the newest that
ONNX Runtime reads, that onnx.checker accepts what ampc writes, that ONNX Runtime and the CPU runtime compute the same,
and that both follow the formulas of PyTorch and of Hugging Face's transformers, computed here in float64, over 20 steps
of which one is skipped.

    tests/judge/training.py --ampc target/release/ampc
"""

from __future__ import annotations

import os
import sys
import tempfile
from argparse import ArgumentParser
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import ampc

OPSETS = (17, 21, 23, 26)
NUMBERS = {"f32": 1, "f16": 10, "bf16": 16}
SHAPE = (5, 7)
STEPS, SKIPPED = 20, 7
BETA1, BETA2, EPSILON, DECAY = 0.9, 0.999, 1e-8, 0.05
RATE, SCALE = 1e-2, 1024.0
# What f32 rounds away in 20 steps, of the largest value; the next weights of PyTorch's float32 are as far off.
BOUND = 2e-6
STATES = ("w", "m", "v")


def text(opset: int, lines: list[str]) -> str:
    return "\n".join([f"module ir=10\nopset ai.onnx={opset}, ai.ampc=1\n\ngraph @main {{", *lines, "}", ""])


def adam_w(mode: str, grad: str, lo: str | None, corrects: bool, opset: int) -> str:
    """One step; gradient and low copy are f32 outside, and of their own types between two casts."""
    dims = list(SHAPE)
    inputs = [f"  input %{name} : f32{dims}" for name in ("w", "g", "m", "v")]
    inputs += [f"  input %{name}" for name in ("lr : f32", "mult : f32", "step : i64", "found_inf : f32")]
    attrs = ", ".join(
        [f"beta1=tensor(f64 = {BETA1})", f"beta2=tensor(f64 = {BETA2})", f"bias_correction={int(corrects)}"]
        + [f"epsilon=tensor(f64 = {EPSILON})", f'mode="{mode}"']
        + ([f"w_lo_dtype={NUMBERS[lo]}"] if lo else [])
        + [f"weight_decay=tensor(f64 = {DECAY})"]
    )
    results = ["w_next", "m_next", "v_next"] + (["lo"] if lo else [])
    names, types = ", ".join(f"%{r}" for r in results), ", ".join(["?"] * len(results))
    lines = [
        f"  %grad = Cast(%g) {{to={NUMBERS[grad]}}} : ?",
        f"  {names} = ai.ampc::AdamW(%w, %grad, %m, %v, %lr, %mult, %step, %found_inf) {{{attrs}}} : {types}",
    ]
    if lo:
        lines.append("  %w_lo = Cast(%lo) {to=1} : ?")
    outputs = [f"  output %{name}" for name in [*results[:3], *(["w_lo"] if lo else [])]]
    return text(opset, inputs + lines + outputs)


def grad_check(grads: list[str], opset: int) -> str:
    inputs = ["  input %inv_scale : f32"] + [f"  input %g{i} : f32[N{i}]" for i in range(len(grads))]
    casts = [f"  %c{i} = Cast(%g{i}) {{to={NUMBERS[grad]}}} : ?" for i, grad in enumerate(grads)]
    operands = ", ".join(f"%c{i}" for i in range(len(grads)))
    node = f"  %found_inf, %sumsq = ai.ampc::GradCheck(%inv_scale, {operands}) : f32, f32"
    return text(opset, [*inputs, *casts, node, "  output %found_inf", "  output %sumsq"])


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    """f32 rounded to a format and back."""
    if dtype == "f16":
        with np.errstate(over="ignore"):
            return x.astype(np.float16).astype(np.float32)
    if dtype == "bf16":
        bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        return np.where(np.isnan(x), np.float32("nan"), nearest.astype(np.uint32).view(np.float32))
    return x


def formula(state: dict[str, np.ndarray], g: np.ndarray, t: int, mode: str, corrects: bool) -> dict[str, np.ndarray]:
    """A step in float64: torch/optim/adamw.py, and optimization.py of transformers before 4.50."""
    m = BETA1 * state["m"] + (1 - BETA1) * g
    v = BETA2 * state["v"] + (1 - BETA2) * g * g
    c1, c2 = (1 - BETA1**t, 1 - BETA2**t) if corrects else (1.0, 1.0)
    w = state["w"]
    if mode == "torch":
        w = w * (1 - RATE * DECAY)
        w = w - RATE / c1 * m / (np.sqrt(v) / np.sqrt(c2) + EPSILON)
    else:
        w = w - RATE * np.sqrt(c2) / c1 * m / (np.sqrt(v) + EPSILON)
        w = w - RATE * DECAY * w
    return {"w": w, "m": m, "v": v}


class Both:
    """A model in ONNX Runtime and in the CPU runtime."""

    def __init__(self, binary: str, source: str, folder: Path) -> None:
        self.binary, self.folder = binary, folder
        written, self.model = folder / "model.ir", folder / "model.onnx"
        written.write_text(source)
        self.model.unlink(missing_ok=True)
        run = ampc.opt(binary, written, self.model, "--passes", "dce")
        if run.code != 0:
            raise SystemExit(f"{ampc.problem(run)}\n{source}")
        onnx.checker.check_model(onnx.load(self.model), full_check=True)
        self.session = onnxruntime.InferenceSession(self.model, providers=["CPUExecutionProvider"])

    def peer(self, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [np.asarray(x) for x in self.session.run(None, feeds)]

    def own(self, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        given, found = self.folder / "in.npz", self.folder / "out.npz"
        np.savez(given, **feeds)
        run = ampc.execute(self.binary, self.model, "--inputs", str(given), "--outputs", str(found), "--force")
        if run.code != 0:
            raise SystemExit(ampc.problem(run))
        with np.load(found) as data:
            return [data[output.name] for output in self.session.get_outputs()]


def distance(found: np.ndarray, want: np.ndarray) -> float:
    """Of the largest value; infinite where one is NaN or infinite and the other is not."""
    want = np.asarray(want, np.float64)
    finite = np.isfinite(want)
    if found.shape != want.shape or not np.array_equal(finite, np.isfinite(found)):
        return float("inf")
    off = np.abs(found[finite].astype(np.float64) - want[finite])
    return float((off / max(np.abs(want[finite]).max(initial=0.0), 1e-30)).max(initial=0.0))


def judge_adam_w(binary: str, folder: Path, case: tuple[str, str, str | None, bool, int]) -> list[str]:
    mode, grad, lo, corrects, opset = case
    both = Both(binary, adam_w(*case), folder)
    random = np.random.default_rng(3)
    # Small weights show what a step adds.
    start = {"w": 0.02 * random.normal(size=SHAPE), "m": np.zeros(SHAPE), "v": np.zeros(SHAPE)}
    start = {name: x.astype(np.float32) for name, x in start.items()}
    states, own, want = dict(start), dict(start), {k: x.astype(np.float64) for k, x in start.items()}
    step = 0
    problems = []
    for i in range(STEPS):
        g = (random.normal(size=SHAPE) * SCALE).astype(np.float32)
        if i == SKIPPED:
            g[0, 0] = np.inf
        found_inf = np.array(float(i == SKIPPED), np.float32)
        scalars = {"g": g, "lr": np.array(RATE, np.float32), "mult": np.array(1 / SCALE, np.float32)}
        scalars |= {"step": np.array(step), "found_inf": found_inf}
        before = states
        results = both.peer({**states, **scalars})
        states = dict(zip(STATES, results, strict=False))
        # A process each: some steps are enough, from the same states.
        if i in (0, 1, SKIPPED, STEPS - 1):
            own = dict(zip((*STATES, "w_lo"), both.own({**before, **scalars}), strict=False))
            for name, found in zip((*STATES, "w_lo"), results, strict=False):
                off = distance(own[name], found)
                limit = BOUND if name != "w_lo" else 2.0**-8
                if off > limit:
                    problems.append(f"step {i}: {name} of the CPU runtime is {off:.1e} off ONNX Runtime's")
        if lo and not np.array_equal(results[3], rounded(results[0], lo)):
            problems.append(f"step {i}: the low copy is not the next weights rounded")
        if i == SKIPPED:
            if any(not np.array_equal(states[name], before[name]) for name in STATES):
                problems.append("a state changes in a step that is skipped")
            continue
        step += 1
        want = formula(want, rounded(g, grad).astype(np.float64) / SCALE, step, mode, corrects)
    problems += [
        f"{name} is {off:.1e} off the formula"
        for name in STATES
        if (off := distance(states[name], want[name])) > BOUND
    ]
    return problems


def judge_grad_check(binary: str, folder: Path, grads: list[str], opset: int) -> list[str]:
    both = Both(binary, grad_check(grads, opset), folder)
    random = np.random.default_rng(5)
    problems = []
    for wrong, inv_scale in product((None, np.inf, -np.inf, np.nan, 1e30), (1 / SCALE, 0.0, 1e30)):
        feeds = {f"g{i}": random.normal(size=3 * i + 1).astype(np.float32) * 100 for i in range(len(grads))}
        if wrong is not None:
            feeds[f"g{len(grads) - 1}"][-1] = wrong
        feeds["inv_scale"] = np.array(inv_scale, np.float32)
        wide = [rounded(feeds[f"g{i}"], grad) for i, grad in enumerate(grads)]
        with np.errstate(all="ignore"):
            unscaled = [x * np.float32(inv_scale) for x in wide]
            finite = all(np.isfinite(x).all() for x in [*wide, *unscaled])
            squares = sum((x.astype(np.float64) ** 2).sum() for x in unscaled)
            sumsq = np.float64(squares) if squares <= np.finfo(np.float32).max else np.float64("inf")
        for who, (found, total) in (("ONNX Runtime", both.peer(feeds)), ("the CPU runtime", both.own(feeds))):
            what = f"{who}: a gradient with {wrong}, times {inv_scale}:"
            if found != (0 if finite else 1):
                problems.append(f"{what} found_inf is {found}")
            if finite and distance(total, sumsq) > 1e-5:
                problems.append(f"{what} the sum is {total}, not {sumsq}")
            if not finite and np.isfinite(total):
                problems.append(f"{what} the sum is finite")
    return problems


def main() -> int:
    parser = ArgumentParser(description="Judge the operators of ai.ampc.")
    parser.add_argument("--corpus", help="not read")
    parser.add_argument("--ampc", default=os.environ.get("AMPC_BIN"), help="the binary [AMPC_BIN]")
    args = parser.parse_args()
    if not args.ampc or not Path(args.ampc).exists():
        parser.error("no binary: give --ampc or set AMPC_BIN")
    binary = str(Path(args.ampc).resolve())
    forms = list(product(("torch", "hf"), ("f16", "bf16", "f32"), (None, "f16", "bf16"), (True, False)))
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        cases = [("AdamW", (*form, OPSETS[i % len(OPSETS)])) for i, form in enumerate(forms)]
        grads = [["f16"], ["bf16", "f32"], ["f32", "f16", "bf16"] * 3]
        cases += [("GradCheck", (grads, opset)) for grads, opset in product(grads, (OPSETS[0], OPSETS[-1]))]
        for op, case in cases:
            judge = judge_adam_w(binary, folder, case) if op == "AdamW" else judge_grad_check(binary, folder, *case)
            failed += bool(judge)
            for problem in judge:
                print(f"{op} {case}: {problem}")
    print(f"{len(cases)} forms of operators of ai.ampc, {failed} of them wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
