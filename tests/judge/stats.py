#!/usr/bin/env python3
"""Compares `ampc stats` with NumPy: every statistic of every tensor of every model.

The tensors are those that `ampc run` computes, of a copy of the model that has all of them as outputs, on two batches of
random inputs, the second 3000 times as large. NumPy and ml_dtypes compute the same statistics of them. Counts, ranges and histograms have to
be equal; the largest relative error, which is an f32, within an f32 rounding of it. Tensors of bodies and functions
cannot be outputs: they are compared in the tests of the library.

    tests/judge/stats.py --corpus DIR --ampc target/release/ampc
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx

import ampc
import feeds
import measure
import outputs

FORMATS: dict[str, tuple[Any, float, float, float]] = {
    "f16": (np.float16, 65504.0, 2.0**-14, 2.0**-24),
    "bf16": (ml_dtypes.bfloat16, float(ml_dtypes.finfo(ml_dtypes.bfloat16).max), 2.0**-126, 2.0**-133),
    "float8e4m3fn": (ml_dtypes.float8_e4m3fn, 448.0, 2.0**-6, 2.0**-9),
    "float8e5m2": (ml_dtypes.float8_e5m2, 57344.0, 2.0**-14, 2.0**-16),
}


# The names of the tensors that were compared.
compared: set[str] = set()


def statistics(arrays: list[np.ndarray]) -> dict[str, Any]:
    """The statistics of arrays, as the JSON of `ampc stats` has them."""
    is_float = arrays[0].dtype.kind in "fc" or arrays[0].dtype == ml_dtypes.bfloat16
    flat = [a.view(a.real.dtype) if a.dtype.kind == "c" else a for a in map(np.ascontiguousarray, arrays)]
    numbers = np.concatenate([a.reshape(-1).astype(np.float64) for a in flat])
    finite = numbers[np.isfinite(numbers)]
    size, real = np.abs(finite), numbers[~np.isnan(numbers)]
    nonzero = size[size > 0]
    exponents = np.floor(np.frexp(nonzero)[1].astype(np.float64) - 1).astype(int)
    first = int(exponents.min()) if len(exponents) else None
    found: dict[str, Any] = {
        "count": len(numbers),
        "zeros": int((size == 0).sum()),
        "nan": int(np.isnan(numbers).sum()),
        "infinite": int(np.isinf(numbers).sum()),
        "min": bound(real.min()) if len(real) else None,
        "max": bound(real.max()) if len(real) else None,
        "max_abs": float(size.max()) if len(size) else None,
        "min_abs_nonzero": float(nonzero.min()) if len(nonzero) else None,
        "exponents": {"first": first, "counts": np.bincount(exponents - first).tolist() if first is not None else []},
    }
    # NumPy has no conversion from f64 to the 8-bit formats that rounds once.
    if is_float and arrays[0].dtype not in (np.float64, np.complex128):
        found["rounded"] = {name: rounded(nonzero, *limits) for name, limits in FORMATS.items()}
    return found


def bound(number: float) -> float | str:
    return float(number) if np.isfinite(number) else ("inf" if number > 0 else "-inf")


def rounded(size: np.ndarray, dtype: Any, largest: float, normal: float, subnormal: float) -> dict[str, Any]:
    with np.errstate(over="ignore"):
        low = size.astype(np.float32).astype(dtype).astype(np.float64)
    keeps = np.isfinite(low) & (low > 0)
    error = np.abs(low[keeps] - size[keeps]) / size[keeps]
    return {
        "beyond": int((size > largest).sum()),
        "overflow": int((~np.isfinite(low)).sum()),
        "below_normal": int((size < normal).sum()),
        "below_subnormal": int((size < subnormal).sum()),
        "flushed": int((low == 0).sum()),
        "max_relative_error": float(error.max(initial=0.0)),
    }


def differences(name: str, got: Any, want: Any) -> list[str]:
    if isinstance(want, dict):
        if not isinstance(got, dict) or set(got) != set(want):
            return [f"{name}: {got} instead of {want}"]
        return [text for key in want for text in differences(f"{name}.{key}", got[key], want[key])]
    if name.endswith("max_relative_error"):
        return [] if abs(got - want) <= 2.0**-23 * want else [f"{name}: {got} instead of {want}"]
    return [] if got == want else [f"{name}: {got} instead of {want}"]


def with_all_outputs(source: Path, to: Path) -> dict[str, set[str]]:
    """Writes a copy of a model whose outputs are the results of all nodes; returns the possible paths of their nodes."""
    model = onnx.load(source)
    names = [name for node in model.graph.node for name in node.output if name]
    known = {v.name: v for v in [*model.graph.value_info, *model.graph.output]}
    del model.graph.output[:]
    for name in names:
        model.graph.output.append(known.get(name, onnx.ValueInfoProto(name=name)))
    onnx.save(model, to)
    return {name: {node.name, *node.output} for node in model.graph.node for name in node.output}


def batches(binary: str, source: Path, copy: Path, work: Path) -> list[dict[str, np.ndarray]] | str:
    """The tensors of two runs, whose inputs are in the folder `data`: inputs and results. The second batch is larger."""
    problem = "no size of its open dims fits"
    for size in feeds.SYMBOLIC_SIZES:
        values = feeds.random_feeds(str(source), size)
        if any(isinstance(value, list) or value.dtype.kind == "O" for value in values.values()):
            return "passed over: inputs that are not tensors of numbers"
        found: list[dict[str, np.ndarray]] = []
        for scale in (1, 3000):
            scaled = {n: (a * scale).astype(a.dtype) if a.dtype.kind in "fc" or a.dtype == ml_dtypes.bfloat16 else a for n, a in values.items()}
            inputs, out = work / f"data/batch{scale}.npz", work / "out.npz"
            outputs.save(inputs, scaled)
            ran = measure.run([binary, "run", str(copy), "--inputs", str(inputs), "--outputs", str(out), "--force", "-q"], 120)
            if ran.code != 0:
                problem = ampc.problem(ran)
                break
            found.append({**scaled, **loaded(out)})
        else:
            return found
    return f"passed over: {problem}"


def loaded(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file, bf16 among them. Arrays of other types that NumPy lacks are left out."""
    with np.load(path) as arrays:
        names = [name.removesuffix(feeds.BF16_SUFFIX) for name in arrays.files]
        return {name: outputs.load(path, name) for name in names if "__float" not in name and "__" + "u" not in name}


