"""The converters that ampc is measured against, each with its defaults but for keeping the public types.

    peer_tools.py TOOL SOURCE OUTPUT     converts one model, as its users do: load, convert, save

Without arguments it is a worker of tests/judge/pool.py that can also judge.
"""

from __future__ import annotations

import os
import subprocess
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


_modelopt_server: subprocess.Popen[str] | None = None


def _modelopt(source: str, output: str) -> None:
    """Asks the server, which is started once: importing torch takes seconds."""
    global _modelopt_server
    if _modelopt_server is None:
        argv = [os.environ["AMPC_MODELOPT"], str(Path(__file__).with_name("peer_modelopt.py"))]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        _modelopt_server = subprocess.Popen(argv, text=True, **pipes)
    print(source, output, sep="\t", file=_modelopt_server.stdin, flush=True)
    answer = _modelopt_server.stdout.readline().strip()
    if answer != "ok":
        raise RuntimeError(answer)


TOOLS = {
    "onnxconverter-common": _onnxconverter_common,
    "ORT float16": _ort_float16,
    "ORT OnnxModel": _ort_onnx_model,
}
# Reads and writes files itself, and needs an interpreter of its own.
if os.environ.get("AMPC_MODELOPT"):
    TOOLS["modelopt"] = None


def convert(tool: str, source: str, output: str) -> str:
    """Converts a file to fp16."""
    if tool == "modelopt":
        _modelopt(source, output)
    else:
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
