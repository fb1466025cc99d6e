"""Random graphs with bodies and functions, rewritten with the default policy, under onnx and ONNX Runtime.

Proves of each: the rewritten and the emulated model pass onnx.checker (full) if the source does; ONNX Runtime loads
the rewritten one, or lacks a kernel for its types; it runs the emulated one for both branches, with the results of
the source within the tolerance of the format. Numbers are compared where the graph is made of operators that do
not magnify an error without bound: products, sums, norms and smooth functions of inputs between -1 and 1.
One rounding is 2^-11 (f16) or 2^-8 (bf16) of a value; a path has at most 24 steps and a product of 4 x 4 adds 4
terms, so the bar is 2 x 24 roundings of the largest value on the way. Of each model rewritten for the fewest casts,
those in the file are as many as the report says that the choice costs.

Not made for this judge, but for the properties in Rust: graphs with custom operators, which nobody can run, and those
with a Cast to the type that is there, of whose result ONNX Runtime frees the memory before bodies have read it, or
with a Tile of 16 bits, which it lacks.

    random_graphs.py [--count N] [--seed N] [--cargo CARGO]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Iterator

import numpy as np
import onnx

from casts import OTHERS, inserted
from judge import CRASHING, ROOT
from tasks import NOT_IMPLEMENTED, _line, _session, check

ROUNDING = {"f16": 2.0**-11, "bf16": 2.0**-8}
BAR = 48
TAME = {
    "Add", "Cast", "Concat", "ConcatFromSequence", "Constant", "Dropout", "Erf", "Gather", "Gemm", "Identity", "If",
    "LayerNormalization", "Loop", "MatMul", "Max", "Mul", "Neg", "Optional", "OptionalGetElement", "PRelu", "ReduceMean",
    "Relu", "Reshape", "Scan", "SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceInsert", "Sigmoid", "Slice",
    "Softmax", "Split", "SplitToSequence", "Sub", "Sum", "Tanh", "Tile", "Transpose", "Ffn",
}  # fmt: skip


def nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph and its bodies."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from nodes(attribute.g)


def is_tame(model: onnx.ModelProto) -> bool:
    """Whether errors stay in proportion, as far as operators and constants tell."""
    read = {name for node in nodes(model.graph) for name in node.input}
    return {node.op_type for node in nodes(model.graph)} <= TAME and not read & {"big", "mask", "eps", "tiny"}


def feeds(seed: int, condition: bool) -> dict[str, np.ndarray]:
    """Inputs of ordinary size."""
    random = np.random.default_rng(seed)
    values = {name: random.uniform(-1, 1, (4, 4)).astype(np.float32) for name in ("x", "y")}
    return {**values, "c": np.array(condition), "i": np.array([0, 2, 1, 3], np.int64)}


def run(path: Path, fed: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of a model, unoptimized: every rounding of the emulated one is done."""
    session = _session(str(path), optimize=False)
    names = {node.name for node in session.get_inputs()}
    return session.run(None, {name: value for name, value in fed.items() if name in names})


def refuses(path: Path) -> str:
    """Why ONNX Runtime does not load a model; empty if it does, or has no kernel for its types."""
    try:
        _session(str(path), without=CRASHING)
    except Exception as error:
        return "" if NOT_IMPLEMENTED in str(error) else _line(error)
    return ""


def distance(now: list[np.ndarray], then: list[np.ndarray]) -> float:
    """The greatest difference relative to the greatest value; infinite if one is not finite where the other is."""
    worst = 0.0
    for a, b in zip(now, then, strict=True):
        if not np.array_equal(np.isfinite(a), np.isfinite(b)):
            return float("inf")
        finite = np.isfinite(b)
        difference = np.abs(a[finite].astype(np.float64) - b[finite]).max(initial=0.0)
        worst = max(worst, float(difference / max(1.0, np.abs(b[finite]).max(initial=0.0))))
    return worst


def miscounted(folder: Path, stem: str, counts: Counter[str]) -> list[str]:
    """Whether the casts in the file, under `--objective casts`, are as many as the choice says that it costs. What is
    merged, shared or taken over by an operator after casts are inserted makes fewer of them, never more."""
    optimum = json.loads((folder / f"{stem}.fewest.json").read_text())["optimum"]
    source, fewest = (onnx.load(folder / f"{stem}.{kind}.onnx") for kind in ("source", "fewest"))
    problems = [] if optimum["optimal"] and optimum["lower_bound"] == optimum["cost"] else [f"{stem}: not optimal: {optimum}"]
    count, cost = inserted(fewest), optimum["cost"] - optimum["merged"]
    # One that stands for a cast of the author, which nobody reads any more, is in no sum.
    authors = [sum(node.op_type == "Cast" for node in nodes(model.graph)) for model in (source, fewest)]
    count -= max(0, authors[0] - (authors[1] - count))
    plain = not any(node.op_type in OTHERS or node.domain == "local" for node in nodes(source.graph))
    counts["exact"] += plain
    if count > cost or plain and count != cost:
        problems.append(f"{stem}: {count} casts in the file, {cost} by the choice")
    return problems


def judge(folder: Path, stem: str, seed: int, counts: Counter[str]) -> list[str]:
    """What is wrong with one model."""
    source, low, emulated = (folder / f"{stem}.{kind}.onnx" for kind in ("source", "low", "emulated"))
    if check(str(source)) != "ok":
        counts["source refused"] += 1
        return []
    problems = [f"{path.name}: {verdict}" for path in (low, emulated) if (verdict := check(str(path))) != "ok"]
    refused = refuses(low)
    if refused and not refuses(source):
        problems.append(f"{low.name}: {refused}")
    problems += miscounted(folder, stem, counts)
    tame = is_tame(onnx.load(source))
    counts["compared"] += tame
    for condition in (True, False):
        fed = feeds(seed, condition)
        try:
            expected = run(source, fed)
        except Exception:
            counts["source fails"] += 1
            continue
        try:
            error = distance(run(emulated, fed), expected)
        except Exception as failure:
            problems.append(f"{stem}: {_line(failure)}")
            continue
        bar = BAR * ROUNDING[stem.split(".")[1]]
        if tame and error > bar:
            problems.append(f"{stem} with {condition}: error {error:.2e} > {bar:.2e}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="models [100]")
    parser.add_argument("--seed", type=int, default=1, help="which models [1]")
    parser.add_argument("--cargo", default="cargo")
    parser.add_argument("--corpus", type=Path, help="not used: the models are random")
    parser.add_argument("--ampc", help="not used: the library makes the models")
    args: Any = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {
            **os.environ, "AMPC_RANDOM_DIR": name, "AMPC_RANDOM_COUNT": str(args.count), "AMPC_RANDOM_SEED": str(args.seed),
        }  # fmt: skip
        command = [args.cargo, "test", "--quiet", "--locked", "--test", "properties", "models_for_other_judges"]
        subprocess.run(command, check=True, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
        stems = sorted({".".join(path.name.split(".")[:2]) for path in folder.iterdir()}, key=lambda s: int(s.split(".")[0]))
        counts: Counter[str] = Counter()
        wrong = 0
        for number, stem in enumerate(stems):
            problems = judge(folder, stem, number, counts)
            wrong += bool(problems)
            for problem in problems:
                print("FAIL", problem)
    print(f"random graphs: {len(stems) - wrong} of {len(stems)}, {counts['compared']} with numbers compared, {counts['exact']} with exactly as many casts as the choice says, {counts['source refused']} not judged, {counts['source fails']} runs that fail with the source already")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
