#!/usr/bin/env python3
"""Operators that ONNX Runtime has in ONNX's domain and ONNX has not, and a deprecated version that it computes.

Proves for models of one such operator (shapes, element types, with and without what may be left out; in the main graph,
in a branch and in a function) that the CPU runtime computes what ONNX Runtime does, that a warning says who reads the
model, that the model rewritten to fp16 has the same interface and computes nearly the same there, and that the model
raised to the opset at which ONNX has the operator, or what replaces it, computes the same there, or is refused with the
reason.

    tests/judge/runtime_only.py --ampc target/release/ampc [--table]
"""

from __future__ import annotations

import os
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import ampc
import outputs

WARNING = "onnx.runtime-only"
F32, F16, F64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE
NUMPY = {F32: np.float32, F16: np.float16, F64: np.float64}
# Sums in another order, and one rounding; functions of ONNX are computed in fp16 throughout.
BOUND = {F32: 2e-6, F16: 2.0**-9, F64: 1e-12}
# Statistics are fp32 whatever is computed in.
STATISTICS = 2e-6
LOWERED = 1e-2
PLACES = ("graph", "branch", "function")
UNSUPPORTED = 4
DOMAIN = "example"


@dataclass
class Case:
    """A node, the shapes of its operands, and the number of its results."""

    op: str
    opset: int
    dtype: int
    shapes: list[tuple[int, ...]]
    results: int
    attributes: dict[str, Any]
    # The opset to raise to, and the element types of results that are not `dtype`.
    to: int
    others: tuple[int, ...] = ()
    place: str = "graph"

    @property
    def title(self) -> str:
        dtype = np.dtype(NUMPY[self.dtype]).name
        return f"{self.op} {self.opset} {dtype} {self.shapes} {self.attributes} {self.results} results, in a {self.place}"

    @property
    def crashes(self) -> bool:
        """Whether ONNX Runtime 1.31.1 dies of the model: it looks for ONNX's schema of what is in a function."""
        return self.place == "function" and "LayerNormalization" in self.op

    def info(self, result: int, name: str) -> onnx.ValueInfoProto:
        """The type and shape of a result: statistics are those of the rows from an axis on."""
        if not result:
            return helper.make_tensor_value_info(name, self.dtype, self.shapes[0])
        axis = self.attributes.get("axis", -1) % len(self.shapes[0])
        kept = [d if i < axis else 1 for i, d in enumerate(self.shapes[0])]
        return helper.make_tensor_value_info(name, self.others[result - 1], kept)


def cases() -> Iterator[Case]:
    for case in plain_cases():
        yield case
        if case.dtype == F32 and case.results == 1:
            for place in PLACES[1:]:
                yield replace(case, place=place)


def plain_cases() -> Iterator[Case]:
    statistics = (F32, F32)
    for dtype in (F32, F16, F64):
        for opset in (7, 11, 16):
            for results in (1, 2, 3):
                yield Case("LayerNormalization", opset, dtype, [(2, 3, 8), (8,), (8,)], results, {"axis": -1}, 17, statistics)
        yield Case("LayerNormalization", 12, dtype, [(2, 3, 8), (8,)], 1, {"epsilon": 1e-3}, 21)
        yield Case("LayerNormalization", 12, dtype, [(2, 3, 8), (3, 8), (3, 8)], 3, {"axis": 1}, 18, statistics)
        yield Case("LayerNormalization", 12, dtype, [(5, 1), (1,), (1,)], 1, {"axis": -1}, 17)
        for opset in (9, 17, 23):
            for results in (1, 2):
                yield Case("SimplifiedLayerNormalization", opset, dtype, [(2, 3, 8), (8,)], results, {"axis": -1}, 24, statistics)
        for opset in (18, 20):
            for groups, shape in ((1, (2, 4, 3)), (2, (2, 6, 3, 2)), (4, (3, 4, 5)), (3, (1, 6, 2))):
                yield Case("GroupNormalization", opset, dtype, [shape, (groups,), (groups,)], 1, {"num_groups": groups}, 21)
    for dtype in (F32, F16):
        for shape in ((1, 3, 4, 4), (2, 1, 3, 5), (3, 2, 1, 1)):
            bias = [0.5 * i - 1.0 for i in range(shape[1])]
            yield Case("ImageScaler", 7, dtype, [shape], 1, {"scale": 0.3, "bias": bias}, 10)
            yield Case("ImageScaler", 9, dtype, [shape], 1, {"bias": bias}, 13)


