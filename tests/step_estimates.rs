//! The memory that is estimated for a training step, before a constant is read, is what a run allocates: arena, states and
//! constants, for models of a corpus and for models with open dims. Copies that are computed again never raise it.

#![cfg(feature = "run")]
#![allow(clippy::unwrap_used, reason = "a test: what cannot be made fails it")]

use ampc::Model;
use ampc::execute::inputs::Dims;
use ampc::execute::{Inputs, MemoryNeeds, bind, memory_needs, prepare};
use ampc::ir::text::{NoData, parse};
use ampc::passes::cost::{BoundInputs, SizeSource};
use ampc::passes::step::{Scaler, Update};
use ampc::runtime::{Cpu, Runtime};
use ampc::train::{TrainOptions, train_step};
use std::path::PathBuf;

/// The estimate, and the bytes that arenas and constants take once a run is planned.
fn measured(model: Model, options: &TrainOptions) -> (MemoryNeeds, u64, u64) {
    let mut module = train_step(model, options).unwrap_or_else(|error| panic!("{error}")).model.module;
    let inputs = BoundInputs::new(&module, &options.dims).unwrap();
    let needs = memory_needs(&module, &inputs).unwrap();
    let drawn = Inputs::random(&module, 1, &inputs.sizes(), u64::MAX).unwrap();
    let mut session = prepare(&mut module, &Runtime::from(Cpu::new(1))).unwrap();
    bind(&mut session, &drawn.values).unwrap();
    (needs, session.allocated_bytes() as u64, session.constant_bytes())
}

