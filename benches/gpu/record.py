#!/usr/bin/env python3
"""Records what is needed once from a machine with a GPU: the device as cuDNN sees it, the heuristics of cuBLASLt, and the tests.

    record.py --ampc target/release/ampc FOLDER [--tests TEST_BINARY]

FOLDER gets devices.json (`ampc devices`), device.json (cuDNN's description, for plans without a device; like
runtime/tests/cuda/h200.json), heuristics.json (the first algorithms that cuBLASLt names for a list of products), and, with
--tests, tests.txt and sanitizer-*.txt: the CUDA tests alone and under compute-sanitizer. The test binary is the path that
`cargo test -p ampc-runtime --features cuda --test cuda --no-run` prints. The libraries are those that `ampc devices` finds.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from argparse import ArgumentParser
from itertools import product
from pathlib import Path
from typing import Any

# cudnn_backend.h
DEVICEPROP_DESCRIPTOR, DEVICEPROP_DEVICE_ID, DEVICEPROP_JSON = 38, 2700, 2702
TYPE_INT32, TYPE_CHAR = 23, 24
# cublasLt.h and library_types.h
TYPES = {"f32": 0, "f16": 2, "bf16": 14}
COMPUTE_32F, REDUCTION_COMPUTE_TYPE = 68, 2
DESC_TRANSA, DESC_TRANSB = 3, 4
PREF_WORKSPACE, PREF_REDUCTION = 1, 3
CONFIG = {"id": 0, "tile": 1, "split_k": 2, "reduction": 3, "swizzle": 4, "custom": 5, "stages": 6}
WORKSPACE = 32 << 20
MOST = 4
# m, n, k of the products of a transformer, of a classifier, and of odd sizes.
SIZES = [(16, 64, 20), (1024, 768, 768), (12288, 3072, 768), (12288, 768, 3072), (128, 1000, 2048), (4096, 50304, 768), (33, 17, 65)]


class Result(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algo", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


def check(status: int, what: str) -> None:
    if status:
        raise RuntimeError(f"{what}: status {status}")


def device_json(library: ctypes.CDLL) -> dict[str, Any]:
    """The device of number 0, as cuDNN describes it."""
    descriptor, device, length = ctypes.c_void_p(), ctypes.c_int32(0), ctypes.c_int64()
    text = ctypes.create_string_buffer(1 << 16)
    check(library.cudnnBackendCreateDescriptor(DEVICEPROP_DESCRIPTOR, ctypes.byref(descriptor)), "create")
    one = ctypes.c_int64(1)
    set_attribute = library.cudnnBackendSetAttribute
    check(set_attribute(descriptor, DEVICEPROP_DEVICE_ID, TYPE_INT32, one, ctypes.byref(device)), "set")
    check(library.cudnnBackendFinalize(descriptor), "finalize")
    most = ctypes.c_int64(len(text))
    get_attribute = library.cudnnBackendGetAttribute
    check(get_attribute(descriptor, DEVICEPROP_JSON, TYPE_CHAR, most, ctypes.byref(length), text), "get")
    return json.loads(text.value.decode())


class Products:
    """cuBLASLt with a handle."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library, self.handle = library, ctypes.c_void_p()
        check(library.cublasLtCreate(ctypes.byref(self.handle)), "cublasLtCreate")

    def layout(self, dtype: str, rows: int, columns: int) -> ctypes.c_void_p:
        layout = ctypes.c_void_p()
        sizes = ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows)
        check(self.library.cublasLtMatrixLayoutCreate(ctypes.byref(layout), TYPES[dtype], *sizes), "layout")
        return layout

    def algorithms(self, dtype: str, result: str, size: tuple[int, int, int], trans: tuple[bool, bool]) -> list[dict[str, Any]]:
        """The first algorithms for a column-major product, with the preferences of the backend."""
        m, n, k = size
        description, preference = ctypes.c_void_p(), ctypes.c_void_p()
        check(self.library.cublasLtMatmulDescCreate(ctypes.byref(description), COMPUTE_32F, TYPES["f32"]), "description")
        for attribute, is_transposed in zip((DESC_TRANSA, DESC_TRANSB), trans):
            value = ctypes.c_int32(int(is_transposed))
            size_of = ctypes.c_size_t(4)
            set_attribute = self.library.cublasLtMatmulDescSetAttribute
            check(set_attribute(description, attribute, ctypes.byref(value), size_of), "transposed")
        a = self.layout(dtype, *((k, m) if trans[0] else (m, k)))
        b = self.layout(dtype, *((n, k) if trans[1] else (k, n)))
        c = self.layout(result, m, n)
        check(self.library.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)), "preference")
        wishes = (PREF_WORKSPACE, ctypes.c_uint64(WORKSPACE)), (PREF_REDUCTION, ctypes.c_uint32(REDUCTION_COMPUTE_TYPE))
        for attribute, value in wishes:
            size_of = ctypes.c_size_t(ctypes.sizeof(value))
            set_attribute = self.library.cublasLtMatmulPreferenceSetAttribute
            check(set_attribute(preference, attribute, ctypes.byref(value), size_of), "preference")
        results, count = (Result * MOST)(), ctypes.c_int()
        heuristic = self.library.cublasLtMatmulAlgoGetHeuristic
        status = heuristic(self.handle, description, a, b, c, c, preference, MOST, results, ctypes.byref(count))
        found = [self.algorithm(results[i]) for i in range(count.value)] if not status else []
        for layout in (a, b, c):
            self.library.cublasLtMatrixLayoutDestroy(layout)
        self.library.cublasLtMatmulPreferenceDestroy(preference)
        self.library.cublasLtMatmulDescDestroy(description)
        return found

    def algorithm(self, result: Result) -> dict[str, Any]:
        found: dict[str, Any] = {"workspace": result.workspace, "waves": round(result.waves, 4), "state": result.state}
        get = getattr(self.library, "cublasLtMatmulAlgoConfigGetAttribute", None)
        for name, attribute in CONFIG.items() if get else ():
            value, written = ctypes.c_uint32(), ctypes.c_size_t()
            if not get(ctypes.byref(result.algo), attribute, ctypes.byref(value), ctypes.c_size_t(4), ctypes.byref(written)):
                found[name] = value.value
        return found


