"""Times `ampc rewrite` on one kind of model at growing sizes, and prints the ratio to the half as large one.

A ratio near 2 is linear, near 4 quadratic. The best of three runs counts, start of the process included.

    scaling.py [--ampc BIN] [--only captures,...]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "judge"))

import measure  # noqa: E402
from tables import markdown  # noqa: E402

# Generator and largest count.
KINDS = {"chain": 200_000, "captures": 40_000, "readers": 40_000}


def seconds(argv: list[str]) -> float:
    """The best of three runs."""
    runs = [measure.run(argv, 600) for _ in range(3)]
    for done in runs:
        if done.code != 0:
            raise RuntimeError(done.stderr)
    return min(done.wall for done in runs)


def rows(ampc: str, kind: str, largest: int, folder: Path) -> list[dict[str, str]]:
    """One row per size."""
    found, before = [], None
    for count in (largest // 8, largest // 4, largest // 2, largest):
        source = folder / f"{kind}-{count}.onnx"
        made = measure.run([sys.executable, str(HERE / "models.py"), kind, str(count), str(source)], 600)
        if made.code != 0:
            raise RuntimeError(made.stderr)
        wall = seconds([ampc, "rewrite", "-q", "--force", str(source), "-o", str(folder / "out.onnx")])
        ratio = f"{wall / before:.1f}" if before else ""
        found.append({"model": kind, "count": f"{count:,}", "seconds": f"{wall:.2f}", "ratio": ratio})
        before = wall
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ampc", default="target/release/ampc")
    parser.add_argument("--only", default=",".join(KINDS))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        table = [row for kind in args.only.split(",") for row in rows(args.ampc, kind, KINDS[kind], Path(folder))]
    print(markdown(["model", "count", "seconds", "ratio"], table))


if __name__ == "__main__":
    main()
