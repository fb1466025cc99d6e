//! Losses, optimizers and gradients of a user.

use super::{LINEAR, Training, module, number, options, step_of, tensor};
use ampc::ir::op::OpKind;
use ampc::ir::text::{NoData, parse};
use ampc::ir::{DType, Inserter, Module};
use ampc::passes::autodiff::RuleError;
use ampc::passes::build::Build;
use ampc::passes::policy::Policy;
use ampc::passes::step::custom::UpdateNodes;
use ampc::passes::step::{CustomLoss, CustomOptimizer, Update};
use ampc::runtime::HostTensor;
use ampc::train::train_step;
use ampc::{ErrorKind, RewriteOptions};

const X: [f32; 12] = [0.5, -1.0, 2.0, 1.5, 0.25, -0.75, -2.0, 1.0, 0.125, 0.75, -0.5, 1.0];
const TARGET: [f32; 8] = [1.0, -1.0, 0.5, 2.0, -3.0, 0.25, 4.0, -0.5];

fn data(rate: f32) -> [(&'static str, HostTensor); 3] {
    [("x", tensor(&[4, 3], &X)), ("target", tensor(&[4, 2], &TARGET)), ("lr", tensor(&[], &[rate]))]
}

fn f64s(tensor: &HostTensor) -> Vec<f64> {
    tensor.f64s().unwrap().collect()
}

const BETA: f64 = 0.9;

/// RMSprop with a decay, and a bias correction by a state that is a number: βᵗ.
fn rms_prop() -> CustomOptimizer {
    CustomOptimizer::new("rms-prop", |b: &mut UpdateNodes<'_>| {
        let (w, g, lr, decay) = (b.weight(), b.gradient(), b.rate(), b.decay());
        let (v, power) = (b.state("v")?, b.number_state("power", 1.0)?);
        let power_next = b.scaled(power, BETA)?;
        b.next(power, power_next)?;
        let square = b.times(g, g)?;
        let (kept, new) = (b.scaled(v, BETA)?, b.scaled(square, 1.0 - BETA)?);
        let v_next = b.plus(kept, new)?;
        b.next(v, v_next)?;
        let correction = b.number_minus(1.0, power_next)?;
        let mean = b.over(v_next, correction)?;
        let root = b.unary(OpKind::Sqrt, mean)?;
        let size = b.plus_number(root, 1e-3)?;
        let direction = b.over(g, size)?;
        let shrink = b.scaled(w, decay)?;
        let direction = b.plus(direction, shrink)?;
        let change = b.times(lr, direction)?;
        b.minus(w, change)
    })
}

/// A weight of RMSprop after a step, in f64.
fn rms_prop_in_f64(w: &mut [f64], v: &mut [f64], power: &mut f64, g: &[f64], (lr, decay): (f64, f64)) {
    *power *= BETA;
    for ((w, v), g) in w.iter_mut().zip(v).zip(g) {
        *v = BETA * *v + (1.0 - BETA) * g * g;
        *w -= lr * (g / ((*v / (1.0 - *power)).sqrt() + 1e-3) + decay * *w);
    }
}

/// The gradients of the mean of squares of [`LINEAR`], of w and b.
fn gradients(w: &[f64], b: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let (mut dw, mut db) = (vec![0.0; 6], vec![0.0; 2]);
    for (row, x) in X.chunks(3).enumerate() {
        for j in 0..2 {
            let y: f64 = b[j] + x.iter().enumerate().map(|(k, &x)| f64::from(x) * w[2 * k + j]).sum::<f64>();
            let dy = 2.0 * (y - f64::from(TARGET[2 * row + j])) / 8.0;
            db[j] += dy;
            x.iter().enumerate().for_each(|(k, &x)| dw[2 * k + j] += f64::from(x) * dy);
        }
    }
    (dw, db)
}

