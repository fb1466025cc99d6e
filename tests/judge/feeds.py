"""The inputs a model is run with: those its corpus stores, else random ones from the declared types.

Stored arrays are found as `in_NAME` in `MODEL.npz`, `io.npz` or `oracle.npz` beside the model or in
`FOLDER.npz` beside its folder, where NAME has `_` for `/`. Random arrays depend on nothing but the input's name, type and shape.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto

# Sizes tried for symbolic dimensions, one after the other, until the source model runs.
SYMBOLIC_SIZES = (2, 1, 4, 3)
BF16_SUFFIX = "__bf16"


def stored_path(model: Path) -> Path | None:
    """The file with stored inputs and outputs that belongs to a model."""
    folder = model.parent
    for candidate in (model.with_suffix(".npz"), folder / "io.npz", folder / "oracle.npz", folder.with_suffix(".npz")):
        if candidate.exists():
            return candidate
    return None


def stored(path: str, prefix: str, names: list[str]) -> dict[str, np.ndarray] | None:
    """The stored arrays for all names, or None if one is missing."""
    found = {}
    with np.load(path) as arrays:
        for name in names:
            key = prefix + name.replace("/", "_")
            if key in arrays:
                found[name] = arrays[key]
            elif key + BF16_SUFFIX in arrays:
                found[name] = arrays[key + BF16_SUFFIX].view(ml_dtypes.bfloat16)
            else:
                return None
    return found


def random_tensor(name: str, tensor: onnx.TypeProto.Tensor, size: int) -> np.ndarray:
    """Floats in [-1, 1), integers 0 or 1, booleans, strings of digits."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    symbols: dict[str, int] = {}
    shape = []
    for dim in tensor.shape.dim:
        known = dim.HasField("dim_value") and dim.dim_value >= 0
        shape.append(dim.dim_value if known else symbols.setdefault(dim.dim_param, size))
    if tensor.elem_type == TensorProto.STRING:
        return rng.integers(0, 2, shape).astype(str).astype(object)
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    if tensor.elem_type == TensorProto.BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.uniform(-1, 1, shape).astype(np.float32).astype(dtype)


def random_value(value: onnx.ValueInfoProto, size: int) -> Any:
    """A tensor, or a list of two for a sequence."""
    kind = value.type.WhichOneof("value")
    if kind == "tensor_type":
        return random_tensor(value.name, value.type.tensor_type, size)
    if kind == "optional_type":
        inner = onnx.ValueInfoProto(name=value.name, type=value.type.optional_type.elem_type)
        return random_value(inner, size)
    if kind == "sequence_type":
        inner = onnx.ValueInfoProto(name=value.name, type=value.type.sequence_type.elem_type)
        return [random_value(inner, size), random_value(inner, size)]
    raise ValueError(f"no random value for a {kind}")


def random_feeds(source: str, size: int) -> dict[str, Any]:
    """Random values for every input without an initializer."""
    graph = onnx.load(source, load_external_data=False).graph
    given = {tensor.name for tensor in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    return {value.name: random_value(value, size) for value in graph.input if value.name not in given}


def load(source: str, spec: dict[str, Any]) -> dict[str, Any]:
    """The feeds that `spec` names: {"npz": path} or {"random": size of symbolic dimensions}."""
    if "npz" in spec:
        graph = onnx.load(source, load_external_data=False).graph
        given = {tensor.name for tensor in graph.initializer}
        found = stored(spec["npz"], "in_", [v.name for v in graph.input if v.name not in given])
        if found is None:
            raise ValueError("the stored inputs do not cover the model's inputs")
        return found
    return random_feeds(source, spec["random"])


def _coerce(value: Any, kind: str) -> Any:
    if isinstance(value, list):
        return value
    wanted = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(double)": np.float64}.get(kind)
    if kind == "tensor(bfloat16)":
        bits = value.astype(ml_dtypes.bfloat16).view(np.uint16)
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, TensorProto.BFLOAT16)
    if wanted is not None and value.dtype != wanted:
        return value.astype(wanted)
    if value.dtype.kind == "U":
        return value.astype(object)
    return value


def for_session(session: ort.InferenceSession, feeds: dict[str, Any]) -> dict[str, Any]:
    """The feeds in the element types that this session declares."""
    return {i.name: _coerce(feeds[i.name], i.type) for i in session.get_inputs()}
