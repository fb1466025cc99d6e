"""Moves casts of random chains of operators that only move numbers, and runs both models in ONNX Runtime.

`move-casts` lets casts pass what moves numbers, leave loops, and read around each other: every output must be the same
bit by bit, of infinities, NaN, zeros of both signs and subnormal numbers too. Chains that cast floats to integers get
small numbers, as what else becomes is not defined.

    motion.py --ampc BIN [--count N] [--seed N]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

import ampc
import numpy as np
import onnx
from onnx import TensorProto, helper
from tasks import _session, check

TYPES = {
    TensorProto.FLOAT: np.float32,
    TensorProto.DOUBLE: np.float64,
    TensorProto.INT32: np.int32,
    TensorProto.INT64: np.int64,
    TensorProto.BOOL: np.bool_,
    TensorProto.FLOAT16: np.float16,
}
FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-40, 65504.0, 65520.0, 1e30, 1 + 2**-11, 3.3, -2.5]
MOVERS = ["Slice", "Gather", "Expand", "Tile", "Transpose", "Reshape", "Unsqueeze", "Squeeze", "Identity", "Compress"]


class Chain:
    """A chain of casts and of operators that move numbers, with shapes kept on the way."""

    def __init__(self, random: np.random.Generator) -> None:
        self.random = random
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.shape = [int(n) for n in random.integers(1, 5, size=random.integers(1, 4))]
        self.given = (self.choice(list(TYPES)), list(self.shape))
        self.dtype = self.given[0]
        self.casts = [self.dtype]
        self.last = "x"
        self.outputs: list[tuple[str, int, list[int]]] = []

    def choice(self, of: list) -> object:
        return of[int(self.random.integers(len(of)))]

    def add(self, op: str, *operands: str, **attributes: object) -> None:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, [self.last, *operands], [name], name=f"n{len(self.nodes)}", **attributes))
        self.last = name

    def constant(self, value: object, dtype: type = np.int64) -> str:
        name = f"k{len(self.constants)}"
        is_cast = dtype == np.int64 and self.random.random() < 0.3
        self.constants.append(onnx.numpy_helper.from_array(np.asarray(value, np.int32 if is_cast else dtype), name))
        if not is_cast:
            return name
        # Shapes and indices are read by what moves numbers, and not moved.
        self.nodes.append(helper.make_node("Cast", [name], [f"{name}c"], name=f"{name}n", to=TensorProto.INT64))
        return f"{name}c"

    def step(self) -> None:
        if self.random.random() < 0.4:
            self.dtype = self.choice(list(TYPES))
            self.casts.append(self.dtype)
            self.add("Cast", to=self.dtype)
        else:
            self.move(str(self.choice(MOVERS)))
        if self.random.random() < 0.1:
            self.outputs.append((self.last, self.dtype, list(self.shape)))

    def move(self, op: str) -> None:
        axis = int(self.random.integers(len(self.shape))) if self.shape else None
        if axis is None or op in ("Identity", "Unsqueeze"):
            op = "Unsqueeze" if axis is None else op
            self.add(op, *([self.constant([0])] if op == "Unsqueeze" else []))
            self.shape = [1, *self.shape] if op == "Unsqueeze" else self.shape
        elif op == "Slice":
            end = int(self.random.integers(1, self.shape[axis] + 1))
            self.add(op, self.constant([0]), self.constant([end]), self.constant([axis]))
            self.shape[axis] = end
        elif op == "Gather":
            at = self.random.integers(0, self.shape[axis], size=self.random.integers(1, 6))
            self.add(op, self.constant(at), axis=axis)
            self.shape[axis] = len(at)
        elif op == "Expand":
            self.shape = [int(self.random.integers(2, 6)) if n == 1 else n for n in self.shape]
            self.add(op, self.constant(self.shape))
        elif op == "Tile":
            times = [int(n) for n in self.random.integers(1, 3, size=len(self.shape))]
            self.add(op, self.constant(times))
            self.shape = [a * b for a, b in zip(self.shape, times)]
        elif op == "Transpose":
            order = [int(n) for n in self.random.permutation(len(self.shape))]
            self.add(op, perm=order)
            self.shape = [self.shape[n] for n in order]
        elif op == "Reshape":
            self.add(op, self.constant([-1]))
            self.shape = [int(np.prod(self.shape))]
        elif op == "Squeeze" and 1 in self.shape:
            self.add(op, self.constant([self.shape.index(1)]))
            self.shape.remove(1)
        elif op == "Compress":
            keep = self.random.random(self.shape[axis]) < 0.5
            keep[0] = True
            self.add(op, self.constant(keep, np.bool_), axis=axis)
            self.shape[axis] = int(keep.sum())

    def model(self) -> onnx.ModelProto:
        """The chain, of which the second half may be in a loop that does not change what it reads."""
        inputs = [helper.make_tensor_value_info("x", *self.given)]
        outputs = [helper.make_tensor_value_info(*output) for output in dict.fromkeys((n, t, tuple(s)) for n, t, s in self.outputs)]
        if self.random.random() < 0.3 and self.dtype in (TensorProto.FLOAT, TensorProto.DOUBLE):
            return self.looped(inputs)
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)

    def looped(self, inputs: list[onnx.ValueInfoProto]) -> onnx.ModelProto:
        """A loop of three rounds that adds up what the chain makes."""
        value = lambda name, dtype=self.dtype, shape=self.shape: helper.make_tensor_value_info(name, dtype, shape)  # noqa: E731
        body = helper.make_graph(
            [*self.nodes, helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Add", ["h", self.last], ["next"])],
            "body",
            [value("i", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("h")],
            [value("on", TensorProto.BOOL, []), value("next")],
        )
        start = onnx.numpy_helper.from_array(np.zeros(self.shape, TYPES[self.dtype]), "start")
        rounds = onnx.numpy_helper.from_array(np.array(3, np.int64), "rounds")
        loop = helper.make_node("Loop", ["rounds", "", "start"], ["y"], body=body)
        graph = helper.make_graph([loop], "g", inputs, [value("y")], [*self.constants, start, rounds])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)

    def feed(self) -> np.ndarray:
        """Numbers for the input: special ones where every cast of them is defined."""
        dtype, shape = self.given
        to_integers = any(a in FLOATS and b not in FLOATS and b != TensorProto.BOOL for a, b in zip(self.casts, self.casts[1:]))
        numbers = self.random.integers(-100, 100, size=shape) + self.random.integers(0, 4, size=shape) / 4
        if dtype in FLOATS and not to_integers:
            special = self.random.choice(SPECIAL, size=shape)
            numbers = np.where(self.random.random(shape) < 0.5, special, numbers)
        with np.errstate(over="ignore"):
            return np.asarray(numbers).astype(TYPES[dtype])


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two tensors are the same bit by bit; NaN has many spellings."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    nan = np.isnan(a) & np.isnan(b) if a.dtype.kind == "f" else np.zeros(a.shape, bool)
    return a[~nan].tobytes() == b[~nan].tobytes()


def judge(binary: str, folder: Path, chain: Chain, counts: Counter[str]) -> str:
    """What is wrong with one chain."""
    source, moved = folder / "source.onnx", folder / "moved.onnx"
    onnx.save(chain.model(), source)
    if check(str(source)) != "ok":
        return f"source: {check(str(source))}"
    run = ampc.opt(binary, source, moved, "--passes", "move-casts", "--force")
    if run.code != 0:
        return ampc.problem(run)
    if check(str(moved)) != "ok":
        return check(str(moved))
    order = [[node.op_type for node in onnx.load(path).graph.node] for path in (source, moved)]
    counts["changed"] += order[0] != order[1] or onnx.load(source) != onnx.load(moved)
    fed = {"x": chain.feed()}
    results = [_session(str(path), optimize=False).run(None, fed) for path in (source, moved)]
    return "" if all(same(a, b) for a, b in zip(*results, strict=True)) else f"{order[0]} and {order[1]} differ"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="models [300]")
    parser.add_argument("--seed", type=int, default=1, help="which models [1]")
    parser.add_argument("--ampc", default=os.environ.get("AMPC_BIN"), help="the binary [AMPC_BIN]")
    parser.add_argument("--corpus", type=Path, help="not used: the models are random")
    args = parser.parse_args()
    if not args.ampc or not Path(args.ampc).exists():
        parser.error("no binary: give --ampc or set AMPC_BIN")
    random, counts, good = np.random.default_rng(args.seed), Counter(), 0
    with tempfile.TemporaryDirectory(prefix="ampc-motion-") as folder:
        for number in range(args.count):
            chain = Chain(random)
            for _ in range(int(random.integers(2, 9))):
                chain.step()
            chain.add("Identity")
            chain.outputs.append((chain.last, chain.dtype, list(chain.shape)))
            problem = judge(args.ampc, Path(folder), chain, counts)
            good += not problem
            if problem:
                print(f"FAIL {number}: {problem}")
    print(f"motion: {good} of {args.count} the same bit by bit, {counts['changed']} of them changed")
    return 0 if good == args.count and counts["changed"] > args.count // 10 else 1


if __name__ == "__main__":
    sys.exit(main())
