"""Short spellings of nodes: a `Part` names its nodes with a stem, by which pins speak of them."""

import numpy as np
from onnx import TensorProto

from .parts import constant

FMIN = float(np.finfo(np.float32).min)
INT64, BOOL, FLOAT = TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT


def ints(*values):
    return np.array(values, np.int64)


class Part:
    """Adds nodes named `{stem}_{op}_{n}`, or `{stem}_{name}`; inputs may be names, numbers or arrays."""

    def __init__(self, g, stem, constants=False):
        self.g, self.stem, self.constants = g, stem, constants

    def value(self, v):
        if isinstance(v, str):
            return v
        typed = isinstance(v, (np.ndarray, np.generic)) and np.asarray(v).dtype.kind in "iub"
        dtype = np.asarray(v).dtype if typed else np.float32
        if self.constants:
            return constant(self.g, v, self.g.fresh(f"{self.stem}_constant"), dtype)
        return self.g.const(v, dtype=dtype)

    def __call__(self, kind, *inputs, name=None, **attrs):
        name = f"{self.stem}_{name}" if name else self.g.fresh(f"{self.stem}_{kind.lower()}")
        return self.g.node(kind, [self.value(v) if v is not None else "" for v in inputs], name=name, **attrs)

    def red(self, kind, x, *axes, keep=1, name=None):
        if kind != "ReduceSum" and self.g.opset < 18:
            return self(kind, x, name=name, axes=list(axes), keepdims=keep)
        return self(kind, x, ints(*axes), name=name, keepdims=keep)

    def cast(self, x, to=FLOAT, name=None):
        return self("Cast", x, to=to, name=name)

    def count(self, n):
        """0, 1, ... n-1 as f32; `n` is an int or a scalar i64's name."""
        return self.cast(self("Range", np.int64(0), n if isinstance(n, str) else np.int64(n), np.int64(1)))

    def dim(self, x, axis):
        """The size of an axis, a scalar i64."""
        return self("Gather", self("Shape", x), np.int64(axis), axis=0)

    def reshape(self, x, *shape):
        return self("Reshape", x, ints(*shape))

    def unsq(self, x, *axes):
        return self("Unsqueeze", x, ints(*axes))

    def sq(self, x, *axes):
        return self("Squeeze", x, ints(*axes))

    def perm(self, x, *perm):
        return self("Transpose", x, perm=list(perm))

    def cut(self, x, first, last, axis, step=1):
        return self("Slice", x, ints(first), ints(last), ints(axis), ints(step))

    def cat(self, axis, *xs):
        return self("Concat", *xs, axis=axis)

    def parts(self, x, axis, *sizes):
        return self("Split", x, ints(*sizes), axis=axis, outputs=len(sizes))

    def square(self, x):
        return self("Mul", x, x)


def norm_written_out(g, x, stem, n, eps=1e-5):
    """Layer norm as exporters write it below opset 17."""
    p = Part(g, f"{stem}_norm")
    d = p("Sub", x, p.red("ReduceMean", x, -1))
    v = p.red("ReduceMean", p("Pow", d, 2.0), -1)
    y = p("Div", d, p("Sqrt", p("Add", v, eps)))
    return p("Add", p("Mul", y, np.ones(n)), np.zeros(n))


def relu_conv(g, x, stem, c_in, c_out, k=3, stride=1):
    y = g.conv(x, stem, c_in, c_out, k, pads=[k // 2] * 4, strides=[stride, stride])
    return g.node("Relu", [y], name=f"{stem}_relu")


def smooth_image(g, *shape, low=0.0, high=255.0):
    """Something like a photograph: smooth shapes and a little noise, whole numbers where the range is 0..255."""
    h, w = shape[-2:]
    yy, xx = np.mgrid[0:h, 0:w]
    flat = np.zeros((int(np.prod(shape[:-2])), h, w))
    for image in flat:
        for _ in range(6):
            fy, fx, ph = g.rng.uniform(-3, 3), g.rng.uniform(-3, 3), g.rng.uniform(0, 6.28)
            image += np.sin(2 * np.pi * (fy * yy / h + fx * xx / w) + ph) * g.rng.uniform(0.3, 1)
        image += g.rng.standard_normal((h, w)) * 0.1
        image -= image.min()
        image /= image.max()
    y = low + flat.reshape(shape) * (high - low)
    return (np.round(y) if high == 255.0 else y).astype(np.float32)


def pixel_grid(p, h, w):
    """x and y of the pixels, [h, w] each, by Ranges and Expands."""
    x = p("Expand", p.unsq(p.count(w), 0), ints(h, w))
    y = p("Expand", p.unsq(p.count(h), 1), ints(h, w))
    return x, y
