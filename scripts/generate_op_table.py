#!/usr/bin/env python3
"""Writes the operator table from the schemas of the pinned `onnx` package, from those of ONNX Runtime's own
operators in `contrib_schemas.json` (written by `generate_contrib_schemas.py`), and from those of ampc's own in
`ampc_schemas.json` (written by hand).

    python scripts/generate_op_table.py            # write
    python scripts/generate_op_table.py --check    # compare; exit 1 and show a diff if a file is stale

Two files come out of it:

- `ir/src/op/table/generated.rs`: the enumeration of operators and one row per schema version, in rustfmt's layout;
- `ir/testdata/op_table.tsv`: the same facts read through other accessors of the schemas (the type strings of each
  formal instead of the constraints of its variable, the limits ONNX computed instead of the formals), for a test
  to compare with the Rust table.

The pin is deliberate: which operators exist, and with which types, must not depend on the machine. To raise it,
change ONNX_VERSION, run this, and read the diff. Exit codes: 0 done or fresh, 1 stale, 2 cannot run here.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import struct
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

ONNX_VERSION = "1.23.2"

ROOT = Path(__file__).resolve().parent.parent
TABLE = Path("ir/src/op/table/generated.rs")
FACTS = Path("ir/testdata/op_table.tsv")
CONTRIB = ROOT / "scripts" / "contrib_schemas.json"
AMPC = ROOT / "scripts" / "ampc_schemas.json"

# Variant prefix of each domain; a domain that is not here stops the script.
PREFIXES = {
    "": "",
    "ai.ampc": "",
    "ai.onnx.ml": "Ml",
    "ai.onnx.preview": "Preview",
    "ai.onnx.preview.training": "Training",
    "com.microsoft": "Contrib",
}

UNLIMITED = 2**31 - 1  # what ONNX answers for "no upper limit"
CONTAINERS = ("tensor", "sequence", "optional", "optional_sequence")
SPELLINGS = {
    "tensor": re.compile(r"tensor\((\w+)\)"),
    "sequence": re.compile(r"seq\(tensor\((\w+)\)\)"),
    "optional": re.compile(r"optional\(tensor\((\w+)\)\)"),
    "optional_sequence": re.compile(r"optional\(seq\(tensor\((\w+)\)\)\)"),
}
ATTR_KINDS = {
    "FLOAT": "Float",
    "INT": "Int",
    "STRING": "String",
    "TENSOR": "Tensor",
    "GRAPH": "Graph",
    "SPARSE_TENSOR": "SparseTensor",
    "TYPE_PROTO": "Type",
    "FLOATS": "Floats",
    "INTS": "Ints",
    "STRINGS": "Strings",
    "TENSORS": "Tensors",
    "GRAPHS": "Graphs",
    "SPARSE_TENSORS": "SparseTensors",
    "TYPE_PROTOS": "Types",
}


class CannotRun(Exception):
    """Something outside the repository is missing or different."""


def load_onnx():
    """The pinned onnx package, or an explanation why not."""
    try:
        import onnx
        import onnx.defs
        import onnx.helper
    except ImportError as error:
        raise CannotRun(f"the onnx package is not installed ({error}); pip install onnx=={ONNX_VERSION}") from error
    if onnx.__version__ != ONNX_VERSION:
        raise CannotRun(f"onnx {onnx.__version__} is installed; the table is pinned to {ONNX_VERSION}")
    return onnx


def contrib() -> tuple[str, list]:
    """The version of ONNX Runtime and the schemas of its own operators, as onnx would present them."""
    file = json.loads(CONTRIB.read_text())
    return file["onnxruntime"], [recorded_schema(record) for record in file["schemas"]]


def ampc() -> list:
    """The schemas of ampc's own operators, as onnx would present them."""
    return [recorded_schema(record) for record in json.loads(AMPC.read_text())["schemas"]]


def recorded_schema(record: dict) -> SimpleNamespace:
    types = record["types"]

    def formals(rows):
        return [
            SimpleNamespace(
                name=row["name"],
                type_str=row["type"],
                types=set(types.get(row["type"], [row["type"]])),
                option=SimpleNamespace(name=row["option"]),
                min_arity=row.get("min_arity", 1),
                is_homogeneous=row.get("homogeneous", True),
            )
            for row in rows
        ]

    least_in, most_in, least_out, most_out = record["limits"]
    return SimpleNamespace(
        domain=record["domain"],
        name=record["name"],
        since_version=record["since"],
        deprecated=record.get("deprecated", False),
        beside_onnx=record["domain"] == "",
        has_function=record["domain"] == "ai.ampc",
        has_context_dependent_function=False,
        type_constraints=[SimpleNamespace(type_param_str=k, allowed_type_strs=v) for k, v in types.items()],
        inputs=formals(record["inputs"]),
        outputs=formals(record["outputs"]),
        min_input=least_in,
        max_input=most_in,
        min_output=least_out,
        max_output=most_out,
        attributes={name: recorded_attr(name, attr) for name, attr in record["attrs"].items()},
    )


