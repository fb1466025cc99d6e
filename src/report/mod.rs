//! The report: every decision with its reason, every cast, every converted constant (schema `ampc-report/1`,
//! documented in `docs/report.md`). A report is accepted as a policy, which repeats its decisions.

mod beside;
mod constants;
mod decisions;
mod floats;
mod kept;
mod step;
mod time;

pub use self::beside::refuse_report_of_other;
pub use self::constants::{ConstantReport, Constants, Loss};
pub(crate) use self::decisions::{Decided, Decisions};
pub use self::kept::{Cause, Causes, ElsewhereReport, Fp32Report, Root};
pub use self::step::{
    StepCast, StepNode, StepOptions, StepParameter, StepPhase, StepRecomputed, StepReport, StepState,
    StepTensor, recomputed,
};
pub use self::time::TimeReport;

use self::constants::{constant_bytes, constants, constants_report};
use self::floats::FloatDecisions;
use crate::error::findings::op_of;
use crate::loaded::Model;
use crate::options::{Objective, RewriteOptions};
use ampc_ir::module::{Op, Provenance};
use ampc_ir::op::{Class, OpKind, Signature, schema_class};
use ampc_ir::{DType, FunctionId, Module, Node};
use ampc_passes::assign::Optimum;
use ampc_passes::classify::pin_of_node;
use ampc_passes::flow;
use ampc_passes::pipeline::Pipeline;
use ampc_passes::policy::SignatureJson;
use ampc_passes::{Paths, Warning};
use rustc_hash::FxHashMap;
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Report of a rewrite.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// `ampc-report/1`.
    pub schema: &'static str,
    /// The program that wrote the report.
    pub tool: Tool,
    /// The options of the run.
    pub options: Options,
    /// Numbers over all nodes.
    pub summary: Summary,
    /// Reasons why nodes stay fp32.
    pub fp32: Fp32Report,
    /// The time that the target is predicted to take; absent if no formats were chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<TimeReport>,
    /// The cost of the chosen formats; absent if no formats were chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimum: Option<OptimumReport>,
    /// Casts.
    pub casts: Casts,
    /// The units that were to be replaced by operators, by kind; absent if the rewrite was to replace none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub units: BTreeMap<&'static str, UnitReport>,
    /// Constants.
    pub constants: Constants,
    /// The signatures in the policy for operators that no table has, as in policies.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub signatures: BTreeMap<String, SignatureJson>,
    /// Opset imports of the result.
    pub opsets: BTreeMap<String, u16>,
    /// Things to know.
    pub warnings: Vec<ReportWarning>,
    /// Every node of the source; nodes of functions once for all calls, and once more for each call for which
    /// something else was decided.
    pub nodes: Vec<NodeReport>,
}

/// Name and version of the tool.
#[derive(Clone, Debug, Serialize)]
pub struct Tool {
    /// `ampc`.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
}

