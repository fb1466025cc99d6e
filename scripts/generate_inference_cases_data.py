"""Writes ir/tests/data/movement_cases.tsv: what onnx infers for operators that move data, at every version.

Each line is one node: operator, version, attributes, operands, number of results, and what
onnx.shape_inference (strict, with data propagation) says of the results, or `error`.
`--check` compares instead of writing. Needs the onnx version the operator table is generated from.

Types are spelled as ampc prints them: `f32[2,N,?]`, `f32[*]`, `seq(f32[2])`, `opt(f32[2])`; a constant has its
elements behind it: `i64[2]={1,-1}`; an absent operand is `_`. `;` separates operands, attributes and results.
"""

import argparse
import itertools
import pathlib
import sys

import numpy as np
import onnx
from onnx import TensorProto, defs, helper, numpy_helper, shape_inference

OUT = pathlib.Path(__file__).resolve().parent.parent / "ir/tests/data/movement_cases.tsv"
DTYPES = {
    "f32": 1, "u8": 2, "i8": 3, "u16": 4, "i16": 5, "i32": 6, "i64": 7, "string": 8, "bool": 9, "f16": 10,
    "f64": 11, "u32": 12, "u64": 13, "bf16": 16, "float8e4m3fn": 17, "uint4": 21, "int4": 22, "float4e2m1": 23,
}
NAMES = {number: name for name, number in DTYPES.items()}
I64_MAX, I64_MIN = 2**63 - 1, -(2**63)


def parse_type(text):
    """The TypeProto and constant elements that a spelling means."""
    for prefix, make in (("seq(", helper.make_sequence_type_proto), ("opt(", helper.make_optional_type_proto)):
        if text.startswith(prefix):
            return make(parse_type(text[len(prefix):-1])[0]), None
    ty, _, elements = text.partition("=")
    dtype, _, dims = ty.rstrip("]").partition("[")
    if dims == "*":
        shape = None
    else:
        shape = [int(d) if d.isdigit() else None if d == "?" else d for d in dims.split(",") if d]
    proto = helper.make_tensor_type_proto(DTYPES[dtype], shape)
    if not elements:
        return proto, None
    values = [float(e) if dtype.startswith("f") else int(e) for e in elements.strip("{}").split(",") if e]
    return proto, helper.make_tensor("c", DTYPES[dtype], shape, values)


def show_type(proto):
    kind = proto.WhichOneof("value")
    if kind == "sequence_type":
        return f"seq({show_type(proto.sequence_type.elem_type)})"
    if kind == "optional_type":
        return f"opt({show_type(proto.optional_type.elem_type)})"
    if kind != "tensor_type" or proto.tensor_type.elem_type == 0:
        return "?"
    tensor = proto.tensor_type
    if not tensor.HasField("shape"):
        return f"{NAMES[tensor.elem_type]}[*]"
    dim = lambda d: str(d.dim_value) if d.HasField("dim_value") else "?"
    # Symbols that onnx makes up are no knowledge.
    named = lambda d: d.dim_param if d.dim_param and not d.dim_param.startswith("unk__") else dim(d)
    return f"{NAMES[tensor.elem_type]}[{','.join(map(named, tensor.shape.dim))}]"


def attribute(name, value):
    """An AttributeProto and its spelling."""
    if isinstance(value, onnx.TensorProto):
        elements = numpy_helper.to_array(value).reshape(-1).tolist()
        dims = ",".join(map(str, value.dims))
        text = f"t:{NAMES[value.data_type]}[{dims}]={{{','.join(str(e) for e in elements)}}}"
    elif isinstance(value, onnx.TypeProto):
        text = f"type:{show_type(value)}"
    elif isinstance(value, float):
        text = f"f:{value}"
    elif isinstance(value, int):
        text = f"i:{value}"
    elif isinstance(value, str):
        text = f"s:{value}"
    elif name == "stopwords" or name.startswith("cats_s") or name.endswith("_strings"):
        text = f"ss:{','.join(value)}"
    elif value and isinstance(value[0], float):
        text = f"fs:{','.join(map(str, value))}"
    else:
        text = f"is:{','.join(map(str, value))}"
    if isinstance(value, list) and not value:
        proto = onnx.AttributeProto(name=name, type=onnx.AttributeProto.INTS)
    else:
        proto = helper.make_attribute(name, value)
    return proto, f"{name}={text}"