def heuristics(library: ctypes.CDLL) -> list[dict[str, Any]]:
    products = Products(library)
    kinds = [("f32", "f32"), ("f16", "f16"), ("f16", "f32"), ("bf16", "bf16"), ("bf16", "f32")]
    found = []
    for (dtype, result), size, trans in product(kinds, SIZES, product((False, True), repeat=2)):
        names = {"operands": dtype, "result": result, "m_n_k": size, "transposed": trans}
        found.append(names | {"algorithms": products.algorithms(dtype, result, size, trans)})
    return found


def tests(binary: Path, folder: Path) -> bool:
    """Runs the tests alone and under the tools of compute-sanitizer that are there; true if all pass."""
    commands = {"tests": [binary]}
    if sanitizer := shutil.which("compute-sanitizer"):
        for tool in ("memcheck", "initcheck", "synccheck", "racecheck"):
            commands[f"sanitizer-{tool}"] = [sanitizer, "--tool", tool, "--error-exitcode", "9", binary]
    else:
        print("skipped: compute-sanitizer is not on PATH")
    passed = True
    for name, command in commands.items():
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "AMPC_CUDA_REQUIRED": "1"})
        text = done.stdout + done.stderr
        (folder / f"{name}.txt").write_text(f"exit code {done.returncode}\n{text}")
        print(f"{name}: exit code {done.returncode}; {text.strip().splitlines()[-1] if text.strip() else 'no output'}")
        passed &= done.returncode == 0
    return passed


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ampc", type=Path, required=True)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tests", type=Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    text = subprocess.run([args.ampc, "devices", "--json"], capture_output=True, text=True, check=True).stdout
    (args.folder / "devices.json").write_text(text)
    files = {library["name"]: library.get("path") for library in json.loads(text)["libraries"]}
    passed = True
    for name, out, record in [("cuDNN", "device.json", device_json), ("cuBLASLt", "heuristics.json", heuristics)]:
        try:
            if not files.get(name):
                raise RuntimeError("the library was not found")
            found = record(ctypes.CDLL(files[name]))
        except (RuntimeError, OSError, AttributeError) as error:
            print(f"{out}: {name}: {error}")
            passed = False
            continue
        (args.folder / out).write_text(json.dumps(found, indent=1) + "\n")
        print(f"{args.folder / out}: written")
    if args.tests:
        passed &= tests(args.tests, args.folder)
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()