/// The options that shaped the result.
#[derive(Clone, Debug, Serialize)]
pub struct Options {
    /// The options in [`OPTIONS`](crate::options::OPTIONS), as words; `opset` is the opset that `auto`
    /// found.
    #[serde(flatten, serialize_with = "in_order")]
    pub recorded: Vec<(&'static str, String)>,
    /// Guards left out.
    pub disabled_guards: Vec<String>,
    /// The passes and their options, as [`Pipeline`] prints them.
    pub pipeline: String,
}

impl Options {
    /// The recorded value of an option in [`OPTIONS`](crate::options::OPTIONS).
    pub fn get(&self, option: &str) -> Option<&str> {
        self.recorded.iter().find(|(name, _)| *name == option).map(|(_, value)| value.as_str())
    }
}

fn in_order<S: Serializer>(recorded: &[(&'static str, String)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_map(recorded.iter().map(|(name, value)| (name, value)))
}

/// Cost of the chosen formats.
#[derive(Clone, Debug, Serialize)]
pub struct OptimumReport {
    /// `time`, `casts` or `bytes`.
    pub objective: &'static str,
    /// The unit of costs: `ps` (picoseconds), `casts`, `bytes`.
    pub unit: &'static str,
    /// The number of runs of the model that the costs cover, so that branches that are taken every other time count as whole
    /// runs.
    pub scale: i64,
    /// The cost of the choice.
    pub cost: i64,
    /// By how much the casts in the graph cost less, because casts of the author became identities and went.
    pub merged: i64,
    /// Lower bound of the cost of every choice.
    pub lower_bound: i64,
    /// True if no choice costs less.
    pub optimal: bool,
    /// Assumptions about facts that the model leaves open.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub assumptions: Vec<String>,
    /// The cost of the other format for the nodes that `--explain` names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forced: Vec<ForcedReport>,
}

/// The most nodes for which the cost of the other format is computed: each needs another rewrite of the model.
pub const MAX_FORCED: usize = 20;

/// Cost of pinning a type variable to the other format.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ForcedReport {
    /// The path of the node, as requested.
    pub node: String,
    /// ONNX's name of the variable.
    pub var: String,
    /// The format that it is not.
    pub precision: String,
    /// By how much the rewrite with that pin costs more, in units of 1 / [`OptimumReport::scale`]: the difference of
    /// [`TimeReport::rewritten`], or of the casts or bytes if these were to be few. Less than 0 if the variable was
    /// held by something else than the cost.
    pub costs_more: i64,
}

impl OptimumReport {
    fn of(optimum: &Optimum) -> OptimumReport {
        let counts_runs = optimum.objective != Objective::Casts;
        OptimumReport {
            objective: optimum.objective.as_str(),
            unit: optimum.objective.unit(),
            scale: optimum.scale,
            cost: optimum.cost,
            merged: optimum.merged,
            lower_bound: optimum.lower_bound,
            optimal: optimum.optimal,
            assumptions: (optimum.assumptions.iter().filter(|_| counts_runs))
                .map(ToString::to_string)
                .collect(),
            forced: Vec::new(),
        }
    }
}

/// Numbers over all nodes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// Nodes of the source, in all graphs: `low`, `full` and `other`.
    pub nodes: u64,
    /// Nodes with a type variable in a 16-bit format now: `fp16` and `bf16`.
    pub low: u64,
    /// The low nodes in fp16. A node with both formats counts as low in the format of the rewrite.
    pub fp16: u64,
    /// The low nodes in bf16.
    pub bf16: u64,
    /// Nodes with floats, all of them f32: those with a cause in [`Fp32Report::causes`], and `followers`.
    pub full: u64,
    /// Operator → fp32 nodes that no cause keeps fp32: the types of casts and constants follow from their readers, and a
    /// removed node has no reader.
    pub followers: BTreeMap<String, u64>,
    /// Nodes without floats or of other element types.
    pub other: u64,
    /// Nodes of allow operators on f32 in the main graph.
    pub allow: u64,
    /// The number of low nodes among them.
    pub allow_low: u64,
    /// Rules by which the others stay, with counts.
    pub allow_exceptions: BTreeMap<String, u64>,
}

/// Casts of the main graph.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Casts {
    /// In the source, including casts of an earlier rewrite.
    pub present: u64,
    /// The casts of the author that remain, moved or not, two merged casts counted once; in functions once for
    /// each copy.
    pub kept: u64,
    /// Casts of the source that were removed: identities after the rewrite, and casts that an earlier rewrite
    /// inserted.
    pub removed: u64,
    /// New.
    pub inserted: u64,
    /// Constants converted instead of cast.
    pub folded: u64,
    /// Each inserted cast.
    pub list: Vec<CastReport>,
}

/// An inserted cast.
#[derive(Clone, Debug, Serialize)]
pub struct CastReport {
    /// The tensor that is cast.
    pub tensor: String,
    /// From this element type.
    pub from: String,
    /// To this one.
    pub to: String,
    /// Bytes read and written, where the shape is known.
    pub bytes: Option<u64>,
    /// Paths of the nodes that read the result.
    pub readers: Vec<String>,
}

/// Operators written out of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct UnitReport {
    /// The units that an operator has replaced.
    pub raised: u64,
    /// The units that were left, because the opset lacks the operator or the operator does not fit.
    pub left: u64,
}

/// Something to know.
#[derive(Clone, Debug, Serialize)]
pub struct ReportWarning {
    /// A stable code.
    pub code: String,
    /// The message.
    pub message: String,
    /// Path of the node it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// The opset from which on the operators that the warning is about have the format.
    #[serde(skip)]
    pub needs_opset: Option<u16>,
}

