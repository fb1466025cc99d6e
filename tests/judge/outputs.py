#!/usr/bin/env python3
"""Runs every model of the corpus that has stored outputs in the CPU runtime, with 1, 2 and 3 threads.

The outputs have to be the stored ones: those of torch within 1e-4 of the largest element of each output (sets small and
train, fp32), those of hand-made models within 1e-3 (their low-precision ones were stored by other means). The bytes have
to be the same for any number of threads.

    tests/judge/outputs.py --corpus DIR --ampc target/release/ampc [--sets small,train,tricky] [--table]
"""

from __future__ import annotations

import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx

import ampc
import feeds
import measure

THREADS = (1, 2, 3)
BOUND = {"small": 1e-4, "train": 1e-4}
OTHER_BOUND = 1e-3
# Two units in the last place, as sums of other kernels may fall on either side.
BF16_BOUND = 2.0**-7


def names_of(model: onnx.ModelProto) -> tuple[list[str], list[str]]:
    """Inputs that are no initializers, and outputs."""
    held = {t.name for t in model.graph.initializer}
    return [v.name for v in model.graph.input if v.name not in held], [v.name for v in model.graph.output]


def draws(nodes: Iterable[onnx.NodeProto]) -> bool:
    """Whether a node, or one in its bodies, draws random numbers: those of other implementations are others."""
    for node in nodes:
        training = node.op_type == "Dropout" and len(node.input) > 2 and node.input[2]
        if training or node.op_type in ("Bernoulli", "Multinomial") or node.op_type.startswith("Random"):
            return True
        bodies = [body for attr in node.attribute for body in (attr.g, *attr.graphs)]
        if any(draws(body.node) for body in bodies):
            return True
    return False


def save(path: Path, arrays: dict[str, np.ndarray]) -> None:
    low = {name: array.dtype == ml_dtypes.bfloat16 for name, array in arrays.items()}
    spelled = {n + feeds.BF16_SUFFIX if low[n] else n: a.view(np.uint16) if low[n] else a for n, a in arrays.items()}
    np.savez(path, **spelled)


def load(path: Path, name: str) -> np.ndarray:
    with np.load(path) as arrays:
        low = name + feeds.BF16_SUFFIX
        return arrays[low].view(ml_dtypes.bfloat16) if low in arrays else arrays[name]


def error(got: np.ndarray, want: np.ndarray) -> float:
    """The largest difference as a share of the largest wanted element; infinite where shapes, types or NaN differ."""
    # NumPy has two types for strings.
    texts = all(array.dtype.kind in "OU" for array in (got, want))
    if got.shape != want.shape or got.dtype != want.dtype and not texts:
        return float("inf")
    if want.dtype.kind not in "fcV" and want.dtype != ml_dtypes.bfloat16:
        return 0.0 if np.array_equal(got, want) else float("inf")
    a, b = got.astype(np.complex128 if want.dtype.kind == "c" else np.float64), want.astype(np.complex128 if want.dtype.kind == "c" else np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if not np.isfinite(a[~same]).all() or not np.isfinite(b[~same]).all():
        return float("inf")
    scale = np.abs(b[np.isfinite(b)]).max(initial=0.0)
    return float(np.abs(a[~same] - b[~same]).max(initial=0.0) / (scale or 1.0))


def judge(args: Any, source: Path) -> tuple[str, float | None, str]:
    """The name of a model, the largest error of an output, and what is wrong; no error if nothing is stored."""
    name = str(source.relative_to(args.corpus))
    stored = feeds.stored_path(source)
    if stored is None:
        return name, None, ""
    model = onnx.load(source, load_external_data=False)
    if draws(model.graph.node) or any(draws(function.node) for function in model.functions):
        return name, None, ""
    inputs, outputs = names_of(model)
    given, wanted = feeds.stored(str(stored), "in_", inputs), feeds.stored(str(stored), "out_", outputs)
    if given is None or wanted is None:
        return name, None, ""
    with tempfile.TemporaryDirectory() as folder:
        save(Path(folder) / "in.npz", given)
        found: list[dict[str, np.ndarray]] = []
        for threads in THREADS:
            out = Path(folder) / f"out{threads}.npz"
            run = measure.run([args.ampc, "run", str(source), "--inputs", f"{folder}/in.npz", "--outputs", str(out), "--threads", str(threads), "--quiet"], args.timeout)
            if run.code != 0:
                return name, float("inf"), ampc.problem(run)
            found.append({n: load(out, n) for n in outputs})
    for other in found[1:]:
        if any(found[0][n].tobytes() != other[n].tobytes() for n in outputs if found[0][n].dtype.kind != "O"):
            return name, float("inf"), "other bytes with other numbers of threads"
    worst = max((error(found[0][n], wanted[n]), n) for n in outputs) if outputs else (0.0, "")
    low = any(found[0][n].dtype == ml_dtypes.bfloat16 for n in outputs)
    bound = BF16_BOUND if low else BOUND.get(name.split("/")[0], OTHER_BOUND)
    return name, worst[0], f"output {worst[1]}: error {worst[0]:.2e} of its scale, at most {bound:.0e}" if worst[0] > bound else ""


def main() -> int:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    ampc.add_arguments(parser, "small,train,tricky")
    parser.add_argument("--table", action="store_true", help="print every model's error")
    args = parser.parse_args()
    ampc.require(parser, args)
    sources = ampc.models(args.corpus, args.sets, args.filter)
    with ThreadPoolExecutor(args.workers) as pool:
        results = list(pool.map(lambda source: judge(args, source), sources))
    run = [(name, worst, text) for name, worst, text in results if worst is not None]
    for name, worst, text in run:
        if text:
            print(f"{name}: {text}")
        elif args.table:
            print(f"{name}: {worst:.2e}")
    bad = sum(bool(text) for *_, text in run)
    print(f"outputs: {len(run)} models with stored outputs, {bad} wrong; {len(results) - len(run)} have none")
    return 1 if bad or not run else 0


if __name__ == "__main__":
    sys.exit(main())
