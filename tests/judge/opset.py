"""Raises the opset of every model of the corpus and judges that nothing else happened.

Proves, per model, that `raise-opset` to the newest opset that ONNX Runtime reads either gives a model of that
opset with the same interface that every judge of the source accepts and that computes the same, or refuses with
a reason and exit code 4. The same is computed where ONNX Runtime fuses nothing, so that the same kernels run:
bit by bit, but for the operators of TOLERANCES. Proves besides that `rewrite --opset auto` gives valid models in
both formats. The set `cases` are the cases of the pass, as models.

    opset.py --corpus DIR --ampc BIN [--sets small,train,tricky,ort,cases] [--to 26]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import ampc
import measure
from judge import ROOT, SourceVerdicts, default_cache, is_valid, judge_output
from pool import Call, Pool

# The newest opset that ONNX Runtime 1.31.1 reads.
NEWEST = 26
# The first opset at which Cast says its type by number.
OLDEST = 6
# Where it has no kernel at that opset, it may have one at these.
LOWER = (21, 19)
NO_KERNEL = "Could not find an implementation"
# Operators that another kernel computes from an opset on, how far it may be off (of the largest value), and why.
TOLERANCES: list[tuple[str, int, float, str]] = [
    ("AveragePool", 19, 1e-6, "the kernel that knows dilations sums in another order"),
    ("ImageScaler", 10, 2e-5, "in the IR version 3 of such models initializers that are inputs are constants, which the kernel of Conv packs"),
]
CASES = ROOT / "tests" / "cases" / "raise-opset"
UNSUPPORTED, INVALID = 4, 3
CHECKS = ("raised", *ampc.FORMATS)


def cases(binary: str, folder: Path) -> list[Path]:
    """The cases that can be raised, written as models."""
    folder.mkdir()
    models = []
    for case in sorted(CASES.glob("*.ir")):
        if "// error in" in case.with_suffix(".ir.snap").read_text():
            continue
        model = folder / f"{case.stem}.onnx"
        run = measure.run([binary, "opt", str(case), "--passes", "dce", "-o", str(model)], 60)
        if run.code != 0:
            raise SystemExit(f"{case}: {ampc.problem(run)}")
        models.append(model)
    return models


def kind_of(text: str) -> str:
    """"ok", "refused", "not judged", or "wrong"."""
    kind = text.split(":")[0]
    return kind if kind in ("ok", "refused", "not judged") else "wrong"


class Run:
    """One run over the corpus: what the jobs share."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args, self.folder = args, folder
        self.sources = SourceVerdicts(args.cache)

    def job(self, call: Call, source: Path) -> dict[str, str]:
        """A text per check: "ok", "not judged: …", "refused: …" or what is wrong."""
        verdict = self.sources.get(call, source)
        with tempfile.TemporaryDirectory(dir=self.folder) as temporary:
            row = {"raised": self._raised(call, source, verdict, Path(temporary) / source.name)}
            for fmt in ampc.FORMATS:
                output = Path(temporary) / f"{fmt}-{source.name}"
                row[fmt] = self._lowered(call, source, verdict, output, fmt)
        return row

    def _raised(self, call: Call, source: Path, verdict: dict[str, Any], output: Path) -> str:
        before = call("imports", str(source)).get("ok", {"opset": 0, "ops": [], "ir": False})
        first = ""
        for limit in (self.args.to, *LOWER):
            text = self._raised_to(call, source, verdict, output, before, max(limit, before["opset"]))
            if NO_KERNEL not in text or kind_of(text) == "not judged":
                return f"{text}: to {limit} only: {first}" if first and text == "ok" else text
            first = first or text
        return f"not judged: {first}"

    def _raised_to(
        self, call: Call, source: Path, verdict: dict[str, Any], output: Path, before: dict[str, Any], to: int
    ) -> str:
        passes = f"raise-opset{{to={to}}}"
        run = measure.run(
            [self.args.ampc, "opt", str(source), "--passes", passes, "--verify-each", "--force", "-o", str(output)],
            self.args.timeout,
        )
        if run.code != 0:
            return self._failure(run)
        after = call("imports", str(output)).get("ok", {"opset": -1})
        if before["opset"] and after["opset"] != to:
            return f"opset {after['opset']}"
        if before["ir"] and not after["ir"]:
            return "the IR version is older than the opset"
        judged = judge_output(call, source, output, verdict, "fp32")
        if NO_KERNEL in judged["ort"]:
            return judged["ort"][:200]
        if wrong := self._wrong(judged):
            return wrong
        return self._difference(call, source, verdict, output, before)

    def _difference(self, call: Call, source: Path, verdict: dict[str, Any], output: Path, before: dict[str, Any]) -> str:
        if verdict["state"] != "runs":
            return f"not judged: ONNX Runtime {verdict['state']} the source: {verdict['text'][:100]}"
        facts = verdict["facts"]
        draws = isinstance(facts, dict) and facts["draws"]
        answer = call("difference", str(output), str(source), verdict["spec"], draws)
        if "ok" not in answer:
            return str(answer)
        found = answer["ok"]
        if "skip" in found:
            return f"not judged: {found['skip']}"
        allowed = [limit for op, since, limit, _ in TOLERANCES if op in before["ops"] and before["opset"] < since]
        if found["note"] or found["max"] > max(allowed, default=0.0):
            return f"differs by {found['max']:.3g} {found['note']}"
        return "ok"

    def _lowered(self, call: Call, source: Path, verdict: dict[str, Any], output: Path, fmt: str) -> str:
        if 0 < call("imports", str(source)).get("ok", {"opset": 0})["opset"] < OLDEST:
            return f"not judged: casts of opsets below {OLDEST}"
        run = ampc.rewrite(
            self.args.ampc, source, output, "--to", fmt, "--opset", "auto", "--verify-each", timeout=self.args.timeout
        )
        if run.code != 0:
            return self._failure(run)
        judged = judge_output(call, source, output, verdict, fmt)
        if wrong := self._wrong(judged):
            return wrong
        if all(judged[name] == "source refused" for name in ("checker", "ort")):
            return "not judged: no judge accepts the source"
        return "ok"

    @staticmethod
    def _wrong(judged: dict[str, Any]) -> str:
        if is_valid(judged) and judged["interface"] == "ok":
            return ""
        return "; ".join(f"{name} {text}" for name, text in judged.items() if text not in ("ok", "source refused"))

    @staticmethod
    def _failure(run: measure.Run) -> str:
        text = " ".join(run.stderr.split())[:400] or "no message"
        if run.code == UNSUPPORTED:
            return f"refused: {text}"
        if run.code == INVALID:
            return f"not judged: ampc refuses the source: {text.split()[0]}"
        return f"exit {run.ending()}: {text}"


