"""Families for `exporters.py`, chosen for how they hold values: trained, frozen, tied, merged, or fixed in buffers."""

from __future__ import annotations

import copy
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize, prune

from exporter_families import Of, collector, floats, tokens

FAMILIES: list = []
family = collector(FAMILIES)


class LoRALinear(nn.Module):
    """A linear layer whose weight is frozen, plus a trained product of low rank."""

    def __init__(self, n_in, n_out, rank=2, alpha=4):
        super().__init__()
        self.base = nn.Linear(n_in, n_out)
        self.base.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(rank, n_in) / math.sqrt(n_in))
        self.lora_B = nn.Parameter(torch.randn(n_out, rank) * 0.1)
        self.scaling = alpha / rank

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.lora_A), self.lora_B) * self.scaling


@family(floats(2, 5, 8))
def lora_frozen_attention():
    def forward(m, x):
        b, t, d = x.shape
        q, k, v = (p(x).view(b, t, 2, 4).transpose(1, 2) for p in (m.q_proj, m.k_proj, m.v_proj))
        return m.o_proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))

    m = Of(forward, q_proj=LoRALinear(8, 8), k_proj=nn.Linear(8, 8), v_proj=LoRALinear(8, 8), o_proj=nn.Linear(8, 8))
    m.k_proj.requires_grad_(False)
    m.o_proj.requires_grad_(False)
    return m


@family(tokens(2, 5))
def prompt_tuning_frozen():
    def forward(m, i):
        prompt = m.prompt.unsqueeze(0).expand(i.shape[0], -1, -1)
        x = torch.cat([prompt, m.wte(i)], 1)
        x = x + m.wpe[: x.shape[1]]
        return m.head(m.block(x)[:, m.prompt.shape[0] :])

    m = Of(forward, dict(prompt=torch.randn(3, 8) * 0.5, wpe=torch.randn(16, 8) * 0.1), wte=nn.Embedding(20, 8),
           block=nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True), head=nn.Linear(8, 3))
    for part in (m.wte, m.block):
        part.requires_grad_(False)
    m.wpe.requires_grad_(False)
    return m


class FrozenBatchNorm2d(nn.Module):
    """A batch norm whose statistics and affine values are all buffers."""

    def __init__(self, n):
        super().__init__()
        self.register_buffer("weight", torch.rand(n) + 0.5)
        self.register_buffer("bias", torch.randn(n) * 0.1)
        self.register_buffer("running_mean", torch.randn(n) * 0.1)
        self.register_buffer("running_var", torch.rand(n) + 0.5)

    def forward(self, x):
        w, b = self.weight.reshape(1, -1, 1, 1), self.bias.reshape(1, -1, 1, 1)
        rv, rm = self.running_var.reshape(1, -1, 1, 1), self.running_mean.reshape(1, -1, 1, 1)
        scale = w * (rv + 1e-5).rsqrt()
        return x * scale + (b - rm * scale)


@family(floats(2, 3, 8, 8))
def frozen_batch_norm_detection():
    def forward(m, x):
        x = (x - m.pixel_mean) / m.pixel_std
        x = F.relu(m.bn1(m.conv1(x)))
        x = F.relu(m.bn2(m.conv2(x)) + x)
        return torch.cat([m.cls(x).flatten(1), m.box(x).flatten(1) * m.scale], 1)

    m = Of(forward, dict(scale=torch.ones(1)), conv1=nn.Conv2d(3, 4, 3, 2, 1, bias=False), bn1=FrozenBatchNorm2d(4),
           conv2=nn.Conv2d(4, 4, 3, 1, 1, bias=False), bn2=FrozenBatchNorm2d(4), cls=nn.Conv2d(4, 2, 1), box=nn.Conv2d(4, 4, 1))
    m.register_buffer("pixel_mean", torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1), persistent=False)
    m.register_buffer("pixel_std", torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1), persistent=False)
    return m


@family(floats(2, 3, 8, 8))
def frozen_backbone_in_eval():
    backbone = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3, 2), nn.BatchNorm2d(6), nn.ReLU())
    backbone[1].running_mean.normal_()
    backbone[4].running_var.uniform_(0.5, 2.0)
    backbone.eval().requires_grad_(False)
    head = nn.Sequential(nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))
    return Of(lambda m, x: m.head(m.backbone(x)), backbone=backbone, head=head)


