#!/usr/bin/env python3
"""Compares the plans of models on a CUDA device with a committed table, cuda_plans.tsv: a model and its fp16 rewrite, and
training steps in fp32 and fp16.

A row has the launches by family, the steps without a launch (views), the groups of several nodes by their kind, and the
bytes of the plan beside the least possible (docs/run.md, "Lower bounds"). A launch stands for a step of the plan; a few
steps are several kernels. The rows of testdata/corpus are the table's first part; with `--corpus` the training steps of
a larger corpus are compared too. Without a GPU the library of tests/cuda-sim stands in for it, if the dynamic loader finds
it (scripts/cuda-sim sets LD_LIBRARY_PATH).

    tests/judge/cuda_plans.py --ampc target/release/ampc [--corpus DIR] [--filter '*mlp*'] [--regenerate]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import ampc

HERE = Path(__file__).resolve().parent
OWN = HERE.parent.parent / "testdata" / "corpus"
TABLE = HERE / "cuda_plans.tsv"
HEADING = ["model", "form", "products", "convolutions", "attention", "others", "views", "groups", "bytes / least"]
# One of these operators makes a step a launch of its family.
CONVOLUTIONS = {"Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "DeformConv"}
PRODUCTS = {"MatMul", "Gemm", "MatMulInteger", "QLinearMatMul", "Einsum", "FusedMatMul"}
OPTIMIZERS = {"AdamW", "Adam", "Sgd", "SGD", "Momentum"}
TIMEOUT = 1800


def run(binary: str, *args: str | Path) -> str:
    done = subprocess.run([binary, *map(str, args)], capture_output=True, text=True, timeout=TIMEOUT)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise RuntimeError(f"exit code {done.returncode}: {lines[0][:160] if lines else 'no message'}")
    return done.stdout


def family(operators: list[str]) -> str:
    """The column of a step with a launch."""
    count = Counter(operators)
    if any("Attention" in name for name in count) or (count["Softmax"] and count["MatMul"] >= 2):
        return "attention"
    if CONVOLUTIONS & count.keys():
        return "convolutions"
    return "products" if PRODUCTS & count.keys() else "others"


def kind(operators: list[str]) -> str:
    """The kind of a group of several nodes."""
    if set(operators) <= OPTIMIZERS:
        return "optimizers"
    found = family(operators)
    return {"products": "product", "convolutions": "convolution", "others": "joined"}.get(found, found)


def row(document: dict[str, Any]) -> list[str]:
    """The cells of a plan: the counts of all graphs, each once."""
    counts: Counter[str] = Counter()
    groups: Counter[str] = Counter()
    for graph in document["graphs"]:
        for step in graph["steps"]:
            operators = step["operators"]
            counts[family(operators) if step["launches"] else "views"] += max(step["launches"], 1)
            if len(operators) > 1:
                groups[kind(operators)] += 1
    least = document["least_possible"]
    ratio = f"{least['planned_bytes'] / least['bytes']:.3f}" if least["bytes"] else "-"
    named = ", ".join(f"{name} {count}" for name, count in sorted(groups.items())) or "-"
    return [*(str(counts[column]) for column in HEADING[2:7]), named, ratio]


def plan(binary: str, model: Path) -> list[str]:
    return row(json.loads(run(binary, "plan", model, "--device", "cuda", "--json", "-q")))


def rows(binary: str, corpus: Path, model: Path, folder: Path) -> list[list[str]]:
    """The rows of a model. An error is a row too: its message stands in place of the counts."""
    name = str(model.relative_to(corpus))
    work = Path(tempfile.mkdtemp(dir=folder))
    found = []

    def add(form: str, make: list[str | Path] | None, of: Path) -> None:
        try:
            if make:
                run(binary, *make)
            found.append([name, form, *plan(binary, of)])
        except RuntimeError as error:
            text = str(error).replace(str(work), "").replace(str(corpus), "")
            found.append([name, form, *["-"] * 5, text, "-"])

    if model.match("train/*/*.onnx"):
        for form, options in (("fp32 step", ["--fp32"]), ("fp16 step", ["--to", "fp16"])):
            step = work / "step.onnx"
            command: list[str | Path] = ["train-step", model, "--loss", "output:loss", "--optimizer", "adamw", "-o", step]
            add(form, [*command, "--state", work / "state.safetensors", "--force", "-q", *options], step)
    else:
        low = work / "low.onnx"
        add("as given", None, model)
        add("fp16", ["rewrite", model, "--to", "fp16", "-o", low, "--force", "-q"], low)
    return found


def key(cells: list[str]) -> tuple[str, str]:
    return cells[0], cells[1]


def stored() -> dict[tuple[str, str], list[str]]:
    lines = TABLE.read_text().splitlines()[1:] if TABLE.exists() else []
    return {key(cells): cells for cells in (line.split("\t") for line in lines)}


def differences(old: list[str] | None, new: list[str]) -> str:
    if old is None:
        return "not in the table"
    pairs = zip(HEADING, old, new, strict=True)
    return "; ".join(f"{name} {before}, now {after}" for name, before, after in pairs if before != after)


def main() -> int:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ampc", required=True)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--filter", default="*", help="glob over paths within the corpus")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--regenerate", action="store_true", help="write the table instead of comparing it")
    args = parser.parse_args()
    binary = str(Path(args.ampc).resolve())
    of_own = {path.relative_to(OWN) for path in ampc.models(OWN, "small,tricky,train", "*")}
    jobs = [(OWN, OWN / path) for path in sorted(of_own)]
    if args.corpus:
        corpus = args.corpus.resolve()
        jobs += [(corpus, path) for path in ampc.models(corpus, "train", "*") if path.relative_to(corpus) not in of_own]
    jobs = [(corpus, model) for corpus, model in jobs if fnmatch(str(model.relative_to(corpus)), args.filter)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.workers) as pool:
        made = list(pool.map(lambda job: rows(binary, *job, Path(folder)), jobs))
    found = {key(cells): cells for of_model in made for cells in of_model}
    old = stored()
    if args.regenerate:
        table = old | found
        lines = ["\t".join(cells) for cells in [HEADING, *(table[name] for name in sorted(table))]]
        TABLE.write_text("\n".join(lines) + "\n")
        print(f"wrote {len(found)} of {len(table)} plans to {TABLE.name}")
        return 0
    failed = 0
    for name, cells in found.items():
        if old.get(name) != cells:
            failed += 1
            print(f"{' '.join(name)}: {differences(old.get(name), cells)}")
    if args.filter == "*":
        own = {str(path) for path in of_own}
        for name in sorted(old.keys() - found.keys()):
            # Without a larger corpus, its rows are not compared.
            if args.corpus or name[0] in own:
                failed += 1
                print(f"{' '.join(name)}: in the table, and no such model")
    print(f"{len(found) - failed if failed < len(found) else 0} of {len(found)} plans are those of {TABLE.name}")
    if failed:
        print("`--regenerate` writes the new plans to the table")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
