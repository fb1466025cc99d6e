"""Models of PyTorch, exported by its default exporter without options, train as in PyTorch or warn of each difference by name.

Each family of `exporter_families*.py` is exported twice: with the parameters that it begins with, many of which are equal, and
with random ones, as of a trained model. `ampc train-step --fp32` makes a step of SGD of each export, `ampc run` computes one
step at a rate of 1, and the changes of the weights are compared with the gradients of autograd. A family passes if

- each parameter with a gradient in PyTorch is trained with this gradient, or a warning names it;
- each trained tensor is a parameter of PyTorch, or a warning names it;
- each BatchNormalization that updates its statistics in PyTorch updates them in the step, or a warning names it;
- an operator without gradient is refused with exit code 4.

No file says which parameters have no `requires_grad`, so the judge freezes them by name, as docs/training.md tells users.

Where PyTorch is not installed (in the Python that runs the judge, or the one of AMPC_TORCH), the judge says so and passes.
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
import warnings
from argparse import ArgumentParser
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

try:
    import numpy as np
    import torch
except ImportError:
    torch = None

# The metadata of nodes that small exports keep.
KEPT = ("pkg.torch.onnx.fx_node", "pkg.onnxscript.rewriter.rule_name")
MODULES = ("exporter_families", "exporter_families_more", "exporter_families_blind")
# Gradients may be off by this share of the largest element of all gradients of a model.
TOLERANCE = 1e-4


@dataclass
class Result:
    """What became of one export."""

    name: str
    parameters: int = 0
    same: int = 0
    told: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    refused: str = ""


def read_safetensors(path: Path) -> dict[str, Any]:
    """The tensors of a state."""
    kinds = {"F32": "<f4", "F64": "<f8", "I64": "<i8", "I32": "<i4", "U64": "<u8", "F16": "<f2", "BOOL": "?", "U8": "<u1"}
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    found = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__":
            begin, end = (8 + length + at for at in entry["data_offsets"])
            array = np.frombuffer(data[begin:end], kinds[entry["dtype"]])
            found[name] = array.reshape(entry["shape"])
    return found


def same_layout(mine, theirs) -> str | None:
    """How a tensor of the step is laid out that is a parameter of PyTorch."""
    if mine.shape == theirs.shape and np.array_equal(mine, theirs):
        return "same"
    if theirs.ndim == 2 and mine.shape == theirs.T.shape and np.array_equal(mine, theirs.T):
        return "transposed"
    if mine.size == theirs.size and np.array_equal(mine.ravel(), theirs.ravel()):
        return "reshaped"
    return None


def laid_out(gradient, layout: str, shape):
    return gradient.T if layout == "transposed" else gradient.reshape(shape)


def train_in_torch(model, args, loss: str, target):
    """Gradients by name, of parameters that have one, and buffers that change."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model.zero_grad()
    output = model(*args)
    output = output[0] if isinstance(output, tuple) else output
    value = output if loss == "own" else torch.nn.functional.mse_loss(output, target)
    value.backward()
    gradients = {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}
    changed = [n for n, buffer in model.named_buffers() if buffer.is_floating_point() and not torch.equal(buffer, buffers[n])]
    return gradients, changed


