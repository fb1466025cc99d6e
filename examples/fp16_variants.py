"""Trains a small ResNet in fp32 and four ways in fp16 with `ampc train`, and prints what each loses as a table.

    python examples/fp16_variants.py [--ampc BINARY] [--steps N] [--batch N] [--seed N]

    variant           train loss  held-out  lost updates  norm weights moved  3 x deviation  loss scale  skipped
    fp32                  2.3163    2.2917         0.06%          336 of 336       0.001216           1        0
    fp16 alone            2.3248    2.3013        90.78%            0 of 336       0.000000           1        0
    norms, loss fp32      2.3247    2.3014        90.35%          336 of 336       0.001216           1        0
    + masters, 128        2.3163    2.2917         0.06%          336 of 336       0.001217         128        0
    + dynamic scale       2.3174    2.2924         0.07%          336 of 336       0.001198      262144        6

The variants add one thing after the other to fp16 alone: BatchNormalization and the loss in fp32; master weights in fp32
and a loss scale; a dynamic loss scale. fp16 numbers near 1 are 2^-11 (below) to 2^-10 (above) apart, so an update of a
weight near 1 is rounded away if it is less than half of that. The column `lost updates` is the share of such updates.
BatchNormalization weights start at 1, and in fp16 alone none of them moves. Images are 3x32x32, drawn around ten patterns;
every step takes new ones.
"""

import argparse, json, re, shutil, subprocess, tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save
from safetensors.numpy import load_file

ALONE = "--policy all --loss-precision low --scaler none --master-weights none --pin batchnorm*#T1=fp16"
# fastai's policy: fp16 everywhere except BatchNormalization and the loss.
VARIANTS = {
    "fp32": "--fp32 --scaler none",
    "fp16 alone": ALONE,
    "norms, loss fp32": "--policy fastai --scaler none --master-weights none",
    "+ masters, 128": "--policy fastai --scaler static:128",
    "+ dynamic scale": "--policy fastai --scaler fastai",
}
HELD_OUT = 512


class Row(NamedTuple):
    """One line of the table."""

    train: float
    """Training loss, exponential moving average with weight 0.02 per step."""
    held_out: float
    """Loss on the 512 held-out images after training."""
    lost: float
    """Share of weight elements with a gradient other than 0 whose value did not change, mean over every 5th step that was
    not skipped."""
    moved: int
    """Number of BatchNormalization weight elements that are not 1."""
    norms: int
    """Number of BatchNormalization weight elements."""
    spread: float
    """3 x standard deviation of the BatchNormalization weights."""
    scale: float
    """Loss scale of the next step; 1 without one."""
    skipped: int
    """Number of skipped steps."""


