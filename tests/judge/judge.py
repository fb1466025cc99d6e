"""Judges one rewritten model: valid means that every judge that accepted the source accepts the output.

The judges are onnx.checker with full check, and ONNX Runtime on the CPU loading and running the model.
For bf16, ONNX Runtime's "Could not find an implementation" counts as accepting, since it has checked the
types by then. Besides, the public interface (names, order, types, shapes) must be that of the source.

    judge.py SOURCE OUTPUT [--format fp16|bf16] [--ampc BIN]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import threading
from importlib.metadata import version
from pathlib import Path
from typing import Any

import feeds
from pool import Call, Pool

ROOT = Path(__file__).resolve().parents[2]
ORDER = ["rejects", "loads", "runs"]
# The optimizer of ONNX Runtime 1.31.1 behind which it crashes on fp16 models.
CRASHING = ("MatmulTransposeFusion",)


def default_cache() -> Path:
    """Where verdicts on sources are kept: ignored by git."""
    return ROOT / "target" / "judge"


class SourceVerdicts:
    """What each judge says of a source, kept in a file under the hash of the model and the versions."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "sources.json"
        self.lock = threading.Lock()
        self.versions = " ".join(f"{name} {version(name)}" for name in ("onnx", "onnxruntime", "numpy"))
        self.known = json.loads(self.file.read_text()) if self.file.exists() else {}

    def _key(self, source: Path) -> str:
        digest = hashlib.sha256(source.read_bytes())
        stored = feeds.stored_path(source)
        digest.update(stored.read_bytes() if stored else b"")
        return f"{digest.hexdigest()} {source.name} {self.versions}"

    def get(self, call: Call, source: Path) -> dict[str, Any]:
        """{"checker", "state", "text", "spec", "facts"} of a source model."""
        key = self._key(source)
        if key not in self.known:
            verdict = _judge_source(call, source)
            if "timeout" in str(verdict):
                return verdict
            with self.lock:
                self.known[key] = verdict
        verdict = dict(self.known[key])
        if "npz" in verdict["spec"]:
            verdict["spec"] = {"npz": str(feeds.stored_path(source))}
        return verdict

    def save(self) -> None:
        """Writes the file, sorted, in one step."""
        partial = self.file.with_suffix(".partial")
        partial.write_text(json.dumps(self.known, indent=1, sort_keys=True) + "\n")
        partial.replace(self.file)


def _answer(answer: dict[str, Any]) -> Any:
    """The value of a call, or what stopped it, as a text that is not "ok"."""
    if "ok" in answer:
        return answer["ok"]
    return "; ".join(f"{kind}: {text}" for kind, text in answer.items())


def _run_state(call: Call, path: Path, source: Path, spec: dict[str, Any]) -> dict[str, Any]:
    answer = call("run_state", str(path), str(source), spec)
    if "crash" in answer:
        # ONNX Runtime 1.31.1 takes the process down on Transpose -> MatMul in fp16 (`transpose_matmul_crash.py`
        # shows it on three nodes), through one optimizer. A judge that dies says nothing: it is asked again without.
        answer = call("run_state", str(path), str(source), spec, CRASHING)
    return answer["ok"] if "ok" in answer else {"state": "rejects", "text": _answer(answer)}


def _judge_source(call: Call, source: Path) -> dict[str, Any]:
    stored = feeds.stored_path(source)
    specs = [{"npz": str(stored)}] if stored else []
    specs += [{"random": size} for size in feeds.SYMBOLIC_SIZES]
    for spec in specs:
        run = _run_state(call, source, source, spec)
        if run["state"] != "loads":
            break
    return {
        "checker": _answer(call("check", str(source))),
        "spec": spec,
        "facts": _answer(call("facts", str(source))),
        **run,
    }


def judge_output(call: Call, source: Path, output: Path, verdict: dict[str, Any], fmt: str) -> dict[str, Any]:
    """{"checker", "ort", "interface"}: each "ok", "source refused", or what is wrong."""
    checker = _answer(call("check", str(output))) if verdict["checker"] == "ok" else "source refused"
    run = _run_state(call, output, source, verdict["spec"])
    differences = _answer(call("interface", str(source), str(output)))
    if verdict["state"] == "rejects":
        ort = "source refused"
    elif run["state"] == "not implemented":
        accepted = fmt == "bf16" or verdict["state"] == "not implemented"
        ort = "ok" if accepted else run["text"]
    else:
        needed = verdict["state"] if verdict["state"] in ORDER else "loads"
        ort = "ok" if ORDER.index(run["state"]) >= ORDER.index(needed) else f"{run['state']}: {run['text']}"
    return {
        "checker": checker,
        "ort": ort,
        "interface": "ok" if differences == [] else "; ".join(differences) if isinstance(differences, list) else differences,
    }


def own_check(ampc: str, output: Path) -> str:
    """What `ampc check` says of a model."""
    done = subprocess.run([ampc, "check", str(output)], capture_output=True, text=True, timeout=60, check=False)
    return "ok" if done.returncode == 0 else f"exit {done.returncode}: {done.stderr.strip()[:300]}"


def is_valid(judged: dict[str, Any]) -> bool:
    """Whether no judge that accepted the source refuses the output."""
    return all(judged[name] in ("ok", "source refused") for name in ("checker", "ort"))


def main() -> int:
    """Prints each judge's verdict; 1 if one that accepted the source refuses the output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--format", choices=["fp16", "bf16"], default="fp16")
    parser.add_argument("--ampc", default=os.environ.get("AMPC_BIN"), help="also ask `ampc check` [AMPC_BIN]")
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--timeout", type=float, default=60)
    args = parser.parse_args()
    sources = SourceVerdicts(args.cache)
    with Pool(1, args.timeout) as pool:
        def job(call: Call, _: None) -> tuple[dict[str, Any], dict[str, Any]]:
            verdict = sources.get(call, args.source)
            return verdict, judge_output(call, args.source, args.output, verdict, args.format)

        verdict, judged = pool.map(job, [None])[0]
    sources.save()
    if args.ampc:
        judged["ampc check"] = own_check(args.ampc, args.output)
    print(f"source: checker {verdict['checker']}, ONNX Runtime {verdict['state']}")
    for name, text in judged.items():
        print(f"output: {name} {text}")
    fine = is_valid(judged) and all(judged.get(n, "ok") == "ok" for n in ("interface", "ampc check"))
    print("valid" if fine else "NOT valid")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
