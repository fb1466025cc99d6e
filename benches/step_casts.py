#!/usr/bin/env python3
"""Casts between float types in training steps, by one build of ampc next to another, and the planned peak memory.

    step_casts.py --before AMPC --after AMPC [--policy POLICY] CORPUS/train

Steps with AdamW of the models of a corpus folder that have a gradient, in fp16 and bf16, with `--opset auto`. *Chains* are
casts to fp32 of a value that a cast from fp32 made in the backward pass; *avoidable* are those of them where no operation reads the
16-bit value: behind operators that move elements there are only casts to fp32. Exits 1 if the second build leaves an avoidable
chain, or casts a value to one type twice in a phase (values that are computed again do not count).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections import Counter, defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "judge"))

from tables import markdown  # noqa: E402

FORMATS = ("fp16", "bf16")
FLOATS = {"f64", "f32", "f16", "bf16"}
LOW = {"f16", "bf16"}
MOVES = {
    "Concat", "DepthToSpace", "Expand", "Flatten", "Identity", "Neg", "Pad", "Reshape", "Slice", "SpaceToDepth", "Split",
    "Squeeze", "Transpose", "Trilu", "Unsqueeze", "Where",
}  # fmt: skip
FREE = {"GradCheck", "SGD", "Adam", "AdamW"}
COLUMNS = ["model", "format", "casts", "casts after", "chains", "chains after", "avoidable", "avoidable after", "peak", "peak after"]


class Step:
    """The graph of a step."""

    def __init__(self, graph: dict) -> None:
        self.nodes = graph["nodes"]
        self.maker, self.dtype = {}, {}
        self.readers = defaultdict(list)
        for value in [*graph["inputs"], *graph["constants"]]:
            self.dtype[value["name"]] = (value.get("type") or value.get("value") or {}).get("dtype")
        for node in self.nodes:
            for result, kind in zip(node["results"], node["types"]):
                self.maker[result], self.dtype[result] = node, kind.get("dtype")
            for operand in node["operands"]:
                self.readers[operand].append(node)
        self.outputs = {output["name"] for output in graph["outputs"]}

    def note(self, node: dict, key: str) -> str:
        return dict(node.get("metadata", [])).get(key, "")

    def types(self, node: dict) -> tuple[str, str] | None:
        """The float types from and to which a node casts."""
        if node["op"] != "Cast":
            return None
        types = self.dtype.get(node["operands"][0]), self.dtype[node["results"][0]]
        return types if set(types) <= FLOATS else None

    def casts(self) -> list[dict]:
        return [node for node in self.nodes if self.types(node)]

    def is_read_low(self, value: str) -> bool:
        """True if an operation reads a 16-bit value, behind operators that move elements."""
        if value in self.outputs:
            return True
        for node in self.readers[value]:
            types = self.types(node)
            if types and types[1] == "f32" or node["op"] in FREE:
                continue
            if types or node["op"] not in MOVES or self.note(node, "ampc.phase") != "bwd":
                return True
            if any(self.is_read_low(result) for result in node["results"] if result):
                return True
        return False

    def chains(self) -> int:
        """The casts to fp32 directly behind a cast from fp32 of the backward pass."""
        count = 0
        for cast in self.casts():
            maker = self.maker.get(cast["operands"][0])
            if maker and self.types(cast)[1] == "f32" and self.note(maker, "ampc.phase") == "bwd":
                count += (self.types(maker) or [""])[0] == "f32"
        return count

    def avoidable(self) -> int:
        """The casts from fp32 of the backward pass whose 16-bit result no operation reads."""
        backward = [cast for cast in self.casts() if self.note(cast, "ampc.phase") == "bwd"]
        narrow = [cast for cast in backward if self.types(cast)[0] == "f32" and self.types(cast)[1] in LOW]
        return sum(not self.is_read_low(cast["results"][0]) for cast in narrow)

    def repeated(self) -> int:
        key = lambda cast: (cast["operands"][0], self.types(cast)[1], self.note(cast, "ampc.phase"))
        counts = Counter(key(cast) for cast in self.casts() if self.note(cast, "ampc.role") != "recompute")
        return sum(n - 1 for n in counts.values())


def make(ampc: str, model: Path, form: str, policy: str, folder: Path) -> tuple[Step, str] | None:
    """The step of a model, and its planned peak; `None` if it has no gradient."""
    folder = Path(tempfile.mkdtemp(dir=folder))
    path, state = folder / "step.json", folder / "state.safetensors"
    options = ["--to", form, "--policy", policy, "--opset", "auto", "--loss", "output:loss", "--emit", "json"]
    command = [ampc, "train-step", model, "-o", path, "--state", state, "--force", *options]
    ran = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if ran.returncode == 4:
        return None
    if ran.returncode:
        sys.exit(f"{model}: {ran.stderr}")
    peak = re.search(r"^peak +([\d.]+ \w+)", ran.stdout + ran.stderr, re.MULTILINE)
    return Step(json.loads(path.read_text())["graph"]), peak[1] if peak else ""


def main() -> int:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("train", type=Path)
    parser.add_argument("--before", required=True)
    parser.add_argument("--after", required=True)
    parser.add_argument("--policy", default="safe")
    args = parser.parse_args()
    rows, wrong = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for model in sorted(args.train.glob("*/*.train.onnx")):
            for form in FORMATS:
                made = [make(ampc, model, form, args.policy, Path(folder)) for ampc in (args.before, args.after)]
                if None in made:
                    continue
                row = {"model": model.parent.name, "format": form}
                for (step, peak), suffix in zip(made, ("", "_after")):
                    row |= {f"casts{suffix}": len(step.casts()), f"chains{suffix}": step.chains()}
                    row |= {f"avoidable{suffix}": step.avoidable(), f"peak{suffix}": peak}
                wrong += row["avoidable_after"] + made[1][0].repeated()
                rows.append(row)
    print(markdown(COLUMNS, rows))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
