#!/usr/bin/env python3
"""Says whether the presets that follow other systems are what those systems' lists make of them.

    python scripts/diff_presets.py            # a line per system and preset, and every difference
    python scripts/diff_presets.py --check    # the same; exit 1 if there is a difference
    python scripts/diff_presets.py --write    # write the lists of the presets anew

In `passes/src/policy/presets`, `sources/X.json` has the names of a system in its own lists, `mappings/X.json` says
which class of ampc a list is and what each name is called in ONNX, or why it has no name there, and `NAME.json` is
the preset. A name in several lists is in the one that the mapping has first. An operator of ONNX has the strictest
class of all names that are called so; `derived` gives a class to operators that no name is called:

- `fused`: that of the one operator it names;
- `parts`: the strictest of those it names, where one that is in no list has the class of what is in none;
- `outside`: the one it names, of what the lists are not about.

What is derived from operators none of which is in a list is in none either. Names are missing, too many, without
operator and reason, or with a reason that is not among the reasons; operators are missing, too many, or of another
class: each of that is a difference. `ampc-passes` has a test that holds the same. Needs Python 3.11 alone.
Exit codes: 0 no difference, or not asked; 1 a difference; 2 a file cannot be read.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "passes" / "src" / "policy" / "presets"
# From the least strict, as `ampc_ir::op::Class` has them.
CLASSES = ["allow", "clear", "infer", "promote", "discrete", "deny", "fixed"]


def read(path: Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        sys.exit(2)


def differences_of_names(source: dict, mapping: dict) -> list[str]:
    """Names without operator or reason, and what names nothing."""
    listed = {name for names in source["lists"].values() for name in names}
    found = [f"`{name}` is in a list, but not in the mapping" for name in sorted(listed - set(mapping["names"]))]
    found += [f"`{name}` is in the mapping, but in no list" for name in sorted(set(mapping["names"]) - listed)]
    for name, called in mapping["names"].items():
        if isinstance(called, str) and called not in mapping["reasons"]:
            found.append(f"`{name}`: `{called}` is no reason")
        if called == []:
            found.append(f"`{name}` has neither operators nor a reason")
    used = {called for called in mapping["names"].values() if isinstance(called, str)}
    found += [f"no name has the reason `{reason}`" for reason in sorted(set(mapping["reasons"]) - used)]
    for listing in source["lists"]:
        if all(listing not in dict(preset["lists"]) for preset in mapping["presets"].values()):
            found.append(f"the list `{listing}` is used by no preset")
    return found


def strictest(classes: list[str]) -> str:
    return max(classes, key=CLASSES.index)


def classes_of(source: dict, mapping: dict, preset: dict) -> dict[str, str]:
    """The class of every operator that a preset lists."""
    reached: dict[str, list[str]] = {}
    seen = set()
    for listing, of_list in preset["lists"]:
        for name in source["lists"][listing]:
            called = mapping["names"].get(name, [])
            if name not in seen and not isinstance(called, str):
                for op in called:
                    reached.setdefault(op, []).append(of_list)
            seen.add(name)
    named = {op: strictest(found) for op, found in reached.items()}
    classes = dict(named)
    unlisted = preset["unlisted"] if preset["unlisted"] in CLASSES else "allow"
    for op, how in mapping["derived"].items():
        if "class" in how:
            classes.setdefault(op, how["class"])
        elif any(part in named for part in how["of"]):
            classes.setdefault(op, strictest([named.get(part, unlisted) for part in how["of"]]))
    return classes


def differences_of_preset(classes: dict[str, str], unlisted: str, policy: dict) -> list[str]:
    found = []
    if policy.get("unlisted") != unlisted:
        found.append(f"`unlisted` is {policy.get('unlisted')} instead of {unlisted}")
    has = {op: of_list for of_list, ops in policy.get("ops", {}).items() for op in ops}
    for op in sorted(classes.keys() | has.keys()):
        if classes.get(op) != has.get(op):
            found.append(f"`{op}` is {has.get(op, 'not listed')} instead of {classes.get(op, 'not listed')}")
    return found


def differences_of_rules(mapping: dict) -> list[str]:
    """What is derived although a name is called so, or by a rule that is not stated."""
    named = {op for called in mapping["names"].values() if not isinstance(called, str) for op in called}
    found = [f"`{op}` is derived, but a name is called so" for op in sorted(set(mapping["derived"]) & named)]
    for op, how in mapping["derived"].items():
        if how["rule"] not in mapping["rules"]:
            found.append(f"`{op}`: the rule `{how['rule']}` is not stated")
        if ("class" in how) == ("of" in how):
            found.append(f"`{op}`: it has one of `of` and `class`")
        if how["rule"] == "fused" and len(how.get("of", [])) != 1:
            found.append(f"`{op}`: what is fused has the class of one operator")
    return found


def write(path: Path, policy: dict, classes: dict[str, str], unlisted: str) -> None:
    policy["unlisted"] = unlisted
    by_class = {c: sorted(op for op, of_op in classes.items() if of_op == c) for c in CLASSES}
    policy["ops"] = {c: ops for c, ops in by_class.items() if ops}
    guards = policy.pop("disable_guards", [])
    text = json.dumps(policy, indent=2)
    if guards:
        text = f'{text[:-2]},\n  "disable_guards": {json.dumps(guards)}\n}}'
    path.write_text(text + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit 1 if there is a difference")
    parser.add_argument("--write", action="store_true", help="write the lists of the presets anew")
    args = parser.parse_args()
    differences = 0
    for path in sorted((FOLDER / "mappings").glob("*.json")):
        mapping, source = read(path), read(FOLDER / "sources" / path.name)
        called = mapping["names"].values()
        operators = {op for names in called if not isinstance(names, str) for op in names}
        without = sum(isinstance(names, str) for names in called)
        mapped = len(called) - without
        print(f"{path.stem}: {len(called)} names, {mapped} of {len(operators)} operators, {without} with a reason")
        found = differences_of_names(source, mapping) + differences_of_rules(mapping)
        for name, preset in mapping["presets"].items():
            file = FOLDER / f"{name}.json"
            policy, classes = read(file), classes_of(source, mapping, preset)
            if args.write:
                write(file, policy, classes, preset["unlisted"])
                policy = read(file)
            counts = ", ".join(f"{len(ops)} {c}" for c, ops in policy["ops"].items())
            print(f"  {name}: {counts}; unlisted {policy['unlisted']}")
            found += [f"{name}: {line}" for line in differences_of_preset(classes, preset["unlisted"], policy)]
        for line in found:
            print(f"  difference: {line}")
        differences += len(found)
    print(f"{differences} differences" if differences else "no difference")
    return 1 if args.check and differences else 0


if __name__ == "__main__":
    sys.exit(main())
