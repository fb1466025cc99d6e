"""More families for `exporters.py`, written without sight of the rules by which ampc reads an export."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from exporter_families import Of, collector, floats, tokens

FAMILIES: list = []
family = collector(FAMILIES)


@family(floats(2, 6, 8))
def mlp_mixer():
    def forward(m, x):
        x = x + m.t2(F.gelu(m.t1(m.n1(x).transpose(1, 2)))).transpose(1, 2)
        return m.head((x + m.c2(F.gelu(m.c1(m.n2(x))))).mean(1))

    return Of(forward, n1=nn.LayerNorm(8), n2=nn.LayerNorm(8), t1=nn.Linear(6, 12), t2=nn.Linear(12, 6), c1=nn.Linear(8, 16), c2=nn.Linear(16, 8), head=nn.Linear(8, 3))


@family(tokens(2, 5))
def t5_attention():
    def forward(m, i):
        x = m.emb(i)
        q, k, v = m.q(x), m.k(x), m.v(x)
        bias = m.rel(m.buckets)
        return m.o((q @ k.transpose(1, 2) + bias.squeeze(-1)).softmax(-1) @ v) * m.norm

    buckets = (torch.arange(5)[:, None] - torch.arange(5)[None]).abs()
    return Of(forward, dict(norm=torch.ones(8)), dict(buckets=buckets), emb=nn.Embedding(20, 8), q=nn.Linear(8, 8, bias=False), k=nn.Linear(8, 8, bias=False), v=nn.Linear(8, 8, bias=False), o=nn.Linear(8, 8, bias=False), rel=nn.Embedding(5, 1))


@family(floats(3, 8))
def residual_gate():
    return Of(lambda m, x: x * (1 - torch.sigmoid(m.g)) + m.l(x) * torch.sigmoid(m.g) + m.c * m.alpha, dict(g=torch.zeros(8), c=torch.ones(8), alpha=torch.ones(1)), l=nn.Linear(8, 8))


@family(floats(2, 3, 8, 8))
def dense_net():
    def forward(m, x):
        a = m.c1(F.relu(m.n1(x)))
        b = m.c2(F.relu(m.n2(torch.cat([x, a], 1))))
        return m.head(F.adaptive_avg_pool2d(torch.cat([x, a, b], 1), 1).flatten(1))

    return Of(forward, n1=nn.BatchNorm2d(3), c1=nn.Conv2d(3, 4, 3, padding=1, bias=False), n2=nn.BatchNorm2d(7), c2=nn.Conv2d(7, 4, 3, padding=1, bias=False), head=nn.Linear(11, 2))


@family(floats(2, 3, 8, 8))
def batch_norm_without_affine():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.BatchNorm2d(4, affine=False), nn.Conv2d(4, 2, 1))


@family(floats(5, 6))
def autoencoder_tied():
    return Of(lambda m, x: F.linear(F.relu(F.linear(x, m.w, m.b)), m.w.t(), m.c), dict(w=torch.randn(4, 6), b=torch.zeros(4), c=torch.zeros(6)))


@family(floats(4, 6))
def radial_basis():
    return Of(lambda m, x: torch.exp(-((x[:, None] - m.centres) ** 2).sum(-1) / (2 * m.width**2)) @ m.w, dict(centres=torch.randn(5, 6), width=torch.ones(5), w=torch.randn(5, 2)))


@family(floats(4, 6), loss="own")
def variational_autoencoder():
    def forward(m, x):
        h = F.relu(m.e(x))
        mu, logvar = m.mu(h), m.logvar(h)
        y = m.d2(F.relu(m.d1(mu + m.noise * torch.exp(0.5 * logvar))))
        return F.mse_loss(y, x) - 0.5 * (1 + logvar - mu**2 - logvar.exp()).mean()

    return Of(forward, buffers=dict(noise=torch.randn(4, 3)), e=nn.Linear(6, 8), mu=nn.Linear(8, 3), logvar=nn.Linear(8, 3), d1=nn.Linear(3, 8), d2=nn.Linear(8, 6))


@family(floats(2, 6, 4))
def linear_recurrence():
    def forward(m, x):
        decay, h = torch.sigmoid(m.decay), torch.zeros(x.shape[0], 8)
        for t in range(4):
            h = decay * h + m.i(x[:, t])
        return m.o(h) + m.skip * x[:, -1]

    return Of(forward, dict(decay=torch.randn(8), skip=torch.ones(4)), i=nn.Linear(4, 8), o=nn.Linear(8, 4))


@family(floats(2, 4, 8, 8))
def coord_conv():
    def forward(m, x):
        grid = m.grid.expand(x.shape[0], -1, -1, -1)
        return m.b(F.leaky_relu(m.a(torch.cat([x, grid], 1)))) * m.scale.view(1, -1, 1, 1)

    axis = torch.linspace(-1, 1, 8)
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"))[None]
    return Of(forward, dict(scale=torch.ones(3)), dict(grid=grid), a=nn.Conv2d(6, 5, 3, padding=1), b=nn.Conv2d(5, 3, 1))


@family(floats(3, 5, 8))
def set_transformer_pool():
    def forward(m, x):
        return m.o(m.a(m.seed.repeat(x.shape[0], 1, 1), x, x, need_weights=False)[0])

    return Of(forward, dict(seed=torch.randn(1, 2, 8)), a=nn.MultiheadAttention(8, 2, batch_first=True), o=nn.Linear(8, 4))


@family(floats(3, 8))
def layers_shared():
    def forward(m, x):
        for _ in range(3):
            x = m.n(x + F.relu(m.l(x)))
        return m.o(x)

    return Of(forward, l=nn.Linear(8, 8), n=nn.LayerNorm(8), o=nn.Linear(8, 2))


@family(floats(4, 6))
def scaled_output():
    return Of(lambda m, x: m.a(x) * m.s + m.w.abs(), dict(s=torch.tensor([2.0]), w=torch.randn(4)), a=nn.Linear(6, 4))


def bags(mode: str, *, weighted: bool = False):
    """An EmbeddingBag of bags that begin at offsets, one of which is empty."""

    def forward(m, x, offsets, *weights):
        return m.l(m.e(x, offsets, **({"per_sample_weights": weights[0]} if weighted else {})))

    return Of(forward, e=nn.EmbeddingBag(8, 3, mode=mode), l=nn.Linear(3, 2))


def bag_arguments(*more: torch.Tensor):
    return (torch.randint(0, 8, (12,)), torch.tensor([0, 2, 2, 9]), *more)


@family(bag_arguments)
def bags_summed():
    return bags("sum")


# The older exporter writes an empty bag as the mean or the largest of nothing.
@family(bag_arguments, recipes=("default", "dynamo"))
def bags_averaged():
    return bags("mean")


@family(bag_arguments, recipes=("default", "dynamo"))
def bags_of_maxima():
    return bags("max")


@family(lambda: bag_arguments(torch.rand(12)))
def bags_weighted():
    return bags("sum", weighted=True)


@family(tokens(4, 3, count=8))
def bags_of_rows():
    return Of(lambda m, x: m.l(m.e(x)), e=nn.EmbeddingBag(8, 3, mode="mean"), l=nn.Linear(3, 2))
