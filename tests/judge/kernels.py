#!/usr/bin/env python3
"""Holds the kernels of the CPU runtime against NumPy with float32 inside, operator by operator, in fp16 and bf16.

Elementwise operators get every one of the 65536 bit patterns of the format, or a million random pairs of them, and have
to give the same bits: the float32 result rounded once. Where NumPy's own float32 function is off by an ulp or two, the
two roundings may fall on either side of a tie: such an element may differ by one ulp if the exact value is within four
float32 ulps of the tie, and is counted. Movement gives the same bits. Sums and products are held against the float64 sum
of the operands as stored: within one ulp of its rounding, or within what float32 loses in sums of thousands of terms
(2^-20 of the largest result) and in one number (2^-24 of the largest operand); on integers whose sums are exact, the same bits.

    tests/judge/kernels.py --ampc target/release/ampc [--filter 'Conv*']
"""

from __future__ import annotations

import fnmatch
import math
import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper

FORMATS = {"fp16": (np.float16, TensorProto.FLOAT16), "bf16": (ml_dtypes.bfloat16, TensorProto.BFLOAT16)}
# The opset with the most bf16 that ONNX Runtime reads too.
OPSET = 26
PAIRS = 1 << 20
BF16_SUFFIX = "__bf16"

Arrays = list[np.ndarray]


@dataclass
class Case:
    """A node, its operands in the low format (`low`) and others, and what it gives in float32 or float64."""

    op: str
    want: Callable[..., np.ndarray]
    operands: Callable[[Any, np.random.Generator], Arrays]
    kind: str  # "same": the same bits; "near": ties may differ; "sum": one ulp; "exact": integers, the same bits
    attributes: dict[str, Any] = field(default_factory=dict)
    name: str = ""

    @property
    def title(self) -> str:
        return f"{self.op}{f' {self.name}' if self.name else ''}"


def all_patterns(dtype: Any, _: np.random.Generator) -> Arrays:
    return [np.arange(1 << 16, dtype=np.uint16).view(dtype)]


def pairs(dtype: Any, rng: np.random.Generator) -> Arrays:
    """Random bit patterns, so all magnitudes, infinities and NaN are there."""
    return [rng.integers(0, 1 << 16, PAIRS, dtype=np.uint16).view(dtype) for _ in range(2)]


def normal(*shapes: tuple[int, ...], scale: float = 1.0) -> Callable[[Any, np.random.Generator], Arrays]:
    return lambda dtype, rng: [(rng.standard_normal(s) * scale).astype(dtype) for s in shapes]


def integers(*shapes: tuple[int, ...]) -> Callable[[Any, np.random.Generator], Arrays]:
    """Small integers, of which sums of products stay exact in float32."""
    return lambda dtype, rng: [rng.integers(-3, 4, s).astype(dtype) for s in shapes]


def with_last(make: Callable[[Any, np.random.Generator], Arrays], *more: np.ndarray) -> Callable[[Any, np.random.Generator], Arrays]:
    return lambda dtype, rng: [*make(dtype, rng), *more]


F = np.float32