def recorded_attr(name: str, attr: dict) -> SimpleNamespace:
    value = attr["default"]
    default = SimpleNamespace(type=value is not None)
    field = {"INT": "i", "FLOAT": "f", "STRING": "s"}.get(attr["kind"], attr["kind"].lower())
    setattr(default, field, value.encode() if isinstance(value, str) else value)
    return SimpleNamespace(
        name=name, type=SimpleNamespace(name=attr["kind"]), required=attr["required"], default_value=default
    )


def rust_string(text: str) -> str:
    if not text.isascii() or not text.isprintable():
        raise ValueError(f"unexpected characters in {text!r}")
    return json.dumps(text)


def rust_float(value: float) -> str:
    """The shortest decimal that reads back as the same f32."""
    single = struct.unpack("f", struct.pack("f", value))[0]
    for digits in range(1, 18):
        text = f"{single:.{digits}g}"
        if struct.unpack("f", struct.pack("f", float(text)))[0] == single:
            return repr(float(text))
    raise ValueError(f"no decimal for {value}")


class TypeSets:
    """Type sets as Rust expressions: named constants, the names made of the contents so that they are stable."""

    def __init__(self, numbers: dict[str, int]):
        self.numbers = numbers
        self.names_of = {number: name for name, number in numbers.items()}
        self.used: dict[str, tuple[int, ...]] = {}

    def masks(self, type_strings) -> tuple[tuple[int, ...], list[str]]:
        masks = dict.fromkeys(CONTAINERS, 0)
        other = []
        for text in type_strings:
            for container, spelling in SPELLINGS.items():
                if match := spelling.fullmatch(text):
                    masks[container] |= 1 << self.numbers[match[1]]
                    break
            else:
                other.append(text)
        return tuple(masks.values()), sorted(other)

    def expression(self, type_strings) -> str:
        masks, other = self.masks(type_strings)
        if other:
            fields = [f"{c}: {m:#x}" for c, m in zip(CONTAINERS, masks, strict=True) if m]
            fields.append(f"other: &[{', '.join(map(rust_string, other))}]")
            return f"TypeSet {{ {', '.join(fields)}, ..TypeSet::EMPTY }}"
        last = max(i for i, m in enumerate(masks) if m)
        name = "T_" + "_".join(f"{m:X}" for m in masks[: last + 1])
        self.used[name] = masks
        return name

    def constants(self) -> str:
        out = []
        for name, masks in sorted(self.used.items(), key=lambda item: item[1]):
            for container, mask in zip(CONTAINERS, masks, strict=True):
                if mask:
                    types = " ".join(self.names_of[n] for n in range(32) if mask >> n & 1)
                    text = f"{container.replace('_', ' ')}: {types}"
                    out += [f"// {line}" for line in textwrap.wrap(text, 106)]
            if any(masks[1:]):
                fields = ", ".join(f"{c}: {m:#x}" for c, m in zip(CONTAINERS, masks, strict=True))
                out.append(f"const {name}: TypeSet = TypeSet {{ {fields}, other: &[] }};")
            else:
                out.append(f"const {name}: TypeSet = tensors({masks[0]:#x});")
        return "\n".join(out)


def limits(formals) -> tuple[int, int]:
    """Least and greatest number of actuals, by the rule that `rows.rs` applies."""
    least = greatest = 0
    for formal in formals:
        option = formal.option.name
        if option == "Variadic":
            least, greatest = greatest + formal.min_arity, UNLIMITED
        else:
            greatest += 1
            least = greatest if option == "Single" else least
    return least, greatest


def formal_row(formal, variables: list[str], sets: TypeSets) -> str:
    name, option = rust_string(formal.name), formal.option.name
    if formal.type_str in variables:
        suffix, ty = "", str(variables.index(formal.type_str))
    else:
        suffix, ty = "_is", sets.expression(formal.types)
    if option == "Single":
        return f"one{suffix}({name}, {ty})"
    if option == "Optional":
        return f"opt{suffix}({name}, {ty})"
    if suffix:
        raise ValueError(f"a variadic formal without type variable: {name}")
    which = "many" if formal.is_homogeneous else "mixed"
    return f"{which}({name}, {ty}, {formal.min_arity})"


