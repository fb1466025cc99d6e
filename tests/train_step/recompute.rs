//! Activations that are computed again: the same bits, and a peak that is never higher.

use super::{Training, elements, module, options, scores, tensor};
use ampc::Model;
use ampc::passes::cost::BoundInputs;
use ampc::runtime::HostTensor;
use ampc::train::{TrainOptions, train_step};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestCaseError, TestRunner};

#[path = "../common/random_gradients.rs"]
mod random_gradients;

/// Models with activations that are cheap to compute: a chain of element-by-element operators, a dropout, views.
const CHEAP: [&str; 2] = [
    "module ir=10\nopset ai.onnx=21\n\ngraph @main {\n  input %x : f32[256, 16]\n  \
     const %w : f32[16, 64] = random(1)\n  const %v : f32[64, 64] = random(2)\n  const %u : f32[64, 4] = random(3)\n  \
     const %half : f32 = 0.5\n  const %ratio : f32 = 0.25\n  const %on : bool = true\n  \
     const %deep : i64[3] = [256, 8, 8]\n  const %flat : i64[2] = [256, 64]\n  \
     %a = MatMul(%x, %w) : f32[256, 64]\n  %b = Gelu(%a) : f32[256, 64]\n  \
     %c, %mask = Dropout(%b, %ratio, %on) : f32[256, 64], bool[256, 64]\n  %d = MatMul(%c, %v) : f32[256, 64]\n  \
     %e = Erf(%d) : f32[256, 64]\n  %f = Add(%e, %half) : f32[256, 64]\n  %g = Mul(%d, %f) : f32[256, 64]\n  \
     %h = Reshape(%g, %deep) : f32[256, 8, 8]\n  %i = Tanh(%h) : f32[256, 8, 8]\n  \
     %j = Reshape(%i, %flat) : f32[256, 64]\n  %k = MatMul(%j, %v) : f32[256, 64]\n  %l = Gelu(%k) : f32[256, 64]\n  \
     %m = MatMul(%l, %v) : f32[256, 64]\n  %n = Gelu(%m) : f32[256, 64]\n  \
     %y = MatMul(%n, %u) : f32[256, 4]\n  output %y\n}\n",
    "module ir=10\nopset ai.onnx=21\n\ngraph @main {\n  input %x : f32[8, 3, 8, 8]\n  \
     const %w : f32[6, 3, 3, 3] = random(1)\n  const %v : f32[6, 6, 3, 3] = random(2)\n  \
     const %flat : i64[2] = [8, 384]\n  const %u : f32[384, 4] = random(3)\n  \
     %a = Conv(%x, %w) {pads=[1, 1, 1, 1]} : f32[8, 6, 8, 8]\n  %b = HardSwish(%a) : f32[8, 6, 8, 8]\n  \
     %c = Conv(%b, %v) {pads=[1, 1, 1, 1]} : f32[8, 6, 8, 8]\n  %d = Add(%c, %b) : f32[8, 6, 8, 8]\n  \
     %e = Relu(%d) : f32[8, 6, 8, 8]\n  %f = Reshape(%e, %flat) : f32[8, 384]\n  \
     %y = MatMul(%f, %u) : f32[8, 4]\n  output %y\n}\n",
];

/// The bytes of all outputs over some steps, and the estimated peak.
fn outputs_of(
    model: Model,
    options: &TrainOptions,
    data: &[(&str, HostTensor)],
) -> (Vec<Vec<u8>>, u64, usize) {
    let step = train_step(model, options).unwrap_or_else(|error| panic!("{error}"));
    let inputs = BoundInputs::new(&step.model.module, &options.dims).unwrap();
    let peak = ampc::execute::memory_needs(&step.model.module, &inputs).unwrap().arenas;
    let (copies, _) = ampc::report::recomputed(&step.model.module, &inputs);
    let mut training = Training::of(step);
    let outputs = (0..3).flat_map(|_| training.step(data).into_values().collect::<Vec<_>>());
    (outputs.map(|output| output.bytes().unwrap().to_vec()).collect(), peak, copies)
}