@family(floats(6, 8))
def experts_stacked_top2():
    def forward(m, x):
        probs, chosen = m.router(x).softmax(-1).topk(2, -1)
        probs = probs / probs.sum(-1, keepdim=True)
        h = torch.einsum("nd,nkdh->nkh", x, m.w1[chosen]) + m.b1[chosen]
        y = torch.einsum("nkh,nkhd->nkd", F.silu(h), m.w2[chosen]) + m.b2[chosen]
        return (probs.unsqueeze(-1) * y).sum(1) + m.shared(x)

    return Of(forward, dict(w1=torch.randn(4, 8, 6) * 0.3, b1=torch.zeros(4, 6), w2=torch.randn(4, 6, 8) * 0.3, b2=torch.zeros(4, 8)),
              router=nn.Linear(8, 4, bias=False), shared=nn.Linear(8, 8))


@family(floats(2, 4, 5))
def gru_cell_learned_state():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.h0 = nn.Parameter(torch.randn(2, 1, 6) * 0.1)
            self.cells = nn.ModuleList([nn.GRUCell(5, 6), nn.GRUCell(6, 6)])
            self.attn = nn.Linear(6, 1)
            self.out = nn.Linear(6, 3)

        def forward(self, x):
            states = [h.expand(x.size(0), -1) for h in self.h0]
            outputs = []
            for step in x.unbind(1):
                for n, cell in enumerate(self.cells):
                    states[n] = step = cell(step, states[n])
                outputs.append(step)
            outputs = torch.stack(outputs, 1)
            return self.out((self.attn(outputs).softmax(1) * outputs).sum(1))

    return Encoder()


@family(floats(2, 5, 4))
def lstm_bidirectional_two_layers():
    def forward(m, x):
        y, (h, c) = m.lstm(x)
        return m.fc(torch.cat([h[-2], h[-1], y.mean(1)], -1)) + m.cell(c[-1])

    return Of(forward, lstm=nn.LSTM(4, 5, num_layers=2, batch_first=True, bidirectional=True), fc=nn.Linear(20, 2), cell=nn.Linear(5, 2))


@family(lambda: (torch.rand(6, 2),))
def fourier_features():
    def forward(m, x):
        p = 2 * math.pi * x @ m.B.t()
        return torch.sigmoid(m.net(torch.cat([x, p.sin(), p.cos()], -1)))

    m = Of(forward, net=nn.Sequential(nn.Linear(18, 16), nn.ReLU(), nn.Linear(16, 3)))
    m.register_buffer("B", torch.randn(8, 2), persistent=False)
    return m


@family(lambda: (torch.rand(6, 2) * 2 - 1,))
def siren():
    class Sine(nn.Module):
        def __init__(self, n_in, n_out, w0=1.0, first=False):
            super().__init__()
            self.w0 = w0
            self.linear = nn.Linear(n_in, n_out)
            bound = 1 / n_in if first else math.sqrt(6 / n_in) / w0
            nn.init.uniform_(self.linear.weight, -bound, bound)

        def forward(self, x):
            return torch.sin(self.w0 * self.linear(x))

    return nn.Sequential(Sine(2, 12, w0=5.0, first=True), Sine(12, 12, w0=5.0), nn.Linear(12, 1))


@family(tokens(2, 6))
def alibi():
    def forward(m, i):
        x = m.wte(i)
        b, t, d = x.shape
        q, k, v = (z.view(b, t, 4, 2).transpose(1, 2) for z in m.c_attn(m.ln_1(x)).split(d, -1))
        bias = m.slopes.view(1, 4, 1, 1) * m.distance[:t, :t]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias + m.causal[:t, :t])
        x = x + m.c_proj(y.transpose(1, 2).reshape(b, t, d))
        return m.lm_head(m.ln_f(x))

    positions = torch.arange(8)
    causal = torch.zeros(8, 8).masked_fill(torch.ones(8, 8).triu(1).bool(), -1e4)
    buffers = dict(slopes=2.0 ** -torch.arange(1, 5).float(), distance=(positions[None] - positions[:, None]).float().clamp(max=0), causal=causal)
    return Of(forward, buffers=buffers, wte=nn.Embedding(20, 8), ln_1=nn.LayerNorm(8), c_attn=nn.Linear(8, 24), c_proj=nn.Linear(8, 8),
              ln_f=nn.LayerNorm(8), lm_head=nn.Linear(8, 20, bias=False))


