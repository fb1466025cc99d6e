#!/usr/bin/env python3
"""Launches of a training step: ampc's plan beside PyTorch's eager autocast, counted without a GPU.

    launches.py --ampc target/release/ampc [--only MODEL …]

The interpreter needs torch and torchvision. The models are those of tests/judge/full_size.py at full size, and the same
models in torch with one fused AdamW; both train in fp16 with a loss scaler. ampc's launches are the steps of `ampc plan
--device cuda` on the simulated device, which scripts/cuda-sim builds and the dynamic loader has to find.

PyTorch computes on fake tensors, and a dispatch mode sees each operator. An operator is a launch unless it makes a view or
memory without elements; GradScaler's operators and the fused optimizer are counted by the rules in `multi_tensor`. Operators
whose CUDA implementation has several kernels count once, so that the numbers of PyTorch are lower bounds; attention
counts as one launch forward and one backward. The lists of operators are those of CUDA's autocast: on fake CPU tensors
LayerNorm is the one operator of these models whose rule differs, and is given CUDA's rule.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import warnings
from argparse import ArgumentParser
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

HERE = Path(__file__).resolve().parent
JUDGES = HERE.parent.parent / "tests" / "judge"
sys.path.insert(0, str(JUDGES))

import full_size  # noqa: E402

FAMILIES = ["products", "convolutions", "attention", "others"]
LIMITS = {"bert-base": 0.5, "gpt2": 0.5, "vit": 0.5, "resnet50": 0.7}
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm"}
# Memory without elements, and views that the schema does not mark.
NO_LAUNCH = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", "detach", "lift_fresh"}
# Tensors and blocks of a launch of multi_tensor_apply by the number of its lists, and the elements of a block.
MOST_TENSORS, MOST_BLOCKS, CHUNK = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}, 320, 65536


def multi_tensor(sizes: list[int], lists: int) -> int:
    """The launches of multi_tensor_apply over tensors of these sizes."""
    launches = tensors = blocks = 0
    for at, size in enumerate(sizes):
        tensors += 1
        chunks = -(-size // CHUNK)
        for chunk in range(chunks):
            blocks += 1
            is_last = chunk == chunks - 1
            if (tensors == MOST_TENSORS[lists] and is_last) or blocks == MOST_BLOCKS or (at == len(sizes) - 1 and is_last):
                launches += 1
                blocks = 0
                # A tensor with further chunks stays.
                tensors = 0 if is_last else 1
    return launches


class Attention(torch.autograd.Function):
    """Flash attention as one launch forward and one backward, with the layout of its results."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, seen: list[str]) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.seen = seen
        seen.append("attention")
        return q.new_empty(q.transpose(1, 2).shape).transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        ctx.seen.append("attention")
        return *(x.new_empty(x.transpose(1, 2).shape).transpose(1, 2) for x in ctx.saved_tensors), None


