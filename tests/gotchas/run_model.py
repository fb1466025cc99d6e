"""Runs models in ONNX Runtime: run_model.py FEEDS MODEL...

FEEDS has one line per input: name, dtype, dims, values, separated by tabs; dims and values by blanks. Every model is
judged by onnx.checker first and then run with what it has for inputs, without graph optimisations, so that no cast
is fused away. Standard output has per model a line `model`, `ok` or `unimplemented` (types are right, but the CPU has
no kernel for them), a message, and, if it ran, a line per output in the format of FEEDS.

Exit code 77 if onnx or onnxruntime is not installed.
"""

import sys

try:
    import numpy as np
    import onnx
    import onnxruntime as ort
except ImportError as missing:
    print(missing, file=sys.stderr)
    sys.exit(77)

DTYPES = {"f32": np.float32, "f16": np.float16, "f64": np.float64, "i64": np.int64, "i32": np.int32, "bool": np.bool_}


def read_feeds(path):
    feeds = {}
    with open(path, encoding="utf-8") as lines:
        for line in lines.read().split("\n"):
            if line:
                name, dtype, dims, values = line.split("\t")
                parse = (lambda v: v == "true") if dtype == "bool" else float if dtype[0] == "f" else int
                data = np.array([parse(v) for v in values.split()], dtype=DTYPES[dtype])
                feeds[name] = data.reshape([int(d) for d in dims.split()])
    return feeds


def show(value):
    if isinstance(value, list):
        parts = [np.asarray(list(v.values()) if isinstance(v, dict) else v).ravel() for v in value]
        value = np.concatenate(parts) if parts else np.zeros(0, np.float32)
    dims = " ".join(str(d) for d in value.shape)
    values = [int(v) if value.dtype.kind in "iub" else float(v) for v in value.ravel()]
    return f"{value.dtype}\t{dims}\t{' '.join(map(repr, values))}"


def is_onnx(path):
    """Whether ONNX has every operator of the main graph at the model's opset; others are ONNX Runtime's."""
    model = onnx.load(path, load_external_data=False)
    opset = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    known = [onnx.defs.has(n.op_type, opset, "") for n in model.graph.node if n.domain in ("", "ai.onnx")]
    return all(known) and not any(n.op_type == "GroupNormalization" and opset < 21 for n in model.graph.node)


def run(path, feeds):
    if is_onnx(path):
        onnx.checker.check_model(path, full_check=True)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime has one class of errors per status, some of them private
        if "NOT_IMPLEMENTED" in str(error):
            print(f"model\tunimplemented\t{str(error).splitlines()[0]}")
            return
        raise
    overridden = [i for i in session.get_overridable_initializers() if i.name in feeds]
    known = {i.name: i.type for i in session.get_inputs() + overridden}
    own = {}
    for name in known:
        own[name] = feeds[name].astype(np.float16) if known[name] == "tensor(float16)" else feeds[name]
    names = [o.name for o in session.get_outputs()]
    results = session.run(names, own)
    print("model\tok\t")
    for name, value in zip(names, results):
        print(f"{name}\t{show(value)}")


def main():
    feeds = read_feeds(sys.argv[1])
    for path in sys.argv[2:]:
        run(path, feeds)


if __name__ == "__main__":
    main()