@family(floats(1, 4, 4, 8))
def swin_window_bias():
    class WindowAttention(nn.Module):
        def __init__(self, dim=8, window=2, heads=2):
            super().__init__()
            self.window, self.heads, self.scale = window, heads, (dim // heads) ** -0.5
            self.relative_position_bias_table = nn.Parameter(torch.randn((2 * window - 1) ** 2, heads) * 0.02)
            coords = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
            relative = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0) + window - 1
            self.register_buffer("relative_position_index", relative[..., 0] * (2 * window - 1) + relative[..., 1])
            self.norm = nn.LayerNorm(dim)
            self.qkv = nn.Linear(dim, 3 * dim)
            self.proj = nn.Linear(dim, dim)

        def forward(self, x):
            b, h, w, c = x.shape
            s, n = self.window, self.window**2
            y = torch.roll(self.norm(x), (-1, -1), (1, 2))
            y = y.view(b, h // s, s, w // s, s, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, n, c)
            q, k, v = self.qkv(y).reshape(-1, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
            bias = self.relative_position_bias_table[self.relative_position_index.view(-1)].view(n, n, -1).permute(2, 0, 1).contiguous()
            a = (q * self.scale @ k.transpose(-2, -1) + bias.unsqueeze(0)).softmax(-1)
            y = self.proj((a @ v).transpose(1, 2).reshape(-1, n, c))
            y = y.view(b, h // s, w // s, s, s, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
            return x + torch.roll(y, (1, 1), (1, 2))

    return WindowAttention()


@family(floats(2, 6, 5))
def graph_convolution():
    def forward(m, x):
        degree = m.adjacency.sum(-1)
        normal = m.adjacency * degree.rsqrt()[:, None] * degree.rsqrt()[None]
        x = F.elu(normal @ m.lin1(x) + m.bias1)
        s, t = x @ m.att_src, x @ m.att_dst
        e = F.leaky_relu(s.unsqueeze(2) + t.unsqueeze(1), 0.2).masked_fill(m.adjacency == 0, -1e9)
        return normal @ m.lin2(e.softmax(-1) @ x)

    ring = torch.eye(6) + torch.eye(6).roll(1, 0) + torch.eye(6).roll(-1, 0)
    return Of(forward, dict(bias1=torch.zeros(8), att_src=torch.randn(8), att_dst=torch.randn(8)), dict(adjacency=ring),
              lin1=nn.Linear(5, 8, bias=False), lin2=nn.Linear(8, 3, bias=False))


@family(lambda: (torch.randn(5, 6), torch.randint(0, 4, (5,))), loss="own")
def cosine_prototypes_with_margin():
    def forward(m, x, y):
        cosine = F.linear(F.normalize(m.encoder(x)), F.normalize(m.prototypes))
        one_hot = F.one_hot(y, 4).to(cosine.dtype)
        logits = m.temperature.clamp(1.0, 50.0) * (cosine - m.margin * one_hot)
        return F.cross_entropy(logits, y)

    return Of(forward, dict(prototypes=torch.randn(4, 8), temperature=torch.tensor(8.0)), dict(margin=torch.tensor(0.2)), encoder=nn.Linear(6, 8))


@family(lambda: (torch.randn(5, 3), torch.randn(5, 2)), loss="own")
def mixture_density():
    def forward(m, x, y):
        h = torch.tanh(m.body(x))
        log_pi = m.pi(h).log_softmax(-1)
        mu = m.mu(h).view(-1, 4, 2) + m.centres
        sigma = F.softplus(m.sigma(h)).view(-1, 4, 2) + 1e-3
        log_p = (-0.5 * ((y.unsqueeze(1) - mu) / sigma) ** 2 - sigma.log() - m.half_log_2pi).sum(-1)
        return -torch.logsumexp(log_pi + log_p, -1).mean()

    return Of(forward, dict(centres=torch.randn(4, 2)), dict(half_log_2pi=torch.tensor(0.5 * math.log(2 * math.pi))), body=nn.Linear(3, 8),
              pi=nn.Linear(8, 4), mu=nn.Linear(8, 8), sigma=nn.Linear(8, 8))


@family(lambda: (torch.randint(0, 20, (3, 4)), torch.randint(0, 5, (3, 4))), loss="own")
def crf_transitions():
    def forward(m, words, tags):
        scores = m.emit(torch.tanh(m.conv(m.emb(words).transpose(1, 2))).transpose(1, 2))
        gold = m.start[tags[:, 0]] + scores.gather(2, tags.unsqueeze(-1)).sum((1, 2)) + m.end[tags[:, -1]]
        gold = gold + m.transitions[tags[:, :-1], tags[:, 1:]].sum(1)
        alpha = m.start + scores[:, 0]
        for t in range(1, scores.shape[1]):
            alpha = torch.logsumexp(alpha.unsqueeze(2) + m.transitions, 1) + scores[:, t]
        return (torch.logsumexp(alpha + m.end, 1) - gold).mean()

    return Of(forward, dict(transitions=torch.randn(5, 5) * 0.1, start=torch.randn(5) * 0.1, end=torch.randn(5) * 0.1), emb=nn.Embedding(20, 6),
              conv=nn.Conv1d(6, 8, 3, padding=1), emit=nn.Linear(8, 5))


@family(lambda: (torch.randn(6, 5), torch.randn(6, 1)), loss="own")
def quantile_heads():
    def forward(m, x, y):
        h = m.body(x)
        base = m.heads[0](h)
        steps = torch.cat([F.softplus(head(h)) for head in m.heads[1:]], -1)
        q = torch.cat([base, base + steps.cumsum(-1)], -1)
        e = y - q
        return (torch.maximum(m.levels * e, (m.levels - 1) * e) * m.weights).mean()

    return Of(forward, buffers=dict(levels=torch.tensor([0.1, 0.5, 0.9]), weights=torch.tensor([1.0, 2.0, 1.0])),
              body=nn.Sequential(nn.Linear(5, 8), nn.ELU(), nn.Linear(8, 8), nn.ELU()), heads=nn.ModuleList(nn.Linear(8, 1) for _ in range(3)))


@family(floats(4, 6))
def parameter_lists():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.ParameterList([nn.Parameter(torch.randn(6, 6) * 0.4) for _ in range(3)])
            self.biases = nn.ParameterList([nn.Parameter(torch.zeros(6)) for _ in range(3)])
            self.betas = nn.ParameterList([nn.Parameter(torch.ones(1)) for _ in range(3)])
            self.alpha = nn.ParameterList([nn.Parameter(torch.tensor(0.5)) for _ in range(3)])
            self.heads = nn.ParameterDict({"mean": nn.Parameter(torch.randn(6, 2)), "scale": nn.Parameter(torch.randn(6, 2))})

        def forward(self, x):
            for w, b, beta, alpha in zip(self.weights, self.biases, self.betas, self.alpha):
                z = torch.addmm(b, x, w)
                x = x + alpha * (z * torch.sigmoid(beta * z))
            return x @ self.heads["mean"] * torch.exp(0.1 * (x @ self.heads["scale"]))

    return Net()


@family(lambda: (torch.randint(0, 8, (4, 3)) * torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 1]]),))
def factorization_machine():
    def forward(m, fields):
        i = fields + m.offsets
        present = (fields != 0).unsqueeze(-1).float()
        v = m.factors(i) * present
        linear = (m.linear(i) * present).sum(1)
        pairs = 0.5 * (v.sum(1) ** 2 - (v**2).sum(1)).sum(-1, keepdim=True)
        return m.bias + linear + pairs + m.deep(v.flatten(1)) + m.tags(fields, per_sample_weights=m.position.expand(len(fields), -1))

    return Of(forward, dict(bias=torch.tensor([0.1]), position=torch.rand(3)), dict(offsets=torch.tensor([0, 8, 16])), factors=nn.Embedding(24, 4), linear=nn.Embedding(24, 1, padding_idx=0),
              deep=nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 1)), tags=nn.EmbeddingBag(8, 1, mode="sum"))


