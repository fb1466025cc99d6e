"""Calls the ampc binary, and reads what it reports, as leniently as the report's schema allows."""

from __future__ import annotations

import json
import os
import re
import tempfile
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure

FORMATS = ("fp16", "bf16")
SETS = {"small": "small/*/*.onnx", "train": "train/*/*.onnx", "tricky": "tricky/**/*.onnx", "ort": "ort/**/*.onnx"}


def add_arguments(parser: ArgumentParser, sets: str) -> None:
    """The options that every judge of the binary has."""
    parser.add_argument("--corpus", type=Path, default=os.environ.get("AMPC_CORPUS"), help="[AMPC_CORPUS]")
    parser.add_argument("--ampc", default=os.environ.get("AMPC_BIN"), help="the binary [AMPC_BIN]")
    parser.add_argument("--sets", default=sets, help=f"which models, of {','.join(SETS)} [{sets}]")
    parser.add_argument("--filter", default="*", help="glob over paths within the corpus")
    parser.add_argument("--timeout", type=float, default=60, help="seconds per step [60]")
    parser.add_argument("--workers", type=int, default=2, help="processes [2]")


def require(parser: ArgumentParser, args: Any) -> None:
    """Stops with a usage error where the corpus or the binary is not given."""
    if not args.corpus or not Path(args.corpus).is_dir():
        parser.error("no corpus: give --corpus or set AMPC_CORPUS")
    if not args.ampc or not Path(args.ampc).exists():
        parser.error("no binary: give --ampc or set AMPC_BIN")
    if not models(Path(args.corpus), args.sets, args.filter):
        parser.error(f"no model of {args.sets} in {args.corpus} matches {args.filter}")
    args.corpus, args.ampc = Path(args.corpus).resolve(), str(Path(args.ampc).resolve())


def models(corpus: Path, sets: str, pattern: str) -> list[Path]:
    """The models of the sets whose path within the corpus matches, sorted."""
    found = {path for name in sets.split(",") for path in corpus.glob(SETS[name])}
    return sorted(path for path in found if path.relative_to(corpus).match(pattern))


def judge_models(
    description: str | None,
    sets: str,
    judge: Callable[[str, Path, Path], list[str]],
    beside: str | None = None,
    own: dict[str, Callable[[str, Path], list[str]]] | None = None,
) -> int:
    """The main program of a judge: prints a line per problem and the sums, and returns the exit status.

    judge: the problems of a model, given the binary, the model and a folder to work in.
    beside: a file of the corpus beside each model to judge; models without it are passed over.
    own: what is judged of models that the judge writes itself, by what they are called.
    """
    parser = ArgumentParser(description=description)
    add_arguments(parser, sets)
    args = parser.parse_args()
    require(parser, args)
    found = models(args.corpus, args.sets, args.filter)
    if beside:
        found = [model for model in found if (model.parent / beside).exists()]
    if not found:
        parser.error(f"no model of {args.sets} that matches {args.filter} has {beside} beside it")
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        jobs = [(name, lambda one=one: one(args.ampc, work)) for name, one in (own or {}).items()]
        jobs += [(str(path.relative_to(args.corpus)), lambda path=path: judge(args.ampc, path, work)) for path in found]
        for name, job in jobs:
            for text in job():
                failed += 1
                print(f"{name}: {text}")
    print(f"{len(jobs)} judged, {failed} problems")
    return 1 if failed else 0


def rewrite(ampc: str, source: Path, output: Path, *options: str, timeout: float = 60) -> measure.Run:
    """`ampc rewrite SOURCE -o OUTPUT OPTIONS`."""
    return measure.run([ampc, "rewrite", str(source), "-o", str(output), *options], timeout)


def execute(ampc: str, source: Path, *options: str, timeout: float = 60) -> measure.Run:
    """`ampc run SOURCE OPTIONS`."""
    return measure.run([ampc, "run", str(source), *options], timeout)


def opt(ampc: str, source: Path, output: Path, *options: str, timeout: float = 60) -> measure.Run:
    """`ampc opt SOURCE -o OUTPUT OPTIONS`."""
    return measure.run([ampc, "opt", str(source), "-o", str(output), *options], timeout)


def problem(run: measure.Run) -> str:
    """The end of a failed run and its first line of standard error."""
    lines = [line for line in run.stderr.splitlines() if line.strip()]
    return f"exit {run.ending()}: {lines[0][:200] if lines else 'no message'}"


def read_report(path: Path) -> dict[str, Any]:
    """What an `ampc-report/1` says of the work done: allow operators, casts, bytes of constants."""
    if not path.exists():
        return {}
    report = json.loads(path.read_text())
    summary, casts, constants = report["summary"], report["casts"], report["constants"]
    facts = {
        "allow": summary["allow"],
        "allow_low": summary["allow_low"],
        "exceptions": " ".join(f"{rule}:{count}" for rule, count in summary["allow_exceptions"].items()),
        "inserted": casts["inserted"],
        "constants_before": constants["bytes_before"],
        "constants_after": constants["bytes_after"],
        "warnings": " ".join(sorted({warning["code"] for warning in report["warnings"]})),
    }
    facts["cut_shares"] = cut_shares(report)
    if summary["allow"]:
        facts["allow_share"] = summary["allow_low"] / summary["allow"]
    return facts


# What the evidence of a product says that a minimum cut left fp32: its share of the work, rounded up.
SHARE = re.compile(r"^allow is (?:less than (0\.1)|(\d+\.\d)) % of the work, ")


def cut_shares(report: dict[str, Any]) -> list[float] | None:
    """The shares of the work, in percent, of allow operators that a minimum cut left fp32; None if one says none."""
    found = []
    for node in report["nodes"]:
        if node["class"] == "allow" and node["rule"] == "cut" and node["precision"] == "fp32":
            evidence = [var.get("evidence", "") for var in node["vars"] if var["rule"] == "cut"]
            said = [SHARE.match(text) for text in evidence]
            if not all(said):
                return None
            found += [float(match[1] or match[2]) for match in said[:1] if match]
    return found


def work_done(row: dict[str, Any]) -> str:
    """"ok" if at least 90 % of the allow operators outside bodies are low, or a rule says why of every other.

    `cut` is such a rule for products that are next to none of the work: each says at most 1 % of it, and all together are
    at most 15 %, so that something is low. `quantized` is one for what is computed in integers.
    """
    if row.get("exit") == "0" and "allow" not in row:
        return "no report"
    if "allow_share" not in row or row["allow_share"] >= 0.9:
        return "ok"
    rules = dict(entry.rsplit(":", 1) for entry in row["exceptions"].split())
    shares = row["cut_shares"]
    # Shares are rounded up to a tenth, so that many small ones say more than they are.
    are_small = shares is not None and max(shares, default=0) <= 1 and sum(share - 0.1 for share in shares) <= 15
    reasons = ("guard.", "opset.", "schema", "type", "quantized", *(["cut"] if row["allow_low"] and are_small else []))
    explained = all(rule.startswith(reasons) for rule in rules)
    counted = sum(map(int, rules.values())) == row["allow"] - row["allow_low"]
    return "ok" if explained and counted else f"{row['allow_low']} of {row['allow']} allow operators are low: {row['exceptions']}"