#[test]
fn an_optimizer_of_the_user_does_what_it_says() {
    let mut options = options("mse", "sgd", "static:1024", false);
    options.update.optimizer = rms_prop().into();
    options.update.decay = vec![("w".into(), 0.5)];
    let mut training = Training::of(step_of(LINEAR, &options));
    let names: Vec<&str> = training.state.keys().map(String::as_str).collect();
    assert_eq!(names, ["b", "power.b", "power.w", "step", "v.b", "v.w", "w"]);
    let (mut w, mut b) = (f64s(&training.state["w"]), f64s(&training.state["b"]));
    let (mut vw, mut vb, mut pw, mut pb) = (vec![0.0; 6], vec![0.0; 2], 1.0, 1.0);
    for step in 1..=5 {
        let (dw, db) = gradients(&w, &b);
        rms_prop_in_f64(&mut w, &mut vw, &mut pw, &dw, (0.125, 0.5));
        rms_prop_in_f64(&mut b, &mut vb, &mut pb, &db, (0.125, 0.0));
        training.step(&data(0.125));
        assert_eq!(number(&training.state["step"]), f64::from(step));
        // Some thirty roundings of f32 a step, of numbers of at most 10.
        for (name, want) in [("w", &w), ("b", &b), ("v.w", &vw), ("v.b", &vb), ("power.w", &vec![pw])] {
            for (found, want) in f64s(&training.state[name]).into_iter().zip(want) {
                assert!((found - want).abs() < 3e-5, "step {step}, {name}: {found} instead of {want}");
            }
        }
    }
}

#[test]
fn a_step_that_overflows_leaves_an_optimizer_of_the_user_alone() {
    let mut options = options("mse", "sgd", "torch:init=1024", true);
    options.update.optimizer = rms_prop().into();
    let mut training = Training::of(step_of(LINEAR, &options));
    training.step(&data(0.125));
    let before = training.state.clone();
    let mut with_infinity = data(0.125);
    let mut x = X;
    x[5] = f32::INFINITY;
    with_infinity[0].1 = tensor(&[4, 3], &x);
    let found = training.step(&with_infinity);
    assert_eq!(number(&found["found_inf"]), 1.0);
    let untouched = |name: &str| !matches!(name, "loss_scale" | "good_steps");
    for (name, value) in training.state.iter().filter(|(name, _)| untouched(name)) {
        assert_eq!(value.bytes().unwrap(), before[name].bytes().unwrap(), "{name}");
    }
    training.step(&data(0.125));
    assert_ne!(training.state["w"].bytes().unwrap(), before["w"].bytes().unwrap());
    // The low copy is the weight, rounded.
    let low = &training.state["lo.w"];
    assert_eq!(low.dtype(), DType::F16);
    for (low, wide) in f64s(low).into_iter().zip(f64s(&training.state["w"])) {
        // Half an ulp of fp16.
        assert!((low - wide).abs() <= wide.abs() / 2048.0, "{low} instead of {wide}");
    }
}

/// A state has its promised name even if a value inside of the model is called so.
#[test]
fn states_of_an_optimizer_of_the_user_have_the_names_that_are_promised() {
    let text = LINEAR.replace("%h", "%v.w");
    assert_ne!(text, LINEAR);
    let mut options = options("mse", "sgd", "none", false);
    options.update.optimizer = rms_prop().into();
    let step = step_of(&text, &options);
    let names: Vec<&str> = step.state.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["w", "b", "step", "v.w", "power.w", "v.b", "power.b"]);
}

/// The optimizer as a graph, of any rank.
const MOMENTUM: &str = "opset ai.onnx=21\n\ngraph @heavy_ball {\n  input %w : f32[*]\n  input %g : f32[*]\n  \
                        input %lr : f32\n  input %step : i64\n  input %v : f32[*]\n  const %mu : f32 = 0.9\n  \
                        %kept = Mul(%v, %mu) : f32[*]\n  %v_next = Add(%kept, %g) : f32[*]\n  \
                        %change = Mul(%v_next, %lr) : f32[*]\n  %w_next = Sub(%w, %change) : f32[*]\n  \
                        output %w_next\n  output %v_next\n}\n";

#[test]
fn an_optimizer_is_a_graph() {
    let own = CustomOptimizer::of_function(parse(MOMENTUM, &NoData).unwrap()).unwrap();
    let sgd = options("mse", "sgd:momentum=0.9", "ampc:init=1024", true);
    let custom = ampc::train::TrainOptions {
        update: Update { optimizer: own.into(), ..sgd.update.clone() },
        ..sgd.clone()
    };
    let (mut sgd, mut own) = (Training::of(step_of(LINEAR, &sgd)), Training::of(step_of(LINEAR, &custom)));
    assert!(sgd.state.keys().eq(own.state.keys()), "{:?}", own.state.keys());
    for _ in 0..3 {
        sgd.step(&data(0.125));
        own.step(&data(0.125));
        for name in ["w", "b", "v.w", "v.b"] {
            for (found, want) in f64s(&own.state[name]).into_iter().zip(f64s(&sgd.state[name])) {
                // Their low copies may be an ulp of fp16 apart where theirs of f32 are.
                assert!((found - want).abs() < 2e-3, "{name}: {found} instead of {want}");
            }
        }
    }
}

