"""How many operators written out each export has, and the casts of a rewrite with and without `--raise`.

Per model: the units that `--opset auto --raise all` replaces, by kind; the inserted casts of a rewrite to fp16 as it is
(`safe`), with the opset alone, and with the units raised; and if the fp32 model with raised units agrees with the source
(`ampc verify`).

    units.py --corpus DIR --ampc BIN [--sets small] [--only NAME,…]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "judge"))

from tables import markdown  # noqa: E402

RAISE = ["--opset", "auto", "--raise", "all"]
PASSES = "raise-opset{to=auto, units=all}, raise-units, dce"


def report(ampc: str, model: Path, folder: Path, *options: str) -> dict[str, Any] | None:
    """The report of a rewrite; nothing if the rewrite is refused."""
    out = folder / "out.onnx"
    file = folder / "report.json"
    command = [ampc, "rewrite", str(model), "-o", str(out), "--report", str(file), "--force", "-q", *options]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        return None
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def agrees(ampc: str, model: Path, folder: Path) -> str:
    """The verdict on the fp32 model with raised units."""
    out = folder / "raised.onnx"
    command = [ampc, "opt", str(model), "--passes", PASSES, "-o", str(out), "--force"]
    raised = subprocess.run(command, capture_output=True, check=False)
    if raised.returncode != 0:
        return "not raised"
    verdict = subprocess.run([ampc, "verify", str(model), str(out), "-q"], capture_output=True, check=False)
    return {0: "yes", 1: "no"}.get(verdict.returncode, f"exit code {verdict.returncode}")


COLUMNS = ["model", "raised", "left", "opset", "casts", "casts, opset auto", "casts, units raised", "fp32 agrees"]


def row(ampc: str, model: Path, folder: Path) -> dict[str, str]:
    """A row of the table."""
    before, opset, after = (report(ampc, model, folder, *options) for options in ([], RAISE[:2], RAISE))
    casts = ["refused" if found is None else str(found["casts"]["inserted"]) for found in (before, opset, after)]
    units = (after or {}).get("units", {})
    counts = {
        what: ", ".join(f"{count[what]} {kind}" for kind, count in units.items() if count[what]) for what in ("raised", "left")
    }
    number = str((after or {}).get("opsets", {}).get("", ""))
    cells = [model.name.removesuffix(".onnx"), *counts.values(), number, *casts, agrees(ampc, model, folder)]
    return dict(zip((name.replace(" ", "_") for name in COLUMNS), cells))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--ampc", required=True)
    parser.add_argument("--sets", default="small")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    only = [name for name in args.only.split(",") if name]
    models = [path for name in args.sets.split(",") for path in sorted((args.corpus / name).rglob("*.onnx"))]
    models = [path for path in models if not only or any(name in path.name for name in only)]
    with tempfile.TemporaryDirectory() as folder:
        rows = [row(args.ampc, model, Path(folder)) for model in models]
    print(markdown(COLUMNS, rows))


if __name__ == "__main__":
    main()
