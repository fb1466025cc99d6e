#!/usr/bin/env python3
"""Holds the kernels of the CPU runtime against NumPy with float32 inside, operator by operator, in fp16 and bf16.

Elementwise operators get every one of the 65536 bit patterns of the format, or a million random pairs of them, and have
to give the same bits: the float32 result rounded once. Where NumPy's own float32 function is off by an ulp or two, the
two roundings may fall on either side of a tie: such an element may differ by one ulp if the exact value is within four
float32 ulps of the tie, and is counted. Movement gives the same bits, and so do sums and products of integers that are
exact. Other sums and products are held against the float64 value from the operands as stored: within one ulp of its
rounding; or, an element at a time, within what n additions and products in float32 may lose at most before that
rounding, n · 2^-24 · Σ|a·b| (N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., section 3.1).
Elements that need the latter are counted.

Every operator of the runtime's kernels that takes or gives fp16 is here, or in WITHOUT_CASE with the reason.

    tests/judge/kernels.py --ampc target/release/ampc [--filter 'Conv*'] [--table]
"""

from __future__ import annotations

import fnmatch
import os
import re
import subprocess
import sys
import tempfile
import warnings
import zlib
from argparse import ArgumentParser
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper

from kernel_cases import Case, cases

FORMATS = {"fp16": (np.float16, TensorProto.FLOAT16), "bf16": (ml_dtypes.bfloat16, TensorProto.BFLOAT16)}
BF16_SUFFIX = "__bf16"
KERNELS = Path(__file__).resolve().parents[2] / "runtime/src/cpu/kernels"
F = np.float32

DRAWN = "draws random numbers: tests of the runtime hold the generator, and there is no other one to compare with"
ELSEWHERE = "moves whole values and computes nothing: conformance.py has it"
# Operators with kernels that take or give fp16 and have no case.
WITHOUT_CASE = {
    "Bernoulli": DRAWN,
    "Multinomial": DRAWN,
    "RandomNormal": DRAWN,
    "RandomNormalLike": DRAWN,
    "RandomUniform": DRAWN,
    "RandomUniformLike": DRAWN,
    "OptionalHasElement": ELSEWHERE,
    "SequenceEmpty": ELSEWHERE,
    "SequenceErase": ELSEWHERE,
    "SequenceLength": ELSEWHERE,
    "TreeEnsemble": "sums of few leaves: conformance.py has it, and no schema of it has bf16",
}
# How the names of kinds of operators begin that are not in ONNX's main domain.
DOMAINS = {"Contrib": "com.microsoft", "Ml": "ai.onnx.ml", "Training": "ai.onnx.preview.training"}


@dataclass
class Verdict:
    """What is wrong with a result, or the empty string; elements beside a tie, and those that need the bound."""

    wrong: str = ""
    ties: int = 0
    bounded: int = 0


def rounded(x: np.ndarray, dtype: Any) -> np.ndarray:
    """Numbers rounded to a format once, also from float64: by way of float32 rounded to odd."""
    if x.dtype != np.float64:
        return x.astype(dtype)
    near = x.astype(F)
    inexact = np.isfinite(x) & (near.astype(np.float64) != x)
    bits = near.view(np.uint32)
    toward_zero = np.where(np.abs(near.astype(np.float64)) > np.abs(x), bits - np.uint32(1), bits)
    return np.where(inexact, toward_zero | np.uint32(1), bits).astype(np.uint32).view(F).reshape(x.shape).astype(dtype)


def ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Distance in units in the last place between numbers of a 16-bit format; of what is not finite 0 or infinity."""
    def line(x: np.ndarray) -> np.ndarray:
        bits = x.view(np.uint16).astype(np.int64)
        return np.where(bits >= 1 << 15, (1 << 15) - 1 - bits, bits)
    distance = np.abs(line(got) - line(want)).astype(np.float64)
    nan = np.isnan(got.astype(F)), np.isnan(want.astype(F))
    return np.where(nan[0] | nan[1], np.where(nan[0] & nan[1], 0, np.inf), distance)


def near_tie(exact: np.ndarray, got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Whether the exact value is within four float32 ulps of the middle between two neighbours."""
    middle = (got.astype(np.float64) + want.astype(np.float64)) / 2
    return np.abs(exact - middle) <= 4 * np.spacing(np.abs(middle).astype(F)).astype(np.float64)


def within_bound(case: Case, exact: np.ndarray, got: np.ndarray, want: np.ndarray, magnitude: np.ndarray) -> np.ndarray:
    """Whether results are as near as float32 sums may be, and then rounded."""
    half_ulp = np.abs(np.nextafter(want, want.dtype.type(np.inf)).astype(np.float64) - want.astype(np.float64)) / 2
    return np.abs(got.astype(np.float64) - exact) <= case.terms * 2.0**-24 * magnitude + half_ulp