impl ReportWarning {
    /// A warning that is about no node.
    pub fn new(code: &str, message: impl Into<String>) -> ReportWarning {
        ReportWarning { code: code.to_owned(), message: message.into(), node: None, needs_opset: None }
    }

    /// A warning of a pass, with the path of its node.
    pub fn of_pass(warning: Warning, path: impl FnOnce(Node) -> String) -> ReportWarning {
        let Warning { code, message, node, needs_opset } = warning;
        ReportWarning { node: node.map(path), needs_opset, ..ReportWarning::new(code, message) }
    }
}

/// The warnings about the file of the model that affect the rewrite: initializers that a caller may replace are
/// not converted.
const NOT_CONVERTED: [&str; 2] = ["onnx.listed-initializers", "onnx.overridable-initializers"];

/// True if a warning is about the result, such as nodes that stay fp32 for another reason than the policy: for all codes
/// except [`SLOWER`], which is about a predicted time, and the codes that begin with `onnx.`, which are about the encoding of
/// the model file; of these the codes about constants that are not converted are about the result. The command line prints
/// warnings about the result even where it is to be quiet.
pub fn is_about_result(code: &str) -> bool {
    code != SLOWER && (!code.starts_with("onnx.") || NOT_CONVERTED.contains(&code))
}

/// The code of the warning that no node is low.
pub const NOTHING_LOWERED: &str = "rewrite.nothing";

/// A warning if nodes could be low but no node is.
fn warn_of_nothing(summary: &Summary) -> Option<ReportWarning> {
    let nothing = summary.low == 0 && summary.full > 0;
    let message = || format!("nothing is lowered: all nodes with floats stay fp32 ({})", summary.full);
    nothing.then(|| ReportWarning::new(NOTHING_LOWERED, message()))
}

/// The code of the warning that the rewrite is predicted to be slower than the source.
pub const SLOWER: &str = "rewrite.slower";

/// A warning if the rewrite is predicted to be slower than the source.
fn warn_of_slower(time: Option<&TimeReport>, options: &RewriteOptions) -> Option<ReportWarning> {
    let time = time.filter(|time| time.is_slower())?;
    let ratio = time.ratio()?;
    let message = format!(
        "the rewrite is predicted to be slower than the fp32 model on `{}` ({ratio} x): its casts cost more than 16 bits gain",
        options.target.name
    );
    Some(ReportWarning::new(SLOWER, message))
}

/// The code of the warning that the model stays fp32, since no rewrite is predicted to be faster.
pub const NOT_FASTER: &str = "rewrite.not_faster";

/// A node.
#[derive(Clone, Debug, Serialize)]
pub struct NodeReport {
    /// Its path.
    pub path: String,
    /// Its operator.
    pub op: Cow<'static, str>,
    /// The operator's domain, empty for ai.onnx.
    pub domain: Cow<'static, str>,
    /// Strictest class of its float type variables.
    pub class: Option<&'static str>,
    /// `fp16`, `bf16` or `fp32` if a float type variable has it, in this order; else the element type.
    pub precision: Option<Cow<'static, str>>,
    /// The rule that decided the class or precision.
    pub rule: String,
    /// The pin that names the node, or for a cast the list; such a cast stays in its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pin: Option<String>,
    /// Each type variable.
    pub vars: Vec<VarReport>,
}

/// A type variable of a node.
#[derive(Clone, Debug, Serialize)]
pub struct VarReport {
    /// ONNX's name of the variable.
    pub var: Cow<'static, str>,
    /// Its class.
    pub class: &'static str,
    /// Its element type.
    pub precision: Cow<'static, str>,
    /// The rule that decided.
    pub rule: String,
    /// The evidence.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub evidence: String,
}

/// Facts about the source that a report needs.
#[derive(Debug)]
pub(crate) struct Before {
    paths: Arc<Paths>,
    casts: Vec<(Node, Provenance)>,
    constant_bytes: u64,
}

impl Before {
    pub(crate) fn new(module: &Module) -> Before {
        let casts = flow::nodes(module)
            .into_iter()
            .filter(|&n| is_cast(module, n))
            .map(|n| (n, module.node(n).provenance))
            .collect();
        Before { paths: Paths::of(module), casts, constant_bytes: constant_bytes(module) }
    }
}

