#!/usr/bin/env python3
"""Loss scales over many steps, against traces of the scalers that UpdateLossScale stands for.

Every trace of `oracles/scaler_traces.json` (torch.amp.GradScaler, and the rules of Paddle, jmp, fastai and ONNX
Runtime's trainer) runs in ONNX Runtime and in the CPU runtime, in a Scan over the steps of all traces of one
configuration: the scale has the same bits after every step, and the counts are the same. Then every single transition,
one scaler for two optimizers, and what GradCheck says of one gradient.

    tests/judge/scaler_traces.py --corpus DIR --ampc target/release/ampc
    tests/judge/scaler_traces.py --corpus DIR --sample FILE    # a sample for testdata/corpus
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
FOUND = {".": 0.0, "I": 1.0, "i": 2.0, "N": np.nan}
# What a trace is at each step: its event, the state before it if it is the first, and the state after it.
Steps = dict[str, np.ndarray]


def number(value: Any) -> str:
    return f"tensor(f64 = {float(value)!r})"


def update(config: dict[str, Any], arith: str, opset: int) -> str:
    """A Scan whose state is that of a loss scale, and which begins anew where `starts` is true."""
    counts_bad = config["backoff_every"] > 1
    attrs = {
        "arith": f'"{arith}"',
        "backoff": number(config["backoff"]),
        "backoff_every": config["backoff_every"],
        "growth": number(config["growth"]),
        "interval": config["interval"],
        # Growing without a bound ends where f32 does.
        "max": number(config["max"]) if isinstance(config["max"], float) else None,
        "min": number(config["min"]) if config["min"] is not None else None,
        "reset_good": int(config["reset_good_on_overflow"]),
    }
    written = ", ".join(f"{name}={value}" for name, value in attrs.items() if value is not None)
    states = {"scale": "f32", "good": "i32"} | ({"bad": "i32"} if counts_bad else {})
    rows = {"found": "f32", "starts": "bool"} | {f"start_{name}": dtype for name, dtype in states.items()}
    lines = [f"module ir=10\nopset ai.onnx={opset}, ai.ampc=1\n\ngraph @main {{"]
    lines += [f"  input %{name}_0 : {dtype}" for name, dtype in states.items()]
    lines += [f"  input %{name} : {dtype}[T]" for name, dtype in rows.items()]
    lasts, alls = ([f"%{name}_{what}" for name in states] for what in ("last", "all"))
    operands = [f"%{name}_0" for name in states] + [f"%{name}" for name in rows]
    lines.append(f"  {', '.join(lasts + alls)} = Scan({', '.join(operands)}) {{")
    lines += [f"    num_scan_inputs={len(rows)},", "    body: graph {"]
    lines += [f"      input %{name}_before : {dtype}" for name, dtype in states.items()]
    lines += [f"      input %{name}_row : {dtype}" for name, dtype in rows.items()]
    for name, dtype in states.items():
        lines.append(f"      %{name}_now = Where(%starts_row, %start_{name}_row, %{name}_before) : {dtype}")
    operands = ["%scale_now", "%good_now", "%found_row"] + (["%bad_now"] if counts_bad else [])
    nexts = [f"%{name}_next" for name in states]
    node = f"{', '.join(nexts)} = ai.ampc::UpdateLossScale({', '.join(operands)}) {{{written}}}"
    lines.append(f"      {node} : {', '.join(states.values())}")
    lines += [f"      %{name}_kept = Identity(%{name}_next) : {dtype}" for name, dtype in states.items()]
    lines += [f"      output {name}" for name in nexts] + [f"      output %{name}_kept" for name in states]
    types = [*states.values(), *(f"{dtype}[T]" for dtype in states.values())]
    lines += ["    }", f"  }} : {', '.join(types)}"]
    lines += [f"  output {name} : {dtype}[T]" for name, dtype in zip(alls, states.values(), strict=True)]
    return "\n".join([*lines, "}", ""])


def runs(encoded: list[list[Any]]) -> list[Any]:
    return [value for count, value in encoded for _ in range(count)]


def steps_of(start: dict[str, Any], found: list[float], scale: list[float], good: list[int], bad: list[int]) -> Steps:
    n = len(found)
    assert n == len(scale) == len(good) == len(bad), "a trace has a state after every step"
    return {
        "found": np.array(found, np.float32),
        "starts": np.arange(n) == 0,
        "start_scale": np.full(n, start["scale"], np.float32),
        "start_good": np.full(n, start["good"], np.int32),
        "start_bad": np.full(n, start["bad"], np.int32),
        "scale": np.array(scale, np.float32),
        "good": np.array(good, np.int32),
        "bad": np.array(bad, np.int32),
    }


Group = tuple[dict[str, Any], str, list[tuple[str, Steps]]]


def groups(data: dict[str, Any]) -> list[Group]:
    """Traces of the same configuration, each with its name."""
    found: dict[str, Group] = {}
    for trace in data["traces"]:
        key = json.dumps([trace["config"], trace["arith"]], sort_keys=True)
        events = trace["events"]
        wrong = [i for i, (event, stepped) in enumerate(zip(events, trace["stepped"], strict=True)) if (event == ".") != (stepped == "1")]
        assert not wrong, f"{trace['name']}: a step is taken if and only if nothing is wrong"
        steps = steps_of(
            trace["start"],
            [FOUND[event] for event in events],
            runs(trace["scale_runs"]),
            trace["good"],
            runs(trace["bad_runs"]),
        )
        found.setdefault(key, (trace["config"], trace["arith"], []))[2].append((trace["name"], steps))
    transitions = data["torch_transitions"]
    rows = []
    for scale, good, event, scale_after, good_after, _ in transitions["rows"]:
        start = {"scale": float(scale), "good": good, "bad": 0}
        name = f"torch_transitions/{scale}/{good}/{event}"
        rows.append((name, steps_of(start, [FOUND[event]], [float(scale_after)], [good_after], [0])))
    found["transitions"] = (transitions["config"], "f64_product", rows)
    two = data["torch_two_optimizers"]
    either = [max(FOUND["." if a == "." else "I"], FOUND["." if b == "." else "I"]) for a, b in zip(*two["events"], strict=True)]
    start = {"scale": two["config"]["init"], "good": 0, "bad": 0}
    steps = steps_of(start, either, two["scale"], two["good"], [0] * len(either))
    found["two"] = (two["config"], "f64_product", [("torch_two_optimizers", steps)])
    return list(found.values())


def judge(binary: str, folder: Path, group: Group, opset: int) -> list[str]:
    config, arith, traces = group
    both = Both(binary, update(config, arith, opset), folder)
    states = [name for name in ("scale", "good", "bad") if name != "bad" or config["backoff_every"] > 1]
    joined = {name: np.concatenate([steps[name] for _, steps in traces]) for name in traces[0][1]}
    feeds = {name: joined[name] for name in ("found", "starts", *(f"start_{name}" for name in states))}
    feeds |= {f"{name}_0": np.array(0, joined[name].dtype) for name in states}
    problems = []
    for who, results in (("ONNX Runtime", both.peer(feeds)), ("the CPU runtime", both.own(feeds))):
        # Bits: nothing here is NaN, and zeros have no sign.
        wrong = np.zeros(joined["scale"].shape, bool)
        for name, result in zip(states, results, strict=True):
            wrong |= result.view(np.uint32) != joined[name].view(np.uint32)
        at = 0
        for name, steps in traces:
            here = wrong[at : at + len(steps["scale"])]
            if here.any():
                i = int(np.argmax(here))
                state = {state: (result[at + i], steps[state][i]) for state, result in zip(states, results, strict=True)}
                problems.append(f"{name}: step {i} in {who}: found and expected {state}")
            at += len(here)
    return problems


def unscale(opset: int) -> str:
    return f"""\