def infer(op, domain, version, attrs, operands, n_results):
    inputs, constants, names = [], [], []
    for i, text in enumerate(operands):
        if text == "_":
            names.append("")
            continue
        name = f"x{i}"
        names.append(name)
        proto, data = parse_type(text)
        if data is None:
            inputs.append(helper.make_value_info(name, proto))
        else:
            data.name = name
            constants.append(data)
    results = [f"y{i}" for i in range(n_results)]
    node = helper.make_node(op, names, results, domain=domain)
    node.attribute.extend(attribute(k, v)[0] for k, v in attrs.items())
    graph = helper.make_graph([node], "g", inputs, [onnx.ValueInfoProto(name=r) for r in results], constants)
    opsets = [helper.make_opsetid(domain, version)]
    if domain:
        opsets.append(helper.make_opsetid("", 20))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=14)
    try:
        inferred = shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    except (shape_inference.InferenceError, ValueError):
        return "error"
    return ";".join(show_type(o.type) for o in inferred.graph.output)


def ints(values, dtype="i64"):
    return f"{dtype}[{len(values)}]={{{','.join(map(str, values))}}}"


def scalar(value, dtype="i64"):
    return f"{dtype}[]={{{value}}}"


class Cases:
    def __init__(self):
        self.lines = {}

    def versions(self, op, domain=""):
        schemas = [s for s in defs.get_all_schemas_with_history() if (s.name, s.domain) == (op, domain)]
        return sorted(s.since_version for s in schemas if not s.deprecated)

    def add(self, op, version, operands, n_results=1, domain="", **attrs):
        attrs = {k.rstrip("_"): v for k, v in attrs.items() if v is not None}
        result = infer(op, domain, version, attrs, operands, n_results)
        spelled = ";".join(attribute(k, v)[1] for k, v in attrs.items())
        name = f"{domain}.{op}" if domain else op
        key = "\t".join([name, str(version), spelled, ";".join(operands), str(n_results)])
        self.lines[key] = result

    def each(self, op, operands, n_results=1, since=1, before=99, domain="", **attrs):
        for version in self.versions(op, domain):
            if since <= version < before:
                self.add(op, version, operands, n_results, domain, **attrs)


SHAPES = ["f32[2,3,4]", "f32[N,3,4]", "f32[?,3]", "f32[*]", "f32[]", "f32[7]", "f32[0,3]"]


