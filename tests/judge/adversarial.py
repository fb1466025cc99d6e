#!/usr/bin/env python3
"""Realistic models on which lowering goes wrong unless the right operators stay fp32, against pins made by hand.

Rows come from two places: `adversarial/index.csv` of the corpus, where figures of hand-made pins are stored, and the
generators of `realistic/` beside this file, whose pins were written with the models; both have inputs of realistic size.
For each row the model is rewritten with the policy `safe`, exported emulated, and run by ONNX Runtime without
optimizations; the error is max|err| / max|wanted|, the largest of all outputs.

- A row with the error of a person's pins: at most 3 times that, or 2e-3 in fp16 and 1.5e-2 in bf16 if that is more.
- A row with a person's casts: at most as many are inserted.
- A row without the error of pins has to be no worse than `error_today` says.

    tests/judge/adversarial.py --corpus DIR --ampc target/release/ampc [--set NAME] [--filter GLOB] [--generated] [--table]
        [--calibrate] [--torch]

`--set adversarial2` has the models of that folder of the corpus. `--calibrate` rewrites each model with `--calibrate` and
its own inputs, but not for the error of the pins; then outputs that are finite in fp32 have to be finite. `--torch` adds the error of PyTorch's
autocast, than which `safe` must not be more than 1.1 times worse beyond the floor. Its rewrite is that with the preset `torch`
and every product low that the preset lists, also where a cast costs more than the product gains. Both round a few numbers at
random, so their maxima differ by chance. Where the inputs of the row are beyond the bound, the means of both errors over
`DRAWS` draws decide: the inputs, and all their floats times 1 + 0.02 z with normal z.

`--generated` judges the generators, with the pins given to `--pin` for the error to compare with; it needs no corpus.
`realistic/beyond.tsv` lists the rows beyond the bound, with reasons; of the generated rows, these are at most 5 %. Sums of other processors round
elsewhere, so a generated row that is not listed fails from 1.5 times its bound on, and one that is within it again is only named.
"""

from __future__ import annotations

import csv
import fnmatch
import json
import math
import os
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

FACTOR = 3.0
FLOOR = {"fp16": 2e-3, "bf16": 1.5e-2}
DRAWS = 12
# Rows that are worse than autocast, with the reason. Each has to be.
WORSE_THAN_AUTOCAST = {
    ("hot_bert_base.dynamo", "fp16"): "a residual behind LayerNormalization, fp32 in autocast, costs 3 casts a block",
}
OPSET = {"fp16": (), "bf16": ("--opset", "auto")}


