#!/usr/bin/env python3
"""Writes models of one LSTM, GRU or RNN with random weights, for `runtime.py`.

    recurrent.py FOLDER

A model is `FOLDER/NAME/NAME.onnx` with its input in `io.npz` beside it. A name has the operator, the steps (t), the
sequences (b), the size of the input (x) and of the state (h); `bi` is a node of two directions, `lbr` a GRU with
`linear_before_reset`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

GATES = {"lstm": 4, "gru": 3, "gru_lbr": 3, "rnn": 1}

# Steps, sequences, size of the input, size of the state, directions.
SIZES = [
    (1, 1, 256, 256, 1),
    (50, 1, 64, 64, 1),
    (100, 1, 128, 128, 1),
    (100, 1, 256, 256, 1),
    (50, 1, 256, 512, 1),
    (50, 8, 64, 64, 1),
    (50, 8, 256, 256, 1),
    (50, 32, 128, 128, 1),
    (50, 32, 256, 512, 1),
    (50, 1, 256, 256, 2),
    (50, 8, 128, 128, 2),
]


def write(folder: Path, kind: str, steps: int, batch: int, size: int, hidden: int, directions: int) -> None:
    name = f"{kind}_t{steps}_b{batch}_x{size}_h{hidden}" + ("_bi" if directions == 2 else "")
    rng, bound, row = np.random.default_rng(0), hidden**-0.5, GATES[kind] * hidden
    shapes = {"W": (directions, row, size), "R": (directions, row, hidden), "B": (directions, 2 * row)}
    weights = [
        numpy_helper.from_array(rng.uniform(-bound, bound, shape).astype(np.float32), weight)
        for weight, shape in shapes.items()
    ]
    attributes = {"hidden_size": hidden, "direction": "bidirectional" if directions == 2 else "forward"}
    if kind == "gru_lbr":
        attributes["linear_before_reset"] = 1
    node = helper.make_node(kind.split("_")[0].upper(), ["x", "W", "R", "B"], ["y", "y_h"], name, **attributes)
    ports = [
        helper.make_tensor_value_info(port, TensorProto.FLOAT, dims)
        for port, dims in (
            ("x", [steps, batch, size]),
            ("y", [steps, directions, batch, hidden]),
            ("y_h", [directions, batch, hidden]),
        )
    ]
    graph = helper.make_graph([node], name, ports[:1], ports[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / name).mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / name / f"{name}.onnx")
    np.savez(folder / name / "io.npz", in_x=rng.uniform(-1, 1, (steps, batch, size)).astype(np.float32))


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for kind in GATES:
        for sizes in SIZES:
            write(Path(sys.argv[1]), kind, *sizes)


if __name__ == "__main__":
    main()
