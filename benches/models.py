"""Generates the models of the benchmark.

    models.py chain NODES OUTPUT       a chain with a node that every tool keeps in fp32 (CumSum) in each four
    models.py weights LAYERS OUTPUT    LAYERS MatMul nodes of 1024 x 1024, 4 MiB of weights each

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


if __name__ == "__main__":
    kind, count, path = sys.argv[1:]
    {"chain": chain, "weights": weights}[kind](int(count), Path(path))
