"""Models in float64, which the CPU runtime of ampc computes: ONNX Runtime has no convolutions in it, for one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

import ampc

NARROW, WIDE = onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE
# Operands that ONNX has in float32 only.
ALWAYS_NARROW = {("Resize", 1), ("Resize", 2), ("Upsample", 1)}


def widened(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with float64 for float32."""
    narrow = {node.input[i] for node in model.graph.node for op, i in ALWAYS_NARROW if node.op_type == op and i < len(node.input)}

    def tensor(data: onnx.TensorProto) -> None:
        if data.data_type == NARROW:
            data.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(data).astype(np.float64), data.name))

    del model.graph.value_info[:]
    for data in model.graph.initializer:
        if data.name not in narrow:
            tensor(data)
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type == NARROW:
            value.type.tensor_type.elem_type = WIDE
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR and not narrow.intersection(node.output):
                tensor(attribute.t)
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == NARROW:
                attribute.i = WIDE
    return model


def widened_feeds(feeds: dict) -> dict:
    """Values with float64 for float32."""
    return {name: value.astype(np.float64) if value.dtype == np.float32 else value for name, value in feeds.items()}


def run(binary: str, model: Path, feeds: dict, timeout: float = 300) -> dict:
    """What the CPU runtime of ampc computes of a model, by name; {"error": what it said} where it refuses."""
    given, found = model.parent / "feeds.npz", model.parent / "found.npz"
    np.savez(given, **feeds)
    options = ["--inputs", str(given), "--outputs", str(found), "--force", "-q"]
    done = ampc.execute(binary, model, *options, timeout=timeout)
    return dict(np.load(found)) if done.code == 0 else {"error": done.stderr}
