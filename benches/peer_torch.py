"""PyTorch's half of training.py: exports the models, and trains them eagerly on the CPU.

    peer_torch.py export MODEL FOLDER                       MODEL.onnx and batch.npz
    peer_torch.py train MODEL PRECISION THREADS STEPS       a line of JSON: median seconds, peak bytes

It needs an interpreter with torch, onnx and onnxscript, which AMPC_TORCH names. Weights are random; the seed is fixed.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any, Callable

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


class Residual(nn.Module):
    """Two convolutions and what goes past them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.past = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.past = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.first(x)))
        return F.relu(self.norm2(self.second(y)) + self.past(x))


class ResNet18(nn.Module):
    """As He et al. (arXiv 1512.03385) have it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        widths = [64, 64, 128, 256, 512]
        blocks: list[nn.Module] = []
        for i, (inputs, outputs) in enumerate(zip(widths, widths[1:])):
            blocks += [Residual(inputs, outputs, 1 if i == 0 else 2), Residual(outputs, outputs, 1)]
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(512, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1).flatten(1))


def twice(inputs: int, outputs: int) -> nn.Module:
    """Two convolutions, each normalised."""
    layers: list[nn.Module] = []
    for width in (inputs, outputs):
        layers += [nn.Conv2d(width, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """As Ronneberger et al. (arXiv 1505.04597) have it, with padding and fewer channels."""

    def __init__(self, width: int = 32, depth: int = 4) -> None:
        super().__init__()
        widths = [width * 2**i for i in range(depth)]
        self.down = nn.ModuleList(twice(i, o) for i, o in zip([3, *widths], widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in widths[-2::-1])
        self.join = nn.ModuleList(twice(2 * w, w) for w in widths[-2::-1])
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for i, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if i else x)
            kept.append(x)
        for up, join, past in zip(self.up, self.join, kept[-2::-1]):
            x = join(torch.cat([past, up(x)], 1))
        return self.head(x)


class Block(nn.Module):
    """A layer of a transformer: normalised before its parts, or after them as BERT does."""

    def __init__(self, width: int, heads: int, causal: bool, before: bool) -> None:
        super().__init__()
        self.heads, self.causal, self.before = heads, causal, before
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(x).reshape(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))

    def feed(self, x: Tensor) -> Tensor:
        return self.narrow(F.gelu(self.widen(x), approximate="tanh" if self.causal else "none"))

    def forward(self, x: Tensor) -> Tensor:
        if self.before:
            x = x + self.attend(self.norm1(x))
            return x + self.feed(self.norm2(x))
        x = self.norm1(x + self.attend(x))
        return self.norm2(x + self.feed(x))


class Transformer(nn.Module):
    """Tokens to scores: of each next token with tied weights, or of classes of the whole."""

    def __init__(self, tokens: int, length: int, width: int, heads: int, depth: int, classes: int = 0) -> None:
        super().__init__()
        causal = classes == 0
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Embedding(length, width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.blocks = nn.ModuleList(Block(width, heads, causal, causal) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.classes = nn.Linear(width, classes) if classes else None

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        if self.classes is not None:
            x = self.norm(x)
        for block in self.blocks:
            x = block(x)
        if self.classes is not None:
            return self.classes(x[:, 0])
        return F.linear(self.norm(x), self.tokens.weight)


def image(*dims: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(*dims)


def whole(most: int, *dims: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(0, most, dims)


def entropy(scores: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(scores.reshape(-1, scores.shape[-1]).float(), target.reshape(-1))


def binary(scores: Tensor, target: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(scores.float(), target)


# The model, its input, the targets, and the loss.
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], Callable[[], Tensor], Any]] = {
    "resnet18": (ResNet18, image(4, 3, 224, 224), whole(1000, 4), entropy),
    "unet": (UNet, image(2, 3, 128, 128), lambda: (torch.rand(2, 1, 128, 128) > 0.5).float(), binary),
    "bert-base, 4 layers": (
        lambda: Transformer(30522, 128, 768, 12, 4, classes=2),
        whole(30522, 4, 128),
        whole(2, 4),
        entropy,
    ),
    "gpt2, 2 layers": (lambda: Transformer(50257, 128, 768, 12, 2), whole(50257, 2, 128), whole(50257, 2, 128), entropy),
    "nanogpt": (lambda: Transformer(65, 128, 384, 6, 6), whole(65, 8, 128), whole(65, 8, 128), entropy),
}


def made(name: str) -> tuple[nn.Module, Tensor, Tensor, Any]:
    """A model with a batch and the loss; the same each time."""
    torch.manual_seed(0)
    model, x, target, loss = MODELS[name]
    return model().train(), x(), target(), loss


def export(name: str, folder: Path) -> None:
    """Writes the forward model, in training mode, and the batch."""
    import numpy as np

    model, x, target, _ = made(name)
    np.savez(folder / "batch.npz", x=x.numpy(), target=target.numpy(), lr=np.float32(1e-4))
    torch.onnx.export(
        model,
        (x,),
        str(folder / "model.onnx"),
        dynamo=False,
        training=torch.onnx.TrainingMode.TRAINING,
        do_constant_folding=False,
        opset_version=17,
        input_names=["x"],
        output_names=["y"],
    )


def memory(what: str) -> int:
    """A line of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) * 1024
    return 0


def train(name: str, precision: str, threads: int, steps: int) -> dict[str, Any]:
    """Trains with AdamW: the median time of a step, and the peak memory above what torch itself takes."""
    torch.set_num_threads(threads)
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    model, x, target, loss = made(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01)
    low = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(precision)
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "fp16")
    times, losses = [], []
    for _ in range(steps + 2):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=low or torch.bfloat16, enabled=low is not None):
            y = model(x)
        value = loss(y, target)
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(value.item())
        times.append(time.perf_counter() - start)
    peak = memory("VmHWM") - before
    return {"seconds": median(times[2:]), "peak": peak, "losses": losses, "version": torch.__version__}


def main() -> None:
    warnings.filterwarnings("ignore")
    match sys.argv[1:]:
        case ["export", name, folder]:
            export(name, Path(folder))
        case ["train", name, precision, threads, steps]:
            print(json.dumps(train(name, precision, int(threads), int(steps))))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    main()
