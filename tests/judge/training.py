#!/usr/bin/env python3
"""Operators of ai.ampc, which are functions of standard operators in a file.

Proves for each operator, in every form, at opsets from the oldest that bodies are written for to the newest that ONNX
Runtime reads, that onnx.checker accepts what ampc writes, that ONNX Runtime and the CPU runtime compute the same, and
that both follow the formulas of PyTorch and of Hugging Face's transformers, computed here in float64: the optimizers over
20 steps of which one has a gradient that is not finite, the loss scale over 60.

    tests/judge/training.py --ampc target/release/ampc
"""

from __future__ import annotations

import os
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import ampc

OPSETS = (17, 21, 23, 26)
OLDEST_OF_BITS = 18
NUMBERS = {"f32": 1, "f16": 10, "bf16": 16}
SHAPE = (5, 7)
STEPS, SKIPPED = 20, 7
BETA1, BETA2, EPSILON, DECAY = 0.9, 0.999, 1e-8, 0.05
MOMENTUM, DAMPENING = 0.9, 0.3
RATE, SCALE = 1e-2, 1024.0
# What f32 rounds away in 20 steps, of the largest value; the next weights of PyTorch's float32 are as far off.
BOUND = 2e-6


def text(opset: int, lines: list[str]) -> str:
    return "\n".join([f"module ir=10\nopset ai.onnx={opset}, ai.ampc=1\n\ngraph @main {{", *lines, "}", ""])


def number(x: float) -> str:
    return f"tensor(f64 = {float(x)!r})"


def written(attrs: dict[str, Any]) -> str:
    """Attributes, without those that are absent."""
    return ", ".join(f"{name}={value}" for name, value in sorted(attrs.items()) if value is not None)


def step_of(op: str, states: list[str], operands: str, results: list[str], attrs: str, grad: str, opset: int) -> str:
    """One step; gradient and low copy are f32 outside, and of their own types between two casts."""
    dims = list(SHAPE)
    inputs = [f"  input %{name} : f32{dims}" for name in (states[0], "g", *states[1:])]
    inputs += [f"  input %{name}" for name in ("lr : f32", "mult : f32", "step : i64", "found_inf : f32")]
    names = ", ".join(f"%{r}" if r else "_" for r in results)
    types = ", ".join("?" if r else "_" for r in results)
    lines = [
        f"  %grad = Cast(%g) {{to={NUMBERS[grad]}}} : ?",
        f"  {names} = ai.ampc::{op}({operands}) {{{attrs}}} : {types}",
    ]
    if "lo" in results:
        lines.append("  %w_lo = Cast(%lo) {to=1} : ?")
    outputs = [f"  output %{'w_lo' if name == 'lo' else name}" for name in results if name]
    return text(opset, inputs + lines + outputs)


def adam(mode: str | None, grad: str, lo: str | None, corrects: bool, opset: int) -> str:
    """A step of AdamW in a mode, or of Adam."""
    attrs = {
        "beta1": number(BETA1),
        "beta2": number(BETA2),
        "bias_correction": int(corrects),
        "epsilon": number(EPSILON),
        "mode": f'"{mode}"' if mode else None,
        "w_lo_dtype": NUMBERS[lo] if lo else None,
        "weight_decay": number(DECAY),
    }
    results = ["w_next", "m_next", "v_next"] + (["lo"] if lo else [])
    operands = "%w, %grad, %m, %v, %lr, %mult, %step, %found_inf"
    return step_of("AdamW" if mode else "Adam", ["w", "m", "v"], operands, results, written(attrs), grad, opset)


def sgd(direction: str, on_overflow: str, grad: str, lo: str | None, opset: int) -> str:
    buffer = direction != "plain"
    attrs = {
        "dampening": number(DAMPENING),
        "momentum": number(MOMENTUM if buffer else 0.0),
        "nesterov": int(direction == "nesterov"),
        "on_overflow": f'"{on_overflow}"',
        "w_lo_dtype": NUMBERS[lo] if lo else None,
        "weight_decay": number(DECAY),
    }
    results = ["w_next"] + (["v_next"] if buffer else [""] if lo else []) + (["lo"] if lo else [])
    operands = "%w, %grad, %lr, %mult, %step, %found_inf" + (", %v" if buffer else "")
    states = ["w"] + (["v"] if buffer else [])
    return step_of("SGD", states, operands, results, written(attrs), grad, opset)


