//! The report of a training step, schema `ampc-step-report/1`: parameters and states, and every node and cast
//! with its phase, role and precision.

use super::{ReportWarning, Tool};
use crate::error::Error;
use crate::options::train::TrainOptions;
use ampc_ir::module::Provenance;
use ampc_ir::op::OpKind;
use ampc_ir::verify::name_of;
use ampc_ir::views::NodeView;
use ampc_ir::{AttrValue, DType, Module, Node, Value};
use ampc_passes::cost::{BoundInputs, Extents, Sizes};
use ampc_passes::parameters::{origin_of, untrained};
use ampc_passes::step::{Phase, Purpose, phase_of, role_of};
use ampc_passes::step::{StateEntry, states_of};
use ampc_passes::{Paths, Warning, autodiff};
use rustc_hash::FxHashMap;
use serde::{Serialize, Serializer};
use serde_json::json;

/// Report of a training step.
#[derive(Clone, Debug, Serialize)]
pub struct StepReport {
    /// `ampc-step-report/1`.
    pub schema: &'static str,
    /// The program that wrote the report.
    pub tool: Tool,
    /// The options of the run.
    pub options: StepOptions,
    /// The parameters, in order.
    pub parameters: Vec<StepParameter>,
    /// Parameters of the exported program that are not trained as in PyTorch.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub untrained: Vec<StepUntrained>,
    /// The states that are kept from step to step, parameters included, in the order of the outputs.
    pub states: Vec<StepState>,
    /// Nodes and casts by phase: `fwd`, `bwd`, `opt`.
    pub phases: Vec<StepPhase>,
    /// Activations that are recomputed for gradients instead of kept.
    pub recomputed: StepRecomputed,
    /// Every cast, in order.
    pub casts: Vec<StepCast>,
    /// Every node of the main graph, in order.
    pub nodes: Vec<StepNode>,
    /// Things to know.
    pub warnings: Vec<ReportWarning>,
}

/// The options of a step, as the command line spells them.
#[derive(Clone, Debug, Serialize)]
pub struct StepOptions {
    /// The format that was lowered to; absent if all is fp32.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The policy; absent if all is fp32.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The ranges of inputs; absent if none are given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range: Option<String>,
    /// The loss.
    pub loss: String,
    /// The optimizer, the loss scaler and their settings, as the pass `update` spells them. Options without a
    /// value are absent.
    #[serde(flatten, serialize_with = "settings")]
    pub update: Vec<(&'static str, String)>,
    /// Names and globs of constants that are trained whatever they look like.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub train: Vec<String>,
    /// Names and globs of constants that are not trained.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub freeze: Vec<String>,
    /// Names and globs of values through which no gradient passes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stop_gradient: Vec<String>,
    /// The activations to recompute for gradients: `cheap` or `none`.
    pub recompute: &'static str,
}

/// Activations that are recomputed for gradients.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct StepRecomputed {
    /// The number of nodes.
    pub nodes: usize,
    /// The bytes that they make, as far as sizes are known.
    pub bytes: u64,
}

/// A named tensor.
#[derive(Clone, Debug, Serialize)]
pub struct StepTensor {
    /// Its name.
    pub name: String,
    /// Its type, as texts spell it: `f32[64, 10]`.
    #[serde(rename = "type")]
    pub ty: String,
    /// Its size.
    pub bytes: u64,
}

/// A parameter.
#[derive(Clone, Debug, Serialize)]
pub struct StepParameter {
    /// Its name, type and size.
    #[serde(flatten)]
    pub tensor: StepTensor,
    /// The name of the parameter in the exported program, if it is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// The decay of its optimizer; absent for a custom optimizer or none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight_decay: Option<f64>,
}

/// A parameter of the exported program that is not trained as in PyTorch.
#[derive(Clone, Debug, Serialize)]
pub struct StepUntrained {
    /// Its name there.
    pub name: String,
    /// The reason.
    pub why: String,
}

/// A state.
#[derive(Clone, Debug, Serialize)]
pub struct StepState {
    /// Its names, kind, and the weight that it belongs to.
    #[serde(flatten)]
    pub entry: StateEntry,
    /// Its type.
    #[serde(rename = "type")]
    pub ty: String,
    /// Its size.
    pub bytes: u64,
}

/// Numbers of the nodes of a phase.
#[derive(Clone, Debug, Serialize)]
pub struct StepPhase {
    /// `fwd`, `bwd` or `opt`.
    pub phase: &'static str,
    /// Nodes.
    pub nodes: usize,
    /// Nodes with a result in f16 or bf16.
    pub low: usize,
    /// Casts from a wider type to f16 or bf16.
    pub casts_to_low: usize,
    /// Casts from f16 or bf16 to f32.
    pub casts_to_fp32: usize,
    /// Casts of other types.
    pub other_casts: usize,
    /// Bytes that casts to f16 and bf16, and from these to f32, make, where dims are known.
    pub cast_bytes: u64,
}

