//! `convert-constants`: replaces an inserted cast of a constant by a constant of the target type.
//!
//! The bytes are not touched: the constant gets a pending conversion, which runs once while the constant is written or
//! uploaded. A constant with only low readers keeps its name and changes its type; a constant that is read in both
//! types is stored twice. Constant nodes and ConstantOfShape are converted in their attribute. An initializer that is
//! also a graph input can be overridden, so its cast stays. The cast of a trained parameter stays too.
//!
//! A cast of a small float that is computed from constants and known extents becomes a constant as well.

mod scalars;

use self::scalars::Scalars;
use crate::graph::flow::{self, Var};
use crate::graph::names;
use crate::graph::roles::{PARAMETER, with_role};
use crate::pass::options::{PassOption, Setting, Spelled, Words, option, settings};
use crate::pass::{Changed, Pass, PassCx, PassError, sound};
use ampc_ir::convert::{Conversion, can_convert};
use ampc_ir::module::Provenance;
use ampc_ir::op::OpKind;
use ampc_ir::views::{NodeView, constant_node_data};
use ampc_ir::{AttrValue, DType, Inserter, Module, Node, NodeSpec, Payload, TensorData, Value};
use rustc_hash::FxHashSet;
use std::sync::Arc;

/// The words of the option `clamp`.
const CLAMP: Words = Words { no: "false", yes: "true" };

/// The pass `convert-constants`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConvertConstants {
    /// True if finite values beyond the range become the largest finite value instead of infinity.
    pub clamp: bool,
}

impl Spelled for ConvertConstants {
    const NAME: &'static str = "convert-constants";
    const ABOUT: &'static str = "replaces casts of constants by converted constants";
    const OPTIONS: &'static [PassOption<Self>] = &[PassOption {
        def: option("clamp", "true or false", Some(CLAMP.no)),
        print: |pass| pass.clamp.then(|| Setting::word(CLAMP.yes)),
        read: |pass, given| given.either(CLAMP).map(|clamp| pass.clamp = clamp),
    }];
    fn blank() -> Self {
        ConvertConstants { clamp: false }
    }
}

impl Pass for ConvertConstants {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn options(&self) -> Vec<(&'static str, Setting)> {
        settings(self)
    }
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let mut changed = false;
        let mut scalars: Option<Scalars> = None;
        // A trained parameter stays fp32, and each step casts it anew.
        let trained: FxHashSet<Value> = with_role(module, PARAMETER).collect();
        for node in flow::nodes(module) {
            let data = module.node(node);
            let cast = data.provenance == Provenance::Inserted
                && data.schema().is_some_and(|s| s.kind == OpKind::Cast);
            if let (true, Some(operand), Some(result)) = (cast, data.operand(0), data.result(0))
                && !trained.contains(&operand)
            {
                let mut source = source(module, operand);
                if source.is_none() && data.graph == module.main() {
                    let scalars = scalars.get_or_insert_with(|| Scalars::of(module, cx.facts, &trained));
                    source = scalars.get(operand).cloned().map(Source::Scalar);
                }
                let Some(source) = source else { continue };
                changed |= self.fold(module, cx, (node, result), (operand, source));
            }
        }
        if changed {
            let pending = |m: &Module, v| {
                m.constant(v).and_then(Payload::dense).is_some_and(|d| !d.pending().is_empty())
            };
            names::part(module, pending);
        }
        Ok(Changed::when(changed))
    }
}

/// The place of the elements of a constant.
enum Source {
    Initializer(Arc<TensorData>),
    ConstantNode(Node, Arc<TensorData>),
    Fill(Node, Arc<TensorData>),
    /// The result of a node that is [known](scalars) without a run.
    Scalar(Arc<TensorData>),
}

impl Source {
    /// True if the producer of the constant can make it in this type: ConstantOfShape makes no bf16 below
    /// operator set 20.
    fn admits(&self, module: &Module, to: DType) -> bool {
        match self {
            Source::Initializer(_) | Source::Scalar(_) => true,
            Source::ConstantNode(node, _) | Source::Fill(node, _) => {
                let formal = module.node(*node).schema().and_then(|s| Some((s, s.output(0)?)));
                formal.is_some_and(|(schema, formal)| schema.types_of(formal).has_tensor(to))
            }
        }
    }
}

fn source(module: &Module, value: Value) -> Option<Source> {
    if let Some(payload) = module.constant(value) {
        return payload.dense().cloned().map(Source::Initializer);
    }
    let (node, _) = module.producer(value)?;
    let view = NodeView::new(module, node)?;
    if view.kind() == OpKind::Constant {
        return constant_node_data(&view).map(|data| Source::ConstantNode(node, data));
    }
    if view.kind() == OpKind::ConstantOfShape {
        let data = match view.attr("value") {
            Some(AttrValue::Tensor(data)) => data.clone(),
            _ => Arc::new(TensorData::from_f32(&[1], &[0.0]).ok()?),
        };
        return Some(Source::Fill(node, data));
    }
    None
}

