"""Generates the models of the benchmark.

    models.py chain NODES OUTPUT       a chain with a node that every tool keeps in fp32 (CumSum) in each four
    models.py weights LAYERS OUTPUT    LAYERS MatMul nodes of 1024 x 1024, 4 MiB of weights each
    models.py captures VALUES OUTPUT   an If in an If in a Loop, the innermost of which reads VALUES values of the graph
    models.py readers NODES OUTPUT     NODES If nodes whose branches all read the same value

Weights are written one by one: the file is never in memory.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH = 1024


def chain(nodes: int, output: Path) -> None:
    """MatMul, Add, Softmax, CumSum, over and over."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.uniform(-0.5, 0.5, shape).astype(np.float32), name)
        for name, shape in (("w", (16, 16)), ("b", (16,)))
    ]
    weights.append(numpy_helper.from_array(np.array(1, np.int64), "axis"))
    kinds = [("MatMul", ["w"]), ("Add", ["b"]), ("Softmax", []), ("CumSum", ["axis"])]
    made, value = [], "x"
    for index in range(nodes):
        op, extra = kinds[index % len(kinds)]
        result = "y" if index == nodes - 1 else f"v{index}"
        made.append(helper.make_node(op, [value, *extra], [result], f"n{index}"))
        value = result
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 16]) for name in "xy"]
    graph = helper.make_graph(made, "chain", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), output)


def _varint(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _field(number: int, size: int) -> bytes:
    """The head of a length-delimited protobuf field."""
    return _varint(number << 3 | 2) + _varint(size)


def weights(layers: int, output: Path) -> None:
    """A chain of products; the initializers are appended to the graph message as they are made."""
    size = WIDTH * WIDTH * 4
    names = ["x", *(f"v{i}" for i in range(layers - 1)), "y"]
    made = [helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]], f"n{i}") for i in range(layers)]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, WIDTH]) for name in "xy"]
    graph = helper.make_graph(made, "weights", ports[:1], ports[1:]).SerializeToString()
    heads = [
        TensorProto(dims=[WIDTH, WIDTH], data_type=TensorProto.FLOAT, name=f"w{i}").SerializeToString() + _field(9, size)
        for i in range(layers)
    ]
    inner = [_field(5, len(head) + size) + head for head in heads]
    total = len(graph) + sum(len(head) + size for head in inner)
    rest = onnx.ModelProto(ir_version=8, opset_import=[helper.make_opsetid("", 17)])
    rng = np.random.default_rng(0)
    with open(output, "wb") as file:
        file.write(rest.SerializeToString() + _field(7, total) + graph)
        for head in inner:
            file.write(head)
            file.write((rng.standard_normal((WIDTH, WIDTH), dtype=np.float32) / np.float32(32)).tobytes())


def _save(made: list, output: Path, weights: list) -> None:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [8, 16]) for name in "xy"]
    graph = helper.make_graph(made, "bodies", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), output)


def _body(name: str, nodes: list, result: str, inputs: list = (), before: list = ()) -> onnx.GraphProto:
    info = helper.make_tensor_value_info(result, TensorProto.FLOAT, [8, 16])
    return helper.make_graph(nodes, name, list(inputs), [*before, info])


def captures(values: int, output: Path) -> None:
    """Every second value is made in fp32 (Exp), the others in fp16; the innermost body reads all, twice."""
    made = [helper.make_node("Relu" if i % 2 else "Exp", ["x"], [f"v{i}"], f"n{i}") for i in range(values)]
    read = [helper.make_node("Add", ["s" if i == 0 else f"s{i - 1}", f"v{i}"], [f"s{i}"]) for i in range(values)]
    more = [helper.make_node("Mul", ["s" if i == 0 else f"m{i - 1}", f"v{i}"], [f"m{i}"]) for i in range(values)]
    last = values - 1
    inner = {"then_branch": _body("t2", read, f"s{last}"), "else_branch": _body("e2", more, f"m{last}")}
    both = [helper.make_node("If", ["c"], ["w"], "inner", **inner)]
    other = [helper.make_node("Relu", ["s"], ["z"])]
    outer = {"then_branch": _body("t1", both, "w"), "else_branch": _body("e1", other, "z")}
    body = [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("If", ["c"], ["next"], "outer", **outer)]
    inputs = [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        helper.make_tensor_value_info("s", TensorProto.FLOAT, [8, 16]),
    ]
    on = helper.make_tensor_value_info("on", TensorProto.BOOL, [])
    loop = _body("body", body, "next", inputs, [on])
    made.append(helper.make_node("Loop", ["n", "c", "x"], ["y"], "loop", body=loop))
    constants = [numpy_helper.from_array(np.array(3, np.int64), "n"), numpy_helper.from_array(np.array(True), "c")]
    _save(made, output, constants)


def readers(nodes: int, output: Path) -> None:
    """A value in fp32 that every If reads in both branches, each handing its result to the next."""
    made, value = [helper.make_node("Exp", ["x"], ["v"], "v")], "x"
    for i in range(nodes):
        result = "y" if i == nodes - 1 else f"r{i}"
        then = _body(f"t{i}", [helper.make_node("MatMul", [value, "w"], [f"a{i}"]),
                               helper.make_node("Add", [f"a{i}", "v"], [f"t{i}"])], f"t{i}")
        other = _body(f"e{i}", [helper.make_node("Mul", [value, "v"], [f"e{i}"])], f"e{i}")
        made.append(helper.make_node("If", ["c"], [result], f"n{i}", then_branch=then, else_branch=other))
        value = result
    constants = [numpy_helper.from_array(np.array(True), "c"), numpy_helper.from_array(np.eye(16, dtype=np.float32), "w")]
    _save(made, output, constants)


if __name__ == "__main__":
    kind, count, path = sys.argv[1:]
    {"chain": chain, "weights": weights, "captures": captures, "readers": readers}[kind](int(count), Path(path))
