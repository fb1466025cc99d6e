"""Little memory: every command on eight models under limits of the address space ends with a result or a message.

The exit code is 0, 5 (the system refused memory), 3 (a limit of the runtime spoke) or, of what compares models, 1;
never a signal, and what fails says why and leaves no file behind. The models are made here, from texts whose weights
are random; a sample of the runs is taken without `--all`, which takes all of them, and larger models.

    memory_limits.py --ampc BIN [--all] [--corpus ignored]
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Callable

MB = 1 << 20
LIMITS = [96, 128, 192, 256, 384, 512, 768, 1024]
SEED = 17
SAMPLE = 60
TIMEOUT = 120
HEAD = "module ir=10\nopset ai.onnx=21\n\ngraph @main {\n"


def mlp(mb: int, dtype: str = "f32") -> str:
    """Two products with weights of so many megabytes in all."""
    size = 4 if dtype == "f32" else 2
    hidden = mb * MB // (2 * 1024 * size)
    return (
        f"{HEAD}  input %x : {dtype}[4, 1024]\n"
        f"  const %w : {dtype}[1024, {hidden}] = random(1)\n  const %v : {dtype}[{hidden}, 1024] = random(2)\n"
        f"  %1 = MatMul(%x, %w) : {dtype}[4, {hidden}]\n  %2 = Relu(%1) : {dtype}[4, {hidden}]\n"
        f"  %y = MatMul(%2, %v) : {dtype}[4, 1024]\n  output %y : {dtype}[4, 1024]\n}}\n"
    )


def conv(mb: int) -> str:
    """Convolutions of 3 by 3 with as many layers as fill so many megabytes."""
    layers, lines, last = max(1, mb * MB // (256 * 256 * 9 * 4)), [], "x"
    for i in range(layers):
        lines.append(f"  const %w{i} : f32[256, 256, 3, 3] = random({i + 1})")
    for i in range(layers):
        lines.append(f"  %c{i} = Conv(%{last}, %w{i}) {{pads=[1, 1, 1, 1]}} : f32[1, 256, 16, 16]")
        lines.append(f"  %r{i} = Relu(%c{i}) : f32[1, 256, 16, 16]")
        last = f"r{i}"
    return f"{HEAD}  input %x : f32[1, 256, 16, 16]\n" + "\n".join(lines) + f"\n  output %{last}\n}}\n"


def transformer(mb: int) -> str:
    """Attention without heads, and a product, in layers of 8 MB."""
    layers, lines, last = max(1, mb // 8), [], "x"
    consts = [f"  const %{n}{i} : f32[724, 724] = random({4 * i + k})" for i in range(layers) for k, n in enumerate("qkvo")]
    t = "f32[32, 724]"
    for i in range(layers):
        lines += [
            f"  %a{i} = MatMul(%{last}, %q{i}) : {t}",
            f"  %b{i} = MatMul(%{last}, %k{i}) : {t}",
            f"  %d{i} = MatMul(%{last}, %v{i}) : {t}",
            f"  %e{i} = Transpose(%b{i}) : f32[724, 32]",
            f"  %s{i} = MatMul(%a{i}, %e{i}) : f32[32, 32]",
            f"  %p{i} = Softmax(%s{i}) : f32[32, 32]",
            f"  %m{i} = MatMul(%p{i}, %d{i}) : {t}",
            f"  %n{i} = MatMul(%m{i}, %o{i}) : {t}",
            f"  %t{i} = Add(%n{i}, %{last}) : {t}",
        ]
        last = f"t{i}"
    return f"{HEAD}  input %x : {t}\n" + "\n".join(consts + lines) + f"\n  output %{last}\n}}\n"


def many(mb: int) -> str:
    """Sums with constants of a kilobyte, as many as fill so many megabytes."""
    n = mb * 1024
    consts = [f"  const %w{i} : f32[256] = random({i + 1})" for i in range(n)]
    sums = [f"  %s{i} = Add(%{'x' if i == 0 else f's{i - 1}'}, %w{i}) : f32[256]" for i in range(n)]
    return f"{HEAD}  input %x : f32[256]\n" + "\n".join(consts + sums) + f"\n  output %s{n - 1}\n}}\n"


def embedding(mb: int) -> str:
    """One table."""
    rows = mb * MB // 1024
    return (
        f"{HEAD}  input %x : i64[4]\n  const %w : f32[{rows}, 256] = random(1)\n"
        f"  %y = Gather(%w, %x) : f32[4, 256]\n  %z = Relu(%y) : f32[4, 256]\n  output %z\n}}\n"
    )


def deep(mb: int) -> str:
    """Bodies in bodies, 60 deep, around a product."""
    rows, depth = mb * MB // 4096, 60
    text = f"{HEAD}  input %c : bool\n  input %x : f32[4, {rows}]\n  const %w : f32[{rows}, 1024] = random(1)\n"
    inner = "%y{i} = MatMul(%x, %w) : f32[4, 1024]"
    for i in range(depth):
        text += "  " * (i + 1) + f"%y{i} = If(%c; %c, %x, %w) {{\n" + "  " * (i + 1) + "then_branch: graph (%c, %x, %w) {\n"
    text += inner.format(i=depth) + "\n"
    for i in reversed(range(depth)):
        text += f"output %y{i + 1}\n}}, else_branch: graph (%c, %x, %w) {{\n%z{i} = MatMul(%x, %w) : f32[4, 1024]\noutput %z{i}\n}}\n"
        text += "} : f32[4, 1024]\n"
    return text + "  output %y0\n}\n"


# Name, text by size, megabytes in the sample and of all, options of making it.
MODELS: list[tuple[str, Callable[[int], str], int, int, list[str]]] = [
    ("mlp", mlp, 24, 250, []),
    ("conv", conv, 24, 60, []),
    ("transformer", transformer, 40, 120, []),
    ("many", many, 8, 20, []),
    ("embedding", embedding, 80, 500, []),
    ("half", lambda mb: mlp(mb, "f16"), 24, 100, []),
    ("external", mlp, 60, 200, ["--external-data", "always"]),
    ("deep", deep, 24, 60, []),
]


def commands(model: str, out: str) -> dict[str, list[str]]:
    """What is tried on a model; `out` is a name in an empty folder."""
    run = ["--random", "1"]
    return {
        "rewrite fp16": ["rewrite", model, "--to", "fp16", "-o", f"{out}.onnx"],
        "rewrite bf16": ["rewrite", model, "--to", "bf16", "-o", f"{out}.onnx"],
        "rewrite text": ["rewrite", model, "--emit", "text", "-o", f"{out}.ir"],
        "rewrite json": ["rewrite", model, "--emit", "json", "-o", f"{out}.json"],
        "rewrite emulated": ["rewrite", model, "--emit", "emulated", "-o", f"{out}.onnx"],
        "rewrite external": ["rewrite", model, "--external-data", "always", "-o", f"{out}.onnx"],
        "rewrite --verify": ["rewrite", model, "--verify", *run, "-o", f"{out}.onnx"],
        "opt": ["opt", model, "--passes", "dce", "-o", f"{out}.onnx"],
        "check": ["check", model],
        "inspect": ["inspect", model],
        "run": ["run", model, *run],
        "run --outputs": ["run", model, *run, "--outputs", f"{out}.npz"],
        "run --threads 8": ["run", model, *run, "--threads", "8"],
        "verify": ["verify", model, model, *run],
    }


def make(ampc: str, folder: Path, everything: bool) -> list[Path]:
    """The models, as ONNX."""
    paths = []
    for name, text, small, large, options in MODELS:
        source, path = folder / f"{name}.ir", folder / f"{name}.onnx"
        source.write_text(text(large if everything else small))
        done = subprocess.run([ampc, "opt", str(source), "--passes", "dce", "-o", str(path), *options], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{name} cannot be made: {done.stderr}")
        paths.append(path)
    return paths


def limited(limit: int) -> Callable[[], None]:
    """Gives a process so many megabytes of address space."""
    def set_limits() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (limit * MB, limit * MB))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return set_limits


def faults(ampc: str, limit: int, path: Path, name: str, work: Path) -> tuple[int | None, list[str]]:
    """The exit code of one run, and what is wrong with it."""
    folder = Path(tempfile.mkdtemp(dir=work))
    arguments = commands(str(path), str(folder / "out"))[name]
    try:
        done = subprocess.run(
            [ampc, *arguments], capture_output=True, text=True, timeout=TIMEOUT, preexec_fn=limited(limit), cwd=folder,
            env={**os.environ, "RUST_BACKTRACE": "0"},
        )
    except subprocess.TimeoutExpired:
        return None, ["no end"]
    left = sorted(p.name for p in folder.iterdir())
    shutil.rmtree(folder)
    found, code = [], done.returncode
    allowed = {0, 3, 5} | ({1} if "verify" in name else set())
    if code not in allowed:
        found.append(f"exit code {code}: {done.stderr.strip()[-300:]}")
    if code != 0 and not done.stderr.strip() and not done.stdout.strip():
        found.append(f"exit code {code} without a word")
    if code != 0 and left:
        found.append(f"exit code {code} leaves {', '.join(left)}")
    if any(n.endswith(".tmp") for n in left):
        found.append(f"temporary files: {', '.join(left)}")
    return code, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ampc", default=os.environ.get("AMPC_BIN"), help="the binary [AMPC_BIN]")
    parser.add_argument("--corpus", help="not used: the models are made here")
    parser.add_argument("--all", action="store_true", help="every run, on models of up to 500 MB")
    parser.add_argument("--sample", type=int, default=SAMPLE, help=f"runs without --all [{SAMPLE}]")
    parser.add_argument("--limits", default=",".join(map(str, LIMITS)), help="megabytes")
    parser.add_argument("--workers", type=int, default=2, help="processes [2]")
    args = parser.parse_args()
    if not args.ampc or not Path(args.ampc).exists():
        parser.error("no binary: give --ampc or set AMPC_BIN")
    ampc = str(Path(args.ampc).resolve())
    limits = [int(n) for n in args.limits.split(",")]
    with tempfile.TemporaryDirectory() as root:
        models, work = Path(root) / "models", Path(root) / "work"
        models.mkdir()
        work.mkdir()
        paths = make(ampc, models, args.all)
        runs = [(limit, path, name) for path in paths for limit in limits for name in commands("", "")]
        if not args.all:
            runs = random.Random(SEED).sample(runs, min(args.sample, len(runs)))
        codes: Counter[int | None] = Counter()
        wrong = []
        with ThreadPoolExecutor(args.workers) as pool:
            results = pool.map(lambda r: (r, *faults(ampc, *r, work)), runs)
            for (limit, path, name), code, found in results:
                codes[code] += 1
                wrong += [f"{limit} MB, {path.stem}, {name}: {fault}" for fault in found]
    print(f"{len(runs)} runs; exit codes: {dict(sorted(codes.items(), key=str))}")
    for line in wrong:
        print(f"WRONG: {line}")
    # A sample in which nothing fails, or nothing works, shows nothing.
    if not wrong and (codes[0] == 0 or codes[5] == 0):
        print("WRONG: expected runs that end with 0 and runs that end with 5")
        return 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