module ir=10
opset ai.onnx={opset}, ai.ampc=1

graph @main {{
  input %g : f16[T]
  input %inv_scale : f32[T]
  %found, %sums = Scan(%g, %inv_scale) {{
    num_scan_inputs=2,
    body: graph {{
      input %g_row : f16
      input %inv_row : f32
      %found_inf, %sumsq = ai.ampc::GradCheck(%inv_row, %g_row) : f32, f32
      output %found_inf
      output %sumsq
    }}
  }} : f32[T], f32[T]
  output %found : f32[T]
  output %sums : f32[T]
}}
"""


def judge_unscale(binary: str, folder: Path, rows: list[dict[str, Any]]) -> list[str]:
    """PyTorch looks before the product, Paddle behind it; GradCheck does both."""
    both = Both(binary, unscale(21), folder)
    bits = np.array([row["g16_bits"] for row in rows], np.uint16)
    inverse = np.array([row["inv_bits"] for row in rows], np.uint32).view(np.float32)
    products = np.array([row["torch_out_bits"] for row in rows], np.uint32).view(np.float32)
    feeds = {"g": bits.view(np.float16), "inv_scale": inverse}
    expected = np.array([row["torch_found"] | row["paddle_fp32grad_found"] for row in rows], np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = products * products
    problems = []
    for who, (found, sums) in (("ONNX Runtime", both.peer(feeds)), ("the CPU runtime", both.own(feeds))):
        same = np.where(np.isnan(squares), np.isnan(sums), sums == squares)
        for i in np.flatnonzero((found != expected) | ~same):
            problems.append(f"{rows[i]}: {who} says {found[i]}, {sums[i]}")
    return problems


def sample(data: dict[str, Any]) -> dict[str, Any]:
    """The shortest trace of each configuration that grows and backs off, and a part of everything else."""
    chosen: dict[str, dict[str, Any]] = {}
    for trace in data["traces"]:
        scales = runs(trace["scale_runs"])
        moves = {a < b for a, b in zip(scales, scales[1:], strict=False) if a != b}
        key = json.dumps(trace["config"])
        cost = (len(moves) < 2, len(trace["events"]))
        if key not in chosen or cost < chosen[key]["cost"]:
            chosen[key] = {"cost": cost, "trace": trace}
    two = data["torch_two_optimizers"]
    short = lambda value: [part[:60] for part in value] if isinstance(value[0], str | list) else value[:60]
    return {
        "format": data["format"],
        "torch": data["torch"],
        "traces": [row["trace"] for row in chosen.values() if row["cost"][1] <= 200],
        "torch_transitions": data["torch_transitions"],
        "torch_two_optimizers": {key: value if key == "config" else short(value) for key, value in two.items()},
        "unscale": data["unscale"][::4],
    }


def main() -> int:
    parser = ArgumentParser(description="Judge UpdateLossScale by traces of loss scalers.")
    parser.add_argument("--corpus", default=os.environ.get("AMPC_CORPUS"), help="[AMPC_CORPUS]")
    parser.add_argument("--ampc", default=os.environ.get("AMPC_BIN"), help="the binary [AMPC_BIN]")
    parser.add_argument("--sample", type=Path, help="write a sample of the traces, and judge nothing")
    args = parser.parse_args()
    source = Path(args.corpus or "") / "oracles" / "scaler_traces.json"
    if not source.is_file():
        parser.error(f"no corpus with {source.name}: give --corpus or set AMPC_CORPUS")
    data = json.loads(source.read_text())
    if args.sample:
        args.sample.write_text(json.dumps(sample(data), separators=(",", ":")) + "\n")
        return 0
    if not args.ampc or not Path(args.ampc).exists():
        parser.error("no binary: give --ampc or set AMPC_BIN")
    binary = str(Path(args.ampc).resolve())
    problems: list[str] = []
    all_groups = groups(data)
    with tempfile.TemporaryDirectory() as temporary:
        for i, group in enumerate(all_groups):
            problems += judge(binary, Path(temporary), group, OPSETS[i % len(OPSETS)])
        problems += judge_unscale(binary, Path(temporary), data["unscale"])
    for problem in problems:
        print(problem)
    n = [len(data["traces"]), len(data["torch_transitions"]["rows"]), len(data["unscale"])]
    steps = sum(len(steps["scale"]) for _, _, traces in all_groups for _, steps in traces)
    print(f"{n[0]} traces and {n[1]} transitions of loss scalers, {steps} steps, {n[2]} gradients: {len(problems)} wrong")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
