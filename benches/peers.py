"""Side by side: ampc, the Python converters and `cp`, on generated models, in one run.

Wall time and peak memory of whole processes, start of the interpreter included, by wait4. ampc and cp run
three times and the best counts, the converters once. The converters are quadratic in the nodes, so the
largest chain is for ampc and cp alone. Results go to standard output as Markdown.

    peers.py [--ampc BIN] [--only chain-4000,...]
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "judge"))

import measure  # noqa: E402
from tables import markdown  # noqa: E402

TOOLS = ("onnxconverter-common", "ORT float16", "ORT OnnxModel")
# Name, generator and its count, whether the Python converters run too.
MODELS = {
    "chain-100000": ("chain", 100_000, False),
    "chain-4000": ("chain", 4_000, True),
    "weights-500MB": ("weights", 125, True),
}
COLUMNS = ["model", "tool", "seconds", "peak MB", "output MB", "time / ampc", "memory / ampc", "time / cp", "note"]


@dataclass
class Best:
    """The best of some runs of a command."""

    wall: float
    rss_mb: float
    output_mb: float
    note: str


def generate(folder: Path, name: str) -> Path:
    """Makes a model in a child process, so that this one stays small."""
    kind, count, _ = MODELS[name]
    path = folder / f"{name}.onnx"
    done = measure.run([sys.executable, str(HERE / "models.py"), kind, str(count), str(path)], 600)
    if done.code != 0:
        raise RuntimeError(done.stderr)
    return path


def commands(args: argparse.Namespace, source: Path, output: Path, peers: bool) -> list[tuple[str, int, list[str]]]:
    """(tool, runs, command) for one model."""
    found = [
        ("cp", args.runs, ["cp", str(source), str(output)]),
        ("cp and sync", args.runs, ["sh", "-c", 'cp "$0" "$1" && sync "$1"', str(source), str(output)]),
    ]
    if args.ampc:
        found.append(("ampc", args.runs, [args.ampc, "rewrite", str(source), "-o", str(output)]))
    if peers:
        script = str(HERE / "peer_tools.py")
        found += [(tool, 1, [sys.executable, script, tool, str(source), str(output)]) for tool in TOOLS]
    return found


def best_of(runs: int, argv: list[str], output: Path, timeout: float) -> Best:
    """Runs a command some times; the least wall time and the least peak memory count."""
    walls, peaks, size, note = [], [], 0.0, ""
    for _ in range(runs):
        done = measure.run(argv, timeout)
        size = output.stat().st_size / 1e6 if output.exists() else 0.0
        output.unlink(missing_ok=True)
        walls.append(done.wall)
        peaks.append(done.rss_mb)
        if done.code != 0:
            last = (done.stderr.strip().splitlines() or [""])[-1]
            note = f"ended with {done.ending()} {last[:120]}".strip()
            break
    return Best(min(walls), min(peaks), size, note)


def rows_of(model: str, results: dict[str, Best]) -> list[dict[str, object]]:
    """Table rows with ratios to ampc and to cp."""
    own, copy = results.get("ampc"), results["cp"]
    rows = []
    for tool, best in results.items():
        row: dict[str, object] = {
            "model": model, "tool": tool, "seconds": f"{best.wall:.3f}", "peak_MB": f"{best.rss_mb:.0f}",
            "output_MB": f"{best.output_mb:.1f}", "note": best.note, "time_/_cp": f"{best.wall / copy.wall:.2f}",
        }
        if own and not own.note:
            row["time_/_ampc"] = f"{best.wall / own.wall:.2f}"
            row["memory_/_ampc"] = f"{best.rss_mb / own.rss_mb:.2f}"
        rows.append(row)
    return rows


def heading(args: argparse.Namespace) -> str:
    """What was measured, with versions."""
    names = ("onnxconverter-common", "onnxruntime", "onnx", "numpy")
    versions = ", ".join([*(f"{name} {version(name)}" for name in names), f"Python {platform.python_version()}"])
    own = measure.run([args.ampc, "--version"]).stdout.strip() if args.ampc else "not measured"
    return f"ampc: {own}. Peers: {versions}. {os.cpu_count()} cores. Best of {args.runs} for ampc and cp, one run for the converters.\n"


def main() -> int:
    """Measures and prints the table; 1 if ampc fails on a model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ampc", default=os.environ.get("AMPC_BIN"), help="the binary [AMPC_BIN]; without it only the peers run")
    parser.add_argument("--only", default=",".join(MODELS), help="which models")
    parser.add_argument("--runs", type=int, default=3, help="of ampc and cp [3]")
    parser.add_argument("--timeout", type=float, default=300, help="seconds per conversion [300]")
    args = parser.parse_args()
    print(heading(args))
    failed = False
    rows: list[dict[str, object]] = []
    for name in args.only.split(","):
        with tempfile.TemporaryDirectory(prefix="ampc-peers-") as folder:
            source, output = generate(Path(folder), name), Path(folder) / "out.onnx"
            results = {
                tool: best_of(runs, argv, output, args.timeout)
                for tool, runs, argv in commands(args, source, output, MODELS[name][2])
            }
        failed |= "ampc" in results and bool(results["ampc"].note)
        rows += rows_of(name, results)
    print(markdown(COLUMNS, rows))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