impl ConvertConstants {
    fn fold(
        &self,
        module: &mut Module,
        cx: &mut PassCx<'_>,
        (cast, result): (Node, Value),
        (operand, source): (Value, Source),
    ) -> bool {
        let Some(to) = module.value(result).ty.dtype() else { return false };
        let (Source::Initializer(data)
        | Source::ConstantNode(_, data)
        | Source::Fill(_, data)
        | Source::Scalar(data)) = &source;
        // An output of the model keeps the type that the author gave it; a value that leaves a body has no public name.
        let graph = module.node(cast).graph;
        let leaves = module.is_output(result) && graph == module.main();
        if !can_convert(data.dtype(), to) || leaves || !source.admits(module, to) {
            return false;
        }
        let low = Arc::new(data.converted(Conversion { to, clamp: self.clamp }));
        warn_of_overflow(module, cx, operand, data, to, self.clamp);
        let replacement = replacement(module, (operand, source), (cast, result), low);
        module.replace_value(result, replacement);
        module.erase_node(cast);
        true
    }
}

/// Returns the constant with the converted elements: the constant itself if only the cast reads it, else a second
/// constant beside it.
fn replacement(
    module: &mut Module,
    (operand, source): (Value, Source),
    (cast, result): (Node, Value),
    low: Arc<TensorData>,
) -> Value {
    let only_reader = module.uses(operand).take(2).count() == 1 && !module.is_output(operand);
    match source {
        Source::Initializer(_) if only_reader => {
            module.set_constant(operand, Payload::Dense(low));
            operand
        }
        Source::Initializer(_) | Source::Scalar(_) => {
            let graph = module.value(operand).graph;
            let name = module.value(result).name.expect(NAMED);
            module.add_constant(graph, name, Payload::Dense(low))
        }
        Source::ConstantNode(node, _) | Source::Fill(node, _) if only_reader => {
            convert_node(module, node, operand, low);
            operand
        }
        Source::ConstantNode(node, _) | Source::Fill(node, _) => twin(module, node, (cast, result), low),
    }
}

const NAMED: &str = "the result of an inserted cast has a name";

/// Replaces the elements of a node that makes a constant.
fn convert_node(module: &mut Module, node: Node, made: Value, low: Arc<TensorData>) {
    for other in ["value_float", "value_floats"] {
        if let Some(other) = module.symbol(other) {
            module.remove_attr(node, other);
        }
    }
    let (value, to) = (module.intern("value"), low.dtype());
    module.set_attr(node, value, AttrValue::Tensor(low));
    let ty = module.value(made).ty.with_element_dtype(to);
    module.set_type(made, ty);
    made_in(module, node, to);
}

/// Turns a copy of the node that makes a constant into the producer of the converted elements, under the names
/// of the cast. Returns its result.
fn twin(module: &mut Module, node: Node, (cast, result): (Node, Value), low: Arc<TensorData>) -> Value {
    let (data, to) = (module.node(node), low.dtype());
    let kind = data.schema().expect("an operator that makes constants").kind;
    let spec = NodeSpec::new(kind, &[]).operands(data.formal_operands()).attr("value", low);
    let spec = spec.result_name(module.value(result).name.expect(NAMED)).node_name(module.node(cast).name);
    let (decisions, ty) = (data.decisions.clone(), module.value(result).ty.clone());
    let [made] = sound(Inserter::after(module, node).insert(spec));
    // The elements of a shape may be known only to inference.
    module.set_type(made, ty);
    let (twin, _) = module.producer(made).expect("a node makes it");
    *module.node_mut(twin).decisions = decisions;
    made_in(module, twin, to);
    made
}

/// Records the new type of the result of a node in its decision.
fn made_in(module: &mut Module, node: Node, to: DType) {
    let Some(Var { var, .. }) = module.node(node).result(0).and_then(|v| flow::producer_var(module, v))
    else {
        return;
    };
    if let Some(decision) = module.node_mut(node).decisions.get_mut(usize::from(var)) {
        decision.precision = Some(to);
    }
}

/// Warns of a constant that does not fit. Pins and disabled guards can cause such conversions.
fn warn_of_overflow(
    module: &Module,
    cx: &mut PassCx<'_>,
    value: Value,
    data: &Arc<TensorData>,
    to: DType,
    clamp: bool,
) {
    // Widening loses nothing. A constant that cannot be read fails where it is written.
    let Some(stats) = to.is_low().then(|| cx.statistics.of(data, to).ok().flatten()).flatten() else {
        return;
    };
    if stats.overflow > 0 {
        let name = ampc_ir::verify::name_of(module, value);
        let what = if clamp { "were clamped" } else { "became infinite" };
        cx.warn(
            "constant.overflow",
            None,
            format!(
                "constant `{name}`: {} of {} values, {:e} to {:e}, {what} in {to}",
                stats.overflow, stats.count, stats.min, stats.max
            ),
        );
    }
}