def update_loss_scale(config: dict[str, Any], opset: int) -> str:
    bad = config["backoff_every"] > 1
    attrs = {
        "arith": f'"{config["arith"]}"',
        "backoff": number(config["backoff"]),
        "backoff_every": config["backoff_every"],
        "growth": number(config["growth"]),
        "interval": config["interval"],
        "max": number(config["max"]) if config["max"] else None,
        "min": number(config["min"]) if config["min"] else None,
        "reset_good": config["reset_good"],
    }
    names = ["scale", "good"] + (["bad"] if bad else [])
    inputs = ["  input %scale : f32", "  input %good : i32", "  input %found_inf : f32"]
    inputs += ["  input %bad : i32"] if bad else []
    nexts, operands = [f"%{name}_next" for name in names], ["%scale", "%good", "%found_inf"] + ["%bad"] * bad
    types = ", ".join(["?"] * len(names))
    node = f"  {', '.join(nexts)} = ai.ampc::UpdateLossScale({', '.join(operands)}) {{{written(attrs)}}} : {types}"
    return text(opset, [*inputs, node, *(f"  output {name}" for name in nexts)])


def clip_coef(max_norm: float, opset: int) -> str:
    attrs = written({"max_norm": number(max_norm), "epsilon": number(1e-6)})
    lines = ["  input %sumsq : f32", "  input %inv_scale : f32"]
    lines.append(f"  %mult, %norm = ai.ampc::ClipCoef(%sumsq, %inv_scale) {{{attrs}}} : ?, ?")
    return text(opset, [*lines, "  output %mult", "  output %norm"])


def grad_check(grads: list[str], opset: int) -> str:
    inputs = ["  input %inv_scale : f32"] + [f"  input %g{i} : f32[N{i}]" for i in range(len(grads))]
    casts = [f"  %c{i} = Cast(%g{i}) {{to={NUMBERS[grad]}}} : ?" for i, grad in enumerate(grads)]
    operands = ", ".join(f"%c{i}" for i in range(len(grads)))
    node = f"  %found_inf, %sumsq = ai.ampc::GradCheck(%inv_scale, {operands}) : f32, f32"
    return text(opset, [*inputs, *casts, node, "  output %found_inf", "  output %sumsq"])


def philox_dropout(dtype: str, stream: int, opset: int) -> str:
    lines = ["  input %x : f32[N, M]", "  input %seed : u64", "  input %offset : u64", "  input %ratio : f32"]
    lines += [
        f"  %lo = Cast(%x) {{to={NUMBERS[dtype]}}} : ?",
        f"  %dropped = ai.ampc::PhiloxDropout(%lo, %seed, %offset, %ratio) {{stream={stream}}} : ?",
        "  %y = Cast(%dropped) {to=1} : ?",
    ]
    return text(opset, [*lines, "  output %y"])


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


State = dict[str, np.ndarray]


def adam_formula(state: State, g: np.ndarray, t: int, mode: str | None, corrects: bool) -> State:
    """A step in float64: torch/optim/{adam,adamw}.py, and optimization.py of transformers before 4.50."""
    if mode is None:
        g = g + DECAY * state["w"]
    m = BETA1 * state["m"] + (1 - BETA1) * g
    v = BETA2 * state["v"] + (1 - BETA2) * g * g
    c1, c2 = (1 - BETA1**t, 1 - BETA2**t) if corrects else (1.0, 1.0)
    w = state["w"]
    if mode != "hf":
        w = w * (1 - RATE * DECAY) if mode else w
        w = w - RATE / c1 * m / (np.sqrt(v) / np.sqrt(c2) + EPSILON)
    else:
        w = w - RATE * np.sqrt(c2) / c1 * m / (np.sqrt(v) + EPSILON)
        w = w - RATE * DECAY * w
    return {"w": w, "m": m, "v": v}


def sgd_formula(state: State, g: np.ndarray, t: int, direction: str) -> State:
    """A step in float64: torch/optim/sgd.py."""
    g = g + DECAY * state["w"]
    if direction == "plain":
        return {"w": state["w"] - RATE * g}
    v = g if t == 1 else MOMENTUM * state["v"] + (1 - DAMPENING) * g
    return {"w": state["w"] - RATE * (g + MOMENTUM * v if direction == "nesterov" else v), "v": v}


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


Formula = Callable[[State, np.ndarray, int], State]