def layout(c):
    for shape in SHAPES:
        for op in ("Identity", "Shape", "Size"):
            c.each(op, [shape])
        for start, end in itertools.product((None, 1, -1, -9, 5), (None, 2, -1, 9, -9)):
            if shape in SHAPES[:4]:
                c.add("Shape", 15, [shape], start=start, end=end)
        c.each("Flatten", [shape])
        for axis in (0, 1, 2, 3, 4, -1, -3, -4):
            c.add("Flatten", 1, [shape], axis=axis)
            c.add("Flatten", 9, [shape], axis=axis)
            c.add("Flatten", 25, [shape], axis=axis)
        c.each("Transpose", [shape])
        for perm in ([2, 0, 1], [0, 1], [0], [1, 1, 0], [0, 1, 3], [-1, 0, 1]):
            c.add("Transpose", 1, [shape], perm=perm)
            c.add("Transpose", 25, [shape], perm=perm)
    targets = [[6, 4], [-1], [0, -1], [0, 0, -1], [-1, -1], [5, -1], [0, 0, 0, 2], [24], [1, 2, 3, 4], [-2, 3], [],
               [0, 3, 4], [3, 0, -1], [2, 3, 5]]
    for shape, target in itertools.product(SHAPES, targets):
        for version in (5, 13, 14, 25):
            c.add("Reshape", version, [shape, ints(target)])
        c.add("Reshape", 14, [shape, ints(target)], allowzero=1)
    for target in targets[:4]:
        c.add("Reshape", 1, ["f32[2,3,4]"], shape=target)
    for shape in ("i64[3]", "i64[?]", "i64[N]", "i64[*]", "i64[]", "i64[1,2]"):
        c.each("Reshape", ["f32[2,3,4]", shape], since=5)
        c.each("Expand", ["f32[2,3,4]", shape])
    ones = ["f32[1,3,1]", "f32[N,1,?]", "f32[1,1]", "f32[*]", "f32[]", "f32[2,3]", "f32[1]"]
    for shape, axes in itertools.product(ones, (None, [0], [-1], [0, 2], [1, 1], [5], [], [-2, 0])):
        for version in (1, 11):
            c.add("Squeeze", version, [shape], axes=axes)
            if axes is not None:
                c.add("Unsqueeze", version, [shape], axes=axes)
        for version in (13, 25):
            operands = [shape] if axes is None else [shape, ints(axes)]
            c.add("Squeeze", version, operands)
            if axes is not None:
                c.add("Unsqueeze", version, operands)
    for axes in ("i64[1]", "i64[2]", "i64[?]", "i64[*]"):
        c.each("Squeeze", ["f32[1,3,1]", axes], since=13)
        c.each("Unsqueeze", ["f32[2,3]", axes], since=13)
    for shape, target in itertools.product(SHAPES, ([4], [2, 1, 4], [5, 1, 1, 1], [3, 1, 4], [1], [], [2, 3, 0], [-1, 3, 4])):
        for version in (8, 13):
            c.add("Expand", version, [shape, ints(target)])
    for shape, repeats in itertools.product(SHAPES, ([1, 2, 3], [2], [1, 0], [], [-1, 1, 1])):
        for version in (6, 13):
            c.add("Tile", version, [shape, ints(repeats)])
    for repeats in ("i64[3]", "i64[*]", "i64[2]", "i64[?]"):
        c.each("Tile", ["f32[2,3,4]", repeats], since=6)
    c.add("Tile", 1, ["f32[2,3]", scalar(2.0, "f32"), scalar(1.0, "f32")])


def casts(c):
    for version in c.versions("Cast"):
        for to in (1, 10, 7, 8, 16):
            name = TensorProto.DataType.Name(to)
            c.add("Cast", version, ["f32[2,N]"], to=name if version < 6 else to)
        if version >= 6:
            c.add("Cast", version, ["i64[*]"], to=1)
            c.add("Cast", version, ["f32[2]"], to=0)
            c.add("Cast", version, ["f32[2]"], to=99)
    for version in c.versions("CastLike"):
        c.add("CastLike", version, ["f32[2,N]", "f16[3]"])
        c.add("CastLike", version, ["f32[*]", "i64[]"])
    for to, source in itertools.product((1, 6, 7, 10, 8, 12), ("f32[2,N]", "i16[3]", "i64[*]")):
        c.each("BitCast", [source], to=to)


