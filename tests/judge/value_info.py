"""Proves that value_info never influences a rewrite.

Three sources, the model as it is, one without value_info and one with false value_info, must give the same
files but for the value_info in them.

    value_info.py --corpus DIR --ampc BIN [--sets small,tricky] [--format fp16|bf16]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ampc
import variants


def outputs(args: argparse.Namespace, source: Path, folder: Path) -> dict[str, bytes] | str:
    """The files of a rewrite, value_info removed; or what went wrong."""
    folder.mkdir()
    output = folder / source.name
    run = ampc.rewrite(args.ampc, source, output, "--to", args.format, timeout=args.timeout)
    if run.code != 0:
        return ampc.problem(run)
    found = variants.files(folder)
    found[source.name] = variants.strip(variants.load(output)).SerializeToString(deterministic=True)
    return found


def judge(args: argparse.Namespace, source: Path, folder: Path) -> list[str]:
    """What differs from the model as it is."""
    seed = zlib.crc32(source.name.encode())
    stripped = variants.save_variant(source, folder / "s", variants.strip(variants.load(source)))
    corrupted = variants.save_variant(source, folder / "c", variants.corrupt(variants.load(source), seed))
    want = outputs(args, source, folder / "out")
    problems = [want] if isinstance(want, str) else []
    for kind, variant in (("stripped", stripped), ("corrupted", corrupted)):
        got = outputs(args, variant, folder / f"out-{kind}")
        if isinstance(got, str):
            problems.append(f"{kind}: {got}")
        elif not problems and got != want:
            names = sorted(name for name in got.keys() | want.keys() if got.get(name) != want.get(name))
            problems.append(f"{kind}: {', '.join(names)} differ")
    return problems


def main() -> int:
    """Prints a line for each model with a difference; 1 if there is one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ampc.add_arguments(parser, "small,tricky")
    parser.add_argument("--format", choices=ampc.FORMATS, default="fp16")
    args = parser.parse_args()
    ampc.require(parser, args)
    sources = ampc.models(args.corpus, args.sets, args.filter)

    def job(source: Path) -> list[str]:
        with tempfile.TemporaryDirectory(prefix="ampc-value-info-") as folder:
            return judge(args, source, Path(folder))

    with ThreadPoolExecutor(args.workers) as threads:
        results = list(threads.map(job, sources))
    for source, problems in zip(sources, results):
        for text in problems:
            print(f"FAIL {source.relative_to(args.corpus)}: {text}")
    print(f"independent of value_info: {results.count([])} of {len(results)}")
    return 0 if all(not problems for problems in results) else 1


if __name__ == "__main__":
    sys.exit(main())
