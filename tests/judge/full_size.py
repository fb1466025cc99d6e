#!/usr/bin/env python3
"""Writes full-size forward models with their loss in the text form, with random weights that are described by seeds: a model of
110 million parameters is a file of 100 KB.

    tests/judge/full_size.py FOLDER [bert-base] [gpt2] [resnet50] [vit]

Dims are fixed: BERT-base has 8 sequences of 128 tokens, GPT-2 small 4 sequences of 256, ResNet-50 and ViT-B/16 16 images. The loss is the
output `loss`, the targets are the input `target`. Erf-GELU, tanh-GELU and attention are the nodes that exporters write.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path


class Text:
    """A graph in the text form; names are numbers."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def input(self, name: str, dtype: str, *dims: int) -> str:
        self.lines.append(f"input %{name} : {dtype}{list(dims)}")
        return f"%{name}"

    def weight(self, *dims: int, scale: float = 0.02) -> str:
        value = self.name()
        self.lines.append(f"const {value} : f32{list(dims)} = random({self.count}, {scale})")
        return value

    def const(self, dtype: str, values: list[float] | list[int]) -> str:
        value = self.name()
        dims = "" if len(values) == 1 and dtype == "f32" else f"[{len(values)}]"
        text = str(values[0]) if not dims else str(values)
        self.lines.append(f"const {value} : {dtype}{dims} = {text}")
        return value

    def op(self, op: str, *operands: str, results: int = 1, attrs: str = "") -> str:
        value = self.name()
        more = "".join(f", {self.name()}" for _ in range(results - 1))
        types = ", ".join("?" for _ in range(results))
        attrs = f" {{{attrs}}}" if attrs else ""
        self.lines.append(f"{value}{more} = {op}({', '.join(operands)}){attrs} : {types}")
        return value

    def text(self, loss: str, opset: int = 17) -> str:
        # The output has a name.
        lines = [line.replace(f"{loss} =", "%loss =", 1) if line.startswith(f"{loss} =") else line for line in self.lines]
        body = "".join(f"  {line}\n" for line in lines)
        return f"module ir=10\nopset ai.onnx={opset}\n\ngraph @main {{\n{body}  output %loss : f32\n}}\n"


def linear(g: Text, x: str, inputs: int, outputs: int) -> str:
    return g.op("Add", g.op("MatMul", x, g.weight(inputs, outputs)), g.weight(outputs))


def norm(g: Text, x: str, width: int) -> str:
    return g.op("LayerNormalization", x, g.weight(width, scale=1.0), g.weight(width), attrs="axis=-1, epsilon=1e-5")


def gelu(g: Text, x: str, is_tanh: bool) -> str:
    half, one = g.const("f32", [0.5]), g.const("f32", [1.0])
    if is_tanh:
        cube = g.op("Mul", g.op("Pow", x, g.const("f32", [3.0])), g.const("f32", [0.044715]))
        inner = g.op("Tanh", g.op("Mul", g.op("Add", x, cube), g.const("f32", [math.sqrt(2 / math.pi)])))
    else:
        inner = g.op("Erf", g.op("Div", x, g.const("f32", [math.sqrt(2)])))
    return g.op("Mul", g.op("Mul", x, g.op("Add", inner, one)), half)


def attention(g: Text, x: str, batch: int, length: int, width: int, heads: int, mask: str | None) -> str:
    size = width // heads
    split = g.const("i64", [batch, length, heads, size])

    def head(perm: str) -> str:
        return g.op("Transpose", g.op("Reshape", linear(g, x, width, width), split), attrs=f"perm=[{perm}]")

    q, k, v = head("0, 2, 1, 3"), head("0, 2, 3, 1"), head("0, 2, 1, 3")
    scores = g.op("Mul", g.op("MatMul", q, k), g.const("f32", [1 / math.sqrt(size)]))
    if mask is not None:
        scores = g.op("Add", scores, mask)
    y = g.op("MatMul", g.op("Softmax", scores, attrs="axis=-1"), v)
    y = g.op("Reshape", g.op("Transpose", y, attrs="perm=[0, 2, 1, 3]"), g.const("i64", [batch, length, width]))
    return linear(g, y, width, width)