@family(lambda: (torch.randn(4, 6), torch.randn(4, 1), torch.randn(4, 2)), loss="own")
def task_uncertainty_and_unused():
    class MultiTask(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(6, 8), nn.Mish())
            self.tasks = nn.ModuleDict({"depth": nn.Linear(8, 1), "flow": nn.Linear(8, 2), "old": nn.Linear(8, 5)})
            self.log_vars = nn.Parameter(torch.tensor([0.1, -0.2, 0.0]))
            self.unused = nn.Parameter(torch.randn(3))
            self.register_buffer("step", torch.tensor(7))

        def forward(self, x, depth, flow):
            h = self.trunk(x)
            losses = torch.stack([F.l1_loss(self.tasks["depth"](h), depth), F.smooth_l1_loss(self.tasks["flow"](h), flow)])
            return (torch.exp(-self.log_vars[:2]) * losses + self.log_vars[:2]).sum()

    return MultiTask()


@family(floats(4, 6), loss="own", detaches=True)
def teacher_student():
    student = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 5))
    teacher = copy.deepcopy(student)
    for p in teacher.parameters():
        p.data.add_(torch.randn_like(p) * 0.2)

    def forward(m, x):
        with torch.no_grad():
            target = ((m.teacher(x) - m.center) / 0.5).softmax(-1)
        view = m.predictor(m.student(x * m.augment))
        return -(target.detach() * (view / 0.8).log_softmax(-1)).sum(-1).mean()

    m = Of(forward, buffers=dict(center=torch.randn(1, 5) * 0.1, augment=torch.rand(6) + 0.5), student=student, teacher=teacher, predictor=nn.Linear(5, 5))
    m.teacher.requires_grad_(False)
    return m


