"""NVIDIA's modelopt AutoCast as a server: a line `SOURCE<tab>OUTPUT[<tab>FORMAT[<tab>DATA]]` makes an output.

FORMAT is fp16 (the default) or bf16, DATA the calibration data: an .npz file, a folder of them, or Polygraphy's .json.
The answer to a line is `ok` or what went wrong.

It needs an interpreter of its own (nvidia-modelopt[onnx] 0.47.0, which takes onnx 1.21; 6 GB with torch), which
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
        source, output, *more = line.rstrip("\n").split("\t")
        form = more[0] if more else "fp16"
        data = more[1] if len(more) > 1 else None
        try:
            with contextlib.redirect_stdout(sys.stderr):
                model = convert_to_mixed_precision(source, low_precision_type=form, keep_io_types=True, calibration_data=data)
                onnx.save(model, output)
            answers.write("ok\n")
        except (Exception, SystemExit) as error:
            answers.write(f"{type(error).__name__}: {error}".replace("\n", " ")[:200] + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