def build_model(seed):
    """A ResNet of 78,042 parameters in training mode: `images: f32[N, 3, 32, 32]` to `logits: f32[N, 10]`."""
    draw, nodes, constants = np.random.default_rng(seed), [], {}

    def parameter(name, array):
        constants[name] = np.asarray(array, np.float32)
        return name

    def uniform(name, *dims):
        bound = 1 / np.sqrt(np.prod(dims[1:]))
        return parameter(name, draw.uniform(-bound, bound, dims))

    def op(kind, *inputs, outputs=1, **attributes):
        names = [f"{kind.lower()}_{len(nodes)}" + f".{i}" * (i > 0) for i in range(outputs)]
        nodes.append(helper.make_node(kind, inputs, names, name=names[0], **attributes))
        return names[0]

    def conv(name, x, inputs, outputs, kernel=3, stride=1):
        weight, pads = uniform(f"{name}.weight", outputs, inputs, kernel, kernel), [kernel // 2] * 4
        return op("Conv", x, weight, strides=[stride] * 2, pads=pads)

    def norm(name, x, channels):
        ends = {"weight": 1, "bias": 0, "running_mean": 0, "running_var": 1}
        inputs = [parameter(f"{name}.{end}", np.full(channels, value)) for end, value in ends.items()]
        return op("BatchNormalization", x, *inputs, outputs=3, training_mode=1)

    def block(name, x, inputs, outputs, stride):
        y = op("Relu", norm(f"{name}.norm1", conv(f"{name}.conv1", x, inputs, outputs, 3, stride), outputs))
        y = norm(f"{name}.norm2", conv(f"{name}.conv2", y, outputs, outputs), outputs)
        if inputs != outputs:
            x = norm(f"{name}.norm3", conv(f"{name}.conv3", x, inputs, outputs, 1, stride), outputs)
        return op("Relu", op("Add", y, x))

    x = op("Relu", norm("norm", conv("conv", "images", 3, 16), 16))
    for i, (inputs, outputs, stride) in enumerate([(16, 16, 1), (16, 32, 2), (32, 64, 2)]):
        x = block(f"block{i}", x, inputs, outputs, stride)
    x = op("Flatten", op("GlobalAveragePool", x))
    logits = op("Gemm", x, uniform("fc.weight", 10, 64), parameter("fc.bias", draw.uniform(-0.125, 0.125, 10)), transB=1)
    images = helper.make_tensor_value_info("images", TensorProto.FLOAT, ["N", 3, 32, 32])
    logits = helper.make_tensor_value_info(logits, TensorProto.FLOAT, ["N", 10])
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "resnet", [images], [logits], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def save_images(file, count, seed):
    """Images of ten classes: a smooth pattern for each, at half strength under noise of deviation 1."""
    draw, patterns = np.random.default_rng(seed), np.random.default_rng(99).normal(size=(10, 3, 8, 8))
    labels = draw.integers(0, 10, count)
    smooth = np.kron(patterns, np.ones((4, 4)))
    for axis in (2, 3):
        smooth = sum(np.roll(smooth, shift, axis) for shift in (-1, 0, 1)) / 3
    images = (0.5 * smooth).astype(np.float32)[labels]
    for part in np.array_split(images, max(1, count // 1024)):
        part += draw.normal(size=part.shape).astype(np.float32)
    np.savez(file, images=images, target=labels)


def prepare(folder, steps, batch, seed):
    """Writes the model and the images to a folder."""
    save(build_model(seed), folder / "model.onnx")
    save_images(folder / "images.npz", steps * batch, seed=10_000 + seed)
    save_images(folder / "held_out.npz", HELD_OUT, seed=5_000_000)


def train(ampc, folder, name, flags, steps, batch):
    """Trains a variant; returns a row of the table."""
    step, state, trained, log = (folder / f"{name}.{end}" for end in ("onnx", "safetensors", "end.safetensors", "jsonl"))
    make = f"train-step --loss cross-entropy --optimizer sgd -q {flags}"
    subprocess.run([ampc, *make.split(), folder / "model.onnx", "-o", step, "--state", state], check=True)
    loop = f"train --steps {steps} --batch {batch} --no-shuffle --lr 1e-3 --histogram-every 5 --eval-every {steps} -q"
    files = ["--data", folder / "images.npz", "--eval", folder / "held_out.npz", "--log", log, "--save", trained]
    subprocess.run([ampc, *loop.split(), step, "--state", state, *files], check=True)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    taken = [line for line in lines if "loss" in line]
    counts = [line["updates"] for line in lines if "updates" in line]
    loss = taken[0]["loss"]
    for line in taken[1:]:
        loss = 0.98 * loss + 0.02 * line["loss"]
    is_weight = re.compile(r"(block\d\.)?norm\d?\.weight").fullmatch
    norms = np.concatenate([array.astype(np.float32) for key, array in load_file(trained).items() if is_weight(key)])
    return Row(
        train=loss,
        held_out=lines[-1]["eval_loss"],
        lost=np.mean([count["lost"] / max(1, count["elements"]) for count in counts]),
        moved=int(np.sum(norms != 1)),
        norms=norms.size,
        spread=3 * float(norms.std()),
        # A static scale is no state, so that the log does not have it.
        scale=taken[-1].get("loss_scale", 128 if "static:128" in flags else 1),
        skipped=sum(line["skipped"] for line in taken),
    )


HEADING = "variant           train loss  held-out  lost updates  norm weights moved  3 x deviation  loss scale  skipped"


def line(name, row):
    """A row as text, to stand below HEADING."""
    moved = f"{row.moved} of {row.norms}"
    losses = f"{name:<16}  {row.train:10.4f}  {row.held_out:8.4f}  {row.lost:12.2%}"
    return f"{losses}  {moved:>18}  {row.spread:13.6f}  {row.scale:10.0f}  {row.skipped:7}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ampc", default=shutil.which("ampc") or "target/release/ampc", help="the binary")
    parser.add_argument("--steps", type=int, default=300, help="10 or more")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.steps < 10:
        parser.error("--steps has to be 10 or more")
    if not shutil.which(options.ampc):
        parser.error(f"{options.ampc} is not there: build it with `cargo build --release`, or name it with --ampc")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        prepare(folder, options.steps, options.batch, options.seed)
        print(HEADING)
        for name, flags in VARIANTS.items():
            row = train(options.ampc, folder, name, flags, options.steps, options.batch)
            print(line(name, row), flush=True)


if __name__ == "__main__":
    main()
