"""How many casts each peer, and ampc, leaves in the models of the corpus, and how many bytes these read and write.

ampc lowers everything that the schemas admit and makes what is out of range the largest number that is not, as the
peers do (`--policy all --out-of-range clamp`), with each objective.
A peer's output counts if it is valid, keeps the interface, and keeps the values: its error under strict_sim is at most
three times that of an ideal op-list AMP, or one rounding, or that of ampc's. Where a peer has fewer casts, ampc runs
again with the nodes pinned to fp32 that are so in the peer's output. Casts are Cast nodes, those of the source
included, in bodies and functions too. Bytes are what these read and write by onnx's shape inference, with 16 for each
extent that is open, bodies once.

    peers_casts.py --corpus DIR --ampc BIN [--sets small,tricky,train] [--timeout SECONDS]
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "judge"))

import ampc  # noqa: E402
import variants  # noqa: E402
from corpus import BAR, ROUNDING, expected_errors  # noqa: E402
from judge import SourceVerdicts, default_cache, is_valid, judge_output  # noqa: E402
from pool import Call, Pool  # noqa: E402
from tables import markdown  # noqa: E402
from tasks import nodes_of  # noqa: E402

from peer_tools import TOOLS  # noqa: E402

SKIPPED = "chain_10k"
OPEN = 16
OURS = {"casts": ["--objective", "casts"], "bytes": ["--objective", "bytes"], "time": ["--objective", "time"]}


def graphs(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    """A graph and its bodies."""
    found = [graph]
    for node in graph.node:
        for attribute in node.attribute:
            bodies = [attribute.g] if attribute.type == onnx.AttributeProto.GRAPH else list(attribute.graphs)
            found += [inner for body in bodies for inner in graphs(body)]
    return found


def cast_bytes(model: onnx.ModelProto) -> int:
    """What the Cast nodes of the main graph and its bodies read and write."""
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    types: dict[str, tuple[int, int]] = {}
    total = 0
    for graph in graphs(inferred.graph):
        for value in [*graph.input, *graph.value_info, *graph.output]:
            tensor = value.type.tensor_type
            extents = [d.dim_value if d.HasField("dim_value") else OPEN for d in tensor.shape.dim]
            count = 1
            for extent in extents:
                count *= extent
            types[value.name] = (tensor.elem_type, count)
        types.update({t.name: (t.data_type, onnx.numpy_helper.to_array(t).size) for t in graph.initializer if not t.external_data})
    for graph in graphs(inferred.graph):
        for node in graph.node:
            if node.op_type == "Cast" and node.input[0] in types:
                source, count = types[node.input[0]]
                to = next(a.i for a in node.attribute if a.name == "to")
                total += count * (size(source) + size(to))
    return total


def size(element: int) -> int:
    """Bytes of an element."""
    return onnx.helper.tensor_dtype_to_np_dtype(element).itemsize


def made(call: Call, args: argparse.Namespace, source: Path, tool: str, output: Path) -> bool:
    """Whether a tool makes an output."""
    if tool in TOOLS:
        return "ok" in call("convert", tool, str(source), str(output))
    report = output.with_suffix(".json")
    options = ["--policy", "all", "--out-of-range", "clamp", *OURS[tool], "--report", str(report)]
    return ampc.rewrite(args.ampc, source, output, *options, timeout=args.timeout).code == 0


def wide(model: onnx.ModelProto) -> set[str]:
    """The fp32 values of all graphs, as far as onnx infers types."""
    inferred = graphs(onnx.shape_inference.infer_shapes(model).graph)
    values = [value for graph in inferred for value in [*graph.value_info, *graph.output]]
    return {value.name for value in values if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT}


def alike(args: argparse.Namespace, source: Path, output: Path, folder: Path) -> int | None:
    """The casts that ampc leaves if what a peer's output computes in fp32 is fp32."""
    theirs = onnx.load(output)
    stays, made_by = wide(theirs), {result: node for node in nodes_of(theirs) for result in node.output}
    pins = []
    for node in nodes_of(onnx.load(source, load_external_data=False)):
        twin = made_by.get(node.output[0])
        # What a cast makes of it is not what the operator makes.
        if twin is not None and twin.op_type == node.op_type != "Cast" and node.output[0] in stays:
            pins += ["--pin-value", f"{node.output[0]}=fp32"]
    again = folder / "alike.onnx"
    options = ["--policy", "all", "--out-of-range", "clamp", *OURS["casts"], *pins]
    if ampc.rewrite(args.ampc, source, again, *options, timeout=args.timeout).code != 0:
        return None
    return sum(node.op_type == "Cast" for node in nodes_of(variants.load(again)))