def judge(case: Case, dtype: Any, got: np.ndarray, want: np.ndarray, magnitude: np.ndarray | None) -> Verdict:
    """One result of the low format against the wide one."""
    exact = want.astype(np.float64)
    want = rounded(want, dtype)
    distance = ulps(got, want)
    verdict = Verdict()
    if case.kind == "near":
        ties = (distance > 0) & (distance <= 1) & near_tie(exact, got, want)
        bad = (distance > 0) & ~ties
        verdict.ties = int(ties.sum())
    elif case.kind == "sum":
        bad = distance > 1
        if magnitude is not None and bad.any():
            excused = bad & within_bound(case, exact, got, want, np.broadcast_to(magnitude, exact.shape))
            verdict.bounded = int(excused.sum())
            bad &= ~excused
    else:
        bad = distance > 0
    if bad.any():
        at = np.unravel_index(int(np.argmax(bad)), bad.shape)
        verdict.wrong = f"{int(bad.sum())} of {bad.size} differ, the first at {tuple(map(int, at))}: {got[at]}, expected {want[at]} (of {exact[at]!r})"
    return verdict


def as_tuple(result: Any) -> tuple[np.ndarray, ...]:
    return tuple(np.asarray(part) for part in (result if isinstance(result, tuple) else (result,)))


def references(case: Case, dtype: Any, operands: list[np.ndarray | None]) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...] | None]:
    """The results, wide, and the magnitudes that are added for them."""
    wide = F if case.kind == "same" else np.float64
    is_low = lambda a: a is not None and a.dtype == dtype
    widened = [a.astype(wide) if is_low(a) else a for a in operands]
    results = as_tuple(case.want(*widened))
    if case.kind != "sum" or not case.terms:
        return results, None
    if case.bound:
        return results, as_tuple(case.bound(*widened))
    return results, as_tuple(case.want(*[np.abs(w) if is_low(a) else w for a, w in zip(operands, widened)]))


def is_float(array: np.ndarray) -> bool:
    return array.dtype.kind == "f"