/// True if a node is a Cast of ai.onnx.
pub fn is_cast(module: &Module, node: Node) -> bool {
    module.node(node).schema().is_some_and(|s| s.kind == OpKind::Cast)
}

/// The spelling of a precision in reports and policies.
pub fn precision_name(dtype: DType) -> Cow<'static, str> {
    match dtype {
        DType::F32 => "fp32".into(),
        DType::F16 => "fp16".into(),
        DType::BF16 => "bf16".into(),
        other => other.to_string().into(),
    }
}

impl Report {
    pub(crate) fn new(
        model: &Model,
        before: &Before,
        options: &RewriteOptions,
        pipeline: &Pipeline,
        warnings: Vec<Warning>,
        Decided { nodes, instances, time, optimum, elsewhere, units }: Decided,
    ) -> Report {
        let module = &model.module;
        let mut all: Vec<ReportWarning> =
            model.warnings.iter().map(|w| ReportWarning::new(w.code(), w.to_string())).collect();
        let path = |node: Node| match instances.get(&node) {
            Some(path) => path.clone(),
            None => before.paths.path(node).to_owned(),
        };
        all.extend(warnings.into_iter().map(|warning| ReportWarning::of_pass(warning, path)));
        let decisions = FloatDecisions::new(module);
        let summary = summary(&decisions, &before.paths, options.to);
        all.extend(warn_of_nothing(&summary));
        all.extend(warn_of_slower(time.as_ref(), options));
        Report {
            schema: "ampc-report/1",
            tool: Tool { name: "ampc", version: env!("CARGO_PKG_VERSION") },
            options: Options {
                recorded: crate::options::record(options, module),
                disabled_guards: options.policy.disabled_guards().iter().cloned().collect(),
                pipeline: pipeline.to_string(),
            },
            summary,
            fp32: Fp32Report::of(&decisions, &before.paths, elsewhere.as_ref()),
            time,
            optimum,
            casts: casts(module, before),
            units: (units.0.iter())
                .map(|(kind, count)| (kind.name(), UnitReport { raised: count.raised, left: count.left }))
                .collect(),
            constants: constants_report(module, before, options),
            signatures: (options.policy.signatures())
                .filter_map(|(op, schema)| Some((op.to_owned(), SignatureJson::of(&Signature::of(schema)?))))
                .collect(),
            opsets: module.header.opsets.iter().map(|&(d, v)| (module.text(d).to_owned(), v)).collect(),
            warnings: all,
            nodes,
        }
    }

    /// The warning that nothing is lowered because nothing gains.
    pub(crate) fn leave_full(&mut self, options: &RewriteOptions) {
        self.warnings.retain(|warning| ![NOTHING_LOWERED, SLOWER].contains(&warning.code.as_str()));
        let target = &options.target.name;
        let message = format!(
            "the model stays fp32: no lowering that the policy allows is predicted to make it faster on `{target}`"
        );
        self.warnings.push(ReportWarning::new(NOT_FASTER, message));
    }

    /// The node with this path.
    pub fn node(&self, path: &str) -> Option<&NodeReport> {
        self.nodes.iter().find(|n| n.path == path)
    }
}

/// The report of a node. A call of a copy counts as a call of the function that the copy was made from.
fn node_report(
    decisions: &FloatDecisions<'_>,
    sources: &FxHashMap<FunctionId, FunctionId>,
    path: &str,
    node: Node,
) -> NodeReport {
    let module = decisions.module();
    let data = module.node(node);
    let source = match data.op {
        Op::Call(function) => sources.get(&function).map(|&source| module.function(source)),
        Op::Schema(_) | Op::Custom { .. } => None,
    };
    let owned = |symbol| Cow::Owned(module.text(symbol).to_owned());
    let (domain, op) = match (source, data.schema()) {
        (Some(function), _) => (owned(function.domain), owned(function.name)),
        (None, Some(schema)) => (Cow::Borrowed(schema.domain), Cow::Borrowed(schema.name)),
        (None, _) => {
            let (domain, op, _) = module.op_name(node);
            (Cow::Owned(domain.to_owned()), Cow::Owned(op.to_owned()))
        }
    };
    let floats = decisions.of(node);
    let leading = floats.first_low().or_else(|| floats.riskiest());
    let unknown = match data.schema() {
        Some(_) if !data.is_alive() && data.decisions.is_empty() => "removed",
        Some(_) => "type",
        None => "unknown-op",
    };
    NodeReport {
        path: path.to_owned(),
        op,
        domain,
        class: leading.map(|d| d.class.as_str()),
        precision: leading.and_then(|d| d.precision).map(precision_name),
        rule: leading.map_or_else(|| unknown.to_owned(), |d| d.reason.rule_text().into_owned()),
        pin: pin_of_node(module, node).map(ToString::to_string),
        vars: vars(module, node),
    }
}

