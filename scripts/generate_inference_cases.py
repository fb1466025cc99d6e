"""Writes what onnx's own shape inference says of single nodes, for `ir/tests/inference_cases.rs`.

Usage: python scripts/generate_inference_cases.py [--check]

Every module `scripts/inference_cases/<name>.py` has a list `FAMILIES` of functions that yield cases (see `case`), or
a function `rows` that yields whole rows; they go to `ir/tests/data/cases_<name>.tsv`. With `--check` nothing is written and a difference fails.

A row has, separated by tabs: name, domain, operator, opset, operands, attributes, number of results, expectation.
Operands are separated by `;`: `_` is an absent one, `f32[2,N,?]` and `f32[*]` are inputs, `i64[2]={1,2}` is a
constant. Attributes are separated by `;`: `name=i:1`, `f:0.5`, `s:text`, `is:1,2`, `fs:0.5,1`. The expectation is
`error`, or one type per result; `?` is a type of which nothing is known.
"""

import importlib
import pathlib
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

ROOT = pathlib.Path(__file__).resolve().parent
DATA = ROOT.parent / "ir" / "tests" / "data"

DTYPES = {
    "f32": TensorProto.FLOAT, "f64": TensorProto.DOUBLE, "f16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16,
    "i8": TensorProto.INT8, "i16": TensorProto.INT16, "i32": TensorProto.INT32, "i64": TensorProto.INT64,
    "u8": TensorProto.UINT8, "u16": TensorProto.UINT16, "u32": TensorProto.UINT32, "u64": TensorProto.UINT64,
    "bool": TensorProto.BOOL, "string": TensorProto.STRING,
    "complex64": TensorProto.COMPLEX64, "complex128": TensorProto.COMPLEX128,
    "float8e4m3fn": TensorProto.FLOAT8E4M3FN, "float8e5m2": TensorProto.FLOAT8E5M2,
    "int4": TensorProto.INT4, "uint4": TensorProto.UINT4, "float4e2m1": TensorProto.FLOAT4E2M1,
}
NAMES = {number: name for name, number in DTYPES.items()}


def case(op, opset, operands, attrs=None, results=1, domain=""):
    """A node to ask about. Operands are written as in the file, separated by blanks."""
    return op, opset, operands.split(), attrs or {}, results, domain


def spell_attr(name, value):
    def number(v):
        return repr(float(v))

    if isinstance(value, str):
        return f"{name}=s:{value}"
    if isinstance(value, float):
        return f"{name}=f:{number(value)}"
    if isinstance(value, int):
        return f"{name}=i:{value}"
    if value and isinstance(value[0], float):
        return f"{name}=fs:" + ",".join(number(v) for v in value)
    return f"{name}=is:" + ",".join(str(v) for v in value)


def attribute(name, value):
    if isinstance(value, (list, tuple)) and not value:
        return helper.make_attribute(name, [], attr_type=onnx.AttributeProto.INTS)
    return helper.make_attribute(name, value)


def parse_operand(text, name):
    """The value_info or the initializer that an operand is."""
    dtype, rest = text.split("[", 1)
    shape, _, data = rest.partition("]")
    if data:
        dims = [int(d) for d in shape.split(",") if d]
        values = [v for v in data[2:-1].split(",") if v]
        kind = helper.tensor_dtype_to_np_dtype(DTYPES[dtype])
        array = np.array([float(v) if "f" in dtype else int(v) for v in values], dtype=kind).reshape(dims)
        return None, numpy_helper.from_array(array, name)
    if shape == "*":
        return helper.make_tensor_value_info(name, DTYPES[dtype], None), None
    dims = [None if d == "?" else int(d) if d.lstrip("-").isdigit() else d for d in shape.split(",") if d]
    return helper.make_tensor_value_info(name, DTYPES[dtype], dims), None


def spell_type(ty):
    kind = ty.WhichOneof("value")
    if kind == "sequence_type":
        return f"seq({spell_type(ty.sequence_type.elem_type)})"
    if kind == "optional_type":
        return f"optional({spell_type(ty.optional_type.elem_type)})"
    if kind != "tensor_type" or ty.tensor_type.elem_type == 0:
        return "?"
    dtype = NAMES[ty.tensor_type.elem_type]
    if not ty.tensor_type.HasField("shape"):
        return f"{dtype}[*]"

    def dim(d):
        if d.HasField("dim_value"):
            return str(d.dim_value)
        return d.dim_param if d.dim_param and not d.dim_param.startswith("unk__") else "?"

    return f"{dtype}[{','.join(dim(d) for d in ty.tensor_type.shape.dim)}]"


def expectation(op, opset, operands, attrs, results, domain):
    inputs, initializers, names = [], [], []
    for i, text in enumerate(operands):
        if text == "_":
            names.append("")
            continue
        names.append(f"x{i}")
        value, constant = parse_operand(text, names[-1])
        (inputs if constant is None else initializers).append(value if constant is None else constant)
    outputs = [f"y{i}" for i in range(results)]
    node = helper.make_node(op, names, outputs, domain=domain)
    node.attribute.extend(attribute(k, v) for k, v in attrs.items())
    graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name=o) for o in outputs], initializers)
    imports = [helper.make_opsetid(domain, opset)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    try:
        inferred = shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    except (shape_inference.InferenceError, onnx.checker.ValidationError, ValueError, RuntimeError):
        return "error"
    return ";".join(spell_type(o.type) for o in inferred.graph.output)


def rows(module):
    out = ["# " + (module.__doc__ or "").strip().splitlines()[0]]
    if not hasattr(module, "FAMILIES"):
        return "\n".join(out + ["\t".join(fields) for fields in module.rows()]) + "\n"
    for family in module.FAMILIES:
        for n, (op, opset, operands, attrs, results, domain) in enumerate(family()):
            spelled = ";".join(spell_attr(k, v) for k, v in attrs.items())
            expected = expectation(op, opset, operands, attrs, results, domain)
            name = f"{family.__name__}/{n}"
            out.append("\t".join([name, domain, op, str(opset), ";".join(operands), spelled, str(results), expected]))
    return "\n".join(out) + "\n"


def main():
    sys.path.insert(0, str(ROOT))
    stale = []
    for path in sorted((ROOT / "inference_cases").glob("*.py")):
        text = rows(importlib.import_module(f"inference_cases.{path.stem}"))
        target = DATA / f"cases_{path.stem}.tsv"
        if "--check" in sys.argv[1:]:
            if not target.exists() or target.read_text() != text:
                stale.append(target.name)
        else:
            target.write_text(text)
    if stale:
        sys.exit(f"not what onnx {onnx.__version__} says: {', '.join(stale)}; run without --check")


if __name__ == "__main__":
    sys.modules["generate_inference_cases"] = sys.modules["__main__"]
    main()
