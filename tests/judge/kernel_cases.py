"""The cases of kernels.py: a node, its operands, and what it gives, written in NumPy from ONNX's operator text.

References are told nothing of ampc's kernels. Those of kind "same" are computed in float32 as the operator's formula
says; all others in float64, from formulas that do not cancel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Callable

import ml_dtypes
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from onnx import NodeProto, helper, numpy_helper

# The newest opset that ampc reads: the one with the most bf16.
OPSET = 28
MICROSOFT = "com.microsoft"
PAIRS = 1 << 20

Arrays = list[np.ndarray | None]
Make = Callable[[Any, np.random.Generator], Arrays]
F = np.float32


@dataclass
class Case:
    """A node, its operands in the low format and others, and its results."""

    op: str
    # Of the operands, widened: one array or a tuple of them. Floats are in the low format unless `stored` says otherwise.
    want: Callable[..., Any]
    operands: Make
    # "same": the same bits; "near": ties may differ; "sum": one ulp, or the bound; "exact": integers, the same bits
    kind: str
    # Values may be functions of the number of the element type.
    attributes: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    domain: str = ""
    opset: int = OPSET
    # Additions and roundings of float32 behind each element of the result: what the bound is multiplied with.
    terms: int = 0
    # The magnitudes that are added, from the operands; `want` of their absolute values if there is none.
    bound: Callable[..., Any] | None = None
    # The element type of float results that are not in the low format.
    stored: Any = None
    # The formats that its schema has; where ONNX has the schema, it says so itself.
    forms: tuple[str, ...] = ("fp16", "bf16")
    # The nodes, if there is more than one: from x0, x1, … to y0, y1, …
    nodes: Callable[[], list[NodeProto]] | None = None

    @property
    def title(self) -> str:
        return f"{self.op}{f' {self.name}' if self.name else ''}"


def all_patterns(dtype: Any, _: np.random.Generator) -> Arrays:
    return [np.arange(1 << 16, dtype=np.uint16).view(dtype)]


def patterns(count: int) -> Make:
    """Random bit patterns, so all magnitudes, infinities and NaN are there."""
    return lambda dtype, rng: [rng.integers(0, 1 << 16, PAIRS, dtype=np.uint16).view(dtype) for _ in range(count)]


pairs = patterns(2)


def normal(*shapes: tuple[int, ...], scale: float = 1.0) -> Make:
    return lambda dtype, rng: [(rng.standard_normal(s) * scale).astype(dtype) for s in shapes]


def positive(*shapes: tuple[int, ...]) -> Make:
    return lambda dtype, rng: [(0.5 + rng.random(s)).astype(dtype) for s in shapes]


def around(mean: float, *shapes: tuple[int, ...]) -> Make:
    """The first is far from 0, the others are around it."""
    return lambda dtype, rng: [(mean * (i == 0) + rng.standard_normal(s)).astype(dtype) for i, s in enumerate(shapes)]


def integers(*shapes: tuple[int, ...]) -> Make:
    """Small integers, of which sums of products stay exact in float32."""
    return lambda dtype, rng: [rng.integers(-3, 4, s).astype(dtype) for s in shapes]


def distinct(*shape: int) -> Make:
    """Numbers of which no two are alike: at most 512 of them."""
    size = math.prod(shape)
    return lambda dtype, rng: [(rng.permutation(size) - size // 2).reshape(shape).astype(dtype)]


def then(make: Make, *more: Any) -> Make:
    """Others behind them, as they are."""
    return lambda dtype, rng: [*make(dtype, rng), *more]


def ints(*numbers: Any) -> np.ndarray:
    return np.array(numbers, np.int64)


def int_scalar(number: int) -> np.ndarray:
    return np.array(number, np.int64)


def type_number(number: int) -> int:
    return number


# Functions of one number


def sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


def softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf, otypes=[np.float64])(x.astype(np.float64))


def gelu(x: np.ndarray) -> np.ndarray:
    """x/2 · (1 + erf(x/√2)), which is x/2 · erfc(-x/√2)."""
    return 0.5 * x * np.vectorize(math.erfc, otypes=[np.float64])(-x / math.sqrt(2))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """x/2 · (1 + tanh u), which is x · sigmoid(2u)."""
    return x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))


def mish(x: np.ndarray) -> np.ndarray:
    return x * np.tanh(softplus(x))


def swish(alpha: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: x * sigmoid(alpha * x)


def f32(number: float) -> float:
    """An attribute as it is stored."""
    return float(F(number))


UNARY: list[tuple[str, Callable[[np.ndarray], Any], str, dict[str, Any], str]] = [
    ("Abs", np.abs, "same", {}, ""), ("Neg", np.negative, "same", {}, ""), ("Ceil", np.ceil, "same", {}, ""),
    ("Floor", np.floor, "same", {}, ""), ("Round", np.rint, "same", {}, ""), ("Sqrt", np.sqrt, "same", {}, ""),
    ("Reciprocal", lambda x: F(1) / x, "same", {}, ""), ("Sign", np.sign, "same", {}, ""),
    ("Relu", lambda x: np.where(x < 0, F(0), x), "same", {}, ""),
    ("LeakyRelu", lambda x: np.where(x < 0, x * F(0.25), x), "same", {"alpha": 0.25}, ""),
    ("LeakyRelu", lambda x: np.where(x < 0, x * F(0.01), x), "same", {}, "default"),
    ("ThresholdedRelu", lambda x: np.where(x > F(0.5), x, F(0)), "same", {"alpha": 0.5}, ""),
    ("HardSigmoid", lambda x: np.clip(F(0.25) * x + F(0.5), F(0), F(1)), "same", {"alpha": 0.25, "beta": 0.5}, ""),
    ("HardSigmoid", lambda x: np.clip(F(0.2) * x + F(0.5), F(0), F(1)), "same", {}, "default"),
    ("Shrink", lambda x: np.where(x < F(-0.5), x + F(0.25), np.where(x > F(0.5), x - F(0.25), F(0))), "same", {"bias": 0.25, "lambd": 0.5}, ""),
    ("Identity", lambda x: x, "same", {}, ""), ("IsNaN", np.isnan, "same", {}, ""), ("IsInf", np.isinf, "same", {}, ""),
    ("Exp", np.exp, "near", {}, ""), ("Log", np.log, "near", {}, ""), ("Tanh", np.tanh, "near", {}, ""),
    ("Sin", np.sin, "near", {}, ""), ("Cos", np.cos, "near", {}, ""), ("Tan", np.tan, "near", {}, ""),
    ("Asin", np.arcsin, "near", {}, ""), ("Acos", np.arccos, "near", {}, ""), ("Atan", np.arctan, "near", {}, ""),
    ("Sinh", np.sinh, "near", {}, ""), ("Cosh", np.cosh, "near", {}, ""), ("Asinh", np.arcsinh, "near", {}, ""),
    ("Acosh", np.arccosh, "near", {}, ""), ("Atanh", np.arctanh, "near", {}, ""), ("Sigmoid", sigmoid, "near", {}, ""),
    ("Softplus", softplus, "near", {}, ""), ("Softsign", lambda x: x / (1 + np.abs(x)), "near", {}, ""),
    ("Erf", erf, "near", {}, ""), ("Gelu", gelu, "near", {}, ""), ("Gelu", gelu_tanh, "near", {"approximate": "tanh"}, "tanh"),
    ("Mish", mish, "near", {}, ""), ("Swish", swish(1.0), "near", {}, ""), ("Swish", swish(0.5), "near", {"alpha": 0.5}, "half"),
    ("Elu", lambda x: np.where(x < 0, np.expm1(x), x), "near", {}, ""),
    ("Elu", lambda x: np.where(x < 0, f32(0.3) * np.expm1(x), x), "near", {"alpha": 0.3}, "0.3"),
    ("Celu", lambda x: np.maximum(x, 0) + np.minimum(0, 2 * np.expm1(x / 2)), "near", {"alpha": 2.0}, ""),
    ("Selu", lambda x: np.where(x < 0, 1.67326319217681884765625 * np.expm1(x), x) * 1.05070102214813232421875, "near", {}, ""),
    ("HardSwish", lambda x: x * np.clip((x + 3) / 6, 0, 1), "near", {}, ""),
]


def elementwise() -> list[Case]:
    found = [Case(op, f, all_patterns, kind, attributes, name) for op, f, kind, attributes, name in UNARY]
    binary = {
        "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Max": np.maximum, "Min": np.minimum,
        "PRelu": lambda x, s: np.where(x < 0, s * x, x), "Equal": np.equal, "Greater": np.greater, "Less": np.less,
        "GreaterOrEqual": np.greater_equal, "LessOrEqual": np.less_equal,
    }
    found += [Case(op, f, pairs, "same") for op, f in binary.items()]
    three = patterns(3)
    number = lambda *values: lambda d, _: [np.array(v).astype(d) for v in values]
    found += [
        Case("Mod", np.fmod, pairs, "same", {"fmod": 1}),
        Case("Pow", np.power, pairs, "near"),
        Case("SwiGLU", lambda a, b: a * sigmoid(a) * b, normal((300, 70), (300, 70), scale=3.0), "near"),
        Case("Sum", lambda a, b, c: a + b + c, three, "same"),
        Case("Mean", lambda a, b, c: (a + b + c) / F(3), three, "same"),
        Case("Clip", lambda x, a, b: np.where(x < a, a, np.where(x > b, b, x)), lambda d, r: [*all_patterns(d, r), *number(-1.5, 2.0)(d, r)], "same"),
        Case("Mul", np.multiply, number([60000.0, 3e38], [4.0, 4.0]), "same", name="overflow"),
        Case("Add", np.add, normal((4, 1, 9), (7, 1)), "same", name="broadcast"),
        Case("Where", np.where, lambda d, rng: [rng.integers(0, 2, (5, 7)).astype(bool), *normal((5, 7), (7,))(d, rng)], "same"),
    ]
    finite = lambda d, r: [x[np.abs(x.astype(np.float64)) < 2.0**31] for x in all_patterns(d, r)]
    singles = lambda d, rng: [rng.integers(0, 1 << 32, PAIRS, dtype=np.uint32).view(F)]
    # Next to the middle between two numbers of the format, where rounding to float32 first goes astray.
    doubles = lambda d, rng: [np.concatenate([middles(d) * (1 + s * 2.0**-40) for s in (-1, 0, 1)])]
    found += [
        Case("Cast", lambda x: x, all_patterns, "same", {"to": 1}, "to float", stored=F),
        Case("Cast", lambda x: x.astype(np.float64), all_patterns, "same", {"to": 11}, "to double", stored=np.float64),
        Case("Cast", lambda x: x.astype(np.int32), finite, "same", {"to": 6}, "to int32"),
        Case("Cast", lambda x: x, singles, "same", {"to": type_number}, "of float"),
        Case("Cast", lambda x: x, doubles, "same", {"to": type_number}, "of double"),
        Case("CastLike", lambda x, _: x, lambda d, r: [*singles(d, r), np.zeros(1, d)], "same"),
        Case("BitCast", lambda x: x, all_patterns, "same", {"to": 4}, "to uint16", stored=np.uint16),
    ]
    microsoft = dict(domain=MICROSOFT)
    found += [
        Case("Gelu", gelu, all_patterns, "near", name="microsoft", **microsoft),
        Case("FastGelu", gelu_tanh, all_patterns, "near", **microsoft),
        Case("QuickGelu", swish(f32(1.702)), normal((300, 70), scale=3.0), "near", {"alpha": 1.702}, **microsoft),
        # The sum is rounded to float32.
        Case("BiasGelu", lambda a, b: gelu((a.astype(F) + b.astype(F)).astype(np.float64)), normal((300, 70), (70,)), "near", **microsoft),
    ]
    return found


def middles(dtype: Any) -> np.ndarray:
    """The middles between neighbouring numbers from 1 to 2."""
    digits = 10 if dtype == np.float16 else 7
    return 1 + (np.arange(1 << digits) + 0.5) * 2.0**-digits


# Movement


def depth_to_space(x: np.ndarray) -> np.ndarray:
    n, c, h, w = x.shape
    return x.reshape(n, 2, 2, c // 4, h, w).transpose(0, 3, 4, 1, 5, 2).reshape(n, c // 4, h * 2, w * 2)


def space_to_depth(x: np.ndarray) -> np.ndarray:
    n, c, h, w = x.shape
    return x.reshape(n, c, h // 2, 2, w // 2, 2).transpose(0, 3, 5, 1, 2, 4).reshape(n, c * 4, h // 2, w // 2)


def scattered(x: np.ndarray, i: np.ndarray, u: np.ndarray) -> np.ndarray:
    y = x.copy()
    np.put_along_axis(y, i, u, 0)
    return y


def scattered_nd(x: np.ndarray, i: np.ndarray, u: np.ndarray) -> np.ndarray:
    y = x.copy()
    for row, update in zip(i, u):
        y[tuple(row)] = update
    return y


def tensor_scattered(x: np.ndarray, u: np.ndarray, at: np.ndarray) -> np.ndarray:
    y = x.copy()
    for batch, begin in enumerate(at):
        y[batch, :, begin : begin + u.shape[2]] = u[batch]
    return y


def reversed_sequences(x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Time is axis 0, the batch axis 1."""
    y = x.copy()
    for batch, n in enumerate(lengths):
        y[:n, batch] = x[:n, batch][::-1]
    return y