def node_of(case: Case, operands: list[str], results: list[str]) -> onnx.NodeProto:
    return helper.make_node(case.op, operands, results, "node", **case.attributes)


def model_of(case: Case) -> onnx.ModelProto:
    """The node in its place; beside a branch, the other branch gives the first operand back."""
    operands = [f"x{i}" for i in range(len(case.shapes))]
    results = [f"y{i}" for i in range(case.results)]
    imports, functions = [helper.make_opsetid("", case.opset)], []
    inputs = [helper.make_tensor_value_info(n, case.dtype, s) for n, s in zip(operands, case.shapes, strict=True)]
    types = [case.info(i, n) for i, n in enumerate(results)]
    nodes = [node_of(case, operands, results)]
    if case.place == "branch":
        inner, other = case.info(0, "inner"), case.info(0, "other")
        then = helper.make_graph([node_of(case, operands, ["inner"])], "then", [], [inner])
        rest = helper.make_graph([helper.make_node("Identity", operands[:1], ["other"])], "else", [], [other])
        nodes = [helper.make_node("If", ["which"], results, "if", then_branch=then, else_branch=rest)]
        inputs.append(helper.make_tensor_value_info("which", TensorProto.BOOL, ()))
    if case.place == "function":
        functions = [helper.make_function(DOMAIN, "Norm", operands, results, nodes, imports)]
        nodes = [helper.make_node("Norm", operands, results, "call", domain=DOMAIN)]
        imports = [*imports, helper.make_opsetid(DOMAIN, 1)]
    graph = helper.make_graph(nodes, "g", inputs, types)
    return helper.make_model(graph, opset_imports=imports, functions=functions, ir_version=8)


def feeds_of(case: Case) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    given = {f"x{i}": rng.normal(size=s).astype(NUMPY[case.dtype]) for i, s in enumerate(case.shapes)}
    if case.place == "branch":
        given["which"] = np.array(True)
    return given


