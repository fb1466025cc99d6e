#!/usr/bin/env python3
"""Runs ONNX's own backend test suite on `ampc verify`: passed, failed and not supported, by operator.

The suite is that of the onnx package of tests/requirements.txt; its node cases are made by its test loader. Results are
compared as its runner compares them: |got - want| <= atol + rtol * |want| with each case's own bounds. Cases that do
not pass are named in conformance_ignored.txt, one a line with the reason; the list may not grow beyond its first line,
and one of it that passes has to leave it.

    tests/judge/conformance.py --ampc target/release/ampc [--filter 'test_conv*'] [--inventory FILE.csv] [--table]
"""

from __future__ import annotations

import csv
import fnmatch
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from argparse import ArgumentParser
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, numpy_helper
from onnx.backend.test.loader import load_model_tests

HERE = Path(__file__).resolve().parent
IGNORED = HERE / "conformance_ignored.txt"
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "light")
TIMEOUT = 120
# A simulated device computes large networks slowly.
DEVICE_TIMEOUT = 900


@dataclass
class Case:
    name: str
    folder: Path
    rtol: float
    atol: float
    ops: tuple[str, ...]


def message(value: Any, info: onnx.ValueInfoProto) -> bytes:
    """A value as the message that its declared type asks for."""
    if isinstance(value, TensorProto):
        return value.SerializeToString()
    if info.type.HasField("map_type"):
        return numpy_helper.from_dict(value, info.name).SerializeToString()
    if info.type.HasField("sequence_type"):
        return numpy_helper.from_list(value, info.name).SerializeToString()
    if info.type.HasField("optional_type"):
        return numpy_helper.from_optional(value, info.name).SerializeToString()
    return numpy_helper.from_array(value, info.name).SerializeToString()


def ops_of(model: onnx.ModelProto) -> tuple[str, ...]:
    return tuple(sorted({node.op_type for node in model.graph.node}))


def write_node_case(case: Any, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(case.model.SerializeToString())
    for i, (inputs, outputs) in enumerate(case.data_sets):
        data = folder / f"test_data_set_{i}"
        data.mkdir()
        for j, value in enumerate(inputs):
            (data / f"input_{j}.pb").write_bytes(message(value, case.model.graph.input[j]))
        for j, value in enumerate(outputs):
            (data / f"output_{j}.pb").write_bytes(message(value, case.model.graph.output[j]))


def cases(cache: Path) -> list[Case]:
    """All cases of the suite, below `cache`, where they are written once per version of onnx.

    What is written there names nothing outside of it: it stays right where it is moved, or the package is.
    """
    here = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    folder = cache / f"onnx-{onnx.__version__}-{here}"
    index = folder / "index.json"
    if not index.exists():
        cache.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=cache))
        (fresh / index.name).write_text(json.dumps(write_cases(fresh)))
        # Whole or not at all, and whoever else wrote the same meanwhile wrote the same.
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    return [Case(name, folder / at, rtol, atol, tuple(ops)) for name, at, rtol, atol, ops in json.loads(index.read_text())]


def write_cases(folder: Path) -> list[list[Any]]:
    """Writes each case into a folder of its own: name, folder, relative and absolute tolerance, operators."""
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for kind in KINDS:
            for case in load_model_tests(kind=kind):
                at = folder / kind / case.name
                if case.model_dir is None:
                    write_node_case(case, at)
                elif (Path(case.model_dir) / "model.onnx").exists():
                    shutil.copytree(case.model_dir, at)
                else:
                    continue
                ops = ops_of(onnx.load(at / "model.onnx", load_external_data=False))
                rows.append([f"{kind}/{case.name}", f"{kind}/{case.name}", case.rtol, case.atol, ops])
    # Whole networks with weights that are all alike; their inputs come with the package.
    light = Path(onnx.__file__).parent / "backend/test/data/light"
    for model in sorted(light.glob("light_*.onnx")):
        at = folder / "networks" / model.stem
        data = at / "test_data_set_0"
        data.mkdir(parents=True)
        shutil.copy(model, at / "model.onnx")
        proto = onnx.load(model)
        write_light(proto, light / f"{model.stem}_output_0.pb", data)
        rows.append([f"light/{model.name}", f"networks/{model.stem}", 1e-3, 1e-7, ops_of(proto)])
    return rows


def cache_of(ampc: str) -> Path:
    """Where cases are written if nothing else is said: beside the binary, in the folder of what is built."""
    return Path(ampc).resolve().parent / "conformance-cases"


def write_light(model: onnx.ModelProto, output: Path, data: Path) -> None:
    """The input of a light network is what onnx's runner makes for it: the numbers from 0 up to 1."""
    import numpy as np

    held = {tensor.name for tensor in model.graph.initializer}
    for j, value in enumerate(model.graph.input):
        if value.name in held:
            continue
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        size = int(np.prod(shape))
        numbers = (np.arange(size).astype(np.float32) / np.float32(size)).reshape(shape)
        (data / f"input_{j}.pb").write_bytes(numpy_helper.from_array(numbers, value.name).SerializeToString())
    shutil.copy(output, data / "output_0.pb")


def two_ulp(path: Path) -> float:
    """Two units in the last place of the 16-bit outputs of a model, relative; 0 without such outputs.

    Libraries of a device round in other places than the nodes of the reference.
    """
    units = {TensorProto.FLOAT16: 2.0**-10, TensorProto.BFLOAT16: 2.0**-7}
    outputs = onnx.load(path, load_external_data=False).graph.output
    return 2 * max((units.get(output.type.tensor_type.elem_type, 0.0) for output in outputs), default=0.0)