def joins(c):
    groups = [["f32[2,3]", "f32[2,4]"], ["f32[2,3]", "f32[3,3]"], ["f32[N,3]", "f32[?,4]"], ["f32[2,3]"],
              ["f32[2,3]", "f32[*]"], ["f32[2,3]", "f32[2]"], ["f32[N,3]", "f32[2,M]"], ["f32[3]", "f32[4]", "f32[0]"],
              ["f32[]", "f32[]"], ["f32[2,3]", "f32[2,3]", "f32[2,3]"], ["f32[*]", "f32[*]"]]
    for group, axis in itertools.product(groups, (0, 1, -1, -2, 2)):
        c.each("Concat", group, axis=axis)
    c.each("Concat", groups[0])
    for shape, axis, n in itertools.product(("f32[6,4]", "f32[5,N]", "f32[*]", "f32[?,?]"), (None, 1, -1, 2), (1, 2, 3)):
        c.each("Split", [shape], n, before=18, axis=axis)
        c.add("Split", 18, [shape], n, axis=axis, num_outputs=n)
    c.add("Split", 18, ["f32[6]"], 2)
    c.add("Split", 18, ["f32[6]"], 2, num_outputs=3)
    c.add("Split", 18, ["f32[5]"], 4, num_outputs=4)
    for shape, sizes in itertools.product(("f32[6,4]", "f32[N,4]", "f32[*]"), ([2, 4], [3, 3], [6], [0, 6], [2, 3], [-2, 8], [1, 1, 4])):
        for version in (1, 2, 11):
            c.add("Split", version, [shape], 2, split=sizes)
        for version in (13, 18):
            c.add("Split", version, [shape, ints(sizes)], 2)
    for version in (13, 18):
        c.add("Split", version, ["f32[6,4]", "i64[2]"], 2)
        c.add("Split", version, ["f32[6,4]", "i64[1]"], 1)
        c.add("Split", version, ["f32[6,4]", "i64[2]={4,0}"], 2, axis=1)
    slices = [([0], [2], [0], None), ([1], [-1], [1], None), ([0], [I64_MAX], [0], None), ([-1], [I64_MIN], [0], [-1]),
              ([5], [0], [1], [-2]), ([0, 0], [2, 9], [0, 1], [1, 2]), ([0], [2], [5], None), ([0], [2], [-1], None),
              ([3], [1], [0], None), ([0, 1], [2], [0, 1], None), ([0], [2], [0], [0]), ([1, 0], [3, 2], None, None),
              ([0, 0], [1, 1], [0, 0], None), ([I64_MIN], [I64_MAX], [1], [3]), ([-3], [-1], [0], [1]), ([2], [2], [0], None),
              ([0, 0, 0, 0], [1, 1, 1, 1], None, None), ([4], [I64_MIN], [1], [I64_MIN]), ([], [], [], None)]
    for shape, (starts, ends, axes, steps) in itertools.product(("f32[5,4]", "f32[N,4]", "f32[*]", "f32[0,4]", "f32[]", "f32[5,?]"), slices):
        if steps is None:
            c.add("Slice", 1, [shape], starts=starts, ends=ends, axes=axes)
        operands = [shape, ints(starts), ints(ends)]
        if axes is not None or steps is not None:
            operands.append("_" if axes is None else ints(axes))
        if steps is not None:
            operands.append(ints(steps))
        for version in (10, 11, 13):
            c.add("Slice", version, operands)
    for version in (10, 11, 13):
        c.add("Slice", version, ["f32[5,4]", "i64[1]", "i64[1]"])
        c.add("Slice", version, ["f32[5,4]", "i64[1]", "i64[1]", ints([1])])
        c.add("Slice", version, ["f32[5,4]", ints([0]), "i64[1]", ints([1])])
        c.add("Slice", version, ["f32[5,4]", ints([0]), ints([2]), "i64[1]"])
        c.add("Slice", version, ["f32[5,4]", ints([0]), ints([2]), ints([0]), "i64[1]"])
        c.add("Slice", version, ["f32[5,4]", "i32[?]", "i32[?]"])
    for shape, pads in itertools.product(("f32[5,4]", "f32[N,4]", "f32[*]", "f32[]"), ([0, 1, 2, 0], [1, 1], [-2, 0, 0, -1], [0, 0, 0, 0], [-3, 0, -3, 0], [])):
        c.add("Pad", 1, [shape], paddings=pads)
        c.add("Pad", 2, [shape], pads=pads)
        for version in (11, 13, 18, 25):
            c.add("Pad", version, [shape, ints(pads)])
        for axes in ([1], [-1], [0, 1], [5], [1, 0]):
            c.add("Pad", 18, [shape, ints(pads), "_", ints(axes)])
            c.add("Pad", 25, [shape, ints(pads), "f32[]", ints(axes)], mode="edge")
    for pads in ("i64[4]", "i64[?]", "i64[*]"):
        c.each("Pad", ["f32[5,4]", pads], since=11)
    c.each("Pad", ["f32[5,4]", "i64[2]", "_", ints([1])], since=18)


