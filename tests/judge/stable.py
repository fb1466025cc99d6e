"""Proves that a rewrite is stable.

Per model: five runs, one thread and two, a second run over the output, and a replay of the report as policy
all give the same bytes; rewriting the output with another policy gives a valid model that still has every
cast of the user that changes numbers.

    stable.py --corpus DIR --ampc BIN [--sets small,tricky] [--format fp16|bf16] [--runs N]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import onnx

import ampc
import variants
from judge import SourceVerdicts, default_cache, is_valid, judge_output
from pool import Call, Pool
from tasks import nodes_of


class Model:
    """One source and the folder in which its rewrites are made."""

    def __init__(self, args: argparse.Namespace, source: Path, folder: Path) -> None:
        self.args, self.source, self.folder = args, source, folder
        self.problems: list[str] = []

    def output(self, name: str) -> Path:
        """Where the rewrite called `name` is; always under the source's file name."""
        return self.folder / name / self.source.name

    def rewrite(self, name: str, *options: str, source: Path | None = None) -> bool:
        """Makes the rewrite `name`; notes a failure."""
        self.output(name).parent.mkdir()
        argv = ["--to", self.args.format, *options]
        run = ampc.rewrite(self.args.ampc, source or self.source, self.output(name), *argv, timeout=self.args.timeout)
        if run.code != 0:
            self.problems.append(f"{name}: {ampc.problem(run)}")
        return run.code == 0

    def same(self, name: str, *options: str, source: Path | None = None) -> None:
        """Makes a rewrite that must have the files of the first."""
        if self.rewrite(name, *options, source=source):
            got, want = (variants.files(self.folder / n) for n in (name, "first"))
            if got != want:
                names = sorted(n for n in got.keys() | want.keys() if got.get(n) != want.get(n))
                self.problems.append(f"{name}: {', '.join(names)} differ")


def user_casts(path: Path) -> dict[str, tuple[str, int]]:
    """Operand and target type of each Cast in a model, by its result."""
    return {
        node.output[0]: (node.input[0], next((a.i for a in node.attribute if a.name == "to"), 0))
        for node in nodes_of(variants.load(path))
        if node.op_type == "Cast"
    }


def types(path: Path) -> dict[str, int]:
    """The element types of values, as far as onnx infers them."""
    graph = onnx.shape_inference.infer_shapes(variants.load(path)).graph
    values = [*graph.input, *graph.value_info, *graph.output]
    found = {value.name: value.type.tensor_type.elem_type for value in values}
    return found | {tensor.name: tensor.data_type for tensor in graph.initializer}


def lost_casts(source: Path, output: Path) -> list[str]:
    """The user's casts that are gone though they change numbers: not to fp32 from fp16 or bf16, to what the operand was
    or is now, or for another such cast of it."""
    before, after = user_casts(source), user_casts(output)
    was, now = types(source), types(output)
    exact = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16, None}
    low = {onnx.TensorProto.FLOAT16: ".f16", onnx.TensorProto.BFLOAT16: ".bf16"}
    lost = []
    for result, (operand, to) in before.items():
        twin = (operand, to) in after.values()
        idle = to in low and to in (now.get(operand), now.get(operand + low[to]), now.get(result))
        widens = to == onnx.TensorProto.FLOAT and was.get(operand) in exact
        same = was.get(operand) == to
        # Integers reach a 16-bit format directly where that makes the same numbers.
        direct = to == onnx.TensorProto.FLOAT and any((operand, narrow) in after.values() for narrow in low)
        if result not in after and not (twin or idle or widens or same or direct):
            lost.append(result)
    return lost


def other_policy(call: Call, model: Model, sources: SourceVerdicts) -> None:
    """Rewrites the output with another policy, and judges that."""
    if not model.rewrite("other", "--policy", model.args.other, source=model.output("first")):
        return
    verdict = sources.get(call, model.source)
    judged = judge_output(call, model.source, model.output("other"), verdict, model.args.format)
    if not is_valid(judged) or judged["interface"] != "ok":
        model.problems.append(f"other: {judged}"[:300])
    for name in ("first", "other"):
        lost = lost_casts(model.source, model.output(name))
        if lost:
            model.problems.append(f"{name}: the user's casts {sorted(lost)[:3]} are gone, and change numbers")


def judge(call: Call, model: Model, sources: SourceVerdicts) -> list[str]:
    """What is not stable about one model."""
    report = model.folder / "report.json"
    if not model.rewrite("first"):
        return model.problems
    for run in range(1, model.args.runs):
        model.same(f"run{run}")
    for threads in ("1", "2"):
        model.same(f"threads{threads}", "--threads", threads)
    model.same("twice", source=model.output("first"))
    model.same("reported", "--report", str(report))
    if report.exists():
        model.same("replay", "--policy", str(report))
    else:
        model.problems.append("no report")
    other_policy(call, model, sources)
    return model.problems


def main() -> int:
    """Prints a line for each instability; 1 if there is one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ampc.add_arguments(parser, "small,tricky")
    parser.add_argument("--format", choices=ampc.FORMATS, default="fp16")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--other", default="all", help="the policy of the second run [all]")
    parser.add_argument("--cache", type=Path, default=default_cache())
    # ONNX Runtime takes up to a minute to load 20,000 fp16 nodes in a chain.
    parser.set_defaults(timeout=180)
    args = parser.parse_args()
    ampc.require(parser, args)
    models = ampc.models(args.corpus, args.sets, args.filter)
    sources = SourceVerdicts(args.cache)

    def job(call: Call, source: Path) -> list[str]:
        with tempfile.TemporaryDirectory(prefix="ampc-stable-") as folder:
            return judge(call, Model(args, source, Path(folder)), sources)

    with Pool(args.workers, args.timeout) as pool:
        results = pool.map(job, models)
    sources.save()
    for source, problems in zip(models, results):
        for text in problems:
            print(f"FAIL {source.relative_to(args.corpus)}: {text}")
    print(f"stable: {results.count([])} of {len(results)}")
    return 0 if all(not problems for problems in results) else 1


if __name__ == "__main__":
    sys.exit(main())