def one_hot(i: np.ndarray, depth: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.where(np.arange(int(depth)) == i[..., None], values[1], values[0])


def top_k(x: np.ndarray, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    i = np.argsort(-x, axis=-1, kind="stable")[..., : int(k[0])]
    return np.take_along_axis(x, i, -1), i.astype(np.int64)


def hardmax(x: np.ndarray) -> np.ndarray:
    return (np.arange(x.shape[-1]) == x.argmax(-1)[..., None]).astype(x.dtype)


def max_unpooled(x: np.ndarray, i: np.ndarray) -> np.ndarray:
    y = np.zeros((1, 1, 4, 4), x.dtype)
    y.reshape(-1)[i.reshape(-1)] = x.reshape(-1)
    return y


def movement() -> list[Case]:
    x = normal((5, 7, 9))
    image = normal((2, 8, 4, 6))
    node = helper.make_node
    low = lambda values: lambda number: numpy_helper.from_array(np.array(values, np.float16 if number == 10 else ml_dtypes.bfloat16))
    axis_1 = {"axis": 1}
    found = [
        Case("Transpose", lambda x: x.transpose(2, 0, 1), x, "same", {"perm": [2, 0, 1]}),
        Case("Concat", lambda a, b: np.concatenate([a, b], 1), normal((3, 2, 4), (3, 5, 4)), "same", axis_1),
        Case("Slice", lambda x, *_: x[:, 6:1:-2], then(x, ints(6), ints(1), ints(1), ints(-2)), "same"),
        Case("Split", lambda x, s: (x[:, :3], x[:, 3:]), then(x, ints(3, 4)), "same", axis_1),
        Case("Gather", lambda x, i: np.take(x, i, 1), then(x, ints([3, -1], [0, 0])), "same", axis_1),
        Case("GatherElements", lambda x, i: np.take_along_axis(x, i, 1), then(normal((3, 4)), ints([0, 3], [1, 1], [2, 0])), "same", axis_1),
        Case("GatherND", lambda x, i: x[i[:, 0], i[:, 1]], then(x, ints([0, 1], [4, 6], [2, 2])), "same"),
        Case("ScatterElements", scattered, lambda d, r: [*normal((5, 3))(d, r), ints([4, 0, 2], [1, 3, 0]), *normal((2, 3))(d, r)], "same"),
        Case("Scatter", scattered, lambda d, r: [*normal((5, 3))(d, r), ints([4, 0, 2], [1, 3, 0]), *normal((2, 3))(d, r)], "same", opset=10),
        Case("ScatterND", scattered_nd, lambda d, r: [*normal((5, 3, 4))(d, r), ints([0, 1], [4, 2]), *normal((2, 4))(d, r)], "same"),
        Case("TensorScatter", tensor_scattered, then(normal((2, 3, 8, 4), (2, 3, 2, 4)), ints(1, 5)), "same"),
        Case("Pad", lambda x, p: np.pad(x, ((1, 2), (0, 0), (3, 0))), then(x, ints(1, 0, 3, 2, 0, 0)), "same"),
        Case("Pad", lambda x, p: np.pad(x, ((1, 2), (0, 0), (3, 0)), "reflect"), then(x, ints(1, 0, 3, 2, 0, 0)), "same", {"mode": "reflect"}, "reflect"),
        Case("Pad", lambda x, p: np.pad(x, ((1, 2), (0, 0), (3, 0)), "edge"), then(x, ints(1, 0, 3, 2, 0, 0)), "same", {"mode": "edge"}, "edge"),
        Case("CenterCropPad", lambda x, s: np.pad(x[:, 1:6], ((1, 2), (0, 0), (0, 0))), then(x, ints(8, 5, 9)), "same"),
        Case("Tile", lambda x, r: np.tile(x, (2, 1, 3)), then(x, ints(2, 1, 3)), "same"),
        Case("Expand", lambda x, s: np.broadcast_to(x, (4, 3, 5)), then(normal((3, 1)), ints(4, 3, 5)), "same"),
        Case("Reshape", lambda x, s: x.reshape(9, -1), then(x, ints(9, -1)), "same"),
        Case("Flatten", lambda x: x.reshape(35, 9), x, "same", {"axis": 2}),
        Case("Squeeze", lambda x, a: x[:, 0], then(normal((4, 1, 3)), ints(1)), "same"),
        Case("Unsqueeze", lambda x, a: x[:, None], then(normal((4, 3)), ints(1)), "same"),
        Case("Shape", lambda x: ints(*x.shape), x, "same"),
        Case("Size", lambda x: int_scalar(x.size), x, "same"),
        Case("DepthToSpace", depth_to_space, image, "same", {"blocksize": 2}),
        Case("SpaceToDepth", space_to_depth, image, "same", {"blocksize": 2}),
        Case("Trilu", lambda x, k: np.triu(x, 1), then(x, int_scalar(1)), "same"),
        Case("Compress", lambda x, c: np.compress(c, x, 1), then(x, np.array([1, 0, 0, 1, 1, 0, 1], bool)), "same", axis_1),
        Case("ReverseSequence", reversed_sequences, then(x, ints(1, 5, 2, 4, 3, 5, 1)), "same"),
        Case("OneHot", one_hot, lambda d, r: [ints(2, 0, 4), int_scalar(5), np.array([-1.5, 2.5], d)], "same"),
        Case("EyeLike", lambda x: np.eye(4, 6, 1, F), normal((4, 6)), "same", {"k": 1}),
        Case("Constant", lambda: np.array([1.5, -2.0], F), lambda d, r: [], "same", {"value": low([1.5, -2.0])}),
        Case("ConstantOfShape", lambda s: np.full((2, 3), 1.5, F), lambda d, r: [ints(2, 3)], "same", {"value": low([1.5])}),
        Case("Range", lambda a, b, c: np.arange(20, dtype=F) * c + a, lambda d, r: [np.array(v, d) for v in (1.0, 11.0, 0.5)], "same"),
        Case("NonZero", lambda x: np.stack(np.nonzero(x)).astype(np.int64), integers((7, 9)), "same"),
        Case("Unique", np.unique, integers((70,)), "same"),
        Case("TopK", top_k, then(distinct(8, 30), ints(7)), "same"),
        Case("ArgMax", lambda x: x.argmax(1)[:, None].astype(np.int64), distinct(8, 30), "same", axis_1),
        Case("ArgMin", lambda x: x.argmin(1)[:, None].astype(np.int64), distinct(8, 30), "same", axis_1),
        Case("Hardmax", hardmax, distinct(8, 30), "same"),
        Case("MaxPool", lambda x: sliding_window_view(x, (2, 2), (2, 3)).max((-2, -1)), normal((2, 3, 6, 6)), "same", {"kernel_shape": [2, 2]}),
        Case("GlobalMaxPool", lambda x: x.max((2, 3), keepdims=True), image, "same"),
        Case("MaxUnpool", max_unpooled, then(normal((1, 1, 2, 2)), ints([[[1, 6], [8, 15]]]).reshape(1, 1, 2, 2)), "same", {"kernel_shape": [2, 2], "strides": [2, 2]}),
        Case("MaxRoiPool", lambda x, r: x.reshape(1, 2, 2, 3, 2, 3).max((3, 5)), lambda d, r: [*normal((1, 2, 6, 6))(d, r), np.array([[0, 0, 0, 5, 5]], d)], "same", {"pooled_shape": [2, 2]}),
        Case("ReduceMax", lambda x, a: x.max(1), then(x, ints(1)), "same", {"keepdims": 0}),
        Case("ReduceMin", lambda x, a: x.min(1), then(x, ints(1)), "same", {"keepdims": 0}),
        Case("Resize", lambda x, *_: x.repeat(2, 2).repeat(3, 3), lambda d, r: [*image(d, r), None, np.array([1, 1, 2, 3], F)], "same", {"mode": "nearest"}, "nearest"),
        Case("Upsample", lambda x, s: x.repeat(2, 2).repeat(3, 3), lambda d, r: [*image(d, r), np.array([1, 1, 2, 3], F)], "same", opset=9),
        Case("Dropout", lambda x: x, x, "same"),
    ]
    sequence = [node("SequenceConstruct", ["x0"], ["s"]), node("SequenceInsert", ["s", "x1"], ["t"]), node("Constant", [], ["i"], value_int=1)]
    found += [
        Case("ConcatFromSequence", lambda a, b: np.concatenate([a, b]), normal((3, 2), (4, 2)), "same",
             nodes=lambda: [*sequence[:2], node("ConcatFromSequence", ["t"], ["y0"], axis=0)]),
        Case("SequenceAt", lambda a, b: b, normal((3, 2), (4, 2)), "same", nodes=lambda: [*sequence, node("SequenceAt", ["t", "i"], ["y0"])]),
        Case("SplitToSequence", lambda x: x[1:2], normal((3, 2)), "same",
             nodes=lambda: [node("SplitToSequence", ["x0"], ["t"], axis=0), sequence[2], node("SequenceAt", ["t", "i"], ["y0"])]),
        Case("Optional", lambda x: x, normal((3, 2)), "same", nodes=lambda: [node("Optional", ["x0"], ["o"]), node("OptionalGetElement", ["o"], ["y0"])]),
    ]
    return found


# Products, windows and reductions


def conv(x: np.ndarray, w: np.ndarray, b: Any = 0.0) -> np.ndarray:
    windows = sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), w.shape[2:], (2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, w) + np.reshape(b, (-1, 1, 1))


def conv_depthwise(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    windows = sliding_window_view(x, w.shape[2:], (2, 3))[:, :, ::2, ::2]
    return np.einsum("nchwij,cij->nchw", windows, w[:, 0])


def conv_transposed(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    n, _, h, width = x.shape
    y = np.zeros((n, w.shape[1], 2 * h + 1, 2 * width + 1), x.dtype)
    for i in range(h):
        for j in range(width):
            y[:, :, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3] += np.einsum("nc,cohw->nohw", x[:, :, i, j], w)
    return y


def conv_deformed(x: np.ndarray, w: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """All samples are half a pixel further, between four pixels."""
    x = np.pad(x, ((0, 0), (0, 0), (0, 1), (0, 1)))
    x = (x[:, :, 1:, 1:] + x[:, :, 1:, :-1] + x[:, :, :-1, 1:] + x[:, :, :-1, :-1]) / 4
    return np.einsum("nchwij,ocij->nohw", sliding_window_view(x, w.shape[2:], (2, 3)), w)


def col2im(x: np.ndarray, *_: np.ndarray) -> np.ndarray:
    y = np.zeros((2, 3, 5, 5), x.dtype)
    blocks = x.reshape(2, 3, 2, 2, 4, 4)
    for i in range(4):
        for j in range(4):
            y[:, :, i : i + 2, j : j + 2] += blocks[..., i, j]
    return y


def average_pooled(x: np.ndarray) -> np.ndarray:
    pad = lambda a: np.pad(a, ((0, 0), (0, 0), (1, 1), (1, 1)))
    add = lambda a: sliding_window_view(pad(a), (3, 3), (2, 3)).sum((-2, -1))
    return add(x) / add(np.ones_like(x))


def lp_pooled(x: np.ndarray) -> np.ndarray:
    return np.sqrt((sliding_window_view(x, (3, 3), (2, 3)) ** 2).sum((-2, -1)))


def bilinear(x: np.ndarray, h: float, w: float) -> np.ndarray:
    """The images `x` at a place between pixels; 0 around them."""
    y = 0
    for i in (math.floor(h), math.floor(h) + 1):
        for j in (math.floor(w), math.floor(w) + 1):
            if 0 <= i < x.shape[-2] and 0 <= j < x.shape[-1]:
                y = y + (1 - abs(h - i)) * (1 - abs(w - j)) * x[..., i, j]
    return y + np.zeros(x.shape[:-2])


def grid_sampled(x: np.ndarray, grid: np.ndarray) -> np.ndarray:
    y = np.zeros((*x.shape[:2], *grid.shape[1:3]))
    for n, i, j in np.ndindex(grid.shape[:3]):
        w, h = ((grid[n, i, j] + 1) * np.array([x.shape[3], x.shape[2]]) - 1) / 2
        y[n, :, i, j] = bilinear(x[n], h, w)
    return y


def roi_aligned(x: np.ndarray, rois: np.ndarray, batch: np.ndarray) -> np.ndarray:
    """Two by two bins of two by two samples each, half_pixel."""
    y = np.zeros((len(rois), x.shape[1], 2, 2))
    for r, (roi, n) in enumerate(zip(rois - 0.5, batch)):
        size = (roi[2:] - roi[:2]) / 2
        for i, j, a, b in np.ndindex(2, 2, 2, 2):
            h, w = roi[1] + (i + (a + 0.5) / 2) * size[1], roi[0] + (j + (b + 0.5) / 2) * size[0]
            y[r, :, i, j] += bilinear(x[n], h, w) / 4
    return y


def resized(x: np.ndarray, *_: Any) -> np.ndarray:
    """Twice as high and one and a half times as wide, half_pixel, linear."""
    def along(x: np.ndarray, axis: int, scale: float) -> np.ndarray:
        n = x.shape[axis]
        at = np.clip((np.arange(int(n * scale)) + 0.5) / scale - 0.5, 0, n - 1)
        low = np.floor(at).astype(int)
        high = np.minimum(low + 1, n - 1)
        part = (at - low).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
        return np.take(x, low, axis) * (1 - part) + np.take(x, high, axis) * part
    return along(along(x, 2, 2.0), 3, 1.5)


def affine_grid(theta: np.ndarray, size: np.ndarray) -> np.ndarray:
    line = lambda n: (2 * np.arange(n) + 1) / n - 1
    h, w = int(size[2]), int(size[3])
    ones = np.stack([*np.meshgrid(line(w), line(h)), np.ones((h, w))], -1)
    return np.einsum("hwk,nik->nhwi", ones, theta)


def permanent(x: np.ndarray) -> np.ndarray:
    a = np.abs(x)
    minor = lambda i, j: a[..., 1, i] * a[..., 2, j] + a[..., 1, j] * a[..., 2, i]
    return a[..., 0, 0] * minor(1, 2) + a[..., 0, 1] * minor(0, 2) + a[..., 0, 2] * minor(0, 1)


def sums() -> list[Case]:
    found = []
    flat = {"keepdims": 0}
    for make, kind in ((normal, "sum"), (integers, "exact")):
        found += [
            Case("MatMul", np.matmul, make((17, 1030), (1030, 23)), kind, name=kind, terms=1030),
            Case("MatMul", np.matmul, make((2, 3, 5, 64), (3, 64, 6)), kind, name=f"batched {kind}", terms=64),
            Case("MatMul", np.matmul, make((300,), (300, 40)), kind, name=f"vector {kind}", terms=300),
            Case("Gemm", lambda a, b, c: a.T @ b.T + c, make((600, 9), (11, 600), (11,)), kind, {"transA": 1, "transB": 1}, f"transposed {kind}", terms=601),
            Case("Conv", conv, make((2, 24, 9, 8), (16, 24, 3, 3)), kind, {"pads": [1, 1, 1, 1]}, kind, terms=216),
            Case("Conv", conv, make((2, 24, 9, 8), (16, 24, 3, 3), (16,)), kind, {"pads": [1, 1, 1, 1]}, f"bias {kind}", terms=217),
            Case("Conv", lambda x, w: np.einsum("nchw,oc->nohw", x, w[:, :, 0, 0]), make((1, 70, 5, 5), (6, 70, 1, 1)), kind, {}, f"1x1 {kind}", terms=70),
            Case("Conv", conv_depthwise, make((2, 6, 9, 9), (6, 1, 3, 3)), kind, {"group": 6, "strides": [2, 2]}, f"depthwise {kind}", terms=9),
            Case("ConvTranspose", conv_transposed, make((2, 20, 4, 5), (20, 3, 3, 3)), kind, {"strides": [2, 2]}, kind, terms=80),
            Case("Einsum", lambda a, b: np.einsum("bik,bjk->bij", a, b), make((3, 4, 130), (3, 5, 130)), kind, {"equation": "bik,bjk->bij"}, kind, terms=130),
            Case("FusedMatMul", lambda a, b: 0.5 * np.swapaxes(a, -1, -2) @ b, make((3, 60, 5), (3, 60, 7)), kind, {"transA": 1, "alpha": 0.5}, kind, MICROSOFT, terms=61),
            Case("TransposeMatMul", lambda a, b: np.swapaxes(a, -1, -2) @ b, make((3, 60, 5), (3, 60, 7)), kind, {"transA": 1}, kind, MICROSOFT, terms=60),
            Case("ReduceSum", lambda x, a: x.sum(-1), then(make((3, 3000)), ints(-1)), kind, flat, kind, terms=3000),
            Case("ReduceSum", lambda x, a: x.sum(0), then(make((3000, 3)), ints(0)), kind, flat, f"outer {kind}", terms=3000),
            Case("ReduceSumSquare", lambda x, a: (x * x).sum(-1), then(make((3, 300)), ints(-1)), kind, flat, kind, terms=300),
            Case("ReduceL1", lambda x, a: np.abs(x).sum(-1), then(make((3, 300)), ints(-1)), kind, flat, kind, terms=300),
            Case("CumSum", lambda x, a: x.cumsum(1), then(make((3, 300)), int_scalar(1)), kind, {}, kind, terms=300),
            Case("Col2Im", col2im, then(make((2, 12, 16)), ints(5, 5), ints(2, 2)), kind, {}, kind, terms=4),
            Case("ScatterElements", lambda x, i, u: scattered(x, i, np.take_along_axis(x, i, 0) + u),
                 lambda d, r, make=make: [*make((5, 3))(d, r), ints([4, 0, 2], [1, 3, 0]), *make((2, 3))(d, r)], kind, {"reduction": "add"}, f"add {kind}", terms=1),
        ]
    x = normal((5, 777))
    found += [
        Case("ReduceMean", lambda x, a: x.mean(-1), then(x, ints(-1)), "sum", flat, terms=777),
        Case("ReduceL2", lambda x, a: np.sqrt((x * x).sum(-1)), then(x, ints(-1)), "sum", flat),
        Case("ReduceProd", lambda x, a: x.prod(-1), then(positive((5, 20)), ints(-1)), "sum", flat),
        Case("ReduceLogSum", lambda x, a: np.log(x.sum(-1)), then(positive((5, 777)), ints(-1)), "sum", flat),
        Case("ReduceLogSumExp", lambda x, a: np.log(np.exp(x).sum(-1)), then(x, ints(-1)), "sum", flat),
        Case("CumProd", lambda x, a: x.cumprod(1), then(positive((5, 20)), int_scalar(1)), "sum"),
        Case("DeformConv", conv_deformed, lambda d, r: [*normal((2, 4, 7, 7), (3, 4, 3, 3))(d, r), np.full((2, 18, 5, 5), 0.5, d)], "sum", terms=144),
        Case("AveragePool", average_pooled, normal((2, 3, 7, 7)), "sum", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, terms=10),
        Case("GlobalAveragePool", lambda x: x.mean((2, 3), keepdims=True), normal((2, 5, 14, 14)), "sum", terms=196),
        Case("LpPool", lp_pooled, normal((2, 3, 7, 7)), "sum", {"kernel_shape": [3, 3]}),
        Case("GlobalLpPool", lambda x: np.sqrt((x * x).sum((2, 3), keepdims=True)), normal((2, 5, 14, 14)), "sum"),
        Case("Det", np.linalg.det, normal((50, 3, 3)), "sum", terms=16, bound=permanent),
        Case("Resize", resized, lambda d, r: [*normal((2, 3, 6, 8))(d, r), None, np.array([1, 1, 2, 1.5], F)], "sum", {"mode": "linear"}, "linear", terms=16, bound=lambda x, *_: resized(np.abs(x))),
        Case("GridSample", grid_sampled, lambda d, r: [*normal((2, 3, 6, 8))(d, r), *normal((2, 5, 5, 2), scale=0.5)(d, r)], "sum", terms=32, bound=lambda x, g: grid_sampled(np.abs(x), g)),
        Case("RoiAlign", roi_aligned, lambda d, r: [*normal((2, 3, 8, 8))(d, r), np.array([[1, 1, 5, 6], [2, 0, 7, 4.5]], d), ints(1, 0)], "sum", {"output_height": 2, "output_width": 2, "sampling_ratio": 2}, terms=32,
             bound=lambda x, *rest: roi_aligned(np.abs(x), *rest)),
        Case("AffineGrid", affine_grid, then(normal((2, 2, 3)), ints(2, 1, 5, 6)), "sum", terms=4, bound=lambda t, s: np.abs(t).sum(-1)[:, None, None] + np.zeros((2, 5, 6, 2))),
    ]
    return found


# Normalisation


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def log_softmax(x: np.ndarray) -> np.ndarray:
    """The greatest element is not in the sum, so that it may be near 1."""
    first = np.arange(x.shape[-1]) == x.argmax(-1)[..., None]
    away = x - x.max(-1, keepdims=True)
    # An infinite element is NaN away from itself, and with it the sum.
    return away - np.log1p(np.where(first & ~np.isnan(away), 0, np.exp(away)).sum(-1, keepdims=True))


def normalized(x: np.ndarray, axes: Any, epsilon: float = f32(1e-5)) -> np.ndarray:
    centered = x - x.mean(axes, keepdims=True)
    return centered / np.sqrt((centered * centered).mean(axes, keepdims=True) + epsilon)


def rms_normalized(x: np.ndarray, epsilon: float = f32(1e-5)) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon)


def layer_norm(x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
    return normalized(x, -1) * scale + bias


def channels(a: np.ndarray) -> np.ndarray:
    return a[:, None, None]


def by_group(a: np.ndarray) -> np.ndarray:
    return channels(np.repeat(a, 2))


def group_normalized(x: np.ndarray) -> np.ndarray:
    return normalized(x.reshape(2, 2, -1), -1).reshape(x.shape)


def batch_norm(x: np.ndarray, scale: np.ndarray, bias: np.ndarray, mean: np.ndarray, var: np.ndarray) -> np.ndarray:
    return (x - channels(mean)) / np.sqrt(channels(var) + f32(1e-5)) * channels(scale) + channels(bias)


def batch_norm_bound(x: np.ndarray, scale: np.ndarray, bias: np.ndarray, mean: np.ndarray, var: np.ndarray) -> np.ndarray:
    return np.abs((x - channels(mean)) / np.sqrt(channels(var) + f32(1e-5)) * channels(scale)) + np.abs(channels(bias))


def batch_statistics(x: np.ndarray, scale: np.ndarray, bias: np.ndarray, mean: np.ndarray, var: np.ndarray) -> tuple[np.ndarray, ...]:
    """In training: with mean and variance of the batch, and the running ones, of which a quarter stays."""
    now = x.mean((0, 2, 3)), x.var((0, 2, 3))
    return batch_norm(x, scale, bias, *now), 0.25 * mean + 0.75 * now[0], 0.25 * var + 0.75 * now[1]


def batch_statistics_bound(x: np.ndarray, scale: np.ndarray, bias: np.ndarray, mean: np.ndarray, var: np.ndarray) -> tuple[np.ndarray, ...]:
    now = x.mean((0, 2, 3)), x.var((0, 2, 3))
    return batch_norm_bound(x, scale, bias, *now), np.abs(mean) + np.abs(now[0]), np.abs(var) + now[1]


def local_response(x: np.ndarray) -> np.ndarray:
    squares = np.pad(x * x, ((0, 0), (1, 1), (0, 0), (0, 0)))
    around = squares[:, :-2] + squares[:, 1:-1] + squares[:, 2:]
    return x / (1 + f32(0.01) / 3 * around) ** 0.75


def norms() -> list[Case]:
    row = lambda mean: around(mean, (6, 96), (96,), (96,))
    image = lambda mean: around(mean, (2, 4, 5, 6), (4,), (4,))
    instance = lambda x, s, b: normalized(x, (2, 3)) * channels(s) + channels(b)
    # The last sum, of the scaled number and the bias, may cancel: what is before it is some ten roundings off.
    parts = lambda f: lambda x, s, b: np.abs(f(x) * s) + np.abs(b)
    image_parts = lambda f: lambda x, s, b: np.abs(f(x) * channels(s)) + np.abs(channels(b))
    found = [
        Case("Softmax", softmax, normal((9, 130), scale=5.0), "sum"),
        Case("Softmax", lambda x: softmax(x, 1), normal((9, 130, 3), scale=5.0), "sum", {"axis": 1}, "columns"),
        Case("LogSoftmax", log_softmax, normal((9, 130), scale=5.0), "sum"),
        Case("LogSoftmax", log_softmax, lambda d, r: [np.array([[0, -x, -x] for x in (3, 6, 9, 12, 15)], d)], "sum", name="near 0"),
        Case("LogSoftmax", log_softmax, lambda d, r: [np.array([[np.inf, 0, 1], [-np.inf, 0, 1]], d)], "sum", name="infinities"),
        Case("LogSoftmax", lambda x: np.swapaxes(log_softmax(np.swapaxes(x, 1, 2)), 1, 2), normal((9, 130, 3), scale=9.0), "sum", {"axis": 1}, "columns"),
    ]
    bias = [0.1, -2.5, 7.0]
    found.append(
        Case("ImageScaler", lambda x: x * f32(0.3) + channels(np.array(bias, F)), normal((2, 3, 5, 7), scale=3.0), "near", {"scale": 0.3, "bias": bias}, opset=9, forms=("fp16",))
    )
    for mean in (0.0, 400.0):
        at = f"at {mean:.0f}"
        found += [
            Case("LayerNormalization", layer_norm, row(mean), "sum", {}, at, terms=10, bound=parts(lambda x: normalized(x, -1))),
            Case("RMSNormalization", lambda x, s: rms_normalized(x) * s, around(mean, (6, 96), (96,)), "sum", {}, at),
            Case("SimplifiedLayerNormalization", lambda x, s: rms_normalized(x) * s, around(mean, (6, 96), (96,)), "sum", {}, at),
            Case("InstanceNormalization", instance, image(mean), "sum", {}, at, terms=10, bound=image_parts(lambda x: normalized(x, (2, 3)))),
            Case("GroupNormalization", lambda x, s, b: group_normalized(x) * channels(s) + channels(b), image(mean), "sum", {"num_groups": 2}, at,
                 terms=10, bound=image_parts(group_normalized)),
            Case("LayerNormalization", layer_norm, row(mean), "sum", {}, f"11 {at}", opset=11, terms=10, bound=parts(lambda x: normalized(x, -1))),
            Case("GroupNormalization", lambda x, s, b: group_normalized(x) * by_group(s) + by_group(b), around(mean, (2, 4, 5, 6), (2,), (2,)), "sum", {"num_groups": 2}, f"20 {at}",
                 opset=20, terms=10, bound=lambda x, s, b: np.abs(group_normalized(x) * by_group(s)) + np.abs(by_group(b))),
            Case("MeanVarianceNormalization", lambda x: normalized(x, (0, 2, 3), 0.0), around(mean, (2, 4, 5, 6)), "sum", {}, at),
            Case("BatchNormalization", batch_norm, lambda d, r, mean=mean: [*around(mean, (2, 4, 5, 6), (4,), (4,))(d, r), np.full(4, mean, d), *positive((4,))(d, r)], "sum", {}, at,
                 terms=10, bound=batch_norm_bound),
            Case("BatchNormalization", batch_statistics, lambda d, r, mean=mean: [*around(mean, (8, 4, 9, 9), (4,))(d, r), np.zeros(4, d), np.full(4, mean, d), *positive((4,))(d, r)], "sum",
                 {"training_mode": 1, "momentum": 0.25}, f"training {at}", terms=10, bound=batch_statistics_bound),
            Case("SkipLayerNormalization", lambda x, y, s, b: layer_norm(x + y, s, b), around(mean, (2, 3, 96), (2, 3, 96), (96,), (96,)), "sum", {"epsilon": 1e-5}, at, MICROSOFT,
                 terms=10, bound=lambda x, y, s, b: np.abs(normalized(x + y, -1) * s) + np.abs(b)),
            Case("SkipSimplifiedLayerNormalization", lambda x, y, s: rms_normalized(x + y) * s, around(mean, (2, 3, 96), (2, 3, 96), (96,)), "sum", {"epsilon": 1e-5}, at, MICROSOFT),
        ]
    found += [
        Case("LpNormalization", lambda x: x / np.sqrt((x * x).sum(-1, keepdims=True)), normal((6, 96)), "sum"),
        Case("LpNormalization", lambda x: x / np.abs(x).sum(-1, keepdims=True), normal((6, 96)), "sum", {"p": 1}, "1"),
        Case("LRN", local_response, normal((2, 7, 4, 4), scale=9.0), "sum", {"size": 3, "alpha": 0.01}),
    ]
    return found


# Attention, recurrence, losses


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    return softmax(q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])) @ v


def attention_bound(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """An error of a score is one of its weight, relatively."""
    scores = np.abs(q) @ np.swapaxes(np.abs(k), -1, -2) / math.sqrt(q.shape[-1])
    weights = softmax(q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1]))
    return (1 + 2 * scores.max(-1, keepdims=True)) * (weights @ np.abs(v))


def rotated(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, at: np.ndarray, sign: float = -1.0) -> np.ndarray:
    a, b = np.split(x, 2, -1)
    cos, sin = cos[at][:, None], sin[at][:, None]
    return np.concatenate([cos * a + sign * sin * b, sin * a + cos * b], -1)


def linear_attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, past: np.ndarray, decay: np.ndarray, beta: np.ndarray, sign: float = -1.0) -> tuple[np.ndarray, np.ndarray]:
    """gated_delta with two heads of eight; with 1 for the sign, the magnitudes that are added."""
    heads = lambda x: x.reshape(*x.shape[:2], 2, -1)
    q, k, v, state = heads(q), heads(k), heads(v), past.copy()
    y = np.zeros_like(v)
    for t in range(q.shape[1]):
        state = np.exp(decay[:, t])[..., None, None] * state
        seen = np.einsum("bhkv,bhk->bhv", state, k[:, t])
        state = state + beta[:, t][..., None, None] * np.einsum("bhk,bhv->bhkv", k[:, t], v[:, t] + sign * seen)
        y[:, t] = np.einsum("bhk,bhkv->bhv", q[:, t], state) / math.sqrt(8)
    return y.reshape(*y.shape[:2], -1), state