/// The options of steps in fp32 and in fp16.
fn formats(loss: &str, dims: &Dims) -> [(&'static str, TrainOptions); 2] {
    let low = TrainOptions {
        loss: loss.parse().unwrap(),
        freezes_unreached: true,
        dims: dims.clone(),
        verify_each: false,
        ..TrainOptions::default()
    };
    let full = TrainOptions {
        precision: None,
        update: Update { scaler: Scaler::None, ..Update::default() },
        ..low.clone()
    };
    [("fp32", full), ("fp16", low)]
}

/// Compares estimates with what is allocated, and what is allocated with copies and without.
fn compare(name: &str, load: impl Fn() -> Model, loss: &str, dims: &Dims) {
    for (format, options) in formats(loss, dims) {
        let mut allocated = Vec::new();
        for recomputes in [false, true] {
            let what = format!("{name}, {format}, recomputed: {recomputes}");
            let (needs, arenas, constants) =
                measured(load(), &TrainOptions { recomputes, ..options.clone() });
            assert_eq!((needs.arenas, needs.constants), (arenas, constants), "{what}");
            assert!(
                needs.unsized_values.is_empty(),
                "{what}: {} values without a size",
                needs.unsized_values.len()
            );
            assert!(needs.peak.is_some_and(|peak| peak.bytes as u64 == arenas), "{what}");
            allocated.push(arenas);
        }
        assert!(allocated[1] <= allocated[0], "{name}, {format}: copies raise the memory, {allocated:?}");
    }
}

fn corpora() -> Vec<PathBuf> {
    let larger = std::env::var_os("AMPC_CORPUS").map(PathBuf::from);
    std::iter::once(PathBuf::from("testdata/corpus"))
        .chain(larger)
        .map(|folder| folder.join("train"))
        .collect()
}

#[test]
fn the_estimate_is_what_is_allocated_on_the_training_models_of_the_corpus() {
    let mut compared = 0;
    for folder in corpora().into_iter().filter_map(|folder| std::fs::read_dir(folder).ok()) {
        let mut names: Vec<PathBuf> = folder.map(|entry| entry.unwrap().path()).collect();
        names.sort();
        for folder in names {
            let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
            let path = folder.join(format!("{name}.train.onnx"));
            let load = || ampc::load(&path).unwrap();
            // Recurrent operators have no gradient.
            let options = &formats("output:loss", &Dims::new())[0].1;
            if train_step(load(), options).is_ok() {
                compare(&name, load, "output:loss", &Dims::new());
                compared += 1;
            }
        }
    }
    assert!(compared > 0, "no model was compared");
}

/// A transformer of open batch and length, whose shapes are computed from that of its input, and a convolution of
/// open batch.
const OPEN: [(&str, &str, &str); 2] = [
    (
        "attention",
        "cross-entropy",
        "module ir=10
opset ai.onnx=21

graph @main {
  input %ids : i64[B, T]
  const %table : f32[50, 16] = random(1)
  const %places : f32[64, 16] = random(2)
  const %q : f32[16, 16] = random(3)
  const %k : f32[16, 16] = random(4)
  const %v : f32[16, 16] = random(5)
  const %wide : f32[16, 64] = random(6)
  const %narrow : f32[64, 16] = random(7)
  const %scale : f32[16] = random(8)
  const %zero : i64 = 0
  const %one : i64 = 1
  const %first : i64[1] = [0]
  const %heads : i64[1] = [4]
  const %rest : i64[1] = [-1]
  %shape = Shape(%ids) : i64[2]
  %b = Gather(%shape, %zero) : i64
  %t = Gather(%shape, %one) : i64
  %bs = Unsqueeze(%b, %first) : i64[1]
  %ts = Unsqueeze(%t, %first) : i64[1]
  %to4 = Concat(%bs, %ts, %heads, %rest) {axis=0} : i64[4]
  %to3 = Concat(%bs, %ts, %rest) {axis=0} : i64[3]
  %range = Range(%zero, %t, %one) : i64[T]
  %tokens = Gather(%table, %ids) : f32[B, T, 16]
  %at = Gather(%places, %range) : f32[T, 16]
  %x = Add(%tokens, %at) : f32[B, T, 16]
  %n = LayerNormalization(%x, %scale) : f32[B, T, 16]
  %qa = MatMul(%n, %q) : f32[B, T, 16]
  %ka = MatMul(%n, %k) : f32[B, T, 16]
  %va = MatMul(%n, %v) : f32[B, T, 16]
  %qb = Reshape(%qa, %to4) : f32[B, T, 4, 4]
  %kb = Reshape(%ka, %to4) : f32[B, T, 4, 4]
  %vb = Reshape(%va, %to4) : f32[B, T, 4, 4]
  %qc = Transpose(%qb) {perm=[0, 2, 1, 3]} : f32[B, 4, T, 4]
  %kc = Transpose(%kb) {perm=[0, 2, 3, 1]} : f32[B, 4, 4, T]
  %vc = Transpose(%vb) {perm=[0, 2, 1, 3]} : f32[B, 4, T, 4]
  %s = MatMul(%qc, %kc) : f32[B, 4, T, T]
  %p = Softmax(%s) : f32[B, 4, T, T]
  %m = MatMul(%p, %vc) : f32[B, 4, T, 4]
  %mt = Transpose(%m) {perm=[0, 2, 1, 3]} : f32[B, T, 4, 4]
  %mr = Reshape(%mt, %to3) : f32[B, T, 16]
  %r = Add(%x, %mr) : f32[B, T, 16]
  %u = MatMul(%r, %wide) : f32[B, T, 64]
  %g = Gelu(%u) : f32[B, T, 64]
  %d = MatMul(%g, %narrow) : f32[B, T, 16]
  %z = Add(%r, %d) : f32[B, T, 16]
  %back = Transpose(%table) {perm=[1, 0]} : f32[16, 50]
  %y = MatMul(%z, %back) : f32[B, T, 50]
  output %y
}
",
    ),
    (
        "convolution",
        "mse",
        "module ir=10
opset ai.onnx=21

graph @main {
  input %x : f32[N, 3, 16, 12]
  const %a : f32[8, 3, 3, 3] = random(1)
  const %b : f32[8, 4, 2, 2] = random(2)
  const %s : f32[8] = random(3)
  const %o : f32[8] = random(4)
  const %mean : f32[8] = random(5)
  const %var : f32[8] = random(6, 0.1)
  %c = Conv(%x, %a) {pads=[1, 1, 1, 1]} : f32[N, 8, 16, 12]
  %n, %m, %v = BatchNormalization(%c, %s, %o, %mean, %var) {training_mode=1} : f32[N, 8, 16, 12], f32[8], f32[8]
  %r = Relu(%n) : f32[N, 8, 16, 12]
  %p = MaxPool(%r) {kernel_shape=[2, 2], strides=[2, 2]} : f32[N, 8, 8, 6]
  %t = ConvTranspose(%p, %b) {strides=[2, 2]} : f32[N, 4, 16, 12]
  %y = GlobalAveragePool(%t) : f32[N, 4, 1, 1]
  output %y
}
",
    ),
];

fn open(text: &str) -> Model {
    let module = parse(text, &NoData).unwrap_or_else(|errors| panic!("{errors}"));
    Model::from(module)
}

#[test]
fn the_estimate_is_what_is_allocated_for_open_dims() {
    let sizes =
        |list: &[(&str, u64)]| -> Dims { list.iter().map(|&(name, n)| (name.to_owned(), n)).collect() };
    for (name, loss, text) in OPEN {
        let given = match name {
            "attention" => [&[("B", 4), ("T", 32)][..], &[("B", 1), ("T", 64)], &[("T", 48)]],
            _ => [&[("N", 6)][..], &[("N", 2)], &[]],
        };
        for dims in given {
            compare(name, || open(text), loss, &sizes(dims));
        }
    }
}

#[test]
fn a_batch_that_nobody_gives_is_one_and_the_other_dims_are_named() {
    for (name, _, text) in OPEN {
        let inputs = BoundInputs::new(&open(text).module, &Dims::new()).unwrap();
        let found = |source: SizeSource| -> Vec<(&str, u64)> {
            let dims = inputs.dims.iter().filter(|dim| dim.source == source);
            dims.map(|dim| (dim.name.as_str(), dim.size)).collect()
        };
        let (batch, others) = match name {
            "attention" => ("B", vec![("T", 128)]),
            _ => ("N", vec![]),
        };
        assert_eq!(
            (found(SizeSource::Batch), found(SizeSource::Assumed)),
            (vec![(batch, 1)], others),
            "{name}"
        );
    }
}
