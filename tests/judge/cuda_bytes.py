#!/usr/bin/env python3
"""Compares the bytes and launches of the plans of training steps with the least possible.

`ampc plan --json` computes both (docs/run.md, "Lower bounds"): products, convolutions, attention and the maximal regions
between them are groups; each group reads every operand from outside once and writes every result that is read outside once. A
plan that computes a product and its activation in one kernel has fewer bytes than its groups.
A table has a line per step: bytes of the plan, least bytes, their ratio, launches of products and others, and the share of the
largest groups in the excess. Without a GPU the library of tests/cuda-sim stands in for it, if the dynamic loader finds it.

    tests/judge/cuda_bytes.py --ampc target/release/ampc --corpus DIR [--device cuda] [--limit 1.3] [NAME ...]
    tests/judge/cuda_bytes.py --ampc target/release/ampc --step STEP.onnx [--dim batch=8]

With `--limit` a ratio above it is a failure. `--worst N` lists the N groups with the largest excess of each step.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

NAMES = ["mlp", "bert_base", "gpt2", "nanogpt", "resnet50", "unet", "vit_b_16"]
TIMEOUT = 1800


def run(binary: str, *args: str | Path) -> str:
    done = subprocess.run([binary, *map(str, args)], capture_output=True, text=True, timeout=TIMEOUT)
    if done.returncode:
        raise RuntimeError(f"{args[0]}: exit code {done.returncode}: {' '.join(done.stderr.split())[-400:]}")
    return done.stdout


def step_of(binary: str, corpus: Path, name: str, folder: Path) -> Path:
    """The mixed-precision step of a model of the corpus, with AdamW."""
    step = folder / f"{name}.onnx"
    model = corpus / "train" / name / f"{name}.train.onnx"
    state = folder / f"{name}.safetensors"
    run(binary, "train-step", model, "--loss", "output:loss", "--optimizer", "adamw", "-o", step, "--state", state, "-q")
    return step


def operators(group: dict[str, Any]) -> str:
    """The operators of a group, the most frequent first."""
    pairs = sorted(group["operators"].items(), key=lambda pair: (-pair[1], pair[0]))
    names = [name if count == 1 else f"{count} {name}" for name, count in pairs[:5]]
    return ", ".join(names) + (" …" if len(pairs) > 5 else "")


def table(rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def judge(args: Namespace) -> int:
    rows = [["step", "bytes", "least bytes", "ratio", "launches of products", "other launches", "regions"]]
    worst: list[str] = []
    problems = 0
    with tempfile.TemporaryDirectory() as folder:
        steps = [(path.stem, path) for path in args.step]
        for name in [] if args.step else args.names:
            try:
                steps.append((name, step_of(args.ampc, args.corpus, name, Path(folder))))
            except RuntimeError as error:
                print(f"{name}: {error}")
                problems += 1
        for name, step in steps:
            dims = [part for dim in args.dim for part in ("--dim", dim)]
            try:
                found = json.loads(run(args.ampc, "plan", step, "--json", "--device", args.device, "-q", *dims))
            except RuntimeError as error:
                print(f"{name}: {error}")
                problems += 1
                continue
            least = found["least_possible"]
            ratio = least["planned_bytes"] / max(least["bytes"], 1)
            if args.limit is not None and ratio > args.limit:
                print(f"{name}: expected at most {args.limit} times the least possible bytes, found {ratio:.2f}")
                problems += 1
            sizes = [f"{least['planned_bytes'] / 1e6:.2f} MB", f"{least['bytes'] / 1e6:.2f} MB", f"{ratio:.2f}"]
            launches = [str(least["product_launches"]), str(least["other_launches"])]
            rows.append([name, *sizes, *launches, str(least["n_regions"])])
            excess = max(least["planned_bytes"] - least["bytes"], 1)
            for group in least["regions"][: args.worst]:
                beyond = group["planned_bytes"] - group["least_bytes"]
                worst.append(
                    f"  {name}: {beyond / 1e6:.2f} MB ({beyond / excess:.0%} of the excess), {group['launches']} launches, "
                    f"at {group['first_node']}: {operators(group)}"
                )
    print(table(rows))
    if worst:
        print("\ngroups with the largest excess:\n" + "\n".join(worst))
    return problems


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ampc", required=True)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--step", type=Path, action="append", default=[])
    parser.add_argument("--dim", action="append", default=[])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--limit", type=float)
    parser.add_argument("--worst", type=int, default=0)
    parser.add_argument("names", nargs="*", default=NAMES)
    args = parser.parse_args()
    if not args.step and args.corpus is None:
        parser.error("expected --corpus or --step")
    sys.exit(1 if judge(args) else 0)


if __name__ == "__main__":
    main()