fn vars(module: &Module, node: Node) -> Vec<VarReport> {
    let data = module.node(node);
    module
        .var_names(node)
        .into_iter()
        .zip(&data.decisions)
        .filter(|(_, d)| d.precision.is_some_and(|p| p == DType::F32 || p.is_low()))
        .map(|(var, d)| VarReport {
            var,
            class: d.class.as_str(),
            precision: d.precision.map_or(Cow::Borrowed("unknown"), precision_name),
            rule: d.reason.rule_text().into_owned(),
            evidence: d.reason.evidence_text().into_owned(),
        })
        .collect()
}

fn summary(decisions: &FloatDecisions<'_>, paths: &Paths, to: DType) -> Summary {
    let module = decisions.module();
    let mut sum = Summary::default();
    for &node in paths.nodes() {
        sum.nodes += 1;
        let data = module.node(node);
        let floats = decisions.of(node);
        let (low, full) = (floats.low(to), floats.is_full());
        match low {
            Some(DType::BF16) => sum.bf16 += 1,
            Some(_) => sum.fp16 += 1,
            None if full => sum.full += 1,
            None => sum.other += 1,
        }
        if full && kept::cause_of(decisions, paths, node).is_none() {
            *sum.followers.entry(op_of(module, node)).or_default() += 1;
        }
        let low = low.is_some();
        sum.low += u64::from(low);
        let allow = data.schema().is_some_and(|s| schema_class(s, DType::F16) == Class::Allow);
        if allow && (low || full) {
            sum.allow += 1;
            sum.allow_low += u64::from(low);
            if let (false, Some(d)) = (low, floats.riskiest()) {
                let rule = d.reason.rule().family().into_owned();
                *sum.allow_exceptions.entry(rule).or_default() += 1;
            }
        }
    }
    sum
}

fn casts(module: &Module, before: &Before) -> Casts {
    let mut casts = Casts { present: before.casts.len() as u64, ..Casts::default() };
    let known: BTreeSet<Node> = before.casts.iter().map(|&(n, _)| n).collect();
    let paths = Paths::of(module);
    for node in flow::nodes(module) {
        if !is_cast(module, node) {
            continue;
        }
        // One that moved, or that does what two did, is the author's, and so is one that a raised opset needed.
        if module.node(node).provenance == Provenance::User || known.contains(&node) {
            casts.kept += 1;
            continue;
        }
        let (Some(from), Some(to)) = (module.node(node).operand(0), module.node(node).result(0)) else {
            continue;
        };
        let bytes = |v| module.value(v).ty.as_tensor().and_then(|t| t.storage_bytes());
        let dtype = |v| {
            let name = module.value(v).ty.dtype().map(precision_name);
            name.map_or_else(|| "unknown".to_owned(), Cow::into_owned)
        };
        let mut readers: Vec<String> = module.uses(to).map(|(n, _)| paths.path(n).to_owned()).collect();
        readers.sort();
        readers.dedup();
        casts.inserted += 1;
        casts.list.push(CastReport {
            tensor: ampc_ir::verify::name_of(module, from),
            from: dtype(from),
            to: dtype(to),
            bytes: bytes(from).zip(bytes(to)).map(|(a, b)| a + b),
            readers,
        });
    }
    casts.removed = casts.present.saturating_sub(casts.kept);
    casts.folded = constants(module).iter().filter(|(_, d)| !d.pending().is_empty()).count() as u64;
    casts
}