class Layer(nn.Module):
    """Attention with separate projections and a feed-forward network, as full_size.py writes them."""

    def __init__(self, width: int, heads: int, is_before: bool, gelu: str, seen: list[str]) -> None:
        super().__init__()
        self.heads, self.is_before, self.gelu, self.seen = heads, is_before, gelu, seen
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def attention(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = [f(x).view(batch, length, self.heads, width // self.heads).transpose(1, 2) for f in (self.q, self.k, self.v)]
        return self.out(Attention.apply(*heads, self.seen).transpose(1, 2).reshape(batch, length, width))

    def network(self, x: Tensor) -> Tensor:
        return self.narrow(F.gelu(self.wide(x), approximate=self.gelu))

    def forward(self, x: Tensor) -> Tensor:
        if self.is_before:
            x = x + self.attention(self.norm1(x))
            return x + self.network(self.norm2(x))
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.network(x))


class Text(nn.Module):
    """BERT-base with the scores of a span, or GPT-2 small with tied weights."""

    def __init__(self, tokens: int, length: int, is_gpt: bool, seen: list[str]) -> None:
        super().__init__()
        self.is_gpt = is_gpt
        self.tokens, self.positions = nn.Embedding(tokens, 768), nn.Parameter(torch.empty(length, 768))
        gelu = "tanh" if is_gpt else "none"
        self.layers = nn.ModuleList(Layer(768, 12, is_gpt, gelu, seen) for _ in range(12))
        self.norm = nn.LayerNorm(768)
        self.head = None if is_gpt else nn.Linear(768, 2)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions
        if self.head is not None:
            x = self.norm(x)
        for layer in self.layers:
            x = layer(x)
        if self.head is not None:
            return self.head(x.view(-1, 768))
        return F.linear(self.norm(x).view(-1, 768), self.tokens.weight)


class Vision(nn.Module):
    """ViT-B/16."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 768, 16, 16)
        self.cls, self.positions = nn.Parameter(torch.empty(1, 1, 768)), nn.Parameter(torch.empty(1, 197, 768))
        self.layers = nn.ModuleList(Layer(768, 12, True, "none", seen) for _ in range(12))
        self.norm, self.head = nn.LayerNorm(768), nn.Linear(768, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


def torch_model(name: str, seen: list[str]) -> tuple[nn.Module, Tensor, Tensor]:
    """A model, a batch, and its targets."""

    def targets(count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.int64)

    if name == "bert-base":
        return Text(30522, 128, False, seen), torch.zeros(8, 128, dtype=torch.int64), targets(8 * 128)
    if name == "gpt2":
        return Text(50257, 256, True, seen), torch.zeros(4, 256, dtype=torch.int64), targets(4 * 256)
    if name == "vit":
        return Vision(seen), torch.zeros(16, 3, 224, 224), targets(16)
    from torchvision.models import resnet50

    return resnet50(), torch.zeros(16, 3, 224, 224), targets(16)


class Launches(TorchDispatchMode):
    """Counts the operators that launch kernels, by family."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = op(*args, **(kwargs or {}))
        name = op._schema.name.split("::")[1]
        returns = op._schema.returns
        is_view = bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)
        if op.namespace != "aten" or is_view or name in NO_LAUNCH:
            return result
        if name in PRODUCTS:
            self.seen.append("products")
        elif name == "convolution":
            self.seen.append("convolutions")
            # cuDNN adds a bias by a kernel of its own.
            self.seen.extend(["others"] if args[2] is not None else [])
        elif name == "convolution_backward":
            mask = args[10] if len(args) > 10 else kwargs["output_mask"]
            self.seen.extend(family for family, made in zip(["convolutions", "convolutions", "others"], mask) if made)
        else:
            self.seen.append("others")
        return result


def cuda_rules() -> torch.library.Library:
    """Gives LayerNorm the rule of CUDA's autocast: it computes in fp32."""

    def layer_norm(x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5, cudnn: bool = True) -> Tensor:
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
            return torch.ops.aten.layer_norm(x.float(), shape, weight, bias, eps, cudnn)

    library = torch.library.Library("aten", "IMPL", "AutocastCPU")
    library.impl("layer_norm", layer_norm)
    return library


def of_torch(name: str) -> Counter[str]:
    """The launches of a step of PyTorch."""
    seen: list[str] = []
    with FakeTensorMode():
        model, x, target = torch_model(name, seen)
        sizes = [parameter.numel() for parameter in model.parameters()]
        scale = torch.ones(())
        with Launches(seen):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(model(x).float(), target)
            (loss * scale).backward()
    # GradScaler: the reciprocal of the scale through f64, the flag, the check of all gradients and the update of the scale.
    scaler = 3 + 1 + multi_tensor(sizes, 1) + 1
    # The optimizer: the step counters, their correction where a gradient is not finite, and the update itself.
    counters = [1] * len(sizes)
    optimizer = 2 * multi_tensor(counters, 1) + multi_tensor(sizes, 4)
    return Counter(seen) + Counter(others=scaler + optimizer)


def run(binary: str, *args: str | Path) -> str:
    return subprocess.run([binary, *map(str, args)], capture_output=True, text=True, check=True).stdout


def of_ampc(binary: str, name: str) -> Counter[str]:
    """The launches of the plan of ampc's step."""
    import cuda_plans

    with tempfile.TemporaryDirectory() as folder:
        model, step, state = (Path(folder) / file for file in ("model.ir", "step.onnx", "state.safetensors"))
        model.write_text(full_size.MODELS[name]())
        options = ["--loss", "output:loss", "--optimizer", "adamw", "--to", "fp16", "-o", step, "--state", state, "-q"]
        run(binary, "train-step", model, *options)
        document = json.loads(run(binary, "plan", step, "--device", "cuda", "--json", "-q"))
    found = cuda_plans.row(document)
    return Counter({family: int(found[cuda_plans.HEADING.index(family) - 2]) for family in FAMILIES})


def main() -> int:
    warnings.filterwarnings("ignore")
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ampc", required=True)
    parser.add_argument("--only", nargs="*", default=list(LIMITS))
    args = parser.parse_args()
    rules = cuda_rules()
    print("| model | | " + " | ".join(FAMILIES) + " | others, ampc / torch | goal |")
    print("|---|---|" + "---:|" * (len(FAMILIES) + 2))
    for name in args.only:
        ampc, peer = of_ampc(args.ampc, name), of_torch(name)
        ratio = ampc["others"] / peer["others"]
        print(f"| {name} | ampc | " + " | ".join(str(ampc[family]) for family in FAMILIES) + f" | {ratio:.2f} | {LIMITS[name]} |")
        print("| | torch | " + " | ".join(str(peer[family]) for family in FAMILIES) + " | | |", flush=True)
    del rules
    return 0


if __name__ == "__main__":
    sys.exit(main())