def judge_steps(both: Both, names: tuple[str, ...], grad: str, lo: str | None, skips: bool, formula: Formula) -> list[str]:
    """States over steps: of ONNX Runtime, of the CPU runtime, and as a formula of unscaled gradients has them."""
    random = np.random.default_rng(3)
    # Small weights show what a step adds.
    states = {name: np.zeros(SHAPE, np.float32) for name in names}
    states["w"] = (0.02 * random.normal(size=SHAPE)).astype(np.float32)
    want = {name: x.astype(np.float64) for name, x in states.items()}
    step = 0
    results_of = (*names, "w_lo") if lo else names
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
        states = dict(zip(names, results, strict=False))
        # A process each: some steps are enough, from the same states.
        if i in (0, 1, SKIPPED, STEPS - 1):
            own = dict(zip(results_of, both.own({**before, **scalars}), strict=True))
            for name, found in zip(results_of, results, strict=True):
                off = distance(own[name], found)
                limit = BOUND if name != "w_lo" else 2.0**-8
                if off > limit:
                    problems.append(f"step {i}: {name} of the CPU runtime is {off:.1e} off ONNX Runtime's")
        if lo and not np.array_equal(results[-1], rounded(results[0], lo)):
            problems.append(f"step {i}: the low copy is not the next weights rounded")
        if i == SKIPPED and skips:
            if any(not np.array_equal(states[name], before[name]) for name in names):
                problems.append("a state changes in a step that is skipped")
            continue
        step += 1
        unscaled = rounded(g, grad).astype(np.float64) / SCALE
        want = formula(want, np.zeros(SHAPE) if i == SKIPPED else unscaled, step)
    problems += [
        f"{name} is {off:.1e} off the formula"
        for name in names
        if (off := distance(states[name], want[name])) > BOUND
    ]
    return problems


def judge_adam(binary: str, folder: Path, mode: str | None, grad: str, lo: str | None, corrects: bool, opset: int) -> list[str]:
    both = Both(binary, adam(mode, grad, lo, corrects, opset), folder)
    formula = lambda state, g, t: adam_formula(state, g, t, mode, corrects)
    return judge_steps(both, ("w", "m", "v"), grad, lo, True, formula)


def judge_sgd(binary: str, folder: Path, direction: str, on_overflow: str, grad: str, lo: str | None, opset: int) -> list[str]:
    both = Both(binary, sgd(direction, on_overflow, grad, lo, opset), folder)
    names = ("w",) if direction == "plain" else ("w", "v")
    formula = lambda state, g, t: sgd_formula(state, g, t, direction)
    return judge_steps(both, names, grad, lo, on_overflow == "skip", formula)


def next_scale(config: dict[str, Any], scale: np.float32, good: int, bad: int, overflow: bool) -> tuple[np.float32, int, int]:
    """The rule in Python's numbers, rounded to float32."""
    factor = config["backoff" if overflow else "growth"]
    factor = factor if config["arith"] == "f64_product" else float(np.float32(factor))
    with np.errstate(over="ignore"):
        moved = np.float32(float(scale) * factor)
    if overflow:
        good, bad = (0 if config["reset_good"] else good), bad + 1
        if bad < config["backoff_every"]:
            return scale, good, bad
        return max(np.float32(config["min"] or 0), moved), good, 0
    if good + 1 < config["interval"]:
        return scale, good + 1, 0
    if config["max"]:
        return min(np.float32(config["max"]), moved), 0, 0
    return (moved if np.isfinite(moved) else scale), 0, 0


def judge_update_loss_scale(binary: str, folder: Path, config: dict[str, Any], opset: int) -> list[str]:
    both = Both(binary, update_loss_scale(config, opset), folder)
    random = np.random.default_rng(7)
    problems = []
    scale, good, bad = np.float32(3.0), 0, 0
    for i in range(60):
        if i == 40:
            scale = np.float32(3e38)
        found_inf = float(random.choice([0.0, 0.0, 0.0, 1.0, np.nan]))
        feeds = {"scale": np.array(scale), "good": np.array(good, np.int32)}
        feeds |= {"found_inf": np.array(found_inf, np.float32)}
        feeds |= {"bad": np.array(bad, np.int32)} if config["backoff_every"] > 1 else {}
        want = next_scale(config, scale, good, bad, found_inf != 0)
        found = [both.peer(feeds)] + ([both.own(feeds)] if i in (0, 20, 40) else [])
        for who, results in zip(("ONNX Runtime", "the CPU runtime"), found, strict=False):
            if any(x != y for x, y in zip(results, want, strict=False)):
                problems.append(f"step {i}: {who}: {[x.item() for x in results]} after {feeds}, not {want}")
        scale, good, bad = want
    return problems


