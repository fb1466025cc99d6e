"""Training steps of random graphs in ONNX Runtime at its default level, next to ampc's own runtime.

Steps run with all optimizers on, as they do for a user who sets nothing, so that an optimizer that computes what `train-step`
writes wrong, or refuses it, is found. The graphs are those of `tests/common/random_gradients.rs` in fp32, with the mean of what
leaves them as the loss, trained by SGD with a rate of 1, so that the next weights show the gradients. The loss and all
next states are within 1e-4 of ampc's, of the largest number of the tensor and of its change. Where they are not, and the step
without optimizers is as far off, a maximum, a rounding or a sort has gone to the other side: this is counted, and may be so in
1 % of the graphs.

First the two faults of ONNX Runtime 1.31.1 are shown that the pass `avoid-fusions` is for; if one is gone, the pass need not
avoid it any more and this judge fails.

    steps_in_onnxruntime.py --ampc BIN [--count N] [--seed N]
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parents[2]
TOLERANCE, SIDES = 1e-4, 0.01
DEFAULT, NONE = (
    onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
    onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
)
onnxruntime.set_default_logger_severity(4)


class Generator:
    """The graphs of `random_gradients.rs`: its steps and its head."""

    def __init__(self) -> None:
        source = (ROOT / "tests/common/random_gradients.rs").read_text()
        steps, head = source.split("const STEPS")[1].split("const HEAD")
        self.steps = [json.loads(text) for text in re.findall(r'^    ("(?:[^"\\]|\\.)*"),$', steps, re.MULTILINE)]
        self.head = head.split('"')[1]
        if len(self.steps) < 70 or not self.head.startswith("opset"):
            raise ValueError("random_gradients.rs is written in another way than this judge reads")

    def graph(self, draw: random.Random) -> str:
        """The text of a forward model whose output `loss` is its loss."""
        lines, values, read = [], ["%x", "%y"], {"%x", "%y"}
        for at in range(draw.randint(1, 9)):
            step = draw.choice(self.steps)
            a, b = values[-1] if draw.random() < 0.5 else draw.choice(values), draw.choice(values)
            for letter, value in (("A", a), ("B", b)):
                spelled = re.sub(rf"(?<![\w%]){letter}(?!\w)", value, step)
                read |= {value} if spelled != step else set()
                step = spelled
            for line in re.sub(r"(?<![\w%])V(?=[a-z]?\b)", f"%v{at}", step).splitlines():
                lines.append(f"  {line} : " + ", ".join("?" for _ in line.partition(" = ")[0].split(", ")))
            values.append(f"%v{at}")
        left = ", ".join(value for value in values if value not in read)
        tail = f"  %all = Sum({left}) : ?\n  %loss = ReduceMean(%all) {{keepdims=0}} : ?\n  output %loss\n}}\n"
        return (self.head + "\n".join(lines) + "\n" + tail).replace("f64", "f32")


def session(model: bytes | str, level: onnxruntime.GraphOptimizationLevel) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def run(model: bytes | str, level: onnxruntime.GraphOptimizationLevel, feeds: dict) -> dict:
    """The outputs of a model by name; `error` where it cannot be run."""
    try:
        opened = session(model, level)
        given = {name: value for name, value in feeds.items() if name in {i.name for i in opened.get_inputs()}}
        return dict(zip((output.name for output in opened.get_outputs()), opened.run(None, given)))
    except Exception as error:  # noqa: BLE001
        return {"error": " ".join(str(error).split())[:300]}


def distance(found: dict, wanted: dict, feeds: dict) -> float:
    """The largest difference of an output, of the largest number in it and in the state before it."""
    worst = 0.0
    for name, want in wanted.items():
        want, have = np.float64(want), np.float64(found[name])
        if want.shape != have.shape or not np.array_equal(np.isfinite(want), np.isfinite(have)):
            return float("inf")
        before = np.float64(feeds.get(name.removesuffix("_next"), 0.0))
        scale = max(1.0, *(np.abs(x[np.isfinite(x)]).max(initial=0.0) for x in (np.atleast_1d(want), np.atleast_1d(before))))
        worst = max(worst, float(np.abs(np.nan_to_num(want - have)).max(initial=0.0)) / scale)
    return worst


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(argument) for argument in arguments], capture_output=True, text=True)


def judge(binary: str, text: str, folder: Path, counts: Counter[str]) -> list[str]:
    """The problems of one graph."""
    model, step, state, outputs = (folder / name for name in ("model.ir", "step.onnx", "state.safetensors", "outputs.npz"))
    model.write_text(text)
    made = command(binary, "train-step", model, "-o", step, "--state", state, "--loss", "output:loss", "--fp32", "--optimizer", "sgd", "--freeze-unused", "--force", "-q")  # fmt: skip
    if made.returncode:
        if "loss depends on none of the parameters" in made.stderr or "no parameter" in made.stderr:
            counts["without a gradient"] += 1
            return []
        return [f"train-step: exit {made.returncode}: {made.stderr.strip()[:400]}"]
    feeds = {**load_file(state), "lr": np.array(1.0, np.float32)}
    np.savez(folder / "inputs.npz", **feeds)
    ran = command(binary, "run", step, "--inputs", folder / "inputs.npz", "--outputs", outputs, "--force", "-q")
    if ran.returncode:
        return [f"run: exit {ran.returncode}: {ran.stderr.strip()[:400]}"]
    with np.load(outputs) as stored:
        wanted = {name: stored[name] for name in stored.files}
    found = run(str(step), DEFAULT, feeds)
    if "error" in found:
        plain = run(str(step), NONE, feeds)
        if "error" in plain:
            counts["not run by ONNX Runtime at all"] += 1
            return []
        return [f"at the default level: {found['error']}"]
    off = distance(found, wanted, feeds)
    if off <= TOLERANCE:
        counts["compared"] += 1
        return []
    plain = run(str(step), NONE, feeds)
    if "error" not in plain and distance(plain, wanted, feeds) > TOLERANCE and distance(plain, found, feeds) <= off:
        counts["on another side"] += 1
        return []
    return [f"the default level is {off:.1e} off"]


def faults() -> list[str]:
    """Faults of ONNX Runtime that are gone."""
    data = np.random.default_rng(0)
    w, v = data.normal(size=(4, 6)).astype(np.float32), data.normal(size=4).astype(np.float32)
    nodes = [helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]), helper.make_node("MatMul", ["t", "v"], ["y"])]
    found = run(small(nodes, {"w": w, "v": v}, [6]), DEFAULT, {"w": w, "v": v})
    problems = [] if "error" in found or np.abs(found["y"] - w.T @ v).max() > 0.1 else ["MatmulTransposeFusion is right"]
    a, b, c = (data.normal(size=shape).astype(np.float32) for shape in ((3, 12), (4, 5), (3, 5)))
    nodes = [
        helper.make_node("Split", ["a"], ["a0", "a1", "a2"], axis=1, num_outputs=3),
        helper.make_node("Gemm", ["a2", "b"], ["g"]),
        helper.make_node("Sum", ["g", "c"], ["y"]),
    ]
    feeds = {"a": a, "b": b, "c": c}
    found, plain = (run(small(nodes, feeds, [3, 5]), level, feeds) for level in (DEFAULT, NONE))
    problems += [] if "error" in found and "y" in plain else ["GemmSumFusion takes the third result of a Split"]
    print(f"faults that `avoid-fusions` is for: {2 - len(problems)} of 2 are there in ONNX Runtime {onnxruntime.__version__}")
    return problems


def small(nodes: list[onnx.NodeProto], feeds: dict, dims: list[int]) -> bytes:
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, value.shape) for name, value in feeds.items()]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, dims)
    graph = helper.make_graph(nodes, "fault", inputs, [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9).SerializeToString()


def main() -> int:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--ampc", required=True)
    parser.add_argument("--count", type=int, default=100, help="graphs [100]; 3000 before a release")
    parser.add_argument("--seed", type=int, default=1, help="which graphs [1]")
    parser.add_argument("--corpus", type=Path, help="not used: the models are random")
    args = parser.parse_args()
    problems = faults()
    generator, counts = Generator(), Counter[str]()
    with tempfile.TemporaryDirectory() as name:
        for number in range(args.count):
            text = generator.graph(random.Random(f"{args.seed}.{number}"))
            found = judge(args.ampc, text, Path(name), counts)
            problems += [f"graph {number}: {problem}" for problem in found]
            if found:
                print(text.partition("role parameter(%wide)")[2])
    for problem in problems:
        print("FAIL", problem)
    if counts["on another side"] > max(1, SIDES * args.count):
        problems.append("too many")
        print("FAIL", f"{counts['on another side']} graphs are off without optimizers too")
    if counts["compared"] < 0.8 * args.count:
        problems.append("too few")
        print("FAIL", f"only {counts['compared']} graphs were compared")
    print(f"steps in ONNX Runtime: {args.count} graphs, {dict(counts)}, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
