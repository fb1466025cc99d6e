#!/usr/bin/env python3
"""Realistic models on which lowering goes wrong unless the right operators stay fp32, against pins made by hand.

Rows come from two places: `adversarial/index.csv` of the corpus, where figures of hand-made pins are stored, and the
generators of `realistic/` beside this file, whose pins were written with the models; both have inputs of realistic
size. For each row the model is rewritten with the policy `safe`, exported emulated, and run by ONNX Runtime without
optimizations; the error is max|err| / max|wanted|, the largest of all outputs.

- A row with the error of a person's pins: at most 3 times that, or 2e-3 in fp16 and 1.5e-2 in bf16 if that is more.
- A row with a person's casts: at most as many are inserted.
- A row without the error of pins has to be no worse than `error_today` says.

    tests/judge/adversarial.py --corpus DIR --ampc target/release/ampc [--set NAME] [--filter GLOB] [--generated]
        [--calibrate] [--torch] [--table]

`--set adversarial2` has the models of that folder of the corpus; a folder without such a list is judged with `--torch`
only. `--calibrate` rewrites each model with `--calibrate` and its own inputs, but not for the error of the pins; then
outputs that are finite in fp32 have to be finite.

`--torch` adds the error of PyTorch's autocast, than which `safe` must not be more than 1.1 times worse beyond the
floor. Its rewrite is that with the preset `torch` and every product low that the preset lists, also where a cast costs
more than the product gains. Both round a few numbers at random, so their maxima differ by chance. Where the inputs of
the row are beyond the bound, the means of both errors over `DRAWS` draws decide: the inputs, and all their floats times
1 + 0.02 z with normal z.

`--generated` judges the generators, with the pins given to `--pin` for the error to compare with; it needs no corpus.
`realistic/beyond.tsv` lists the rows beyond the bound, with reasons; of the generated rows, these are at most 5 %. The
list excuses a finite error, or any error of a row in `NOT_FINITE`, but no row whose judgement ends with an exception.
Sums of other processors round elsewhere, so a generated row that is not listed fails from 1.5 times its bound on, and a
listed row that is within its bound again is only named.
"""

from __future__ import annotations

import fnmatch
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

import ampc
import feeds
import rows
from rows import FLOOR, Row

DRAWS = 12
# Rows that are worse than autocast, with the reason. Each has to be.
WORSE_THAN_AUTOCAST = {
    ("hot_bert_base.dynamo", "fp16"): "a residual behind LayerNormalization, fp32 in autocast, costs 3 casts a block",
}
# Rows of realistic/beyond.tsv whose values leave the range of fp16, so that their error may be infinite.
NOT_FINITE = {
    ("dcn_cross_layers_of_raw_counts", "fp16"),
    ("swiglu_massive_activations_down_proj", "fp16"),
    ("tversky_overlaps_by_matmul", "fp16"),
}
FIGURES = ("error", "torch", "alt", "before", "casts", "casts_alt", "casts_pinned", "low", "low_alt")
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
    data, out = folder / "in.npz", folder / "out.npz"
    np.savez(data, **given)
    out.unlink(missing_ok=True)
    done = ampc.execute(args.ampc, path, "--inputs", str(data), "--outputs", str(out), "--quiet", timeout=args.timeout)
    if done.code != 0:
        raise RuntimeError(ampc.problem(done))
    return rows.arrays(out)


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
) -> tuple[Path, dict[str, Any]]:
    """The emulated export of a model, in a folder that is made if there is none, and the report of the rewrite."""
    folder.mkdir(exist_ok=True)
    out, report = folder / "emulated.onnx", folder / "report.json"
    pinned = [word for pin in pins for word in ("--pin", f"{pin}=fp32")]
    options = ("--to", form, *OPSET[form], "--emit", "emulated", "--report", str(report), "--force", "--quiet")
    done = ampc.rewrite(args.ampc, source, out, *options, *pinned, *others, timeout=args.timeout)
    if done.code != 0:
        raise rows.Refused(ampc.problem(done))
    return out, json.loads(report.read_text())


