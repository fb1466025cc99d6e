"""ampc and NVIDIA's modelopt, both with calibration data, on models on which careless lowering goes wrong.

The models are those of the corpus's folders adversarial and adversarial2, each with the formats of its index. All tools
get the inputs in NAME.npz as calibration data, and are judged on these inputs:

- ampc: `ampc rewrite M --to FORMAT --calibrate NAME.npz`, in bf16 with `--opset auto`
- search: the same with `--policy all --search --inputs NAME.npz --tolerance BOUND` in the place of `--calibrate`, where
  a row has a bound (below): no guard of ampc decides, only errors that were measured
- modelopt: `convert_to_mixed_precision` with `keep_io_types=True` and `calibration_data` a folder of that file alone,
  which keeps the arrays whole (a file is split along its first axis where that is open)

A model that a tool writes runs in `ampc run`, whose kernels round every result to its type, or in ONNX Runtime if
`ampc run` refuses it; if both refuse it, it is invalid. The error is max|err| / max|wanted|, the largest of all
outputs, where the wanted values are those of the source in ONNX Runtime without optimizations. It is inf if an output
is not finite where that of the source is. The bound is three times the error with the pins of an expert (`alt` of the
index), or 2e-3 in fp16 and 1.5e-2 in bf16 if that is more; a row without `alt` has none. A row is of kind W if careless
lowering makes it wrong, N if it can be lowered nearly everywhere. In adversarial, whose index has no kinds, a row is of
kind W if it has `alt`.

An fp32 operator is a node with an fp32 result, other than Cast and Constant, by onnx's shape inference on the model
that was written; casts are its Cast nodes, those of the source included. Both count nodes of bodies once, and those of
functions once for each call, since functions are inlined before.

    AMPC_MODELOPT=PYTHON peers_calibrated.py --corpus DIR --ampc BIN [--sets adversarial,adversarial2] [--filter GLOB]

AMPC_MODELOPT is an interpreter with modelopt (peer_modelopt.py lists its requirements).
"""

from __future__ import annotations

import argparse
import math
import os
import select
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from threading import Lock
from typing import Any, Callable

import numpy as np
import onnx
import onnx.inliner

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "judge"))

import adversarial  # noqa: E402
import ampc  # noqa: E402
import measure  # noqa: E402
import variants  # noqa: E402
from rows import FLOOR, arrays, bound, index  # noqa: E402
from tables import markdown  # noqa: E402
from tasks import nodes_of  # noqa: E402

TOOLS = ("ampc", "search", "modelopt")
KINDS = ("W", "N")
# The kinds of each line of the table of medians.
GROUPS = (*((kind,) for kind in KINDS), KINDS)
# Rows of the lists of extremes.
EXTREMES = 10
VERSIONS = "; ".join([
    "from importlib.metadata import version as v",
    "print(', '.join(f'{n} {v(n)}' for n in ('nvidia-modelopt', 'onnx', 'onnxruntime-gpu', 'numpy')))",
])


@dataclass
class Row:
    """A model and a format."""

    model: str
    format: str
    kind: str
    source: Path
    alt: float | None

    @property
    def bound(self) -> float | None:
        """The largest error that is acceptable."""
        return None if self.alt is None else bound(self.alt, self.format)


@dataclass
class Made:
    """The judgement of one conversion: `why` and nothing else if there is no valid output."""

    why: str = ""
    # The reason why `ampc run` refuses a model that ONNX Runtime ran.
    refused: str = ""
    error: float = math.inf
    wide: int = 0
    casts: int = 0

    def within(self, row: Row) -> bool:
        """True if there is a valid output whose error is within the bound of the row."""
        return not self.why and row.bound is not None and self.error <= row.bound


@dataclass
class Pair:
    """A row with the output of each tool."""

    row: Row
    ampc: Made
    search: Made
    modelopt: Made

    @property
    def valid(self) -> bool:
        """True if the outputs of ampc and of modelopt are valid."""
        return not self.ampc.why and not self.modelopt.why


