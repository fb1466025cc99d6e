"""How many models of the corpus each peer, and ampc, converts to fp16 validly, and with what error.

The judge and the bar are those of tests/judge/corpus.py for everybody: valid (every judge that accepted the
source accepts the output; ONNX Runtime, where it crashes, is asked again without the optimizer that crashes
it), interface unchanged, error under strict_sim at most 3 x that of an ideal op-list AMP, or one rounding.
A model without a finite expected error has no bar. Models named chain_10k* are skipped: the converters are
quadratic in the nodes.

    peers_corpus.py --corpus DIR --ampc BIN [--sets small,tricky] [--timeout SECONDS]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "judge"))

import ampc  # noqa: E402
from corpus import BAR, ROUNDING, expected_errors  # noqa: E402
from judge import SourceVerdicts, default_cache, is_valid, judge_output  # noqa: E402
from pool import Call, Pool  # noqa: E402
from tables import markdown  # noqa: E402

from peer_tools import TOOLS  # noqa: E402

SKIPPED = "chain_10k"
OURS = "ampc"
COUNTS = ["no output", "loads in ORT", "crashes ORT", "valid", "interface same", "compared", "within bar", "not finite", "all good"]


def convert(call: Call, args: argparse.Namespace, source: Path, tool: str, output: Path) -> str | None:
    """Converts a model with a tool's defaults; says why there is no output."""
    if tool == OURS:
        run = ampc.rewrite(args.ampc, source, output, timeout=args.timeout)
        return None if run.code == 0 else ampc.problem(run)
    made = call("convert", tool, str(source), str(output))
    return None if "ok" in made else " ".join(str(part) for part in next(iter(made.items())))


def judge(call: Call, args: argparse.Namespace, sources: SourceVerdicts, source: Path, tool: str, folder: Path) -> dict[str, Any]:
    """One conversion: {"converted", "valid", "interface", "crashes", "error", "text"}."""
    output = folder / source.name
    if why := convert(call, args, source, tool, output):
        return {"text": f"no output: {why}"[:90]}
    verdict = sources.get(call, source)
    ends = []

    def heard(task: str, *rest: Any) -> dict[str, Any]:
        """`call`, whose crashes are kept: the judge asks again after one, without the optimizer behind it."""
        answer = call(task, *rest)
        ends.append((task, "crash" in answer))
        return answer

    judged = judge_output(heard, source, output, verdict, "fp16")
    row: dict[str, Any] = {"converted": True, "valid": is_valid(judged), "interface": judged["interface"] == "ok"}
    row["crashes"] = ("run_state", True) in ends
    row["ort"] = judged["ort"] in ("ok", "source refused")
    if row["valid"]:
        script = str(args.corpus / "scripts" / "strict_sim.py")
        answer = call("error_of", str(output), str(source), verdict["spec"], script, verdict["facts"]["draws"])
        row.update({"error": answer.get("ok", {}).get("max"), "other": answer.get("ok", {}).get("note", "")})
    row["text"] = _text(row, judged)
    return row


def _text(row: dict[str, Any], judged: dict[str, str]) -> str:
    refused = [name for name in ("checker", "ort") if judged[name] not in ("ok", "source refused")]
    if refused:
        return ("crashes ORT, " if row["crashes"] else "") + f"invalid ({', '.join(refused)})"
    parts = ["crashes ORT"] if row["crashes"] else []
    parts += [] if row["interface"] else ["interface changed"]
    parts.append("not compared" if row["error"] is None else f"{row['error']:.1e}")
    return ", ".join(parts + ([row["other"]] if row["other"] else []))


def count(rows: list[dict[str, Any]], bounds: list[float | None]) -> dict[str, int]:
    """The totals of one tool. Compared: valid, with an error and a bar."""
    compared = [(row, bound) for row, bound in zip(rows, bounds) if bound is not None and row.get("error") is not None]
    within = [row for row, bound in compared if row["error"] <= bound and not row["other"]]
    return {
        "models": len(rows),
        "no_output": sum(not row.get("converted") for row in rows),
        "loads_in_ORT": sum(bool(row.get("ort")) for row in rows),
        "crashes_ORT": sum(bool(row.get("crashes")) for row in rows),
        "valid": sum(bool(row.get("valid")) for row in rows),
        "interface_same": sum(bool(row.get("interface")) for row in rows),
        "compared": len(compared),
        "within_bar": len(within),
        "not_finite": sum(row["error"] == float("inf") for row, _ in compared),
        "all_good": sum(row["interface"] for row in within),
    }


def main() -> int:
    """Prints the totals and a row per model, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=os.environ.get("AMPC_CORPUS"), help="[AMPC_CORPUS]")
    parser.add_argument("--ampc", default=os.environ.get("AMPC_BIN"), help="the binary [AMPC_BIN]")
    parser.add_argument("--sets", default="small,tricky")
    parser.add_argument("--filter", default="*")
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    ampc.require(parser, args)
    tools = [*TOOLS, OURS]
    sources, expected = SourceVerdicts(default_cache()), expected_errors(args.corpus)
    models = [path for path in ampc.models(args.corpus, args.sets, args.filter) if not path.name.startswith(SKIPPED)]

    def job(call: Call, item: tuple[Path, str]) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="ampc-peers-") as folder:
            return judge(call, args, sources, item[0], item[1], Path(folder))

    with Pool(args.workers, args.timeout, HERE / "peer_tools.py") as pool:
        results = pool.map(job, [(model, tool) for model in models for tool in tools])
    sources.save()
    names = [str(model.relative_to(args.corpus)) for model in models]
    bounds = [max(BAR * expected[n, "fp16"], ROUNDING["fp16"]) if (n, "fp16") in expected else None for n in names]
    by_tool = {tool: results[index :: len(tools)] for index, tool in enumerate(tools)}
    packages = ("onnxconverter-common", "onnxruntime", "onnx", "numpy", "sympy")
    print("Versions: " + ", ".join(f"{name} {version(name)}" for name in packages) + ".\n")
    print(markdown(["tool", "models", *COUNTS], [{"tool": tool, **count(rows, bounds)} for tool, rows in by_tool.items()]))
    table = [
        {"model": name, "bar": bound, **{tool.replace(" ", "_"): by_tool[tool][i]["text"] for tool in tools}}
        for i, (name, bound) in enumerate(zip(names, bounds))
    ]
    print(markdown(["model", "bar", *tools], table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