def transformer(tokens: int, batch: int, length: int, width: int, heads: int, depth: int, is_gpt: bool) -> str:
    g = Text()
    ids, target = g.input("ids", "i64", batch, length), g.input("target", "i64", batch * length)
    table = g.weight(tokens, width)
    x = g.op("Add", g.op("Gather", table, ids), g.weight(length, width))
    mask = g.input("mask", "f32", 1, 1, length, length) if is_gpt else None
    if not is_gpt:
        x = norm(g, x, width)
    for _ in range(depth):
        if is_gpt:
            x = g.op("Add", x, attention(g, norm(g, x, width), batch, length, width, heads, mask))
            y = linear(g, gelu(g, linear(g, norm(g, x, width), width, 4 * width), True), 4 * width, width)
            x = g.op("Add", x, y)
        else:
            x = norm(g, g.op("Add", x, attention(g, x, batch, length, width, heads, mask)), width)
            y = linear(g, gelu(g, linear(g, x, width, 4 * width), False), 4 * width, width)
            x = norm(g, g.op("Add", x, y), width)
    rows = g.const("i64", [batch * length, width])
    if is_gpt:
        x = g.op("Reshape", norm(g, x, width), rows)
        scores = g.op("MatMul", x, g.op("Transpose", table, attrs="perm=[1, 0]"))
    else:
        scores = linear(g, g.op("Reshape", x, rows), width, 2)
    return g.text(g.op("SoftmaxCrossEntropyLoss", scores, target))


def block(g: Text, x: str, inputs: int, outputs: int, kernel: int, stride: int, is_active: bool) -> str:
    """A convolution and a batch normalization, with a ReLU if it is active."""
    pad = kernel // 2
    scale = 1 / math.sqrt(inputs * kernel * kernel)
    attrs = f"kernel_shape=[{kernel}, {kernel}], strides=[{stride}, {stride}], pads=[{pad}, {pad}, {pad}, {pad}]"
    y = g.op("Conv", x, g.weight(outputs, inputs, kernel, kernel, scale=scale), attrs=attrs)
    statistics = [g.weight(outputs, scale=1.0), g.weight(outputs), g.weight(outputs), g.weight(outputs, scale=1.0)]
    y = g.op("BatchNormalization", y, *statistics, results=3, attrs="training_mode=1")
    return g.op("Relu", y) if is_active else y


def resnet50(batch: int) -> str:
    g = Text()
    x, target = g.input("x", "f32", batch, 3, 224, 224), g.input("target", "i64", batch)
    x = block(g, x, 3, 64, 7, 2, True)
    x = g.op("MaxPool", x, attrs="kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]")
    inputs = 64
    for width, depth, stride in [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]:
        for i in range(depth):
            step = stride if i == 0 else 1
            y = block(g, x, inputs, width, 1, 1, True)
            y = block(g, block(g, y, width, width, 3, step, True), width, 4 * width, 1, 1, False)
            past = block(g, x, inputs, 4 * width, 1, step, False) if i == 0 else x
            x, inputs = g.op("Relu", g.op("Add", y, past)), 4 * width
    x = g.op("Flatten", g.op("GlobalAveragePool", x))
    return g.text(g.op("SoftmaxCrossEntropyLoss", linear(g, x, 2048, 1000), target))


def vit(batch: int) -> str:
    g = Text()
    width, patches = 768, 14 * 14
    x, target = g.input("x", "f32", batch, 3, 224, 224), g.input("target", "i64", batch)
    filters, bias = g.weight(width, 3, 16, 16, scale=1 / 28), g.weight(width)
    x = g.op("Conv", x, filters, bias, attrs="kernel_shape=[16, 16], strides=[16, 16]")
    x = g.op("Transpose", g.op("Reshape", x, g.const("i64", [batch, width, patches])), attrs="perm=[0, 2, 1]")
    cls = g.op("Expand", g.weight(1, 1, width), g.const("i64", [batch, 1, width]))
    x = g.op("Add", g.op("Concat", cls, x, attrs="axis=1"), g.weight(1, patches + 1, width))
    for _ in range(12):
        x = g.op("Add", x, attention(g, norm(g, x, width), batch, patches + 1, width, 12, None))
        y = linear(g, gelu(g, linear(g, norm(g, x, width), width, 4 * width), False), 4 * width, width)
        x = g.op("Add", x, y)
    x = g.op("Gather", norm(g, x, width), g.const("i64", [0]), attrs="axis=1")
    x = g.op("Reshape", x, g.const("i64", [batch, width]))
    return g.text(g.op("SoftmaxCrossEntropyLoss", linear(g, x, width, 1000), target))


MODELS = {
    "bert-base": lambda: transformer(30522, 8, 128, 768, 12, 12, is_gpt=False),
    "gpt2": lambda: transformer(50257, 4, 256, 768, 12, 12, is_gpt=True),
    "resnet50": lambda: resnet50(16),
    "vit": lambda: vit(16),
}


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or MODELS:
        (folder / f"{name}.ir").write_text(MODELS[name]())


if __name__ == "__main__":
    main()