def judge(binary: str, source: Path, work: Path) -> list[str]:
    (work / "data").mkdir(exist_ok=True)
    for old in (work / "data").iterdir():
        old.unlink()
    copy = work / "copy.onnx"
    paths = with_all_outputs(source, copy)
    runs = batches(binary, source, copy, work)
    if isinstance(runs, str):
        print(f"{source.name}: {runs}")
        return []
    tensors: dict[str, list[np.ndarray]] = {}
    for run in runs:
        for name, array in run.items():
            tensors.setdefault(name, []).append(array)
    for tensor in onnx.load(source).graph.initializer:
        tensors[tensor.name] = [onnx.numpy_helper.to_array(tensor)]
    measured = measure.run([binary, "stats", str(source), "--inputs", str(work / "data"), "--json"], 120)
    if measured.code != 0:
        return [f"stats: {ampc.problem(measured)}"]
    document = json.loads(measured.stdout)
    # Those of bodies and functions have other paths.
    rows = [row for row in document["tensors"] if row["path"] in paths.get(row["tensor"], {""})]
    found = {row["tensor"]: row for row in reversed(rows)}
    problems = [] if document["batches"] == 2 else [f"{document['batches']} batches instead of 2"]
    for name, arrays in tensors.items():
        if arrays[0].dtype.kind in "OUS":
            continue
        if name not in found:
            problems.append(f"`{name}` has no statistics")
            continue
        want = statistics(arrays)
        problems += differences(name, {key: found[name].get(key) for key in want}, want)
    compared.update(tensors)
    return problems[:8]


def main() -> int:
    status = ampc.judge_models(__doc__, "small", judge)
    print(f"stats: {len(compared)} tensors of different names compared")
    return status or not compared


if __name__ == "__main__":
    sys.exit(main())
