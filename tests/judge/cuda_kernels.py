#!/usr/bin/env python3
"""Compiles texts of kernels by NVRTC for several architectures: refused texts, registers, and spills.

No GPU is needed: with an architecture `sm_N`, NVRTC assembles the kernel as well, so that inline PTX is checked. A text
that converts to bf16 is not compiled for architectures without bf16: the backend refuses its node there.

    tests/judge/cuda_kernels.py --texts DIR --nvrtc DIR [--all] [--table]
"""

from __future__ import annotations

import ctypes
import re
import sys
from argparse import ArgumentParser
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

# All texts are compiled for the first, a share of them for the others, unless --all is given.
ARCHITECTURES = ("sm_90a", "sm_75", "sm_80", "sm_89")
SHARE = 10
# The options of runtime/src/cuda/compile.rs, and the statistics of the assembler.
OPTIONS = ("--fmad=false", "--std=c++17", "--ptxas-options=-v")
BF16_CALL = re.compile(r"(?<!__forceinline__ u16 )\bto_bf16\(")


@cache
def nvrtc(folder: str) -> ctypes.CDLL:
    """The library. It loads its builtins by name, so they are loaded first."""
    for builtins in Path(folder).glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(next(Path(folder).glob("libnvrtc.so.*"))))


def compiled(folder: str, text: bytes, architecture: str) -> tuple[int, str]:
    """The status of NVRTC, and its log."""
    library = nvrtc(folder)
    program = ctypes.c_void_p()
    library.nvrtcCreateProgram(ctypes.byref(program), text, b"kernel.cu", 0, None, None)
    options = [option.encode() for option in (f"--gpu-architecture={architecture}", *OPTIONS)]
    status = library.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    library.nvrtcGetProgramLog(program, log)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return status, log.value.decode(errors="replace")


def judge(task: tuple[str, Path, str]) -> tuple[Path, str, int, int, int, str]:
    """Text, architecture, status, registers, bytes of spills, log."""
    folder, path, architecture = task
    status, log = compiled(folder, path.read_bytes(), architecture)
    registers = sum(int(n) for n in re.findall(r"Used (\d+) registers", log))
    spills = sum(int(n) for n in re.findall(r"(\d+) bytes spill (?:stores|loads)", log))
    return path, architecture, status, registers, spills, log


def main() -> int:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=Path, required=True, help="folder of the texts, as *.cu")
    parser.add_argument("--nvrtc", required=True, help="folder of libnvrtc.so.13")
    parser.add_argument("--all", action="store_true", help="all texts for all architectures")
    parser.add_argument("--table", action="store_true", help="print registers of each text")
    parser.add_argument("--workers", type=int, default=2, help="processes [2]")
    args = parser.parse_args()
    texts = sorted(args.texts.glob("*.cu"))
    tasks = []
    for i, architecture in enumerate(ARCHITECTURES):
        for path in texts if args.all or i == 0 else texts[i::SHARE]:
            if architecture != "sm_75" or not BF16_CALL.search(path.read_text()):
                tasks.append((args.nvrtc, path, architecture))
    problems = [] if tasks else [f"no texts in {args.texts}"]
    most: dict[str, int] = {}
    with ProcessPoolExecutor(args.workers) as pool:
        for path, architecture, status, registers, spills, log in pool.map(judge, tasks, chunksize=8):
            most[architecture] = max(most.get(architecture, 0), registers)
            if args.table:
                print(f"{path.stem}  {architecture:7} {registers:4} registers {spills:5} bytes of spills")
            if status or spills:
                reason = " ".join(log.split())[:400] if status else f"{spills} bytes of spills"
                problems.append(f"{path.name}, {architecture}: {reason}")
    print("\n".join(problems))
    counts = {a: sum(task[2] == a for task in tasks) for a in ARCHITECTURES}
    print("kernels: " + ", ".join(f"{a} {counts[a]} compiled, at most {most.get(a, 0)} registers" for a in ARCHITECTURES) + f"; {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
