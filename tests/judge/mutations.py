#!/usr/bin/env python3
"""Runs models of ONNX's backend test suite with random faults in them: attributes, dims of inputs, operands.

A run may succeed or refuse, with an error and exit code 1 to 5; it must not be a bug of ampc (exit code 70, a signal),
last, or take more memory than a model of this size can ask for with a reason. The faults are the same for a seed.

    tests/judge/mutations.py --ampc target/release/ampc [--count 2000] [--seed 1] [--keep FOLDER]
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from argparse import ArgumentParser
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx
from onnx import AttributeProto

import conformance
import measure

OPTIONS = ("--random", "1", "--max-iterations", "50", "--time-limit", "3", "--threads", "1")
SECONDS = 60.0
INTEGERS = (-(2**63), -5, -1, 0, 1, 2, 3, 7, 100, 2**40, 2**62, 2**63 - 1)
FLOATS = (0.0, -1.0, 0.5, 1e30, float("nan"), float("inf"))
EXTENTS = (0, 1, 2, 3, 5, 17)


def change_attribute(node: onnx.NodeProto, draw: random.Random) -> None:
    attribute = draw.choice(node.attribute)
    if attribute.type == AttributeProto.INT:
        attribute.i = draw.choice(INTEGERS)
    elif attribute.type == AttributeProto.INTS and attribute.ints:
        attribute.ints[draw.randrange(len(attribute.ints))] = draw.choice(INTEGERS)
    elif attribute.type == AttributeProto.FLOAT:
        attribute.f = draw.choice(FLOATS)


def change_input(graph: onnx.GraphProto, draw: random.Random) -> None:
    value = draw.choice(graph.input)
    if value.type.HasField("tensor_type") and value.type.tensor_type.shape.dim:
        dims = value.type.tensor_type.shape.dim
        draw.choice(dims).dim_value = draw.choice(EXTENTS)
        if draw.random() < 0.2:
            del dims[-1]


def change(model: onnx.ModelProto, draw: random.Random) -> None:
    """Up to three faults; outputs are of any shape."""
    for _ in range(draw.randint(1, 3)):
        node, what = draw.choice(model.graph.node), draw.random()
        if what < 0.45 and node.attribute:
            change_attribute(node, draw)
        elif what < 0.8 and model.graph.input:
            change_input(model.graph, draw)
        elif len(node.input) > 1:
            a, b = draw.randrange(len(node.input)), draw.randrange(len(node.input))
            node.input[a], node.input[b] = node.input[b], node.input[a]
    for output in model.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")


def judge(ampc: str, model: Path) -> str:
    """What is wrong; nothing if nothing is."""
    run = measure.run([ampc, "run", str(model), *OPTIONS], SECONDS)
    if run.ending() not in {"0", "1", "2", "3", "4", "5"}:
        return f"exit {run.ending()}: {run.stderr.strip()[:300]}"
    if run.code and not run.stderr.strip():
        return f"exit {run.code} without a word"
    return ""


def main() -> int:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ampc", default=os.environ.get("AMPC_BIN"), required="AMPC_BIN" not in os.environ)
    parser.add_argument("--corpus", help="taken like other judges do, and not needed")
    parser.add_argument("--cache", type=Path, help="where cases are written [conformance-cases beside the binary]")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="where models go that are a bug")
    args = parser.parse_args()
    cases = [case for case in conformance.cases(args.cache or conformance.cache_of(args.ampc)) if case.name.startswith("node/")]
    draw = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        models = []
        for i in range(args.count):
            case = draw.choice(cases)
            model = onnx.load(case.folder / "model.onnx")
            if model.graph.node:
                change(model, draw)
            models.append((case.name, Path(folder, f"{i}.onnx")))
            onnx.save(model, models[-1][1])
        found = pool.map(lambda item: judge(args.ampc, item[1]), models)
        wrong = [(name, path, what) for (name, path), what in zip(models, found) if what]
        for name, path, what in wrong:
            print(f"{path.name} of {name}: {what}", file=sys.stderr)
            if args.keep:
                args.keep.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, args.keep)
    print(f"mutations: {args.count - len(wrong)} of {args.count} end as they may")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
