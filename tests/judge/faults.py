#!/usr/bin/env python3
"""Changes what one random node of a model computes, and checks that `ampc verify` names exactly that node.

A fault is one of: an element of a weight far off (the other readers of the weight keep theirs), a Mul by 1.01 behind a
result, swapped operands of Sub or Div, another operator of the same form, another value of an attribute. All names
stay. ONNX Runtime says whether a fault can be seen at all: a result of the node (of a node in a body: an output of the
model) has to be off by more than 1e-3 of its largest element; otherwise another fault is drawn. What comes before the
node is not touched. Proves: `first` of `ampc verify MODEL FAULTY --json` has the node's path and the name of its result,
and the exit code is 1 if an output is off by more than 1e-3 in ONNX Runtime, 0 if all outputs are equal there.

Models are those given, or of the sets of the corpus, or without both a network that is made here.

    faults.py --ampc BIN [--tries 50] [--seed 0] [MODEL.onnx …]
"""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

import ampc
import feeds

VISIBLE = 1e-3
UNARY = ("Relu", "Tanh", "Sigmoid", "Erf", "Softplus", "Sin", "Cos", "Abs", "Neg", "Exp", "Elu", "Selu", "HardSigmoid")
TRIES_PER_FAULT = 200


@dataclass
class Place:
    """A node, the graph it is in, and its path."""

    graph: GraphProto
    node: NodeProto
    path: str
    in_main: bool


def places(graph: GraphProto, prefix: str = "") -> Iterator[Place]:
    """All nodes of a graph and its bodies."""
    for node in graph.node:
        own = node.name or next((name for name in node.output if name), "")
        yield Place(graph, node, prefix + own, prefix == "")
        for attr in node.attribute:
            if attr.type == AttributeProto.GRAPH:
                yield from places(attr.g, f"{prefix}{own}/{attr.name}/")


def fresh(model: ModelProto, base: str) -> str:
    """A name that the model has nowhere."""
    text = str(model.graph)
    return next(name for i in range(1000) if f'"{(name := f"{base}_{i}")}"' not in text)


def weight(model: ModelProto, place: Place, rng: np.random.Generator) -> str | None:
    """One element of one float weight that the node reads is far off."""
    held = {tensor.name: tensor for tensor in place.graph.initializer}
    slots = [i for i, name in enumerate(place.node.input) if name in held and held[name].data_type == TensorProto.FLOAT]
    slots = [i for i in slots if np.prod(held[place.node.input[i]].dims) > 0]
    if not slots:
        return None
    slot = int(rng.choice(slots))
    tensor = held[place.node.input[slot]]
    values = numpy_helper.to_array(tensor).copy()
    at = int(rng.integers(values.size))
    values.reshape(-1)[at] += 10 * max(1.0, float(np.abs(values).max()))
    name = fresh(model, "fault_weight")
    place.graph.initializer.append(numpy_helper.from_array(values, name))
    place.node.input[slot] = name
    return f"element {at} of operand {slot}"


def scale(model: ModelProto, place: Place, _: np.random.Generator) -> str | None:
    """The result is multiplied by 1.01 behind the node, and keeps its name."""
    out = place.node.output[0]
    factor, inner = fresh(model, "fault_factor"), fresh(model, "fault_result")
    place.graph.initializer.append(numpy_helper.from_array(np.array(1.01, np.float32), factor))
    place.node.output[0] = inner
    at = next(i for i, node in enumerate(place.graph.node) if node is place.node or node == place.node)
    place.graph.node.insert(at + 1, helper.make_node("Mul", [inner, factor], [out], name=fresh(model, "fault_mul")))
    return "times 1.01"


def swap(_: ModelProto, place: Place, __: np.random.Generator) -> str | None:
    """Swapped operands."""
    if place.node.op_type not in ("Sub", "Div", "MatMul", "Pow"):
        return None
    place.node.input[0], place.node.input[1] = place.node.input[1], place.node.input[0]
    return "swapped operands"


def operator(_: ModelProto, place: Place, rng: np.random.Generator) -> str | None:
    """Another operator with one operand and one result."""
    if place.node.op_type not in UNARY or place.node.domain or place.node.attribute:
        return None
    place.node.op_type = str(rng.choice([op for op in ("Relu", "Tanh", "Sigmoid", "Erf") if op != place.node.op_type]))
    return f"now {place.node.op_type}"


