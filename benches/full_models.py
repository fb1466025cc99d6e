#!/usr/bin/env python3
"""Full-size models with open batch (and length), in training mode, with a batch of data: for step_estimates.py.

    AMPC_TORCH_PYTHON full_models.py --scripts CORPUS/scripts FOLDER [NAME ...]

The interpreter needs torch, torchvision and onnx; the models are those of `export_models.py` of the corpus, of its full size.
"""

from __future__ import annotations

import sys
import warnings
from argparse import ArgumentParser
from pathlib import Path

NAMES = ["nanogpt", "unet", "vit_b_16", "mobilenet_v3_large", "resnet50"]


def main() -> None:
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scripts", type=Path, required=True)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=NAMES)
    args = parser.parse_args()
    sys.path.insert(0, str(args.scripts.resolve()))
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in args.names:
        export(name, args.folder)


def export(name: str, folder: Path) -> None:
    """Writes NAME.onnx and NAME.npz."""
    import export_models
    import numpy as np
    import torch

    warnings.filterwarnings("ignore")
    export_models.seed()
    made = export_models.MODELS[name]("full")
    model, args = made["model"], made["args"] or (export_models.img(2, *made["shape"]),)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        for attribute in ("dropout", "attention_dropout"):
            if isinstance(getattr(module, attribute, None), float):
                setattr(module, attribute, 0.0)
    axes = dict(zip(made["inputs"], made.get("dyn") or [{0: "batch"} for _ in made["inputs"]]))
    torch.onnx.export(
        model.train(),
        args,
        str(folder / f"{name}.onnx"),
        dynamo=False,
        training=torch.onnx.TrainingMode.TRAINING,
        do_constant_folding=False,
        opset_version=17,
        input_names=made["inputs"],
        output_names=made["outputs"],
        dynamic_axes=axes,
    )
    with torch.no_grad():
        out = model(*args)
    out = out[0] if isinstance(out, tuple) else out
    target = np.zeros(out.shape, np.float32) if name == "unet" else np.zeros(out.shape[:-1], np.int64)
    np.savez(folder / f"{name}.npz", target=target, **{n: a.numpy() for n, a in zip(made["inputs"], args)})
    print(name, {n: tuple(a.shape) for n, a in zip(made["inputs"], args)}, flush=True)


if __name__ == "__main__":
    main()