def indexed(c):
    for data, indices, axis in itertools.product(("f32[5,4]", "f32[N,4]", "f32[*]", "f32[]", "f32[5]"), ("i64[2,3]", "i64[]", "i64[*]", "i64[M,?]"), (None, 1, -1, 2)):
        c.each("Gather", [data, indices], axis=axis)
        c.each("GatherElements", [data, indices], axis=axis)
    for data, indices, batch in itertools.product(("f32[2,3,4]", "f32[N,3,4]", "f32[*]", "f32[5]"), ("i64[2,2]", "i64[2,1,2]", "i64[2,3]", "i64[2,4]", "i64[2,?]", "i64[*]", "i64[2,0]"), (None, 1, 2)):
        c.each("GatherND", [data, indices], batch_dims=batch, since=11 if batch is None else 12)
    for data in ("f32[5,4]", "f32[N,4]", "f32[*]"):
        c.each("Scatter", [data, "i64[2,3]", "f32[2,3]"])
        for reduction, axis in itertools.product((None, "add"), (None, 1, -1, 2)):
            c.each("ScatterElements", [data, "i64[2,3]", "f32[2,3]"], reduction=reduction, axis=axis, since=16 if reduction else 11)
        c.each("ScatterND", [data, "i64[3,1]", "f32[3,4]"])
        c.each("ScatterND", [data, "i64[3,2]", "f32[3]"])
        c.each("ScatterND", [data, "i64[3,3]", "f32[3]"])
        c.each("ScatterND", [data, "i64[3,1]", "f32[3,5]"])
        c.each("ScatterND", [data, "i64[*]", "f32[*]"])
    c.each("TensorScatter", ["f32[2,8,16,4]", "f32[2,8,1,4]", "i64[2]"])
    c.each("TensorScatter", ["f32[B,8,16,4]", "f32[B,8,S,4]"])
    c.each("TensorScatter", ["f32[2,16,4]", "f32[2,17,4]"])
    c.each("TensorScatter", ["f32[2,16,4]", "f32[2,3,5]"])
    c.each("TensorScatter", ["f32[2,16,4]", "f32[2,3,4]"], axis=0)
    c.each("TensorScatter", ["f32[2,16,4]", "f32[2,3,4]", "i64[3]"])
    for data, condition, axis in itertools.product(("f32[5,4]", "f32[N,4]", "f32[*]"), ("bool[3]={1,0,1}", "bool[?]", "bool[*]", "bool[2,2]"), (None, 0, -1, 2)):
        c.each("Compress", [data, condition], axis=axis)
    for indices, depth, axis in itertools.product(("i64[2,3]", "i64[N]", "i64[*]", "i64[]"), (scalar(7), ints([7]), "i64[]", scalar(-1), scalar(5.0, "f32"), ints([1, 2])), (None, 0, -1, -2, 3)):
        c.each("OneHot", [indices, depth, "f32[2]"], axis=axis)
    c.each("OneHot", ["i64[2]", scalar(3), "f32[3]"])
    c.each("OneHot", ["i64[2]", scalar(3), "f32[]"])
    for shape in ("f32[2,3]", "f32[N,?]", "f32[*]", "f32[]"):
        c.each("NonZero", [shape])
        for axis, n in itertools.product((None, 0, -1, 2), (1, 4)):
            c.each("Unique", [shape], n, axis=axis)
    for shape, lens in itertools.product(("f32[4,3,2]", "f32[N,M]", "f32[*]", "f32[3]"), ("i64[3]", "i64[4]", "i64[*]", "i64[2,2]")):
        c.each("ReverseSequence", [shape, lens])
        c.each("ReverseSequence", [shape, lens], batch_axis=0, time_axis=1)
        c.each("ReverseSequence", [shape, lens], batch_axis=0)
    for shape, block in itertools.product(("f32[1,8,2,4]", "f32[N,8,H,W]", "f32[*]", "f32[1,6,3,3]", "f32[2,8,4]", "f32[N,C,4,4]"), (1, 2, 0, -1)):
        c.each("DepthToSpace", [shape], blocksize=block)
        c.each("SpaceToDepth", [shape], blocksize=block)