def attribute(_: ModelProto, place: Place, rng: np.random.Generator) -> str | None:
    """Another value of a float or integer attribute."""
    usable = [a for a in place.node.attribute if a.type in (AttributeProto.FLOAT, AttributeProto.INT)]
    usable = [a for a in usable if a.name not in ("to", "saturate", "keepdims")]
    if not usable:
        return None
    attr = usable[int(rng.integers(len(usable)))]
    if attr.type == AttributeProto.FLOAT:
        attr.f = attr.f * 2 + 0.5
    else:
        attr.i = 1 - attr.i if attr.i in (0, 1) else attr.i - 1
    return f"attribute {attr.name}"


FAULTS = (weight, scale, swap, operator, attribute)


def with_outputs(model: ModelProto, names: list[str]) -> bytes:
    """The model with more outputs."""
    model = copy.deepcopy(model)
    known = {value.name for value in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in known)
    return model.SerializeToString()


def run(model: ModelProto, inputs: dict[str, Any], names: list[str]) -> dict[str, np.ndarray]:
    """The outputs, and values of the main graph."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(with_outputs(model, names), options, providers=["CPUExecutionProvider"])
    wanted = [value.name for value in session.get_outputs()]
    return dict(zip(wanted, session.run(wanted, feeds.for_session(session, inputs))))


def off(got: Any, want: Any) -> float:
    """The error of max; infinite if shapes, types or non-finite elements differ."""
    if not isinstance(want, np.ndarray) or want.dtype.kind not in "fiub":
        return 0.0
    if got.shape != want.shape or got.dtype != want.dtype:
        return float("nan")
    got, want = got.astype(np.float64), want.astype(np.float64)
    if not want.size:
        return 0.0
    if not (np.isfinite(got).all() and np.isfinite(want).all()):
        return 0.0 if np.array_equal(got, want, equal_nan=True) else float("nan")
    return float(np.abs(got - want).max() / max(np.abs(want).max(), 1e-30))


@dataclass
class Fault:
    model: ModelProto
    path: str
    value: str
    what: str
    codes: tuple[int, ...]


def codes(error: float) -> tuple[int, ...]:
    """The exit codes that are right if the outputs are so far off; where in between the tolerance is, verify says."""
    if error > VISIBLE:
        return (1,)
    return (0,) if error == 0 else (0, 1)


def draw(model: ModelProto, inputs: dict[str, Any], rng: np.random.Generator) -> Fault | None:
    """A fault that can be seen."""
    plain = run(model, inputs, [])
    paths = Counter(place.path for place in places(model.graph))
    for _ in range(TRIES_PER_FAULT):
        faulty = copy.deepcopy(model)
        all_places = [p for p in places(faulty.graph) if paths[p.path] == 1 and p.node.output and p.node.output[0]]
        place = all_places[int(rng.integers(len(all_places)))]
        if any(attr.type == AttributeProto.GRAPH for attr in place.node.attribute):
            continue
        value = place.node.output[0]
        kind = FAULTS[int(rng.integers(len(FAULTS)))]
        what = kind(faulty, place, rng)
        if what is None:
            continue
        names = [value] if place.in_main else []
        try:
            want, got = run(model, inputs, names), run(faulty, inputs, names)
        except Exception:  # noqa: BLE001 ONNX Runtime refuses what is no model any more
            continue
        errors = [off(got[name], want[name]) for name in plain]
        seen = [off(got[value], want[value])] if place.in_main else errors
        if any(np.isnan(errors + seen)) or max(seen) < VISIBLE:
            continue
        return Fault(faulty, place.path, value, what, codes(max(errors)))
    return None


def network() -> ModelProto:
    """Twelve layers with residual branches, products, and an If with layers in it."""
    rng = np.random.default_rng(0)
    nodes: list[NodeProto] = []
    weights: list[TensorProto] = []

    def gemm(at: list[NodeProto], x: str, name: str) -> str:
        weights.append(numpy_helper.from_array((rng.standard_normal((16, 16)) / 4).astype(np.float32), f"{name}.weight"))
        weights.append(numpy_helper.from_array(rng.standard_normal(16).astype(np.float32) / 8, f"{name}.bias"))
        at.append(helper.make_node("Gemm", [x, f"{name}.weight", f"{name}.bias"], [f"{name}_y"], name, alpha=0.9))
        return f"{name}_y"

    x = "x"
    for i in range(12):
        y = gemm(nodes, x, f"/layer{i}/gemm")
        op = ("Tanh", "Sigmoid", "Erf")[i % 3]
        nodes.append(helper.make_node(op, [y], [f"/layer{i}/act_y"], f"/layer{i}/act"))
        join = ("Sub", "Mul", "Add")[i % 3]
        nodes.append(helper.make_node(join, [f"/layer{i}/act_y", x], [f"/layer{i}/join_y"], f"/layer{i}/join"))
        x = f"/layer{i}/join_y"
    branches = {}
    for branch in ("then_branch", "else_branch"):
        inner: list[NodeProto] = []
        y = gemm(inner, x, f"{branch}/gemm")
        inner.append(helper.make_node("Tanh", [y], [f"{branch}/y"], f"{branch}/act"))
        held = [weights.pop(), weights.pop()]
        value = helper.make_tensor_value_info(f"{branch}/y", TensorProto.FLOAT, None)
        branches[branch] = helper.make_graph(inner, branch, [], [value], held)
    nodes.append(helper.make_node("If", ["yes"], ["picked"], "pick", **branches))
    nodes.append(helper.make_node("Add", ["picked", x], ["y"], "last"))
    weights.append(numpy_helper.from_array(np.array(True), "yes"))
    shape = ["N", 16]
    graph = helper.make_graph(
        nodes, "faults", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)], weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model)
    return model


def verify(binary: str, source: Path, faulty: Path, inputs: Path, timeout: float) -> tuple[int, dict[str, Any]]:
    """The exit code and what `ampc verify --json` found."""
    command = [binary, "-q", "verify", str(source), str(faulty), "--inputs", str(inputs), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    found = json.loads(done.stdout) if done.stdout else {"error": done.stderr.strip()}
    return done.returncode, found


def one(binary: str, source: Path, model: ModelProto, fault: Fault, inputs: Path, timeout: float) -> str:
    """What is wrong with what verify says of a fault; nothing if it is right."""
    faulty = inputs.with_name("faulty.onnx")
    onnx.save(fault.model, faulty)
    code, found = verify(binary, source, faulty, inputs, timeout)
    if "error" in found:
        return f"exit {code}: {found['error'][:200]}"
    first = found["first"]
    if first is None:
        return "nothing diverges"
    if first["node"] != fault.path or first["value"] != fault.value:
        return f"named {first['node']} ({first['value']})"
    if code not in fault.codes:
        return f"exit {code}, expected {' or '.join(map(str, fault.codes))}"
    return ""


def main() -> int:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, help="models of fp32 [one that is made here]")
    parser.add_argument("--corpus", type=Path, default=None, help="models of a corpus")
    parser.add_argument("--sets", default="", help="which of its sets [none]")
    parser.add_argument("--filter", default="*", help="glob over paths within the corpus")
    parser.add_argument("--ampc", default=os.environ.get("AMPC_BIN"), help="the binary [AMPC_BIN]")
    parser.add_argument("--tries", type=int, default=50, help="faults per model [50]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=60, help="seconds per comparison [60]")
    args = parser.parse_args()
    if not args.ampc or not Path(args.ampc).exists():
        parser.error("no binary: give --ampc or set AMPC_BIN")
    binary = str(Path(args.ampc).resolve())
    bad = total = 0
    with tempfile.TemporaryDirectory(prefix="ampc-faults-") as name:
        folder = Path(name)
        models = list(args.models)
        if args.corpus and args.sets:
            models += ampc.models(args.corpus, args.sets, args.filter)
        if not models:
            models = [folder / "network.onnx"]
            onnx.save(network(), models[0])
        for path in models:
            found, wrong = judge(binary, path, args, folder)
            bad, total = bad + wrong, total + found
    print(f"named: {total - bad} of {total}")
    return 1 if bad or not total else 0


def judge(binary: str, path: Path, args: Any, folder: Path) -> tuple[int, int]:
    """Faults of one model, and how many of them verify does not name."""
    model = onnx.load(path)
    rng = np.random.default_rng(args.seed)
    values = feeds.random_feeds(str(path), 2)
    inputs = folder / "inputs.npz"
    np.savez(inputs, **{name: value.astype(str) if value.dtype == object else value for name, value in values.items()})
    drawn = bad = 0
    kinds: Counter[str] = Counter()
    for _ in range(args.tries):
        fault = draw(model, values, rng)
        if fault is None:
            break
        drawn += 1
        kinds[fault.what.split()[0]] += 1
        problem = one(binary, path, model, fault, inputs, args.timeout)
        if problem:
            bad += 1
            print(f"{path.name}: {fault.path} ({fault.value}), {fault.what}: {problem}")
    print(f"{path.name}: {drawn - bad} of {drawn} named; " + ", ".join(f"{n} {k}" for k, n in sorted(kinds.items())))
    return drawn, bad


if __name__ == "__main__":
    sys.exit(main())
