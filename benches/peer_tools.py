"""The converters that ampc is measured against, each with its defaults but for keeping the public types.

    peer_tools.py TOOL SOURCE OUTPUT     converts one model, as its users do: load, convert, save

Without arguments it is a worker of tests/judge/pool.py that can also judge.
"""

from __future__ import annotations

import sys
from pathlib import Path

import onnx

JUDGE = Path(__file__).resolve().parents[1] / "tests" / "judge"


def _onnxconverter_common(model: onnx.ModelProto) -> onnx.ModelProto:
    from onnxconverter_common.float16 import convert_float_to_float16

    return convert_float_to_float16(model, keep_io_types=True)


def _ort_float16(model: onnx.ModelProto) -> onnx.ModelProto:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    return convert_float_to_float16(model, keep_io_types=True)


def _ort_onnx_model(model: onnx.ModelProto) -> onnx.ModelProto:
    from onnxruntime.transformers.onnx_model import OnnxModel

    wrapped = OnnxModel(model)
    wrapped.convert_float_to_float16(keep_io_types=True)
    wrapped.topological_sort()
    return wrapped.model


TOOLS = {
    "onnxconverter-common": _onnxconverter_common,
    "ORT float16": _ort_float16,
    "ORT OnnxModel": _ort_onnx_model,
}


def convert(tool: str, source: str, output: str) -> str:
    """Converts a file to fp16."""
    onnx.save(TOOLS[tool](onnx.load(source)), output)
    return output


if __name__ == "__main__":
    if len(sys.argv) == 4:
        convert(*sys.argv[1:])
    else:
        sys.path.insert(0, str(JUDGE))
        import pool
        import tasks

        pool.serve({**tasks.TASKS, "convert": convert})