def model_of(case: Case, dtype: Any, number: int, operands: list[np.ndarray | None], results: tuple[np.ndarray, ...]) -> onnx.ModelProto:
    kind = lambda a: number if a.dtype == dtype else helper.np_dtype_to_tensor_dtype(a.dtype)
    names = [f"x{i}" if a is not None else "" for i, a in enumerate(operands)]
    inputs = [helper.make_tensor_value_info(n, kind(a), a.shape) for n, a in zip(names, operands) if n]
    stored = lambda r: np.dtype(case.stored) if case.stored else np.dtype(dtype) if is_float(r) else r.dtype
    outputs = [helper.make_tensor_value_info(f"y{i}", kind(np.empty(0, stored(r))), None) for i, r in enumerate(results)]
    attributes = {key: value(number) if callable(value) else value for key, value in case.attributes.items()}
    nodes = case.nodes() if case.nodes else [helper.make_node(case.op, names, [o.name for o in outputs], domain=case.domain, **attributes)]
    graph = helper.make_graph(nodes, "kernel", inputs, outputs)
    opsets = [helper.make_opsetid("", case.opset), *([helper.make_opsetid(case.domain, 1)] if case.domain else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=13)


def run(ampc: str, case: Case, form: str, folder: Path) -> Verdict:
    dtype, number = FORMATS[form]
    operands = case.operands(dtype, np.random.default_rng(zlib.crc32(case.title.encode())))
    with np.errstate(all="ignore"):
        wants, magnitudes = references(case, dtype, operands)
    onnx.save(model_of(case, dtype, number, operands, wants), folder / "model.onnx")
    is_bf16 = lambda a: a.dtype == ml_dtypes.bfloat16
    stored = {f"x{i}" + BF16_SUFFIX * is_bf16(a): a.view(np.uint16) if is_bf16(a) else a for i, a in enumerate(operands) if a is not None}
    np.savez(folder / "in.npz", **stored)
    out = folder / "out.npz"
    command = [ampc, "run", str(folder / "model.onnx"), "--inputs", str(folder / "in.npz"), "--outputs", str(out), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        return Verdict(f"exit {done.returncode}: {' '.join(done.stderr.split())[:300]}")
    total = Verdict()
    with np.load(out) as arrays:
        for i, want in enumerate(wants):
            got = arrays[f"y{i}"] if f"y{i}" in arrays else arrays[f"y{i}{BF16_SUFFIX}"].view(ml_dtypes.bfloat16)
            if got.shape != want.shape:
                return Verdict(f"result {i} has the shape {got.shape}, expected {want.shape}")
            if case.op == "BitCast":
                got = got.view(dtype)
            if got.dtype == dtype:
                with np.errstate(all="ignore"):
                    verdict = judge(case, dtype, got, want, magnitudes[i] if magnitudes else None)
            else:
                same = np.array_equal(got, want, equal_nan=is_float(got))
                verdict = Verdict("" if same and got.dtype == (case.stored or want.dtype) else f"result {i} of {got.dtype} differs")
            total = Verdict(total.wrong or verdict.wrong, total.ties + verdict.ties, total.bounded + verdict.bounded)
    return total


def schema_of(op: str, domain: str, opset: int | None = None) -> Any:
    """The schema of an operator, or `None` if the onnx package has none."""
    try:
        return onnx.defs.get_schema(op, opset, domain) if opset else onnx.defs.get_schema(op, domain)
    except onnx.defs.SchemaError:
        return None


def has_type(schema: Any, ty: str) -> bool:
    """Whether an operand or a result may be a tensor of such elements."""
    kinds = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    return any(ty in name for port in [*schema.inputs, *schema.outputs] for name in kinds.get(port.type_str, [port.type_str]))


def takes(case: Case, form: str) -> bool:
    """Whether all nodes of a case may have bf16 where they have fp16."""
    if form not in case.forms:
        return False
    nodes = [node.op_type for node in case.nodes()] if case.nodes else [case.op]
    schemas = [schema_of(op, case.domain, case.opset) for op in nodes]
    return form == "fp16" or all(schema is None or has_type(schema, "(bfloat16)") for schema in schemas)


def kernels_of_runtime() -> dict[str, str]:
    """The operators that the sources of the kernels name, each with its domain."""
    kinds = {kind for file in KERNELS.glob("*.rs") for kind in re.findall(r"OpKind::([A-Z]\w*)", file.read_text())}
    found = {}
    for kind in kinds:
        prefix = next((p for p in DOMAINS if kind.startswith(p) and kind != p), "")
        found[kind.removeprefix(prefix)] = DOMAINS.get(prefix, found.get(kind.removeprefix(prefix), ""))
    return found


def uncovered(chosen: list[Case]) -> list[str]:
    """Operators with kernels for fp16 that have neither a case nor a reason, and reasons without need."""
    covered = {node.op_type for case in chosen if case.nodes for node in case.nodes()} | {case.op for case in chosen}
    lacking = []
    for op, domain in sorted(kernels_of_runtime().items()):
        schema = schema_of(op, domain)
        if op not in covered and op not in WITHOUT_CASE and (has_type(schema, "(float16)") if schema else domain == "com.microsoft"):
            lacking.append(f"{op}: the runtime has a kernel for fp16, and there is no case")
    lacking += [f"{op}: has a case, so it has to leave WITHOUT_CASE" for op in sorted(covered & set(WITHOUT_CASE))]
    return lacking


def run_in_folder(ampc: str, case: Case, form: str) -> Verdict:
    with tempfile.TemporaryDirectory() as name:
        try:
            return run(ampc, case, form, Path(name))
        except Exception as error:  # noqa: BLE001 - one case that cannot be run does not hide the others
            return Verdict(f"{type(error).__name__}: {error}")


def main() -> int:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ampc", default=os.environ.get("AMPC_BIN"), help="the binary [AMPC_BIN]")
    parser.add_argument("--corpus", help="not used; other judges have it")
    parser.add_argument("--filter", default="*", help="glob over names of cases")
    parser.add_argument("--table", action="store_true", help="print every case with elements beside ties and within bounds")
    parser.add_argument("--workers", type=int, default=2, help="cases at a time [2]")
    args = parser.parse_args()
    if not args.ampc or not Path(args.ampc).exists():
        parser.error("no binary: give --ampc or set AMPC_BIN")
    # Overflows are what some cases are for; warnings filters are the process's, so they are set before threads start.
    warnings.simplefilter("ignore", RuntimeWarning)
    ampc = str(Path(args.ampc).resolve())
    everything = cases()
    jobs = [(case, form) for case in everything for form in FORMATS if fnmatch.fnmatch(case.title, args.filter) and takes(case, form)]
    with ThreadPoolExecutor(args.workers) as pool:
        verdicts = list(pool.map(lambda job: run_in_folder(ampc, *job), jobs))
    total: Counter[str] = Counter()
    for (case, form), verdict in zip(jobs, verdicts):
        total.update(wrong=bool(verdict.wrong), ties=verdict.ties, bounded=verdict.bounded)
        if verdict.wrong:
            print(f"{case.title} {form}: {verdict.wrong}")
        if args.table:
            print(f"{case.title:44}{form:6}{case.kind:7}{verdict.ties:>6} beside a tie{verdict.bounded:>6} within the bound")
    lacking = uncovered(everything)
    print("\n".join(lacking), end="\n" * bool(lacking))
    operators = {case.op for case, _ in jobs}
    print(
        f"kernels: {len(jobs)} cases of {len(operators)} operators, {total['wrong']} wrong; {total['ties']} elements on either side of a tie, "
        f"{total['bounded']} within the bound of float32 sums alone; {len(WITHOUT_CASE)} operators have a reason for having no case, {len(lacking)} have none"
    )
    return 1 if total["wrong"] or lacking else 0


if __name__ == "__main__":
    sys.exit(main())
