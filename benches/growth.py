"""Measures how the time of every command grows with every count that a file has.

For each count (inputs, initializers, captures, arrays of data, pins, …) and each command that reads it, the count is
doubled until the command takes long enough to be measured, and the exponent is the slope of the logarithm of its user
time over the last three doublings; the time of a file with one of each is taken off before. An exponent of 1 is linear,
2 quadratic; one above 1.2 is marked, measured again, and ends the program with exit code 1. Time per item rises a little
where tables no longer fit into the caches of the processor, so that one doubling alone may show 1.4 for linear work.

    growth.py [--ampc BIN] [--quick] [--only inputs,pins,...] [--command run,...]

`--quick` stops earlier: exponents are less exact, and those up to 1.35 pass.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from onnx import FunctionProto, ModelProto, TensorProto, helper, numpy_helper

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "judge"))

from tables import markdown  # noqa: E402

V, N = helper.make_tensor_value_info, helper.make_node
F32, I64 = TensorProto.FLOAT, TensorProto.INT64
TIMEOUT = 120


def value(name: str, dims: list | None = None) -> object:
    """The declaration of a float tensor, of two elements unless said otherwise."""
    return V(name, F32, [2] if dims is None else dims)


def const(name: str, dims: tuple = (2,)) -> TensorProto:
    """A float constant of ones."""
    return numpy_helper.from_array(np.full(dims, 0.5, np.float32), name)


def model(nodes: list, inputs: list, outputs: list, constants: list = [], functions: list = [], **more: object) -> ModelProto:
    """A model of these; `f` is the domain of functions."""
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    graph.value_info.extend(more.pop("value_info", []))
    opsets = [helper.make_opsetid("", 20), *([helper.make_opsetid("f", 1)] if functions else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=functions)


def chain(n: int, op: str = "Relu") -> ModelProto:
    names = ["x", *(f"h{i}" for i in range(n - 1)), "y"]
    return model([N(op, [names[i]], [names[i + 1]], f"n{i}") for i in range(n)], [value("x")], [value("y")])


def inputs(n: int) -> ModelProto:
    return model([N("Relu", [f"x{i}"], [f"y{i}"]) for i in range(n)], [value(f"x{i}") for i in range(n)], [value("y0")])


def outputs(n: int) -> ModelProto:
    nodes = [N("Relu", ["x"], [f"y{i}"]) for i in range(n)]
    return model(nodes, [value("x")], [value(f"y{i}") for i in range(n)])


def named_dims(n: int) -> ModelProto:
    xs = [value(f"x{i}", [f"D{i}", f"E{i}"]) for i in range(n)]
    nodes = [N("Relu", [f"x{i}"], [f"y{i}"]) for i in range(n)]
    return model(nodes, xs, [V(f"y{i}", F32, None) for i in range(n)])


def dims_of_one(n: int) -> ModelProto:
    return model([N("Relu", ["x"], ["y"])], [value("x", [1] * n)], [value("y", [1] * n)])


def names_of_one(n: int) -> ModelProto:
    return model([N("Relu", ["x"], ["y"])], [value("x", [f"D{i}" for i in range(n)])], [V("y", F32, None)])


def initializers(n: int) -> ModelProto:
    names = ["x", *(f"h{i}" for i in range(n - 1)), "y"]
    nodes = [N("Mul", [names[i], f"w{i}"], [names[i + 1]], f"n{i}") for i in range(n)]
    return model(nodes, [value("x")], [value("y")], [const(f"w{i}") for i in range(n)])


def unread(n: int) -> ModelProto:
    made = chain(1)
    made.graph.initializer.extend(const(f"w{i}") for i in range(n))
    return made


def listed_initializers(n: int) -> ModelProto:
    made = initializers(n)
    made.graph.input.extend(value(f"w{i}") for i in range(n))
    return made


def sparse(n: int) -> ModelProto:
    made = initializers(n)
    for tensor in made.graph.initializer:
        at = numpy_helper.from_array(np.array([1], np.int64), tensor.name + "_at")
        made.graph.sparse_initializer.append(helper.make_sparse_tensor(const(tensor.name, (1,)), at, [2]))
    del made.graph.initializer[:]
    return made


def constants_of_nodes(n: int) -> ModelProto:
    nodes = [N("Constant", [], [f"w{i}"], value=const("")) for i in range(n)]
    made = initializers(n)
    nodes += made.graph.node
    return model(nodes, [value("x")], [value("y")])


def attributes(n: int) -> ModelProto:
    node = N("Own", ["x"], ["y"], domain="f", **{f"a{i}": i for i in range(n)})
    made = model([node], [value("x")], [value("y")])
    made.opset_import.extend([helper.make_opsetid("f", 1)])
    return made


def list_of_attribute(n: int) -> ModelProto:
    own = N("Own", ["x"], ["u"], domain="f", many=list(range(n)), floats=[0.5] * n, words=["w"] * n)
    made = model([own, N("Relu", ["x"], ["y"])], [value("x")], [value("y")])
    made.opset_import.extend([helper.make_opsetid("f", 1)])
    return made


def strings(n: int) -> ModelProto:
    words = helper.make_tensor("words", TensorProto.STRING, [n], [f"w{i}".encode() for i in range(n)])
    nodes = [N("StringConcat", ["words", "words"], ["z"]), N("Relu", ["x"], ["y"])]
    return model(nodes, [value("x")], [value("y"), V("z", TensorProto.STRING, [n])], [words])


def labels(n: int) -> ModelProto:
    node = N("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_int64s=list(range(n)), values_floats=[0.5] * n)
    made = model([node], [V("x", I64, [2])], [value("y")])
    made.opset_import.extend([helper.make_opsetid("ai.onnx.ml", 4)])
    return made


def function(name: str, nodes: list, domain: str = "f") -> FunctionProto:
    made = FunctionProto(name=name, domain=domain, input=["a"], output=["b"])
    made.opset_import.extend([helper.make_opsetid("", 20), helper.make_opsetid("f", 1)])
    made.node.extend(nodes)
    return made


def functions(n: int) -> ModelProto:
    made = chain(n)
    for i, node in enumerate(made.graph.node):
        node.op_type, node.domain = f"F{i}", "f"
    made.opset_import.extend([helper.make_opsetid("f", 1)])
    made.functions.extend(function(f"F{i}", [N("Relu", ["a"], ["b"])]) for i in range(n))
    return made


def calls(n: int) -> ModelProto:
    made = chain(n, "F")
    for node in made.graph.node:
        node.domain = "f"
    made.opset_import.extend([helper.make_opsetid("f", 1)])
    made.functions.append(function("F", [N("Sigmoid", ["a"], ["c"]), N("Relu", ["c"], ["b"])]))
    return made


def left_out(n: int) -> ModelProto:
    """Calls with one operand of a function that has as many inputs as there are calls."""
    made = calls(n)
    made.functions[0].input.extend(f"left{i}" for i in range(n))
    return made


def defaults(n: int) -> ModelProto:
    """Calls without attributes of a function that has as many default attributes as there are calls."""
    made = calls(n)
    made.functions[0].attribute_proto.extend(helper.make_attribute(f"k{i}", 1.0) for i in range(n))
    return made


def read_defaults(n: int) -> ModelProto:
    """One call of a function whose nodes read a default attribute each."""
    made = calls(1)
    inner = [N("LeakyRelu", [f"h{i}" if i else "a"], [f"h{i + 1}" if i < n - 1 else "b"]) for i in range(n)]
    for i, node in enumerate(inner):
        node.attribute.add(name="alpha", ref_attr_name=f"k{i}", type=1)
    made.functions[0].CopyFrom(function("F", inner))
    made.functions[0].attribute_proto.extend(helper.make_attribute(f"k{i}", 0.5) for i in range(n))
    return made


def calls_in_chain(n: int) -> ModelProto:
    made = chain(1, "F0")
    made.graph.node[0].domain = "f"
    made.opset_import.extend([helper.make_opsetid("f", 1)])
    for i in range(n):
        inner = N(f"F{i + 1}", ["a"], ["b"], domain="f") if i + 1 < n else N("Relu", ["a"], ["b"])
        made.functions.append(function(f"F{i}", [inner]))
    return made


def doubling(n: int) -> ModelProto:
    made = calls_in_chain(n)
    for i, f in enumerate(made.functions):
        if i + 1 < n:
            del f.node[:]
            f.node.extend([N(f"F{i + 1}", ["a"], ["c"], domain="f"), N(f"F{i + 1}", ["c"], ["b"], domain="f")])
    return made


def branch(nodes: list, out: str) -> object:
    return helper.make_graph(nodes, "body", [], [V(out, F32, None)])


def bodies(n: int) -> ModelProto:
    names = ["x", *(f"h{i}" for i in range(n - 1)), "y"]
    nodes = []
    for i in range(n):
        then = branch([N("Relu", [names[i]], [f"t{i}"])], f"t{i}")
        other = branch([N("Neg", [names[i]], [f"e{i}"])], f"e{i}")
        nodes.append(N("If", ["c"], [names[i + 1]], f"n{i}", then_branch=then, else_branch=other))
    return model(nodes, [value("x"), V("c", TensorProto.BOOL, [])], [value("y")])


def captures(n: int) -> ModelProto:
    made = initializers(n)
    inner = branch(list(made.graph.node), "y")
    other = branch([N("Neg", ["x"], ["e"])], "e")
    node = N("If", ["c"], ["out"], then_branch=inner, else_branch=other)
    return model([node], [value("x"), V("c", TensorProto.BOOL, [])], [value("out")], list(made.graph.initializer))


def deep(n: int) -> ModelProto:
    inner = branch([N("Relu", ["x"], ["d"])], "d")
    for i in range(n):
        other = branch([N("Neg", ["x"], [f"e{i}"])], f"e{i}")
        inner = branch([N("If", ["c"], [f"d{i}"], then_branch=inner, else_branch=other)], f"d{i}")
    return model(list(inner.node), [value("x"), V("c", TensorProto.BOOL, [])], [value(f"d{n - 1}")])


def loop_states(n: int) -> ModelProto:
    body = helper.make_graph(
        [N("Identity", ["go"], ["go_on"]), *(N("Relu", [f"s{i}"], [f"t{i}"]) for i in range(n))], "body",
        [V("i", I64, []), V("go", TensorProto.BOOL, []), *(value(f"s{i}") for i in range(n))],
        [V("go_on", TensorProto.BOOL, []), *(value(f"t{i}") for i in range(n))],
    )
    node = N("Loop", ["times", "", *["x"] * n], [f"r{i}" for i in range(n)], "loop", body=body)
    times = numpy_helper.from_array(np.array(2, np.int64), "times")
    return model([node, N("Relu", ["r0"], ["y"])], [value("x")], [value("y")], [times])


def readers(n: int) -> ModelProto:
    nodes = [N("Sigmoid", ["x"], ["h"]), *(N("Relu", ["h"], [f"h{i}"], f"n{i}") for i in range(n))]
    nodes.append(N("Sum", [f"h{i}" for i in range(n)], ["y"]))
    return model(nodes, [value("x")], [value("y")])


def operands(n: int) -> ModelProto:
    return model([N("Sum", ["x"] * n, ["y"])], [value("x")], [value("y")])


def distinct_operands(n: int) -> ModelProto:
    nodes = [N("Concat", [f"x{i}" for i in range(n)], ["y"], axis=0)]
    return model(nodes, [value(f"x{i}") for i in range(n)], [V("y", F32, None)])


def results(n: int) -> ModelProto:
    node = N("Split", ["x"], [f"y{i}" for i in range(n)], axis=0, num_outputs=n)
    return model([node], [value("x", [n])], [V(f"y{i}", F32, None) for i in range(n)])


def read_results(n: int) -> ModelProto:
    nodes = [N("Split", ["x"], [f"h{i}" for i in range(n)], axis=0, num_outputs=n)]
    nodes.append(N("Sum", [f"h{i}" for i in range(n)], ["y"]))
    return model(nodes, [value("x", [n])], [V("y", F32, None)])


def metadata(n: int) -> ModelProto:
    made = chain(1)
    for holder in (made, made.graph, made.graph.node[0]):
        for i in range(n):
            holder.metadata_props.add(key=f"k{i}", value=f"v{i}")
    return made


def opsets(n: int) -> ModelProto:
    made = chain(1)
    made.opset_import.extend(helper.make_opsetid(f"d{i}", 1) for i in range(n))
    return made


def value_infos(n: int) -> ModelProto:
    made = chain(n)
    made.graph.value_info.extend(value(f"h{i}") for i in range(n - 1))
    return made


def foreign_value_infos(n: int) -> ModelProto:
    made = chain(1)
    made.graph.value_info.extend(value(f"nothing{i}") for i in range(n))
    return made


def quantization(n: int) -> ModelProto:
    made = chain(n)
    for i in range(n - 1):
        entry = made.graph.quantization_annotation.add(tensor_name=f"h{i}")
        entry.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="s")
    made.graph.initializer.append(const("s", ()))
    return made


def long_names(n: int) -> ModelProto:
    made = chain(1)
    made.graph.node[0].name, made.doc_string = "n" * n, "d" * n
    return made


def custom(n: int) -> ModelProto:
    made = chain(n)
    for i, node in enumerate(made.graph.node):
        node.op_type, node.domain = f"Own{i}", "own"
    made.opset_import.extend([helper.make_opsetid("own", 1)])
    return made


def products(n: int) -> ModelProto:
    """Layers of a product, a bias and a Relu, with weights."""
    nodes, weights, last = [], [], "x"
    for i in range(n):
        weights += [const(f"w{i}", (2, 2)), const(f"b{i}")]
        nodes += [N("MatMul", [last, f"w{i}"], [f"p{i}"], f"fc{i}"), N("Add", [f"p{i}", f"b{i}"], [f"s{i}"], f"add{i}")]
        last = f"r{i}"
        nodes.append(N("Relu", [f"s{i}"], [last], f"relu{i}"))
    nodes.append(N("Identity", [last], ["y"], "end"))
    return model(nodes, [value("x", ["N", 2])], [value("y", ["N", 2])], weights)


def softmaxes(n: int) -> ModelProto:
    """Products between denied operators: casts at each."""
    nodes, weights, last = [], [], "x"
    for i in range(n):
        weights.append(const(f"w{i}", (2, 2)))
        nodes += [N("MatMul", [last, f"w{i}"], [f"p{i}"], f"fc{i}"), N("Softmax", [f"p{i}"], [f"r{i}"], f"soft{i}")]
        last = f"r{i}"
    nodes.append(N("Identity", [last], ["y"], "end"))
    return model(nodes, [value("x", ["N", 2])], [value("y", ["N", 2])], weights)


def shared_weight(n: int) -> ModelProto:
    made = products(n)
    for node in made.graph.node:
        if node.op_type == "MatMul":
            node.input[1] = "w0"
    return made


def residuals(n: int) -> ModelProto:
    """Every sum is read by the sum of all."""
    made = products(n)
    made.graph.node[-1].CopyFrom(N("Sum", [f"r{i}" for i in range(n)], ["y"], "end"))
    return made


def casts(n: int) -> ModelProto:
    nodes, last = [], "x"
    for i in range(n):
        nodes += [N("Cast", [last], [f"c{i}"], f"c{i}", to=TensorProto.FLOAT16), N("Cast", [f"c{i}"], [f"d{i}"], f"d{i}", to=F32)]
        last = f"d{i}"
    nodes.append(N("Relu", [last], ["y"]))
    return model(nodes, [value("x")], [value("y")])


def shapes(n: int) -> ModelProto:
    """Reshapes by computed shapes, which constant folding sees through."""
    nodes, last = [], "x"
    for i in range(n):
        nodes += [N("Shape", [last], [f"s{i}"], f"shape{i}"), N("Reshape", [last, f"s{i}"], [f"r{i}"], f"reshape{i}")]
        last = f"r{i}"
    nodes.append(N("Relu", [last], ["y"]))
    return model(nodes, [value("x", ["A", "B"])], [V("y", F32, None)])


def symbolic(n: int) -> ModelProto:
    """Each Concat makes a new unknown dim."""
    nodes, last = [], "x0"
    for i in range(1, n):
        nodes.append(N("Concat", [last, f"x{i}"], [f"c{i}"], axis=0))
        last = f"c{i}"
    nodes.append(N("Relu", [last], ["y"]))
    return model(nodes, [value(f"x{i}", [f"D{i}"]) for i in range(n)], [V("y", F32, None)])


def sequence(n: int) -> ModelProto:
    nodes = [N("SequenceConstruct", ["x"] * n, ["s"]), N("ConcatFromSequence", ["s"], ["y"], axis=0)]
    return model(nodes, [value("x")], [V("y", F32, None)])


def inserts(n: int) -> ModelProto:
    nodes, last = [N("SequenceEmpty", [], ["s"])], "s"
    for i in range(n):
        nodes.append(N("SequenceInsert", [last, "x"], [f"s{i}"]))
        last = f"s{i}"
    nodes.append(N("ConcatFromSequence", [last], ["y"], axis=0))
    return model(nodes, [value("x")], [V("y", F32, None)])


def trips(n: int) -> ModelProto:
    """A loop that makes a sequence longer, as often as there are trips."""
    listed = lambda name: helper.make_tensor_sequence_value_info(name, F32, None)  # noqa: E731
    nodes = [N("Identity", ["go"], ["on"]), N("SequenceInsert", ["s", "x"], ["longer"])]
    formals = [V("i", I64, []), V("go", TensorProto.BOOL, []), listed("s")]
    body = helper.make_graph(nodes, "body", formals, [V("on", TensorProto.BOOL, []), listed("longer")])
    outer = [N("SequenceEmpty", [], ["none"]), N("Loop", ["n", "", "none"], ["r"], body=body), N("ConcatFromSequence", ["r"], ["y"], axis=0)]
    return model(outer, [value("x")], [V("y", F32, None)], [numpy_helper.from_array(np.array(n, np.int64), "n")])


def same_names(n: int) -> ModelProto:
    """Nodes without names, and with one that they share."""
    made = chain(n)
    for i, node in enumerate(made.graph.node):
        node.name = "" if i % 2 else "same"
    return made


def own_ops(n: int) -> ModelProto:
    """Functions of the domain ai.ampc that are not what their names say."""
    made = functions(n)
    for node in made.graph.node:
        node.op_type, node.domain = "AllFinite", "ai.ampc"
        node.overload = "x" + node.name
    for i, f in enumerate(made.functions):
        f.name, f.domain, f.overload = "AllFinite", "ai.ampc", f"xn{i}"
    made.opset_import.extend([helper.make_opsetid("ai.ampc", 1)])
    return made


def marks(n: int) -> ModelProto:
    """Every node says that ampc has inserted it."""
    made = casts(n)
    for node in made.graph.node:
        node.metadata_props.add(key="ampc.provenance", value="inserted")
    return made


# -- commands

Argv = list[str]
LOWERING = "classify, guard, taint, assign, insert-casts, simplify-casts, convert-constants, dce"
READ: dict[str, Argv] = {
    "check": ["check", "m.onnx"],
    "inspect": ["inspect", "m.onnx", "--json"],
    "inspect text": ["inspect", "m.onnx"],
    "rewrite": ["rewrite", "m.onnx", "-o", "o.onnx", "--force"],
    "report": ["rewrite", "m.onnx", "-o", "o.onnx", "--force", "--report", "r.json", "--keep-io", "none", "--opset", "auto"],
    "explain": ["rewrite", "m.onnx", "-o", "o.onnx", "--force", "--explain", "*"],
    "opt": ["opt", "m.onnx", "--passes", LOWERING, "-o", "o.ir", "--force"],
    "run": ["run", "m.onnx", "--outputs", "o.npz", "--force"],
    "verify": ["verify", "m.onnx", "m.onnx"],
    "plan": ["run", "m.onnx", "--print-plan"],
    "text": ["rewrite", "m.onnx", "-o", "o.ir", "--force"],
    "json": ["rewrite", "m.onnx", "-o", "o.json", "--force"],
    "dot": ["rewrite", "m.onnx", "--emit", "dot", "-o", "o.dot", "--force"],
    "emulated": ["rewrite", "m.onnx", "--emit", "emulated", "-o", "o.onnx", "--force"],
    "check text": ["check", "m.ir"],
    "check json": ["check", "m.json"],
}
STEP = ["train-step", "m.onnx", "--state", "s.safetensors", "-o", "step.onnx", "--force"]
TRAINED: dict[str, Argv] = {
    "train-step": [*STEP, "--loss", "mse", "--report", "r.json"],
    "train-step sgd": [*STEP, "--loss", "mse", "--optimizer", "sgd", "--clip-norm", "1"],
    "train": ["train", "step.onnx", "--state", "s.safetensors", "--data", "d.npz", "--steps", "2", "--save", "k.safetensors", "--force"],
    "export": ["train-step", "--export", "step.onnx", "--state", "s.safetensors", "-o", "e.onnx", "--force"],
    "check step": ["check", "step.onnx"],
}
# Commands that another one makes the files of.
NEEDS = {"check text": "text", "check json": "json", "train": "train-step", "export": "train-step", "check step": "train-step"}


@dataclass
class Count:
    """A count of a file: how a file with n of it is made, what reads it, and the most that is tried."""

    name: str
    make: Callable[[int], ModelProto]
    commands: dict[str, Argv] = field(default_factory=lambda: READ)
    most: int = 1 << 17
    least: int = 1 << 9
    more: Callable[[int, Path], None] | None = None
    made: dict[int, bytes] = field(default_factory=dict)


def only(*names: str) -> dict[str, Argv]:
    return {name: (READ | TRAINED)[name] for name in names}


def arrays_npz(n: int, folder: Path) -> None:
    np.savez(folder / "d.npz", **{f"x{i}": np.ones(2, np.float32) for i in range(n)})


def unknown_npz(n: int, folder: Path) -> None:
    np.savez(folder / "d.npz", **{f"q{i}": np.ones(2, np.float32) for i in range(n)})


def tensors(n: int, folder: Path, prefix: str) -> None:
    entries = {f"{prefix}{i}": {"dtype": "F32", "shape": [2], "data_offsets": [8 * i, 8 * i + 8]} for i in range(n)}
    header = json.dumps(entries).encode()
    (folder / "d.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * 8 * n)


def test_data(n: int, folder: Path) -> None:
    data = folder / "data"
    data.mkdir(exist_ok=True)
    for old in data.iterdir():
        old.unlink()
    for i in range(n):
        (data / f"input_{i}.pb").write_bytes(const(f"x{i}").SerializeToString())


def pins(n: int, folder: Path) -> None:
    rules = {f"n{i}": "fp32" for i in range(n)}
    (folder / "p.json").write_text(json.dumps({"schema": "ampc-policy/1", "name": "pins", "pins": rules}))


def options(n: int, folder: Path, line: Callable[[int], list[str]]) -> None:
    """Arguments for the command line, as many as there are."""
    words = [word for i in range(n) for word in line(i)]
    (folder / "args.json").write_text(json.dumps(words))


def samples(n: int, folder: Path) -> None:
    np.savez(folder / "d.npz", x=np.ones((n, 2), np.float32), target=np.ones((n, 2), np.float32))


def two_samples(n: int, folder: Path) -> None:
    samples(64, folder)


def spread(n: int, folder: Path) -> None:
    """Constants as external data, each in a file of its own."""
    from onnx import load

    made = load(folder / "m.onnx", load_external_data=False)
    for old in folder.glob("w*.bin"):
        old.unlink()
    for tensor in made.graph.initializer:
        (folder / f"{tensor.name}.bin").write_bytes(tensor.raw_data)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.ClearField("raw_data")
        tensor.external_data.add(key="location", value=f"{tensor.name}.bin")
    (folder / "m.onnx").write_bytes(made.SerializeToString())


def one_data_file(n: int, folder: Path) -> None:
    """Constants as external data, in one file."""
    from onnx import load

    made = load(folder / "m.onnx", load_external_data=False)
    with open(folder / "all.bin", "wb") as out:
        for tensor in made.graph.initializer:
            tensor.data_location = TensorProto.EXTERNAL
            for key, text in (("location", "all.bin"), ("offset", str(out.tell())), ("length", str(len(tensor.raw_data)))):
                tensor.external_data.add(key=key, value=text)
            out.write(tensor.raw_data)
            tensor.ClearField("raw_data")
    (folder / "m.onnx").write_bytes(made.SerializeToString())


NPZ = {
    "run": ["run", "m.onnx", "--inputs", "d.npz"],
    "verify": ["verify", "m.onnx", "m.onnx", "--inputs", "d.npz"],
    "rewrite --verify": ["rewrite", "m.onnx", "-o", "o.onnx", "--force", "--verify", "--inputs", "d.npz"],
}
SAFETENSORS = {name: [word.replace("d.npz", "d.safetensors") for word in argv] for name, argv in NPZ.items()}
FOLDER = {name: [word.replace("d.npz", "data") for word in argv] for name, argv in NPZ.items()}
REPLAY = {"replay": ["rewrite", "m.onnx", "-o", "o.onnx", "--force", "--policy", "p.json"]}
WITH_ARGS = {"rewrite": ["rewrite", "m.onnx", "-o", "o.onnx", "--force", "@args.json"]}
DIM_ARGS = {"run": ["run", "m.onnx", "@args.json"], "verify": ["verify", "m.onnx", "m.onnx", "@args.json"]}
STEP_ARGS = {"train-step": [*STEP, "--loss", "mse", "@args.json"]}
EPOCH = {"train": ["train", "step.onnx", "--state", "s.safetensors", "--data", "d.npz", "--batch", "64", "--epochs", "1"]}
PASSES = {"opt": ["opt", "m.onnx", "@args.json", "-o", "o.ir", "--force"]}


def passes(n: int, folder: Path) -> None:
    options(1, folder, lambda _: ["--passes", ", ".join(["dce"] * n)])


def short(n: int) -> ModelProto:
    return products(2)


COUNTS = [
    Count("nodes in a chain", chain),
    Count("nodes of the same name", same_names),
    Count("nodes of unknown operators", custom, only("check", "inspect", "rewrite", "report", "run", "text", "json", "check text", "check json")),
    Count("inputs", inputs),
    Count("outputs", outputs),
    Count("inputs with named dims", named_dims),
    Count("dims of one tensor", dims_of_one),
    Count("names of dims of one tensor", names_of_one),
    Count("initializers", initializers),
    Count("initializers that nothing reads", unread),
    Count("initializers listed as inputs", listed_initializers),
    Count("sparse initializers", sparse),
    Count("Constant nodes", constants_of_nodes),
    Count("external data files", initializers, more=spread, most=1 << 13),
    Count("tensors of one data file", initializers, more=one_data_file),
    Count("attributes of one node", attributes),
    Count("elements of an attribute", list_of_attribute, most=1 << 20),
    Count("strings of a constant", strings, most=1 << 20),
    Count("labels of a LabelEncoder", labels, most=1 << 20),
    Count("functions", functions),
    Count("calls of one function", calls),
    Count("operands that calls leave out", left_out, most=1 << 14),
    Count("defaults of function attributes", defaults, most=1 << 14),
    Count("default attributes that a function reads", read_defaults),
    Count("functions that call each other in a chain", calls_in_chain),
    Count("functions that call the next twice", doubling, only("check", "inspect", "rewrite", "report", "text", "json"), most=22, least=11),
    Count("bodies", bodies),
    Count("captures of one body", captures),
    Count("depth of bodies", deep, most=24, least=3),
    Count("states of a loop", loop_states),
    Count("readers of one value", readers),
    Count("operands that are the same value", operands),
    Count("operands of one node", distinct_operands),
    Count("results of one node", results),
    Count("results that one node reads", read_results),
    Count("elements of a sequence", sequence),
    Count("nodes that make a sequence longer", inserts),
    Count("trips of a loop that makes a sequence longer", trips, only("run", "verify", "rewrite")),
    Count("metadata entries", metadata),
    Count("opset imports", opsets),
    Count("value_info entries", value_infos),
    Count("value_info of no value", foreign_value_infos),
    Count("quantization annotations", quantization),
    Count("length of names", long_names, most=1 << 22, least=1 << 14),
    Count("layers", products),
    Count("layers between denied nodes", softmaxes),
    Count("layers with one weight", shared_weight),
    Count("layers that the last node reads", residuals),
    Count("casts of the author", casts),
    Count("casts that say they are inserted", marks),
    Count("shapes that are computed", shapes),
    Count("dims that are made", symbolic),
    Count("functions that look like operators of ai.ampc", own_ops),
    Count("parameters", products, TRAINED, more=two_samples, most=1 << 13, least=1 << 6),
    Count("readers of a parameter", shared_weight, TRAINED, more=two_samples, most=1 << 13, least=1 << 6),
    Count("parameters of residuals", residuals, TRAINED, more=two_samples, most=1 << 13, least=1 << 6),
    Count("arrays of an .npz", inputs, NPZ, more=arrays_npz, most=1 << 15),
    Count("arrays of an .npz that are no inputs", inputs, NPZ, more=unknown_npz, most=1 << 15),
    Count("entries of a .safetensors", inputs, SAFETENSORS, more=lambda n, f: tensors(n, f, "x")),
    Count("entries of a .safetensors that are no inputs", inputs, SAFETENSORS, more=lambda n, f: tensors(n, f, "q")),
    Count("files of test data", inputs, FOLDER, more=test_data, most=1 << 14),
    Count("pins of a policy", chain, REPLAY, more=pins),
    Count("--pin", chain, WITH_ARGS, more=lambda n, f: options(n, f, lambda i: ["--pin", f"n{i}=fp32"]), most=1 << 14),
    Count("--pin with globs", lambda n: chain(1000), WITH_ARGS, more=lambda n, f: options(n, f, lambda i: ["--pin", f"n{i}*=fp32"]), most=1 << 10, least=16),
    Count("--pin-value", chain, WITH_ARGS, more=lambda n, f: options(n, f, lambda i: ["--pin-value", f"h{i}=fp32" if i < n - 1 else "y=fp32"]), most=1 << 14),
    Count("--explain", chain, WITH_ARGS, more=lambda n, f: options(n, f, lambda i: ["--explain", f"n{i}"]), most=1 << 14),
    Count("--keep-io", inputs, WITH_ARGS, more=lambda n, f: options(1, f, lambda _: ["--keep-io", ",".join(f"x{i}" for i in range(min(n, 15000)))]), most=1 << 13),
    Count("--dim", named_dims, DIM_ARGS, more=lambda n, f: options(n, f, lambda i: ["--dim", f"D{i}=2"]), most=1 << 14),
    Count("--freeze", products, STEP_ARGS, more=lambda n, f: options(n - 1, f, lambda i: ["--freeze", f"w{i}"]), most=1 << 12, least=1 << 6),
    Count("--decay", products, STEP_ARGS, more=lambda n, f: options(n, f, lambda i: ["--decay", f"w{i}=0.1"]), most=1 << 12, least=1 << 6),
    Count("passes of a pipeline", short, PASSES, more=passes, most=1 << 13),
    Count("samples", short, EPOCH, more=samples),
]


# -- measuring


def seconds(ampc: str, argv: Argv, folder: Path) -> tuple[float, int]:
    """The user time of a command in seconds, and its exit code; what it prints is not kept."""
    if argv[-1] == "@args.json" or "@args.json" in argv:
        more = json.loads((folder / "args.json").read_text())
        at = argv.index("@args.json")
        argv = [*argv[:at], *more, *argv[at + 1 :]]
    log = open(folder / "log", "wb")
    child = subprocess.Popen(
        [ampc, "--threads", "1", *argv], cwd=folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (TIMEOUT, TIMEOUT)),
    )
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime, child.returncode


def prepare(ampc: str, count: Count, command: str, n: int, folder: Path) -> bool:
    """Writes a file with n of the count, and what the command reads beside it."""
    if n not in count.made:
        count.made[n] = count.make(n).SerializeToString()
    (folder / "m.onnx").write_bytes(count.made[n])
    if count.more:
        count.more(n, folder)
    if count.commands is EPOCH:
        return seconds(ampc, [*STEP, "--loss", "mse"], folder)[1] == 0
    need = NEEDS.get(command)
    if need is None:
        return True
    argv = TRAINED["train-step"] if need == "train-step" else READ[need]
    argv = [word.replace("o.ir", "m.ir").replace("o.json", "m.json") for word in argv]
    return seconds(ampc, argv, folder)[1] == 0


@dataclass
class Found:
    """The largest count that was measured, its time, the exponent, and exit codes that are not 0."""

    n: int
    time: float
    exponent: float | None
    codes: set[int]


def measured(ampc: str, count: Count, command: str, enough: float, folder: Path) -> Found:
    """Doubles the count until the command takes `enough` seconds more than for the smallest count."""
    argv, points, codes = count.commands[command], [], set()
    if not prepare(ampc, count, command, 2, folder):
        return Found(2, 0.0, None, {-1})
    base = min(seconds(ampc, argv, folder)[0] for _ in range(2))
    n = count.least
    while n <= count.most:
        if not prepare(ampc, count, command, n, folder):
            break
        time, code = seconds(ampc, argv, folder)
        if time < 0.5:
            time = min(time, seconds(ampc, argv, folder)[0])
        points.append((n, max(time - base, 0.0)))
        codes |= {code} - {0}
        if points[-1][1] >= enough:
            break
        n *= 2 if time - base > enough / 16 else 4
    if not points:
        return Found(n, 0.0, None, codes)
    n, last = points[-1]
    if last < 0.02:
        return Found(n, last, 0.0, codes)
    before = [(m, t) for m, t in points[:-1] if t > 0.004 and m >= n / 8]
    if not before:
        return Found(n, last, None, codes)
    m, first = before[0]
    return Found(n, last, math.log(last / first) / math.log(n / m), codes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ampc", default=os.environ.get("AMPC_BIN", "target/release/ampc"))
    parser.add_argument("--quick", action="store_true", help="smaller files, and exponents up to 1.35 pass")
    parser.add_argument("--only", default="", help="counts, with commas between them")
    parser.add_argument("--command", default="", help="commands, with commas between them")
    args = parser.parse_args()
    ampc = str(Path(args.ampc).resolve())
    enough, most = (0.1, 1.35) if args.quick else (0.4, 1.2)
    wanted, commands = set(filter(None, args.only.split(","))), set(filter(None, args.command.split(",")))
    rows, steep = [], 0
    for count in COUNTS:
        if wanted and count.name not in wanted:
            continue
        for command in count.commands:
            if commands and command not in commands:
                continue
            with tempfile.TemporaryDirectory(prefix="ampc-growth-") as name:
                found = measured(ampc, count, command, enough, Path(name))
                if (found.exponent or 0) > most:
                    found = measured(ampc, count, command, 2 * enough, Path(name))
            if found.n >= count.most / 2 and found.time < 0.02:
                shown = "flat"
            else:
                shown = "?" if found.exponent is None else f"{found.exponent:.2f}"
            bad = (found.exponent or 0) > most and found.time > 0.1
            steep += bad
            codes = " ".join(map(str, sorted(found.codes)))
            row = {"count": count.name, "command": command, "n": f"{found.n:,}", "seconds": f"{found.time:.2f}",
                   "exponent": f"**{shown}**" if bad else shown, "exit": codes}
            rows.append(row)
            print("\t".join(row.values()), file=sys.stderr, flush=True)
        count.made.clear()
    print(markdown(list(rows[0]), rows))
    print(f"\nexponents above {most}: {steep}")
    return 1 if steep else 0


if __name__ == "__main__":
    sys.exit(main())