/// A cast.
#[derive(Clone, Debug, Serialize)]
pub struct StepCast {
    /// The tensor that is cast.
    pub tensor: String,
    /// The element type that it reads.
    pub from: String,
    /// The element type that it makes.
    pub to: String,
    /// In which phase.
    pub phase: &'static str,
    /// True if the author's model has it.
    pub is_of_author: bool,
    /// The size of its result in bytes; absent if dims are unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// A node.
#[derive(Clone, Debug, Serialize)]
pub struct StepNode {
    /// The path by which users name it.
    pub path: String,
    /// Its operator.
    pub op: String,
    /// The operator's domain; absent for ai.onnx.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// `fwd`, `bwd` or `opt`.
    pub phase: &'static str,
    /// Its purpose, if it has a role: `loss`, `unscale`, `grad-check`, `clip`, `master-weight`, `loss-scale`, …
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The types of its results.
    pub results: Vec<String>,
    /// The rule of the precision of a node of the forward graph.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// And the evidence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<String>,
}

impl StepReport {
    /// The report of a step, with the warnings of passes.
    ///
    /// # Errors
    /// If the module is not a step.
    pub fn new(module: &Module, options: &TrainOptions, warnings: &[Warning]) -> Result<StepReport, Error> {
        let paths = Paths::of(module);
        let main = module.main();
        let nodes: Vec<Node> = module.nodes(main).collect();
        let inputs = module.graph(main).inputs();
        let by_name: FxHashMap<String, Value> =
            inputs.iter().map(|&input| (name_of(module, input), input)).collect();
        let states = states_of(module).map_err(|error| Error::Pass(error.into()))?.into_iter().map(|entry| {
            let input = by_name.get(&entry.input).expect("states are inputs");
            let StepTensor { ty, bytes, .. } = tensor(module, *input);
            StepState { entry, ty, bytes }
        });
        let path = |node: Node| paths.path(node).to_owned();
        let warnings = warnings.iter().map(|warning| ReportWarning::of_pass(warning.clone(), path));
        Ok(StepReport {
            schema: "ampc-step-report/1",
            tool: Tool { name: "ampc", version: env!("CARGO_PKG_VERSION") },
            options: StepOptions::of(options),
            parameters: autodiff::with_role(module, autodiff::PARAMETER)
                .map(|value| StepParameter {
                    tensor: tensor(module, value),
                    origin: origin_of(module, value).map(str::to_owned),
                    weight_decay: decay(module, value),
                })
                .collect(),
            untrained: untrained(module).into_iter().map(|(name, why)| StepUntrained { name, why }).collect(),
            states: states.collect(),
            phases: Phase::ALL.map(|phase| StepPhase::of(module, &nodes, phase.spelling())).into(),
            recomputed: {
                let (nodes, bytes) = recomputed(module, &inputs_of(module, options)?);
                StepRecomputed { nodes, bytes }
            },
            casts: nodes.iter().filter_map(|&node| StepCast::of(module, node)).collect(),
            nodes: nodes.iter().map(|&node| StepNode::of(module, &paths, node)).collect(),
            warnings: warnings.collect(),
        })
    }
}

/// Writes settings as fields, numbers as numbers.
fn settings<S: Serializer>(settings: &[(&'static str, String)], serializer: S) -> Result<S::Ok, S::Error> {
    let value = |text: &String| match text.parse::<f64>() {
        Ok(number) if number.is_finite() => json!(number),
        _ => json!(text),
    };
    serializer.collect_map(settings.iter().map(|(name, text)| (name, value(text))))
}

impl StepOptions {
    fn of(options: &TrainOptions) -> StepOptions {
        let precision = options.precision.as_ref();
        StepOptions {
            to: precision.map(|precision| precision.to.to_string()),
            policy: precision.map(|precision| precision.policy.name.clone()),
            range: precision
                .filter(|precision| !precision.ranges.is_empty())
                .map(|precision| precision.ranges.to_string()),
            loss: options.loss.to_string(),
            update: options.update.settings(),
            train: options.train.clone(),
            freeze: options.freeze.clone(),
            stop_gradient: options.stop_gradient.clone(),
            recompute: if options.recomputes { "cheap" } else { "none" },
        }
    }
}

/// The number of nodes of a step that compute an activation again, and the bytes that they make for inputs of some dims. A
/// dim that depends on data has the extent of [`Sizes::default`].
pub fn recomputed(module: &Module, inputs: &BoundInputs) -> (usize, u64) {
    let role = Purpose::Recompute.spelling();
    let nodes = module.nodes(module.main()).filter(|&node| role_of(module, node) == Some(role));
    let extents = Extents { module, sizes: &Sizes::default() };
    let (types, _) = inputs.infer(module);
    nodes.fold((0, 0), |(count, sum), node| {
        let results = module.node(node).results().iter().flatten();
        let bytes = |&value: &Value| {
            let tensor = types.of(module, value).as_tensor()?;
            tensor.dtype.storage_bytes(extents.of_shape(&tensor.shape))
        };
        (count + 1, results.filter_map(bytes).fold(sum, u64::saturating_add))
    })
}

/// The inputs of a step with the dims that the options ask for.
fn inputs_of(module: &Module, options: &TrainOptions) -> Result<BoundInputs, Error> {
    BoundInputs::new(module, &options.dims).map_err(|error| Error::Pass(error.into()))
}

fn tensor(module: &Module, value: Value) -> StepTensor {
    let ty = &module.value(value).ty;
    StepTensor {
        name: name_of(module, value),
        ty: ampc_ir::infer::describe(ty),
        bytes: bytes(module, value).unwrap_or(0),
    }
}

/// The decay of the optimizer that reads a parameter.
fn decay(module: &Module, parameter: Value) -> Option<f64> {
    let of_update = |node: &Node| phase_of(module, *node) == Some(Phase::Update);
    let readers: Vec<Node> = module.uses(parameter).map(|(node, _)| node).filter(of_update).collect();
    // One that is stored low is cast for its optimizer.
    let casts = readers.iter().filter_map(|&node| cast_of(module, node)).map(|(.., wide)| wide);
    let of_casts: Vec<Node> = casts.flat_map(|wide| module.uses(wide)).map(|(node, _)| node).collect();
    readers.into_iter().chain(of_casts).find_map(|node| {
        match NodeView::new(module, node)?.attr("weight_decay")? {
            AttrValue::Tensor(data) => data.small_floats(1)?.first().copied(),
            _ => None,
        }
    })
}

fn bytes(module: &Module, value: Value) -> Option<u64> {
    module.value(value).ty.as_tensor()?.storage_bytes()
}

fn dtype(module: &Module, value: Option<Value>) -> Option<DType> {
    value.and_then(|value| module.value(value).ty.dtype())
}

/// The phase of a node; an unmarked node belongs to the forward graph.
fn phase(module: &Module, node: Node) -> &'static str {
    phase_of(module, node).unwrap_or(Phase::Forward).spelling()
}

impl StepPhase {
    fn of(module: &Module, nodes: &[Node], of: &'static str) -> StepPhase {
        let (mut nodes_of, mut low, mut to_low, mut to_fp32, mut other, mut cast_bytes) = (0, 0, 0, 0, 0, 0);
        for &node in nodes.iter().filter(|&&node| phase(module, node) == of) {
            nodes_of += 1;
            let results = module.node(node).results();
            low += usize::from(results.iter().any(|&v| dtype(module, v).is_some_and(DType::is_low)));
            let Some((from, to, result)) = cast_of(module, node) else { continue };
            match (from.is_low(), to) {
                (false, to) if to.is_low() => to_low += 1,
                (true, DType::F32) => to_fp32 += 1,
                _ => {
                    other += 1;
                    continue;
                }
            }
            cast_bytes += bytes(module, result).unwrap_or(0);
        }
        StepPhase {
            phase: of,
            nodes: nodes_of,
            low,
            casts_to_low: to_low,
            casts_to_fp32: to_fp32,
            other_casts: other,
            cast_bytes,
        }
    }
}

/// The types that a cast reads and makes, and its result, if a node is one.
fn cast_of(module: &Module, node: Node) -> Option<(DType, DType, Value)> {
    let data = module.node(node);
    let is_cast = data.schema().is_some_and(|schema| schema.kind == OpKind::Cast);
    let result = data.result(0).filter(|_| is_cast)?;
    Some((dtype(module, data.operand(0))?, dtype(module, Some(result))?, result))
}

impl StepCast {
    fn of(module: &Module, node: Node) -> Option<StepCast> {
        let (from, to, result) = cast_of(module, node)?;
        let data = module.node(node);
        let phase = phase(module, node);
        Some(StepCast {
            tensor: name_of(module, data.operand(0)?),
            from: from.to_string(),
            to: to.to_string(),
            phase,
            is_of_author: phase == "fwd"
                && data.provenance == Provenance::User
                && role_of(module, node).is_none(),
            bytes: bytes(module, result),
        })
    }
}

impl StepNode {
    fn of(module: &Module, paths: &Paths, node: Node) -> StepNode {
        let data = module.node(node);
        let (domain, op, _) = module.op_name(node);
        let results = data.results().iter().flatten();
        let reason = data.decisions.first().map(|decision| &decision.reason);
        StepNode {
            path: paths.path(node).to_owned(),
            op: op.to_owned(),
            domain: domain.to_owned(),
            phase: phase(module, node),
            role: role_of(module, node).map(str::to_owned),
            results: results.map(|&value| ampc_ir::infer::describe(&module.value(value).ty)).collect(),
            rule: reason.map(|reason| reason.rule_text().into_owned()),
            evidence: reason
                .map(|reason| reason.evidence_text().into_owned())
                .filter(|evidence| !evidence.is_empty()),
        }
    }
}