def run(ampc: str, case: Case, device: str) -> tuple[str, str]:
    """"passed", "failed", "unsupported" or "broken", and the first line that says why."""
    command = [ampc, "verify", str(case.folder / "model.onnx"), "--test-data", str(case.folder)]
    rtol = case.rtol if device == "cpu" else max(case.rtol, two_ulp(case.folder / "model.onnx"))
    timeout = TIMEOUT if device == "cpu" else DEVICE_TIMEOUT
    command += ["--rtol", str(rtol), "--atol", str(case.atol), "--device", device]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return "broken", f"longer than {timeout} s"
    # A message is folded, with a bar in front of each further line.
    text = " ".join(word for word in (done.stderr or done.stdout).split() if word not in "|│")[:300]
    if done.returncode == 0:
        # Nothing compared is nothing shown.
        return ("passed", "") if "output" in done.stdout else ("broken", "nothing was compared")
    state = {1: "failed", 3: "error", 4: "unsupported"}.get(done.returncode, "broken")
    if state == "failed":
        lines = [line for line in done.stdout.splitlines() if "differ" in line or "expected" in line]
        text = (lines or [text])[0].split(": ", 1)[-1][:300]
    return state, text


def ignored() -> tuple[int, dict[str, str]]:
    """The most lines that the list may have, and the reason of each case."""
    lines = [line.strip() for line in IGNORED.read_text().splitlines() if line.strip()]
    most = int(lines[0].removeprefix("# at most ").split()[0])
    rows = [line.split(maxsplit=1) for line in lines if not line.startswith("#")]
    return most, {name: reason for name, reason in rows}


def relevant(inventory: Path) -> set[str]:
    """The cases of the inventory that are relevant to CNNs, transformers, RNNs or training."""
    with inventory.open() as file:
        rows = [row for row in csv.DictReader(file) if row["expanded"] == row["exotic"] == "0"]
    flags = ("cnn", "transformer", "rnn", "training")
    return {row["case"] for row in rows if any(row[flag] == "1" for flag in flags)}


def main() -> int:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ampc", default=os.environ.get("AMPC_BIN"), help="the binary [AMPC_BIN]")
    parser.add_argument("--corpus", type=Path, help="where backend_inventory.csv is, if it is")
    parser.add_argument("--filter", default="*", help="glob over the names of cases, such as 'test_conv*'")
    parser.add_argument("--op", help="only cases with this operator")
    parser.add_argument("--device", default="cpu", help="device; on others than the CPU, cases without a kernel are counted [cpu]")
    parser.add_argument("--table", action="store_true", help="print a table by operator")
    parser.add_argument("--workers", type=int, default=2, help="processes [2]")
    parser.add_argument("--cache", type=Path, default=None, help="where cases are written [conformance-cases beside the binary]")
    args = parser.parse_args()
    if not args.ampc or not Path(args.ampc).exists():
        parser.error("no binary: give --ampc or set AMPC_BIN")
    ampc = str(Path(args.ampc).resolve())
    whole = args.filter == "*" and not args.op
    chosen = [c for c in cases(args.cache or cache_of(ampc)) if fnmatch.fnmatch(c.name.split("/", 1)[1], args.filter)]
    chosen = [c for c in chosen if not args.op or args.op in c.ops]
    with ThreadPoolExecutor(args.workers) as pool:
        results = list(pool.map(lambda case: run(ampc, case, args.device), chosen))
    most, reasons = ignored()
    states = Counter(state for state, _ in results)
    bad = []
    for case, (state, text) in zip(chosen, results):
        if state == "unsupported" and args.device != "cpu" and ("does not support" in text or "has no kernel" in text):
            continue
        if state != "passed" and case.name not in reasons:
            bad.append(f"{case.name}: {state}: {text}")
        # The tolerance of a device is wider, so that some of the cases pass there.
        if state == "passed" and case.name in reasons and args.device == "cpu":
            bad.append(f"{case.name}: passes, so it has to leave {IGNORED.name}")
        if state == "broken" and case.name in reasons:
            bad.append(f"{case.name}: {text}: no reason excuses that")
    if whole and (unknown := set(reasons) - {case.name for case in chosen}):
        bad.extend(f"{name}: no such case" for name in sorted(unknown))
    if len(reasons) > most:
        bad.append(f"{IGNORED.name} has {len(reasons)} cases, more than the {most} it may have")
    print("\n".join(bad))
    if args.table:
        table(chosen, results)
    inventory = args.corpus / "backend_inventory.csv" if args.corpus else None
    if inventory and inventory.exists() and whole:
        names = relevant(inventory)
        state_of = {case.name.split("/", 1)[1]: state for case, (state, _) in zip(chosen, results)}
        mine = [state_of.get(name.split("/", 1)[1]) for name in sorted(names)]
        there = [state for state in mine if state]
        passed = there.count("passed")
        print(f"relevant cases: {passed} of {len(names)} pass ({100 * passed / len(names):.1f} %), {len(mine) - len(there)} are not in this suite")
    print(f"conformance: {states['passed']} of {len(chosen)} pass; " + ", ".join(f"{n} {s}" for s, n in sorted(states.items()) if s != "passed") + f"; {len(bad)} unexpected")
    return 1 if bad else 0


def table(chosen: list[Case], results: list[tuple[str, str]]) -> None:
    """Cases by operator; a case with several counts for each."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for case, (state, _) in zip(chosen, results):
        for op in case.ops:
            rows[op][state] += 1
    print(f"{'operator':28}{'passed':>8}{'failed':>8}{'error':>8}{'unsupported':>12}")
    for op, row in sorted(rows.items()):
        print(f"{op:28}{row['passed']:>8}{row['failed']:>8}{row['error'] + row['broken']:>8}{row['unsupported']:>12}")


if __name__ == "__main__":
    sys.exit(main())
