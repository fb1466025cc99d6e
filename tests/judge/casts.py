"""Counts the casts of what the placement by a minimum cut writes.

Per model, format and policy, for each objective: the output is valid, the report says that the choice is optimal,
the casts that the file says were inserted are no more than what the choice costs under `casts`. Where nothing else
makes or removes casts, the numbers are the same.

    casts.py --corpus DIR --ampc BIN [--sets small,tricky,train,ort] [--formats fp16,bf16] [--policies safe,all] [--table]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import onnx

import ampc
import variants
from judge import SourceVerdicts, default_cache, is_valid, judge_output
from pool import Call, Pool
from tasks import nodes_of

OBJECTIVES = ("casts", "bytes", "time")
# What is merged, shared or taken over by an operator after casts are inserted.
OTHERS = {"Cast", "DequantizeLinear", "ConstantOfShape"}


def inserted(model: onnx.ModelProto) -> int:
    """The casts that the file itself says were inserted."""
    marked = [
        node
        for node in nodes_of(model)
        if any(entry.key == "ampc.cast" and entry.value == "inserted" for entry in node.metadata_props)
    ]
    listed = [line for entry in model.metadata_props if entry.key == "ampc.provenance" for line in entry.value.splitlines()]
    return len(marked) + len(listed)


def cast_nodes(model: onnx.ModelProto) -> int:
    """All Cast nodes, in bodies and functions too."""
    return sum(node.op_type == "Cast" for node in nodes_of(model))


class Placement:
    """One model, format and policy, rewritten by default and with each objective."""

    def __init__(self, args: argparse.Namespace, source: Path, folder: Path, to: str, policy: str) -> None:
        self.args, self.source, self.folder, self.to, self.policy = args, source, folder, to, policy
        self.problems: list[str] = []
        self.casts: dict[str, int] = {}
        self.bytes: dict[str, int] = {}
        self.exact = 0

    def rewrite(self, name: str, *options: str) -> tuple[Path, dict[str, Any]] | None:
        """Makes an output and its report; `None` if the model is refused."""
        output, report = self.folder / name / self.source.name, self.folder / f"{name}.json"
        output.parent.mkdir()
        argv = ["--to", self.to, "--policy", self.policy, "--report", str(report), *options]
        run = ampc.rewrite(self.args.ampc, self.source, output, *argv, timeout=self.args.timeout)
        self.ended = run.code
        if run.code != 0:
            if run.code == 70 or name != "first":
                self.problems.append(f"{name}: {ampc.problem(run)}")
            return None
        return output, json.loads(report.read_text())

    def note(self, name: str, model: onnx.ModelProto, report: dict[str, Any]) -> None:
        """Keeps what the table shows."""
        self.casts[name] = cast_nodes(model)
        self.bytes[name] = sum(cast["bytes"] or 0 for cast in report["casts"]["list"])

    def judge(self, call: Call, sources: SourceVerdicts) -> None:
        """Finds what is wrong."""
        if self.rewrite("first") is None:
            return
        verdict = sources.get(call, self.source)
        for objective in OBJECTIVES:
            made = self.rewrite(objective, "--objective", objective)
            if made is None:
                continue
            output, report = made
            model = variants.load(output)
            self.note(objective, model, report)
            # What is written without options as well is judged by corpus.py.
            if variants.files(output.parent) != variants.files(self.folder / "first"):
                judged = judge_output(call, self.source, output, verdict, self.to)
                if not is_valid(judged) or judged["interface"] != "ok":
                    self.problems.append(f"{objective}: {judged}"[:300])
            optimum = report["optimum"]
            if not optimum["optimal"] or optimum["lower_bound"] != optimum["cost"]:
                self.problems.append(f"{objective}: not optimal: {optimum}")
            if objective == "casts":
                self.compare(model, optimum)

    def compare(self, model: onnx.ModelProto, optimum: dict[str, Any]) -> None:
        """Compares what is in the file with what the choice says it costs."""
        count, cost = inserted(model), optimum["cost"] - optimum["merged"]
        if count > cost:
            self.problems.append(f"casts: {count} in the file, {cost} by the choice")
        source = variants.load(self.source)
        plain = not source.functions and not any(node.op_type in OTHERS for node in nodes_of(source))
        if plain and count != cost:
            self.problems.append(f"casts: {count} in the file, {cost} by the choice, and nothing that explains it")
        self.exact += plain


def main() -> int:
    """Prints a line for each problem and the totals; 1 if there is a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ampc.add_arguments(parser, "small,tricky,train,ort")
    parser.add_argument("--formats", default="fp16")
    parser.add_argument("--policies", default="safe,all")
    parser.add_argument("--table", action="store_true", help="a line for each model")
    parser.add_argument("--cache", type=Path, default=default_cache())
    # ONNX Runtime takes up to a minute to load 20,000 fp16 nodes in a chain.
    parser.set_defaults(timeout=180)
    args = parser.parse_args()
    ampc.require(parser, args)
    sources = SourceVerdicts(args.cache)
    jobs = [
        (source, to, policy)
        for source in ampc.models(args.corpus, args.sets, args.filter)
        for to in args.formats.split(",")
        for policy in args.policies.split(",")
    ]

    def job(call: Call, what: tuple[Path, str, str]) -> Placement:
        source, to, policy = what
        with tempfile.TemporaryDirectory(prefix="ampc-casts-") as folder:
            placement = Placement(args, source, Path(folder), to, policy)
            placement.judge(call, sources)
            return placement

    with Pool(args.workers, args.timeout) as pool:
        results = pool.map(job, jobs)
    sources.save()
    casts: Counter[tuple[str, str]] = Counter()
    moved: Counter[tuple[str, str]] = Counter()
    for (source, to, policy), placement in zip(jobs, results):
        name = f"{source.relative_to(args.corpus)} {to} {policy}"
        for text in placement.problems:
            print(f"FAIL {name}: {text}")
        for how in placement.casts:
            casts[policy, how] += placement.casts[how]
            moved[policy, how] += placement.bytes.get(how, 0)
        if args.table and placement.casts:
            print(f"| {name} | " + " | ".join(f"{placement.casts[how]} | {placement.bytes.get(how, '')}" for how in placement.casts) + " |")
    for policy in args.policies.split(","):
        for how in OBJECTIVES:
            print(f"{policy} {how}: {casts[policy, how]} Cast nodes, {moved[policy, how]} bytes by inserted ones")
    done = [placement for placement in results if placement.casts or placement.problems]
    exact = sum(placement.exact for placement in done)
    good = sum(not placement.problems for placement in done)
    print(f"casts: {good} of {len(done)}, {exact} with exactly as many casts as the choice says")
    return 0 if all(not placement.problems for placement in results) else 1


if __name__ == "__main__":
    sys.exit(main())