@family(floats(3, 4, 6), loss="own", detaches=True)
def vector_quantizer():
    def forward(m, x):
        z = m.encoder(x)
        flat = z.reshape(-1, 4)
        distance = flat.pow(2).sum(1, keepdim=True) - 2 * flat @ m.codebook.weight.t() + m.codebook.weight.pow(2).sum(1)
        q = m.codebook(distance.argmin(1)).view_as(z)
        loss = F.mse_loss(q, z.detach()) + 0.25 * F.mse_loss(z, q.detach())
        return loss + F.mse_loss(m.decoder(z + (q - z).detach()), x)

    return Of(forward, buffers=dict(cluster_size=torch.zeros(8)), encoder=nn.Linear(6, 4), decoder=nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6)),
              codebook=nn.Embedding(8, 4))


@family(lambda: (torch.rand(5, 3) * 1.8 - 0.9,))
def kan_splines():
    class KANLinear(nn.Module):
        """A layer of cubic B-splines on a fixed grid."""

        def __init__(self, n_in, n_out, cells=4, order=3):
            super().__init__()
            self.order = order
            knots = torch.arange(-order, cells + order + 1) * (2 / cells) - 1
            self.register_buffer("grid", knots.expand(n_in, -1).contiguous())
            self.base_weight = nn.Parameter(torch.randn(n_out, n_in) * 0.5)
            self.spline_weight = nn.Parameter(torch.randn(n_out, n_in, cells + order) * 0.1)
            self.spline_scaler = nn.Parameter(torch.ones(n_out, n_in))

        def bases(self, x):
            g, x = self.grid, x.unsqueeze(-1)
            b = ((x >= g[:, :-1]) & (x < g[:, 1:])).to(x.dtype)
            for k in range(1, self.order + 1):
                left = (x - g[:, : -(k + 1)]) / (g[:, k:-1] - g[:, : -(k + 1)])
                right = (g[:, k + 1 :] - x) / (g[:, k + 1 :] - g[:, 1:-k])
                b = left * b[..., :-1] + right * b[..., 1:]
            return b

        def forward(self, x):
            scaled = self.spline_weight * self.spline_scaler.unsqueeze(-1)
            return F.linear(F.silu(x), self.base_weight) + F.linear(self.bases(x).flatten(1), scaled.flatten(1))

    return nn.Sequential(KANLinear(3, 4), nn.Tanh(), KANLinear(4, 2))


@family(floats(2, 8, 4))
def state_space_scan():
    class SSM(nn.Module):
        def __init__(self, d=4, n=3):
            super().__init__()
            self.register_buffer("A", -torch.arange(1, n + 1).float().expand(d, -1).contiguous())
            self.log_dt = nn.Parameter(torch.rand(d) - 2)
            self.B = nn.Linear(d, n, bias=False)
            self.C = nn.Parameter(torch.randn(d, n))
            self.D = nn.Parameter(torch.ones(d))
            self.norm = nn.LayerNorm(d)
            self.out = nn.Linear(d, 2 * d)

        def forward(self, x):
            u = self.norm(x)
            dt = self.log_dt.exp().unsqueeze(-1)
            decay = torch.exp(dt * self.A)
            drive = self.B(u).unsqueeze(2) * u.unsqueeze(-1) * ((decay - 1) / self.A)
            h = torch.zeros_like(drive[:, 0])
            ys = []
            for t in range(x.shape[1]):
                h = decay * h + drive[:, t]
                ys.append((h * self.C).sum(-1))
            return x + F.glu(self.out(torch.stack(ys, 1) + u * self.D), -1)

    return nn.Sequential(SSM(), SSM())


