"""Variants of a model that a compiler must treat alike: without value_info, and with false value_info."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Iterator

import onnx
from onnx import TensorProto

DTYPES = [TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.DOUBLE, TensorProto.BOOL]


def graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The main graph, and the bodies within it and within functions."""
    stack = [model.graph]
    loose = [node for function in model.functions for node in function.node]
    while stack or loose:
        nodes = loose
        loose = []
        if stack:
            graph = stack.pop()
            yield graph
            nodes = [*nodes, *graph.node]
        for node in nodes:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    stack.append(attribute.g)
                stack.extend(attribute.graphs)


def strip(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without any value_info."""
    for graph in graphs(model):
        del graph.value_info[:]
    for function in model.functions:
        del function.value_info[:]
    return model


def corrupt(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """The model with a wrong type or shape for every inner value of every graph."""
    rng = random.Random(seed)
    for graph in graphs(strip(model)):
        public = {value.name for value in [*graph.input, *graph.output]}
        for name in [out for node in graph.node for out in node.output if out and out not in public]:
            shape = [rng.choice([0, 1, 3, 7, 4096]) for _ in range(rng.randrange(5))]
            graph.value_info.append(onnx.helper.make_tensor_value_info(name, rng.choice(DTYPES), shape))
    return model


def save_variant(source: Path, folder: Path, model: onnx.ModelProto) -> Path:
    """Writes a variant under the source's name, external data beside it."""
    folder.mkdir()
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location" and not (folder / entry.value).exists():
                (folder / entry.value).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source.parent / entry.value, folder / entry.value)
    path = folder / source.name
    path.write_bytes(model.SerializeToString(deterministic=True))
    return path


def load(source: Path) -> onnx.ModelProto:
    """A model with its external data left where it is."""
    return onnx.load(source, load_external_data=False)


def files(folder: Path) -> dict[str, bytes]:
    """Everything in a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
