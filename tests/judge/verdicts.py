"""One judge, one verdict: `ampc rewrite --verify` accepts what `ampc verify` accepts on the pair, and the reverse.

Each model is rewritten without a word, then with `--verify`, and the pair is compared by `ampc verify` on the same inputs:
random ones of a seed and, where a model has some, those beside it. Proves of each: both exit with the same code, with
`--accept-excused` as well; what is written with `--verify` has the bytes of what is written without; nothing is accepted,
excused or not, of which an element of an output is not finite where the source is finite, by the JSON of `ampc verify`.
The models are those of the corpus and generated ones: chains of products, sums, norms and functions, with weights of
ordinary and of extreme sizes, and with outputs that are indices.

    verdicts.py [--corpus DIR] [--count N]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import measure

FORMATS = ("fp16", "bf16")
FOLDERS = ("small", "tricky", "adversarial", "adversarial2", "train")
# Larger models take longer to run than the gate has time for.
MOST_BYTES = 200_000
WIDTH = 16


class Chain:
    """A random model: a chain of nodes of width WIDTH, with some branches."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def weights(self, *dims: int) -> str:
        size = self.random.choice([1e-7, 1e-3, 0.1, 0.25, 0.25, 0.25, 1, 30, 1e3])
        return self.constant((self.random.standard_normal(dims) * size).astype(np.float32))

    def node(self, kind: str, *operands: str, **attributes: object) -> str:
        result = f"v{len(self.nodes)}"
        # Some nodes have no name: they are found by their results.
        name = f"n{len(self.nodes)}" if self.random.random() < 0.7 else ""
        self.nodes.append(helper.make_node(kind, list(operands), [result], name, **attributes))
        return result

    def step(self, values: list[str]) -> str:
        value = values[-1]
        kind = self.random.integers(10)
        if kind < 4:
            product = self.node("MatMul", value, self.weights(WIDTH, WIDTH))
            return self.node("Add", product, self.weights(WIDTH)) if kind < 2 else product
        if kind == 4:
            return self.node("Add", value, values[self.random.integers(len(values))])
        if kind == 5:
            return self.node("Sub", value, self.constant(np.float32(self.random.choice([0.5, 100, 1e4]))))
        if kind == 6:
            return self.node("Mul", value, self.constant(np.float32(self.random.choice([1e-6, 0.5, 300]))))
        if kind == 7:
            ones = self.constant(np.ones(WIDTH, np.float32))
            return self.node("LayerNormalization", value, ones, axis=-1)
        if kind == 8:
            return self.node("Softmax", value, axis=-1)
        return self.node(str(self.random.choice(["Relu", "Tanh", "Exp", "Sigmoid", "Gelu"])), value)

    def model(self) -> onnx.ModelProto:
        values = ["x"]
        for _ in range(self.random.integers(2, 9)):
            values.append(self.step(values))
        self.outputs.append(helper.make_tensor_value_info(values[-1], TensorProto.FLOAT, None))
        if self.random.random() < 0.3:
            chosen = self.node("ArgMax", values[-1], axis=-1, keepdims=0)
            self.outputs.append(helper.make_tensor_value_info(chosen, TensorProto.INT64, None))
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", WIDTH])
        graph = helper.make_graph(self.nodes, "chain", [x], self.outputs, self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


class Case:
    """A model, a format and the inputs that it is judged on."""

    def __init__(self, name: str, model: Path, to: str, data: list[str]) -> None:
        self.name, self.model, self.to, self.data = name, model, to, data


def cases(corpus: Path | None, count: int, work: Path) -> list[Case]:
    found = []
    for seed in range(count):
        path, data = work / f"chain{seed}.onnx", work / f"chain{seed}.npz"
        onnx.save(Chain(seed).model(), path)
        np.savez(data, x=np.random.default_rng(seed).standard_normal((4, WIDTH)).astype(np.float32))
        to = FORMATS[seed % 2]
        found.append(Case(f"generated {seed} to {to} on data", path, to, ["--inputs", str(data)]))
        found.append(Case(f"generated {seed} to {to} on random inputs", path, to, ["--random", str(seed)]))
    paths = sorted(path for name in FOLDERS for path in (corpus / name).rglob("*.onnx")) if corpus else []
    for i, path in enumerate(path for path in paths if path.stat().st_size <= MOST_BYTES):
        name, data = path.relative_to(corpus), inputs_of(path, work / f"{i}.npz")
        for to in FORMATS:
            found.append(Case(f"{name} to {to}", path, to, ["--inputs", str(data)] if data else ["--random", "1"]))
    return found


def inputs_of(path: Path, to: Path) -> Path | None:
    """The inputs that are stored beside a model, without its outputs."""
    if not (stored := path.with_suffix(".npz")).exists():
        return None
    arrays = np.load(stored)
    prefix = "in_" if any(name.startswith("out_") for name in arrays.files) else ""
    np.savez(to, **{name.removeprefix(prefix): arrays[name] for name in arrays.files if name.startswith(prefix)})
    return to


def not_finite(ampc: str, case: Case, low: Path, timeout: float) -> bool:
    """True if an element of an output is not finite where the source is finite."""
    run = measure.run([ampc, "verify", str(case.model), str(low), "--json", *case.data], timeout)
    outputs = json.loads(run.stdout)["outputs"]
    return any(output["nan_disagreements"] or output["inf_disagreements"] for output in outputs)


def judge(ampc: str, case: Case, folder: Path, timeout: float, counts: Counter[str]) -> list[str]:
    """What is wrong with the verdicts on one rewrite."""
    # Of the same name, since the data file of a model has it in its own.
    low, verified = folder / "plain" / "low.onnx", folder / "verified" / "low.onnx"
    low.parent.mkdir()
    verified.parent.mkdir()
    options, limits = ["--to", case.to, "--opset", "auto"], ["--time-limit", "5"]
    source = str(case.model)
    run = lambda *args: measure.run([ampc, "-q", *args], timeout)  # noqa: E731
    if run("rewrite", source, "-o", str(low), *options).code != 0:
        counts["not rewritten"] += 1
        return []
    problems = []
    for more in ([], ["--accept-excused"]):
        by_rewrite = run("rewrite", source, "-o", str(verified), *options, "--verify", *limits, *case.data, *more)
        by_verify = run("verify", source, str(low), *limits, *case.data, *more)
        runs = (by_rewrite, by_verify)
        if any(run.timed_out or "ampc::run::time" in run.stderr for run in runs):
            counts["too slow"] += 1
            return problems
        said = " ".join(["--verify", *more])
        if by_rewrite.code != by_verify.code:
            problems.append(f"{said}: exit {by_rewrite.code} of rewrite, {by_verify.code} of verify")
        if by_rewrite.code == 0 and verified.read_bytes() != low.read_bytes():
            problems.append(f"{said}: what is written is not what is written without it")
        accepted = by_rewrite.code == 0 or by_verify.code == 0
        if accepted and not_finite(ampc, case, low, timeout):
            problems.append(f"{said}: accepted, with elements that are not finite where the source is")
        verified.unlink(missing_ok=True)
        if by_rewrite.code != 1:
            counts[("accepted" if not more else "accepted as excused") if accepted else f"exit {by_rewrite.code}"] += 1
            break
    else:
        counts["refused"] += 1
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=os.environ.get("AMPC_CORPUS"), help="[AMPC_CORPUS]")
    parser.add_argument("--ampc", default=os.environ.get("AMPC_BIN"), help="the binary [AMPC_BIN]")
    parser.add_argument("--count", type=int, help="generated models [40; 120 with a larger corpus]")
    parser.add_argument("--filter", default="", help="only cases whose name has this in it")
    parser.add_argument("--timeout", type=float, default=20, help="seconds per command [20]")
    parser.add_argument("--workers", type=int, default=2, help="commands at the same time [2]")
    args = parser.parse_args()
    if not args.ampc or not Path(args.ampc).exists():
        parser.error("no binary: give --ampc or set AMPC_BIN")
    ampc = str(Path(args.ampc).resolve())
    is_larger = bool(args.corpus) and (Path(args.corpus) / "adversarial").is_dir()
    counts: Counter[str] = Counter()
    failed = 0
    with tempfile.TemporaryDirectory() as work:
        count = args.count if args.count is not None else 120 if is_larger else 40
        found = cases(Path(args.corpus).resolve() if args.corpus else None, count, Path(work))
        found = [case for case in found if args.filter in case.name]

        def one(case: Case) -> tuple[Case, list[str]]:
            with tempfile.TemporaryDirectory(dir=work) as folder:
                return case, judge(ampc, case, Path(folder), args.timeout, counts)

        with ThreadPoolExecutor(args.workers) as pool:
            for case, problems in pool.map(one, found):
                for problem in problems:
                    failed += 1
                    print(f"{case.name}: {problem}")
    said = ", ".join(f"{n} {what}" for what, n in sorted(counts.items()))
    print(f"{len(found)} rewrites judged by both commands: {said}")
    if not counts["accepted"] or not counts["refused"] or not counts["accepted as excused"]:
        failed += 1
        print("expected verdicts of every kind: accepted, refused, accepted as excused")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
