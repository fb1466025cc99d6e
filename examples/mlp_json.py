"""A framework that is not ONNX lowers a model: graph as JSON, weights as safetensors, nothing but NumPy.

    python examples/mlp_json.py [FOLDER] [AMPC]

Writes net.json and net.safetensors, runs `ampc rewrite net.json --emit json`, and reads back what became of them.
The schema is in docs/json-graph.md. The package `safetensors` would do as well as the few lines here.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

NAMES = {"float32": ("f32", "F32"), "float16": ("f16", "F16"), "int64": ("i64", "I64")}


def write_safetensors(path, tensors):
    header, offset = {}, 0
    for name, array in tensors.items():
        offsets = [offset, offset + array.nbytes]
        header[name] = {"dtype": NAMES[array.dtype.name][1], "shape": array.shape, "data_offsets": offsets}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(a.tobytes() for a in tensors.values()))


def read_safetensors(path):
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    dtypes = {file: np.dtype(name) for name, (_, file) in NAMES.items()}
    tensors = {}
    for name, entry in json.loads(data[8:start]).items():
        if name != "__metadata__":
            begin, end = (start + offset for offset in entry["data_offsets"])
            tensors[name] = np.frombuffer(data[begin:end], dtypes[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def constant_value(value, tensors):
    """A constant as it is meant: stored elements, and what they are still to be converted to."""
    dtypes = {ours: name for name, (ours, _) in NAMES.items()}
    if "name" in value:
        array = tensors[value["name"]]
    else:
        array = np.array(value["data"], dtypes[value.get("stored", value["dtype"])]).reshape(value["shape"])
    for step in value.get("converted", []):
        dtype = np.dtype(dtypes[step["to"]])
        if step.get("clamp"):
            largest = np.finfo(dtype).max
            array = np.where(np.isfinite(array), np.clip(array, -largest, largest), array)
        array = array.astype(dtype)
    return array


def tensor(dtype, *shape):
    return {"kind": "tensor", "dtype": dtype, "shape": list(shape)}


def build(widths):
    """The graph of a small MLP, and its weights."""
    random = np.random.default_rng(0)
    constants, nodes, tensors, value = [], [], {}, "x"
    for i, (n, m) in enumerate(zip(widths, widths[1:]), 1):
        for name, array in [(f"w{i}", random.normal(size=(n, m)) / n**0.5), (f"b{i}", np.zeros(m))]:
            tensors[name] = array.astype(np.float32)
            constants.append({"name": name, "value": {"dtype": "f32", "shape": array.shape, "name": name}})
        nodes.append({"name": f"fc{i}", "op": "Gemm", "operands": [value, f"w{i}", f"b{i}"], "results": [f"h{i}"]})
        op, attributes = ("Relu", {}) if i < len(widths) - 1 else ("Softmax", {"axis": {"int": -1}})
        nodes.append({"op": op, "operands": [f"h{i}"], "results": [f"y{i}"], "attributes": attributes})
        value = f"y{i}"
    graph = {"name": "mlp", "inputs": [{"name": "x", "type": tensor("f32", "N", widths[0])}]}
    graph |= {"constants": constants, "nodes": nodes, "outputs": [{"name": value}]}
    return {"schema": "ampc-graph/1", "opsets": {"ai.onnx": 21}, "graph": graph}, tensors


def main(folder=".", ampc="ampc"):
    net = Path(folder) / "net.json"
    graph, tensors = build([64, 128, 32, 10])
    net.write_text(json.dumps(graph))
    write_safetensors(net.with_suffix(".safetensors"), tensors)
    subprocess.run([ampc, "rewrite", str(net), "--emit", "json", "--force", "--quiet"], check=True)
    result = net.with_name("net.fp16.json")
    graph, tensors = json.loads(result.read_text())["graph"], read_safetensors(result.with_suffix(".safetensors"))
    for constant in graph["constants"]:
        print(constant["name"], constant_value(constant["value"], tensors).dtype)
    for node in graph["nodes"]:
        print(node["op"], node["types"][0]["dtype"], "inserted" if node.get("inserted") else "")


if __name__ == "__main__":
    main(*sys.argv[1:])