#[test]
fn a_graph_that_is_no_optimizer_is_an_error() {
    let of =
        |text: &str| CustomOptimizer::of_function(parse(text, &NoData).unwrap()).unwrap_err().to_string();
    let missing = of(&MOMENTUM.replace("  output %v_next\n", ""));
    assert!(missing.contains("`heavy_ball` has 5 inputs and 1 outputs"), "{missing}");
    let unknown = MOMENTUM.replace("ai.onnx=21", "ai.onnx=21, com.example=1");
    let unknown = of(&unknown.replace("= Mul(%v_next", "= com.example::Mul(%v_next"));
    assert!(unknown.contains("`change` is of an unknown operator"), "{unknown}");
    let old = MOMENTUM.replace("ai.onnx=21", "ai.onnx=6");
    let old = CustomOptimizer::of_function(parse(&old, &NoData).unwrap()).unwrap();
    let mut options = options("mse", "sgd", "none", false);
    options.update.optimizer = old.into();
    let error = train_step(module(LINEAR), &options).unwrap_err().to_string();
    assert!(error.contains("its Mul is that of opset 6, and the model's that of opset 14"), "{error}");
}

/// A state whose name the model has is renamed, and a warning says so.
#[test]
fn states_with_other_names_are_told() {
    let mut options = options("mse", "sgd", "none", false);
    options.update.optimizer = CustomOptimizer::new("mine", |b: &mut UpdateNodes<'_>| {
        let (m, w, g) = (b.state("m")?, b.weight(), b.gradient());
        b.next(m, g)?;
        b.minus(w, m)
    })
    .into();
    let text = LINEAR.replace("output %y", "%m.w = Relu(%x) : f32[4, 3]\n  output %y\n  output %m.w");
    let step = step_of(&text, &options);
    let warnings: Vec<_> = step.warnings.iter().filter(|warning| warning.code == "step.name").collect();
    assert!(warnings.len() == 1 && warnings[0].message.contains("`m.w` is named `m.w.2`"), "{warnings:?}");
}

