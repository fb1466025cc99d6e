//! Every error of a pass, from a model and options that lead to it.

use crate::analysis::cost::Objective;
use crate::pass::options::Spelled;
use crate::pass::training_error::{
    GradientError, InferenceError, LossError, ParameterError, RuleError, UpdateError,
};
use crate::pipeline::{Lowering, Opset, Pipeline, RunError};
use crate::policy::{KeepIo, Pin};
use crate::precision::guard::OutOfRange;
use crate::training::autodiff::{Autodiff, CustomGradients};
use crate::training::parameters::{ExposeParameters, Parameters};
use crate::training::recompute::Recompute;
use crate::training::step::{CustomLoss, CustomOptimizer, Loss, Update};
use crate::{Changed, Pass, PassCx, PassError, Policy};
use ampc_ir::DType;
use ampc_ir::Module;
use ampc_ir::text::{NoData, ParseOptions, parse_with};
use std::sync::Arc;

/// The number of a kind. A new one needs a number here, and then a case.
fn kind(error: &PassError) -> usize {
    match error {
        PassError::OutOfRange { .. } => 0,
        PassError::Constant { .. } => 1,
        PassError::PinMatchesNothing { .. } => 2,
        PassError::PinsContradict { .. } => 3,
        PassError::Expansion { .. } => 4,
        PassError::OpsetDown { .. } => 5,
        PassError::OpsetUnknown { .. } => 6,
        PassError::Signatures { .. } => 7,
        PassError::NoForm { .. } => 8,
        PassError::TextCasts { .. } => 9,
        PassError::Placed { .. } | PassError::Misplaced { .. } => 10,
        PassError::Parameters(ParameterError::NoSuchLoss { .. }) => 11,
        PassError::Parameters(ParameterError::MatchesNothing { .. }) => 12,
        PassError::Parameters(ParameterError::None { .. }) => 13,
        PassError::Parameters(ParameterError::Pattern(_)) => 14,
        PassError::Gradient(GradientError::Role { .. }) => 15,
        PassError::Gradient(GradientError::NotScalar { .. }) => 16,
        PassError::Gradient(GradientError::NoRule { .. }) => 17,
        PassError::Gradient(GradientError::Node { .. }) => 18,
        PassError::Gradient(GradientError::Unreached { .. }) => 19,
        PassError::Loss(LossError::Prediction { .. }) => 20,
        PassError::Loss(LossError::Target { .. }) => 21,
        PassError::Loss(LossError::Build(_)) => 22,
        PassError::Update(UpdateError::NoGradients) => 23,
        PassError::Update(UpdateError::Insert(_)) => 24,
        PassError::Update(UpdateError::Unsized { .. }) => 25,
        PassError::Update(UpdateError::Wide { .. }) => 26,
        PassError::Parameters(ParameterError::Insert(_)) => 27,
        PassError::Inference(InferenceError::NoStep) => 28,
        PassError::Inference(InferenceError::Metadata { .. }) => 29,
        PassError::Inference(InferenceError::NoValue { .. }) => 30,
        PassError::Loss(LossError::Custom { .. }) => 31,
        PassError::Update(UpdateError::Custom { .. }) => 32,
        PassError::Gradient(GradientError::NoneReached { .. }) => 33,
        PassError::Loss(LossError::Unnamed { .. }) => 34,
        PassError::Update(UpdateError::IsStep) => 35,
        PassError::Update(UpdateError::NoInput { .. }) => 36,
        PassError::Inference(InferenceError::NoLoss) => 37,
        PassError::Update(UpdateError::NoOptimizer { .. }) => 38,
        PassError::Input(_) => 43,
        PassError::Dim(_) => 39,
        PassError::Parameters(ParameterError::Folded { .. }) => 40,
        PassError::Gradient(GradientError::Internal { .. }) => 41,
        PassError::Parameters(ParameterError::Statistics { .. }) => 42,
    }
}

const KINDS: usize = 44;

fn text(opset: u16, lines: &str) -> String {
    format!("module ir=10\nopset ai.onnx={opset}\n\ngraph @main {{\n{lines}}}\n")
}