def judge_clip_coef(binary: str, folder: Path, max_norm: float, opset: int) -> list[str]:
    both = Both(binary, clip_coef(max_norm, opset), folder)
    problems = []
    for sumsq, inv_scale in product((0.0, 1e-30, 0.7, 2.0, 1e20, np.inf), (1 / SCALE, 1.0)):
        feeds = {"sumsq": np.array(sumsq, np.float32), "inv_scale": np.array(inv_scale, np.float32)}
        norm = np.sqrt(np.float64(feeds["sumsq"]))
        want = [np.float32(inv_scale * min(1.0, max_norm / (norm + 1e-6))), np.float32(norm)]
        for who, found in (("ONNX Runtime", both.peer(feeds)), ("the CPU runtime", both.own(feeds))):
            if any(x != y for x, y in zip(found, want, strict=True)):
                problems.append(f"{who}: {[x.item() for x in found]} of {sumsq} and {inv_scale}, not {want}")
    return problems


def philox(counter: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Philox4x32-10 of Salmon et al. (SC 2011): four words for each row of four."""
    mask = np.uint64(0xFFFFFFFF)
    a, b, c, d = (counter[:, i].astype(np.uint64) for i in range(4))
    k, j = (np.uint64(word) for word in key)
    for _ in range(10):
        e, f = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (f >> np.uint64(32)) ^ b ^ k, f & mask, (e >> np.uint64(32)) ^ d ^ j, e & mask
        k, j = (k + np.uint64(0x9E3779B9)) & mask, (j + np.uint64(0xBB67AE85)) & mask
    return np.stack([a, b, c, d], axis=1).astype(np.uint32)


def judge_philox_dropout(binary: str, folder: Path, dtype: str, stream: int, opset: int) -> list[str]:
    both = Both(binary, philox_dropout(dtype, stream, opset), folder)
    random = np.random.default_rng(11)
    problems = []
    cases = [(0, 0, 0.1), (2**63 + 5, 2**40 + 3, 0.5), (2**64 - 1, 2**64 - 1, 0.0), (9, 1, 1.0)]
    for (seed, offset, ratio), shape in product(cases, ((3, 5), (0, 4), (41, 25))):
        x = rounded(random.normal(size=shape).astype(np.float32), dtype)
        ratio32 = np.float32(ratio)
        counter = np.zeros(((x.size + 3) // 4, 4), np.uint64)
        counter[:, 0], counter[:, 1] = np.arange(len(counter)), stream
        counter[:, 2], counter[:, 3] = offset % 2**32, offset >> 32
        words = philox(counter, (seed % 2**32, seed >> 32)).reshape(-1)[: x.size].reshape(shape)
        keep = (words >> 8) * 2.0**-24 >= ratio32
        with np.errstate(all="ignore"):
            want = np.where(keep, rounded(x / (np.float32(1) - ratio32), dtype), np.float32(0))
        feeds = {"x": x, "seed": np.array(seed, np.uint64), "offset": np.array(offset, np.uint64), "ratio": np.array(ratio32)}
        for who, (found,) in (("ONNX Runtime", both.peer(feeds)), ("the CPU runtime", both.own(feeds))):
            if not np.array_equal(found, want):
                problems.append(f"{who}: {shape} with {seed}, {offset}, {ratio}: {np.sum(found != want)} elements differ")
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
    lows, grads = (None, "f16", "bf16"), ("f16", "bf16", "f32")
    forms = [(judge_adam, form) for form in product((None, "torch", "hf"), grads, lows, (True, False))]
    forms += [(judge_sgd, form) for form in product(("plain", "momentum", "nesterov"), ("skip", "zero_grad"), grads, lows)]
    forms += [(judge_clip_coef, (max_norm,)) for max_norm in (1.0, 0.25, 1e9)]
    for arith, least, most, every in product(("f32_product", "f64_product"), (None, 1.0), (None, 3000.0), (1, 2)):
        config = {"arith": arith, "min": least, "max": most, "backoff_every": every, "growth": 1.7, "backoff": 0.3}
        forms += [(judge_update_loss_scale, ({**config, "interval": 2, "reset_good": every - 1},))]
    opsets = [OLDEST_OF_BITS, *OPSETS[1:]]
    dropouts = [(dtype, stream) for dtype, stream in product(grads, (0, 5, 2**32 - 1))]
    cases = [(judge, (*form, OPSETS[i % len(OPSETS)])) for i, (judge, form) in enumerate(forms)]
    cases += [(judge_philox_dropout, (*form, opsets[i % len(opsets)])) for i, form in enumerate(dropouts)]
    lists = [["f16"], ["bf16", "f32"], ["f32", "f16", "bf16"] * 3]
    cases += [(judge_grad_check, form) for form in product(lists, (OPSETS[0], OPSETS[-1]))]
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        for judge, case in cases:
            problems = judge(binary, Path(temporary), *case)
            failed += bool(problems)
            for problem in problems:
                print(f"{judge.__name__.removeprefix('judge_')} {case}: {problem}")
    print(f"{len(cases)} forms of operators of ai.ampc, {failed} of them wrong")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