def sources(c):
    tensor = lambda dtype, dims, values: helper.make_tensor("v", dtype, dims, values)
    c.each("Constant", [], value=tensor(1, [2, 2], [1.0, 2.0, 3.0, 4.0]))
    c.each("Constant", [], value=tensor(7, [], [3]))
    for attrs in ({"value_float": 1.5}, {"value_floats": [1.0, 2.0]}, {"value_int": 3}, {"value_ints": [1, 2, 3]}, {"value_string": "a"}, {"value_strings": ["a", "b"]}):
        c.each("Constant", [], since=12, **attrs)
    c.each("Constant", [], since=12)
    c.each("Constant", [], since=12, value_int=1, value_float=1.0)
    for operand in (ints([2, 3]), ints([]), ints([0]), "i64[2]", "i64[?]", "i64[*]", ints([-1, 2]), "i64[]", "i64[2,2]"):
        c.each("ConstantOfShape", [operand])
        c.each("ConstantOfShape", [operand], value=tensor(7, [1], [4]))
    c.each("ConstantOfShape", [ints([2])], value=tensor(10, [1], [4.0]))
    c.each("ConstantOfShape", [ints([2])], value=tensor(1, [2], [4.0, 5.0]))
    for shape, dtype in itertools.product(("f32[2,3]", "f32[N,N]", "f32[*]", "f32[2]", "i32[2,2]"), (None, 1, 7, 10, 99)):
        c.each("EyeLike", [shape], dtype=dtype)
        c.each("RandomNormalLike", [shape], dtype=dtype)
        c.each("RandomUniformLike", [shape], dtype=dtype)
        if shape[0] == "f":
            c.each("Bernoulli", [shape], dtype=dtype)
            c.each("Multinomial", [shape], dtype=dtype, sample_size=4)
    for dtype in (None, 1, 10, 7):
        c.each("RandomNormal", [], shape=[2, 3], dtype=dtype)
        c.each("RandomUniform", [], shape=[2, 3], dtype=dtype)
    c.each("RandomNormal", [], shape=[2, -3])
    for start, limit, delta in ((0, 10, 1), (3, 9, 3), (10, 4, -2), (4, 10, -2), (0, 10, 3), (0, 5, 0), (5, 5, 1), (I64_MIN, I64_MAX, 1)):
        c.each("Range", [scalar(v) for v in (start, limit, delta)])
        if abs(start) < 100:
            c.each("Range", [scalar(v, "i32") for v in (start, limit, delta)])
            c.each("Range", [scalar(float(v), "f32") for v in (start, limit, delta)])
    c.each("Range", [scalar(0.0, "f32"), scalar(1.0, "f32"), scalar(0.3, "f32")])
    c.each("Range", ["i64[]", "i64[]", "i64[]"])
    c.each("Range", ["i64[*]", scalar(3), scalar(1)])
    c.each("Range", ["i64[2]", scalar(3), scalar(1)])