def autocast(args: Any, source: Path, form: str, folder: Path) -> Path:
    """The emulated export with the formats of PyTorch's autocast: the preset `torch` with every listed product low."""
    preset = ("--policy", "torch")
    emulated, report = rewritten(args, source, form, folder, [], preset)
    full = [
        node["path"] for node in report["nodes"]
        if any(var["class"] == "allow" and var["precision"] == "fp32" for var in node["vars"])
    ]
    low = [word for path in full for word in ("--pin", f"{path}={form}")]
    return rewritten(args, source, form, folder, [], (*preset, *low))[0] if low else emulated


def drawn(given: dict[str, np.ndarray], draw: int) -> dict[str, np.ndarray]:
    """Other inputs of the same kind; the draw 0 is the inputs themselves."""
    random = np.random.default_rng(draw)
    return {
        name: array if draw == 0 or array.dtype.kind != "f"
        else (array * (1 + 0.02 * random.standard_normal(array.shape))).astype(array.dtype)
        for name, array in given.items()
    }


def beyond_autocast(args: Any, row: Row, ours: Path, folder: Path) -> str:
    """The fault of a row that is beyond the error of autocast; empty if there is none. Adds that error to the row."""
    form, source, given = row["format"], row["source"], row["given"]
    other = autocast(args, source, form, folder / "autocast")
    errors: dict[Path, list[float]] = {ours: [], other: []}
    for draw in range(DRAWS):
        inputs = drawn(given, draw)
        wanted = run(source, inputs)
        for path, of_path in errors.items():
            of_path.append(error(wanted, run_anyhow(args, path, inputs, folder)))
        if draw == 0:
            row["torch"] = errors[other][0]
        mine, theirs = (float(np.mean(of_path)) for of_path in errors.values())
        if draw == 0 and mine <= max(1.1 * theirs, FLOOR[form]) and (row["model"], form) not in WORSE_THAN_AUTOCAST:
            return ""
    is_worse, listed = mine > max(1.1 * theirs, FLOOR[form]), (row["model"], form) in WORSE_THAN_AUTOCAST
    fault = f"error {mine:.1e}, of autocast {theirs:.1e} in the mean"
    return "" if is_worse == listed else fault if is_worse else f"{fault}: it may leave WORSE_THAN_AUTOCAST"


def judge(args: Any, row: Row, folder: Path) -> Row:
    """The row with its error, its casts and its faults."""
    source, given, form = row["source"], row["given"], row["format"]
    wanted = run(source, given)
    calibrated: tuple[str, ...] = ()
    if args.calibrate:
        data = folder / "data.npz"
        np.savez(data, **given)
        calibrated = ("--calibrate", str(data))
    emulated, report = rewritten(args, source, form, folder, [], calibrated)
    row["error"], row["casts"] = error(wanted, run_anyhow(args, emulated, given, folder)), report["casts"]["inserted"]
    row["low"] = report["summary"]["allow_low"]
    if row.get("pins") is not None:
        pinned, report = rewritten(args, source, form, folder / "pins", row["pins"])
        row["alt"] = error(wanted, run_anyhow(args, pinned, given, folder))
        row["low_alt"] = report["summary"]["allow_low"]
        row["casts_pinned"] = report["casts"]["inserted"]
    has_pins = row.get("alt") is not None
    row["bound"] = rows.bound(row["alt"], form) if has_pins else row.get("before", math.inf)
    if math.isnan(row["bound"]):
        row["bound"] = math.inf
    wrong = []
    if args.calibrate and not math.isfinite(row["error"]):
        wrong.append("an output is not finite, or all of it should be 0")
    if args.torch and (fault := beyond_autocast(args, row, emulated, folder)):
        wrong.append(fault)
    # A figure of the list has two digits.
    if not row["error"] <= row["bound"] * (1.0 if has_pins else 1.05):
        wrong.append(f"error {row['error']:.1e}, at most {row['bound']:.1e}")
    if row.get("casts_alt") is not None and row["casts"] > row["casts_alt"]:
        wrong.append(f"{row['casts']} casts, at most {row['casts_alt']}")
    return {**row, "wrong": "; ".join(wrong)}