@family(floats(2, 12), detaches=True)
def capsule_routing():
    def squash(s):
        n = (s**2).sum(-1, keepdim=True)
        return n / (1 + n) * s / torch.sqrt(n + 1e-8)

    def forward(m, x):
        u = squash(m.primary(x).view(-1, 5, 4))
        votes = (m.W @ u[:, :, None, :, None]).squeeze(-1)
        logits = torch.zeros(x.shape[0], 5, 3, 1)
        fixed = votes.detach()
        for _ in range(2):
            v = squash((logits.softmax(2) * fixed).sum(1, keepdim=True))
            logits = logits + (fixed * v).sum(-1, keepdim=True)
        return squash((logits.softmax(2) * votes).sum(1) + m.bias).norm(dim=-1)

    return Of(forward, dict(W=torch.randn(1, 5, 3, 6, 4) * 0.3, bias=torch.full((1, 3, 6), 0.05)), primary=nn.Linear(12, 20))


@family(lambda: (torch.randn(2, 5, 3), torch.randn(2, 4, 3)))
def deep_sets_one_norm():
    def encode(m, x):
        h = m.norm(F.relu(m.embed(x)))
        for layer in (m.phi1, m.phi2):
            h = h + m.norm(F.relu(layer(h - h.amax(1, keepdim=True))))
        return torch.cat([h.sum(1), h.amax(1)], -1)

    return Of(lambda m, a, b: m.rho(encode(m, a) - encode(m, b)), embed=nn.Linear(3, 6), phi1=nn.Linear(6, 6), phi2=nn.Linear(6, 6), norm=nn.LayerNorm(6),
              rho=nn.Sequential(nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 1)))


@family(floats(2, 2, 8, 8))
def conv_autoencoder_tied():
    def forward(m, x):
        z = F.relu(F.conv2d(x, m.w1, m.b1, stride=2, padding=1))
        z = F.relu(F.conv2d(z, m.w2, m.b2, stride=2, padding=1))
        y = F.relu(F.conv_transpose2d(z, m.w2, m.c2, stride=2, padding=1))
        return F.conv_transpose2d(y, m.w1, m.c1, stride=2, padding=1)

    return Of(forward, dict(w1=torch.randn(4, 2, 4, 4) * 0.2, b1=torch.randn(4) * 0.1, w2=torch.randn(6, 4, 4, 4) * 0.1, b2=torch.zeros(6), c2=torch.randn(4) * 0.1, c1=torch.zeros(2)))


@family(floats(1, 3, 8, 8))
def pixel_shuffle_unet():
    def forward(m, x):
        a = m.act(m.enc1(x))
        b = m.act(m.enc2(F.pixel_unshuffle(a, 2)))
        up = F.pixel_shuffle(m.expand(b), 2)
        y = m.dec(torch.cat([up, a * m.skip_scale], 1))
        return F.pixel_shuffle(m.tail(y), 2) + F.interpolate(x, scale_factor=2, mode="nearest")

    return Of(forward, dict(skip_scale=torch.full((1, 4, 1, 1), 0.7)), enc1=nn.Conv2d(3, 4, 3, padding=1), enc2=nn.Conv2d(16, 8, 3, padding=1), act=nn.PReLU(),
              expand=nn.Conv2d(8, 16, 1), dec=nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.InstanceNorm2d(8, affine=True), nn.LeakyReLU(0.1)), tail=nn.Conv2d(8, 12, 3, padding=1))


@family(lambda: (torch.randn(2, 5, 3), torch.randint(0, 4, (2,))))
def hypernetwork():
    def forward(m, x, task):
        generated = m.hyper(m.codes[task])
        w1, b1, w2 = generated.split([18, 6, 12], -1)
        h = torch.tanh(torch.bmm(x, w1.view(-1, 3, 6) + m.w_base) + b1.unsqueeze(1))
        return torch.baddbmm(m.b_out.expand(x.shape[0], 1, 2), h, w2.view(-1, 6, 2))

    return Of(forward, dict(codes=torch.randn(4, 4), w_base=torch.randn(3, 6), b_out=torch.zeros(2)), hyper=nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 36)))


