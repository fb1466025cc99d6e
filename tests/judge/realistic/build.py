"""A small builder of ONNX models for the models of this folder, and the list of them.

A model is a function that takes a `Graph`, adds nodes to it, and is listed by `@model`::

    @model("toy_scores", pins=["add_mask", "softmax"])
    def toy_scores(g):
        x = g.input("x", [2, 16, 32], g.normal(2, 16, 32))
        w = g.weight("w", 32, 32)
        y = g.node("MatMul", [x, w], name="proj")
        g.output(y)

`pins` are names (or globs) of nodes that a careful engineer would keep in fp32, written before the model was ever
rewritten; `pins_bf16` those for bf16, if they differ.
"""

import dataclasses
import fnmatch
from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MODELS: dict[str, "Listed"] = {}


@dataclasses.dataclass
class Listed:
    """A model: what makes it, and what a person would keep in fp32."""

    name: str
    family: str
    make: Callable[["Graph"], None]
    pins: list[str]
    pins_bf16: list[str]
    opset: int


def model(name, *, pins=(), pins_bf16=None, opset=22):
    """Lists a function as a model; its family is the module that it is in."""

    def listed(make):
        assert name not in MODELS, name
        bf16 = list(pins if pins_bf16 is None else pins_bf16)
        MODELS[name] = Listed(name, make.__module__.rsplit(".", 1)[-1], make, list(pins), bf16, opset)
        return make

    return listed


class Graph:
    """What a model is made of, with the values that its inputs are given.

    Every model draws its numbers from a generator of its own, seeded by its name.
    """

    def __init__(self, name, opset):
        self.name, self.opset = name, opset
        self.nodes, self.initializers, self.inputs, self.outputs, self.functions = [], [], [], [], []
        self.values: dict[str, np.ndarray] = {}
        self.rng = np.random.default_rng(list(name.encode()))
        self.counts: dict[str, int] = {}

    def fresh(self, stem):
        self.counts[stem] = self.counts.get(stem, 0) + 1
        return f"{stem}_{self.counts[stem]}"

    def normal(self, *shape, scale=1.0):
        return (self.rng.standard_normal(shape) * scale).astype(np.float32)

    def uniform(self, low, high, *shape):
        return self.rng.uniform(low, high, shape).astype(np.float32)

    def input(self, name, shape, value):
        """An input, of shape `shape` (ints or names of symbolic dims), given `value` when the model is judged."""
        value = np.asarray(value)
        dtype = helper.np_dtype_to_tensor_dtype(value.dtype)
        self.inputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))
        self.values[name] = value
        return name

    def const(self, value, name=None, dtype=np.float32):
        """A constant (an initializer) with these values."""
        name = name or self.fresh("const")
        self.initializers.append(numpy_helper.from_array(np.asarray(value, dtype=dtype), name))
        return name

    def ints(self, *values):
        """A constant of i64 values, such as a shape or axes."""
        return self.const(list(values), dtype=np.int64)

    def weight(self, name, *shape, scale=None):
        """A random weight, scaled as usual: 1/sqrt of what is summed (all but the first dim of convolutions)."""
        fan = int(np.prod(shape[1:])) if len(shape) > 2 else shape[0]
        return self.const(self.normal(*shape, scale=scale or fan**-0.5), name)

    def node(self, op, inputs, name=None, outputs=1, domain="", **attrs):
        """A node; its result, or a tuple of them. Every node has a name, by which pins speak of it."""
        name = name or self.fresh(op.lower())
        results = [f"{name}_out"] if outputs == 1 else [f"{name}_out{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), results, name=name, domain=domain, **attrs))
        return results[0] if outputs == 1 else tuple(results)

    def linear(self, x, stem, n_in, n_out, bias=True, scale=None):
        y = self.node("MatMul", [x, self.weight(f"{stem}_w", n_in, n_out, scale=scale)], name=f"{stem}_mm")
        if bias:
            y = self.node("Add", [y, self.const(self.normal(n_out, scale=0.02), f"{stem}_b")], name=f"{stem}_add")
        return y

    def conv(self, x, stem, c_in, c_out, k, bias=True, **attrs):
        inputs = [x, self.weight(f"{stem}_w", c_out, c_in, *([k] * attrs.pop("dims", 2)))]
        if bias:
            inputs.append(self.const(self.normal(c_out, scale=0.02), f"{stem}_b"))
        return self.node("Conv", inputs, name=f"{stem}_conv", **attrs)

    def layer_norm(self, x, stem, n):
        inputs = [x, self.const(np.ones(n), f"{stem}_g"), self.const(np.zeros(n), f"{stem}_beta")]
        return self.node("LayerNormalization", inputs, name=f"{stem}_ln")

    def output(self, *values):
        self.outputs.extend(values)

    def proto(self):
        """The model, checked, with the types of its outputs as inference finds them."""
        outputs = [onnx.ValueInfoProto(name=name) for name in self.outputs]
        graph = helper.make_graph(self.nodes, self.name, self.inputs, outputs, self.initializers)
        imports = [helper.make_opsetid("", self.opset)]
        for domain in sorted({node.domain for node in self.nodes if node.domain}):
            imports.append(helper.make_opsetid(domain, 1))
        made = helper.make_model(graph, opset_imports=imports, ir_version=10)
        made = onnx.shape_inference.infer_shapes(made)
        for output in made.graph.output:
            if not output.type.HasField("tensor_type"):
                output.type.CopyFrom(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
        onnx.checker.check_model(made, full_check=True)
        return made


def build(name):
    """The model of that name, and the values of its inputs."""
    listed = MODELS[name]
    graph = Graph(name, listed.opset)
    listed.make(graph)
    named = {node.name for node in graph.nodes}
    for pin in listed.pins + listed.pins_bf16:
        assert "/" in pin or any(fnmatch.fnmatchcase(node, pin) for node in named), f"{name}: no node is named {pin}"
    return graph.proto(), graph.values