def unlisted_rows(args: Any) -> list[Row]:
    """The rows of a folder of models with stored inputs and without a list."""
    found: list[Row] = []
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
        found += [{"model": source.stem, "format": form, "source": source, "given": given} for form in FLOOR]
    return found


def stored_rows(args: Any) -> list[Row] | None:
    """The rows of the list of a folder of the corpus, with inputs; None if the folder has no list."""
    listed = rows.index(args.corpus / args.set, args.filter)
    if listed is None:
        return None
    # The bound of this row is that of the emulated export, which is no error.
    judged = [row for row in listed if row["model"] != "scatter_add_emul"]
    return [{**row, "given": rows.arrays(row["source"].with_suffix(".npz"))} for row in judged]


def generated_rows(args: Any, folder: Path) -> list[Row]:
    """The rows of the generators, whose models are written into a folder."""
    from realistic import MODELS, build

    found: list[Row] = []
    for name, listed in sorted(MODELS.items()):
        if not fnmatch.fnmatchcase(name, args.filter):
            continue
        model, given = build(name)
        source = folder / f"{name}.onnx"
        onnx.save(model, source)
        for form, pins in (("fp16", listed.pins), ("bf16", listed.pins_bf16)):
            found.append({"model": name, "format": form, "source": source, "given": given, "pins": pins})
    return found


def rows_of(args: Any, folder: Path) -> list[Row]:
    """The rows to judge. Those of a list have no pins, since the list has the error of the pins."""
    if args.generated:
        return generated_rows(args, folder)
    stored = stored_rows(args)
    if stored is not None:
        return [{**row, "pins": None} for row in stored]
    return unlisted_rows(args)


def known_beyond() -> set[tuple[str, str]]:
    """The rows that are known to be beyond their bound."""
    lines = (Path(__file__).parent / "realistic" / "beyond.tsv").read_text().splitlines()
    return {tuple(line.split("\t")[:2]) for line in lines if line and not line.startswith("#")}


def key(row: Row) -> tuple[str, str]:
    """The model and the format of a row."""
    return row["model"], row["format"]


def is_excusable(row: Row) -> bool:
    """True if the list of known rows may excuse the fault of a row."""
    return not row.get("raised") and (math.isfinite(row["error"]) or key(row) in NOT_FINITE)


def is_near(row: Row) -> bool:
    """True if the error of a row is so near to its bound that sums of another processor may be within the bound."""
    return not row.get("raised") and math.isfinite(row["error"]) and row["error"] <= 1.5 * row["bound"]


def main() -> int:
    parser = rows.parser(__doc__, timeout=60, default_set="adversarial")
    parser.add_argument("--calibrate", action="store_true", help="rewrite each model with its inputs")
    parser.add_argument("--torch", action="store_true", help="compare with PyTorch's autocast")
    args = rows.arguments(parser)
    if not args.generated and not args.torch and rows.index(args.corpus / args.set) is None:
        parser.error(f"{args.set} has no index.csv with bounds: give --torch to compare with PyTorch's autocast")
    done = rows.judge_all(args, rows_of, judge)
    for row in done:
        if args.table or row["wrong"]:
            print(f"{row['model']:32} {row['format']}  {rows.figures(row, FIGURES)}  {row['wrong']}")
    wrong = [row for row in done if row["wrong"]]
    beyond = {key(row) for row in wrong}
    listed = known_beyond() & {key(row) for row in done}
    excused = {key(row) for row in wrong if is_excusable(row)} & listed
    for name, form in sorted(listed - beyond):
        print(f"{name} {form} is within its bound: it may leave realistic/beyond.tsv")
    print(f"{len(done)} rows, {len(wrong)} beyond their bound, of which {len(beyond & listed)} are listed")
    faults = [row for row in wrong if key(row) not in excused and not (args.generated and is_near(row))]
    for name, form in sorted({key(row) for row in faults}):
        reason = "the list excuses no such fault" if (name, form) in listed else "not listed"
        print(f"{name} {form} is beyond its bound: {reason}")
    return 1 if faults or args.generated and len(wrong) > len(done) * 0.05 else 0


if __name__ == "__main__":
    sys.exit(main())