def report(name: str, models: list[str], rows: list[dict[str, str]]) -> int:
    """Prints n of N per check, and every reason why not all; how many are wrong."""
    for check in CHECKS:
        counts = Counter(kind_of(row[check]) for row in rows)
        others = ", ".join(f"{counts[kind]} {kind}" for kind in ("refused", "not judged", "wrong") if counts[kind])
        print(f"{name} {check}: {counts['ok']} of {len(rows)}" + (f" ({others})" if others else ""))
    wrong = 0
    for model, row in zip(models, rows):
        reasons: dict[str, list[str]] = {}
        for check in CHECKS:
            if row[check] != "ok":
                reasons.setdefault(row[check], []).append(check)
                wrong += kind_of(row[check]) == "wrong"
        for text, checks in reasons.items():
            mark = "FAIL " if kind_of(text) == "wrong" else ""
            print(f"  {mark}{model} [{' '.join(checks)}]: {text}")
    return wrong


def main() -> int:
    """1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ampc.add_arguments(parser, "small,train,tricky,ort,cases")
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--to", type=int, default=NEWEST, help=f"the opset to raise to [{NEWEST}]")
    args = parser.parse_args()
    sets = args.sets.split(",")
    args.sets = ",".join(name for name in sets if name != "cases") or "tricky"
    ampc.require(parser, args)
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="ampc-opset-") as folder, Pool(args.workers, args.timeout) as pool:
        run = Run(args, Path(folder))
        for name in sets:
            own = name == "cases"
            found = cases(args.ampc, Path(folder) / "cases") if own else ampc.models(args.corpus, name, args.filter)
            names = [path.name if own else str(path.relative_to(args.corpus)) for path in found]
            wrong += report(name, names, pool.map(run.job, found))
        run.sources.save()
    print("opset: everything as it must be" if not wrong else f"opset: {wrong} failures")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