fn module(opset: u16, lines: &str) -> Module {
    read(&text(opset, lines))
}

fn read(text: &str) -> Module {
    let options = ParseOptions { allow_missing_data: true, ..ParseOptions::default() };
    parse_with(text, &NoData, &options).unwrap_or_else(|errors| panic!("{errors}\n{text}"))
}

const PRODUCT: &str =
    "  input %x : f32[4, 4]\n  %y = MatMul(%x, %x) : f32[4, 4] @fc\n  output %y : f32[4, 4]\n";

/// The product of the input and this constant.
fn product_with(constant: &str) -> Module {
    module(
        21,
        &format!(
            "  input %x : f32[4, 4]\n  const %w : f32[4, 4] = {constant}\n  \
             %y = MatMul(%x, %w) : f32[4, 4] @fc\n  output %y : f32[4, 4]\n"
        ),
    )
}

/// Functions of which each calls the one before twice.
fn doubling(n: usize) -> Module {
    let mut text = format!(
        "module ir=10\nopset ai.onnx=21, local=1\n\ngraph @main {{\n  input %x : f32[4]\n  \
         %y = local::F{n}(%x) : f32[4]\n  output %y : f32[4]\n}}\n"
    );
    for i in 0..=n {
        let body = match i {
            0 => "  %r = Relu(%v) : f32[4]\n".to_owned(),
            _ => format!("  %q = local::F{0}(%v) : f32[4]\n  %r = local::F{0}(%q) : f32[4]\n", i - 1),
        };
        text += &format!(
            "\nfunction local::F{i} {{\n  opset ai.onnx=21, local=1\n  input %v : f32[4]\n{body}  output %r\n}}\n"
        );
    }
    read(&text)
}

fn lowering(policy: Policy) -> Lowering {
    Lowering {
        to: DType::F16,
        policy: Arc::new(policy),
        out_of_range: OutOfRange::Keep,
        ranges: Default::default(),
        observed: Default::default(),
        trusted: Default::default(),
        keep_io: KeepIo::All,
        opset: Opset::Keep,
        raise: Default::default(),
        saturate_masks: false,
        objective: Objective::default(),
        target: Arc::default(),
        excess_precision: false,
        alternative: None,
        gain: Default::default(),
    }
}

fn safe() -> Policy {
    Policy::preset("safe").expect("a preset")
}

fn pinned(pins: &[(&str, DType)]) -> Lowering {
    let mut policy = safe();
    for (name, to) in pins {
        policy.pin(name, Pin::To(*to)).expect("a name");
    }
    lowering(policy)
}

/// Contradicts the decision about a product, and claims that nothing changed.
#[derive(Debug)]
struct Meddler;

impl Pass for Meddler {
    fn name(&self) -> &'static str {
        "meddler"
    }
    fn run(&self, module: &mut Module, _: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let node = module.nodes(module.main()).next().expect("a product");
        module.node_mut(node).decisions[0].precision = Some(DType::F32);
        Ok(Changed::No)
    }
}

fn meddled() -> Pipeline {
    let mut passes = lowering_passes();
    let at = passes.iter().position(|pass| pass.name() == "insert-casts").expect("it inserts casts");
    passes.insert(at, Box::new(Meddler));
    Pipeline::new(passes).expect("an order")
}

fn lowering_passes() -> Vec<Box<dyn Pass>> {
    Pipeline::lowering(&lowering(safe())).into_passes()
}

fn parsed(text: &str) -> Pipeline {
    Pipeline::parse(text, &Policy::preset).expect("a pipeline")
}

fn contradicting() -> Pipeline {
    let text = r#"{"signatures": {"acme::Op": {"inputs": [{"name": "x", "type": "i64"}], "outputs": [{"name": "y", "type": "i64"}], "class": "fixed"}}}"#;
    let policy = Policy::from_json(text).expect("a policy");
    Pipeline::lowering(&lowering(policy))
}

/// A loss of a weight, by these nodes: `%w` is f32[4, 4], `%loss` a number.
fn trained(nodes: &str) -> Module {
    module(
        21,
        &format!(
            "  input %x : f32[N, 4]\n  const %w : f32[4, 4] = random(1)\n{nodes}  output %loss\n  \
             role parameter(%w)\n  role loss(%loss)\n"
        ),
    )
}