@family(floats(2, 4, 4, 4), loss="own")
def glow_lu():
    class Step(nn.Module):
        def __init__(self, c=4):
            super().__init__()
            self.loc = nn.Parameter(torch.randn(1, c, 1, 1) * 0.1)
            self.log_scale = nn.Parameter(torch.randn(1, c, 1, 1) * 0.1)
            self.register_buffer("P", torch.eye(c)[[2, 0, 3, 1]])
            self.register_buffer("lower", torch.ones(c, c).tril(-1))
            self.register_buffer("eye", torch.eye(c), persistent=False)
            self.register_buffer("sign_s", torch.tensor([1.0, -1.0, 1.0, 1.0]))
            self.L = nn.Parameter(torch.randn(c, c) * 0.2)
            self.U = nn.Parameter(torch.randn(c, c) * 0.2)
            self.log_s = nn.Parameter(torch.randn(c) * 0.1)
            self.net = nn.Sequential(nn.Conv2d(c // 2, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, c, 3, padding=1))

        def forward(self, x):
            area = x.shape[2] * x.shape[3]
            x = (x + self.loc) * self.log_scale.exp()
            upper = self.U * self.lower.t() + torch.diag(self.sign_s * self.log_s.exp())
            w = self.P @ (self.L * self.lower + self.eye) @ upper
            a, b = F.conv2d(x, w[:, :, None, None]).chunk(2, 1)
            s, t = self.net(a).chunk(2, 1)
            s = torch.sigmoid(s + 2)
            return torch.cat([a, (b + t) * s], 1), area * (self.log_scale.sum() + self.log_s.sum()) + s.log().sum((1, 2, 3))

    def forward(m, x):
        total = 0
        for step in m.steps:
            x, logdet = step(x)
            total = total + logdet
        return (0.5 * x.pow(2).sum((1, 2, 3)) - total).mean() / 64

    return Of(forward, steps=nn.ModuleList([Step(), Step()]))


@family(floats(2, 3, 6, 6))
def weight_standardized():
    class StdConv2d(nn.Conv2d):
        def forward(self, x):
            v, mean = torch.var_mean(self.weight, dim=[1, 2, 3], keepdim=True, unbiased=False)
            return F.conv2d(x, (self.weight - mean) / torch.sqrt(v + 1e-5), self.bias, self.stride, self.padding, self.dilation, self.groups)

    return nn.Sequential(StdConv2d(3, 8, 3, padding=1, bias=False), nn.GroupNorm(2, 8), nn.ReLU(), StdConv2d(8, 8, 3, padding=1, groups=8),
                         nn.GroupNorm(1, 8), nn.Hardtanh(), nn.Conv2d(8, 2, 1))


@family(floats(4, 5))
def parametrized_weights():
    class Symmetric(nn.Module):
        def forward(self, w):
            return w.triu() + w.triu(1).transpose(-1, -2)

    class Positive(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("floor", torch.tensor(0.01))

        def forward(self, w):
            return F.softplus(w) + self.floor

    m = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5, bias=False), nn.Softplus(), nn.Linear(5, 2))
    parametrize.register_parametrization(m[0], "weight", Symmetric())
    parametrize.register_parametrization(m[2], "weight", Symmetric())
    parametrize.register_parametrization(m[2], "weight", Positive())
    return m


@family(floats(2, 5, 8))
def grouped_queries_concatenated():
    def forward(m, x):
        b, t, _ = x.shape
        w = torch.cat([m.wq, m.wk, m.wv], 0)
        q, k, v = F.linear(x, w, torch.cat([m.bq, m.zero_k, m.bv])).split([8, 4, 4], -1)
        q, k, v = q.view(b, t, 4, 2).transpose(1, 2), k.view(b, t, 2, 2).transpose(1, 2), v.view(b, t, 2, 2).transpose(1, 2)
        q, k = F.normalize(q, dim=-1) * m.q_scale[:, None, None], F.normalize(k, dim=-1)
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        a = torch.cat([q @ k.transpose(-1, -2), m.sink.view(1, 4, 1, 1).expand(b, -1, t, 1)], -1).softmax(-1)[..., :-1]
        return torch.einsum("bhtd,hde->bte", a @ v, m.wo.view(4, 2, 8))

    parameters = dict(wq=torch.randn(8, 8) * 0.3, wk=torch.randn(4, 8) * 0.3, wv=torch.randn(4, 8) * 0.3, bq=torch.zeros(8), bv=torch.zeros(4),
                      q_scale=torch.full((4,), 3.0), sink=torch.zeros(4), wo=torch.randn(8, 8) * 0.3)
    return Of(forward, parameters, dict(zero_k=torch.zeros(4)))


@family(tokens(2, 6), detaches=True)
def albert_factorized():
    class Albert(nn.Module):
        def __init__(self):
            super().__init__()
            self.word = nn.Embedding(20, 4, padding_idx=0)
            self.position = nn.Embedding(8, 4)
            self.kind = nn.Embedding(2, 4)
            self.register_buffer("position_ids", torch.arange(8).expand(1, -1), persistent=False)
            self.norm = nn.LayerNorm(4, eps=1e-12)
            self.up = nn.Linear(4, 8)
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
            self.ffn = nn.Sequential(nn.Linear(8, 16), nn.GELU(approximate="tanh"), nn.Linear(16, 8))
            self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
            self.dense = nn.Linear(8, 4)
            self.bias = nn.Parameter(torch.zeros(20))
            self.decoder = nn.Linear(4, 20)
            self.decoder.weight = self.word.weight
            self.decoder.bias = self.bias

        def forward(self, ids):
            x = self.up(self.norm(self.word(ids) + self.position(self.position_ids[:, : ids.shape[1]]) + self.kind(torch.zeros_like(ids))))
            padded = ids == 21
            for _ in range(2):
                x = self.norm1(x + self.attention(x, x, x, key_padding_mask=padded, need_weights=False)[0])
                x = self.norm2(x + self.ffn(x))
            return self.decoder(self.norm(F.gelu(self.dense(x))))

    return Albert()


@family(lambda: (torch.randn(3, 2, 4, 4), torch.tensor([1, 5, 9]), torch.randn(3, 2, 4, 4)), loss="own")
def diffusion_denoiser():
    def forward(m, x, t, noise):
        a = m.alphas_cumprod[t].view(-1, 1, 1, 1)
        noised = a.sqrt() * x + (1 - a).sqrt() * noise
        angle = t[:, None].float() * m.frequencies
        emb = m.time(torch.cat([angle.sin(), angle.cos()], -1))
        scale, shift = m.film(emb)[:, :, None, None].chunk(2, 1)
        h = m.norm(m.conv_in(noised)) * (1 + scale) + shift
        pred = m.conv_out(F.silu(h)) + m.skip(noised)
        return (m.snr_weight[t] * (pred - noise).pow(2).mean((1, 2, 3))).mean()

    bars = torch.cumprod(1 - torch.linspace(1e-4, 0.3, 12), 0)
    buffers = dict(alphas_cumprod=bars, snr_weight=(bars / (1 - bars)).clamp(max=5.0), frequencies=torch.exp(-math.log(1e4) * torch.arange(4) / 4))
    return Of(forward, buffers=buffers, time=nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 8)), film=nn.Linear(8, 16), conv_in=nn.Conv2d(2, 8, 3, padding=1),
              norm=nn.GroupNorm(4, 8, affine=False), conv_out=nn.Conv2d(8, 2, 3, padding=1), skip=nn.Conv2d(2, 2, 1))


