"""Pieces that the models of several families are made of."""

import numpy as np
from onnx import TensorProto, helper

from .build import Graph


def op(g, kind, *inputs, name=None, **attrs):
    """A node whose inputs may be numbers or arrays too, which become f32 constants."""
    inputs = [value if isinstance(value, str) else g.const(value) for value in inputs]
    return g.node(kind, inputs, name=name, **attrs)


def constant(g, value, name, dtype=np.float32):
    """A constant written as a Constant node instead of an initializer."""
    value = np.asarray(value, dtype=dtype)
    kind = helper.np_dtype_to_tensor_dtype(value.dtype)
    tensor = helper.make_tensor(f"{name}_value", kind, value.shape, value.flatten())
    return g.node("Constant", [], name=name, value=tensor)


def cast(g, x, name, to=TensorProto.FLOAT):
    return g.node("Cast", [x], name=name, to=to)


def reduce(g, kind, x, axes, name, keepdims=1):
    """A reduction over `axes`, given as the opset wants them."""
    if kind != "ReduceSum" and g.opset < 18:
        return g.node(kind, [x], name=name, axes=list(axes), keepdims=keepdims)
    return g.node(kind, [x, g.ints(*axes)], name=name, keepdims=keepdims)


def unsqueeze(g, x, axes, name):
    return g.node("Unsqueeze", [x, g.ints(*axes)], name=name)


def reshape(g, x, shape, name):
    return g.node("Reshape", [x, g.ints(*shape)], name=name)


def span(g, x, first, last, axis, name, step=1):
    """Slice of one axis."""
    return g.node("Slice", [x, g.ints(first), g.ints(last), g.ints(axis), g.ints(step)], name=name)


def split(g, x, parts, axis, name):
    """Equal parts of x along an axis."""
    return g.node("Split", [x], name=name, outputs=parts, axis=axis, num_outputs=parts)


def count(g, n, name):
    """0, 1, ... n-1 as f32, by a Range; `n` is an int or the name of a scalar i64."""
    limit = n if isinstance(n, str) else g.const(n, dtype=np.int64)
    steps = g.node("Range", [g.const(0, dtype=np.int64), limit, g.const(1, dtype=np.int64)], name=name)
    return cast(g, steps, f"{name}_f")


def heads_of(g, x, stem, heads, size):
    """[B, N, heads*size] as [B, heads, N, size]."""
    y = reshape(g, x, [0, 0, heads, size], f"{stem}_split")
    return g.node("Transpose", [y], name=f"{stem}_heads", perm=[0, 2, 1, 3])


def project_qkv(g, x, heads, size, context=None):
    """Queries of x, keys and values of the context (or of x), by heads."""
    width, context = heads * size, context or x
    return [heads_of(g, g.linear(of, stem, width, width), stem, heads, size)
            for stem, of in (("q", x), ("k", context), ("v", context))]


def dot_scores(g, q, k, size):
    """q·kᵀ/√size."""
    kt = g.node("Transpose", [k], name="k_t", perm=[0, 1, 3, 2])
    return op(g, "Mul", g.node("MatMul", [q, kt], name="scores_mm"), size**-0.5, name="scores_scale")


def merge_heads(g, x, width, stem="out"):
    """[B, heads, N, size] as [B, N, width], then a projection."""
    x = g.node("Transpose", [x], name=f"{stem}_merge", perm=[0, 2, 1, 3])
    return g.linear(reshape(g, x, [0, 0, width], f"{stem}_flat"), stem, width, width)


def attend(g, scores, v, width):
    """softmax(scores)·v, projected."""
    probs = g.node("Softmax", [scores], name="softmax", axis=-1)
    return merge_heads(g, g.node("MatMul", [probs, v], name="attend_mm"), width)


def mlp(g, x, stem, widths, act="Relu"):
    """Linear layers of these widths with an activation between them."""
    for i, (n_in, n_out) in enumerate(zip(widths[:-1], widths[1:])):
        if i:
            x = g.node(act, [x], name=f"{stem}{i}_act")
        x = g.linear(x, f"{stem}{i}", n_in, n_out)
    return x


def silu(g, x, stem):
    return g.node("Mul", [x, g.node("Sigmoid", [x], name=f"{stem}_sig")], name=f"{stem}_silu")


class Body(Graph):
    """The graph of a Scan, Loop or If: its names do not meet those of the graph around it."""

    def __init__(self, outer, name):
        super().__init__(name, outer.opset)
        self.rng, self.counts = outer.rng, outer.counts

    def entry(self, name, shape, dtype=TensorProto.FLOAT):
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def graph(self, *outputs):
        """The body's graph; an output is (name of the value, shape) or (name, shape, dtype)."""
        infos = [helper.make_tensor_value_info(o[0], o[2] if len(o) > 2 else TensorProto.FLOAT, o[1])
                 for o in outputs]
        return helper.make_graph(self.nodes, self.name, self.inputs, infos, self.initializers)
