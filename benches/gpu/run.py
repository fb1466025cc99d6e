#!/usr/bin/env python3
"""Training and inference on a GPU: ampc beside PyTorch, one after the other on the same device. README.md says how.

    run.py --ampc target/release/ampc [--only MODEL …] [--steps 50] [--dry-run]

`--dry-run` checks everything with tiny models on the CPU. The interpreter needs torch, torchvision, onnx and numpy.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results"
MODELS = ["mlp", "resnet50", "vgg16", "unet", "bert-base", "gpt2-small", "nanogpt", "vit_b_16"]
TORCH = ["torch fp32", "torch fp32, TF32", "torch autocast", "torch.compile autocast"]
AMPC = {"ampc fp32": ("--fp32",), "ampc AMP": ("--to", "fp16")}
HEADING = ["variant", "median", "samples/s", "x torch fp32", "peak", "first, no caches", "first, caches", "loss"]
TIMEOUT = 1800
RATE = 1e-4
# Steps that `ampc train` has begun when it waits for one: the last of a run take no time of their own.
AHEAD = 3


@dataclass
class Measured:
    """Milliseconds, seconds of the first step, bytes of the device, and the last loss."""

    ms: float
    first: float | None = None
    cached: float | None = None
    peak: int | None = None
    loss: float | None = None


class Device:
    """Polls the memory in use on the GPU: the peak above what was in use before."""

    def __init__(self, is_polled: bool) -> None:
        self.is_polled, self.over = is_polled, threading.Event()
        self.before = self.used() if is_polled else 0
        self.most = self.before
        self.thread = threading.Thread(target=self.poll, daemon=True)

    @staticmethod
    def used() -> int:
        command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0]) << 20

    def poll(self) -> None:
        while not self.over.wait(0.05):
            self.most = max(self.most, self.used())

    def __enter__(self) -> Device:
        if self.is_polled:
            self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        if self.is_polled:
            self.thread.join()

    def peak(self) -> int | None:
        return self.most - self.before if self.is_polled else None


def call(*command: str | Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=TIMEOUT, env={**os.environ, **(env or {})})
    if done.returncode:
        raise RuntimeError(f"{Path(command[0]).name}: exit code {done.returncode}: {' '.join(done.stderr.split())[-500:]}")
    return done.stdout


def torch_side(args: Namespace, *rest: str | Path) -> str:
    return call(sys.executable, HERE / "torch_side.py", *rest)


def of_torch(args: Namespace, what: str, name: str, variant: str) -> Measured:
    device = "cpu" if args.dry_run else "cuda"
    with Device(not args.dry_run) as used:
        found = json.loads(torch_side(args, what, args.size, name, variant, str(args.steps), device).splitlines()[-1])
    args.versions["torch"] = found["version"]
    loss = found["losses"][args.steps - 1] if found["losses"] else None
    return Measured(found["ms"], found["first"], None, used.peak() or found["peak"], loss)


def log_of(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if "loss" in line and "eval_loss" not in line]


def ampc_train(args: Namespace, folder: Path, variant: str) -> Measured:
    """A run of one step without caches and with them, and a run of all steps."""
    step, state = folder / "step.onnx", folder / "step.safetensors"
    options = ["--loss", "output:loss", "--optimizer", "adamw:weight_decay=0.01", "-o", step, "--state", state, "--force", "-q"]
    call(args.ampc, "train-step", folder / "train.onnx", *options, *AMPC[variant])

    def train(steps: int, cache: Path) -> list[dict[str, Any]]:
        log = folder / "train.jsonl"
        command = [args.ampc, "train", step, "--state", state, "--data", folder / "data.npz", "--steps", str(steps), "--no-shuffle"]
        call(*command, "--lr", str(RATE), "--device", args.device, "--log", log, "--force", "-q", env={"XDG_CACHE_HOME": str(cache)})
        return log_of(log)

    with tempfile.TemporaryDirectory() as cache:
        first, cached = (train(1, Path(cache))[0]["seconds"] for _ in range(2))
        with Device(not args.dry_run) as used:
            lines = train(args.warm_up + args.steps + AHEAD, Path(cache))
    times = [line["seconds"] * 1e3 for line in lines[args.warm_up : args.warm_up + args.steps]]
    return Measured(median(times), first, cached, used.peak(), lines[args.steps - 1]["loss"])


def ampc_infer(args: Namespace, folder: Path, variant: str) -> Measured:
    model = folder / "forward.onnx"
    if variant != "ampc fp32":
        model = folder / "forward.fp16.onnx"
        call(args.ampc, "rewrite", folder / "forward.onnx", "-o", model, "--force", "-q", *AMPC[variant])
    with Device(not args.dry_run) as used:
        text = call(
            args.ampc, "run", model, "--inputs", folder / "x.npz", "--device", args.device, "--bench", str(args.steps), "-q"
        )
    rows = dict(line.split(maxsplit=1) for line in text.splitlines() if line.startswith("median"))
    number, unit = rows["median"].split()
    return Measured(float(number) * {"ns": 1e-6, "µs": 1e-3, "ms": 1.0, "s": 1e3}[unit], peak=used.peak())


def row(variant: str, found: Measured, base: float | None, batch: int) -> list[str]:
    def of(value: float | None, form: str) -> str:
        return "" if value is None else form.format(value)

    ratio = "" if base is None else f"{base / found.ms:.2f}"
    peak = None if found.peak is None else found.peak / 1e9
    cells = [variant, f"{found.ms:.3g} ms", f"{batch / found.ms * 1e3:.4g}", ratio, of(peak, "{:.2f} GB")]
    return [*cells, of(found.first, "{:.2f} s"), of(found.cached, "{:.2f} s"), of(found.loss, "{:.5f}")]


def table(rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in [HEADING, *rows]]
    return "\n".join([lines[0], "|---|" + "---:|" * (len(HEADING) - 1), *lines[1:]])


def measure(args: Namespace, name: str, what: str, folder: Path, batch: int) -> list[list[str]]:
    """A row per variant; the reason of a failure stands in its row."""
    rows, base = [], None
    ampc = {"train": ampc_train, "infer": ampc_infer}[what]
    for variant in [*args.torch, *AMPC]:
        try:
            found = ampc(args, folder, variant) if variant in AMPC else of_torch(args, what, name, variant)
        except (RuntimeError, subprocess.TimeoutExpired, KeyError, IndexError) as error:
            print(f"{name}, {what}, {variant}: {error}", file=sys.stderr)
            args.failed.append((name, what, variant))
            rows.append([variant, "failed", *[""] * (len(HEADING) - 2)])
            continue
        base = found.ms if variant == "torch fp32" else base
        rows.append(row(variant, found, base, batch))
        print(f"{name}, {what}: {' | '.join(rows[-1])}", file=sys.stderr)
    return rows


def heading(args: Namespace) -> str:
    device = "the CPU, tiny models: a check of the script, no measurement"
    if not args.dry_run:
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader", "--id=0"]
        device = call(*query).strip()
    versions = ", ".join(f"{name} {version}" for name, version in sorted(args.versions.items()))
    lines = [
        f"# Training and inference on a GPU, {datetime.date.today()}",
        "",
        f"- Device: {device}; host: {os.cpu_count()} cores, Python {platform.python_version()}, {versions}.",
        f"- Command: `benches/gpu/run.py --steps {args.steps}`. Medians of {args.steps} steps; the loss is that of step {args.steps}.",
        "- AMP is fp16 with a dynamic loss scale; torch's is autocast with GradScaler; the optimizer is AdamW, fused in torch.",
        "- The peak is the memory in use on the device, beyond that before the process began.",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ampc", type=lambda path: Path(path).resolve(), required=True)
    parser.add_argument("--only", nargs="+", choices=MODELS, default=MODELS, metavar="MODEL")
    parser.add_argument("--what", nargs="+", choices=["train", "infer"], default=["train", "infer"])
    parser.add_argument("--torch", nargs="*", choices=TORCH, default=TORCH, metavar="VARIANT")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--device", default=None, help="device of ampc [default: cuda; cpu with --dry-run]")
    parser.add_argument("--out", type=Path, default=RESULTS / f"{datetime.date.today()}-gpu.md")
    parser.add_argument("--dry-run", action="store_true", help="tiny models on the CPU, and no file")
    args = parser.parse_args()
    args.size = "tiny" if args.dry_run else "full"
    args.device = args.device or ("cpu" if args.dry_run else "cuda")
    args.warm_up, args.failed, args.versions = 3, [], {"ampc": call(args.ampc, "--version").split()[-1]}
    if args.dry_run:
        args.steps = min(args.steps, 4)
    sys.path.insert(0, str(HERE))
    import models

    parts = []
    for name in args.only:
        case = (models.TINY if args.dry_run else models.FULL)[name]
        with tempfile.TemporaryDirectory() as folder:
            torch_side(args, "export", args.size, name, folder)
            for what in args.what:
                word = {"train": "training", "infer": "inference"}[what]
                rows = measure(args, name, what, Path(folder), case.batch)
                parts.append(f"## {name}, {word}, batch {case.batch}\n\n{table(rows)}")
    text = "\n\n".join([heading(args), *parts]) + "\n"
    if args.dry_run:
        print(text)
    else:
        args.out.write_text(text)
        print(args.out)
    sys.exit(f"{len(args.failed)} measurements failed" if args.failed else 0)


if __name__ == "__main__":
    main()
