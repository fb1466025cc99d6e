#!/usr/bin/env python3
"""How long a training step takes in the CPU runtime, next to PyTorch's eager mode on the CPU, and how much memory.

Both train the same model from the same weights with the same batch, AdamW and the same number of threads, in turns: in
each round PyTorch takes some steps (`peer_torch.py`), then ampc does (`training.rs`, an `ampc::execute::Trainer`). A time
is the least median of the rounds. Peak memory is that of the process above what it had before there was a model, with
weights, states, activations and, for ampc, the making of the step. `apart` is the largest difference between the losses
of the two, as a share of the first. In fp16 and bf16 PyTorch runs under torch.autocast("cpu"), in fp16 with a GradScaler.

    AMPC_TORCH=PYTHON training.py --bench target/release/deps/training-HASH [--precisions fp32 fp16 bf16] [--only unet]

AMPC_TORCH is an interpreter with torch, onnx and onnxscript; `cargo bench --bench training --no-run` names the program.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "judge"))

from tables import markdown  # noqa: E402

LOSSES = {
    "resnet18": "cross-entropy",
    "unet": "bce-with-logits",
    "bert-base, 4 layers": "cross-entropy",
    "gpt2, 2 layers": "cross-entropy",
    "nanogpt": "cross-entropy",
}


def answer(command: list[str]) -> str:
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode:
        sys.exit(f"{' '.join(command)}: exit {ran.returncode}\n{ran.stderr}")
    return ran.stdout


def torch(*arguments: str) -> str:
    return answer([os.environ["AMPC_TORCH"], str(HERE / "peer_torch.py"), *arguments])


def measure(args: Namespace, folder: Path, name: str, precision: str, threads: int) -> dict[str, Any]:
    ours, theirs = [], []
    numbers = [str(threads), str(args.steps)]
    files = [str(folder / "model.onnx"), LOSSES[name], precision, str(folder / "batch.npz")]
    for _ in range(args.rounds):
        theirs.append(json.loads(torch("train", name, precision, *numbers)))
        ours.append(json.loads(answer([str(args.bench), *files, *numbers])))
    own, other = (min(runs, key=lambda run: run["seconds"]) for runs in (ours, theirs))
    apart = max(abs(a - b) for a, b in zip(own["losses"], other["losses"])) / abs(other["losses"][0])
    return {
        "model": name,
        "precision": precision,
        "threads": threads,
        "ampc_ms": f"{own['seconds'] * 1e3:.0f}",
        "torch_ms": f"{other['seconds'] * 1e3:.0f}",
        "ratio": f"{own['seconds'] / other['seconds']:.2f}",
        "ampc_MB": f"{own['peak'] / 1e6:.0f}",
        "predicted_MB": f"{own['predicted'] / 1e6:.0f}",
        "torch_MB": f"{other['peak'] / 1e6:.0f}",
        "apart": f"{apart:.0e}",
    }


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bench", type=Path, required=True)
    parser.add_argument("--only", default="", help="models whose names have this in them")
    parser.add_argument("--precisions", nargs="+", default=["fp32", "fp16", "bf16"])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    names = [name for name in LOSSES if args.only in name]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            torch("export", name, folder)
            for precision in args.precisions:
                for threads in args.threads:
                    rows.append(measure(args, Path(folder), name, precision, threads))
                    print(*rows[-1].values(), file=sys.stderr, flush=True)
    print(f"{args.rounds} rounds of {args.steps} steps\n")
    heads = ["model", "precision", "threads", "ampc ms", "torch ms", "ratio"]
    heads += ["ampc MB", "predicted MB", "torch MB", "apart"]
    print(markdown(heads, rows))


if __name__ == "__main__":
    main()