def sigmoid(x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        e = np.exp(-np.abs(x))
        return np.where(x < 0, e / (1 + e), 1 / (1 + e)).astype(x.dtype)


def softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def erf(x: np.ndarray) -> np.ndarray:
    return np.vectorize(math.erf, otypes=[np.float64])(x.astype(np.float64))


def gelu(x: np.ndarray) -> np.ndarray:
    y = x.astype(np.float64)
    with np.errstate(all="ignore"):
        return np.where(np.isinf(y), np.where(y > 0, y, -0.0 * np.isinf(y)), 0.5 * y * (1 + erf(y / math.sqrt(2))))


def round_even(x: np.ndarray) -> np.ndarray:
    return np.rint(x)


UNARY: dict[str, tuple[Callable[[np.ndarray], np.ndarray], str, dict[str, Any]]] = {
    "Abs": (np.abs, "same", {}), "Neg": (np.negative, "same", {}), "Ceil": (np.ceil, "same", {}),
    "Floor": (np.floor, "same", {}), "Round": (round_even, "same", {}), "Sqrt": (np.sqrt, "same", {}),
    "Reciprocal": (lambda x: F(1) / x, "same", {}), "Sign": (np.sign, "same", {}),
    "Relu": (lambda x: np.where(x < 0, F(0), x), "same", {}),
    "LeakyRelu": (lambda x: np.where(x < 0, x * F(0.25), x), "same", {"alpha": 0.25}),
    "ThresholdedRelu": (lambda x: np.where(x > F(0.5), x, F(0)), "same", {"alpha": 0.5}),
    "HardSigmoid": (lambda x: np.clip(F(0.25) * x + F(0.5), F(0), F(1)), "same", {"alpha": 0.25, "beta": 0.5}),
    "Exp": (np.exp, "near", {}), "Log": (np.log, "near", {}), "Tanh": (np.tanh, "near", {}), "Sin": (np.sin, "near", {}),
    "Cos": (np.cos, "near", {}), "Tan": (np.tan, "near", {}), "Asin": (np.arcsin, "near", {}), "Acos": (np.arccos, "near", {}),
    "Atan": (np.arctan, "near", {}), "Sinh": (np.sinh, "near", {}), "Cosh": (np.cosh, "near", {}),
    "Asinh": (np.arcsinh, "near", {}), "Acosh": (np.arccosh, "near", {}), "Atanh": (np.arctanh, "near", {}),
    "Sigmoid": (sigmoid, "near", {}), "Softplus": (softplus, "near", {}), "Softsign": (lambda x: x / (1 + np.abs(x)), "near", {}),
    "Erf": (erf, "near", {}),
    "Elu": (lambda x: np.where(x < 0, np.expm1(x), x), "near", {}),
    "Selu": (lambda x: np.where(x < 0, 1.67326319217681884765625 * np.expm1(x), x) * 1.05070102214813232421875, "near", {}),
    "Mish": (lambda x: x * np.tanh(softplus(x)), "near", {}),
    "HardSwish": (lambda x: x * np.clip(x / 6 + 0.5, 0, 1), "near", {}),
}
BINARY = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide,
    "Max": np.maximum, "Min": np.minimum,
    "PRelu": lambda x, s: np.where(x < 0, s * x, x),
}


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def layer_norm(x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
    centered = x - x.mean(-1, keepdims=True)
    return centered / np.sqrt((centered * centered).mean(-1, keepdims=True) + 1e-5) * scale + bias


def conv(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), w.shape[2:], (2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, w)


def cases() -> list[Case]:
    found = [Case(op, f, all_patterns, kind, attributes) for op, (f, kind, attributes) in UNARY.items()]
    found += [Case(op, f, pairs, "same") for op, f in BINARY.items()]
    # Where the operator's formula does not cancel.
    found.append(Case("Gelu", gelu, lambda d, r: [x[~(x < -1.5)] for x in all_patterns(d, r)], "near"))
    axes = lambda *a: np.array(a, np.int64)
    x = normal((5, 7, 9))
    found += [
        Case("Mul", np.multiply, lambda d, _: [np.array([60000.0, 3e38]).astype(d), np.array([4.0, 4.0]).astype(d)], "same", name="overflow"),
        Case("Add", np.add, normal((4, 1, 9), (7, 1)), "same", name="broadcast"),
        Case("Where", np.where, lambda d, rng: [rng.integers(0, 2, (5, 7)).astype(bool), *normal((5, 7), (7,))(d, rng)], "same"),
        Case("Transpose", lambda x: x.transpose(2, 0, 1), x, "same", {"perm": [2, 0, 1]}),
        Case("Concat", lambda a, b: np.concatenate([a, b], 1), normal((3, 2, 4), (3, 5, 4)), "same", {"axis": 1}),
        Case("Slice", lambda x, *_: x[:, 6:1:-2], with_last(x, axes(6), axes(1), axes(1), axes(-2)), "same"),
        Case("Gather", lambda x, i: np.take(x, i, 1), with_last(x, np.array([[3, -1], [0, 0]])), "same", {"axis": 1}),
        Case("Pad", lambda x, p: np.pad(x, ((1, 2), (0, 0), (3, 0))), with_last(x, axes(1, 0, 3, 2, 0, 0)), "same"),
        Case("Tile", lambda x, r: np.tile(x, (2, 1, 3)), with_last(x, axes(2, 1, 3)), "same"),
        Case("Expand", lambda x, s: np.broadcast_to(x, (4, 3, 5)), with_last(normal((3, 1)), axes(4, 3, 5)), "same"),
        Case("MaxPool", lambda x: np.lib.stride_tricks.sliding_window_view(x, (2, 2), (2, 3)).max((-2, -1)), normal((2, 3, 6, 6)), "same", {"kernel_shape": [2, 2]}),
        Case("ReduceMax", lambda x, a: x.max(1), with_last(x, axes(1)), "same", {"keepdims": 0}),
    ]
    for make, kind in ((normal, "sum"), (integers, "exact")):
        found += [
            Case("MatMul", np.matmul, make((17, 1030), (1030, 23)), kind, name=kind),
            Case("MatMul", np.matmul, make((2, 3, 5, 64), (3, 64, 6)), kind, name=f"batched {kind}"),
            Case("Gemm", lambda a, b, c: a.T @ b.T + c, make((600, 9), (11, 600), (11,)), kind, {"transA": 1, "transB": 1}, f"transposed {kind}"),
            Case("Conv", conv, make((2, 24, 9, 8), (16, 24, 3, 3)), kind, {"pads": [1, 1, 1, 1]}, kind),
            Case("Conv", lambda x, w: np.einsum("nchw,oc->nohw", x, w[:, :, 0, 0]), make((1, 70, 5, 5), (6, 70, 1, 1)), kind, {}, f"1x1 {kind}"),
            Case("Einsum", lambda a, b: np.einsum("bik,bjk->bij", a, b), make((3, 4, 130), (3, 5, 130)), kind, {"equation": "bik,bjk->bij"}, kind),
            Case("ReduceSum", lambda x, a: x.sum(-1), with_last(make((3, 3000)), axes(-1)), kind, {"keepdims": 0}, kind),
            Case("ReduceSum", lambda x, a: x.sum(0), with_last(make((3000, 3)), axes(0)), kind, {"keepdims": 0}, f"outer {kind}"),
        ]
    found += [
        Case("ReduceMean", lambda x, a: x.mean(-1), with_last(normal((5, 777)), axes(-1)), "sum", {"keepdims": 0}),
        Case("ReduceL2", lambda x, a: np.sqrt((x * x).sum(-1)), with_last(normal((5, 777)), axes(-1)), "sum", {"keepdims": 0}),
        Case("GlobalAveragePool", lambda x: x.mean((2, 3), keepdims=True), normal((2, 5, 14, 14)), "sum"),
        Case("Softmax", softmax, normal((9, 130), scale=5.0), "sum"),
        Case("LogSoftmax", lambda x: np.log(softmax(x)), normal((9, 130), scale=5.0), "sum"),
        Case("LayerNormalization", layer_norm, lambda d, rng: [(400 + rng.standard_normal((6, 96))).astype(d), *normal((96,), (96,))(d, rng)], "sum", {}, "at 400"),
    ]
    return found


def ulps(got: np.ndarray, want: np.ndarray, dtype: Any) -> np.ndarray:
    """Distance in units in the last place between numbers of a 16-bit format; of what is not finite 0 or infinity."""
    def line(x: np.ndarray) -> np.ndarray:
        bits = x.view(np.uint16).astype(np.int64)
        return np.where(bits >= 1 << 15, (1 << 15) - bits, bits)
    distance = np.abs(line(got) - line(want)).astype(np.float64)
    nan = np.isnan(got.astype(F)), np.isnan(want.astype(F))
    return np.where(nan[0] | nan[1], np.where(nan[0] & nan[1], 0, np.inf), distance)


def near_tie(exact: np.ndarray, got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Whether the exact value is within four float32 ulps of the middle between two neighbours."""
    with np.errstate(all="ignore"):
        middle = (got.astype(np.float64) + want.astype(np.float64)) / 2
        return np.abs(exact - middle) <= 4 * np.spacing(np.abs(middle).astype(F)).astype(np.float64)


def judge(case: Case, dtype: Any, got: np.ndarray, operands: Arrays) -> str:
    """What is wrong, or the empty string; and a remark in brackets where ties fell apart."""
    low = lambda a: a.dtype == dtype
    with np.errstate(all="ignore"):
        wide = [a.astype(F) if low(a) else a for a in operands]
        if case.kind == "same":
            want = np.asarray(case.want(*wide)).astype(F).astype(dtype)
        else:
            exact = np.asarray(case.want(*[a.astype(np.float64) if low(a) else a for a in operands]))
            want = exact.astype(F).astype(dtype)
    if got.shape != want.shape:
        return f"shape {got.shape}, expected {want.shape}"
    distance = ulps(got, want, dtype)
    if case.kind in ("same", "exact"):
        # -0 and 0 are two numbers here.
        bad = distance > 0
    elif case.kind == "near":
        bad = (distance > 0) & ~((distance <= 1) & near_tie(exact, got, want))
        ties = int(((distance > 0) & ~bad).sum())
        if not bad.any():
            return f"[{ties} ties]" if ties else ""
    else:
        largest = max(float(np.abs(a.astype(np.float64)).max()) for a in operands if low(a))
        lost = np.abs(got.astype(np.float64) - exact) <= 2.0**-20 * np.abs(exact).max() + 2.0**-24 * largest
        bad = (distance > 1) & ~lost
    if not bad.any():
        return ""
    at = np.unravel_index(int(np.argmax(bad)), bad.shape)
    given = [a[at] if a.shape == bad.shape else "" for a in operands]
    return f"{int(bad.sum())} of {bad.size} differ, the first at {tuple(int(i) for i in at)}: {got[at]}, expected {want[at]}; operands {given}"


def run(ampc: str, case: Case, form: str, folder: Path, threads: int) -> str:
    dtype, number = FORMATS[form]
    rng = np.random.default_rng(abs(hash_of(case.title)) % (1 << 32))
    operands = case.operands(dtype, rng)
    names = [f"x{i}" for i in range(len(operands))]
    kind = lambda a: number if a.dtype == dtype else helper.np_dtype_to_tensor_dtype(a.dtype)
    inputs = [helper.make_tensor_value_info(n, kind(a), a.shape) for n, a in zip(names, operands)]
    node = helper.make_node(case.op, names, ["y"], **case.attributes)
    output = helper.make_tensor_value_info("y", number, None)
    graph = helper.make_graph([node], "kernel", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=12)
    onnx.save(model, folder / "model.onnx")
    stored = {n + (BF16_SUFFIX if a.dtype == ml_dtypes.bfloat16 else ""): a.view(np.uint16) if a.dtype == ml_dtypes.bfloat16 else a for n, a in zip(names, operands)}
    np.savez(folder / "in.npz", **stored)
    out = folder / "out.npz"
    out.unlink(missing_ok=True)
    command = [ampc, "run", str(folder / "model.onnx"), "--inputs", str(folder / "in.npz"), "--outputs", str(out), "--threads", str(threads), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        return f"exit {done.returncode}: {' '.join(done.stderr.split())[:200]}"
    with np.load(out) as arrays:
        got = arrays["y"] if "y" in arrays else arrays["y" + BF16_SUFFIX].view(ml_dtypes.bfloat16)
    return judge(case, dtype, got, operands)


def hash_of(text: str) -> int:
    import zlib

    return zlib.crc32(text.encode())


def main() -> int:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ampc", default=os.environ.get("AMPC_BIN"), help="the binary [AMPC_BIN]")
    parser.add_argument("--corpus", help="not used; other judges have it")
    parser.add_argument("--filter", default="*", help="glob over names of cases")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    if not args.ampc or not Path(args.ampc).exists():
        parser.error("no binary: give --ampc or set AMPC_BIN")
    bad = done = ties = 0
    with tempfile.TemporaryDirectory() as name:
        for case in cases():
            if not fnmatch.fnmatch(case.title, args.filter):
                continue
            for form in FORMATS:
                # Its schema has no bf16.
                if case.op == "Einsum" and form == "bf16":
                    continue
                text = run(str(Path(args.ampc).resolve()), case, form, Path(name), args.threads)
                done += 1
                if text.startswith("["):
                    ties += int(text[1:].split()[0])
                elif text:
                    bad += 1
                    print(f"{case.title} {form}: {text}")
    print(f"kernels: {done} cases, {bad} wrong; {ties} elements on either side of a tie")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
