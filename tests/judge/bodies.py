"""Models with bodies and functions, rewritten and run every way through: both branches, loops of 0, 1 and 3 rounds.

Proves of each model of the set `tricky` of a corpus that has If, Loop, Scan, SequenceMap or functions: the rewritten and the emulated
model run in ONNX Runtime with the results of the source, for every value of its conditions and numbers of
iterations; and every operator inside that gains is low, or the report names the rule that keeps it. The policy `all`
makes low what the default leaves alone. The bar is that
of random_graphs.py. Where ONNX Runtime has no kernel for 16 bits, or its own optimizer fails, the emulated model speaks.

    bodies.py [--corpus DIR] [--ampc BIN]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Iterator

import numpy as np
import onnx

import feeds
from judge import CRASHING, ROOT
from random_graphs import BAR, ROUNDING, distance
from tasks import _line, _session

FLOW = {"If", "Loop", "Scan", "SequenceMap"}
FORMATS = {"fp16": "f16", "bf16": "bf16"}
ROUNDS = (0, 1, 3)


def has_bodies(model: onnx.ModelProto) -> bool:
    """Whether something is nested in the graph."""
    return bool(model.functions) or any(node.op_type in FLOW for node in model.graph.node)


def variants(model: onnx.ModelProto, given: dict[str, np.ndarray]) -> Iterator[dict[str, np.ndarray]]:
    """The inputs with every value of scalar conditions, and every number of rounds."""
    fed = {name: value for name, value in given.items() if name in {i.name for i in model.graph.input}}
    choices: dict[str, tuple[Any, ...]] = {}
    for name, value in fed.items():
        if value.ndim == 0 and value.dtype == np.bool_:
            choices[name] = (True, False)
        elif value.ndim == 0 and value.dtype == np.int64:
            choices[name] = ROUNDS
    for chosen in itertools.product(*choices.values()):
        yield {**fed, **{name: np.array(v, fed[name].dtype) for name, v in zip(choices, chosen, strict=True)}}


def run(path: Path, fed: dict[str, np.ndarray], optimize: bool) -> list[Any]:
    """The outputs of a model."""
    return _session(str(path), optimize, CRASHING).run(None, fed)


def flat(outputs: list[Any]) -> list[np.ndarray]:
    """Sequences as the tensors in them."""
    return [np.asarray(t) for o in outputs for t in (o if isinstance(o, list) else [o])]


def inside(model: onnx.ModelProto, report: dict[str, Any]) -> tuple[int, list[str]]:
    """How many nodes of bodies and functions are low, and which gain and are not, with their rules."""
    outside = {node.name or node.output[0] for node in model.graph.node}
    nested = [node for node in report["nodes"] if node["path"] not in outside]
    low = sum(node["precision"] in FORMATS for node in nested)
    kept = [f"{n['path']}: {n['rule']}" for n in nested if n["class"] == "allow" and n["precision"] == "fp32"]
    return low, kept


def judge(ampc: str, source: Path, to: str, policy: str, folder: Path) -> tuple[int, int, list[str]]:
    """Low nodes inside, runs compared, and what is wrong."""
    model = onnx.load(source, load_external_data=False)
    low, emulated, report = folder / "low.onnx", folder / "emulated.onnx", folder / "report.json"
    common = [ampc, "rewrite", str(source), "--to", to, "--policy", policy, "--force", "-q"]
    common += ["--opset", "auto" if to == "bf16" else "keep"]
    subprocess.run([*common, "-o", str(low), "--report", str(report)], check=True, capture_output=True)
    subprocess.run([*common, "-o", str(emulated), "--emit", "emulated"], check=True, capture_output=True)
    said = json.loads(report.read_text())
    n_low, kept = inside(model, said)
    # Everything low behind a number that does not fit overflows: what `all` asks for.
    overflows = policy == "all" and any(node["rule"] == "guard.range" for node in said["nodes"])
    problems = [f"stays fp32: {name}" for name in kept if name.endswith(": table")]
    bar = BAR * ROUNDING[FORMATS[to]]
    runs = 0
    for fed in variants(model, feeds.load(str(source), {"npz": str(feeds.stored_path(source))})):
        shown = {name: value.item() for name, value in fed.items() if value.ndim == 0}
        try:
            expected = flat(run(source, fed, optimize=False))
        except Exception:
            continue
        for path, optimize in ((emulated, False), (low, True)):
            try:
                error = distance(flat(run(path, fed, optimize)), expected)
            except Exception as failure:
                if path == emulated:
                    problems.append(f"{path.stem} with {shown}: {_line(failure)}")
                continue
            runs += 1
            if error > bar and not overflows:
                problems.append(f"{path.stem} with {shown}: error {error:.2e} > {bar:.2e}")
    if not runs:
        problems.append("nothing was run")
    return n_low, runs, problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    corpus = os.environ.get("AMPC_CORPUS", ROOT / "testdata" / "corpus")
    parser.add_argument("--corpus", type=Path, default=corpus, help="a folder of models with inputs")
    parser.add_argument("--ampc", default=os.environ.get("AMPC_BIN", "ampc"), help="the binary")
    args: Any = parser.parse_args()
    wrong = total = 0
    for source in sorted(args.corpus.glob("tricky/*.onnx")):
        if not feeds.stored_path(source):
            continue
        try:
            if not has_bodies(onnx.load(source, load_external_data=False)):
                continue
        except Exception:
            continue
        for to, policy in itertools.product(FORMATS, ("safe", "all")):
            with tempfile.TemporaryDirectory() as folder:
                n_low, runs, problems = judge(args.ampc, source, to, policy, Path(folder))
            total += 1
            wrong += bool(problems)
            print(f"{source.stem} {to} {policy}: {n_low} nodes inside low, {runs} runs as the source", *problems, sep="\n  FAIL ")
    print(f"bodies: {total - wrong} of {total}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