def containers(c):
    c.each("SequenceEmpty", [])
    c.each("SequenceEmpty", [], dtype=7)
    for group in (["f32[2,3]", "f32[2,3]"], ["f32[2,3]", "f32[2,4]"], ["f32[2]", "f32[2,3]"], ["f32[N]"], ["f32[*]", "f32[2]"]):
        c.each("SequenceConstruct", group)
    for sequence in ("seq(f32[2,3])", "seq(f32[N,?])", "seq(f32[*])"):
        c.each("SequenceInsert", [sequence, "f32[2,3]"])
        c.each("SequenceInsert", [sequence, "f32[2,5]", "i64[]"])
        c.each("SequenceErase", [sequence])
        c.each("SequenceErase", [sequence, "i64[]"])
        c.each("SequenceAt", [sequence, "i64[]"])
        c.each("SequenceLength", [sequence])
        for axis, new in itertools.product((0, 1, -1, 2, -3, 3), (None, 1, 2)):
            c.each("ConcatFromSequence", [sequence], axis=axis, new_axis=new)
        c.each("OptionalGetElement", [f"opt({sequence})"])
        c.each("OptionalHasElement", [f"opt({sequence})"])
        c.each("Optional", [sequence])
        c.each("Identity", [sequence], since=14)
        c.each("Identity", [f"opt({sequence})"], since=16)
    c.each("SequenceInsert", ["seq(f32[2])", "f16[2]"])
    for shape, split in itertools.product(("f32[6,4]", "f32[5,N]", "f32[*]"), (None, scalar(2), scalar(3), ints([2, 4]), ints([3, 3]), ints([1, 2]), "i64[]", "i64[2]", "i64[*]")):
        operands = [shape] if split is None else [shape, split]
        c.each("SplitToSequence", operands)
        c.each("SplitToSequence", operands, axis=-1, keepdims=0)
        c.each("SplitToSequence", operands, axis=2)
    c.each("Optional", ["f32[2,N]"])
    c.each("Optional", [], type=helper.make_tensor_type_proto(1, [2]))
    c.each("Optional", [])
    c.each("OptionalGetElement", ["opt(f32[2,N])"])
    c.each("OptionalHasElement", ["opt(f32[2,N])"])
    c.each("OptionalGetElement", ["f32[2,N]"], since=18)
    c.each("OptionalGetElement", ["seq(f32[2,N])"], since=18)
    c.each("OptionalHasElement", ["f32[2,N]"], since=18)
    c.each("OptionalHasElement", [], since=18)


def quantized(c):
    for shape, scale in itertools.product(("f32[2,4,6]", "f32[N,4,?]", "f32[*]", "f32[4]"), ("f32[]", "f32[4]", "f32[1]", "f32[5]", "f32[2,4,3]", "f32[*]")):
        zero = scale.replace("f32", "i8")
        c.each("QuantizeLinear", [shape, scale])
        c.each("QuantizeLinear", [shape, scale, zero])
        x = shape.replace("f32", "u8")
        c.each("DequantizeLinear", [x, scale])
        c.each("DequantizeLinear", [x, scale, scale.replace("f32", "u8")])
        c.each("QuantizeLinear", [shape, scale], since=21, axis=-1, block_size=2)
        c.each("DequantizeLinear", [x, scale], since=21, axis=-1, block_size=2)
    for dtype in (2, 3, 4, 22, 17, 1):
        c.each("QuantizeLinear", ["f32[2,4]", "f32[]"], since=21, output_dtype=dtype)
        c.each("QuantizeLinear", ["f16[2,4]", "f16[]", "u8[]"], since=21, output_dtype=dtype)
    for dtype in (1, 10, 16, 7):
        c.each("DequantizeLinear", ["i8[2,4]", "f16[]"], since=23, output_dtype=dtype)
    c.each("DequantizeLinear", ["i8[2,4]", "f16[]"], since=19)
    c.each("DequantizeLinear", ["i8[2,4]", "f32[4]"], since=13, axis=2)
    c.each("DynamicQuantizeLinear", ["f32[2,N]"], 3)
    c.each("DynamicQuantizeLinear", ["f32[*]"], 3)


