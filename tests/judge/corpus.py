"""Rewrites every model of the corpus and judges the results; the table is the state of the compiler.

Proves, per model and format: the rewrite ends well; the output is valid (judge.py) with its interface
unchanged; the emulated export loads, runs, keeps the interface, and is within the accuracy bar; so is the
native output under strict_sim, an emulation that is not ours. The bar is 3 x the error of an ideal
op-list AMP (amp_o1_expected.csv), or one rounding if that is more. Models without a finite expected
error are reported only.

    corpus.py --corpus DIR --ampc BIN [--sets small,train,tricky,ort] [--out DIR]
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import ampc
from judge import ROOT, SourceVerdicts, default_cache, is_valid, judge_output
from pool import Call, Pool
from tables import markdown

ROUNDING = {"fp16": 2.0**-11, "bf16": 2.0**-8}
BAR = 3.0
COLUMNS = [
    "model", "format", "exit", "valid", "interface", "nodes", "allow", "allow low", "exceptions", "casts before", "casts after",
    "inserted", "bytes before", "bytes after", "constants before", "constants after", "warnings", "emulated max", "emulated mean", "strict max", "strict mean", "bound", "failed",
]


def expected_errors(corpus: Path) -> dict[tuple[str, str], float]:
    """The error of an ideal op-list AMP per (model, format), where it is finite."""
    found = {}
    with open(corpus / "amp_o1_expected.csv", newline="") as file:
        for row in csv.DictReader(file):
            for fmt in ampc.FORMATS:
                value = float(row[fmt + "_rel"] or "nan")
                if math.isfinite(value):
                    found[row["path"], fmt] = value
    return found


def expected_failures(path: Path) -> dict[tuple[str, str, str], str]:
    """The lines of the expected-failures file."""
    found = {}
    for line in path.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            check, model, fmt, reason = line.split("\t", 3)
            found[check, model, fmt] = reason
    return found


class Run:
    """One run over the corpus: what the jobs share."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args, self.folder = args, folder
        self.sources = SourceVerdicts(args.cache)
        self.expected = expected_errors(args.corpus)
        self.script = str(args.corpus / "scripts" / "strict_sim.py")

    def job(self, call: Call, item: tuple[Path, str]) -> dict[str, Any]:
        """Rewrites one model to one format, twice, and judges both. Checks are "ok" or a failure text."""
        source, fmt = item
        name = str(source.relative_to(self.args.corpus))
        verdict = self.sources.get(call, source)
        refused = verdict["checker"] != "ok" and verdict["state"] == "rejects"
        facts = verdict["facts"] if isinstance(verdict["facts"], dict) else {}
        row: dict[str, Any] = {"model": name, "format": fmt, "checks": {}, "notes": []}
        row.update({"casts_before": facts.get("casts"), "bytes_before": facts.get("bytes")})
        with tempfile.TemporaryDirectory(dir=self.folder) as temporary:
            native = self._rewrite(row, verdict, source, Path(temporary) / "native", "onnx")
            emulated = self._rewrite(row, verdict, source, Path(temporary) / "emulated", "emulated")
            if native:
                self._judge_native(call, row, verdict, source, native)
            if emulated:
                self._judge_emulated(call, row, verdict, source, emulated)
        refused = refused or "refusal" in row
        row["valid"] = None if refused else _valid(row, bool(native), bool(emulated))
        row["failed"] = " ".join(check for check, text in sorted(row["checks"].items()) if text != "ok")
        return row

    def _rewrite(self, row: dict[str, Any], verdict: dict[str, Any], source: Path, folder: Path, emit: str) -> Path | None:
        folder.mkdir()
        output, report = folder / source.name, folder / "report.json"
        options = ["--to", row["format"], "--report", str(report)] + ([] if emit == "onnx" else ["--emit", emit])
        run = ampc.rewrite(self.args.ampc, source, output, *options, timeout=self.args.timeout)
        # Models of ONNX Runtime's own tests use operators that ONNX does not have: one clear error is right.
        refused = row["model"].startswith("ort/") or verdict["checker"] != "ok" and verdict["state"] == "rejects"
        fine = run.code == 0 and output.exists() or refused and run.code in (3, 4) and bool(run.stderr.strip())
        if run.code in (3, 4):
            row["refusal"] = ampc.problem(run)
        check = "exit" if emit == "onnx" else "emulated-exit"
        row["checks"][check] = "ok" if fine else ampc.problem(run)
        if emit == "onnx":
            row.update({"exit": run.ending(), "seconds": round(run.wall, 3), **ampc.read_report(report)})
            row["checks"]["work"] = ampc.work_done(row)
        return output if run.code == 0 and output.exists() else None

    def _judge_native(self, call: Call, row: dict[str, Any], verdict: dict[str, Any], source: Path, output: Path) -> None:
        row["checks"].update(judge_output(call, source, output, verdict, row["format"]))
        for judge in ("checker", "ort"):
            if row["checks"][judge] == "source refused":
                del row["checks"][judge]
        row["interface"] = row["checks"]["interface"] == "ok"
        facts = call("facts", str(output)).get("ok", {})
        row.update({"nodes": facts.get("nodes"), "casts_after": facts.get("casts"), "bytes_after": facts.get("bytes")})
        if verdict["state"] != "rejects":
            self._measure(call, row, verdict, source, output, "strict")

    def _judge_emulated(self, call: Call, row: dict[str, Any], verdict: dict[str, Any], source: Path, output: Path) -> None:
        judged = judge_output(call, source, output, verdict, "fp16")
        for name, text in judged.items():
            if text != "source refused":
                row["checks"]["emulated-" + name] = text
        if verdict["state"] == "runs":
            self._measure(call, row, verdict, source, output, "emulated")

    def _measure(
        self, call: Call, row: dict[str, Any], verdict: dict[str, Any], source: Path, output: Path, kind: str
    ) -> None:
        """Adds the error of one output, and the check of it against the bar where there is a bar."""
        draws = bool(isinstance(verdict["facts"], dict) and verdict["facts"]["draws"])
        script = self.script if kind == "strict" else None
        answer = call("error_of", str(output), str(source), verdict["spec"], script, draws)
        error = answer.get("ok", {"skip": str(answer)})
        if "skip" in error:
            row["notes"].append(f"{kind}: {error['skip']}")
            return
        row.update({f"{kind}_max": error["max"], f"{kind}_mean": error["mean"]})
        if error["note"]:
            row["notes"].append(f"{kind}: {error['note']}")
        expected = self.expected.get((row["model"], row["format"]))
        if expected is None:
            return
        row["bound"] = bound = max(BAR * expected, ROUNDING[row["format"]])
        if error["note"]:
            row["checks"][f"{kind}-error"] = error["note"]
        else:
            fine = error["max"] <= bound
            if not fine and script is None:
                # Stored outputs are of another processor, on which ONNX Runtime may have other kernels for products of
                # integers: a rewrite need not be nearer to them than the source is here.
                own = call("error_of", str(source), str(source), verdict["spec"], None, draws).get("ok", {})
                fine = error["max"] <= own.get("max", 0.0)
            row["checks"][f"{kind}-error"] = "ok" if fine else f"{error['max']:.2e} > {bound:.2e}"


