#!/usr/bin/env python3
"""The memory that `train-step` estimates next to what a training run allocates: states, activations, gradients and constants.

Steps with AdamW, in fp32 and fp16, of the models of a corpus folder `train/` and of those that full_models.py has made. The
dims are given where a model leaves them open (`--dim`), and those of the data. A run takes two steps in one thread and says
what it has allocated for states, activations and gradients; the constants are in both columns. Exits 1 if an estimate is
more than 20 % off, or copies (`--recompute cheap`) raise what is allocated.

    step_estimates.py --train CORPUS/train [--full FOLDER] [--ampc BIN] [--only unet]
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "judge"))

import numpy as np  # noqa: E402
from step_curves import REFUSED  # noqa: E402
from tables import markdown  # noqa: E402

FORMATS = {"fp32": ["--fp32"], "fp16": []}
UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
COLUMNS = ["model", "format", "dims", "estimate", "allocated", "ratio", "without copies"]
MOST = 0.2


def said(command: list[object]) -> str:
    ran = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if ran.returncode:
        sys.exit(f"{' '.join(map(str, command))}: exit {ran.returncode}\n{ran.stderr}")
    return ran.stdout + ran.stderr


def size(pattern: str, text: str) -> float:
    """Bytes that a line says."""
    match = re.search(pattern + r"([\d.]+) (B|kB|MB|GB)\b", text, re.MULTILINE)
    return float(match[1]) * UNITS[match[2]] if match else sys.exit(f"no `{pattern}` in\n{text}")


def shown(value: float) -> str:
    unit = next(unit for unit in ("GB", "MB", "kB", "B") if value >= UNITS[unit] or unit == "B")
    return f"{value / UNITS[unit]:.3g} {unit}"


def measure(args: Namespace, model: Path, data: Path, loss: str, dims: list[str], form: str, how: str, folder: Path) -> tuple[float, float]:
    """The estimated and the allocated bytes."""
    step, state = folder / "step.onnx", folder / "state.safetensors"
    make = [args.ampc, "train-step", model, "-o", step, "--state", state, "--loss", loss, "--freeze-unused", "--force"]
    text = said([*make, *FORMATS[form], "--recompute", how, *(part for dim in dims for part in ("--dim", dim))])
    total, constants = size(r"^peak +", text), size(r"states, ", text)
    batch = ["--batch", dims[0].partition("=")[2]] if dims else []
    train = [args.ampc, "train", step, "--state", state, "--data", data, "--steps", 2, *batch, "--no-shuffle"]
    ran = said([*train, "--lr", "1e-4", "--threads", 1, "--force"])
    return total, size(r"^memory +", ran) + constants


def models(args: Namespace) -> list[tuple[str, Path, Path, str, list[str]]]:
    """Name, model, data, loss and dims."""
    found = []
    for model in sorted(args.train.glob("*/*.train.onnx")):
        if model.parent.name not in REFUSED:
            found.append((model.parent.name, model, model.parent / "oracle.npz", "output:loss", []))
    for model in sorted(args.full.glob("*.onnx")) if args.full else []:
        with np.load(model.with_suffix(".npz")) as stored:
            first = stored[[name for name in stored.files if name != "target"][0]]
        dims = [f"batch={first.shape[0]}", *([f"seq={first.shape[1]}"] if first.ndim == 2 else [])]
        loss = "bce-with-logits" if model.stem == "unet" else "cross-entropy"
        found.append((f"{model.stem}, full size", model, model.with_suffix(".npz"), loss, dims))
    return [row for row in found if args.only in row[0]]


def main() -> int:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", type=Path, required=True, help="the folder train/ of a corpus")
    parser.add_argument("--full", type=Path, help="the folder that full_models.py has written")
    parser.add_argument("--ampc", default="target/release/ampc")
    parser.add_argument("--only", default="", help="models whose names have this in them")
    args = parser.parse_args()
    rows, wrong = [], 0
    for name, model, stored, loss, dims in models(args):
        for form in FORMATS:
            with tempfile.TemporaryDirectory() as work:
                folder = Path(work)
                with np.load(stored) as arrays:
                    given = {n.removeprefix("in_"): arrays[n] for n in arrays.files if n.startswith("in_") or dims}
                np.savez(folder / "data.npz", **given)
                job = (args, model, folder / "data.npz", loss, dims, form)
                (estimate, allocated), (_, kept) = (measure(*job, how, folder) for how in ("cheap", "none"))
            wrong += abs(estimate / allocated - 1) > MOST or allocated > kept * 1.002
            cells = [name, form, ", ".join(dims), shown(estimate), shown(allocated), f"{estimate / allocated:.3f}", shown(kept)]
            rows.append(dict(zip([column.replace(" ", "_") for column in COLUMNS], cells)))
            print(*cells, sep="  ", file=sys.stderr, flush=True)
    print(markdown(COLUMNS, rows))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
