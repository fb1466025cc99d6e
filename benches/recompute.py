#!/usr/bin/env python3
"""What recomputation saves: the memory of training steps, and their time, with it and without.

Steps with AdamW of the models of a corpus folder `train/`, in fp32 and in fp16, trained with for some steps in one
thread. `predicted` is what `train-step` prints, activations and gradients beside weights, states and constants;
`allocated` is what `ampc train` says that it has taken for all of them; `ms` is the least time of a step. Bytes and
times of `none` and `cheap` are those of `train-step --recompute none` and `cheap`.

    recompute.py --train FOLDER [--ampc BIN] [--only unet] [--steps N]
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path

from stored_inputs import copy_inputs

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "judge"))

from step_curves import REFUSED  # noqa: E402
from tables import markdown  # noqa: E402

FORMATS = {"fp32": ["--fp32"], "fp16": []}
WHAT = [f"{what}, {how}" for what in ("predicted", "allocated", "ms") for how in ("none", "cheap")]
COLUMNS = ["model", "format", "copies", *WHAT]
KEYS = [column.replace(" ", "_") for column in COLUMNS]


def said(command: list[str]) -> str:
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode:
        sys.exit(f"{' '.join(command)}: exit {ran.returncode}\n{ran.stderr}")
    return ran.stdout + ran.stderr


def found(pattern: str, text: str) -> str:
    match = re.search(pattern, text, re.MULTILINE)
    return match[1] if match else sys.exit(f"no `{pattern}` in\n{text}")


def measure(args: Namespace, model: Path, form: str, recompute: str, folder: Path) -> tuple[str, str, str, float]:
    """The copies, the predicted and the allocated bytes, and milliseconds of a step."""
    step, state, log = (folder / f"step.{end}" for end in ("onnx", "safetensors", "jsonl"))
    make = [args.ampc, "train-step", model, "-o", step, "--state", state, "--loss", "output:loss", "--freeze-unused"]
    text = said([*map(str, make), *FORMATS[form], "--recompute", recompute, "--force"])
    data = folder / "data.npz"
    copy_inputs(model.parent / "oracle.npz", data)
    train = [args.ampc, "train", step, "--state", state, "--data", data, "--steps", args.steps]
    ran = said([*map(str, train), "--no-shuffle", "--lr", "1e-4", "--log", str(log), "--force", "--threads", "1"])
    seconds = [json.loads(line).get("seconds") for line in log.read_text().splitlines()]
    least = min(taken for taken in seconds if taken is not None)
    copies, peak = found(r"^recomputed +(\d+)", text), found(r"about (.*?) of activations", text)
    return copies, peak, found(r"^memory +(.*?) of state", ran), 1e3 * least


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", type=Path, required=True, help="the folder train/ of a corpus")
    parser.add_argument("--ampc", default="target/release/ampc")
    parser.add_argument("--only", default="", help="models whose names have this in them")
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    rows = []
    for model in sorted(args.train.glob(f"*{args.only}*/*.train.onnx")):
        if model.parent.name in REFUSED:
            continue
        for form in FORMATS:
            with tempfile.TemporaryDirectory() as folder:
                none, cheap = (measure(args, model, form, how, Path(folder)) for how in ("none", "cheap"))
            cells = [model.parent.name, form, cheap[0], none[1], cheap[1], none[2], cheap[2]]
            rows.append(dict(zip(KEYS, [*cells, f"{none[3]:.1f}", f"{cheap[3]:.1f}"])))
            print(*rows[-1].values(), sep="  ", flush=True)
    print(markdown(COLUMNS, rows))


if __name__ == "__main__":
    main()
