"""Small models of PyTorch, one of each family that people train, for `exporters.py`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Family:
    """A model, and data for it.

    loss: `mse` of the first output against random targets, or `own` if the output is the loss.
    random: whether the model draws random numbers, so that gradients are not compared.
    detaches: whether the model stops gradients by `detach` or `padding_idx`, which no file says, so that gradients are not compared.
    recipes: the recipes whose export computes the same as the model.
    """

    name: str
    make: Callable[[], nn.Module]
    args: Callable[[], tuple[torch.Tensor, ...]]
    loss: str = "mse"
    random: bool = False
    detaches: bool = False
    recipes: tuple[str, ...] = ("default", "dynamo", "legacy")
    options: list[str] = field(default_factory=list)


FAMILIES: list[Family] = []


def floats(*dims: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: (torch.randn(*dims),)


def tokens(*dims: int, count: int = 20) -> Callable[[], tuple[torch.Tensor, ...]]:
    return lambda: (torch.randint(0, count, dims),)


def collector(families: list[Family]):
    """The decorator that adds a family to a list."""

    def family(args, **settings):
        def add(make):
            families.append(Family(make.__name__.strip("_"), make, args, **settings))
            return make

        return add

    return family


family = collector(FAMILIES)


class Of(nn.Module):
    """A module of parts, parameters and buffers, and a function of it that computes."""

    def __init__(self, forward, parameters=(), buffers=(), **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        for name, value in dict(parameters).items():
            self.register_parameter(name, nn.Parameter(value))
        for name, value in dict(buffers).items():
            self.register_buffer(name, value)
        self.f = forward

    def forward(self, *args):
        return self.f(self, *args)


@family(floats(4, 8))
def mlp():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 3))


@family(floats(2, 5, 8))
def mlp_of_sequences():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


@family(floats(4, 3, 8, 8))
def cnn_bn():
    return nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 3, bias=False),
                         nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))


@family(floats(4, 3, 8, 8))
def bn_before_conv():
    return nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 6, 3), nn.Flatten(), nn.Linear(216, 2))


@family(floats(4, 4, 6, 6))
def resnet_block():
    def forward(m, x):
        y = m.bn2(m.c2(F.relu(m.bn1(m.c1(x)))))
        return m.head(F.relu(y + m.down(x)).mean((2, 3)))

    return Of(forward, c1=nn.Conv2d(4, 8, 3, 2, 1, bias=False), bn1=nn.BatchNorm2d(8), c2=nn.Conv2d(8, 8, 3, 1, 1, bias=False),
              bn2=nn.BatchNorm2d(8), down=nn.Sequential(nn.Conv2d(4, 8, 1, 2, bias=False), nn.BatchNorm2d(8)), head=nn.Linear(8, 3))


@family(floats(4, 4, 6, 6))
def resnet_block_eval():
    return resnet_block().eval()


@family(floats(2, 4, 6, 6))
def group_norm():
    return nn.Sequential(nn.Conv2d(4, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.SiLU(), nn.Conv2d(8, 4, 1), nn.GroupNorm(2, 4))


@family(floats(2, 5, 8))
def layer_norm():
    return nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 8), nn.LayerNorm(8))


class RMSNorm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


@family(floats(2, 5, 8))
def rms_norm():
    return nn.Sequential(RMSNorm(8), nn.Linear(8, 8, bias=False), RMSNorm(8), nn.SiLU(), nn.Linear(8, 4, bias=False))


@family(floats(2, 5, 8))
def rms_norm_of_torch():
    return nn.Sequential(nn.RMSNorm(8), nn.Linear(8, 8), nn.RMSNorm(8))


@family(floats(2, 4, 12))
def tcn_weight_norm():
    def forward(m, x):
        y = F.relu(m.a(F.pad(x, (2, 0))))
        y = F.relu(m.b(F.pad(y, (4, 0))))
        return m.head((y + m.down(x))[..., -1])

    norm = torch.nn.utils.parametrizations.weight_norm
    return Of(forward, a=norm(nn.Conv1d(4, 8, 3)), b=norm(nn.Conv1d(8, 8, 3, dilation=2)), down=nn.Conv1d(4, 8, 1), head=nn.Linear(8, 2))


def rope(n, d):
    angles = torch.outer(torch.arange(n).float(), 1.0 / 10000 ** (torch.arange(0, d, 2).float() / d))
    return torch.cos(angles), torch.sin(angles)


def rotated(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def gpt(tied: bool):
    cos, sin = rope(6, 4)

    def forward(m, i):
        x = m.emb(i)
        n, t, d = x.shape
        for layer in m.layers:
            q, k, v = layer.qkv(layer.n1(x)).view(n, t, 3, 2, 4).permute(2, 0, 3, 1, 4)
            q, k = rotated(q, m.cos, m.sin), rotated(k, m.cos, m.sin)
            a = (q @ k.transpose(-1, -2) / 2).masked_fill(~m.mask, float("-inf")).softmax(-1)
            x = x + layer.o((a @ v).transpose(1, 2).reshape(n, t, d))
            x = x + layer.down(F.silu(layer.up(layer.n2(x))))
        x = m.nf(x)
        return F.linear(x, m.emb.weight) if tied else m.head(x)

    layers = nn.ModuleList(nn.ModuleDict(dict(qkv=nn.Linear(8, 24, bias=False), o=nn.Linear(8, 8, bias=False), n1=RMSNorm(8),
                                              n2=RMSNorm(8), up=nn.Linear(8, 16, bias=False), down=nn.Linear(16, 8, bias=False)))
                           for _ in range(2))
    for layer in layers:
        for name, part in list(layer.items()):
            setattr(layer, name, part)
    parts = dict(emb=nn.Embedding(20, 8), layers=layers, nf=RMSNorm(8))
    if not tied:
        parts["head"] = nn.Linear(8, 20, bias=False)
    mask = torch.ones(6, 6).tril().bool()
    return Of(forward, buffers=dict(cos=cos, sin=sin, mask=mask), **parts)


@family(tokens(2, 6))
def gpt_rope():
    return gpt(False)


@family(tokens(2, 6))
def gpt_tied():
    return gpt(True)


@family(tokens(2, 5))
def tied_modules():
    m = Of(lambda m, i: m.head(m.l(m.emb(i)).tanh()), emb=nn.Embedding(20, 8), l=nn.Linear(8, 8), head=nn.Linear(8, 20, bias=False))
    m.head.weight = m.emb.weight
    return m


@family(floats(2, 3, 8, 8))
def vit():
    def forward(m, x):
        x = m.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([m.cls.expand(x.shape[0], -1, -1), x], 1) + m.pos
        x = x + m.attn(m.n1(x), m.n1(x), m.n1(x), need_weights=False)[0]
        x = x + m.mlp(m.n2(x))
        return m.head(m.nf(x)[:, 0])

    return Of(forward, dict(cls=torch.zeros(1, 1, 8), pos=torch.randn(1, 5, 8) * 0.02), patch=nn.Conv2d(3, 8, 4, 4), n1=nn.LayerNorm(8),
              attn=nn.MultiheadAttention(8, 2, batch_first=True), n2=nn.LayerNorm(8), nf=nn.LayerNorm(8),
              mlp=nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)), head=nn.Linear(8, 3))


@family(floats(2, 3, 8, 8))
def conv_transpose_autoencoder():
    return nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1), nn.ReLU(), nn.Conv2d(6, 8, 3, 2, 1), nn.ReLU(), nn.ConvTranspose2d(8, 6, 2, 2),
                         nn.BatchNorm2d(6), nn.ReLU(), nn.ConvTranspose2d(6, 3, 2, 2), nn.Sigmoid())


@family(floats(2, 3, 8, 8))
def unet():
    def forward(m, x):
        a = F.relu(m.a(x))
        b = F.relu(m.b(F.max_pool2d(a, 2)))
        return m.d(torch.cat([m.up(b), a], 1))

    return Of(forward, a=nn.Conv2d(3, 4, 3, padding=1), b=nn.Conv2d(4, 8, 3, padding=1), up=nn.ConvTranspose2d(8, 4, 2, 2), d=nn.Conv2d(8, 2, 1))


@family(floats(2, 5, 4))
def lstm():
    return Of(lambda m, x: m.head(m.rnn(x)[0][:, -1]), rnn=nn.LSTM(4, 6, batch_first=True), head=nn.Linear(6, 2))


@family(floats(2, 5, 4))
def gru():
    return Of(lambda m, x: m.head(m.rnn(x)[0][:, -1]), rnn=nn.GRU(4, 6, batch_first=True), head=nn.Linear(6, 2))


@family(floats(2, 5, 4))
def lstm_cell_unrolled():
    def forward(m, x):
        h = c = torch.zeros(x.shape[0], 6)
        for t in range(3):
            h, c = m.cell(x[:, t], (h, c))
        return m.head(h)

    return Of(forward, cell=nn.LSTMCell(4, 6), head=nn.Linear(6, 2))


@family(floats(2, 5, 8))
def attention():
    return Of(lambda m, x: m.a(x, x, x)[0], a=nn.MultiheadAttention(8, 2, batch_first=True))


@family(floats(2, 5, 8))
def transformer_encoder():
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2, enable_nested_tensor=False)


@family(tokens(3, 4))
def embedding_bag():
    return Of(lambda m, i: m.head(m.bag(i)), bag=nn.EmbeddingBag(20, 8, mode="mean"), head=nn.Linear(8, 2))


@family(lambda: (torch.randn(3, 6), torch.randn(3, 6)))
def siamese():
    return Of(lambda m, a, b: m.head((m.e(a) - m.e(b)).abs()), e=nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8)), head=nn.Linear(8, 1))


@family(floats(2, 4, 6, 6))
def squeeze_excite():
    return Of(lambda m, x: (y := m.c(x)) * m.b(F.relu(m.a(y.mean((2, 3), keepdim=True)))).sigmoid(), c=nn.Conv2d(4, 8, 3), a=nn.Conv2d(8, 2, 1), b=nn.Conv2d(2, 8, 1))


@family(floats(2, 4, 6, 6))
def depthwise():
    return nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.ReLU6(), nn.Conv2d(4, 8, 1), nn.Hardswish(), nn.Flatten(), nn.Linear(128, 2))


@family(floats(3, 8))
def lora():
    m = Of(lambda m, x: m.base(x) + (x @ m.a.t() @ m.b.t()) * 0.5, dict(a=torch.randn(2, 8) * 0.1, b=torch.zeros(6, 2)), base=nn.Linear(8, 6))
    return m


@family(floats(4, 8))
def mixture_of_experts():
    def forward(m, x):
        gate = m.gate(x).softmax(-1)
        return torch.einsum("ne,ned->nd", gate, torch.stack([e(x) for e in m.experts], 1))

    return Of(forward, gate=nn.Linear(8, 3), experts=nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)) for _ in range(3)))


@family(floats(4, 6), loss="own")
def normalizing_flow():
    def forward(m, x):
        x = (x - m.shift) * torch.exp(-m.log_scale)
        a, b = x * m.mask, x * (1 - m.mask)
        s = torch.tanh(m.s(a)) * (1 - m.mask)
        y = a + b * torch.exp(s) + m.t(a) * (1 - m.mask)
        return (0.5 * y.pow(2).sum(1) - s.sum(1) + m.log_scale.sum()).mean()

    return Of(forward, dict(shift=torch.zeros(6), log_scale=torch.zeros(6)), dict(mask=torch.tensor([1.0, 0, 1, 0, 1, 0])), s=nn.Linear(6, 6), t=nn.Linear(6, 6))


@family(lambda: (torch.randn(4, 6), torch.randn(4, 5)))
def clip_temperature():
    def forward(m, a, b):
        a, b = F.normalize(m.a(a), dim=-1), F.normalize(m.b(b), dim=-1)
        return m.logit_scale.exp() * a @ b.t()

    return Of(forward, dict(logit_scale=torch.tensor(math.log(1 / 0.07))), a=nn.Linear(6, 8, bias=False), b=nn.Linear(5, 8, bias=False))


@family(lambda: (torch.randn(4, 6), torch.randn(4, 6)))
def siglip_scale_and_bias():
    return Of(lambda m, a, b: (m.e(a) @ m.e(b).t()) * m.scale + m.bias, dict(scale=torch.tensor(10.0), bias=torch.tensor(-1.0)), e=nn.Linear(6, 8))


@family(floats(3, 6))
def spectral_norm():
    return nn.Sequential(torch.nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8)), nn.LeakyReLU(), nn.Linear(8, 1)).eval()


@family(floats(2, 4, 6, 6))
def prelu():
    return nn.Sequential(nn.Conv2d(4, 8, 3), nn.PReLU(8), nn.Conv2d(8, 4, 1), nn.PReLU(), nn.Flatten(), nn.Linear(64, 2))


@family(tokens(2, 5))
def learned_positions():
    return Of(lambda m, i: m.l(m.t(i) + m.p(torch.arange(i.shape[1]))), t=nn.Embedding(20, 8), p=nn.Embedding(10, 8), l=nn.Linear(8, 4))


@family(floats(2, 5, 8))
def buffer_masks():
    return Of(lambda m, x: (m.l(x) * m.ones + m.shift) @ m.proj, buffers=dict(ones=torch.ones(8), shift=torch.zeros(8), proj=torch.randn(8, 4)), l=nn.Linear(8, 8))


@family(floats(2, 8))
def two_heads():
    return Of(lambda m, x: torch.cat([m.mu(h := m.body(x).relu()), F.softplus(m.sigma(h)), m.w.softmax(0) * m.k(h)], -1), dict(w=torch.zeros(4)),
              body=nn.Linear(8, 8), mu=nn.Linear(8, 3), sigma=nn.Linear(8, 3), k=nn.Linear(8, 4))


@family(floats(4, 8))
def batch_norm_1d():
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8))


@family(floats(2, 3, 4, 4, 4))
def batch_norm_3d():
    return nn.Sequential(nn.Conv3d(3, 4, 3, padding=1), nn.ReLU(), nn.BatchNorm3d(4), nn.Conv3d(4, 2, 1))


@family(floats(2, 3, 6, 6))
def instance_norm():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.InstanceNorm2d(4, affine=True), nn.ReLU(), nn.Conv2d(4, 2, 1), nn.InstanceNorm2d(2))


@family(floats(4, 8), random=True)
def dropout():
    return nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 2))


@family(floats(2, 4, 6))
def layer_scale():
    return Of(lambda m, x: x + m.gamma * m.b(m.a(x)), dict(gamma=torch.full((6,), 0.1)), a=nn.Linear(6, 6), b=nn.Linear(6, 6))


@family(floats(3, 6))
def weight_twice():
    return Of(lambda m, x: torch.tanh(x @ m.w) @ m.w.t(), dict(w=torch.randn(6, 4)))


@family(lambda: (torch.randn(3, 5), torch.randn(3, 4)))
def bilinear():
    return Of(lambda m, a, b: m.b(a, b), b=nn.Bilinear(5, 4, 3))


@family(floats(3, 6))
def weight_functions():
    return Of(lambda m, x: x @ m.w.softmax(0) + m.a.exp() * m.b + F.softplus(m.c) - torch.sigmoid(m.d) * 2, dict(w=torch.randn(6, 4), a=torch.randn(4), b=torch.randn(4), c=torch.zeros(4), d=torch.zeros(4)))


@family(floats(2, 3, 8, 8))
def upsample_fpn():
    return Of(lambda m, x: m.o(F.interpolate(m.b(a := m.a(x)), scale_factor=2, mode="nearest") + m.l(a)[:, :, :6, :6]), a=nn.Conv2d(3, 4, 3), b=nn.Conv2d(4, 4, 3, 2, 1), l=nn.Conv2d(4, 4, 1), o=nn.Conv2d(4, 2, 1))


@family(floats(2, 6, 8))
def perceiver_queries():
    def forward(m, x):
        q = m.q(m.latents).unsqueeze(0).expand(x.shape[0], -1, -1)
        return m.o((q @ m.k(x).transpose(1, 2) / 8**0.5).softmax(-1) @ m.v(x))

    return Of(forward, dict(latents=torch.randn(3, 8)), q=nn.Linear(8, 8), k=nn.Linear(8, 8), v=nn.Linear(8, 8), o=nn.Linear(8, 4))


@family(floats(4, 3, 32))
def large_linear():
    return nn.Sequential(nn.Linear(32, 600), nn.ReLU(), nn.Linear(600, 600), nn.ReLU(), nn.Linear(600, 4))


@family(floats(2, 4, 6, 6))
def convnext():
    def forward(m, x):
        y = m.dw(x).permute(0, 2, 3, 1)
        return x + (m.p2(F.gelu(m.p1(m.n(y)))) * m.gamma).permute(0, 3, 1, 2)

    return Of(forward, dict(gamma=torch.full((4,), 1e-1)), dw=nn.Conv2d(4, 4, 3, padding=1, groups=4), n=nn.LayerNorm(4), p1=nn.Linear(4, 8), p2=nn.Linear(8, 4))


@family(lambda: (torch.randint(0, 20, (2, 6)), torch.randint(0, 20, (2, 6))), loss="own")
def language_model_loss():
    def forward(m, i, t):
        return F.cross_entropy(m.head(m.n(m.e(i))).view(-1, 20), t.view(-1))

    return Of(forward, e=nn.Embedding(20, 8), n=nn.LayerNorm(8), head=nn.Linear(8, 20))
