#!/usr/bin/env python3
"""Writes what ONNX Runtime's schemas say of the operators that it adds to ONNX's and that ampc knows.

    python scripts/generate_contrib_schemas.py            # write
    python scripts/generate_contrib_schemas.py --check    # compare; exit 1 if the file is stale

The output, `scripts/contrib_schemas.json`, has one line per operator; `generate_op_table.py` makes rows of the
operator table of it, so that making the table does not need ONNX Runtime. The pin is deliberate, as it is there.
To know another operator, add its name to OPERATORS, run this and `generate_op_table.py`, and give it a class
(`ir/src/op/classes.rs`). Exit codes: 0 done or fresh, 1 stale, 2 cannot run here.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

ORT_VERSION = "1.31.1"
FILE = Path(__file__).resolve().parent / "contrib_schemas.json"

# What its optimizer and the exporters of its ecosystem write, by domain.
OPERATORS = {
    # Versions that no ONNX has, but it is the empty domain that ONNX Runtime has them in.
    "": ["ImageScaler", "LayerNormalization", "SimplifiedLayerNormalization", "ThresholdedRelu"],
    "com.microsoft": [
        "Attention",
        "BiasAdd",
        "BiasGelu",
        "BiasSoftmax",
        "BiasSplitGelu",
        "DecoderMaskedMultiHeadAttention",
        "DequantizeLinear",
        "DynamicQuantizeMatMul",
        "EmbedLayerNormalization",
        "FastGelu",
        "FusedConv",
        "FusedGemm",
        "FusedMatMul",
        "Gelu",
        "GemmFastGelu",
        "GroupNorm",
        "GroupQueryAttention",
        "Inverse",
        "Irfft",
        "MatMulInteger16",
        "MatMulIntegerToFloat",
        "MatMulNBits",
        "MultiHeadAttention",
        "NhwcConv",
        "PackedMultiHeadAttention",
        "QAttention",
        "QLinearAdd",
        "QLinearMul",
        "QuantizeLinear",
        "QuickGelu",
        "Rfft",
        "RotaryEmbedding",
        "SkipGroupNorm",
        "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
        "TransposeMatMul",
    ],
}

# The versions of an operator that are ONNX Runtime's own, if there is more than a live version 1.
VERSIONS = {("", "ImageScaler"): [1, 10]}


class CannotRun(Exception):
    """Something outside the repository is missing or different."""


def load_schemas():
    """The schemas of the pinned ONNX Runtime by domain and name, or an explanation why not."""
    try:
        import onnxruntime
        from onnxruntime.capi import onnxruntime_pybind11_state as state
    except ImportError as error:
        raise CannotRun(f"onnxruntime is not installed ({error}); pip install onnxruntime=={ORT_VERSION}") from error
    if onnxruntime.__version__ != ORT_VERSION:
        raise CannotRun(f"onnxruntime {onnxruntime.__version__} is installed; the file is pinned to {ORT_VERSION}")
    found = {}
    for schema in state.get_all_operator_schema():
        if schema.name in OPERATORS.get(schema.domain, ()):
            found.setdefault((schema.domain, schema.name), []).append(schema)
    return found


def default(attr):
    """The default of an attribute; `None` if it has none."""
    import onnx

    message = onnx.AttributeProto.FromString(attr._default_value)
    value = onnx.helper.get_attribute_value(message) if message.type else None
    if isinstance(value, bytes):
        return value.decode()
    return list(value) if isinstance(value, (list, tuple)) else value


def formals(params) -> list[dict]:
    out = []
    for param in params:
        if param.option.name == "Variadic":
            raise CannotRun(f"the variadic formal {param.name}: nothing says how many it takes at least")
        out.append({"name": param.name, "type": param.typeStr, "option": param.option.name})
    return out


def record(schema) -> dict:
    return {
        "domain": schema.domain,
        "name": schema.name,
        "since": schema.since_version,
        **({"deprecated": True} if schema.deprecated else {}),
        "types": {c.type_param_str: sorted(c.allowed_type_strs) for c in schema.type_constraints},
        "inputs": formals(schema.inputs),
        "outputs": formals(schema.outputs),
        "limits": [schema.min_input, schema.max_input, schema.min_output, schema.max_output],
        "attrs": {
            name: {"kind": attr.type.name, "required": attr.required, "default": default(attr)}
            for name, attr in sorted(schema.attributes.items())
        },
    }


def text() -> str:
    found = load_schemas()
    lines = []
    for domain, names in OPERATORS.items():
        for name in names:
            wanted = VERSIONS.get((domain, name), [1])
            versions = {s.since_version: s for s in found.get((domain, name), [])}
            # Later versions in a domain of ONNX's own are ONNX's; in others they would be unknown to the table.
            if set(wanted) - set(versions) or domain and set(versions) != set(wanted) or versions[wanted[0]].deprecated:
                raise CannotRun(f"{name} of `{domain}` has the versions {sorted(versions)}; {wanted} are expected, the first live")
            lines += [json.dumps(record(versions[since])) for since in wanted]
    head = f'{{"onnxruntime": "{ORT_VERSION}", "schemas": [\n'
    return head + ",\n".join(lines) + "\n]}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the schemas of ONNX Runtime's own operators.")
    parser.add_argument("--check", action="store_true", help="compare with the committed file, write nothing")
    check = parser.parse_args().check
    try:
        expected = text()
    except CannotRun as error:
        print(f"generate_contrib_schemas.py: {error}", file=sys.stderr)
        return 2
    if not check:
        FILE.write_text(expected)
    elif not FILE.exists() or FILE.read_text() != expected:
        print("scripts/contrib_schemas.json is stale: run `python scripts/generate_contrib_schemas.py`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