def run_there(model: Path, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs in ONNX Runtime."""
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return session.run(None, given)


def compared(got: list[np.ndarray], want: list[np.ndarray], bound: float) -> str:
    """What is wrong with outputs, or the empty string."""
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        error = outputs.error(g, w)
        if error > (bound if i == 0 else max(bound, STATISTICS)):
            return f"output {i}: error {error:.2e} of its scale, at most {bound:.0e}"
    return ""


class Run:
    """One run: the binary, and where models are written."""

    def __init__(self, binary: str, folder: Path) -> None:
        self.binary, self.folder = binary, folder

    def judge(self, case: Case) -> Iterator[str]:
        """What is wrong."""
        source, given = self.folder / "source.onnx", feeds_of(case)
        onnx.save(model_of(case), source)
        if case.crashes:
            onnx.save(model_of(replace(case, place="graph")), self.folder / "plain.onnx")
            want = run_there(self.folder / "plain.onnx", given)
        else:
            want = run_there(source, given)
        yield from self._computed(case, source, given, want)
        yield from self._rewritten(case, source, given, want)
        yield from self._raised(case, source, given, want)

    def _computed(self, case: Case, source: Path, given: dict[str, Any], want: list[np.ndarray]) -> Iterator[str]:
        np.savez(self.folder / "in.npz", **given)
        out = self.folder / "out.npz"
        out.unlink(missing_ok=True)
        run = ampc.execute(self.binary, source, "--inputs", str(self.folder / "in.npz"), "--outputs", str(out))
        if run.code != 0:
            yield f"run: {ampc.problem(run)}"
            return
        got = [outputs.load(out, f"y{i}") for i in range(case.results)]
        if text := compared(got, want, BOUND[case.dtype]):
            yield f"run: {text}"

    def _rewritten(self, case: Case, source: Path, given: dict[str, Any], want: list[np.ndarray]) -> Iterator[str]:
        output = self.folder / "fp16.onnx"
        run = ampc.rewrite(self.binary, source, output, "--to", "fp16", "--policy", "all", "--force")
        if run.code != 0:
            yield f"fp16: {ampc.problem(run)}"
            return
        if run.stderr.count(WARNING) != 1:
            yield f"fp16: one warning {WARNING} is expected: {run.stderr[:200]}"
        low = case.dtype == F16 or any(node.op_type == "Cast" for node in nodes_of(output))
        if case.dtype == F32 and not low:
            yield "fp16: nothing is low"
        if case.crashes:
            return
        try:
            got = run_there(output, given)
        except Exception as error:  # noqa: BLE001: whatever it says is the finding
            yield f"fp16: {str(error).splitlines()[0][:200]}"
            return
        if text := compared(got, want, LOWERED):
            yield f"fp16: {text}"

    def _raised(self, case: Case, source: Path, given: dict[str, Any], want: list[np.ndarray]) -> Iterator[str]:
        output = self.folder / "raised.onnx"
        output.unlink(missing_ok=True)
        passes = f"raise-opset{{to={case.to}}}"
        run = ampc.opt(self.binary, source, output, "--passes", passes)
        # What is in a function has the types of its calls, which nobody knows there.
        typed = case.op != "SimplifiedLayerNormalization"
        if case.place == "function" and typed:
            if run.code != UNSUPPORTED or "unknown element type" not in run.stderr or output.exists():
                yield f"raised: a refusal is expected: {ampc.problem(run)}"
            return
        if run.code != 0:
            yield f"raised: {ampc.problem(run)}"
            return
        names = {node.op_type for node in nodes_of(output)}
        if "ImageScaler" in names or case.op != "ImageScaler" and case.op not in names:
            yield f"raised: {sorted(names)}"
        if case.crashes:
            return
        if case.op != "SimplifiedLayerNormalization":
            onnx.checker.check_model(str(output), full_check=True)
        if text := compared(run_there(output, given), want, BOUND[case.dtype]):
            yield f"raised: {text}"


def nodes_of(path: Path) -> Iterator[onnx.NodeProto]:
    """The nodes of a model, those in bodies and functions too."""
    model = onnx.load(path)
    rest = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    while rest:
        node = rest.pop()
        rest += [inner for attribute in node.attribute for inner in attribute.g.node]
        yield node


def main() -> int:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ampc", default=os.environ.get("AMPC_BIN"), help="the binary [AMPC_BIN]")
    parser.add_argument("--corpus", help="not used; other judges have it")
    parser.add_argument("--table", action="store_true", help="print every case")
    args = parser.parse_args()
    if not args.ampc or not Path(args.ampc).exists():
        parser.error("no binary: give --ampc or set AMPC_BIN")
    onnxruntime.set_default_logger_severity(4)
    bad = count = 0
    with tempfile.TemporaryDirectory() as folder:
        run = Run(str(Path(args.ampc).resolve()), Path(folder))
        for case in cases():
            found = list(run.judge(case))
            count, bad = count + 1, bad + bool(found)
            for text in found:
                print(f"{case.title}: {text}")
            if args.table and not found:
                print(f"{case.title}: ok")
    print(f"runtime only: {count} models, {bad} wrong")
    return 1 if bad or not count else 0


if __name__ == "__main__":
    sys.exit(main())
