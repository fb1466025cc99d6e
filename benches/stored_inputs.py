"""The inputs that a corpus stores with a model, in a file of their own.

Imports the standard library only: Linux counts the pages of a process in the peak memory of its children.
"""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

PREFIX = "in_"


def copy_inputs(stored: Path, inputs: Path) -> None:
    """Writes an .npz file with the arrays `in_NAME` of another as NAME."""
    with zipfile.ZipFile(stored) as source, zipfile.ZipFile(inputs, "w") as target:
        for member in source.namelist():
            if not member.startswith(PREFIX):
                continue
            # Arrays may be larger than 4 GB, as NumPy's own writer expects too.
            copy = target.open(member.removeprefix(PREFIX), "w", force_zip64=True)
            with source.open(member) as array, copy:
                shutil.copyfileobj(array, copy)