#[test]
fn recomputation_lowers_the_peak_and_keeps_every_bit() {
    for (text, dims) in [(CHEAP[0], &[256, 16][..]), (CHEAP[1], &[8, 3, 8, 8][..])] {
        for (low, scaler) in [(false, "none"), (true, "ampc:init=256")] {
            let targets = [dims[0], 4];
            let data = [
                ("x", tensor(dims, &scores(elements(dims)))),
                ("target", tensor(&targets, &scores(elements(&targets)))),
                ("lr", tensor(&[], &[1e-2])),
            ];
            let with = options("mse", "adamw", scaler, low);
            let without = TrainOptions { recomputes: false, ..with.clone() };
            let (outputs, peak, copies) = outputs_of(module(text), &with, &data);
            let (expected, full, none) = outputs_of(module(text), &without, &data);
            assert!(outputs == expected, "other bits, low: {low}\n{text}");
            assert!(none == 0 && (copies > 0) == (peak < full), "{copies} copies, {peak} of {full}\n{text}");
            assert!(copies > 0 || text != CHEAP[0], "nothing is computed again\n{text}");
        }
    }
}

/// A graph of random steps in f32, whose loss is the mean of all that leaves it.
fn graph_with_loss(steps: &[random_gradients::Step]) -> String {
    let text = random_gradients::graph(steps).replace("f64", "f32");
    let (nodes, outputs): (Vec<&str>, Vec<&str>) =
        text.lines().partition(|line| !line.starts_with("  output") && *line != "}");
    let outputs = outputs.iter().filter_map(|line| line.strip_prefix("  output ")).collect::<Vec<_>>();
    format!(
        "{}\n  %all = Sum({}) : ?\n  %loss = ReduceMean(%all) {{keepdims=0}} : ?\n  output %loss\n}}\n",
        nodes.join("\n"),
        outputs.join(", ")
    )
}

#[test]
fn steps_of_random_graphs_compute_the_same_with_recomputation() {
    #[expect(clippy::disallowed_methods, reason = "the gate looks at fewer graphs than a release")]
    let cases = std::env::var("AMPC_GRADIENT_GRAPHS").map_or(60, |n| n.parse().unwrap());
    let config = ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(2),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let steps = prop::collection::vec((any::<u8>(), any::<u16>(), any::<u16>()), 4..16);
    let lowered = std::cell::Cell::new(0);
    let law = |steps: Vec<random_gradients::Step>| {
        let text = graph_with_loss(&steps);
        for (low, scaler) in [(false, "none"), (true, "ampc:init=256")] {
            let with = options("output:loss", "adamw", scaler, low);
            let with = TrainOptions { freezes_unreached: true, verify_each: false, ..with };
            let without = TrainOptions { recomputes: false, ..with.clone() };
            let data = [("lr", tensor(&[], &[1e-2]))];
            let read = || {
                let mut model = module(&text);
                ampc::ir::infer::infer_module(&mut model.module).unwrap();
                model
            };
            let (outputs, peak, copies) = outputs_of(read(), &with, &data);
            let (expected, full, none) = outputs_of(read(), &without, &data);
            let said = format!("{copies} copies, a peak of {peak}, not {full}, low: {low}\n\n{text}");
            prop_assert!(outputs == expected, "other bits: {}", said);
            prop_assert!(none == 0 && (copies > 0) == (peak < full), "{}", said);
            lowered.set(lowered.get() + u32::from(copies > 0));
        }
        Ok::<(), TestCaseError>(())
    };
    TestRunner::new(config).run(&steps, law).unwrap_or_else(|error| panic!("{error}"));
    assert!(lowered.get() > cases / 4, "{} of {cases} graphs have a lower peak", lowered.get());
}
