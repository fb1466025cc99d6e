#!/usr/bin/env python3
"""Writes which operators of ai.onnx the CPU provider of ONNX Runtime had a kernel for and has none at a later version.

    python scripts/generate_lost_kernels.py            # write
    python scripts/generate_lost_kernels.py --check    # compare and try each in a session; exit 1 if anything differs

The output, `passes/src/opset/raise_opset/lost_kernels.tsv`, has a line per operator: its name, and the first version without
a kernel behind the last one with a kernel. A version that ONNX defines by a function needs no kernel. ONNX Runtime
takes a kernel that is registered for an open range of versions for its first version only, so that a new version of an
operator, which may mean something else, has none until somebody looked at it. The pin is deliberate.
Exit codes: 0 done or fresh, 1 stale, 2 cannot run here.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path

ORT_VERSION = "1.31.1"
# The newest opset that this ONNX Runtime reads.
NEWEST = 26
OPEN = 2**31 - 1
FILE = Path(__file__).resolve().parent.parent / "passes" / "src" / "opset" / "raise_opset" / "lost_kernels.tsv"
HEAD = f"# Operators of ai.onnx and their first version without a kernel in the CPU provider of onnxruntime {ORT_VERSION}.\n# Written by scripts/generate_lost_kernels.py.\n"
NO_KERNEL = "Could not find an implementation"


class CannotRun(Exception):
    """Something outside the repository is missing or different."""


def load():
    """onnx, and the registries of the pinned ONNX Runtime, or an explanation why not."""
    try:
        import onnx
        import onnxruntime
        from onnxruntime.capi import onnxruntime_pybind11_state as state
    except ImportError as error:
        raise CannotRun(f"onnx or onnxruntime is not installed ({error}); pip install onnxruntime=={ORT_VERSION}") from error
    if onnxruntime.__version__ != ORT_VERSION:
        raise CannotRun(f"onnxruntime {onnxruntime.__version__} is installed; the file is pinned to {ORT_VERSION}")
    return onnx, state


def lost(onnx, state) -> dict[str, int]:
    """The first version without a kernel of each operator that has lost it."""
    kernels = defaultdict(list)
    for kernel in state.get_all_opkernel_def():
        if kernel.domain == "" and kernel.provider == "CPUExecutionProvider":
            kernels[kernel.op_name].append(kernel.version_range)
    functions = {
        (s.name, s.since_version)
        for s in onnx.defs.get_all_schemas_with_history()
        if s.domain == "" and (s.has_function or s.has_context_dependent_function)
    }
    versions = defaultdict(set)
    for schema in state.get_all_operator_schema():
        if schema.domain == "" and not schema.deprecated and schema.since_version <= NEWEST:
            versions[schema.name].add(schema.since_version)

    def runs(name: str, version: int) -> bool:
        ranges = kernels[name]
        return (name, version) in functions or any(a == version or a < version <= b != OPEN for a, b in ranges)

    found = {}
    for name in versions:
        running = [v for v in versions[name] if runs(name, v)]
        later = [v for v in versions[name] if running and v > max(running)]
        if later:
            found[name] = min(later)
    return found


def text(found: dict[str, int]) -> str:
    return HEAD + "".join(f"{name}\t{since}\n" for name, since in sorted(found.items()))


def try_all(onnx, found: dict[str, int]) -> list[str]:
    """What a session says otherwise: each of them is refused at its version and read at the one before.

    Attributes that have to be there are lists of integers, for all of them.
    """
    import numpy as np
    import onnxruntime

    onnxruntime.set_default_logger_severity(4)
    wrong = []
    for name, since in found.items():
        before = max(s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.name == name and s.since_version < since)
        for opset, expected in ((since, False), (before, True)):
            schema = onnx.defs.get_schema(name, opset)
            kinds = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
            types = []
            for formal in schema.inputs[: schema.min_input]:
                allowed = kinds.get(formal.type_str, [formal.type_str])
                types.append("tensor(float)" if "tensor(float)" in allowed else allowed[0])
            dtypes = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
            given = [onnx.helper.make_tensor_value_info(f"x{i}", onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtypes[t])), None) for i, t in enumerate(types)]
            required = {n: [1, 1] for n, a in schema.attributes.items() if a.required}
            node = onnx.helper.make_node(name, [v.name for v in given], ["y"], **required)
            graph = onnx.helper.make_graph([node], "g", given, [onnx.helper.make_empty_tensor_value_info("y")])
            model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8)
            try:
                onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
                said = ""
            except Exception as error:  # noqa: BLE001: whatever it says is compared
                said = str(error)
            if (NO_KERNEL in said) == expected or said and expected:
                wrong.append(f"{name} {opset}: {said or 'a session is made'}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="Write which operators have lost their kernel in ONNX Runtime's CPU provider.")
    parser.add_argument("--check", action="store_true", help="compare with the committed file, write nothing")
    check = parser.parse_args().check
    try:
        onnx, state = load()
        found = lost(onnx, state)
    except CannotRun as error:
        print(f"generate_lost_kernels.py: {error}", file=sys.stderr)
        return 2
    if not check:
        FILE.write_text(text(found))
        return 0
    wrong = try_all(onnx, found)
    if not FILE.exists() or FILE.read_text() != text(found):
        wrong.append(f"{FILE.name} is stale: run `python scripts/generate_lost_kernels.py`")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
