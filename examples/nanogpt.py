"""Trains a small GPT on characters in fp32, fp16 and bf16 with `ampc train`, and prints the three runs as a table.

    python examples/nanogpt.py [--ampc BINARY] [--steps N] [--dropout P]

    precision  first loss  last loss  held-out  skipped  low nodes  casts  samples/s
    fp32           3.5461     1.2759    1.2585        0         0%      0        384
    fp16           3.5461     1.2685    1.2517        1        47%     95        204
    bf16           3.5459     1.2712    1.2525        0        48%     94        261

Losses are nats per character; the entropy of single characters is 2.91, and given the one before 1.87. Casts and low
nodes are those of the step. A CPU computes 16-bit types by way of fp32, so samples/s do not show what a GPU gains.
"""

import argparse, json, math, random, shutil, subprocess, tempfile
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

LAYERS, HEADS, WIDTH, WINDOW, BATCH, STEPS = 2, 4, 64, 64, 16, 250
COMPUTE_AND_SCALER = {"fp32": ("float32", "none"), "fp16": ("float16", "jmp"), "bf16": ("bfloat16", "none")}


def write_text(sentences, seed):
    """Sentences of a small grammar, in which verbs agree with their subjects in number."""
    choose, flag = random.Random(seed).choice, [False, True]
    adjectives = "old young small tall quiet clever hungry green golden broken distant gentle".split()
    nouns = "king queen sailor doctor horse river garden castle letter lantern mountain stranger".split()
    verbs = "see follow find remember answer carry paint leave draw guard".split()
    places = "in the forest,near the sea,behind the tower,under the bridge,at the market,on the hill".split(",")

    def phrase(plural):
        article = choose(["the", "some", "many"] if plural else ["the", "a single", "every"])
        return [article] + [choose(adjectives)] * choose(flag) + [choose(nouns) + "s" * plural]

    def clause():
        plural = choose(flag)
        words = phrase(plural) + [choose(verbs) + "s" * (not plural)] + phrase(choose(flag))
        return " ".join(words + [choose(places)] * choose(flag))

    texts = [clause() + choose(["", f", but {clause()}", f" because {clause()}"]) for _ in range(sentences)]
    return "".join(text[0].upper() + text[1:] + choose(".!") + choose(" \n") for text in texts)


def save_windows(text, alphabet, file):
    """Cuts a text into windows; the target of each character is the one that follows it."""
    codes = np.array([alphabet.index(character) for character in text], np.int64)
    end = (len(codes) - 1) // WINDOW * WINDOW
    np.savez(file, tokens=codes[:end].reshape(-1, WINDOW), target=codes[1 : end + 1].reshape(-1, WINDOW))


