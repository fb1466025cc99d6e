"""Damages a model that has every kind of message, byte by byte: what onnx refuses to parse, ampc refuses.

Proves, per damaged file that `onnx.load` refuses: `ampc check` and `ampc rewrite` end with 3, and nothing is written.
Then, per repeated field, that a model with 50,000 of it is checked and rewritten within a bound that a quadratic reader exceeds.

    damaged.py --ampc BIN [--files N] [--seed N]
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import measure
import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import helper, numpy_helper

COUNT, MAX_SECONDS = 50_000, 20.0


def value(name: str, dims: list[int | str]) -> onnx.ValueInfoProto:
    """A declared f32 tensor."""
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims)


def matmul() -> onnx.ModelProto:
    """y = x w."""
    weights = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="mm", doc_string="doc")
    graph = helper.make_graph([node], "g", [value("x", ["N", 4])], [value("y", ["N", 4])], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("my", 1)])
    model.ir_version = 11
    return model


def entry(entries: onnx.ModelProto, key: str, text: str) -> None:
    """Adds a pair of texts."""
    added = entries.add()
    added.key, added.value = key, text


def everything() -> onnx.ModelProto:
    """A model with a message of every kind, used or not."""
    model = matmul()
    graph, node = model.graph, model.graph.node[0]
    graph.value_info.append(helper.make_tensor_sequence_value_info("q", onnx.TensorProto.FLOAT, [3, 4]))
    entry(graph.metadata_props, "a", "b")
    entry(node.metadata_props, "k", "v")
    devices = node.device_configurations.add(configuration_id="c")
    sharding = devices.sharding_spec.add(tensor_name="x", device=[1, 2, 300])
    sharding.index_to_device_group_map.add(key=3, value=[1, 2])
    sharding.sharded_dim.add(axis=1).simple_sharding.add(dim_param="N", num_shards=2)
    entry(graph.quantization_annotation.add(tensor_name="y").quant_parameter_tensor_names, "S", "w")
    body = [helper.make_node("Relu", ["a"], ["b"])]
    imports = [helper.make_opsetid("", 21)]
    model.functions.append(helper.make_function("my", "F", ["a"], ["b"], body, imports, value_info=[value("b", [2])]))
    model.configuration.add(name="c", num_devices=2, device=["a", "b"])
    training = model.training_info.add()
    training.algorithm.CopyFrom(graph)
    entry(training.update_binding, "w", "w2")
    return model


def damaged(source: bytes, rng: random.Random) -> bytes:
    """One or two bytes replaced, removed or added."""
    found = bytearray(source)
    for _ in range(rng.choice([1, 1, 2])):
        at, what = rng.randrange(len(found)), rng.random()
        if what < 0.6:
            found[at] = rng.randrange(256)
        elif what < 0.8:
            del found[at]
        else:
            found.insert(at, rng.randrange(256))
    return bytes(found)


def is_parsed(content: bytes) -> bool:
    """Whether onnx reads it."""
    try:
        onnx.load_from_string(content)
    except (DecodeError, UnicodeDecodeError, ValueError):
        return False
    return True


def judge_damage(ampc: str, folder: Path, files: int, seed: int) -> Iterator[str]:
    """What is wrong with how damaged files end."""
    rng, source, refused = random.Random(seed), everything().SerializeToString(), 0
    path, output = folder / "damaged.onnx", folder / "out.onnx"
    for i in range(files):
        content = damaged(source, rng)
        if is_parsed(content):
            continue
        refused += 1
        path.write_bytes(content)
        for arguments in (["check", str(path)], ["rewrite", str(path), "-o", str(output)]):
            run = measure.run([ampc, *arguments], 60)
            if run.ending() != "3" or output.exists():
                yield f"file {i} of seed {seed}: {arguments[0]} ended with {run.ending()}"
    print(f"{refused} of {files} files are refused by onnx")


def many(add: Callable[[onnx.ModelProto, int], None]) -> onnx.ModelProto:
    """A model with many of something."""
    model = matmul()
    for i in range(COUNT):
        add(model, i)
    return model


def add_attribute(model: onnx.ModelProto, i: int) -> None:
    """Attributes of one node."""
    if i == 0:
        model.graph.node.append(helper.make_node("Op", ["y"], ["z"], domain="my"))
    model.graph.node[1].attribute.append(helper.make_attribute(f"a{i}", i))


def add_unknown(model: onnx.ModelProto, i: int) -> None:
    """Operators that do not exist."""
    model.graph.node.append(helper.make_node("Nope", ["y"], [f"o{i}"]))


def add_domain(model: onnx.ModelProto, i: int) -> None:
    """Domains that are not imported."""
    model.graph.node.append(helper.make_node("Op", ["y"], [f"o{i}"], domain=f"d{i}"))


def add_function(model: onnx.ModelProto, i: int) -> None:
    """Functions, each called once; a tenth of them, for each has much of its own."""
    if i % 10 == 0:
        body = [helper.make_node("Relu", ["a"], ["b"])]
        model.functions.append(helper.make_function("my", f"F{i}", ["a"], ["b"], body, [helper.make_opsetid("", 21)]))
        model.graph.node.append(helper.make_node(f"F{i}", ["y"], [f"f{i}"], domain="my"))


REPEATED: dict[str, Callable[[onnx.ModelProto, int], None]] = {
    "attributes": add_attribute,
    "unknown operators": add_unknown,
    "domains": add_domain,
    "inputs": lambda m, i: m.graph.input.append(value(f"i{i}", [2])),
    "the same output": lambda m, _: m.graph.output.append(value("y", ["N", 4])),
    "readers of a value": lambda m, i: m.graph.node.append(helper.make_node("Exp", ["y"], [f"o{i}"])),
    "functions": add_function,
    "operands of the same value": lambda m, i: m.graph.node.append(helper.make_node("Sum", ["y"] * COUNT, ["s"]))
    if i == 0
    else None,
    "undefined outputs": lambda m, i: m.graph.output.append(value(f"o{i}", [2])),
    "nodes of one name": lambda m, i: m.graph.node.append(helper.make_node("Relu", ["y"], [f"o{i}"], name="r")),
    "initializers": lambda m, i: m.graph.initializer.append(helper.make_tensor(f"w{i}", 1, [1], [0.0])),
    "value_info": lambda m, i: m.graph.value_info.append(value(f"v{i}", [2])),
    "opset imports": lambda m, i: m.opset_import.append(helper.make_opsetid(f"d{i}", 1)),
    "metadata": lambda m, i: entry(m.metadata_props, f"k{i}", "v"),
    "dims": lambda m, _: m.graph.initializer[0].dims.append(1),
    "operands": lambda m, i: (m.graph.node[0].ClearField("input"), m.graph.node[0].input.extend(["x"] * COUNT))
    if i == 0
    else None,
}


def judge_repeated(ampc: str, folder: Path) -> Iterator[str]:
    """Which repeated fields take too long."""
    path, output = folder / "many.onnx", folder / "many.out.onnx"
    for name, add in REPEATED.items():
        path.write_bytes(many(add).SerializeToString())
        for arguments in (["check", str(path)], ["rewrite", str(path), "-o", str(output), "--force"]):
            run = measure.run([ampc, *arguments], 2 * MAX_SECONDS)
            said, what = len(run.stdout) + len(run.stderr), f"{arguments[0]} of {COUNT} {name}"
            print(f"{what}: {run.wall:.2f} s, exit {run.ending()}, {said} characters")
            if run.ending() not in ("0", "3") or run.wall > MAX_SECONDS:
                yield f"{what}: ended with {run.ending()} after {run.wall:.1f} s"
            if said > 1 << 20:
                yield f"{what}: {said} characters are said"


def main() -> int:
    """Judges, prints what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--corpus", help="not needed")
    parser.add_argument("--ampc", default=os.environ.get("AMPC_BIN"), help="the binary [AMPC_BIN]")
    parser.add_argument("--files", type=int, default=500, help="damaged files [500]")
    parser.add_argument("--seed", type=int, default=1, help="of the damage [1]")
    args = parser.parse_args()
    if not args.ampc or not Path(args.ampc).exists():
        parser.error("no binary: give --ampc or set AMPC_BIN")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wrong = [*judge_damage(args.ampc, folder, args.files, args.seed), *judge_repeated(args.ampc, folder)]
    print("\n".join(wrong) or "all as it must be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