fn error_of(
    build: impl Fn(&mut UpdateNodes<'_>) -> Result<ampc::ir::Value, RuleError> + Send + Sync + 'static,
) -> String {
    let mut options = options("mse", "sgd", "none", false);
    options.update.optimizer = CustomOptimizer::new("mine", build).into();
    let error = train_step(module(LINEAR), &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    error.to_string()
}

#[test]
fn what_an_optimizer_forgets_is_told() {
    for (error, part) in [
        (error_of(|b| b.state("m").and_then(|_| b.state("m"))), "state `m` is asked for twice"),
        (error_of(|b| b.state("m").map(|_| b.weight())), "state `m` gets no next value"),
        (
            error_of(|b| {
                let m = b.state("m")?;
                b.next(m, m)?;
                b.next(m, m)?;
                Ok(m)
            }),
            "`m` gets a next value twice",
        ),
        (
            error_of(|b| {
                let g = b.gradient();
                b.next(g, g)?;
                Ok(g)
            }),
            "is not a state of `w`",
        ),
        (
            error_of(|b| {
                let m = b.state("m")?;
                let n = b.rate();
                b.next(m, n)?;
                Ok(m)
            }),
            "the next value of `m.w` is f32[]: expected f32[3, 2]",
        ),
        (
            error_of(|b| b.cast(b.weight(), DType::F16)),
            "the next value of `w` is f16[3, 2]: expected f32[3, 2]",
        ),
        (error_of(|b| b.plus(b.weight(), b.step())), "Add"),
    ] {
        assert!(error.contains("the optimizer mine, for parameter `w`: ") && error.contains(part), "{error}");
    }
}

/// A value that nothing changes is a state as well.
#[test]
fn a_next_value_may_be_anything() {
    let mut options = options("mse", "sgd", "none", false);
    options.update.optimizer = CustomOptimizer::new("still", |b| {
        let (m, n) = (b.state("m")?, b.state("n")?);
        b.next(m, b.gradient())?;
        b.next(n, b.gradient())?;
        Ok(b.weight())
    })
    .into();
    let mut training = Training::of(step_of(LINEAR, &options));
    let before = training.state.clone();
    training.step(&data(0.1));
    assert_eq!(training.state["w"].bytes().unwrap(), before["w"].bytes().unwrap());
    assert_eq!(training.state["m.w"].bytes().unwrap(), training.state["n.w"].bytes().unwrap());
    assert_ne!(training.state["m.w"].bytes().unwrap(), before["m.w"].bytes().unwrap());
}

/// The mean of d²/2 where abs(d) < 1, and of abs(d) − 1/2 elsewhere (Huber).
fn huber() -> CustomLoss {
    CustomLoss::new("huber", |b| {
        let p = b.prediction()?;
        let t = b.target(p)?;
        let d = b.minus(p, t)?;
        let size = b.unary(OpKind::Abs, d)?;
        let square = b.times(d, d)?;
        let (near, far) = (b.scaled(square, 0.5)?, b.plus_number(size, -0.5)?);
        let is_near = b.less(size, 1.0)?;
        let each = b.select(is_near, near, far)?;
        b.mean(each)
    })
}

#[test]
fn the_gradient_of_a_loss_of_the_user_is_that_of_its_formula() {
    let mut options = options("mse", "none", "none", false);
    options.loss = huber().into();
    let mut training = Training::of(step_of(LINEAR, &options));
    let at = |training: &mut Training, name: &str, values: &[f64]| {
        #[expect(clippy::cast_possible_truncation, reason = "weights are f32")]
        let values: Vec<f32> = values.iter().map(|&value| value as f32).collect();
        let dims = training.state[name].dims().to_vec();
        training.state.insert(name.into(), tensor(&dims, &values));
        training.step(&data(0.0))
    };
    for name in ["w", "b"] {
        let values = f64s(&training.state[name]);
        let found = at(&mut training, name, &values);
        let gradient = f64s(&found[&format!("{name}.grad")]);
        for i in 0..values.len() {
            // Halves of squares and lines have exact differences, but for some ulps of losses of 1 to 2, over 2^-5.
            let loss = |training: &mut Training, by: f64| {
                let mut moved = values.clone();
                moved[i] += by;
                number(&at(training, name, &moved)["loss"])
            };
            let step = 1.0 / 64.0;
            let difference = (loss(&mut training, step) - loss(&mut training, -step)) / (2.0 * step);
            assert!((gradient[i] - difference).abs() < 3e-5, "{name}[{i}]: {} and {difference}", gradient[i]);
        }
        at(&mut training, name, &values);
    }
}

#[test]
fn a_loss_of_the_user_stays_in_fp32() {
    let mut options = options("mse", "sgd", "ampc", true);
    options.loss = huber().into();
    let step = step_of(LINEAR, &options);
    let module = &step.model.module;
    let is_loss = |&node: &ampc::ir::Node| {
        let metadata = &module.node(node).metadata;
        let named = |&(key, value): &_| (module.text(key), module.text(value)) == ("ampc.role", "loss");
        metadata.iter().any(named)
    };
    let nodes: Vec<_> = module.nodes(module.main()).filter(is_loss).collect();
    assert_eq!(nodes.len(), 8, "all nodes of the formula, and no cast of what is fp32");
    for node in nodes {
        let dtype = module.node(node).result(0).and_then(|value| module.value(value).ty.dtype());
        assert!(matches!(dtype, Some(DType::F32 | DType::Bool)), "{dtype:?}");
    }
}

#[test]
fn what_is_no_loss_is_told() {
    let error =
        |build: fn(&mut ampc::passes::step::custom::LossNodes<'_>) -> Result<ampc::ir::Value, RuleError>| {
            let mut options = options("mse", "sgd", "none", false);
            options.loss = CustomLoss::new("mine", build).into();
            train_step(module(LINEAR), &options).unwrap_err().to_string()
        };
    let scalar = error(|b| {
        let p = b.prediction()?;
        b.times(p, p)
    });
    assert!(scalar.contains("the loss `loss` is f32[4, 2]: expected a float with one element"), "{scalar}");
    let output = error(|b| b.output("nothing"));
    assert!(output.contains("the loss mine: no output of the model is called `nothing`"), "{output}");
    let target = error(|b| {
        let p = b.prediction()?;
        let n = b.mean(p)?;
        b.input("x", &b.ty(n).clone())
    });
    assert!(target.contains("the input `x`: expected f32[], found f32[4, 3]"), "{target}");
}

/// A loss that the model has, returned as it is, stays the model's output.
#[test]
fn a_loss_may_be_an_output() {
    let text = LINEAR.replace("  output %y\n", "  %m = ReduceMean(%y) {keepdims=0} : f32\n  output %m\n");
    let mut options = options("mse", "sgd", "none", false);
    options.loss = CustomLoss::new("mine", |b| b.output("m")).into();
    let mut training = Training::of(step_of(&text, &options));
    let found = training.step(&data(0.1));
    assert_eq!(number(&found["loss"]), number(&found["m"]));
}

const CUBE: &str = "module ir=10\nopset ai.onnx=21, com.example=1\n\ngraph @main {\n  input %x : f32[4, 3]\n  \
                    const %w : f32[3, 2] = random(1)\n  %h = MatMul(%x, %w) : f32[4, 2] @product\n  \
                    %y = com.example::Cube(%h) : TYPE\n  %loss = ReduceMean(%y) {keepdims=0} : f32\n  output %loss\n}\n";

const SIGNATURE: &str = r#"{"schema": "ampc-policy/1", "base": "all", "signatures": {"com.example::Cube": {
    "inputs": [{"name": "x", "type": "T"}], "outputs": [{"name": "y", "type": "T", "shape": "x"}],
    "types": {"T": ["f32", "f16"]}, "class": "allow"}}}"#;