def strings(c):
    for shape in ("string[3]", "string[1,4]", "string[2,4]", "string[N]", "string[*]", "string[]", "string[?,3]"):
        c.each("StringNormalizer", [shape])
        c.each("StringNormalizer", [shape], stopwords=["a"])
        c.each("StringConcat", [shape, "string[3]"])
        c.each("StringSplit", [shape], 2)
        c.each("RegexFullMatch", [shape], pattern="a")
        c.each("TfIdfVectorizer", [shape], max_gram_length=1, max_skip_count=0, min_gram_length=1, mode="TF", ngram_counts=[0], ngram_indexes=[0, 3, 1], pool_strings=["a", "b", "c"])


def learned(c):
    ml = "ai.onnx.ml"
    for shape in ("f32[2,5]", "f32[N,5]", "f32[5]", "f32[*]", "f32[2,3,4]"):
        for op in ("Binarizer", "Imputer", "Normalizer", "Scaler"):
            c.each(op, [shape], domain=ml, **({"imputed_value_floats": [0.5]} if op == "Imputer" else {}))
        c.each("ArrayFeatureExtractor", [shape, "i64[1,2]"], domain=ml)
        c.each("ArrayFeatureExtractor", [shape, "i64[3]"], domain=ml)
        c.each("LinearClassifier", [shape], 2, domain=ml, classlabels_ints=[0, 1, 2], coefficients=[1.0] * 15)
        c.each("LinearClassifier", [shape], 2, domain=ml, classlabels_strings=["a", "b"], coefficients=[1.0] * 10)
        c.each("SVMClassifier", [shape], 2, domain=ml, classlabels_ints=[0, 1, 2])
        c.each("TreeEnsembleClassifier", [shape], 2, domain=ml, classlabels_int64s=[0, 1, 2])
        c.each("TreeEnsembleClassifier", [shape], 2, domain=ml, classlabels_strings=["a", "b", "c"])
        c.each("LinearRegressor", [shape], domain=ml, targets=2)
        c.each("LinearRegressor", [shape], domain=ml)
        c.each("SVMRegressor", [shape], domain=ml)
        c.each("TreeEnsembleRegressor", [shape], domain=ml, n_targets=3)
        c.each("OneHotEncoder", [shape], domain=ml, cats_int64s=[1, 2, 3])
    for shape in ("i64[2,N]", "string[3]", "string[*]"):
        labels = {"cats_int64s": [1, 2], "cats_strings": ["a", "b"]}
        c.each("CategoryMapper", [shape], domain=ml, **labels)
        c.each("OneHotEncoder", [shape], domain=ml, cats_strings=["a"])
        c.each("LabelEncoder", [shape], domain=ml, before=2, classes_strings=["a"])
        keys = {"keys_int64s": [1]} if shape[0] == "i" else {"keys_strings": ["a"]}
        c.each("LabelEncoder", [shape], domain=ml, since=2, values_floats=[1.0], **keys)
        c.each("LabelEncoder", [shape], domain=ml, since=2, values_int64s=[1], **keys)
        c.each("LabelEncoder", [shape], domain=ml, since=2, values_strings=["b"], **keys)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare with the committed file instead of writing it")
    check = parser.parse_args().check
    cases = Cases()
    for group in (layout, casts, joins, indexed, sources, containers, quantized, strings, learned):
        group(cases)
    text = f"# onnx {onnx.__version__}; written by scripts/generate_inference_cases_data.py\n"
    previous = []
    for key, result in cases.lines.items():
        # A field that is the same as on the line before is left empty, which halves the file.
        fields = key.split("\t") + [result]
        text += "\t".join("\"" if previous and f == p and len(f) > 1 else f for f, p in zip(fields, previous or fields)) + "\n"
        previous = fields
    if not check:
        OUT.parent.mkdir(parents=True, exist_ok=True)
        OUT.write_text(text)
    elif OUT.read_text() != text:
        sys.exit(f"{OUT} is not what onnx {onnx.__version__} says")
    print(f"{len(cases.lines)} cases, {len(text)} bytes")


if __name__ == "__main__":
    np.seterr(all="ignore")
    main()
