#!/usr/bin/env python3
"""Whether a lowered model rounds as it says: our runtime on the lowered model against the emulated export.

For every small model and format, three runs on the stored inputs: the lowered model in our runtime, its emulated export
(an fp32 model with a cast to the format and back behind every low result) in our runtime, and the same export in ONNX
Runtime, which computes it in fp32 with kernels and sums of its own. The first two have to agree to the bit: then every
low kernel is the fp32 kernel with one rounding. The third differs where two fp32 sums fall on two sides of a rounding,
one unit in the last place each; what becomes of these has to stay below what the lowering itself costs, or below one
rounding of the format at the scale of the output.

    tests/judge/rounding.py --corpus DIR --ampc target/release/ampc [--policy safe] [--table]
"""

from __future__ import annotations

import sys
import tempfile
from argparse import ArgumentParser
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

import ampc
import feeds
import measure
import outputs

ROUNDOFF = {"fp16": 2.0**-11, "bf16": 2.0**-8}


def ours(args: Any, model: Path, folder: Path, names: list[str]) -> dict[str, np.ndarray] | str:
    out = folder / "out.npz"
    out.unlink(missing_ok=True)
    run = measure.run([args.ampc, "run", str(model), "--inputs", str(folder / "in.npz"), "--outputs", str(out), "--quiet"], args.timeout)
    if run.code != 0:
        return ampc.problem(run)
    return {name: outputs.load(out, name) for name in names}


def judge(args: Any, source: Path, form: str) -> dict[str, Any] | None:
    """Errors as shares of the largest output, and what is wrong."""
    stored = feeds.stored_path(source)
    model = onnx.load(source, load_external_data=False)
    inputs, names = outputs.names_of(model)
    given = feeds.stored(str(stored), "in_", inputs) if stored else None
    if given is None:
        return None
    row: dict[str, Any] = {"model": str(source.relative_to(args.corpus)), "format": form, "wrong": ""}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        outputs.save(folder / "in.npz", given)
        low, emulated = folder / "low.onnx", folder / "emulated.onnx"
        for path, more in ((low, ()), (emulated, ("--emit", "emulated"))):
            run = ampc.rewrite(args.ampc, source, path, "--to", form, "--policy", args.policy, "--quiet", *more, timeout=args.timeout)
            if run.code != 0:
                return {**row, "wrong": ampc.problem(run)}
        runs = [ours(args, path, folder, names) for path in (low, emulated, source)]
        for found in runs:
            if isinstance(found, str):
                return {**row, "wrong": found}
        native, mine, full = runs
        options = ort.SessionOptions()
        options.log_severity_level = 4
        session = ort.InferenceSession(str(emulated), options, providers=["CPUExecutionProvider"])
        judged = dict(zip(names, session.run(names, given)))
    row["same"] = all(native[n].tobytes() == mine[n].tobytes() for n in names)
    row["other"] = max(outputs.error(native[n], judged[n]) for n in names)
    row["cost"] = max(outputs.error(judged[n], full[n]) for n in names)
    if not row["same"]:
        worst = max(outputs.error(native[n], mine[n]) for n in names)
        row["wrong"] = f"the lowered model and its emulated export differ by {worst:.1e} of the scale"
    elif not row["other"] <= max(row["cost"], ROUNDOFF[form]):
        row["wrong"] = f"ONNX Runtime is {row['other']:.1e} of the scale away, more than the lowering costs ({row['cost']:.1e})"
    return row


def main() -> int:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    ampc.add_arguments(parser, "small")
    parser.add_argument("--policy", default="safe")
    parser.add_argument("--table", action="store_true", help="print every model")
    args = parser.parse_args()
    ampc.require(parser, args)
    jobs = [(source, form) for source in ampc.models(args.corpus, args.sets, args.filter) for form in ampc.FORMATS]
    with ThreadPoolExecutor(args.workers) as pool:
        rows = [row for row in pool.map(lambda job: judge(args, *job), jobs) if row]
    for row in rows:
        if row["wrong"]:
            print(f"{row['model']} {row['format']}: {row['wrong']}")
        if args.table and "same" in row:
            print(f"{row['model']:48} {row['format']}  same bits {'yes' if row['same'] else 'NO'}  ONNX Runtime {row['other']:.1e}  lowering {row['cost']:.1e}")
    bad = sum(bool(row["wrong"]) for row in rows)
    print(f"rounding: {len(rows)} lowered models, {bad} wrong")
    return 1 if bad or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
