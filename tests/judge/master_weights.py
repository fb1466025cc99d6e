"""Checks what master weights are for, on the ResNet of `examples/fp16_variants.py`.

Without master weights more than half of all updates are lost. In `fp16 alone` no BatchNormalization weight moves: they
start at 1. With master weights less than 1 % is lost. From 300 steps on the losses are compared too: with master weights
they match fp32; without, they are worse by at least 3e-3, and keeping BatchNormalization in fp32 does not help.

    master_weights.py --ampc BIN [--corpus DIR] [--steps N] [--batch N] [--seeds 0,1]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import fp16_variants
from fp16_variants import Row

# From here on losses are compared: before, they have moved too little.
STEPS_OF_LOSSES = 300
# fp16 changes a loss of 2.3 by about 1e-4. In torch, training without master weights raises it by 8e-3.
SAME, WORSE = 1e-3, 3e-3


def mechanism(rows: dict[str, Row]) -> list[str]:
    """Problems with lost updates, with BatchNormalization weights that do not move, and with the dynamic loss scale.

    Needs at least 10 steps: the scale backs off in the first 6, and every 5th step is counted.
    """
    problems = []
    for name, row in rows.items():
        without_masters = name in ("fp16 alone", "norms, loss fp32")
        if not (row.lost > 0.5 if without_masters else row.lost < 0.01):
            problems.append(f"{name}: {row.lost:.2%} of all updates are lost")
        moved, of = row.moved, row.norms
        if not (moved == 0 if name == "fp16 alone" else moved > 0.9 * of):
            problems.append(f"{name}: {moved} of {of} weights of BatchNormalization moved")
    dynamic = rows["+ dynamic scale"]
    if (dynamic.scale, dynamic.skipped) != (2**18, 6):
        problems.append(f"a scale of 2^24 becomes {dynamic.scale} after {dynamic.skipped} skipped steps, not 2^18 after 6")
    return problems


def losses(rows: dict[str, Row]) -> list[str]:
    """Problems with losses."""
    problems = []
    for field in ("train", "held_out"):
        found = {name: getattr(row, field) for name, row in rows.items()}
        more = {name: loss - found["fp32"] for name, loss in found.items()}
        if abs(more["+ masters, 128"]) > SAME or abs(more["+ dynamic scale"]) > SAME + 0.1 * more["fp16 alone"]:
            problems.append(f"{field}: with master weights {more} more than fp32")
        if min(more["fp16 alone"], more["norms, loss fp32"]) < WORSE:
            problems.append(f"{field}: without master weights only {more} more than fp32")
        if more["norms, loss fp32"] < 0.7 * more["fp16 alone"]:
            problems.append(f"{field}: norms in fp32 alone repair the loss: {more}")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ampc", required=True)
    parser.add_argument("--corpus", help="not read")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seeds", default="0")
    args = parser.parse_args()
    if args.steps < 10:
        parser.error("--steps has to be 10 or more")
    problems = []
    for seed in map(int, args.seeds.split(",")):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            fp16_variants.prepare(folder, args.steps, args.batch, seed)
            rows = {}
            for name, flags in fp16_variants.VARIANTS.items():
                rows[name] = fp16_variants.train(str(Path(args.ampc).resolve()), folder, name, flags, args.steps, args.batch)
                print(f"seed {seed}  {fp16_variants.line(name, rows[name])}", flush=True)
        found = mechanism(rows) + (losses(rows) if args.steps >= STEPS_OF_LOSSES else [])
        problems += [f"seed {seed}: {problem}" for problem in found]
    print("\n".join(problems))
    print(f"{len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