@family(floats(3, 6))
def pruned_and_noisy_linear():
    class NoisyLinear(nn.Module):
        def __init__(self, n_in, n_out):
            super().__init__()
            self.weight_mu = nn.Parameter(torch.randn(n_out, n_in) * 0.3)
            self.weight_sigma = nn.Parameter(torch.full((n_out, n_in), 0.1))
            self.bias_mu, self.bias_sigma = nn.Parameter(torch.zeros(n_out)), nn.Parameter(torch.full((n_out,), 0.1))
            self.register_buffer("weight_epsilon", torch.outer(torch.randn(n_out), torch.randn(n_in)))
            self.register_buffer("bias_epsilon", torch.randn(n_out))

        def forward(self, x):
            return F.linear(x, self.weight_mu + self.weight_sigma * self.weight_epsilon, self.bias_mu + self.bias_sigma * self.bias_epsilon)

    def forward(m, x):
        h = F.relu(m.fc2(F.relu(m.fc1(x))))
        value, advantage = m.value(h), m.advantage(h)
        return value + advantage - advantage.mean(-1, keepdim=True)

    m = Of(forward, fc1=nn.Linear(6, 8), fc2=nn.Linear(8, 8), value=NoisyLinear(8, 1), advantage=NoisyLinear(8, 3))
    prune.l1_unstructured(m.fc1, "weight", amount=0.4)
    prune.ln_structured(m.fc2, "weight", amount=0.25, n=2, dim=0)
    return m


@family(floats(3, 6), detaches=True)
def learned_step_quantization():
    class LSQLinear(nn.Linear):
        def __init__(self, n_in, n_out, levels=7):
            super().__init__(n_in, n_out)
            self.levels = levels
            self.step = nn.Parameter(2 * self.weight.detach().abs().mean() / math.sqrt(levels))
            self.act_step = nn.Parameter(torch.tensor([0.25]))

        def quantized(self, x, step):
            x = (x / step).clamp(-self.levels - 1, self.levels)
            return (x + (x.round() - x).detach()) * step

        def forward(self, x):
            return F.linear(self.quantized(x, self.act_step), self.quantized(self.weight, self.step), self.bias)

    return nn.Sequential(LSQLinear(6, 8), nn.ReLU(), LSQLinear(8, 3))