def export(model, args, path: Path, recipe: str = "default") -> None:
    """Exports a model without options, or by a recipe of docs/training.md."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if recipe == "default":
            torch.onnx.export(model, args, str(path), verbose=False)
        elif recipe == "dynamo":
            from onnxscript.optimizer import fold_constants

            def should_fold(node):
                reads_weight = any(value is not None and value.is_initializer() for value in node.inputs)
                return False if reads_weight else None

            program = torch.onnx.export(model, args, dynamo=True, optimize=False, verbose=False)
            fold_constants(program.model, should_fold=should_fold)
            program.save(str(path))
        else:
            mode = torch.onnx.TrainingMode.TRAINING if model.training else torch.onnx.TrainingMode.PRESERVE
            torch.onnx.export(model, args, str(path), dynamo=False, training=mode, do_constant_folding=False)


def write_small(folder: Path, families) -> None:
    """Writes exports for tests that have no PyTorch: without data files, and without paths of the machine."""
    import onnx

    folder.mkdir(parents=True, exist_ok=True)
    for family in families:
        torch.manual_seed(7)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(family.make(), family.args(), str(folder / "all.onnx"), verbose=False, external_data=False)
        model = onnx.load(folder / "all.onnx")
        for node in model.graph.node:
            kept = [entry for entry in node.metadata_props if entry.key in KEPT]
            del node.metadata_props[:]
            node.metadata_props.extend(kept)
        onnx.save(model, folder / f"{family.name}.onnx")
        (folder / "all.onnx").unlink()


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def is_named(name: str, texts: list[str]) -> bool:
    """True if a warning has the name, in backquotes."""
    return any(f"`{name}`" in text for text in texts)


def judge(ampc: str, family, model, work: Path, name: str, recipe: str) -> Result:
    result = Result(name)
    source, step, state = work / "model.onnx", work / "step.onnx", work / "state.safetensors"
    args = family.args()
    export(model, args, source, recipe)
    with torch.no_grad():
        output = model(*args)
        output = output[0] if isinstance(output, tuple) else output
    target = torch.randn(output.shape)
    initial = {n: p.detach().numpy().copy() for n, p in model.named_parameters()}
    # A parameter of two modules has two names, of which the exporter takes one.
    first = {id(p): n for n, p in model.named_parameters()}
    aliases = {n: first[id(p)] for n, p in model.named_parameters(remove_duplicate=False)}
    wanted, changed = train_in_torch(model, args, family.loss, target)
    import onnx

    graph = onnx.load(source, load_external_data=False).graph
    loss = f"output:{graph.output[0].name}" if family.loss == "own" else "mse"
    report = work / "report.json"
    command = [ampc, "train-step", str(source), "-o", str(step), "--state", str(state), "--loss", loss, "--fp32",
               "--optimizer", "sgd", "--force", "--report", str(report), "--target-input", "target_", "--freeze-unused",
               *family.options]
    made = run(*command)
    # No file says which parameters PyTorch does not train: a user freezes them by name.
    frozen = {n for n, p in model.named_parameters() if not p.requires_grad}
    if made.returncode == 0 and frozen:
        listed = json.loads(report.read_text())["parameters"]
        frozen &= {p["name"] for p in listed} | {p["origin"] for p in listed if "origin" in p}
        made = run(*command, *(word for n in sorted(frozen) for word in ("--freeze", n)))
    if made.returncode != 0:
        result.refused = made.stderr.strip().splitlines()[0] if made.stderr.strip() else f"exit {made.returncode}"
        names_all = "computed constants" in made.stderr and all(f"`{name}`" in made.stderr for name in wanted)
        if "bug" in made.stderr or made.returncode != 4 and not names_all:
            result.problems.append(f"exit code {made.returncode}: {made.stderr.strip()}")
        return result
    told = [w["message"] for w in json.loads(report.read_text())["warnings"]]
    now = read_safetensors(state)
    feeds = dict(now)
    for info, tensor in zip(graph.input, args):
        feeds[info.name] = tensor.numpy()
    if family.loss != "own":
        feeds["target_"] = target.numpy()
    feeds["lr"] = np.array(1.0, np.float32)
    np.savez(work / "feeds.npz", **feeds)
    ran = run(ampc, "run", str(step), "--inputs", str(work / "feeds.npz"), "--outputs", str(work / "out.npz"), "--force")
    if ran.returncode != 0:
        result.problems.append(f"the step does not run: {ran.stderr.strip()}")
        return result
    out = np.load(work / "out.npz")
    kinds = {s["in"]: s["kind"] for s in json.loads(next(p.value for p in onnx.load(step, load_external_data=False).metadata_props if p.key == "ampc.state"))}
    compare(result, family, initial, aliases, wanted, now, out, kinds, told, json.loads(report.read_text()))
    if [n for n in changed if n.endswith("running_var")] and not family.random:
        updated = {name for name, kind in kinds.items() if kind == "buffer"}
        for buffer in changed:
            module = buffer.rsplit(".", 1)[0]
            if buffer not in updated and not (is_named(buffer, told) or is_named(module, told)):
                result.problems.append(f"`{buffer}` changes in PyTorch, not in the step, and no warning names it")
    return result


def compare(result, family, initial, aliases, wanted, now, out, kinds, told, report) -> None:
    largest = max((float(np.abs(g).max()) for g in wanted.values()), default=1.0) or 1.0
    origins = {p["name"]: p.get("origin", p["name"]) for p in report["parameters"]}
    trained: dict[str, Any] = {}
    for name, kind in kinds.items():
        if kind != "weight":
            continue
        origin = aliases.get(origins.get(name, name), "")
        if origin not in initial:
            if not is_named(name, told):
                result.problems.append(f"`{name}` is trained, no parameter of PyTorch, and no warning names it")
            continue
        layout = same_layout(now[name], initial[origin])
        if layout is None:
            if not is_named(origin, told) and not is_named(name, told):
                result.problems.append(f"`{name}` is trained as `{origin}`, but has other elements")
            continue
        change = laid_out(now[name] - out[f"{name}_next"], layout, initial[origin].shape)
        trained[origin] = trained[origin] + change if origin in trained else change
    result.parameters = len(wanted)
    # With running statistics instead of those of the batch, all gradients are others.
    is_inference = any("trains in PyTorch (statistics of the batch)" in text for text in told)
    for name, gradient in wanted.items():
        if name not in trained:
            is_zero = not np.any(gradient)
            if is_named(name, told):
                result.told.append(name)
            elif is_zero:
                result.same += 1
            else:
                result.problems.append(f"`{name}` is trained in PyTorch, not in the step, and no warning names it")
            continue
        off = float(np.abs(trained[name] - gradient).max()) / largest
        if family.random or family.detaches or off <= TOLERANCE:
            result.same += 1
        elif is_named(name, told) or is_inference:
            result.told.append(name)
        else:
            result.problems.append(f"the gradient of `{name}` is {off:.1e} of the largest off, and no warning names it")
    for name in set(trained) - set(wanted):
        if np.any(trained[name]) and not is_named(name, told):
            result.problems.append(f"`{name}` is trained in the step, not in PyTorch, and no warning names it")


def main() -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--ampc", default=os.environ.get("AMPC_BIN"), help="the binary [AMPC_BIN]")
    parser.add_argument("--families", default="", help="names, with commas [all]")
    parser.add_argument("--module", default=",".join(MODULES), help="the modules that have the families, with commas")
    parser.add_argument("--recipe", default="default", choices=("default", "dynamo", "legacy"), help="how models are exported")
    parser.add_argument("--write", type=Path, help="write small exports of the families there, and do nothing else")
    parser.add_argument("--keep", type=Path, help="a folder for the exports")
    args = parser.parse_args()
    if torch is None:
        other = os.environ.get("AMPC_TORCH")
        if other and Path(other).exists() and Path(other).resolve() != Path(sys.executable).resolve():
            os.execv(other, [other, *sys.argv])
        print("skipped: PyTorch is not installed (AMPC_TORCH may name a Python that has it)")
        return 0
    families = [family for module in args.module.split(",") for family in __import__(module).FAMILIES]
    chosen = [f for f in families if not args.families or f.name in args.families.split(",")]
    chosen = [f for f in chosen if args.recipe in f.recipes]
    if args.write:
        write_small(args.write, chosen)
        return 0
    if not args.ampc or not Path(args.ampc).exists():
        parser.error("no binary: give --ampc or set AMPC_BIN")
    failed, silent = 0, 0
    for family in chosen:
        for variant in ("fresh", "trained"):
            name = f"{family.name}.{variant}"
            torch.manual_seed(7)
            model = family.make()
            if variant == "trained":
                with torch.no_grad():
                    for tensor in [*model.parameters(), *(b for n, b in model.named_buffers() if "running" in n)]:
                        tensor += 0.1 * torch.rand_like(tensor)
            with tempfile.TemporaryDirectory() as scratch:
                work = args.keep / name if args.keep else Path(scratch)
                work.mkdir(parents=True, exist_ok=True)
                try:
                    result = judge(str(Path(args.ampc).resolve()), family, model, work, name, args.recipe)
                except Exception as error:
                    result = Result(name, problems=[f"{type(error).__name__}: {error}"])
            failed += bool(result.problems)
            silent += not result.told and not result.refused and not result.problems
            verdict = "refused" if result.refused else f"{result.same} of {result.parameters} as in PyTorch"
            told = f", told: {', '.join(result.told)}" if result.told else ""
            print(f"{name:32} {verdict}{told}{' ' + result.refused if result.refused else ''}")
            for problem in result.problems:
                print(f"    {problem}")
            sys.stdout.flush()
    print(f"{2 * len(chosen)} exports: {silent} train as in PyTorch, {failed} differ without a warning")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
