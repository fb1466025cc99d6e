"""NVIDIA's modelopt AutoCast as a server: a line `SOURCE<tab>OUTPUT` makes an output, and `ok` or what went wrong.

It needs an interpreter of its own (nvidia-modelopt[onnx] 0.47.0 with onnx 1.18.0, 6 GB with torch), which
AMPC_MODELOPT names.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys


def main() -> None:
    """Converts until there is no line left."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import onnx
    from modelopt.onnx.autocast import convert_to_mixed_precision

    logging.disable(logging.CRITICAL)
    for line in sys.stdin:
        source, output = line.rstrip("\n").split("\t")
        try:
            with contextlib.redirect_stdout(sys.stderr):
                onnx.save(convert_to_mixed_precision(source, low_precision_type="fp16", keep_io_types=True), output)
            answers.write("ok\n")
        except (Exception, SystemExit) as error:
            answers.write(f"{type(error).__name__}: {error}".replace("\n", " ")[:200] + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