/// The result of a runtime with a kernel of the operator: x · x · x.
fn with_kernel(module: &mut Module) {
    let cubes = module.nodes(module.main()).filter(|&node| module.op_name(node).1 == "Cube");
    for node in cubes.collect::<Vec<_>>() {
        let (x, y) = (module.node(node).operand(0).unwrap(), module.node(node).result(0).unwrap());
        let mut inserter = Inserter::before(module, node);
        let square = inserter.op(OpKind::Mul, &[x, x], &[]).unwrap();
        let cube = inserter.op(OpKind::Mul, &[square, x], &[]).unwrap();
        module.replace_value(y, cube);
        module.erase_node(node);
    }
}

/// An operator that only the user knows: its type is given, or a signature says it and lowers it.
#[test]
fn an_operator_of_the_user_has_the_gradient_of_the_user() {
    for (ty, low, tolerance) in [("f32[4, 2]", false, 1e-5), ("?", true, 4e-3)] {
        let mut options = options("output:loss", "none", "none", low);
        if low {
            options.precision = Some(RewriteOptions::of(Policy::from_json(SIGNATURE).unwrap()));
        }
        options.gradients.insert("com.example", "Cube", |b| {
            let (x, dy) = (b.x(0)?, b.dy0()?);
            let (x, dy) = (b.wide(x)?, b.wide(dy)?);
            let square = b.times(x, x)?;
            let slope = b.scaled(square, 3.0)?;
            let dx = b.times(dy, slope)?;
            b.add(0, dx)
        });
        let text = CUBE.replace("TYPE", ty);
        let mut step = step_of(&text, &options);
        with_kernel(&mut step.model.module);
        let mut training = Training::of(step);
        let found = training.step(&[("x", tensor(&[4, 3], &X))]);
        let w = f64s(&training.state["w"]);
        let mut want = vec![0.0; 6];
        for x in X.chunks(3) {
            for j in 0..2 {
                let h: f64 = x.iter().enumerate().map(|(k, &x)| f64::from(x) * w[2 * k + j]).sum();
                x.iter().enumerate().for_each(|(k, &x)| want[2 * k + j] += f64::from(x) * 3.0 * h * h / 8.0);
            }
        }
        let largest = want.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
        for (found, want) in f64s(&found["w.grad"]).into_iter().zip(want) {
            // Roundings of f32, or of fp16: h, the gradient of h and that of w.
            assert!((found - want).abs() < tolerance * largest, "low {low}: {found} instead of {want}");
        }
    }
    let error =
        train_step(module(&CUBE.replace("TYPE", "f32[4, 2]")), &options("output:loss", "sgd", "none", false));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("has no gradient"), "{error}");
}
