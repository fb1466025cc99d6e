"""Writes the small models of testdata/. Same bytes every time; needs the pinned `onnx` and numpy.

    python scripts/make_testdata.py [FOLDER]
"""

import pathlib
import sys

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper


def random(generator, *shape):
    """Weights of a scale at which activations neither grow nor vanish."""
    scale = 1.0 / numpy.sqrt(shape[0])
    return (generator.uniform(-scale, scale, shape)).astype(numpy.float32)


def mlp():
    """32-64-64-10, Relu between layers, Softmax at the end."""
    generator = numpy.random.Generator(numpy.random.PCG64(7))
    widths = [32, 64, 64, 10]
    nodes, initializers, x = [], [], "x"
    for i, (n, m) in enumerate(zip(widths, widths[1:]), start=1):
        for name, value in [(f"w{i}", random(generator, n, m)), (f"b{i}", random(generator, m))]:
            initializers.append(numpy_helper.from_array(value, name))
        last = i == len(widths) - 1
        out = "logits" if last else f"a{i}"
        nodes.append(helper.make_node("Gemm", [x, f"w{i}", f"b{i}"], [out], name=f"fc{i}"))
        if not last:
            nodes.append(helper.make_node("Relu", [out], [f"h{i}"], name=f"relu{i}"))
        x = f"h{i}"
    nodes.append(helper.make_node("Softmax", ["logits"], ["y"], name="softmax", axis=-1))
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", widths[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", widths[-1]])],
        initializers,
    )
    return helper.make_model(
        graph, producer_name="make_testdata", opset_imports=[helper.make_opsetid("", 20)], ir_version=10
    )


def mlp_samples(count=512):
    """Samples for the model: the class is the largest of ten scores that are linear in the sample."""
    generator = numpy.random.Generator(numpy.random.PCG64(11))
    x = generator.standard_normal((count, 32)).astype(numpy.float32)
    scores = x.astype(numpy.float64) @ generator.standard_normal((32, 10))
    return {"x": x, "target": scores.argmax(axis=1).astype(numpy.int64)}


def main():
    here = pathlib.Path(__file__).resolve().parent.parent / "testdata"
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else here
    folder.mkdir(exist_ok=True)
    for name, model in [("mlp.onnx", mlp())]:
        onnx.checker.check_model(model, full_check=True)
        (folder / name).write_bytes(model.SerializeToString(deterministic=True))
        print(name)
    numpy.savez(folder / "mlp_samples.npz", **mlp_samples())
    print("mlp_samples.npz")


if __name__ == "__main__":
    main()