def build_model(characters, dropout):
    """The decoder of nanoGPT: `tokens: i64[N, 64]` to `logits: f32[N, 64, characters]`."""
    draw, nodes, residual = np.random.default_rng(1), [], 0.02 / math.sqrt(2 * LAYERS)
    constants = {"causal": np.tril(np.ones((WINDOW, WINDOW), bool)), "masked": np.float32(-np.inf)}
    constants |= {"split_heads": np.array([0, 0, HEADS, WIDTH // HEADS]), "join_heads": np.array([0, 0, WIDTH])}
    constants |= {"scale": np.float32(1 / math.sqrt(WIDTH // HEADS))}
    if dropout:
        constants |= {"dropout": np.float32(dropout), "training": np.array(True)}

    def op(kind, *inputs, outputs=1, **attributes):
        name = f"{kind.lower()}_{len(nodes)}"
        names = [f"{name}.{i}" for i in range(outputs)]
        nodes.append(helper.make_node(kind, inputs, names, name=name, **attributes))
        return names[0] if outputs == 1 else names

    def drop(x):
        return op("Dropout", x, "dropout", "training") if dropout else x

    def parameter(name, array):
        constants[name] = array.astype(np.float32)
        return name

    def norm(name, x):
        scale = parameter(f"{name}.weight", np.ones(WIDTH))
        return op("LayerNormalization", x, scale, parameter(f"{name}.bias", np.zeros(WIDTH)))

    def linear(name, x, rows, columns, deviation=0.02):
        weight = parameter(f"{name}.weight", draw.normal(0, deviation, (rows, columns)))
        return op("Add", op("MatMul", x, weight), parameter(f"{name}.bias", np.zeros(columns)))

    def attention(name, x):
        parts = op("Split", linear(f"{name}.c_attn", x, WIDTH, 3 * WIDTH), outputs=3, axis=2, num_outputs=3)
        query, key, value = (op("Reshape", part, "split_heads") for part in parts)
        query, value = (op("Transpose", part, perm=[0, 2, 1, 3]) for part in (query, value))
        scores = op("Mul", op("MatMul", query, op("Transpose", key, perm=[0, 2, 3, 1])), "scale")
        shares = drop(op("Softmax", op("Where", "causal", scores, "masked"), axis=-1))
        mixed = op("Transpose", op("MatMul", shares, value), perm=[0, 2, 1, 3])
        return linear(f"{name}.c_proj", op("Reshape", mixed, "join_heads"), WIDTH, WIDTH, residual)

    rows = {"wte.weight": characters, "wpe.weight": WINDOW}
    wte, wpe = (parameter(name, draw.normal(0, 0.02, (count, WIDTH))) for name, count in rows.items())
    x = drop(op("Add", op("Gather", wte, "tokens"), wpe))
    for i in range(LAYERS):
        x = op("Add", x, drop(attention(f"h.{i}.attn", norm(f"h.{i}.ln_1", x))))
        wide = op("Gelu", linear(f"h.{i}.mlp.c_fc", norm(f"h.{i}.ln_2", x), WIDTH, 4 * WIDTH))
        x = op("Add", x, drop(linear(f"h.{i}.mlp.c_proj", wide, 4 * WIDTH, WIDTH, residual)))
    # The weight of the head is that of the token embedding.
    logits = op("MatMul", norm("ln_f", x), op("Transpose", wte, perm=[1, 0]))
    tokens = helper.make_tensor_value_info("tokens", TensorProto.INT64, ["N", WINDOW])
    logits = helper.make_tensor_value_info(logits, TensorProto.FLOAT, ["N", WINDOW, characters])
    initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "nanogpt", [tokens], [logits], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def train(ampc, folder, precision, steps):
    """Trains in a precision; returns a row of the table."""
    compute, scaler = COMPUTE_AND_SCALER[precision]
    step, state, report, log = (folder / f"{precision}.{end}" for end in ("onnx", "safetensors", "json", "jsonl"))
    make = f"train-step --policy jmp:params=float32,compute={compute},output=float32 --scaler {scaler}"
    make += " --loss cross-entropy --clip-norm 1 --optimizer adamw:beta2=0.99,weight_decay=0.1 -q"
    files = [folder / "model.onnx", "-o", step, "--state", state, "--report", report]
    subprocess.run([ampc, *make.split(), "--decay", "*.bias=0", "--decay", "*ln_*=0", *files], check=True)
    rate = f"cosine:lr=3e-3,warmup={steps // 20},final=3e-4"
    loop = f"train --steps {steps} --batch {BATCH} --eval-every {steps} --lr {rate} -q"
    files = [step, "--state", state, "--data", folder / "text.npz", "--eval", folder / "held_out.npz", "--log", log]
    files += ["--save", folder / f"trained.{precision}.safetensors"]
    subprocess.run([ampc, *loop.split(), *files], check=True)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    taken = [line for line in lines if "loss" in line]
    phases = json.loads(report.read_text())["phases"]
    nodes, low = (sum(phase[field] for phase in phases) for field in ("nodes", "low"))
    casts = sum(phase[field] for phase in phases for field in ("casts_to_low", "casts_to_fp32", "other_casts"))
    first, last = taken[0]["loss"], np.mean([line["loss"] for line in taken[-10:]])
    skipped, samples, seconds = (sum(line[field] for line in taken) for field in ("skipped", "samples", "seconds"))
    return first, last, lines[-1]["eval_loss"], skipped, low / nodes, casts, samples / seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ampc", default=shutil.which("ampc") or "target/release/ampc", help="the binary")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--dropout", type=float, default=0.0, help="the share that is dropped in training")
    options = parser.parse_args()
    if options.steps < 1 or not 0 <= options.dropout < 1:
        parser.error("--steps has to be 1 or more, and --dropout from 0 to below 1")
    if not shutil.which(options.ampc):
        parser.error(f"{options.ampc} is not there: build it with `cargo build --release`, or name it with --ampc")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        texts = {"text": write_text(2400, seed=1), "held_out": write_text(120, seed=2)}
        alphabet = sorted(set("".join(texts.values())))
        for name, text in texts.items():
            save_windows(text, alphabet, folder / f"{name}.npz")
        save(build_model(len(alphabet), options.dropout), folder / "model.onnx")
        print("precision  first loss  last loss  held-out  skipped  low nodes  casts  samples/s")
        row = "{:<9}  {:10.4f}  {:9.4f}  {:8.4f}  {:7}  {:9.0%}  {:5}  {:9.0f}".format
        for precision in COMPUTE_AND_SCALER:
            print(row(precision, *train(options.ampc, folder, precision, options.steps)), flush=True)


if __name__ == "__main__":
    main()
