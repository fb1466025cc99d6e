//! Weights that are kept in 16 bits alone.

use super::{LINEAR, Training, data, number, options, step_of, tensor};
use ampc::RewriteOptions;
use ampc::ir::op::OpKind;
use ampc::ir::{DType, TensorData};
use ampc::passes::build::Build;
use ampc::passes::policy::Policy;
use ampc::passes::step::CustomOptimizer;
use ampc::passes::step::custom::UpdateNodes;
use ampc::runtime::HostTensor;
use ampc::train::TrainOptions;

fn without_masters(loss: &str, optimizer: &str, scaler: &str) -> TrainOptions {
    let mut options = options(loss, optimizer, scaler, true);
    options.update.keeps_master_weights = false;
    options
}

/// Updates of 1 by less than half a unit in the last place are lost, however many there are: the numbers below
/// 1 are 2^-11 apart in fp16, and 2^-8 in bf16.
#[test]
fn without_master_weights_small_updates_are_lost() {
    let text = "module ir=10\nopset ai.onnx=21\n\ngraph @main {\n  input %x : f32[1, 1]\n  \
                const %w : f32[1, 1] = [1.0]\n  %y = MatMul(%x, %w) : f32[1, 1] @product\n  \
                %loss = ReduceSum(%y) {keepdims=0} : f32\n  output %loss\n}\n";
    for (format, unit) in [(DType::F16, 2f32.powi(-11)), (DType::BF16, 2f32.powi(-8))] {
        let mut options = without_masters("output:loss", "sgd", "static:128");
        let policy = Policy::preset("all").unwrap();
        options.precision = Some(RewriteOptions { to: format, ..RewriteOptions::of(policy) });
        let mut training = Training::of(step_of(text, &options));
        let mut after = |rate: f32, steps: usize| {
            for _ in 0..steps {
                training.step(&[("x", tensor(&[1, 1], &[1.0])), ("lr", tensor(&[], &[rate]))]);
            }
            assert_eq!(training.state["w"].dtype(), format);
            number_of(&training, "w")
        };
        assert_eq!(after(0.49 * unit, 1000), 1.0, "{format}");
        assert_eq!(after(0.51 * unit, 1), f64::from(1.0 - unit), "{format}");
    }
}

fn number_of(training: &Training, name: &str) -> f64 {
    training.state[name].f64s().unwrap().next().unwrap()
}

/// One of a user: the weight moves by the sign of its momentum.
fn signs() -> CustomOptimizer {
    CustomOptimizer::new("signs", |b: &mut UpdateNodes<'_>| {
        let (w, g, lr, v) = (b.weight(), b.gradient(), b.rate(), b.state("v")?);
        let v_next = b.plus(v, g)?;
        b.next(v, v_next)?;
        let sign = b.unary(OpKind::Sign, v_next)?;
        let change = b.times(lr, sign)?;
        b.minus(w, change)
    })
}

/// From weights that fp16 has, one step without master weights ends at what low copies would be after it, bit for bit,
/// and the states of optimizers are the same, in fp32.
#[test]
fn the_next_weight_is_the_low_copy_that_there_would_be() {
    for optimizer in ["sgd", "sgd:momentum=0.9,weight_decay=0.1", "adam", "adamw:weight_decay=0.1", "signs"] {
        let of = |keeps_master_weights: bool| {
            let mut options = match optimizer {
                "signs" => {
                    let mut options = options("mse", "sgd", "torch:init=1024", true);
                    options.update.optimizer = signs().into();
                    options
                }
                _ => options("mse", optimizer, "torch:init=1024", true),
            };
            options.update.keeps_master_weights = keeps_master_weights;
            options.update.clip_norm = Some(1.0);
            Training::of(step_of(LINEAR, &options))
        };
        let (mut with, mut without) = (of(true), of(false));
        for name in ["w", "b"] {
            assert_eq!(without.state[name].dtype(), DType::F16, "{optimizer}: {name}");
            assert!(!without.state.contains_key(&format!("lo.{name}")), "{optimizer}: {name}");
            #[expect(clippy::cast_possible_truncation, reason = "f32 holds every number of 16 bits")]
            let start: Vec<f32> = without.state[name].f64s().unwrap().map(|x| x as f32).collect();
            let start = tensor(without.state[name].dims(), &start);
            with.state.insert(name.to_owned(), start);
        }
        with.step(&data(2.0));
        without.step(&data(2.0));
        for (name, found) in &without.state {
            let low = with.state.get(&format!("lo.{name}"));
            let expected = low.unwrap_or_else(|| &with.state[name]);
            assert_eq!(found.bytes().unwrap(), expected.bytes().unwrap(), "{optimizer}: {name}");
        }
        let moments = without.state.iter().filter(|(name, _)| name.starts_with("v."));
        assert!(moments.into_iter().all(|(_, tensor)| tensor.dtype() == DType::F32), "{optimizer}");
    }
}

/// A step that is skipped leaves weights in 16 bits as they are.
#[test]
fn a_step_that_is_skipped_keeps_low_weights() {
    let mut training = Training::of(step_of(LINEAR, &without_masters("mse", "adam", "torch:init=1024")));
    training.step(&data(2.0));
    let before = training.state.clone();
    let found = training.step(&data(f32::INFINITY));
    assert_eq!(number(&found["found_inf"]), 1.0);
    super::assert_same_but_scaler(&before, &training.state, "low weights");
    training.step(&data(2.0));
    assert_ne!(training.state["w"].bytes().unwrap(), before["w"].bytes().unwrap());
}

/// The forward model again has the weights as the state has them.
#[test]
fn the_inference_model_has_low_weights() {
    let step = step_of(LINEAR, &without_masters("mse", "sgd", "none"));
    let w = step.state.iter().find(|(name, _)| name == "w").unwrap().1.clone();
    let model = ampc::train::inference_model(step.model, &step.state).unwrap();
    let module = &model.module;
    let mut constants = module.graph(module.main()).constants().iter();
    let found = constants.find(|&&value| ampc::ir::verify::name_of(module, value) == "w");
    let found = module.constant(*found.unwrap()).unwrap().dense().unwrap();
    let bits = |data: &TensorData| HostTensor::from_data(data).unwrap().bytes().unwrap().to_vec();
    assert_eq!((found.dtype(), bits(found)), (DType::F16, bits(&w)));
}

/// Where nothing is read in 16 bits alone, a warning says that the option does nothing.
#[test]
fn a_step_in_fp32_says_that_its_weights_are() {
    let mut options = options("mse", "sgd", "none", false);
    options.update.keeps_master_weights = false;
    let step = step_of(LINEAR, &options);
    assert!(step.warnings.iter().any(|warning| warning.code == "update.master_weights"));
    assert!(step.state.iter().all(|(_, data)| !data.dtype().is_low()));
}
