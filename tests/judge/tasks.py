"""What a worker process of the pool can do: check a model, run it, compare it with its source.

Every function takes and gives JSON values, so that a crash in onnx or ONNX Runtime stays in the worker.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any, Iterator

import numpy as np
import onnx
import onnxruntime as ort

import compare
import feeds
from pool import serve

NOT_IMPLEMENTED = "Could not find an implementation"
RANDOM_OPS = {"Dropout", "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}


def _session(model: str | bytes, optimize: bool = True, without: tuple[str, ...] = ()) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"], disabled_optimizers=list(without))


def _line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:400]


def check(path: str) -> str:
    """"ok", or why onnx.checker refuses the model."""
    try:
        onnx.checker.check_model(path, full_check=True)
    except Exception as error:
        return _line(error)
    return "ok"


def run_state(path: str, source: str, spec: dict[str, Any], without: tuple[str, ...] = ()) -> dict[str, Any]:
    """How far ONNX Runtime gets, some optimizers left out: "rejects", "not implemented", "loads" or "runs"."""
    try:
        session = _session(path, without=without)
    except Exception as error:
        state = "not implemented" if NOT_IMPLEMENTED in str(error) else "rejects"
        return {"state": state, "text": _line(error)}
    try:
        session.run(None, feeds.for_session(session, feeds.load(source, spec)))
    except Exception as error:
        return {"state": "loads", "text": _line(error)}
    return {"state": "runs", "text": ""}


def _ports(values: Any) -> list[tuple[str, bytes]]:
    return [(value.name, value.type.SerializeToString(deterministic=True)) for value in values]


def interface(source: str, output: str) -> list[str]:
    """The differences between the public inputs and outputs of two models."""
    before, after = (onnx.load(path, load_external_data=False).graph for path in (source, output))
    differences = []
    for side in ("input", "output"):
        old, new = _ports(getattr(before, side)), _ports(getattr(after, side))
        if [name for name, _ in old] != [name for name, _ in new]:
            differences.append(f"{side} names {[n for n, _ in old][:5]} became {[n for n, _ in new][:5]}")
            continue
        changed = [name for (name, a), (_, b) in zip(old, new) if a and a != b]
        differences += [f"type of {side} {name!r} changed" for name in changed[:5]]
    return differences


def nodes_of(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Every node, those of bodies and functions included."""
    stack = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    while stack:
        node = stack.pop()
        yield node
        for attribute in node.attribute:
            for graph in [attribute.g, *attribute.graphs]:
                stack.extend(graph.node)


def facts(path: str) -> dict[str, Any]:
    """Number of nodes, casts and bytes (external data included), and whether the model draws numbers."""
    model = onnx.load(path, load_external_data=False)
    ops = Counter(node.op_type for node in nodes_of(model))
    files = {entry.value for tensor in model.graph.initializer for entry in tensor.external_data if entry.key == "location"}
    places = [Path(path), *(Path(path).parent / name for name in sorted(files))]
    size = sum(place.stat().st_size for place in places if place.exists())
    return {"nodes": ops.total(), "casts": ops["Cast"], "bytes": size, "draws": bool(RANDOM_OPS & ops.keys())}


def _outputs(session: ort.InferenceSession, given: dict[str, Any]) -> list[Any]:
    return session.run(None, feeds.for_session(session, given))


def _reference(source: str, spec: dict[str, Any], given: dict[str, Any], names: list[str], optimize: bool) -> list[Any]:
    """Stored outputs, or what ONNX Runtime computes from the source."""
    found = feeds.stored(spec["npz"], "out_", names) if "npz" in spec else None
    if found is not None:
        return [found[name] for name in names]
    return _outputs(_session(source, optimize), given)


def _is_random(source: str, given: dict[str, Any]) -> bool:
    first, second = (_outputs(_session(source, optimize=False), given) for _ in range(2))
    error = compare.outputs_error(first, second)
    return error["max"] > 0 or bool(error["note"])


def _dropout(outputs: list[Any], given: dict[str, Any]) -> list[Any]:
    """What Dropout(ratio 0.5) must give for the mask it drew: x / (1 - ratio) where the mask is true."""
    mask = outputs[1]
    return [np.where(mask, given["x"] / 0.5, 0).astype(np.float32), mask]


def _simulated(path: str, script: str) -> bytes:
    module_spec = importlib.util.spec_from_file_location("strict_sim", script)
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    return module.simulate(onnx.load(path))[0].SerializeToString()


def error_of(path: str, source: str, spec: dict[str, Any], script: str | None, draws: bool) -> dict[str, Any]:
    """Error of a model against its source, run as it is or (with a script) as strict_sim emulates it.

    {"max", "mean", "note"}, or {"skip": why} where there is nothing to compare with.
    """
    given = feeds.load(source, spec)
    if draws and not source.endswith("dropout_train.onnx") and _is_random(source, given):
        return {"skip": "outputs are random"}
    if script:
        try:
            session = _session(_simulated(path, script), optimize=False)
        except Exception as error:
            return {"skip": f"not simulated: {_line(error)}"[:200]}
    else:
        session = _session(path)
    names = [value.name for value in onnx.load(source, load_external_data=False).graph.output]
    outputs = _outputs(session, given)
    if source.endswith("dropout_train.onnx"):
        return compare.outputs_error(outputs, _dropout(outputs, given))
    return compare.outputs_error(outputs, _reference(source, spec, given, names, optimize=not script))


def difference(path: str, source: str, spec: dict[str, Any], draws: bool) -> dict[str, Any]:
    """How far a model is from its source where ONNX Runtime fuses nothing: {"max", "mean", "note"}, or {"skip": why}."""
    given = feeds.load(source, spec)
    if draws and _is_random(source, given):
        return {"skip": "outputs are random"}
    before, after = (_outputs(_session(model, optimize=False), given) for model in (source, path))
    return compare.outputs_error(after, before)


def imports(path: str) -> dict[str, Any]:
    """{"opset", "ops", "ir"}: the opset of ai.onnx that a model imports, 0 if none, the operators it has, and whether
    its IR version is at least the one that came with its opsets."""
    model = onnx.load(path, load_external_data=False)
    opset = max((i.version for i in model.opset_import if i.domain in ("", "ai.onnx")), default=0)
    ir = onnx.helper.find_min_ir_version_for(model.opset_import, ignore_unknown=True) <= model.ir_version
    return {"opset": opset, "ops": sorted({node.op_type for node in nodes_of(model)}), "ir": ir}


TASKS = {task.__name__: task for task in (check, run_state, interface, facts, error_of, difference, imports)}

if __name__ == "__main__":
    serve(TASKS)
