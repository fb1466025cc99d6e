#!/usr/bin/env python3
"""Hostile and careless files, as rows: each run keeps what SECURITY.md and docs/cli.md promise.

Every row makes files in an empty folder and names one command. Proves, per row: the exit code is one of those wanted and
never 70 or a signal; what fails says why, on standard error; memory stays below a bound that the size of the files
explains; no temporary file is left; text that people read has no control character, and no character that hides or
reorders others; no file changes that the command does not write. Rows of growth run a command on n and 8 n of one count:
its user time may not grow as the square does.

Kinds: lies (metadata and names that say what is not so), memory, growth, twice (what is listed twice), escapes, leftovers
(of runs that end early), replaced (files that are read, or appear meanwhile, and are to be written).

    promises.py --ampc BIN [--only KIND,…] [--corpus ignored]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import FunctionProto, ModelProto, TensorProto, helper, numpy_helper

F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
N, V = helper.make_node, helper.make_tensor_value_info
CPU_SECONDS = 120
MEGABYTES = 160
# A square grows 64-fold from n to 8 n, what is linear 8-fold: this is 28-fold.
EXPONENT = 1.6
# Text that people read has none of these: control characters but for line breaks and tabs, and what reorders or hides.
HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")

REFUSED, READ, EITHER = (2, 3, 4, 5), (0,), (0, 1, 2, 3, 4, 5)


@dataclass
class Row:
    """One run: how its files are made, the command, and the exit codes that are right."""

    kind: str
    name: str
    make: Callable[[Path], None]
    argv: list[str]
    codes: tuple[int, ...]
    megabytes: int = MEGABYTES
    check: Callable[[Path, str], str] = lambda folder, said: ""
    # Growth: how files with n are made, and n.
    grow: Callable[[int, Path], None] | None = None
    n: int = 0


# -- models


def value(name: str, dims: list | None = None, dtype: int = F32) -> onnx.ValueInfoProto:
    return V(name, dtype, [2] if dims is None else dims)


def const(name: str, dims: tuple = (2,)) -> TensorProto:
    return numpy_helper.from_array(np.full(dims, 0.5, np.float32), name)


def graph_of(nodes: list, inputs: list, outputs: list, constants: list = []) -> ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def small() -> ModelProto:
    """A product, its bias, and a Relu."""
    nodes = [N("MatMul", ["x", "w"], ["p"], "fc"), N("Add", ["p", "b"], ["s"], "add"), N("Relu", ["s"], ["y"], "relu")]
    return graph_of(nodes, [value("x", ["N", 2])], [value("y", ["N", 2])], [const("w", (2, 2)), const("b")])


def save(model: ModelProto, folder: Path, name: str = "m.onnx") -> None:
    (folder / name).write_bytes(model.SerializeToString())


def changed(change: Callable[[ModelProto], None], base: Callable[[], ModelProto] = small) -> Callable[[Path], None]:
    """Makes m.onnx of a model that is changed, and values for its inputs."""

    def make(folder: Path) -> None:
        model = base()
        change(model)
        save(model, folder)
        np.savez(folder / "d.npz", x=np.ones((4, 2), np.float32), target=np.ones((4, 2), np.float32))

    return make


def of(model: Callable[[], ModelProto]) -> Callable[[Path], None]:
    return lambda folder: save(model(), folder)


def entry(props: object, key: str, text: str) -> None:
    added = props.add()
    added.key, added.value = key, text


def function(domain: str, name: str, overload: str, nodes: list, inputs: list[str], outputs: list[str]) -> FunctionProto:
    made = FunctionProto(name=name, domain=domain, overload=overload, input=inputs, output=outputs)
    made.opset_import.extend([helper.make_opsetid("", 20), helper.make_opsetid(domain, 1)])
    made.node.extend(nodes)
    return made


def call(domain: str, name: str, overload: str, nodes: list, operands: int = 1, results: int = 1) -> ModelProto:
    """A model that calls a function of this name and body."""
    ins, outs = [f"a{i}" for i in range(operands)], [f"r{i}" for i in range(results)]
    node = N(name, [f"x{i}" for i in range(operands)], [f"y{i}" for i in range(results)], "call", domain=domain)
    node.overload = overload
    model = graph_of([node], [value(f"x{i}") for i in range(operands)], [value(f"y{i}") for i in range(results)])
    model.opset_import.append(helper.make_opsetid(domain, 1))
    model.functions.append(function(domain, name, overload, nodes, ins, outs))
    return model


STEP_FILES: dict[str, bytes] = {}


def step_files(ampc: str) -> None:
    """A training step and its state, which rows of lies damage."""
    with tempfile.TemporaryDirectory(prefix="ampc-promises-") as name:
        folder = Path(name)
        save(small(), folder)
        argv = [ampc, "-q", "train-step", "m.onnx", "-o", "step.onnx", "--state", "s.safetensors", "--loss", "mse"]
        subprocess.run(argv, cwd=folder, check=True)
        for file in ("step.onnx", "s.safetensors"):
            STEP_FILES[file] = (folder / file).read_bytes()


def step(change: Callable[[ModelProto], None]) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        model = onnx.load_from_string(STEP_FILES["step.onnx"])
        change(model)
        save(model, folder)
        (folder / "s.safetensors").write_bytes(STEP_FILES["s.safetensors"])
        np.savez(folder / "d.npz", x=np.ones((4, 2), np.float32), target=np.ones((4, 2), np.float32))

    return make


CHECK, REWRITE, RUN = ["check", "m.onnx"], ["rewrite", "m.onnx", "-o", "o.onnx"], ["run", "m.onnx"]
TRAIN = ["train", "m.onnx", "--state", "s.safetensors", "--data", "d.npz", "--steps", "2", "--batch", "4"]
EXPORT = ["train-step", "--export", "m.onnx", "--state", "s.safetensors", "-o", "o.onnx"]


# -- lies


def set_entry(key: str, text: str | Callable[[str], str]) -> Callable[[ModelProto], None]:
    """Gives metadata of the model another text."""

    def change(model: ModelProto) -> None:
        for found in model.metadata_props:
            if found.key == key:
                found.value = text(found.value) if callable(text) else text
                return
        entry(model.metadata_props, key, text("") if callable(text) else text)

    return change


def on_nodes(key: str, text: str) -> Callable[[ModelProto], None]:
    def change(model: ModelProto) -> None:
        for node in model.graph.node:
            for i in [i for i, found in enumerate(node.metadata_props) if found.key == key][::-1]:
                del node.metadata_props[i]
            entry(node.metadata_props, key, text)

    return change


def altered(model: ModelProto) -> None:
    """Swaps the operands of the first Mul, Sub or Add of every function that differ."""
    for f in model.functions:
        for node in f.node:
            if node.op_type in ("Mul", "Sub", "Add", "Div") and node.input[0] != node.input[1]:
                node.input[0], node.input[1] = node.input[1], node.input[0]
                break


def other_operator(model: ModelProto) -> None:
    node = next(node for node in model.graph.node if node.op_type == "Relu")
    node.op_type = "Sigmoid"


def other_optimizer(model: ModelProto) -> None:
    """Changes the first number of an optimizer."""
    attributes = [a for node in model.graph.node if node.op_type in ("SGD", "Adam", "AdamW") for a in node.attribute]
    found = next(a for a in attributes if a.type in (a.FLOAT, a.TENSOR))
    if found.type == found.FLOAT:
        found.f += 0.25
    else:
        found.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(found.t) + 0.25, found.t.name))


def states(change: Callable[[list], object]) -> Callable[[ModelProto], None]:
    """Changes the list of states in the metadata of a step."""

    def edit(text: str) -> str:
        found = json.loads(text)
        result = change(found)
        return json.dumps(found if result is None else result)

    return set_entry("ampc.state", edit)


def forward(key: str, text: object) -> Callable[[ModelProto], None]:
    def edit(old: str) -> str:
        found = json.loads(old)
        found[key] = text
        return json.dumps(found)

    return set_entry("ampc.forward", edit)


def twice_each(items: list) -> list:
    return items + items


def lies() -> Iterator[Row]:
    def row(name: str, make: Callable[[Path], None], argv: list[str], codes: tuple[int, ...] = EITHER) -> Row:
        return Row("lies", name, make, argv, codes)

    yield row("every node says that it is an inserted cast", changed(on_nodes("ampc.cast", "inserted")), REWRITE, READ)
    yield row("the model says that all its results are inserted", changed(set_entry("ampc.provenance", "p\ns\ny\nnone")), REWRITE, READ)
    yield row("nodes have a role that is none", changed(on_nodes("ampc.role", "king")), REWRITE, READ)
    yield row("nodes say that they are of the backward pass", changed(on_nodes("ampc.phase", "bwd")), REWRITE, READ)
    yield row("states are no JSON", step(set_entry("ampc.state", "{")), TRAIN, REFUSED)
    yield row("states are listed twice", step(states(twice_each)), TRAIN, REFUSED)
    yield row("a state goes out where no output is", step(states(lambda s: s[0].update(out="nothing"))), TRAIN, REFUSED)
    yield row("a state comes in where no input is", step(states(lambda s: s[0].update({"in": "nothing"}))), TRAIN, REFUSED)
    yield row("a state is of a weight that is none", step(states(lambda s: [x.update(of="nothing") for x in s] and None)), EXPORT)
    yield row("all states are weights", step(states(lambda s: [x.update(kind="weight") for x in s] and None)), EXPORT)
    yield row("all states are moments", step(states(lambda s: [x.update(kind="moment") for x in s] and None)), EXPORT)
    yield row("states have a kind that is none", step(states(lambda s: [x.update(kind="king") for x in s] and None)), TRAIN)
    yield row("two states come out of one output", step(states(lambda s: s[0].update(out=s[1]["out"]))), TRAIN)
    yield row("there are no states", step(states(lambda s: [])), EXPORT)
    yield row("the forward model has outputs that are none", step(forward("outputs", ["nothing"])), EXPORT, REFUSED)
    yield row("the forward model has inputs that are none", step(forward("inputs", ["nothing"])), EXPORT)
    yield row("the forward model is a number", step(set_entry("ampc.forward", "7")), EXPORT, REFUSED)
    yield row("the loss is an output that is none", step(forward("loss", "nothing")), TRAIN)
    yield row("nodes of a step have the phase of others", step(on_nodes("ampc.phase", "fwd")), EXPORT)
    yield row("nodes of a step have the role of others", step(on_nodes("ampc.role", "step")), EXPORT)
    yield row("no function of a step has its body", step(altered), TRAIN)
    yield row("no function of a step has its body, to export", step(altered), EXPORT)
    yield row("a weight has an output of another rank", step(states(lambda s: next(x for x in s if x["kind"] == "weight" and x["in"] == "b").update(out="y"))), TRAIN, REFUSED)
    yield row("a weight has an output of another rank, to export", step(states(lambda s: next(x for x in s if x["kind"] == "weight" and x["in"] == "b").update(out="y"))), EXPORT, REFUSED)
    for name, argv in (("", TRAIN), (", to export", EXPORT)):
        yield row(f"an operator of a step is another{name}", step(other_operator), argv, REFUSED)
        yield row(f"an optimizer of a step is another{name}", step(other_optimizer), argv, REFUSED)
    relu = [N("Relu", ["a0"], ["r0"])]
    for name, operands, results in (("AdamW", 1, 1), ("GradCheck", 1, 1), ("PhiloxDropout", 1, 1), ("LossScale", 1, 1), ("AllFinite", 1, 1)):
        model = lambda name=name, o=operands, r=results: call("ai.ampc", name, "", relu, o, r)  # noqa: E731
        yield row(f"a function is called {name} and is a Relu", of(model), REWRITE)
        yield row(f"a function is called {name}, has an overload and is a Relu", of(lambda m=model: with_overload(m())), RUN)
    yield row("a copy is of a function that is not there", of(lambda: instance_of("f::nothing:")), REWRITE, READ)
    yield row("a function is a copy of itself", of(lambda: instance_of("f::F:")), REWRITE, READ)


def with_overload(model: ModelProto) -> ModelProto:
    model.functions[0].overload = model.graph.node[0].overload = "2_1_f16"
    return model


def instance_of(text: str) -> ModelProto:
    model = call("f", "F", "", [N("Relu", ["a0"], ["r0"])])
    entry(model.functions[0].metadata_props, "ampc.instance_of", text)
    return model


# -- memory


def huge_constant(dims: list[int], dtype: int = F32) -> ModelProto:
    model = small()
    tensor = model.graph.initializer[0]
    tensor.dims[:], tensor.data_type = dims, dtype
    return model


def sparse_dims(dims: list[int]) -> ModelProto:
    model = small()
    values, at = const("w", (1,)), numpy_helper.from_array(np.array([0], np.int64), "w_at")
    del model.graph.initializer[0]
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, at, dims))
    return model


def number(name: str, *numbers: int) -> TensorProto:
    return numpy_helper.from_array(np.array(numbers, np.int64), name)


def fill(op: str, operands: list[str], constants: list[TensorProto], **attrs: object) -> ModelProto:
    """A node whose constants ask for a large result, and a Relu behind it."""
    nodes = [N(op, operands, ["big"], "big", **attrs), N("Relu", ["big"], ["z"], "relu"), N("ReduceMax", ["z"], ["y"], keepdims=0)]
    return graph_of(nodes, [value("x")], [V("y", F32, [])], constants)


BIG = 1 << 40
FILLS = {
    "ConstantOfShape": lambda: fill("ConstantOfShape", ["n"], [number("n", BIG)]),
    "Expand": lambda: fill("Expand", ["x", "n"], [number("n", BIG, 2)]),
    "Tile": lambda: fill("Tile", ["x", "n"], [number("n", BIG)]),
    "Range": lambda: fill("Range", ["f", "t", "s"], [numpy_helper.from_array(np.array(v, np.float32), n) for n, v in (("f", 0), ("t", 1e12), ("s", 1))]),
    "Pad": lambda: fill("Pad", ["x", "n"], [number("n", BIG, BIG)]),
    "OneHot": lambda: fill("OneHot", ["i", "n", "x"], [number("n", BIG), number("i", 0, 1)]),
    "Upsample by Resize": lambda: fill("Resize", ["r", "", "s"], [const("r", (1, 1, 2, 2)), numpy_helper.from_array(np.array([1, 1, 1e7, 1e7], np.float32), "s")]),
    "EyeLike": lambda: graph_of([N("EyeLike", ["c"], ["y"])], [V("c", F32, [1 << 20, 1 << 20])], [V("y", F32, None)]),
}


def loop(trips: int) -> ModelProto:
    """A loop of constants, which one might want to fold."""
    body = helper.make_graph([N("Identity", ["go"], ["on"]), N("Add", ["s", "s"], ["t"])], "body", [V("i", I64, []), V("go", BOOL, []), value("s")], [V("on", BOOL, []), value("t")])
    nodes = [N("Loop", ["n", "", "c"], ["r"], "loop", body=body), N("Add", ["r", "x"], ["y"])]
    times = numpy_helper.from_array(np.array(trips, np.int64), "n")
    return graph_of(nodes, [value("x")], [value("y")], [times, const("c")])


def doubling(depth: int, calls: int) -> ModelProto:
    """Functions that call the next several times: the whole is exponential in the depth."""
    model = call("f", "F0", "", [])
    del model.functions[:]
    for i in range(depth + 1):
        names = ["a", *(f"h{k}" for k in range(calls - 1)), "b"]
        nodes = [N(f"F{i + 1}", [names[k]], [names[k + 1]], domain="f") for k in range(calls)] if i < depth else [N("Relu", ["a"], ["b"])]
        model.functions.append(function("f", f"F{i}", "", nodes, ["a"], ["b"]))
    return model


def concats(n: int) -> ModelProto:
    """Shapes that double with every node."""
    nodes = [N("Shape", ["x"], ["s0"]), *(N("Concat", [f"s{i}", f"s{i}"], [f"s{i + 1}"], axis=0) for i in range(n))]
    return graph_of(nodes, [value("x")], [V(f"s{n}", I64, None)])


def npy_header(descr: str) -> bytes:
    head = descr.encode() + b" " * 64 + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head


def npz_header(descr: str, data: bytes = b"") -> bytes:
    """An archive with an array whose header lies about its dims."""
    import io
    import zipfile

    array = npy_header(descr) + data
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("x.npy", array)
    return out.getvalue()


def claimed_entry(size: int, method: int = 0) -> bytes:
    """An archive of a few hundred bytes, whose entry claims so many, stored or deflated."""
    import zlib

    array = npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (%d, 2), }" % (size // 8))
    compress = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = compress.compress(array) + compress.flush() if method else array
    name, packed = b"x.npy", len(body) if method else size
    extra = struct.pack("<HHQQ", 1, 16, size, packed)
    local = struct.pack("<4sHHHHHIIIHH", b"PK\x03\x04", 45, 0, method, 0, 33, 0, 0xFFFFFFFF, 0xFFFFFFFF, len(name), len(extra))
    central = struct.pack("<4sHHHHHHIIIHHHHHII", b"PK\x01\x02", 45, 45, 0, method, 0, 33, 0, 0xFFFFFFFF, 0xFFFFFFFF, len(name), len(extra), 0, 0, 0, 0, 0)
    local, central = local + name + extra + body, central + name + extra
    return local + central + struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, 1, 1, len(central), len(local), 0)


def zeros_of_other_dims(folder: Path) -> None:
    """An array of 240 MB of zeros in 240 kB, whose dims are not those of the input."""
    import zipfile

    save(small(), folder)
    with zipfile.ZipFile(folder / "d.npz", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as out:
        out.write(npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (60000000,), }"))
        for _ in range(240):
            out.write(bytes(1_000_000))


def with_data(name: str, content: bytes) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        save(small(), folder)
        (folder / name).write_bytes(content)

    return make


def safetensors(header: str | bytes, size: int = 0, claims: int | None = None) -> bytes:
    text = header.encode() if isinstance(header, str) else header
    return struct.pack("<Q", len(text) if claims is None else claims) + text + b"\0" * size


def unknown_arrays(n: int, folder: Path) -> None:
    """A model with n inputs, and n arrays of other names."""
    save(graph_of([N("Relu", [f"x{i}"], [f"y{i}"]) for i in range(n)], [value(f"x{i}") for i in range(n)], [value(f"y{i}") for i in range(n)]), folder)
    entries = {f"q{i}": {"dtype": "F32", "shape": [], "data_offsets": [4 * i, 4 * i + 4]} for i in range(n)}
    (folder / "d.safetensors").write_bytes(safetensors(json.dumps(entries), 4 * n))


def memory() -> Iterator[Row]:
    def row(name: str, make: Callable[[Path], None], argv: list[str], codes: tuple[int, ...] = EITHER) -> Row:
        return Row("memory", name, make, argv, codes)

    data = ["run", "m.onnx", "--inputs", "d.npz"]
    tensors = ["run", "m.onnx", "--inputs", "d.safetensors"]
    yield row("dims of a constant", of(lambda: huge_constant([1 << 20, 1 << 20])), REWRITE, REFUSED)
    yield row("dims of a constant whose product is no number", of(lambda: huge_constant([1 << 62, 1 << 62])), CHECK, REFUSED)
    yield row("dims of a constant below zero", of(lambda: huge_constant([-1, -4])), CHECK, REFUSED)
    yield row("dims of a sparse constant", of(lambda: sparse_dims([1 << 20, 1 << 20])), REWRITE, REFUSED)
    for op, make in FILLS.items():
        yield row(f"{op}, rewritten", of(make), REWRITE)
        yield row(f"{op}, run", of(make), RUN)
    yield row("trips of a loop", of(lambda: loop(1 << 62)), REWRITE, READ)
    yield row("shapes that double", of(lambda: concats(48)), REWRITE)
    yield row("functions that call the next twice", of(lambda: doubling(16, 2)), REWRITE, READ)
    yield row("functions that call the next four times", of(lambda: doubling(8, 4)), REWRITE, READ)
    yield row("functions that call the next sixteen times", of(lambda: doubling(4, 16)), REWRITE, READ)
    yield row("functions that call the next twice, 60 deep", of(lambda: doubling(60, 2)), REWRITE, REFUSED)
    yield row("arrays that are no inputs", lambda folder: unknown_arrays(6000, folder), tensors, (2,))
    yield row("dims of an array", with_data("d.npz", npz_header("{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 2), }")), data, REFUSED)
    yield row("dims of an array whose product is no number", with_data("d.npz", npz_header("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4611686018427387904), }")), data, REFUSED)
    for size in (1 << 30, 3 << 30, 1 << 40, (1 << 63) - 8):
        yield row(f"the size of an entry, {size} bytes", with_data("d.npz", claimed_entry(size)), data, REFUSED)
        yield row(f"the size of a deflated entry, {size} bytes", with_data("d.npz", claimed_entry(size, 8)), data, REFUSED)
    yield row("zeros of other dims", zeros_of_other_dims, data, (2,))
    yield row("elements of an array of no bytes", with_data("d.npz", npz_header("{'descr': '|V0', 'fortran_order': False, 'shape': (1099511627776,), }")), data, REFUSED)
    yield row("the header of a safetensors file", with_data("d.safetensors", safetensors("{}", 0, 1 << 60)), tensors, REFUSED)
    yield row("offsets of a safetensors file", with_data("d.safetensors", safetensors(json.dumps({"x": {"dtype": "F32", "shape": [1 << 40, 2], "data_offsets": [0, 1 << 43]}}))), tensors, REFUSED)
    yield row("JSON in JSON", with_data("m.json", b"[" * 5_000_000), ["check", "m.json"], REFUSED)
    yield row("bodies in bodies in a text", with_data("m.ir", b"module ir=10\ngraph @main {\n" + b"%a = If(%a) {then_branch: graph () {\n" * 100_000), ["check", "m.ir"], REFUSED)
    yield row("dims of an input", of(lambda: dims_of(1 << 20)), RUN, REFUSED)
    yield row("a random dim", of(small), [*RUN, "--dim", "N=1099511627776"], REFUSED)


def dims_of(n: int) -> ModelProto:
    return graph_of([N("Relu", ["x"], ["y"])], [value("x", [n, n])], [value("y", [n, n])])


# -- growth


def names(n: int, prefix: str) -> list[str]:
    return [f"{prefix}{i}" for i in range(n)]


def relus(n: int, folder: Path, dims: Callable[[int], list] = lambda i: [2]) -> None:
    nodes = [N("Relu", [f"x{i}"], [f"y{i}"]) for i in range(n)]
    save(graph_of(nodes, [value(f"x{i}", dims(i)) for i in range(n)], [V(f"y{i}", F32, None) for i in range(n)]), folder)


def with_args(n: int, folder: Path, args: list[str]) -> None:
    (folder / "args.json").write_text(json.dumps(args))


def dims_given(n: int, folder: Path) -> None:
    relus(n, folder, lambda i: [f"D{i}"])
    with_args(n, folder, [word for i in range(min(n, 20_000)) for word in ("--dim", f"D{i}=2")])


def arrays(n: int, folder: Path, prefix: str = "x") -> None:
    relus(n, folder)
    entries = {f"{prefix}{i}": {"dtype": "F32", "shape": [2], "data_offsets": [8 * i, 8 * i + 8]} for i in range(n)}
    (folder / "d.safetensors").write_bytes(safetensors(json.dumps(entries), 8 * n))


def split(n: int, folder: Path) -> None:
    nodes = [N("Split", ["x"], names(n, "h"), axis=0, num_outputs=n), N("Sum", names(n, "h"), ["y"])]
    save(graph_of(nodes, [value("x", [n])], [V("y", F32, None)]), folder)


def sums(n: int, folder: Path) -> None:
    save(graph_of([N("Sum", ["x"] * n, ["y"])], [value("x")], [value("y")]), folder)


def outputs(n: int, folder: Path) -> None:
    save(graph_of([N("Relu", ["x"], [f"y{i}"]) for i in range(n)], [value("x")], [value(f"y{i}") for i in range(n)]), folder)


def chain(n: int, folder: Path) -> None:
    """Inputs of one row, each joined to the inputs before it."""
    nodes = [N("Concat", [f"h{i - 1}" if i else "x0", f"x{i + 1}"], [f"h{i}"], axis=0) for i in range(n)]
    save(graph_of(nodes, [value(f"x{i}", [f"D{i}"]) for i in range(n + 1)], [V(f"h{n - 1}", F32, None)]), folder)


def dim_names(n: int, folder: Path) -> None:
    save(graph_of([N("Relu", ["x"], ["y"])], [value("x", names(n, "D"))], [V("y", F32, None)]), folder)


def long_dim(n: int, folder: Path) -> None:
    """A name that is asked for, and one that is there, both long."""
    save(graph_of([N("Relu", ["x"], ["y"])], [value("x", ["D" * n])], [V("y", F32, None)]), folder)
    with_args(n, folder, ["--dim", "D" * (n - 1) + "=2"])


def data_set(n: int, folder: Path) -> None:
    relus(n, folder)
    data = folder / "data"
    data.mkdir(exist_ok=True)
    for i in range(n):
        (data / f"input_{i}.pb").write_bytes(const("").SerializeToString())


def growth() -> Iterator[Row]:
    def row(name: str, n: int, grow: Callable[[int, Path], None], argv: list[str], codes: tuple[int, ...] = READ) -> Row:
        return Row("growth", name, lambda folder: None, argv, codes, megabytes=1024, grow=grow, n=n)

    verify, tensors = ["verify", "m.onnx", "m.onnx"], ["run", "m.onnx", "--inputs", "d.safetensors"]
    yield row("inputs, compared", 1000, relus, verify)
    yield row("inputs with named dims", 1000, lambda n, f: relus(n, f, lambda i: [f"D{i}", f"E{i}"]), RUN)
    yield row("inputs that a chain joins", 1000, chain, RUN)
    yield row("names of dims", 2000, dim_names, RUN)
    yield row("sizes of dims", 500, dims_given, [*RUN, "@args"])
    yield row("outputs that are written", 1000, outputs, [*RUN, "--outputs", "o.npz"])
    yield row("outputs that are written as test data", 200, outputs, [*RUN, "--outputs", "out/"])
    yield row("arrays for inputs", 1000, arrays, tensors)
    yield row("arrays for no input", 1000, lambda n, f: arrays(n, f, "q"), tensors, (2,))
    yield row("operands that are one value", 2000, sums, RUN)
    yield row("results that one node reads", 500, split, REWRITE)
    yield row("results that one node reads, run", 1000, split, RUN)
    yield row("length of a name that is near another", 2000, long_dim, [*RUN, "@args"], (2,))
    yield row("files of test data", 500, data_set, ["run", "m.onnx", "--inputs", "data"])


# -- twice


def repeat(field: str) -> Callable[[ModelProto], None]:
    return lambda model: getattr(model.graph, field).append(getattr(model.graph, field)[0])


def attribute_twice(model: ModelProto) -> None:
    node = model.graph.node[2]
    node.op_type = "LeakyRelu"
    for alpha in (0.1, 0.2):
        node.attribute.append(helper.make_attribute("alpha", alpha))


def functions_twice() -> ModelProto:
    model = call("f", "F", "", [N("Relu", ["a0"], ["r0"])])
    model.functions.append(function("f", "F", "", [N("Neg", ["a0"], ["r0"])], ["a0"], ["r0"]))
    return model


def formal_twice() -> ModelProto:
    model = call("f", "F", "", [N("Add", ["a0", "a1"], ["r0"])], 2)
    model.functions[0].input[:] = ["a0", "a0"]
    return model


def member_twice() -> bytes:
    import io
    import warnings
    import zipfile

    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w") as archive:
        warnings.simplefilter("ignore")
        for number in (1, 2):
            array = io.BytesIO()
            np.save(array, np.full((4, 2), number, np.float32))
            archive.writestr("x.npy", array.getvalue())
    return out.getvalue()


def unicode_path_twice() -> bytes:
    """An archive in which the Unicode path of an entry is the name of the other entry."""
    import io
    import zipfile
    import zlib

    out, array = io.BytesIO(), io.BytesIO()
    np.save(array, np.ones((4, 2), np.float32))
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("x.npy", array.getvalue())
        other = zipfile.ZipInfo("y.npy")
        other.extra = struct.pack("<HHBI", 0x7075, 10, 1, zlib.crc32(b"y.npy")) + b"x.npy"
        archive.writestr(other, array.getvalue())
    return out.getvalue()


TEXT = "module ir=10\nopset ai.onnx=20\n\ngraph @main {{\n  input %x : f32[2]\n{more}  %y = Relu(%x) : f32[2] @n\n  output %y : f32[2]\n}}\n"


def text_with(more: str, text: str = TEXT) -> bytes:
    return text.format(more=more).encode()


def json_twice(folder: Path, key: str) -> None:
    """A graph as JSON in which a field stands twice."""
    save(small(), folder)
    subprocess.run([AMPC, "-q", "rewrite", "m.onnx", "-o", "g.json"], cwd=folder, check=True)
    text = (folder / "g.json").read_text()
    found = re.search(rf'"{key}":\s*("[^"]*"|\d+|\[[^\[\]]*\])', text)
    assert found, key
    (folder / "g.json").write_text(text.replace(found[0], f"{found[0]}, {found[0]}", 1))


def target_twice(folder: Path) -> None:
    """A target of ours, in which the name stands twice."""
    save(small(), folder)
    text = (Path(__file__).parents[2] / "passes" / "src" / "target" / "profiles" / "generic.json").read_text()
    (folder / "t.json").write_text(text.replace("{", '{"name": "other",', 1))


def twice() -> Iterator[Row]:
    def row(name: str, make: Callable[[Path], None], argv: list[str], codes: tuple[int, ...] = REFUSED) -> Row:
        return Row("twice", name, make, argv, codes)

    yield row("inputs", changed(repeat("input")), CHECK)
    yield row("initializers", changed(repeat("initializer")), CHECK)
    yield row("outputs", changed(repeat("output")), CHECK, EITHER)
    yield row("results of nodes", changed(lambda m: m.graph.node.append(m.graph.node[0])), CHECK)
    yield row("results of one node", changed(lambda m: m.graph.node[0].output.append("p")), CHECK)
    yield row("attributes", changed(attribute_twice), CHECK)
    yield row("functions", of(functions_twice), CHECK)
    yield row("inputs of a function", of(formal_twice), CHECK)
    yield row("outputs of a function", of(lambda: doubled_output()), CHECK, EITHER)
    yield row("opsets that differ", changed(lambda m: m.opset_import.append(helper.make_opsetid("", 13))), CHECK)
    yield row("opsets of a function that differ", of(lambda: function_opsets()), CHECK)
    yield row("declared types that differ", changed(lambda m: m.graph.value_info.extend([value("p", ["N", 2]), value("p", ["N", 3])])), CHECK, EITHER)
    for key in ("ampc.state", "ampc.step", "ampc.forward", "ampc.loss_scale", "ampc.provenance"):
        yield row(f"metadata {key}", changed(lambda m, key=key: [entry(m.metadata_props, key, v) for v in "ab"]), CHECK)
    yield row("attributes of a function", of(lambda: function_attributes(["a", "a"], [])), CHECK)
    yield row("attributes of a function, with a default", of(lambda: function_attributes(["a"], ["a"])), CHECK)
    yield row("defaults of a function", of(lambda: function_attributes([], ["a", "a"])), CHECK)
    yield row("metadata", changed(lambda m: [entry(m.metadata_props, "k", v) for v in "ab"]), REWRITE, EITHER)
    yield row("sparse and dense initializers", changed(lambda m: m.graph.sparse_initializer.append(helper.make_sparse_tensor(const("w", (1,)), number("w_at", 0), [2, 2]))), CHECK)
    yield row("arrays of an .npz", with_data("d.npz", member_twice()), ["run", "m.onnx", "--inputs", "d.npz"])
    yield row("arrays of an .npz, by a Unicode path", with_data("d.npz", unicode_path_twice()), ["run", "m.onnx", "--inputs", "d.npz"])
    for more in ("'descr': '<f4'", "'fortran_order': True", "'shape': (2, 2)"):
        header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), %s, }" % more
        yield row(f"{more.split(':')[0]} of an array", with_data("d.npz", npz_header(header, bytes(8))), ["run", "m.onnx", "--inputs", "d.npz"])
    spelled = '{"x": %s, "x": %s}' % ((json.dumps({"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]}),) * 2)
    yield row("arrays of a .safetensors", with_data("d.safetensors", safetensors(spelled, 8)), ["run", "m.onnx", "--inputs", "d.safetensors"])
    spelled = '{"__metadata__": {"k": "1", "k": "2"}, "x": %s}' % json.dumps({"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]})
    yield row("metadata of a .safetensors", with_data("d.safetensors", safetensors(spelled, 8)), ["run", "m.onnx", "--inputs", "d.safetensors"])
    yield row("bytes of a .safetensors", with_data("d.safetensors", safetensors(json.dumps({n: {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]} for n in "xz"}), 8)), ["run", "m.onnx", "--inputs", "d.safetensors"])
    yield row("fields of a policy", with_data("p.json", b'{"schema": "ampc-policy/1", "name": "p", "base": "safe", "base": "all"}'), [*REWRITE, "--policy", "p.json"])
    yield row("fields of a target", target_twice, [*REWRITE, "--target", "t.json"])
    yield row("fields of a graph as JSON", lambda f: json_twice(f, "name"), ["check", "g.json"])
    yield row("inputs in a text", with_data("m.ir", text_with("  input %x : f32[2]\n")), ["check", "m.ir"])
    yield row("values in a text", with_data("m.ir", text_with("  %y = Neg(%x) : f32[2]\n")), ["check", "m.ir"])
    yield row("attributes in a text", with_data("m.ir", text_with("  %z = LeakyRelu(%x) {alpha=0.1, alpha=0.2} : f32[2]\n")), ["check", "m.ir"])
    yield row("graphs in a text", with_data("m.ir", text_with("") + text_with("").split(b"\n\n", 1)[1]), ["check", "m.ir"])
    yield row("opsets in a text", with_data("m.ir", text_with("").replace(b"opset ai.onnx=20", b"opset ai.onnx=20\nopset ai.onnx=13")), ["check", "m.ir"])
    for line in ("module ir=10", 'producer "a" "1"', "version 1", 'domain "a"', 'doc "a"', 'meta ampc.state = "[]"'):
        yield row(f"a line of a text, {line.split(' ')[0]}", with_data("m.ir", f"{line}\n{line}\n".encode() + text_with("").replace(b"module ir=10\n", b"")), ["check", "m.ir"])
    for tail in ("@a @b", "class=allow class=deny", "class=T:allow,T:deny", "class=deny prec=f16 prec=f32"):
        yield row(f"marks of a node in a text, {tail}", with_data("m.ir", text_with(f"  %z = Neg(%x) : f32[2] {tail}\n")), ["check", "m.ir"])
    yield row("states in a text", with_data("m.ir", text_with("  state %x -> %x\n  state %x -> %x\n")), ["check", "m.ir"])
    in_function = b"\nfunction f::F {\n  attr a\n  attr a = 1\n}\n"
    yield row("attributes of a function in a text", with_data("m.ir", text_with("") + in_function), ["check", "m.ir"])
    for fields in ('"attributes": ["a", "a"]', '"attributes": ["a"], "attribute_defaults": {"a": {"int": 1}}'):
        graph = '{"schema": "ampc-graph/1", "graph": {}, "functions": [{"domain": "f", "name": "F", %s, "graph": {}}]}' % fields
        yield row(f"attributes of a function as JSON, {fields}", with_data("g.json", graph.encode()), ["check", "g.json"])
    yield row("sizes of a dim", changed(lambda m: None), [*RUN, "--dim", "N=2", "--dim", "N=3"])


def doubled_output() -> ModelProto:
    model = call("f", "F", "", [N("Relu", ["a0"], ["r0"])], 1, 2)
    model.functions[0].output[:] = ["r0", "r0"]
    return model


def function_attributes(names: list[str], defaults: list[str]) -> ModelProto:
    model = call("f", "F", "", [N("Relu", ["a0"], ["r0"])])
    model.functions[0].attribute.extend(names)
    model.functions[0].attribute_proto.extend(helper.make_attribute(name, 1) for name in defaults)
    return model


def function_opsets() -> ModelProto:
    model = call("f", "F", "", [N("Relu", ["a0"], ["r0"])])
    model.functions[0].opset_import.append(helper.make_opsetid("", 13))
    return model


# -- escapes

EVIL = 'a"b\n\x1b[31m\r\t</table><script>\\"|{}\u202e\u200b`$(id)%s\x07'


def renamed(where: str) -> Callable[[ModelProto], None]:
    """Gives something of a model a name that terminals, tables and drawings might obey."""

    def change(model: ModelProto) -> None:
        graph, old = model.graph, {"input": "x", "output": "y", "constant": "w", "value": "p"}.get(where)
        if where == "node":
            graph.node[0].name = EVIL
        elif where == "operator":
            graph.node[2].op_type, graph.node[2].domain = EVIL, "own"
            model.opset_import.append(helper.make_opsetid("own", 1))
        elif where == "domain":
            graph.node[2].domain = EVIL
            model.opset_import.append(helper.make_opsetid(EVIL, 1))
        elif where == "graph":
            graph.name = EVIL
        elif where == "dim":
            graph.input[0].type.tensor_type.shape.dim[0].dim_param = EVIL
            graph.output[0].type.tensor_type.shape.dim[0].dim_param = EVIL
        elif where == "metadata":
            entry(model.metadata_props, EVIL, EVIL)
            entry(graph.node[0].metadata_props, EVIL, EVIL)
        elif where == "producer":
            model.producer_name = model.producer_version = model.doc_string = graph.doc_string = EVIL
        elif where == "attribute":
            graph.node[2].op_type, graph.node[2].domain = "Own", "own"
            model.opset_import.append(helper.make_opsetid("own", 1))
            graph.node[2].attribute.append(helper.make_attribute(EVIL, EVIL))
        for node in graph.node if old else []:
            node.input[:] = [EVIL if name == old else name for name in node.input]
            node.output[:] = [EVIL if name == old else name for name in node.output]
        for held in [*graph.input, *graph.output, *graph.initializer] if old else []:
            held.name = EVIL if held.name == old else held.name

    return change


PLACES = ("node", "input", "output", "constant", "value", "operator", "domain", "graph", "dim", "metadata", "producer", "attribute")


def printable(file: str) -> Callable[[Path, str], str]:
    """A written text has no hidden character but in escaped form, and parses as what it is."""

    def check(folder: Path, _: str) -> str:
        path = folder / file
        if not path.exists():
            return f"{file} is missing"
        text = path.read_text("utf-8")
        if file.endswith(".json"):
            json.loads(text)
        if file.endswith(".dot") and (text.count('"') - text.count('\\"')) % 2:
            return "quotes of the drawing are not in pairs"
        found = (HIDDEN if file.endswith(".json") else re.compile("[\x00-\x08\x0b-\x1f\x7f]")).search(text)
        return f"{file} has the character {found[0]!r}" if found else ""

    return check


def same_after(other: str) -> Callable[[Path, str], str]:
    """What was written reads as a model."""

    def check(folder: Path, _: str) -> str:
        done = subprocess.run([AMPC, "check", other], cwd=folder, capture_output=True, text=True, errors="replace")
        return "" if done.returncode == 0 else f"`ampc check {other}` ends with {done.returncode}: {done.stderr[:200]}"

    return check


def both(*checks: Callable[[Path, str], str]) -> Callable[[Path, str], str]:
    return lambda folder, said: next((wrong for check in checks if (wrong := check(folder, said))), "")


def escapes() -> Iterator[Row]:
    for where in PLACES:
        make = changed(renamed(where))
        rows = [
            ("checked", CHECK, lambda f, s: ""),
            ("inspected", ["inspect", "m.onnx"], lambda f, s: ""),
            ("inspected as JSON", ["inspect", "m.onnx", "--json"], lambda f, s: ""),
            ("verified as JSON", ["verify", "m.onnx", "m.onnx", "--json"], lambda f, s: ""),
            ("rewritten", [*REWRITE, "-v", "--explain", "*", "--report", "r.json"], printable("r.json")),
            ("as text", ["rewrite", "m.onnx", "-o", "o.ir"], both(printable("o.ir"), same_after("o.ir"))),
            ("as JSON", ["rewrite", "m.onnx", "-o", "o.json"], both(printable("o.json"), same_after("o.json"))),
            ("as a drawing", ["rewrite", "m.onnx", "--emit", "dot", "-o", "o.dot"], printable("o.dot")),
            ("run", [*RUN, "--print-plan"], lambda f, s: ""),
            ("timed", [*RUN, "--bench", "1", "--profile"], lambda f, s: ""),
            ("trained", ["train-step", "m.onnx", "-o", "s.onnx", "--state", "s.safetensors", "--loss", "mse", "--report", "r.json"], lambda f, s: printable("r.json")(f, s) if (f / "r.json").exists() else ""),
        ]
        for how, argv, check in rows:
            yield Row("escapes", f"{where}, {how}", make, argv, EITHER, check=check)
    yield Row("escapes", "a name that is no UTF-8", with_data("m.onnx", small().SerializeToString().replace(b"relu", b"re\xfflu"[:4])), CHECK, EITHER)
    yield Row("escapes", "a text that is no UTF-8", with_data("m.ir", b"module ir=10\n\xff\xfe\x1b[2J"), ["check", "m.ir"], REFUSED)
    yield Row("escapes", "the name of a file", lambda f: save(small(), f, "a\x1b[31m\nb.onnx"), ["check", "a\x1b[31m\nb.onnx"], EITHER)
    yield Row("escapes", "the name of a file that is not there", lambda f: None, ["check", "a\x1b[31m\n\u202eb.onnx"], REFUSED)
    yield Row("escapes", "an option", of(small), [*REWRITE, "--pin", "\x1b[31m\u202e=fp16"], REFUSED)
    for argv in ([*REWRITE, "--to", "a\r\u202eb\x9b"], [*REWRITE, "--no\r\u202ene"], ["no\r\u202ene"], [*RUN, "--threads", "\x851"]):
        yield Row("escapes", f"words that are wrong, {argv[-2:]!a}", of(small), argv, REFUSED)
    yield Row("escapes", "an array", lambda f: (save(small(), f), np.savez(f / "d.npz", **{EVIL.replace("/", "_"): np.ones(2)})) and None, [*RUN, "--inputs", "d.npz"], REFUSED)
    yield Row("escapes", "a field of a policy", with_data("p.json", json.dumps({EVIL: 1}).encode()), [*REWRITE, "--policy", "p.json"], REFUSED)


# -- leftovers and replaced files


def many_layers(folder: Path, n: int = 300, size: int = 64) -> None:
    nodes, weights, last = [], [], "x"
    for i in range(n):
        weights.append(const(f"w{i}", (size, size)))
        nodes.append(N("MatMul", [last, f"w{i}"], [f"p{i}"], f"fc{i}"))
        last = f"p{i}"
    nodes.append(N("Relu", [last], ["y"]))
    save(graph_of(nodes, [value("x", ["N", size])], [value("y", ["N", size])], weights), folder)


WRITING = {
    "rewrite": ["rewrite", "m.onnx", "-o", "o.onnx", "--force"],
    "rewrite with a report": ["rewrite", "m.onnx", "-o", "o.onnx", "--report", "r.json", "--force"],
    "rewrite with data beside it": ["rewrite", "m.onnx", "-o", "o.onnx", "--external-data", "always", "--force"],
    "text": ["rewrite", "m.onnx", "-o", "o.ir", "--force"],
    "json": ["rewrite", "m.onnx", "-o", "o.json", "--force"],
    "dot": ["rewrite", "m.onnx", "--emit", "dot", "-o", "o.dot", "--force"],
    "emulated": ["rewrite", "m.onnx", "--emit", "emulated", "-o", "o.onnx", "--force"],
    "opt": ["opt", "m.onnx", "--passes", "dce", "-o", "o.onnx", "--force"],
    "run to .npz": ["run", "m.onnx", "--outputs", "o.npz", "--force"],
    "run to .safetensors": ["run", "m.onnx", "--outputs", "o.safetensors", "--force"],
    "run to test data": ["run", "m.onnx", "--outputs", "out/", "--force"],
    "train-step": ["train-step", "m.onnx", "-o", "o.onnx", "--state", "s.safetensors", "--loss", "mse", "--force"],
}


def killed(ampc: str, argv: list[str], folder: Path, how: int, share: float) -> str:
    """Ends a run somewhere, runs it again to the end, and says what is left that should not be."""
    many_layers(folder)
    before = set(os.listdir(folder))
    start = time.monotonic()
    done = subprocess.run([ampc, "-q", *argv], cwd=folder, capture_output=True)
    whole = time.monotonic() - start
    if done.returncode:
        return f"exit {done.returncode}: {done.stderr.decode(errors='replace')[:200]}"
    after = {name for name in os.listdir(folder)}
    child = subprocess.Popen([ampc, "-q", *argv], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(whole * share)
    child.send_signal(how)
    child.wait()
    left = leftovers(folder)
    if left and how != signal.SIGKILL:
        return f"the signal left {left}"
    again = subprocess.run([ampc, "-q", *argv], cwd=folder, capture_output=True)
    if again.returncode:
        return f"the next run ends with {again.returncode}: {again.stderr.decode(errors='replace')[:200]}"
    if left := leftovers(folder):
        return f"the next run leaves {left}"
    more = set(os.listdir(folder)) - after - before
    return f"there is {sorted(more)} besides" if more else ""


def leftovers(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.name.startswith(".ampc") or p.name.endswith(".tmp"))


def into_itself(folder: Path) -> None:
    many_layers(folder, 3)
    np.savez(folder / "d.npz", x=np.ones((2, 64), np.float32))
    os.link(folder / "m.onnx", folder / "hard.onnx")
    os.symlink("m.onnx", folder / "soft.onnx")
    (folder / "data").mkdir()
    (folder / "data" / "input_0.pb").write_bytes(const("x", (2, 64)).SerializeToString())


def training(folder: Path) -> None:
    """The files that a training reads, and other names of them."""
    step(lambda model: None)(folder)
    (folder / "i.safetensors").write_bytes((folder / "s.safetensors").read_bytes())
    (folder / "e.npz").write_bytes((folder / "d.npz").read_bytes())
    for name in TRAINED:
        os.link(folder / name, folder / f"hard-{name}")
        os.symlink(name, folder / f"soft-{name}")


TRAINED = ("m.onnx", "s.safetensors", "i.safetensors", "d.npz", "e.npz")


def scaler(folder: Path) -> None:
    save(small(), folder)
    (folder / "sc.json").write_text('{"init": 1024}')


def external(folder: Path) -> None:
    """A model whose constants are in w.bin."""
    model = small()
    tensor = model.graph.initializer[0]
    (folder / "w.bin").write_bytes(tensor.raw_data)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    entry(tensor.external_data, "location", "w.bin")
    save(model, folder)


def replaced() -> Iterator[Row]:
    def row(name: str, argv: list[str], make: Callable[[Path], None] = into_itself, codes: tuple[int, ...] = REFUSED) -> Row:
        return Row("replaced", name, make, argv, codes)

    yield row("the model by its rewrite", ["rewrite", "m.onnx", "-o", "m.onnx", "--force"])
    yield row("the model through a hard link", ["rewrite", "m.onnx", "-o", "hard.onnx", "--force"])
    yield row("the model through a link", ["rewrite", "m.onnx", "-o", "soft.onnx", "--force"])
    yield row("the model by the report", ["rewrite", "m.onnx", "-o", "o.onnx", "--report", "m.onnx", "--force"])
    yield row("the rewrite by the report", ["rewrite", "m.onnx", "-o", "o.onnx", "--report", "o.onnx", "--force"])
    yield row("the rewrite by the report, spelled otherwise", ["rewrite", "m.onnx", "-o", "o.onnx", "--report", "data/../o.onnx", "--force"])
    yield row("the inputs by the outputs", ["run", "m.onnx", "--inputs", "d.npz", "--outputs", "d.npz", "--force"])
    yield row("the model by the outputs", ["run", "m.onnx", "--inputs", "d.npz", "--outputs", "m.onnx", "--force"])
    yield row("the test data by the outputs", ["run", "m.onnx", "--inputs", "data", "--outputs", "data/", "--force"])
    yield row("the model by a pass", ["opt", "m.onnx", "--passes", "dce", "-o", "m.onnx", "--force"])
    yield row("the data file by the rewrite", ["rewrite", "m.onnx", "-o", "w.bin", "--emit", "onnx", "--force"], external)
    yield row("the data file by the report", ["rewrite", "m.onnx", "-o", "o.onnx", "--report", "w.bin", "--force"], external)
    yield row("the data file by the outputs", ["run", "m.onnx", "--outputs", "w.bin", "--force"], external)
    yield row("the inputs of --verify by the rewrite", ["rewrite", "m.onnx", "-o", "d.npz", "--emit", "onnx", "--verify", "--inputs", "d.npz", "--force"])
    yield row("the policy by the rewrite", ["rewrite", "m.onnx", "-o", "p.json", "--policy", "p.json", "--force"], lambda f: (into_itself(f), (f / "p.json").write_text('{"schema": "ampc-policy/1", "name": "p", "base": "safe"}')) and None)
    yield row("the step by the state", ["train-step", "m.onnx", "-o", "o.onnx", "--state", "o.onnx", "--loss", "mse", "--force"])
    for option in ("--save", "--log"):
        for name in (how + name for name in TRAINED for how in ("", "hard-", "soft-")):
            words = [*TRAIN, "--init", "i.safetensors", "--eval", "e.npz", "--force", option, name]
            yield row(f"{name} of a training by {option}", words, training, (2,))
    for more in (["-o", "sc.json", "--state", "n.safetensors"], ["-o", "o.onnx", "--state", "sc.json"], ["-o", "o.onnx", "--state", "n.safetensors", "--report", "sc.json"]):
        yield row(f"the scaler by {' '.join(more)}", ["train-step", "m.onnx", "--loss", "mse", "--scaler", "sc.json", "--force", *more], scaler, (2,))
    yield row("a file without --force", ["rewrite", "m.onnx", "-o", "hard.onnx"])
    yield row("a folder by the rewrite", ["rewrite", "m.onnx", "-o", "data", "--force"])


# -- running


@dataclass
class Done:
    """A run: its exit code, user time, memory and what it said."""

    code: int
    seconds: float
    megabytes: float
    out: str
    err: str


def run(argv: list[str], folder: Path, log: Path) -> Done:
    if "@args" in argv:
        argv = [*[word for word in argv if word != "@args"], *json.loads((folder / "args.json").read_text())]
    limit = lambda: resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))  # noqa: E731
    with open(log / "out", "wb+") as out, open(log / "err", "wb+") as err:
        command = [AMPC, "--threads", "1", *argv]
        child = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err, preexec_fn=limit)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode("utf-8", "replace"))
    return Done(child.returncode, usage.ru_utime, usage.ru_maxrss / 1024, *texts)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def problem(row: Row, folder: Path, log: Path) -> str:
    """What is wrong with a run of a row; nothing if it is right."""
    if row.grow:
        return growth_problem(row, folder, log)
    row.make(folder)
    before = files(folder)
    done = run(row.argv, folder, log)
    said = done.out + done.err
    if done.code not in row.codes:
        return f"exit {done.code}, expected {' or '.join(map(str, row.codes))}: {done.err.strip()[:300]}"
    if done.code not in (0, 1) and not said.strip():
        return f"exit {done.code} without a word"
    if done.megabytes > row.megabytes:
        return f"{done.megabytes:.0f} MB, expected at most {row.megabytes}"
    if found := HIDDEN.search(said):
        return f"prints the character {found[0]!r}: {said[max(0, found.start() - 40) : found.end() + 20]!r}"
    if left := leftovers(folder):
        return f"leaves {left}"
    if lost := [name for name, content in before.items() if files(folder).get(name) != content]:
        return f"changed {lost}, which it was not to write"
    return row.check(folder, said) if done.code == 0 else ""


def growth_problem(row: Row, folder: Path, log: Path) -> str:
    """The exponent of user time from n to 8 n, if it is that of a square; one that is high is measured again."""
    exponent = 0.0
    for _ in range(2):
        times = []
        for n in (row.n, 8 * row.n):
            inside = folder / f"{n}-{_}"
            inside.mkdir()
            row.grow(n, inside)
            done = run(row.argv, inside, log)
            if done.code not in row.codes:
                return f"exit {done.code}, expected {' or '.join(map(str, row.codes))}: {done.err.strip()[:300]}"
            times.append(done.seconds)
        exponent = math.log(max(times[1], 1e-3) / max(times[0], 0.02), 8)
        if exponent <= EXPONENT:
            return ""
    return f"user time grows with exponent {exponent:.2f} from {row.n} to {8 * row.n}"


def leftover_rows() -> Iterator[tuple[str, list[str], int, float]]:
    for name, argv in WRITING.items():
        yield f"{name}, ended", argv, signal.SIGTERM, 0.6
        yield f"{name}, killed", argv, signal.SIGKILL, 0.8


KINDS: dict[str, Callable[[], Iterator[Row]]] = {
    "lies": lies, "memory": memory, "growth": growth, "twice": twice, "escapes": escapes, "replaced": replaced,
}
AMPC = ""


def main() -> int:
    global AMPC
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default=None, help="ignored: the files are made here")
    parser.add_argument("--ampc", default=os.environ.get("AMPC_BIN"), help="the binary [AMPC_BIN]")
    parser.add_argument("--only", default="", help="kinds, with commas between them [all]")
    parser.add_argument("--name", default="", help="rows whose name has this")
    parser.add_argument("--times", action="store_true", help="how long every row takes")
    args = parser.parse_args()
    if not args.ampc or not Path(args.ampc).exists():
        parser.error("no binary: give --ampc or set AMPC_BIN")
    AMPC = str(Path(args.ampc).resolve())
    only = set(filter(None, args.only.split(",")))
    step_files(AMPC)
    total: Counter[str] = Counter()
    bad: Counter[str] = Counter()

    def told(kind: str, name: str, wrong: str) -> None:
        total[kind] += 1
        if wrong:
            bad[kind] += 1
            print(f"{kind}: {name}: {wrong}", flush=True)

    for kind, rows in KINDS.items():
        for row in rows() if not only or kind in only else ():
            if args.name not in row.name:
                continue
            start = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="ampc-promises-") as name, tempfile.TemporaryDirectory() as log:
                told(kind, row.name, problem(row, Path(name), Path(log)))
            if args.times:
                print(f"{time.monotonic() - start:6.2f} s  {kind}: {row.name}", flush=True)
    for name, argv, how, share in leftover_rows() if not only or "leftovers" in only else ():
        with tempfile.TemporaryDirectory(prefix="ampc-promises-") as folder:
            told("leftovers", name, killed(AMPC, argv, Path(folder), how, share))
    print("kept: " + ", ".join(f"{total[kind] - bad[kind]} of {total[kind]} {kind}" for kind in total))
    return 1 if bad or not total else 0


if __name__ == "__main__":
    sys.exit(main())