def run(path: Path, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of a model in ONNX Runtime, as its nodes are."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    taken = {value.name for value in session.get_inputs()}
    found = session.run(names, {name: value for name, value in given.items() if name in taken})
    return dict(zip(names, found))


def run_anyhow(args: Any, path: Path, given: dict[str, np.ndarray], folder: Path) -> dict[str, np.ndarray]:
    """The same; by the CPU runtime where ONNX Runtime has no kernel for an operator at the opset of the model."""
    try:
        return run(path, given)
    except Exception as problem:
        if "NOT_IMPLEMENTED" not in str(problem):
            raise
    feeds, out = folder / "in.npz", folder / "out.npz"
    np.savez(feeds, **given)
    out.unlink(missing_ok=True)
    done = ampc.execute(args.ampc, path, "--inputs", str(feeds), "--outputs", str(out), "--quiet", timeout=args.timeout)
    if done.code != 0:
        raise RuntimeError(ampc.problem(done))
    with np.load(out) as arrays:
        return {name: arrays[name] for name in arrays.files}


def error(wanted: dict[str, np.ndarray], got: dict[str, np.ndarray]) -> float:
    """The largest of the errors of all float outputs, as a share of the largest element that is wanted."""
    worst = 0.0
    for name, full in wanted.items():
        if full.dtype.kind != "f" or not full.size:
            continue
        full, low = full.astype(np.float64), np.asarray(got[name]).astype(np.float64)
        same = (full == low) | (np.isnan(full) & np.isnan(low))
        if same.all():
            continue
        off = np.abs(np.where(same, 0.0, low - full)).max()
        scale = np.abs(full[np.isfinite(full)]).max(initial=0.0)
        worst = max(worst, math.inf if not np.isfinite(off) or scale == 0.0 else float(off / scale))
    return worst


def rewritten(
    args: Any, source: Path, form: str, folder: Path, pins: list[str], others: tuple[str, ...] = ()
) -> tuple[Path, dict[str, Any]] | str:
    """The emulated export of a model and the report of the rewrite, or what went wrong."""
    out, report = folder / "emulated.onnx", folder / "report.json"
    more = [word for pin in pins for word in ("--pin", f"{pin}=fp32")]
    options = ("--to", form, *OPSET[form], "--emit", "emulated", "--report", str(report), "--force", "--quiet", *more, *others)
    done = ampc.rewrite(args.ampc, source, out, *options, timeout=args.timeout)
    if done.code != 0:
        return ampc.problem(done)
    return out, json.loads(report.read_text())


def autocast(args: Any, source: Path, form: str, folder: Path) -> tuple[Path, dict[str, Any]] | str:
    """The emulated export of what PyTorch's autocast computes, or what went wrong: the preset leaves no listed product fp32."""
    preset = ("--policy", "torch")
    found = rewritten(args, source, form, folder, [], preset)
    if isinstance(found, str):
        return found
    full = [
        node["path"] for node in found[1]["nodes"]
        if any(var["class"] == "allow" and var["precision"] == "fp32" for var in node["vars"])
    ]
    low = [word for path in full for word in ("--pin", f"{path}={form}")]
    return rewritten(args, source, form, folder, [], (*preset, *low)) if low else found


def drawn(given: dict[str, np.ndarray], draw: int) -> dict[str, np.ndarray]:
    """Other inputs of the same kind; the draw 0 is the inputs themselves."""
    random = np.random.default_rng(draw)
    return {
        name: array if draw == 0 or array.dtype.kind != "f"
        else (array * (1 + 0.02 * random.standard_normal(array.shape))).astype(array.dtype)
        for name, array in given.items()
    }


def beyond_autocast(args: Any, row: dict[str, Any], ours: Path, folder: Path) -> str:
    """The fault of a row that is beyond the error of autocast; empty if there is none. Adds that error to the row."""
    other = folder / "autocast"
    other.mkdir()
    form, source, given = row["format"], row["source"], row["given"]
    found = autocast(args, source, form, other)
    if isinstance(found, str):
        return found
    errors: dict[Path, list[float]] = {ours: [], found[0]: []}
    for draw in range(DRAWS):
        inputs = drawn(given, draw)
        wanted = run(source, inputs)
        for path, of_path in errors.items():
            of_path.append(error(wanted, run_anyhow(args, path, inputs, folder)))
        if draw == 0:
            row["torch"] = errors[found[0]][0]
        mine, theirs = (float(np.mean(of_path)) for of_path in errors.values())
        if draw == 0 and mine <= max(1.1 * theirs, FLOOR[form]) and (row["model"], form) not in WORSE_THAN_AUTOCAST:
            return ""
    is_worse, listed = mine > max(1.1 * theirs, FLOOR[form]), (row["model"], form) in WORSE_THAN_AUTOCAST
    fault = f"error {mine:.1e}, of autocast {theirs:.1e} in the mean"
    return "" if is_worse == listed else fault if is_worse else f"{fault}: it may leave WORSE_THAN_AUTOCAST"


def judge(args: Any, row: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The row with its error, its casts and what is wrong."""
    source, given, form = row["source"], row["given"], row["format"]
    wanted = run(source, given)
    calibrated: tuple[str, ...] = ()
    if args.calibrate:
        data = folder / "data.npz"
        np.savez(data, **given)
        calibrated = ("--calibrate", str(data))
    found = rewritten(args, source, form, folder, [], calibrated)
    if isinstance(found, str):
        return {**row, "wrong": found}
    emulated, report = found
    row["error"], row["casts"] = error(wanted, run_anyhow(args, emulated, given, folder)), report["casts"]["inserted"]
    row["low"] = report["summary"]["allow_low"]
    if row.get("pins") is not None:
        found = rewritten(args, source, form, folder, row["pins"])
        if isinstance(found, str):
            return {**row, "wrong": found}
        row["alt"] = error(wanted, run_anyhow(args, found[0], given, folder))
        row["low_alt"] = found[1]["summary"]["allow_low"]
        row["casts_pinned"] = found[1]["casts"]["inserted"]
    wrong = []
    if args.calibrate and not math.isfinite(row["error"]):
        wrong.append("an output is not finite, or all of it should be 0")
    if args.torch:
        (folder / "safe").mkdir()
        ours = rewritten(args, source, form, folder / "safe", [], calibrated)
        fault = ours if isinstance(ours, str) else beyond_autocast(args, row, ours[0], folder)
        wrong += [fault] if fault else []
    bound = max(FACTOR * row["alt"], FLOOR[form]) if row.get("alt") is not None else row.get("before", math.inf)
    if math.isnan(bound):
        bound = math.inf
    row["bound"] = bound
    # A figure of the list has two digits.
    if not row["error"] <= bound * (1.0 if row.get("alt") is not None else 1.05):
        wrong.append(f"error {row['error']:.1e}, at most {bound:.1e}")
    if row.get("casts_alt") is not None and row["casts"] > row["casts_alt"]:
        wrong.append(f"{row['casts']} casts, at most {row['casts_alt']}")
    return {**row, "wrong": "; ".join(wrong)}


def number(text: str) -> float | None:
    return float(text) if text else None


def unlisted_rows(args: Any) -> list[dict[str, Any]]:
    """The rows of a folder of models with stored inputs and without a list."""
    rows = []
    for source in sorted((args.corpus / args.set).rglob("*.onnx")):
        if not fnmatch.fnmatchcase(source.stem, args.filter):
            continue
        path = feeds.stored_path(source)
        names = [value.name for value in onnx.load(source, load_external_data=False).graph.input]
        given = None if path is None else feeds.stored(str(path), "in_", names)
        if given is None:
            continue
        try:
            run(source, given)
        except Exception as problem:
            if "NOT_IMPLEMENTED" in str(problem):
                continue
            raise
        rows += [{"model": source.stem, "format": form, "source": source, "given": given} for form in FLOOR]
    return rows


def stored_rows(args: Any) -> list[dict[str, Any]]:
    """The rows of the corpus."""
    folder = args.corpus / args.set
    index = folder / "index.csv"
    if not index.exists() or "casts_alt" not in index.read_text().partition("\n")[0]:
        return unlisted_rows(args)
    rows = []
    with index.open() as file:
        for line in csv.DictReader(file):
            name = line["model"]
            # Of the emulated export alone: what it must be is no error.
            if not fnmatch.fnmatchcase(name, args.filter) or name == "scatter_add_emul":
                continue
            with np.load(folder / f"{name}.npz") as arrays:
                given = {key: arrays[key] for key in arrays.files}
            casts = number(line["casts_alt"])
            rows.append({
                "model": name, "format": line["format"], "source": folder / f"{name}.onnx", "given": given,
                "alt": number(line["alt"]), "before": number(line["error_today"]) or math.inf,
                "casts_alt": None if casts is None else int(casts), "casts_before": line["casts_today"],
            })
    return rows


def generated_rows(args: Any, folder: Path) -> list[dict[str, Any]]:
    """The rows of the generators, whose models are written into a folder."""
    from realistic import MODELS, build

    rows = []
    for name, listed in sorted(MODELS.items()):
        if not fnmatch.fnmatchcase(name, args.filter):
            continue
        model, given = build(name)
        source = folder / f"{name}.onnx"
        onnx.save(model, source)
        for form, pins in (("fp16", listed.pins), ("bf16", listed.pins_bf16)):
            rows.append({"model": name, "format": form, "source": source, "given": given, "pins": pins})
    return rows


def known_beyond() -> set[tuple[str, str]]:
    """The rows that are known to be beyond their bound."""
    lines = (Path(__file__).parent / "realistic" / "beyond.tsv").read_text().splitlines()
    return {tuple(line.split("\t")[:2]) for line in lines if line and not line.startswith("#")}


def main() -> int:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--corpus", type=Path, default=os.environ.get("AMPC_CORPUS"), help="[AMPC_CORPUS]")
    parser.add_argument("--ampc", default=os.environ.get("AMPC_BIN"), help="the binary [AMPC_BIN]")
    parser.add_argument("--filter", default="*", help="glob over names of models")
    parser.add_argument("--set", default="adversarial", help="the folder of the corpus [adversarial]")
    parser.add_argument("--calibrate", action="store_true", help="rewrite each model with its inputs")
    parser.add_argument("--torch", action="store_true", help="compare with PyTorch's autocast")
    parser.add_argument("--generated", action="store_true", help="judge the generators of realistic/")
    parser.add_argument("--timeout", type=float, default=60, help="seconds per step [60]")
    parser.add_argument("--workers", type=int, default=2, help="processes [2]")
    parser.add_argument("--table", action="store_true", help="print every row")
    args = parser.parse_args()
    args.ampc = str(Path(args.ampc).resolve())
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        rows = generated_rows(args, scratch) if args.generated else stored_rows(args)

        def judged(numbered: tuple[int, dict[str, Any]]) -> dict[str, Any]:
            folder = scratch / str(numbered[0])
            folder.mkdir()
            try:
                return judge(args, numbered[1], folder)
            except Exception as problem:  # noqa: BLE001  what a library raises is a verdict about the row
                return {**numbered[1], "wrong": f"{type(problem).__name__}: {problem}"[:300]}

        with ThreadPoolExecutor(args.workers) as pool:
            done = list(pool.map(judged, enumerate(rows)))
    for row in done:
        if args.table or row["wrong"]:
            figures = " ".join(
                f"{key}={row[key]:.1e}" if isinstance(row[key], float) else f"{key}={row[key]}"
                for key in ("error", "torch", "alt", "before", "casts", "casts_alt", "casts_pinned", "low", "low_alt")
                if row.get(key) is not None
            )
            print(f"{row['model']:32} {row['format']}  {figures}  {row['wrong']}")
    beyond = [(row["model"], row["format"]) for row in done if row["wrong"]]
    judged_rows = {(row["model"], row["format"]) for row in done}
    listed = known_beyond() & judged_rows
    for name, form in sorted(listed - set(beyond)):
        print(f"{name} {form} is within its bound: it may leave realistic/beyond.tsv")
    print(f"{len(done)} rows, {len(beyond)} beyond their bound, of which {len(listed & set(beyond))} are listed")
    if not args.generated:
        return 1 if set(beyond) - listed else 0
    far = [row for row in done if row["wrong"] and not row.get("error", math.inf) <= 1.5 * row.get("bound", 0.0)]
    unlisted = sorted({(row["model"], row["format"]) for row in far} - listed)
    for name, form in unlisted:
        print(f"{name} {form} is beyond its bound and not listed")
    return 1 if unlisted or len(beyond) > len(done) * 0.05 else 0


if __name__ == "__main__":
    sys.exit(main())
