"""PyTorch's half of run.py, in a process of its own for each measurement.

    torch_side.py export SIZE MODEL FOLDER                      forward.onnx, train.onnx, x.npz, data.npz
    torch_side.py train SIZE MODEL VARIANT STEPS DEVICE         a line of JSON
    torch_side.py infer SIZE MODEL VARIANT RUNS DEVICE          a line of JSON
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any

import models
import torch

# Variants: autocast or fp32, TF32, torch.compile.
VARIANTS = {
    "torch fp32": (False, False, False),
    "torch fp32, TF32": (False, True, False),
    "torch autocast": (True, False, False),
    "torch.compile autocast": (True, False, True),
}
RATE = 1e-4
WARM_UP = 3
BATCHES = 2


def case_of(size: str, name: str) -> models.Case:
    return (models.FULL if size == "full" else models.TINY)[name]


def export(case: models.Case, folder: Path) -> None:
    """Writes the model for inference, the model with its loss for training, and the data of both."""
    import numpy as np

    x, target = case.batches(BATCHES)
    first = x[: case.batch], target[: case.batch]
    np.savez(folder / "x.npz", x=first[0].numpy())
    np.savez(folder / "data.npz", x=x.numpy(), target=target.numpy())
    common: dict[str, Any] = {"dynamo": False, "opset_version": 17}
    torch.onnx.export(
        case.model().eval(), (first[0],), str(folder / "forward.onnx"), input_names=["x"], output_names=["y"], **common
    )
    torch.onnx.export(
        case.with_loss().train(),
        first,
        str(folder / "train.onnx"),
        input_names=["x", "target"],
        output_names=["loss"],
        training=torch.onnx.TrainingMode.TRAINING,
        do_constant_folding=False,
        **common,
    )


class Clock:
    """Marks on the device, or on the host for the CPU; the times between them in milliseconds."""

    def __init__(self, device: str) -> None:
        self.is_cuda, self.marks = device != "cpu", []

    def mark(self) -> None:
        if self.is_cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append(event)
        else:
            self.marks.append(time.perf_counter())

    def times(self) -> list[float]:
        pairs = list(zip(self.marks, self.marks[1:]))
        if self.is_cuda:
            torch.cuda.synchronize()
            return [a.elapsed_time(b) for a, b in pairs]
        return [(b - a) * 1e3 for a, b in pairs]


def autocast(device: str, enabled: bool) -> torch.autocast:
    kind = "cuda" if device != "cpu" else "cpu"
    return torch.autocast(kind, dtype=torch.float16 if kind == "cuda" else torch.bfloat16, enabled=enabled)


def peak(device: str) -> int | None:
    return torch.cuda.max_memory_allocated() if device != "cpu" else None


def train(case: models.Case, variant: str, steps: int, device: str) -> dict[str, Any]:
    is_low, _, is_compiled = VARIANTS[variant]
    model = case.with_loss().train().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01, fused=device != "cpu")
    scaler = torch.amp.GradScaler("cuda" if device != "cpu" else "cpu", enabled=is_low and device != "cpu")
    compiled = torch.compile(model) if is_compiled else model
    xs, targets = case.batches(BATCHES)
    if device != "cpu":
        xs, targets = xs.pin_memory(), targets.pin_memory()
    clock, losses, first = Clock(device), [], 0.0
    for step in range(WARM_UP + steps + 1):
        start = time.perf_counter()
        rows = slice(step % BATCHES * case.batch, (step % BATCHES + 1) * case.batch)
        x, target = (t[rows].to(device, non_blocking=True) for t in (xs, targets))
        if step >= WARM_UP:
            clock.mark()
        with autocast(device, is_low):
            loss = compiled(x, target)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())
        if step == 0:
            losses[0].item()
            first = time.perf_counter() - start
    times = clock.times()
    return {"ms": median(times), "first": first, "peak": peak(device), "losses": [float(loss) for loss in losses]}


def infer(case: models.Case, variant: str, runs: int, device: str) -> dict[str, Any]:
    """Like `ampc run --bench`: inputs from the host and outputs to it in every run."""
    is_low, _, is_compiled = VARIANTS[variant]
    model = case.model().eval().to(device)
    compiled = torch.compile(model) if is_compiled else model
    x = case.batches(1)[0]
    x = x.pin_memory() if device != "cpu" else x
    times = []
    with torch.inference_mode(), autocast(device, is_low):
        for _ in range(WARM_UP + runs + 1):
            start = time.perf_counter()
            compiled(x.to(device, non_blocking=True)).float().cpu()
            times.append((time.perf_counter() - start) * 1e3)
    return {"ms": median(times[WARM_UP + 1 :]), "first": times[0] / 1e3, "peak": peak(device), "losses": []}


def main() -> None:
    warnings.filterwarnings("ignore")
    what, size, name, *rest = sys.argv[1:]
    case = case_of(size, name)
    if what == "export":
        return export(case, Path(rest[0]))
    variant, count, device = rest
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = VARIANTS[variant][1]
    found = {"train": train, "infer": infer}[what](case, variant, int(count), device)
    print(json.dumps(found | {"version": torch.__version__}))


if __name__ == "__main__":
    main()