/// The product of the input and a weight, with this input of targets.
fn with_target(target: &str) -> Module {
    module(
        21,
        &format!(
            "  input %x : f32[4, 4]\n  input %target : {target}\n  const %w : f32[4, 4] = random(1)\n  \
             %y = MatMul(%x, %w) : f32[4, 4] @fc\n  output %y : f32[4, 4]\n"
        ),
    )
}

/// A normalization in training mode, the mean and variance of which are constants.
fn norm() -> Module {
    module(
        21,
        "  input %x : f32[2, 3]\n  const %s : f32[3] = [1, 2, 3]\n  const %b : f32[3] = [1, 1, 1]\n  \
         const %mean : f32[3] = [0, 0, 0]\n  const %var : f32[3] = [1, 1, 1]\n  \
         %y, _, _ = BatchNormalization(%x, %s, %b, %mean, %var) {training_mode=1} : f32[2, 3], _, _\n  output %y : f32[2, 3]\n",
    )
}

/// The errors of `parameters`, `loss`, `autodiff` and `update`.
fn training_cases() -> Vec<(usize, Module, Pipeline)> {
    const SUM: &str = "  %loss = ReduceSum(%w) {keepdims=0} : f32\n";
    let product = || product_with("random(1)");
    let no_pattern = Parameters { train: vec!["re:[".into()], ..Parameters::default() };
    vec![
        (11, product(), parsed("parameters{loss=nothing}")),
        (12, product(), parsed("parameters{freeze=nothing}")),
        (13, module(21, PRODUCT), parsed("parameters")),
        (13, product(), parsed("parameters{freeze=w}")),
        (14, product(), Pipeline::new(vec![Box::new(no_pattern)]).expect("an order")),
        (15, product(), parsed("parameters, autodiff")),
        (15, product(), parsed("parameters, loss, loss, expose-parameters, scale-loss, autodiff")),
        (
            15,
            trained(&format!("  %more = ReduceSum(%x) {{keepdims=0}} : f32\n  role loss(%more)\n{SUM}")),
            parsed("autodiff"),
        ),
        (16, trained("  %loss = Exp(%w) : f32[4, 4]\n"), parsed("autodiff")),
        (
            16,
            trained("  %a = MatMul(%x, %w) : f32[N, 4]\n  %loss = Flatten(%a) {axis=0} : f32[1, ?]\n"),
            parsed("autodiff"),
        ),
        (17, trained("  %d = Det(%w) : f32\n  %loss = Exp(%d) : f32\n"), parsed("autodiff")),
        (
            18,
            trained("  %y = Exp(%w) : f32[4, 4]\n  %loss = ReduceSum(%y) {keepdims=0} : f32\n"),
            rule_that_returns(|| RuleError::Unsupported("there is no formula".into())),
        ),
        (
            19,
            module(
                21,
                "  const %w : f32[4] = random(1)\n  const %v : f32[4] = random(2)\n  %y = Floor(%v) : f32[4]\n  \
                 %z = Mul(%w, %y) : f32[4]\n  %loss = ReduceSum(%z) {keepdims=0} : f32\n  output %loss\n  \
                 role parameter(%w)\n  role parameter(%v)\n  role loss(%loss)\n",
            ),
            parsed("autodiff"),
        ),
        (
            20,
            module(21, "  input %x : i64[4]\n  %y = Neg(%x) : i64[4]\n  output %y\n"),
            parsed("loss{kind=mse}"),
        ),
        (
            20,
            module(21, "  input %x : f32[4]\n  %y = Neg(%x) : f32[4]\n  output %y\n"),
            parsed("loss{kind=cross-entropy}"),
        ),
        (21, with_target("f32[4]"), parsed("loss{kind=cross-entropy}")),
        (21, with_target("i64[4, 4]"), parsed("loss{kind=l1}")),
        (22, module(11, PRODUCT), parsed("loss{kind=cross-entropy}")),
        (23, product(), parsed("update")),
        (
            24,
            module(21, "  input %w : f32[4]\n  input %g : i64[4]\n  output %w\n  role grad(%w, %g)\n"),
            parsed("update"),
        ),
        (
            25,
            module(
                21,
                "  input %w : f32[N]\n  %y = ReduceSum(%w) {keepdims=0} : f32\n  output %y\n  role parameter(%w)\n  role loss(%y)\n",
            ),
            parsed("autodiff, update"),
        ),
        (26, of_doubles(), parsed("parameters{loss=y}, expose-parameters, autodiff, update{optimizer=adam}")),
        (
            27,
            module(
                5,
                "  input %x : f16[4]\n  const %w : f16[4] = random(1)\n  %y = Mul(%x, %w) : f16[4]\n  output %y\n  \
                 role parameter(%w)\n",
            ),
            parsed("expose-parameters"),
        ),
        (28, module(21, PRODUCT), parsed("inference")),
        (
            29,
            read(&text(21, PRODUCT).replace("\nopset", "\nmeta ampc.state = \"[]\"\nopset")),
            parsed("inference"),
        ),
        (
            29,
            read(&text(21, PRODUCT).replace("\nopset", "\nmeta ampc.state = \"?\"\nopset")),
            parsed("inference"),
        ),
        (30, read(&step_without_values()), parsed("inference")),
        (31, product(), Pipeline::new(vec![Box::new(nothing_to_lose())]).expect("an order")),
        (32, trained("  %loss = ReduceSum(%w) {keepdims=0} : f32\n"), forgetful()),
        (33, trained("  %loss = ReduceSum(%x) {keepdims=0} : f32\n"), parsed("autodiff")),
        (
            33,
            trained("  %f = Floor(%w) : f32[4, 4]\n  %loss = ReduceSum(%f) {keepdims=0} : f32\n"),
            parsed("autodiff"),
        ),
        (34, product(), parsed("loss{target=\"\"}")),
        (35, product(), parsed("parameters, loss, expose-parameters, autodiff, update, update")),
        (36, product(), parsed("parameters, loss, autodiff, update")),
        (37, read(&step_without_values().replace(r#",\"loss\":\"l\""#, "")), parsed("inference{of=loss}")),
        (
            38,
            product(),
            parsed("parameters, loss, expose-parameters, autodiff, update{optimizer=none, clip_norm=1}"),
        ),
        (39, trained("  %loss = ReduceSum(%w) {keepdims=0} : f32\n"), of_another_dim()),
        (40, folded(), parsed("parameters")),
        (
            41,
            trained("  %y = Exp(%w) : f32[4, 4]\n  %loss = ReduceSum(%y) {keepdims=0} : f32\n"),
            rule_that_returns(|| RuleError::Internal("it contradicts itself".into())),
        ),
        (42, norm(), parsed("parameters{freeze=mean}")),
    ]
}

/// A step whose weight has no value.
fn step_without_values() -> String {
    let states = r#"[{\"in\":\"w\",\"out\":\"n\",\"kind\":\"weight\"}]"#;
    let forward = r#"{\"inputs\":[],\"outputs\":[\"y\"],\"loss\":\"l\"}"#;
    let lines = "  input %w : f32[4]\n  %y = Neg(%w) : f32[4]\n  %l = ReduceSum(%y) {keepdims=0} : f32\n  \
                 %n = Abs(%w) : f32[4]\n  output %y\n  output %l\n  output %n\n";
    text(21, lines).replace(
        "\nopset",
        &format!("\nmeta ampc.state = \"{states}\"\nmeta ampc.forward = \"{forward}\"\nopset"),
    )
}

/// A loss of an output that is not there.
fn nothing_to_lose() -> Loss {
    let spec = CustomLoss::new("mine", |b| b.output("nothing")).into();
    Loss { spec, target: "target".into(), keeps_fp32: true }
}

/// An optimizer with a state that gets no next value.
fn forgetful() -> Pipeline {
    let optimizer = CustomOptimizer::new("mine", |b| b.state("m")).into();
    let update = Update { optimizer, ..Update::blank() };
    let passes: Vec<Box<dyn Pass>> =
        vec![Box::new(ExposeParameters), Box::new(Autodiff::default()), Box::new(update)];
    Pipeline::new(passes).expect("an order")
}

/// Recomputation with a number for a dim that there is not.
fn of_another_dim() -> Pipeline {
    let dims = [("nothing".to_owned(), 8)].into();
    let passes: Vec<Box<dyn Pass>> =
        vec![Box::new(Autodiff::default()), Box::new(Recompute { dims, ..Recompute::default() })];
    Pipeline::new(passes).expect("an order")
}

/// A model whose only parameter was folded into a constant.
fn folded() -> Module {
    module(
        21,
        "  meta pkg.torch.export.ExportedProgram.graph_signature = \"# inputs\\np_w: PARAMETER target='w'\"\n  \
         input %x : f32[4]\n  const %exp : f32[4] = random(1) meta {pkg.onnxscript.optimizer.folded_from=\"['w']\"}\n  \
         %y = Mul(%x, %exp) : f32[4]\n  output %y\n",
    )
}

/// A gradient of a user that is an error.
fn rule_that_returns(error: fn() -> RuleError) -> Pipeline {
    let mut custom = CustomGradients::default();
    custom.insert("", "Exp", move |_| Err(error()));
    Pipeline::new(vec![Box::new(Autodiff { custom, ..Autodiff::default() })]).expect("an order")
}

/// A weight of f64, which no optimizer takes.
fn of_doubles() -> Module {
    module(21, "  const %w : f64[4] = random(1)\n  %y = ReduceSum(%w) {keepdims=0} : f64\n  output %y\n")
}

fn cases() -> Vec<(usize, Module, Pipeline)> {
    let lowered = |lowering: Lowering| Pipeline::lowering(&lowering);
    let strict = Lowering { out_of_range: OutOfRange::Error, ..lowering(safe()) };
    let acme = "module ir=10\nopset ai.onnx=21, acme=1\n\ngraph @main {\n  input %x : i64[4]\n  \
                %y = acme::Op(%x) : ? @own\n  %z = Exp(%y) : f32[4]\n  output %z\n}\n";
    let of_casts = vec![
        (0, product_with(&format!("[{}]", ["1e9"; 16].join(", "))), lowered(strict)),
        (1, product_with("data(\"w\", 0x0123456789abcdef0123456789abcdef)"), lowered(lowering(safe()))),
        (2, module(21, PRODUCT), lowered(pinned(&[("nothing", DType::F32)]))),
        (3, module(21, PRODUCT), lowered(pinned(&[("fc", DType::F32), ("fc", DType::F16)]))),
        (4, doubling(30), lowered(lowering(safe()))),
        (5, module(21, PRODUCT), parsed("raise-opset{to=7}")),
        (6, module(21, PRODUCT), parsed("raise-opset{to=999}")),
        (7, read(acme), contradicting()),
        (
            8,
            module(
                8,
                "  input %x : f32[4]\n  %y = Softmax(%x) {axis=1} : f32[4] @last\n  output %y : f32[4]\n",
            ),
            parsed("raise-opset{to=21}"),
        ),
        (9, module(5, PRODUCT), lowered(lowering(safe()))),
        (10, module(21, PRODUCT), meddled()),
    ];
    let of_input = (43, module(21, PRODUCT), parsed("classify, guard{range=z=0:1}"));
    of_casts.into_iter().chain(training_cases()).chain([of_input]).collect()
}

#[test]
fn every_error_of_a_pass_is_met() {
    let cases = cases();
    for (expected, mut module, pipeline) in cases {
        match pipeline.run(&mut module, true, &mut ()) {
            Err(RunError::Pass { error, .. }) => assert_eq!(kind(&error), expected, "{error}"),
            other => panic!("case {expected}: {other:?}"),
        }
    }
}

#[test]
fn every_kind_has_a_case() {
    let mut cases: Vec<usize> = cases().iter().map(|(kind, _, _)| *kind).collect();
    cases.dedup();
    assert_eq!(cases, (0..KINDS).collect::<Vec<_>>());
}