def attr_row(attr) -> str:
    name, kind = rust_string(attr.name), attr.type.name
    if attr.default_value.type:
        if attr.required:
            raise ValueError(f"a required attribute with a default: {name}")
        value = attr.default_value
        if kind == "INT":
            return f"int({name}, {value.i})"
        if kind == "FLOAT":
            return f"float({name}, {rust_float(value.f)})"
        if kind == "STRING":
            return f"string({name}, {rust_string(value.s.decode())})"
        if kind == "INTS":
            return f"ints({name}, &[{', '.join(map(str, value.ints))}])"
        if kind == "STRINGS":
            return f"strings({name}, &[{', '.join(rust_string(s.decode()) for s in value.strings)}])"
        raise ValueError(f"no constructor for a default of kind {kind}: {name}")
    return f"{'required' if attr.required else 'absent'}({name}, AttrKind::{ATTR_KINDS[kind]})"


def schema_row(schema, sets: TypeSets) -> str:
    for formals, limit in (
        (schema.inputs, (schema.min_input, schema.max_input)),
        (schema.outputs, (schema.min_output, schema.max_output)),
    ):
        if limits(formals) != limit:
            raise ValueError(f"{schema.name}-{schema.since_version}: limits {limit} do not follow from the formals")
    variables = [c.type_param_str for c in schema.type_constraints]
    make = "function" if is_function(schema) else "op"
    lists = [
        [f"var({rust_string(c.type_param_str)}, {sets.expression(c.allowed_type_strs)})" for c in schema.type_constraints],
        [formal_row(f, variables, sets) for f in schema.inputs],
        [formal_row(f, variables, sets) for f in schema.outputs],
        [attr_row(a) for _, a in sorted(schema.attributes.items())],
    ]
    arguments = ", ".join(f"&[{', '.join(rows)}]" for rows in lists)
    row = f"{make}(OpKind::{variant(schema)}, {schema.since_version}, {arguments})"
    row = f"beside({row})" if getattr(schema, "beside_onnx", False) else row
    return f"deprecated({row})," if schema.deprecated else f"{row},"


def is_function(schema) -> bool:
    return schema.has_function or schema.has_context_dependent_function


def variant(schema) -> str:
    return PREFIXES[schema.domain] + schema.name


def sorted_schemas(onnx):
    schemas = [*onnx.defs.get_all_schemas_with_history(), *contrib()[1], *ampc()]
    if unknown := {s.domain for s in schemas} - set(PREFIXES):
        raise CannotRun(f"no variant prefix for the domains {sorted(unknown)}; add them to PREFIXES")
    return sorted(schemas, key=lambda s: (s.domain, s.name, s.since_version))


def rust_table(onnx) -> str:
    schemas = sorted_schemas(onnx)
    sets = TypeSets({name.lower(): number for name, number in onnx.TensorProto.DataType.items()})
    rows = [schema_row(s, sets) for s in schemas]

    kinds: dict[tuple[str, str], list] = {}
    for schema in schemas:
        kinds.setdefault((schema.domain, schema.name), []).append(schema)
    variants = []
    for (domain, name), versions in kinds.items():
        since = ", ".join(str(v.since_version) + (" (deprecated)" if v.deprecated else "") for v in versions)
        variants += [f"/// {name} of {domain or 'ai.onnx'}: {since}.", f"{variant(versions[0])},"]
    all_kinds = [f"OpKind::{variant(versions[0])}," for versions in kinds.values()]
    identities = [f"({rust_string(d)}, {rust_string(n)})," for d, n in kinds]

    release, ir_version, ai_onnx, ml, training = onnx.helper.VERSION_TABLE[-1]
    if ir_version != onnx.IR_VERSION or ai_onnx != onnx.defs.onnx_opset_version():
        raise CannotRun(f"the version table ends with {release}, which is not this package")
    preview = max(s.since_version for s in schemas if s.domain == "ai.onnx.preview")
    own = max(s.since_version for s in schemas if s.domain == "ai.ampc")
    opsets = {"": ai_onnx, "ai.ampc": own, "ai.onnx.ml": ml, "ai.onnx.preview": preview, "ai.onnx.preview.training": training}

    def lines(items):
        return "\n".join(items)

    return f"""\
//! Every operator of onnx {ONNX_VERSION} at every version, those of onnxruntime {contrib()[0]} that ampc knows, and ampc's own.
//!
//! @generated by `python scripts/generate_op_table.py`; do not edit. A test runs the script with `--check`.
//!
//! The rows say what the schemas say and nothing else: what ampc thinks of an operator is written by hand
//! beside this file. `rows` has the constructors. Formals name their type variable by its index.

use super::rows::{{
    absent, beside, deprecated, float, function, int, ints, many, mixed, one, one_is, op, opt, opt_is, required, string,
    strings, tensors, var,
}};
use super::schema::{{AttrKind, OpSchema, TypeSet}};

/// Newest IR version of the pinned onnx.
pub const LATEST_IR_VERSION: i64 = {ir_version};

/// Newest operator set of each domain of the pinned onnx and of ampc's, sorted by domain; the empty one is ai.onnx.
pub const LATEST_OPSETS: &[(&str, u16)] = &[
{lines(f"({rust_string(d)}, {v})," for d, v in opsets.items())}
];

/// An operator: a domain and a name, whatever the version. Sorted by domain and name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u16)]
pub enum OpKind {{
{lines(variants)}
    /// An operator of no table, which a user describes.
    Declared,
}}

impl OpKind {{
    /// Every operator of the table, in order.
    pub const ALL: &[OpKind] = &[
{lines(all_kinds)}
    ];
}}

/// Domain and name of each operator, in the order of [`OpKind::ALL`].
pub(in crate::op) static IDENTITIES: [(&str, &str); {len(kinds)}] = [
{lines(identities)}
];

// Sets of types; the name of a set is its masks of ONNX's type numbers.

{sets.constants()}

/// Every schema, sorted by domain, name and version.
pub static SCHEMAS: &[OpSchema] = &[
{lines(rows)}
];
"""


