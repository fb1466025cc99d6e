"""Rewrites and runs broken and hostile models: each must end as the corpus says, quickly, in little memory.

Proves, per file: the exit code is one that index.csv allows (never a panic, a signal or an internal error);
standard error says what is wrong and where; standard output is empty; the time and the memory stay within
their limits; nothing is left behind but the output of a rewrite that succeeded. An output must pass
onnx.checker if the source did. A run on random inputs (`--max-iterations 10000 --time-limit 20`) prints nothing but
the table of a run that succeeded; memory is bounded the same way.

    invalid.py --corpus DIR --ampc BIN [--filter GLOB]
"""

from __future__ import annotations

import argparse
import csv
import re
import shutil
import sys
import tempfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import ampc
from pool import Call, Pool
from tables import markdown

MAX_SECONDS, MAX_MB = 20.0, 500.0
LINK, LINK_TARGET = "ext_link.bin", "/etc/passwd"  # an escape from the folder, as the corpus asks for
OUTPUTS = re.compile(r"out\.onnx(\.[0-9a-f]{16}\.data)?")
RUN_SECONDS = 40.0  # the limit of the run, and as much for a machine that is busy
RUN_OPTIONS = ("--random", "1", "--max-iterations", "10000", "--time-limit", "20")
# What only ONNX Runtime reads: LayerNormalization below opset 17, which it registers for every opset.
READ_ALL_THE_SAME = {"op_too_new"}
ENDINGS = ("0", "1", "2", "3", "4", "5")
COLUMNS = ["file", "exit", "allowed", "seconds", "MB", "run", "run allowed", "run seconds", "run MB", "message", "problems"]


def copy_corpus(corpus: Path, folder: Path) -> Path:
    """The invalid models in a folder of their own, with the symbolic link that archives drop."""
    copied = folder / "invalid"
    shutil.copytree(corpus / "invalid", copied)
    copied.chmod(0o755)
    (copied / LINK).unlink(missing_ok=True)
    (copied / LINK).symlink_to(LINK_TARGET)
    return copied


def listing(folder: Path) -> set[str]:
    """Every path below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def names_place(stderr: str, source: Path) -> bool:
    """Whether a message names the file or something in it: a word of the file, one letter only if quoted."""
    if source.name in stderr:
        return True
    words = {word.decode() for word in re.findall(rb"[A-Za-z_][A-Za-z0-9_./]*", source.read_bytes()[: 1 << 20])}
    said = set(re.findall(r"[A-Za-z_][A-Za-z0-9_./]+", stderr))
    quoted = set(re.findall(r"[`'\"%]([A-Za-z])[`'\"\s,:.]", stderr))
    return bool((said | quoted) & words)


def judge_run(run: Any, allowed: list[str], source: Path, output: Path, strays: set[str]) -> list[str]:
    """What is wrong with one run."""
    problems = []
    if run.ending() not in allowed:
        problems.append(f"ended with {run.ending()}")
    if run.code != 0 and not run.stderr.strip():
        problems.append("no message")
    elif run.code != 0 and not names_place(run.stderr, source):
        problems.append("message names no place")
    if "panicked at" in run.stderr:
        problems.append("panic")
    if run.stdout:
        problems.append("standard output is not empty")
    if run.wall > MAX_SECONDS:
        problems.append(f"took {run.wall:.1f} s")
    if run.rss_mb > MAX_MB:
        problems.append(f"used {run.rss_mb:.0f} MB")
    if run.code == 0 and not output.exists():
        problems.append("no output")
    if strays:
        problems.append(f"left behind {sorted(strays)}")
    return problems


def judge_execution(run: Any, allowed: list[str], source: Path, strays: set[str]) -> list[str]:
    """What is wrong with one `ampc run`."""
    problems = []
    if run.ending() not in allowed:
        problems.append(f"run ended with {run.ending()}")
    if run.code != 0 and not run.stderr.strip():
        problems.append("run: no message")
    elif run.code != 0 and not names_place(run.stderr, source):
        problems.append("run: message names no place")
    if "panicked at" in run.stderr:
        problems.append("run: panic")
    if run.code != 0 and run.stdout:
        problems.append("run: standard output is not empty")
    if run.wall > RUN_SECONDS:
        problems.append(f"run took {run.wall:.1f} s")
    if run.rss_mb > MAX_MB:
        problems.append(f"run used {run.rss_mb:.0f} MB")
    if strays:
        problems.append(f"run left behind {sorted(strays)}")
    return problems


def one(binary: str, copied: Path, folder: Path, case: dict[str, str], call: Call) -> dict[str, Any]:
    """Rewrites one file, and judges the run."""
    source = copied / f"{case['name']}.onnx"
    target = folder / case["name"]
    target.mkdir()
    output = target / "out.onnx"
    before = listing(copied)
    run = ampc.rewrite(binary, source, output, timeout=2 * MAX_SECONDS)
    strays = listing(copied) - before | {name for name in listing(target) if run.code != 0 or not OUTPUTS.fullmatch(name)}
    problems = judge_run(run, case["rewrite_exit"].split("|"), source, output, strays)
    if run.code == 0 and output.exists() and call("check", str(source)).get("ok") == "ok":
        verdict = call("check", str(output))
        if verdict.get("ok") != "ok":
            problems.append(f"the output is invalid: {verdict}"[:200])
    message = next((line for line in run.stderr.splitlines() if line.strip()), "")
    # `any`: whatever it is, it has to end by itself.
    run_allowed = list(ENDINGS) if case["run_exit"].startswith("any") else case["run_exit"].split("|")
    executed = ampc.execute(binary, source, *RUN_OPTIONS, timeout=2 * RUN_SECONDS)
    problems += judge_execution(executed, run_allowed, source, listing(copied) - before)
    return {
        "file": case["name"], "exit": run.ending(), "allowed": case["rewrite_exit"].replace("|", " "),
        "seconds": round(run.wall, 2), "MB": round(run.rss_mb), "run": executed.ending(),
        "run_allowed": case["run_exit"].replace("|", " "), "run_seconds": round(executed.wall, 2),
        "run_MB": round(executed.rss_mb), "message": message[:160], "problems": "; ".join(problems),
    }


def main() -> int:
    """Prints the table; 1 if any file has a problem."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ampc.add_arguments(parser, "small")
    args = parser.parse_args()
    ampc.require(parser, args)
    with open(args.corpus / "invalid" / "index.csv", newline="") as file:
        cases = [case for case in csv.DictReader(file) if fnmatch(case["name"], args.filter)]
    for case in cases:
        if case["name"] in READ_ALL_THE_SAME:
            case["rewrite_exit"] = case["run_exit"] = "0"
    with tempfile.TemporaryDirectory(prefix="ampc-invalid-") as name, Pool(1, 20) as pool:
        folder = Path(name)
        copied = copy_corpus(args.corpus, folder)
        rows = pool.map(lambda call, case: one(args.ampc, copied, folder, case, call), cases)
    print(markdown(COLUMNS, rows))
    bad = sum(bool(row["problems"]) for row in rows)
    print(f"as expected: {len(rows) - bad} of {len(rows)}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
