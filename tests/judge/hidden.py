#!/usr/bin/env python3
"""Three graphs whose fp16 errors ONNX Runtime's CPU provider hides: it computes in fp32 behind casts that it takes out.

A layer norm spelled out on activations around 400, a mask of -1e9 before a softmax, a shape computed in floats
(testdata/hidden). Lowered with `--policy all` each has to be caught by `ampc verify`, and `rewrite --verify` has to write
nothing; with the default policy each has to agree. 60000 · 4 in a graph of fp16 has to be infinite.

    tests/judge/hidden.py --ampc target/release/ampc
"""

from __future__ import annotations

import os
import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

import ampc
import measure

MODELS = Path(__file__).resolve().parents[2] / "testdata" / "hidden"
DIMS = {"float_shape": ("--dim", "N=4099")}


def overflow(binary: str, folder: Path) -> str:
    info = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT16, [1])
    graph = helper.make_graph([helper.make_node("Mul", ["x", "y"], ["z"])], "overflow", [info("x"), info("y")], [info("z")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), folder / "mul.onnx")
    np.savez(folder / "in.npz", x=np.array([60000], np.float16), y=np.array([4], np.float16))
    run = measure.run([binary, "run", str(folder / "mul.onnx"), "--inputs", str(folder / "in.npz"), "--outputs", str(folder / "out.npz"), "-q"])
    if run.code != 0:
        return ampc.problem(run)
    with np.load(folder / "out.npz") as arrays:
        found = arrays["z"]
    return "" if np.isposinf(found).all() else f"60000 · 4 is {found}"


def judge(binary: str, source: Path, folder: Path) -> list[str]:
    """What is wrong."""
    wrong = []
    more = ("--random", "1", *DIMS.get(source.stem, ()))
    for policy, code in (("all", 1), ("safe", 0)):
        output = folder / f"{source.stem}.{policy}.onnx"
        run = ampc.rewrite(binary, source, output, "--policy", policy, "-q")
        if run.code != 0:
            return [ampc.problem(run)]
        run = measure.run([binary, "verify", str(source), str(output), *more, "-q"])
        if run.code != code:
            wrong.append(f"verify with policy {policy}: exit {run.ending()}, expected {code}")
        output.unlink()
        run = measure.run([binary, "rewrite", str(source), "-o", str(output), "--policy", policy, "--verify", *more, "-q"])
        if run.code != code or output.exists() != (code == 0):
            wrong.append(f"rewrite --verify with policy {policy}: exit {run.ending()}, expected {code}; written: {output.exists()}")
    return wrong


def main() -> int:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ampc", default=os.environ.get("AMPC_BIN"), help="the binary [AMPC_BIN]")
    parser.add_argument("--corpus", help="not used; other judges have it")
    args = parser.parse_args()
    if not args.ampc or not Path(args.ampc).exists():
        parser.error("no binary: give --ampc or set AMPC_BIN")
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        binary = str(Path(args.ampc).resolve())
        sources = sorted(MODELS.glob("*.ir"))
        for source in sources:
            for text in judge(binary, source, Path(name)):
                bad += 1
                print(f"{source.stem}: {text}")
        if text := overflow(binary, Path(name)):
            bad += 1
            print(f"overflow: {text}")
    print(f"hidden: {len(sources) + 1} cases, {bad} wrong")
    return 1 if bad or not sources else 0


if __name__ == "__main__":
    sys.exit(main())
