//! A framework that is not ONNX asks ampc what to compute in 16 bits, and how to train in them, without any file.
//!
//! It builds its graph with [`ir::Builder`], has it rewritten, and reads the result from the module: the
//! decision of every node, and the casts to be run. It also makes a training step from the same graph and takes
//! it a few times on the CPU runtime, which shows the loss and the loss scale after each step. `cargo run
//! --example framework` prints both.

#![allow(clippy::print_stdout, reason = "an example shows what it finds")]

#[cfg(feature = "run")]
use ampc::execute::training::{Dataset, Training, TrainingOptions};
#[cfg(feature = "run")]
use ampc::execute::{StepResult, Trainer};
use ampc::ir::module::Provenance;
use ampc::ir::{AttrValue, Builder, DType, Module, TensorData, Type};
#[cfg(feature = "run")]
use ampc::passes::step::Update;
#[cfg(feature = "run")]
use ampc::runtime::{HostTensor, Runtime};
use ampc::{Model, RewriteOptions};

/// A node as the framework knows it.
#[derive(Debug)]
struct Step {
    path: String,
    op: String,
    /// The element type of its first result.
    computes_in: Option<DType>,
    /// Why: rule and evidence of its first type variable.
    rule: String,
    /// True if it is a cast that ampc put there.
    inserted: bool,
}

/// A layer with a normalization: what may be low, and what must not.
fn build() -> Result<Module, Box<dyn std::error::Error>> {
    let mut b = Builder::new("block", 21);
    let x = b.input("x", DType::F32, ["N", "64"]);
    // A weight can be bytes of the framework's own; they are neither copied nor read until they are written.
    let weight: Vec<f32> = (0..64u8).flat_map(|i| (0..64u8).map(move |j| number(i, j) / 8.0)).collect();
    let w = b.constant("w", TensorData::from_f32(&[64, 64], &weight)?);
    let scale = b.constant("scale", TensorData::from_f32(&[64], &[1.0; 64])?);
    let h = b.op("MatMul", &[x, w])?;
    let a = b.op("Relu", &[h])?;
    // `op` is for one result and no attributes, `node` for the rest: absent operands, attributes, several results.
    let norm = b.node(
        "",
        "LayerNormalization",
        &[Some(a), Some(scale), None],
        &[("axis", AttrValue::Int(-1)), ("epsilon", AttrValue::Float(1e-5))],
        1,
    )?;
    let y = b.results(norm)[0];
    b.output("y", y)?;
    Ok(b.finish()?)
}

/// Numbers between −1 and 1, as if they were random.
fn number(i: u8, j: u8) -> f32 {
    (f32::from(i) * 12.9898 + f32::from(j) * 78.233).sin()
}

/// Rewrites a module and lists what is to be run, in order.
fn plan(module: Module) -> Result<Vec<Step>, ampc::Error> {
    let options = RewriteOptions { to: DType::BF16, ..RewriteOptions::default() };
    let rewritten = ampc::rewrite(Model::from(module), &options)?;
    let module = &rewritten.model.module;
    let paths = ampc::passes::Paths::of(module);
    let step = |node| {
        let data = module.node(node);
        let result = data.result(0).map(|value| &module.value(value).ty);
        Step {
            path: paths.path(node).to_owned(),
            op: module.op_name(node).1.to_owned(),
            computes_in: match result {
                Some(Type::Tensor(tensor)) => Some(tensor.dtype),
                _ => None,
            },
            rule: data.decisions.first().map(|d| d.reason.rule().to_string()).unwrap_or_default(),
            inserted: data.provenance == Provenance::Inserted,
        }
    };
    Ok(module.nodes(module.main()).map(step).collect())
}

/// Has a training step made of a module and takes it a few times, each time on all samples.
#[cfg(feature = "run")]
fn train(module: Module, steps: u64) -> Result<Vec<StepResult>, Box<dyn std::error::Error>> {
    let options = ampc::train::TrainOptions {
        loss: "mse".parse()?,
        update: Update {
            optimizer: "adamw:weight_decay=0".parse()?,
            // So large that the first step overflows, and is taken again with less.
            scaler: "torch:init=1e9,backoff=0.001".parse()?,
            ..Update::default()
        },
        ..ampc::train::TrainOptions::default()
    };
    let step = ampc::train::train_step(Model::from(module), &options)?;
    let trainer = Trainer::new(step.model, &step.state, &Runtime::default())?;
    let samples = (0..8).flat_map(|i| (0..64).map(move |j| number(j, i))).collect::<Vec<f32>>();
    let wanted = samples.iter().map(|x| x.abs()).collect::<Vec<f32>>();
    let tensors = vec![
        ("x".to_owned(), HostTensor::from_slice(&[8, 64], &samples)?),
        ("target".to_owned(), HostTensor::from_slice(&[8, 64], &wanted)?),
    ];
    let data = Dataset::of_tensors(tensors, &trainer)?;
    let options =
        TrainingOptions { steps, schedule: "0.02".parse()?, shuffles: false, ..TrainingOptions::default() };
    let mut training = Training::new(trainer, data, options)?;
    let mut taken = Vec::new();
    while let Some(step) = training.step()? {
        taken.push(step.result);
    }
    Ok(taken)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for step in plan(build()?)? {
        let dtype = step.computes_in.map(|d| d.to_string()).unwrap_or_default();
        let what = if step.inserted { "inserted" } else { &step.rule };
        println!("{:<20} {:<20} {dtype:<5} {what}", step.path, step.op);
    }
    #[cfg(feature = "run")]
    for (i, StepResult { loss, skipped, loss_scale, .. }) in train(build()?, 10)?.into_iter().enumerate() {
        let (loss, scale) = (loss.unwrap_or(f64::NAN), loss_scale.unwrap_or(1.0));
        println!("step {i}: loss {loss:.4}, skipped: {skipped}, scale {scale}");
    }
    Ok(())
}

#[cfg(feature = "run")]
#[test]
fn a_step_that_overflows_is_taken_again_and_the_loss_falls() {
    let steps = train(build().unwrap(), 10).unwrap();
    assert!(steps[0].skipped, "{steps:?}");
    assert_eq!(steps[0].loss, steps[1].loss, "weights stay as they are: {steps:?}");
    let skipped = steps.iter().take_while(|step| step.skipped).count();
    assert!(steps[skipped..].iter().all(|step| !step.skipped), "{steps:?}");
    assert!(steps[9].loss < steps[skipped].loss, "{steps:?}");
}

#[test]
fn decisions_and_casts_are_in_the_module() {
    let steps = plan(build().unwrap()).unwrap();
    let found: Vec<(&str, Option<DType>, bool)> =
        steps.iter().map(|s| (s.op.as_str(), s.computes_in, s.inserted)).collect();
    let (low, full) = (Some(DType::BF16), Some(DType::F32));
    assert_eq!(found[..3], [("Cast", low, true), ("MatMul", low, false), ("Relu", low, false)]);
    assert!(found[3..].contains(&("LayerNormalization", full, false)), "{steps:?}");
    assert_eq!(steps[1].rule, "table");
}