@dataclass
class Modelopt:
    """The server of peer_modelopt.py, which starts with the first conversion and after each that takes too long."""

    python: str
    timeout: float
    process: subprocess.Popen[str] | None = None
    lock: Lock = field(default_factory=Lock)

    def convert(self, row: Row, data: Path, output: Path) -> str | None:
        """Converts a model; returns the problem, or None."""
        folder = output.parent / "data"
        folder.mkdir()
        shutil.copy(data, folder)
        with self.lock:
            self.process = self.process or self._start()
            print(row.source, output, row.format, folder, sep="\t", file=self.process.stdin, flush=True)
            ready, _, _ = select.select([self.process.stdout], [], [], self.timeout)
            answer = self.process.stdout.readline().strip() if ready else "timeout"
            if not ready or not answer:
                self.stop()
        return None if answer == "ok" else answer or "crash"

    def stop(self) -> None:
        """Ends the server."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def _start(self) -> subprocess.Popen[str]:
        # The order of its casts follows that of Python's sets. It knows nodes of bodies by `id`, which only the Python
        # implementation of protobuf keeps; with the default implementation some conversions fail
        # now and then.
        stable = {"PYTHONHASHSEED": "0", "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
        environment = {**os.environ, **stable}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        return subprocess.Popen([self.python, str(HERE / "peer_modelopt.py")], text=True, env=environment, **pipes)


def rows_of(args: argparse.Namespace) -> list[Row]:
    """The rows of the indices."""
    found = []
    for name in args.sets.split(","):
        listed = index(args.corpus / name, args.filter)
        if listed is None:
            raise SystemExit(f"{name} of {args.corpus} has no index.csv with bounds")
        for line in listed:
            kind = line["kind"] or ("N" if line["alt"] is None else "W")
            found.append(Row(line["model"], line["format"], kind, line["source"], line["alt"]))
    return found


def rewrite(args: argparse.Namespace, searches: bool, row: Row, data: Path, output: Path) -> str | None:
    """Converts a model with ampc; returns the problem, or None."""
    report = output.with_suffix(".json")
    found = ("--calibrate", str(data))
    if searches and row.bound is None:
        return "no bound"
    if searches:
        found = ("--policy", "all", "--search", "--inputs", str(data), "--tolerance", str(row.bound))
    options = ("--to", row.format, *adversarial.OPSET[row.format], *found, "--report", str(report))
    done = ampc.rewrite(args.ampc, row.source, output, *options, timeout=args.timeout)
    return None if done.code == 0 else ampc.problem(done)


def outputs(args: argparse.Namespace, model: Path, data: Path) -> tuple[dict[str, np.ndarray], str]:
    """The outputs of a model, and why `ampc run` refuses the model if ONNX Runtime ran it."""
    found = model.with_suffix(".npz")
    options = ("--inputs", str(data), "--outputs", str(found), "--quiet")
    done = ampc.execute(args.ampc, model, *options, timeout=args.timeout)
    if done.code == 0:
        return arrays(found), ""
    refused = f"exit {done.ending()}: {' '.join(done.stderr.split())[:160]}"
    try:
        return adversarial.run(model, arrays(data)), refused
    except Exception as problem:  # noqa: BLE001  ONNX Runtime raises whatever it likes
        said = str(problem).replace(f"{model.parent}/", "")[:160]
        raise ValueError(f"ampc run: {refused}; ONNX Runtime: {said}") from problem


def counts(path: Path) -> tuple[int, int]:
    """The numbers of fp32 operators and of casts of a model."""
    model = variants.strip(onnx.inliner.inline_local_functions(onnx.load(path)))
    inferred = onnx.shape_inference.infer_shapes(model)
    wide = 0
    for graph in variants.graphs(inferred):
        values = [*graph.input, *graph.value_info, *graph.output]
        types = {value.name: value.type.tensor_type.elem_type for value in values}
        operators = [node for node in graph.node if node.op_type not in ("Cast", "Constant")]
        if unknown := [name for node in operators for name in node.output if name and name not in types]:
            raise ValueError(f"no type is inferred for {', '.join(unknown)}")
        wide += sum(any(types.get(name) == onnx.TensorProto.FLOAT for name in node.output) for node in operators)
    return wide, sum(node.op_type == "Cast" for node in nodes_of(inferred))


def judge(args: argparse.Namespace, convert: Callable[[Row, Path, Path], str | None], row: Row, folder: Path) -> Made:
    """Converts a model and judges the output."""
    data, output = row.source.with_suffix(".npz"), folder / "out.onnx"
    if why := convert(row, data, output):
        return Made(why=f"no output: {why}")
    try:
        found, refused = outputs(args, output, data)
        wide, casts = counts(output)
    except Exception as problem:  # noqa: BLE001  onnx raises exceptions of many types on an invalid model
        return Made(why=f"invalid: {' '.join(str(problem).split())[:400]}")
    wanted = adversarial.run(row.source, arrays(data))
    with np.errstate(all="ignore"):
        error = adversarial.error(wanted, found)
    return Made("", refused, error, wide, casts)


def summary(pairs: list[Pair]) -> list[dict[str, Any]]:
    """The totals of each format and kind, over rows that have a bound."""
    table: list[dict[str, Any]] = []
    for form in FLOOR:
        for kind in KINDS:
            bounded = [pair for pair in pairs if pair.row.bound is not None]
            mine = [pair for pair in bounded if pair.row.format == form and pair.row.kind == kind]
            for tool in TOOLS if mine else ():
                got = [(pair.row, getattr(pair, tool)) for pair in mine]
                table.append({
                    "format": form, "kind": kind, "tool": tool, "rows": len(got),
                    "valid": sum(not made.why for _, made in got),
                    "finite": sum(not made.why and math.isfinite(made.error) for _, made in got),
                    "within_bound": sum(made.within(row) for row, made in got),
                })
    return table


def medians(pairs: list[Pair]) -> list[dict[str, Any]]:
    """The medians of fp32 operators and of casts, and of the differences to modelopt.

    Rows are those where the outputs of ampc and of modelopt are valid, for the search also with a bound.
    """
    valid = [pair for pair in pairs if pair.valid]
    within = [pair for pair in valid if pair.modelopt.within(pair.row)]
    chosen = {"both valid": valid, "and modelopt within bound": within}
    table: list[dict[str, Any]] = []
    for form in FLOOR:
        for title, some in chosen.items():
            for kinds in GROUPS:
                mine = [pair for pair in some if pair.row.format == form and pair.row.kind in kinds]
                if not mine:
                    continue
                kind = " and ".join(kinds)
                line: dict[str, Any] = {"format": form, "of_rows": title, "kind": kind, "rows": len(mine)}
                for heading, key in (("fp32", "wide"), ("casts", "casts")):
                    theirs = [getattr(pair.modelopt, key) for pair in mine]
                    line[f"{heading}:_modelopt"] = shown(theirs)
                    for tool in ("ampc", "search"):
                        both = [pair for pair in mine if not getattr(pair, tool).why]
                        ours = [getattr(getattr(pair, tool), key) for pair in both]
                        differences = [number - getattr(pair.modelopt, key) for number, pair in zip(ours, both)]
                        line[f"{heading}:_{tool}"] = shown(ours)
                        line[f"{heading}:_{tool}_-_modelopt"] = shown(differences)
                table.append(line)
    return table


def shown(numbers: list[int]) -> str:
    """The median, without a fraction that is 0; empty without numbers."""
    return f"{median(numbers):g}" if numbers else ""


def text(row: Row, made: Made) -> str:
    """The error of a conversion as a cell: bold if it is beyond the bound, starred if ONNX Runtime ran the model."""
    if made.why:
        return made.why.partition(":")[0]
    figure = f"{made.error:.1e}" if row.bound is None or made.within(row) else f"**{made.error:.1e}**"
    return figure + ("*" if made.refused else "")


def line_of(pair: Pair) -> dict[str, Any]:
    """The line of a row in the tables."""
    row = pair.row
    line: dict[str, Any] = {"model": row.model, "format": row.format, "kind": row.kind, "bound": row.bound}
    for tool in TOOLS:
        made = getattr(pair, tool)
        line[tool] = text(row, made)
        if not made.why:
            line |= {f"fp32:_{tool}": made.wide, f"casts:_{tool}": made.casts}
    return line


def problems(pairs: list[Pair]) -> list[dict[str, Any]]:
    """The conversions that are not valid, or that `ampc run` refuses, with the reasons."""
    conversions = [(pair.row, tool, getattr(pair, tool)) for pair in pairs for tool in TOOLS]
    return [
        {"model": row.model, "format": row.format, "tool": tool, "reason": made.why or f"ampc run: {made.refused}"}
        for row, tool, made in conversions
        if made.refused or made.why and made.why != "no output: no bound"
    ]


def report(pairs: list[Pair]) -> None:
    """Prints the tables."""
    fp32, casts = ([f"{heading}: {tool}" for tool in TOOLS] for heading in ("fp32", "casts"))
    columns = ["model", "format", "kind", "bound", *TOOLS, *fp32, *casts]
    print("Rows that have a bound:\n")
    print(markdown(["format", "kind", "tool", "rows", "valid", "finite", "within bound"], summary(pairs)))
    print("Medians of fp32 operators and of casts, and of their differences:\n")
    names = (*TOOLS, "ampc - modelopt", "search - modelopt")
    heads = [f"{heading}: {name}" for heading in ("fp32", "casts") for name in names]
    print(markdown(["format", "of rows", "kind", "rows", *heads], medians(pairs)))
    print(f"The {EXTREMES} rows on which the error of ampc is largest next to the bound:\n")
    worst = sorted(pairs, key=lambda pair: -pair.ampc.error / (pair.row.bound or math.inf))
    print(markdown(columns, [line_of(pair) for pair in worst[:EXTREMES]]))
    print(f"The {EXTREMES} rows on which ampc keeps the most fp32 operators beyond those of modelopt:\n")
    more = sorted((pair for pair in pairs if pair.valid), key=lambda pair: pair.modelopt.wide - pair.ampc.wide)
    print(markdown(columns, [line_of(pair) for pair in more[:EXTREMES]]))
    print("Outputs that are missing or invalid, and outputs that `ampc run` refuses (with a star in the next table):\n")
    print(markdown(["model", "format", "tool", "reason"], problems(pairs)))
    print("All rows; an error in bold is beyond the bound:\n")
    print(markdown(columns, [line_of(pair) for pair in pairs]))


def main() -> int:
    """Prints the totals, the extremes and all rows, as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=os.environ.get("AMPC_CORPUS"), help="[AMPC_CORPUS]")
    parser.add_argument("--ampc", default=os.environ.get("AMPC_BIN"), help="the binary [AMPC_BIN]")
    parser.add_argument("--modelopt", default=os.environ.get("AMPC_MODELOPT"), help="the interpreter [AMPC_MODELOPT]")
    parser.add_argument("--sets", default="adversarial,adversarial2", help="folders of the corpus")
    parser.add_argument("--filter", default="*", help="glob over names of models")
    parser.add_argument("--timeout", type=float, default=300, help="seconds per step [300]")
    parser.add_argument("--workers", type=int, default=2, help="rows at once [2]")
    args = parser.parse_args()
    for name in ("corpus", "ampc", "modelopt"):
        if not getattr(args, name):
            parser.error(f"give --{name} or set its variable")
    args.corpus, args.ampc = args.corpus.resolve(), str(Path(args.ampc).resolve())
    rows = rows_of(args)
    if not rows:
        parser.error(f"no model of {args.sets} matches {args.filter}")
    server = Modelopt(args.modelopt, args.timeout)
    own = {name: partial(rewrite, args, searches) for name, searches in (("ampc", False), ("search", True))}
    converters = {**own, "modelopt": server.convert}

    def job(item: tuple[Row, str]) -> Made:
        with tempfile.TemporaryDirectory(prefix="ampc-peers-") as folder:
            return judge(args, converters[item[1]], item[0], Path(folder))

    try:
        with ThreadPoolExecutor(args.workers) as pool:
            made = {tool: list(pool.map(job, [(row, tool) for row in rows])) for tool in TOOLS}
    finally:
        server.stop()
    version_of_ampc = measure.run([args.ampc, "--version"]).stdout.strip()
    theirs = measure.run([args.modelopt, "-c", VERSIONS]).stdout.strip()
    judges = ", ".join(f"{name} {version(name)}" for name in ("onnxruntime", "onnx", "numpy"))
    print(f"Versions: {version_of_ampc}; {theirs}; the judge's {judges}.\n")
    report([Pair(row, *all_made) for row, *all_made in zip(rows, *(made[tool] for tool in TOOLS))])
    return 0


if __name__ == "__main__":
    sys.exit(main())
