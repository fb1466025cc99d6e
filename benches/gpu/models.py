"""The models of run.py, with their batches and losses. Weights are random with a fixed seed; dropouts are left out, so that losses
can be compared.

Each model has a full size and a tiny size; the tiny size checks the script on a machine without a GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor


class Mlp(nn.Module):
    """Three layers with GELU and LayerNorm."""

    def __init__(self, inputs: int, width: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(inputs, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def pair(inputs: int, outputs: int) -> nn.Module:
    """Two convolutions, each with BatchNorm and ReLU."""
    layers: list[nn.Module] = []
    for width in (inputs, outputs):
        layers += [nn.Conv2d(width, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """An encoder and a decoder with skip connections: 7.8 million parameters with width 32 and 5 levels."""

    def __init__(self, width: int, levels: int) -> None:
        super().__init__()
        widths = [width << level for level in range(levels)]
        self.down = nn.ModuleList(pair(i, o) for i, o in zip([3, *widths], widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths[:-1]))
        self.join = nn.ModuleList(pair(2 * w, w) for w in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skipped = []
        for level, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if level else x)
            skipped.append(x)
        for up, join, skip in zip(self.up, self.join, reversed(skipped[:-1])):
            x = join(torch.cat([skip, up(x)], 1))
        return self.head(x)


class Layer(nn.Module):
    """Attention and a feed-forward network, with LayerNorm before (GPT) or after (BERT) each."""

    def __init__(self, width: int, heads: int, is_gpt: bool) -> None:
        super().__init__()
        self.heads, self.is_gpt = heads, is_gpt
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attention(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_gpt)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))

    def network(self, x: Tensor) -> Tensor:
        return self.narrow(F.gelu(self.wide(x), approximate="tanh" if self.is_gpt else "none"))

    def forward(self, x: Tensor) -> Tensor:
        if self.is_gpt:
            x = x + self.attention(self.norm1(x))
            return x + self.network(self.norm2(x))
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.network(x))


class Transformer(nn.Module):
    """Tokens to scores: of the next tokens with tied weights (GPT), or of the ends of a span (BERT)."""

    def __init__(self, tokens: int, length: int, width: int, heads: int, depth: int, is_gpt: bool) -> None:
        super().__init__()
        self.is_gpt = is_gpt
        self.tokens, self.positions = nn.Embedding(tokens, width), nn.Embedding(length, width)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, std=0.02)
        self.layers = nn.ModuleList(Layer(width, heads, is_gpt) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.span = None if is_gpt else nn.Linear(width, 2)
        self.register_buffer("places", torch.arange(length), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(self.places[: ids.shape[1]])
        if not self.is_gpt:
            x = self.norm(x)
        for layer in self.layers:
            x = layer(x)
        if self.span is not None:
            # The scores of each position, as classes.
            return self.span(x).transpose(1, 2)
        return F.linear(self.norm(x), self.tokens.weight)


class WithLoss(nn.Module):
    """The model with its cross-entropy loss, as torch trains and exports it."""

    def __init__(self, model: nn.Module, classes_last: bool) -> None:
        super().__init__()
        self.model, self.classes_last = model, classes_last

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        scores = self.model(x)
        if self.classes_last:
            scores = scores.reshape(-1, scores.shape[-1])
        return F.cross_entropy(scores.float(), target.reshape(-1) if self.classes_last else target)


@dataclass
class Case:
    """A model with the shape of a sample: floats, or tokens below `tokens`."""

    make: Callable[[], nn.Module]
    sample: tuple[int, ...]
    target: tuple[int, ...]
    classes: int
    batch: int
    tokens: int = 0
    classes_last: bool = False

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return self.make()

    def with_loss(self) -> WithLoss:
        return WithLoss(self.model(), self.classes_last)

    def batches(self, count: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets of `count` batches, one behind the other."""
        random = torch.Generator().manual_seed(1)
        shape = (count * self.batch, *self.sample)
        if self.tokens:
            x = torch.randint(0, self.tokens, shape, generator=random)
        else:
            x = torch.randn(shape, generator=random)
        return x, torch.randint(0, self.classes, (count * self.batch, *self.target), generator=random)

    def per_sample(self) -> int:
        """Tokens of a sample; 1 for images."""
        return math.prod(self.sample) if self.tokens else 1


def vision(name: str, **options: Any) -> Callable[[], nn.Module]:
    """A model of torchvision without dropouts."""

    def make() -> nn.Module:
        import torchvision.models

        model = getattr(torchvision.models, name)(weights=None, **options)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        return model

    return make


def tiny_vit() -> nn.Module:
    from torchvision.models import VisionTransformer

    return VisionTransformer(image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=10)


def tiny_resnet() -> nn.Module:
    from torchvision.models.resnet import Bottleneck, ResNet

    return ResNet(Bottleneck, [1, 1, 1, 1], num_classes=10, width_per_group=8)


def text(tokens: int, length: int, width: int, heads: int, depth: int, batch: int, is_gpt: bool) -> Case:
    make = lambda: Transformer(tokens, length, width, heads, depth, is_gpt)  # noqa: E731
    if is_gpt:
        return Case(make, (length,), (length,), tokens, batch, tokens, classes_last=True)
    # A span: a start and an end among the positions.
    return Case(lambda: make(), (length,), (length,), 2, batch, tokens)


FULL: dict[str, Case] = {
    "mlp": Case(lambda: Mlp(784, 512, 10), (784,), (), 10, 64),
    "resnet50": Case(vision("resnet50"), (3, 224, 224), (), 1000, 128),
    "vgg16": Case(vision("vgg16"), (3, 224, 224), (), 1000, 32),
    "unet": Case(lambda: UNet(32, 5), (3, 128, 128), (128, 128), 2, 16),
    "bert-base": text(30522, 384, 768, 12, 12, 32, is_gpt=False),
    "gpt2-small": text(50304, 512, 768, 12, 12, 8, is_gpt=True),
    "nanogpt": text(65, 256, 384, 6, 6, 64, is_gpt=True),
    "vit_b_16": Case(vision("vit_b_16"), (3, 224, 224), (), 1000, 64),
}

TINY: dict[str, Case] = {
    "mlp": Case(lambda: Mlp(12, 16, 4), (12,), (), 4, 4),
    "resnet50": Case(tiny_resnet, (3, 64, 64), (), 10, 2),
    "vgg16": Case(
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10),
        ),
        (3, 32, 32), (), 10, 2,
    ),
    "unet": Case(lambda: UNet(4, 3), (3, 16, 16), (16, 16), 2, 2),
    "bert-base": text(50, 16, 32, 2, 2, 2, is_gpt=False),
    "gpt2-small": text(48, 16, 32, 2, 2, 2, is_gpt=True),
    "nanogpt": text(17, 8, 16, 2, 1, 2, is_gpt=True),
    "vit_b_16": Case(tiny_vit, (3, 32, 32), (), 10, 2),
}
