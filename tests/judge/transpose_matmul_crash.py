"""Shows that ONNX Runtime 1.31.1 dies on `Transpose -> MatMul` in fp16, and that one optimizer is behind it.

The judges ask again without that optimizer when a run crashes; this says why that is no excuse for an invalid model.
Exits 0 while the crash is there, 1 when it is gone (then the judges need the exception no more).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

RUN = """
import sys, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], disabled_optimizers=sys.argv[2:])
session.run(None, {"x": numpy.ones((2, 3, 4), numpy.float32)})
"""


def model() -> onnx.ModelProto:
    """x -> Cast(fp16) -> Transpose -> MatMul(constant) -> Cast(fp32) -> y."""
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=TensorProto.FLOAT16),
        helper.make_node("Transpose", ["a"], ["b"], perm=[1, 0, 2]),
        helper.make_node("MatMul", ["b", "w"], ["c"]),
        helper.make_node("Cast", ["c"], ["y"], to=TensorProto.FLOAT),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 2, 4])
    w = numpy_helper.from_array(np.ones((4, 4), np.float16), "w")
    graph = helper.make_graph(nodes, "crash", [x], [y], [w])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.checker.check_model(made, full_check=True)
    return made


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "crash.onnx")
        onnx.save(model(), path)
        ends = [subprocess.run([sys.executable, "-c", RUN, path, *without]).returncode for without in ([], ["MatmulTransposeFusion"])]
    print(f"all optimizers: exit {ends[0]}; without MatmulTransposeFusion: exit {ends[1]}")
    return 0 if ends[0] < 0 and ends[1] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
