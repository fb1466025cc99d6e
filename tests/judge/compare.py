"""How far the outputs of one model are from a reference.

The error of an output is max|a - r| / max|r|, that of a model the largest of its outputs, as in the
corpus' amp_o1_expected.csv. A non-finite value must be in the same place and of the same kind: one that
appears or disappears makes the error infinite. Everything that is not a float must be equal.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def _flatten(value: Any) -> list[np.ndarray]:
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _flatten(item)]
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in (np.asarray(key), *_flatten(value[key]))]
    if value is None:
        return []
    if hasattr(value, "dense_shape"):
        return [np.asarray(value.values()), np.asarray(value.dense_shape())]
    return [np.asarray(value)]


def _is_float(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" or array.dtype.name.startswith("bfloat")


def array_error(got: np.ndarray, want: np.ndarray) -> tuple[float, float]:
    """Maximum and mean relative error of a float array of the right shape."""
    a, r = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(r)
    if not np.array_equal(finite, np.isfinite(a)) or not np.array_equal(a[~finite], r[~finite], equal_nan=True):
        return float("inf"), float("inf")
    if not finite.any():
        return 0.0, 0.0
    off, ref = np.abs(a[finite] - r[finite]), np.abs(r[finite])
    return float(off.max() / max(ref.max(), 1e-30)), float(off.mean() / max(ref.mean(), 1e-30))


def outputs_error(got: list[Any], want: list[Any]) -> dict[str, Any]:
    """{"max", "mean", "note"}: the note says what is not comparable as floats."""
    largest, mean, notes = 0.0, 0.0, []
    for index, (value, reference) in enumerate(zip(got, want, strict=True)):
        leaves, wanted = _flatten(value), _flatten(reference)
        if len(leaves) != len(wanted):
            notes.append(f"output {index}: {len(leaves)} parts, not {len(wanted)}")
            continue
        for a, r in zip(leaves, wanted):
            if a.shape != r.shape or _is_float(a) != _is_float(r):
                notes.append(f"output {index}: {a.dtype}{list(a.shape)}, not {r.dtype}{list(r.shape)}")
            elif _is_float(r):
                worst, average = array_error(a, r)
                largest, mean = max(largest, worst), max(mean, average)
            elif not np.array_equal(a.astype(str) if r.dtype.kind == "U" else a, r):
                notes.append(f"output {index}: {r.dtype} values differ")
    return {"max": largest, "mean": mean, "note": "; ".join(notes)}