def measure(call: Call, args: argparse.Namespace, sources: SourceVerdicts, source: Path, tool: str, folder: Path) -> dict[str, Any]:
    """{"casts", "bytes", "valid", "error"} of one conversion."""
    output = folder / source.name
    if not made(call, args, source, tool, output):
        return {"why": "no output"}
    verdict = sources.get(call, source)
    judged = judge_output(call, source, output, verdict, "fp16")
    if not is_valid(judged):
        return {"why": "invalid"}
    if judged["interface"] != "ok":
        return {"why": "interface changed"}
    script = str(args.corpus / "scripts" / "strict_sim.py")
    draws = bool(isinstance(verdict["facts"], dict) and verdict["facts"]["draws"])
    error = call("error_of", str(output), str(source), verdict["spec"], script, draws).get("ok", {})
    model = variants.load(output)
    casts = sum(node.op_type == "Cast" for node in nodes_of(model))
    row = {"casts": casts, "bytes": cast_bytes(model), "error": None if error.get("note") else error.get("max")}
    return row | ({"alike": alike(args, source, output, folder)} if tool in TOOLS else {})


def main() -> int:
    """Prints a row per model, the totals, and every model on which a peer that keeps the values has fewer casts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=os.environ.get("AMPC_CORPUS"), help="[AMPC_CORPUS]")
    parser.add_argument("--ampc", default=os.environ.get("AMPC_BIN"), help="the binary [AMPC_BIN]")
    parser.add_argument("--sets", default="small,tricky,train")
    parser.add_argument("--filter", default="*")
    parser.add_argument("--timeout", type=float, default=60)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    ampc.require(parser, args)
    sources, expected = SourceVerdicts(default_cache()), expected_errors(args.corpus)
    models = [path for path in ampc.models(args.corpus, args.sets, args.filter) if not path.name.startswith(SKIPPED)]
    tools = [*OURS, *TOOLS]

    def job(call: Call, item: tuple[Path, str]) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="ampc-peers-") as folder:
            return measure(call, args, sources, item[0], item[1], Path(folder))

    with Pool(args.workers, args.timeout, HERE / "peer_tools.py") as pool:
        results = pool.map(job, [(model, tool) for model in models for tool in tools])
    sources.save()
    rows, exceptions = [], []
    totals = {tool: {"tool": tool, "models": 0, "casts": 0, "ours": 0, "bytes": 0, "our_bytes": 0} for tool in TOOLS}
    for index, model in enumerate(models):
        name = str(model.relative_to(args.corpus))
        found = dict(zip(tools, results[index * len(tools) :]))
        ours = found["casts"]
        row: dict[str, Any] = {"model": name}
        for tool in tools:
            got = found[tool]
            row[tool.replace(" ", "_")] = got.get("why") or f"{got['casts']} / {got['bytes']}"
        for tool in TOOLS:
            got = found[tool]
            if "why" in got or "why" in ours:
                continue
            bound = max(BAR * expected.get((name, "fp16"), 0), ROUNDING["fp16"], ours["error"] or 0)
            kept = got["error"] is not None and got["error"] <= bound
            if not kept:
                row[tool.replace(" ", "_")] += " values change" if got["error"] is not None else " not compared"
                continue
            total = totals[tool]
            total["models"] += 1
            for key, value in (("casts", got["casts"]), ("ours", ours["casts"]), ("bytes", got["bytes"]), ("our_bytes", found["bytes"]["bytes"])):
                total[key] += value
            if got["casts"] < ours["casts"]:
                exceptions.append({"model": name, "tool": tool, "casts": got["casts"], "ours": ours["casts"], "ours_alike": got["alike"]})
        rows.append(row)
    packages = ("onnxconverter-common", "onnxruntime", "onnx", "numpy", "sympy")
    print("Versions: " + ", ".join(f"{package} {version(package)}" for package in packages) + ".\n")
    print("Models on which a peer's output is valid and keeps the values, with the sums of casts over these:\n")
    print(markdown(["tool", "models", "casts", "ours", "bytes", "our bytes"], list(totals.values())))
    fewer = [row for row in exceptions if row["ours_alike"] is None or row["ours_alike"] > row["casts"]]
    print(f"Fewer casts than ampc: {len(exceptions)}; also where ampc leaves fp32 what the tool leaves fp32: {len(fewer)}\n")
    print(markdown(["model", "tool", "casts", "ours", "ours alike"], exceptions))
    print(markdown(["model", *tools], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