def facts(onnx) -> str:
    """The rows of the test's table; the module documentation says how they differ from the Rust table."""
    out = [
        f"# Facts of onnx {ONNX_VERSION} and onnxruntime {contrib()[0]}, written by scripts/generate_op_table.py for ir/tests/op_table.rs.",
        "# domain name since 'op' flags least-most operands, least-most results, attributes; flags: d deprecated, f function, b beside ONNX",
        "# domain name since 'in'|'out' formal arity f16 bf16 f32; where a type is admitted: t tensor, s sequence,",
        "#   o optional tensor, q optional sequence, - nowhere",
    ]
    places = {"t": "tensor({})", "s": "seq(tensor({}))", "o": "optional(tensor({}))", "q": "optional(seq(tensor({})))"}

    def limit(least, most):
        return f"{least}-{'*' if most == UNLIMITED else most}"

    for schema in sorted_schemas(onnx):
        identity = [schema.domain or "ai.onnx", schema.name, str(schema.since_version)]
        flags = ("d" if schema.deprecated else "") + ("f" if is_function(schema) else "")
        flags += "b" if getattr(schema, "beside_onnx", False) else ""
        row = [
            "op",
            flags or "-",
            limit(schema.min_input, schema.max_input),
            limit(schema.min_output, schema.max_output),
            ",".join(sorted(schema.attributes)) or "-",
        ]
        out.append("\t".join(identity + row))
        for side, formals in (("in", schema.inputs), ("out", schema.outputs)):
            for formal in formals:
                arity = {"Single": "1", "Optional": "?"}.get(formal.option.name)
                arity = arity or f"{formal.min_arity}{'*' if formal.is_homogeneous else '+'}"
                types = set(formal.types)
                legal = [
                    "".join(p for p, form in places.items() if form.format(dtype) in types) or "-"
                    for dtype in ("float16", "bfloat16", "float")
                ]
                out.append("\t".join([*identity, side, formal.name, arity, *legal]))
    return "\n".join(out) + "\n"


def rustfmt(source: str) -> str:
    command = ["rustfmt", "--edition", "2024", "--config-path", str(ROOT)]
    try:
        done = subprocess.run(command, input=source, capture_output=True, text=True, check=False, cwd=ROOT)
    except FileNotFoundError as error:
        raise CannotRun("rustfmt is not on the PATH") from error
    if done.returncode != 0:
        raise RuntimeError(f"rustfmt refuses the table:\n{done.stderr}")
    return done.stdout


def is_fresh(path: Path, expected: str) -> bool:
    """Whether the committed file is the expected one; shows the start of the difference if not."""
    found = (ROOT / path).read_text() if (ROOT / path).exists() else ""
    if found == expected:
        return True
    diff = difflib.unified_diff(
        found.splitlines(), expected.splitlines(), f"{path} (committed)", f"{path} (regenerated)", lineterm="", n=1
    )
    shown = [line for line, _ in zip(diff, range(40), strict=False)]
    print("\n".join(shown))
    print(f"{path} is stale: run `python scripts/generate_op_table.py`", file=sys.stderr)
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the operator table from the schemas of the pinned onnx.")
    parser.add_argument("--check", action="store_true", help="compare with the committed files, write nothing")
    check = parser.parse_args().check
    try:
        onnx = load_onnx()
        outputs = {TABLE: rustfmt(rust_table(onnx)), FACTS: facts(onnx)}
    except CannotRun as error:
        print(f"generate_op_table.py: {error}", file=sys.stderr)
        return 2
    if check:
        return 0 if all([is_fresh(path, text) for path, text in outputs.items()]) else 1
    for path, text in outputs.items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