def _valid(row: dict[str, Any], native: bool, emulated: bool) -> bool:
    """Whether the judges that accepted the source accept the output; bf16 needs its emulated export too."""
    checks = row["checks"]
    if not native:
        return False
    judged = {name: checks.get(name, "ok") for name in ("checker", "ort")}
    if row["format"] == "bf16" and not (emulated and checks.get("emulated-ort", "ok") == "ok"):
        return False
    return is_valid(judged)


def verdict_lines(rows: list[dict[str, Any]], expected: dict[tuple[str, str, str], str]) -> tuple[list[str], bool]:
    """Unexpected failures and unexpected passes in words, and whether there are none."""
    lines = []
    for row in rows:
        for check, text in sorted(row["checks"].items()):
            listed = (check, row["model"], row["format"]) in expected
            if text != "ok" and not listed:
                lines.append(f"FAIL {check} {row['model']} {row['format']}: {text}")
            elif text == "ok" and listed:
                lines.append(f"PASS {check} {row['model']} {row['format']}: remove it from the expected failures")
    return lines, not lines


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """Counts per format."""
    lines = []
    for fmt in ampc.FORMATS:
        own = [row for row in rows if row["format"] == fmt]
        judged = [row for row in own if row["valid"] is not None]
        if not own:
            continue
        lines.append(f"{fmt} valid: {sum(row['valid'] for row in judged)} of {len(judged)}, {len(own) - len(judged)} have no judge")
        refusals = Counter(row["refusal"] for row in own if "refusal" in row)
        lines.append(f"{fmt} refused with one error: {refusals.total()} of {len(own)}")
        lines += [f"  {count} x {text}" for text, count in refusals.most_common()]
        judged = [row for row in judged if "refusal" not in row]
        lines.append(f"{fmt} interface same: {sum(row.get('interface', False) for row in judged)} of {len(judged)}")
        counted = [row for row in own if row.get("allow")]
        low, allow = sum(row["allow_low"] for row in counted), sum(row["allow"] for row in counted)
        lines.append(f"{fmt} allow operators low: {low} of {allow}, in {len(counted)} models")
        before, after = (sum(row.get(f"constants_{when}", 0) for row in own) for when in ("before", "after"))
        lines.append(f"{fmt} bytes of constants: {before} before, {after} after")
        for kind in ("emulated", "strict"):
            barred = [row["checks"][f"{kind}-error"] for row in own if f"{kind}-error" in row["checks"]]
            lines.append(f"{fmt} {kind} within the bar: {barred.count('ok')} of {len(barred)}")
        skipped = sum(any(": not " in note or "{" in note for note in row["notes"]) for row in own)
        lines.append(f"{fmt} could not be compared: {skipped} (notes in corpus.json)")
    return lines


def main() -> int:
    """Runs, prints the summary and every surprise, writes corpus.md and corpus.json."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ampc.add_arguments(parser, "small,train,tricky,ort")
    parser.add_argument("--formats", default=",".join(ampc.FORMATS))
    parser.add_argument("--out", type=Path, default=default_cache(), help="where the tables go [target/judge]")
    parser.add_argument("--cache", type=Path, default=default_cache(), help="verdicts on sources [target/judge]")
    parser.add_argument("--expected", type=Path, default=ROOT / "tests" / "expected_failures.txt")
    args = parser.parse_args()
    ampc.require(parser, args)
    start = time.monotonic()
    sources = ampc.models(args.corpus, args.sets, args.filter)
    items = [(source, fmt) for source in sources for fmt in args.formats.split(",")]
    with tempfile.TemporaryDirectory(prefix="ampc-judge-") as folder, Pool(args.workers, args.timeout) as pool:
        run = Run(args, Path(folder))
        rows = pool.map(run.job, items)
        run.sources.save()
    lines, fine = verdict_lines(rows, expected_failures(args.expected))
    text = "\n".join(summary(rows) + [f"unexpected: {len(lines)}"])
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "corpus.json").write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
    failures = "".join(f"- {line}\n" for line in lines)
    (args.out / "corpus.md").write_text(f"```text\n{text}\n```\n\n{failures}\n{markdown(COLUMNS, rows)}")
    print("\n".join([*lines, text, f"{len(rows)} rows in {time.monotonic() - start:.0f} s"]))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