def causal_conv(x: np.ndarray, w: np.ndarray, b: np.ndarray, past: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x = np.concatenate([past, x], -1)
    return np.einsum("bctk,ck->bct", sliding_window_view(x, w.shape[2], 2), w[:, 0]) + b[:, None], x[..., 1 - w.shape[2] :]


def rnn(x: np.ndarray, w: np.ndarray, r: np.ndarray, b: np.ndarray) -> np.ndarray:
    h, y = np.zeros((x.shape[1], r.shape[2])), []
    for step in x:
        h = np.tanh(step @ w[0].T + h @ r[0].T + b[0].reshape(2, -1).sum(0))
        y.append(h)
    return np.stack(y)[:, None]


def gru(x: np.ndarray, w: np.ndarray, r: np.ndarray, b: np.ndarray) -> np.ndarray:
    n = r.shape[2]
    h, y = np.zeros((x.shape[1], n)), []
    parts = lambda a: a.reshape(3, n, -1)
    (wz, wr, wh), (rz, rr, rh) = parts(w[0]), parts(r[0])
    bz, br, bh = b[0].reshape(2, 3, n).sum(0)
    for step in x:
        z, reset = sigmoid(step @ wz.T + h @ rz.T + bz), sigmoid(step @ wr.T + h @ rr.T + br)
        h = (1 - z) * np.tanh(step @ wh.T + (reset * h) @ rh.T + bh) + z * h
        y.append(h)
    return np.stack(y)[:, None]


def lstm(x: np.ndarray, w: np.ndarray, r: np.ndarray, b: np.ndarray) -> np.ndarray:
    n = r.shape[2]
    h, c, y = np.zeros((x.shape[1], n)), np.zeros((x.shape[1], n)), []
    for step in x:
        gates = step @ w[0].T + h @ r[0].T + b[0].reshape(2, -1).sum(0)
        i, o, f, g = np.split(gates, 4, -1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        y.append(h)
    return np.stack(y)[:, None]


def recurrent_bound(x: np.ndarray, w: np.ndarray, r: np.ndarray, b: np.ndarray) -> np.ndarray:
    """No gate is steeper than 1, and no state greater than 1: errors of sums add up from step to step."""
    most = (np.abs(x).max((0, 1)) @ np.abs(w[0]).T + np.abs(r[0]).sum(-1)).max() + 2 * np.abs(b).max()
    return np.full((x.shape[0], 1, x.shape[1], r.shape[2]), most)


def picked(log: np.ndarray, classes: np.ndarray) -> np.ndarray:
    return -np.take_along_axis(log, classes[:, None], 1)[:, 0]


def networks() -> list[Case]:
    small = lambda d, r, *shapes: normal(*shapes, scale=0.4)(d, r)
    recurrent = lambda gates: lambda d, r: small(d, r, (3, 2, 20), (1, gates * 6, 20), (1, gates * 6, 6), (1, gates * 12))
    tokens = normal((2, 3, 7, 16), (2, 3, 9, 16), (2, 3, 9, 16))
    classes = ints(1, 0, 4, 2, 2, 3)
    positions = ints([0, 3, 1, 4, 2], [5, 0, 0, 1, 2])
    magnitude = lambda q, k, v, p, d, b: linear_attention(*(np.abs(a) for a in (q, k, v, p)), d, b, 1.0)
    found = [
        Case("Attention", attention, tokens, "sum", terms=25, bound=attention_bound),
        Case("RotaryEmbedding", rotated, then(normal((2, 3, 5, 8), (6, 4), (6, 4)), positions), "sum", terms=2, bound=lambda x, c, s, at: rotated(np.abs(x), np.abs(c), np.abs(s), at, 1.0)),
        Case("LinearAttention", linear_attention, lambda d, r: [*normal((2, 5, 16), (2, 5, 16), (2, 5, 16), (2, 2, 8, 8), scale=0.3)(d, r), *(-a for a in positive((2, 5, 2))(d, r)), *positive((2, 5, 2))(d, r)],
             "sum", {"q_num_heads": 2, "kv_num_heads": 2}, terms=60, bound=magnitude),
        Case("CausalConvWithState", causal_conv, normal((2, 5, 9), (5, 1, 4), (5,), (2, 5, 3)), "sum", terms=5),
        Case("RNN", rnn, recurrent(1), "sum", {"hidden_size": 6}, terms=30, bound=recurrent_bound),
        Case("GRU", gru, recurrent(3), "sum", {"hidden_size": 6}, terms=60, bound=recurrent_bound),
        Case("LSTM", lstm, recurrent(4), "sum", {"hidden_size": 6}, terms=60, bound=recurrent_bound),
        Case("NegativeLogLikelihoodLoss", picked, then(normal((6, 5)), classes), "same", {"reduction": "none"}, "none"),
        Case("NegativeLogLikelihoodLoss", lambda x, c: picked(x, c).mean(), then(normal((6, 5)), classes), "sum", {}, "mean", terms=7, bound=lambda x, c: np.abs(picked(x, c)).mean()),
        Case("SoftmaxCrossEntropyLoss", lambda x, c: picked(log_softmax(x), c), then(normal((6, 5), scale=9.0), classes), "sum", {"reduction": "none"}),
        Case("SoftmaxCrossEntropyLoss", lambda x, c: picked(log_softmax(x), c).mean(), then(normal((6, 5)), classes), "sum", {}, "mean"),
    ]
    return found


# Quantisation, signals


def quantized(dtype: Any) -> Callable[..., np.ndarray]:
    """The quotient is rounded to the element type of the scale, or to what `precision` says."""
    return lambda x, scale, zero: np.clip(np.rint((x / scale).astype(dtype).astype(F)) + zero, 0, 255).astype(np.uint8)


def dequantized(x: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    return (x.astype(np.int32) - zero.astype(np.int32)).astype(F) * scale


def quantized_product(a: np.ndarray, sa: Any, za: Any, b: np.ndarray, sb: Any, zb: Any, sy: Any, zy: Any) -> np.ndarray:
    product = (a.astype(np.int64) - int(za)) @ (b.astype(np.int64) - int(zb))
    return np.clip(np.rint(product * float(sa) * float(sb) / float(sy)) + int(zy), 0, 255).astype(np.uint8)


def spectrum(x: np.ndarray, *_: Any) -> np.ndarray:
    y = np.fft.fft(x[..., 0] + (1j * x[..., 1] if x.shape[-1] == 2 else 0), axis=1)
    return np.stack([y.real, y.imag], -1)


def inverse_spectrum(x: np.ndarray) -> np.ndarray:
    y = np.fft.ifft(x[..., 0] + 1j * x[..., 1], axis=1)
    return np.stack([y.real, y.imag], -1)


def short_spectra(x: np.ndarray, step: np.ndarray, window: np.ndarray) -> np.ndarray:
    frames = sliding_window_view(x[..., 0], len(window), 1)[:, :: int(step)]
    y = np.fft.rfft(frames * window)
    return np.stack([y.real, y.imag], -1)


def cosines(a: float, b: float, c: float) -> Callable[[np.ndarray], np.ndarray]:
    def window(size: np.ndarray) -> np.ndarray:
        angle = 2 * np.pi * np.arange(int(size)) / int(size)
        return a - b * np.cos(angle) + c * np.cos(2 * angle)
    return window


def mel_weights(*_: np.ndarray) -> np.ndarray:
    """8 bands of the 33 bins of a spectrum of 64 samples at 8192 Hz, from 0 to 4096 Hz: the algorithm of the operator's text."""
    mel = 2595 * np.log10(1 + 4096 / 700)
    bins = np.arange(10) * (mel / 10)
    bins = np.floor((65 * (700 * (10 ** (bins / 2595) - 1))) / 8192).astype(int)
    y = np.zeros((33, 8))
    for i in range(8):
        low, center, high = bins[i : i + 3]
        if center == low:
            y[center, i] = 1
        for j in range(low, center + 1 if center > low else low):
            y[j, i] = (j - low) / (center - low)
        for j in range(center, high):
            y[j, i] = (high - j) / (high - center)
    return y


def signals() -> list[Case]:
    scalar = lambda value: lambda d: np.array(value, d)
    byte = lambda value: np.array(value, np.uint8)
    every = np.arange(256, dtype=np.uint8)
    added = lambda x: np.abs(x).sum((1, 2), keepdims=True) + np.zeros((*x.shape[:2], 2))
    size = lambda d, r: [int_scalar(37)]
    scale = scalar(0.25)
    to_bytes = lambda d, r: [*normal((4000,), scale=9.0)(d, r), scalar(0.11)(d), byte(128)]
    found = [
        Case("QuantizeLinear", quantized(F), to_bytes, "same", {"precision": 1}, "in float"),
        Case("QuantizeLinear", quantized(np.float16), to_bytes, "same", forms=("fp16",)),
        Case("QuantizeLinear", quantized(ml_dtypes.bfloat16), to_bytes, "same", forms=("bf16",)),
        Case("DequantizeLinear", dequantized, lambda d, r: [every, scalar(0.11)(d), byte(128)], "same"),
        Case("QuantizeLinear", quantized(np.float16), to_bytes, "same", {}, "microsoft", MICROSOFT, forms=("fp16",)),
        Case("DequantizeLinear", dequantized, lambda d, r: [every, scalar(0.11)(d), byte(128)], "same", {}, "microsoft", MICROSOFT, forms=("fp16",)),
        Case("QLinearMatMul", quantized_product, lambda d, r: [r.integers(0, 256, (7, 60), np.uint8), scale(d), byte(120), r.integers(0, 256, (60, 5), np.uint8), scale(d), byte(130), scalar(64.0)(d), byte(128)], "same"),
        Case("DFT", spectrum, normal((2, 24, 1)), "sum", {"axis": 1}, "real", opset=19, terms=1, bound=added),
        Case("DFT", spectrum, normal((2, 24, 2)), "sum", {"axis": 1}, "complex", opset=19, terms=1, bound=added),
        Case("DFT", spectrum, then(normal((2, 24, 2)), None, int_scalar(1)), "sum", {}, "axis", terms=1, bound=lambda x, *_: added(x)),
        Case("DFT", inverse_spectrum, normal((2, 24, 2)), "sum", {"axis": 1, "inverse": 1}, "inverse", opset=19, terms=1, bound=added),
        Case("STFT", short_spectra, lambda d, r: [*normal((2, 100, 1))(d, r), int_scalar(10), *positive((32,))(d, r)], "sum", terms=1,
             bound=lambda x, step, w: np.abs(short_spectra(np.abs(x), step, w)).max(2, keepdims=True).max(-1, keepdims=True) + np.zeros((2, 7, 17, 2))),
        Case("HannWindow", cosines(0.5, 0.5, 0), size, "near", {"output_datatype": type_number}),
        Case("HammingWindow", cosines(25 / 46, 21 / 46, 0), size, "near", {"output_datatype": type_number}),
        Case("BlackmanWindow", cosines(0.42, 0.5, 0.08), size, "near", {"output_datatype": type_number}),
        Case("MelWeightMatrix", mel_weights, lambda d, r: [int_scalar(8), int_scalar(64), int_scalar(8192), np.array(0, F), np.array(4096, F)], "near", {"output_datatype": type_number}),
    ]
    return found


def cases() -> list[Case]:
    return [*elementwise(), *movement(), *sums(), *norms(), *networks(), *signals()]
