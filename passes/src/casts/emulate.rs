//! `emulate`: makes an fp32-typed model that rounds as the low-precision model would.
//!
//! Runtimes without 16-bit kernels compute in fp32 and drop roundings, which hides overflow and lost digits. This pass
//! turns every 16-bit value into an f32 value that goes through `Cast(low), Cast(f32)` right after the operator that
//! makes it. Low constants are rounded beforehand, and public types stay. Stock runtimes then round as kernels with
//! fp32 accumulators do: once per operator, with fp32 arithmetic inside. For example:
//!
//! ```text
//! %h = MatMul(%x, %w) : f16     %h = MatMul(%x, %w) : f32
//!                               %l = Cast(%h) {to=f16}
//!                               %r = Cast(%l) {to=f32}
//! %y = Relu(%h) : f16           %y = Relu(%r) : f32           not rounded again: Relu is clear
//! ```
//!
//! Results of clear operators need no rounding, because the operators move values that are rounded already. Scatters
//! with a `reduction` compute: 16-bit scatters compute in fp32 and round once after all updates, and so does the
//! emulation. Functions are emulated once for all their calls. Sequences and optionals hold f32 that is rounded already;
//! public sequences and optionals, and those that custom operators know, stay 16-bit. Custom operators get the 16-bit
//! operands that they had.
//!
//! The bodies of an unknown operator that passes values into them and takes values out stay unchanged, with a warning;
//! so do functions that are called from there.

use crate::casts::insert_casts::{new_cast, set_element_attribute};
use crate::graph::containers::{element, is_structural};
use crate::graph::flow::{self, Var};
use crate::graph::names;
use crate::graph::sequences::{Group, Groups};
use crate::pass::invariants::Invariants;
use crate::pass::options::Spelled;
use crate::pass::{Changed, Pass, PassCx, PassError};
use ampc_ir::convert::Conversion;
use ampc_ir::edit::Position;
use ampc_ir::infer::{Facts, check_node};
use ampc_ir::module::{Def, Op};
use ampc_ir::op::{self, Class, Formal, OpKind, OpSchema, schema_class};
use ampc_ir::ports::Ports;
use ampc_ir::views::NodeView;
use ampc_ir::{AttrValue, DType, GraphId, Module, Node, Payload, Type, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::Arc;

/// The pass `emulate`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Emulate;

impl Spelled for Emulate {
    const NAME: &'static str = "emulate";
    const ABOUT: &'static str = "converts 16-bit values to f32 with equal rounding";
    fn blank() -> Self {
        Emulate
    }
}

impl Pass for Emulate {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn revokes(&self) -> Invariants {
        Invariants::DECISIONS
    }
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let main = module.main();
        let kept = kept(module);
        warn_of_kept(module, &kept, cx);
        let contained = contained(module, &kept);
        let mut state = State { facts: cx.facts, low: FxHashMap::default(), contained };
        let public = dtypes_of_outputs(module, main);
        for input in module.graph(main).inputs().to_vec() {
            if let Some(low) = low_dtype(&module.value(input).ty) {
                let wide = new_cast(module, input, DType::F32, Position::First);
                state.redirect(module, input, wide, low);
            }
        }
        for graph in flow::functions_callees_first(module).into_iter().filter(|graph| !kept.contains(graph)) {
            state.function(module, graph);
        }
        state.constants(module, main);
        state.graph(module, main);
        restore_outputs(module, main, &public);
        names::part(module, |_, _| true);
        Ok(Changed::Yes)
    }
}

/// True if the values that a node passes into its bodies and takes out of them are unknown.
fn keeps_bodies(module: &Module, node: Node) -> bool {
    module.node(node).bodies().next().is_some() && Ports::of(module, node).is_none()
}

/// The bodies of these nodes, their nested bodies, and the functions called from there.
fn reached(module: &Module, nodes: impl Iterator<Item = Node>) -> FxHashSet<GraphId> {
    let mut work: Vec<GraphId> = nodes.flat_map(|node| module.node(node).bodies()).collect();
    let mut reached = FxHashSet::default();
    while let Some(graph) = work.pop() {
        if reached.insert(graph) {
            let inside = |node| module.node(node).bodies().chain(callee(module, node));
            work.extend(module.nodes(graph).flat_map(inside));
        }
    }
    reached
}

/// The graphs that stay unchanged.
fn kept(module: &Module) -> FxHashSet<GraphId> {
    reached(module, flow::nodes(module).into_iter().filter(|&node| keeps_bodies(module, node)))
}

/// Warns of each outermost node whose bodies stay unchanged and have 16-bit values.
fn warn_of_kept(module: &Module, kept: &FxHashSet<GraphId>, cx: &mut PassCx<'_>) {
    let is_low = |v: &Value| module.value(*v).ty.element_dtype().is_some_and(DType::is_low);
    let has_low = |&graph: &GraphId| {
        let data = module.graph(graph);
        let mut sources = data.inputs().iter().chain(data.captures()).chain(data.constants());
        sources.any(is_low)
            || module.nodes(graph).any(|node| module.node(node).results().iter().flatten().any(is_low))
    };
    for node in flow::nodes(module) {
        if kept.contains(&module.node(node).graph) || !keeps_bodies(module, node) {
            continue;
        }
        if reached(module, std::iter::once(node)).iter().any(has_low) {
            let (_, op, _) = module.op_name(node);
            let message = format!(
                "the bodies of {op} keep their 16-bit values, because their inputs and outputs are not known: they round \
                 as the runtime does"
            );
            cx.warn("emulate.body", Some(node), message);
        }
    }
}

fn low_dtype(ty: &Type) -> Option<DType> {
    ty.dtype().filter(|d| d.is_low())
}

fn dtypes_of_outputs(module: &Module, graph: GraphId) -> Vec<DType> {
    let outputs = module.graph(graph).outputs().iter();
    outputs.map(|o| module.value(o.value).ty.dtype().unwrap_or(DType::F32)).collect()
}

/// Restores the types of outputs, which keep their names: casts outputs that are f32 now to the low type again.
fn restore_outputs(module: &mut Module, graph: GraphId, public: &[DType]) {
    let mut narrowed: FxHashMap<Value, Value> = FxHashMap::default();
    for (index, &dtype) in public.iter().enumerate() {
        let value = module.graph(graph).outputs()[index].value;
        if !dtype.is_low() || module.value(value).ty.dtype() != Some(DType::F32) {
            continue;
        }
        let known = narrowed.get(&value).copied();
        let narrow = known
            .or_else(|| low_behind(module, value, dtype))
            .unwrap_or_else(|| new_cast(module, value, dtype, Position::Last));
        module.set_output(graph, index, narrow);
        if known.is_none() {
            narrowed.insert(value, narrow);
            if let (Some(name), true) = (module.value(value).name, module.producer(value).is_some()) {
                let wide = module.fresh_name(&format!("{}.{}", module.text(name), DType::F32));
                module.set_value_name(value, wide);
                module.set_value_name(narrow, name);
            }
        }
    }
}

/// Returns the operand of the inserted cast that made this value, if the operand has the format.
fn low_behind(module: &Module, value: Value, format: DType) -> Option<Value> {
    let (cast, _) = module.producer(value)?;
    flow::inserted_result(module, cast)?;
    module.node(cast).operand(0).filter(|&v| module.value(v).ty.dtype() == Some(format))
}

/// True if all results are elements of operands, which are rounded already. Scatters that add or multiply do not count:
/// a 16-bit scatter computes in fp32 and rounds once.
fn rounds_nothing(module: &Module, node: Node) -> bool {
    let Some(schema) = module.node(node).schema() else { return false };
    let reduces = op::may_reduce(schema)
        && NodeView::new(module, node).and_then(|view| view.string("reduction")) != Some("none");
    // An attribute (the bounds of a Clip, the value of a Pad, in old versions) is f32 and has not been rounded.
    let is_given = module.node(node).attrs().iter().any(|a| matches!(a.value, AttrValue::Float(_)));
    let moves = schema_class(schema, DType::F16) == Class::Clear || is_structural(schema.kind);
    moves && !is_given && !reduces
}

/// The graph of the function that a node calls.
fn callee(module: &Module, node: Node) -> Option<GraphId> {
    match module.node(node).op {
        Op::Call(function) => Some(module.function(function).graph),
        Op::Schema(_) | Op::Custom { .. } => None,
    }
}

/// True if an operand is passed to a function, which takes it as f32: functions are emulated.
fn handed_in_as_f32(module: &Module, node: Node, slot: usize) -> bool {
    let formals = || {
        callee(module, node)?;
        let ports = Ports::of(module, node)?;
        Some(ports.body_inputs(module, ports.of_operand(slot)?))
    };
    let is_f32 = |formal: Value| module.value(formal).ty.dtype() == Some(DType::F32);
    formals().is_some_and(|mut formals| formals.any(is_f32))
}

/// The sequences and optionals that are f32 in the emulated model: they are neither public nor read or made by
/// unknown operators. Their elements are rounded before they are put in.
fn contained(module: &Module, kept: &FxHashSet<GraphId>) -> FxHashSet<Value> {
    let groups = Groups::new(module);
    let is_kept = |var: &Var| kept.contains(&module.node(var.node).graph);
    let stays = |g: &&Group| g.held.is_some() || g.members.iter().any(is_kept);
    let mut held: FxHashSet<Var> =
        groups.iter().filter(stays).flat_map(|g| g.members.iter().copied()).collect();
    // The body of a SequenceMap reads elements of one sequence and makes elements of another: they have one type.
    let maps = flow::nodes(module).into_iter().filter(|&node| {
        !groups.is_empty() && module.node(node).schema().is_some_and(|s| s.kind == OpKind::SequenceMap)
    });
    let maps: Vec<Node> = maps.collect();
    let mut before = usize::MAX;
    while before != held.len() {
        before = held.len();
        for &node in &maps {
            if flow::vars(module, node).any(|var| held.contains(&var)) {
                let all = flow::vars(module, node).filter_map(|var| groups.get(var));
                held.extend(all.flat_map(|group| group.members.iter().copied()));
            }
        }
    }
    let free = |group: &&Group| group.members.iter().all(|var| !held.contains(var));
    let values = groups.iter().filter(free).flat_map(|group| group.containers.iter().copied());
    values.filter(|&v| element(&module.value(v).ty).is_some_and(DType::is_low)).collect()
}

/// True if a node gets its original types: an unknown operator, a reader of its results, or a node on sequences
/// that stay 16-bit.
fn is_as_it_was(module: &Module, node: Node, contained: &FxHashSet<Value>) -> bool {
    let data = module.node(node);
    let unknown = |v: &Value| module.value(*v).ty == Type::Unknown;
    // Elements of sequences and optionals cannot be cast, so they are 16-bit from the operator that puts them in.
    let contained = |v: &Value| {
        let ty = &module.value(*v).ty;
        let is_low = ty.as_tensor().is_none() && ty.element_dtype().is_some_and(DType::is_low);
        is_low && !contained.contains(&flow::resolve_captures(module, *v))
    };
    // Operators that a user describes may have no fp32 form.
    let low_only = |schema: &OpSchema, formal: &Formal| {
        let types = schema.types_of(formal);
        !types.has_tensor(DType::F32) && types.tensor_dtypes().any(DType::is_low)
    };
    data.schema().is_none_or(|s| s.inputs.iter().chain(s.outputs).any(|formal| low_only(s, formal)))
        || data.formal_operands().iter().flatten().any(|v| unknown(v) || contained(v))
        || data.results().iter().flatten().any(contained)
}

struct State<'a> {
    facts: &'a Facts,
    /// The formats of the low values that f32 values represent.
    low: FxHashMap<Value, DType>,
    /// Sequences and optionals that are f32 from their producers on.
    contained: FxHashSet<Value>,
}

impl State<'_> {
    /// Makes the readers and outputs of `old` read `new`, which is f32 and represents a value of the format. The public
    /// name moves to `new` if `old` had it.
    fn redirect(&mut self, module: &mut Module, old: Value, new: Value, format: DType) {
        let graph = module.value(old).graph;
        let from = module.producer(new).map(|(n, _)| n);
        let between =
            from.and_then(|n| module.node(n).operand(0)).and_then(|v| module.producer(v)).map(|(n, _)| n);
        module.replace_uses(old, new, |n, _| Some(n) != from && Some(n) != between);
        let is_source = module.producer(old).is_none();
        let mut renamed = false;
        let slots: Vec<u32> = module.output_slots(old).filter(|_| !is_source).collect();
        for slot in slots {
            module.set_output(graph, slot as usize, new);
            if !renamed && let (Some(name), Some(_)) = (module.value(old).name, module.value(new).name) {
                let inner = format!("{}.computed", module.text(name));
                let inner = module.fresh_name(&inner);
                module.set_value_name(old, inner);
                module.set_value_name(new, name);
                renamed = true;
            }
        }
        self.low.insert(new, format);
    }

    fn constants(&mut self, module: &mut Module, graph: GraphId) {
        for value in module.graph(graph).constants().to_vec() {
            let Some(Payload::Dense(data)) = module.constant(value) else { continue };
            let format = data.dtype();
            if format.is_low() && graph == module.main() && module.is_output(value) {
                // The output of the model stays; other readers read it widened.
                let wide = new_cast(module, value, DType::F32, Position::First);
                self.redirect(module, value, wide, format);
            } else if format.is_low() {
                let wide = data.converted(Conversion { to: DType::F32, clamp: false });
                module.set_constant(value, Payload::Dense(Arc::new(wide)));
                self.low.insert(value, format);
            }
        }
    }

    fn graph(&mut self, module: &mut Module, graph: GraphId) {
        for node in module.nodes(graph).collect::<Vec<_>>() {
            if keeps_bodies(module, node) {
                // The captures of these bodies keep their types, too.
                self.operands(module, node, module.node(node).operands().len());
            } else {
                let as_it_was = is_as_it_was(module, node, &self.contained);
                for body in module.node(node).bodies().collect::<Vec<_>>() {
                    self.body(module, node, body, as_it_was);
                }
                if as_it_was {
                    self.operands(module, node, module.node(node).n_formal());
                }
            }
            self.attributes(module, node);
            self.results(module, node);
        }
    }

    /// Converts a function: its formals and results become f32 values that represent 16-bit values.
    fn function(&mut self, module: &mut Module, graph: GraphId) {
        for value in module.graph(graph).inputs().to_vec() {
            self.widen_container(module, value);
            self.widen(module, value);
        }
        self.constants(module, graph);
        self.graph(module, graph);
    }

    /// Converts a body: its formals and results stay 16-bit if `as_it_was`, else they become f32.
    fn body(&mut self, module: &mut Module, node: Node, body: GraphId, as_it_was: bool) {
        for value in module.graph(body).captures().to_vec() {
            let Def::Capture { slot } = module.value(value).def else { continue };
            let captured = module.node(node).operands()[slot as usize];
            self.widen_container(module, value);
            if captured.is_none_or(|v| low_dtype(&module.value(v).ty).is_none()) {
                self.widen(module, value);
            }
        }
        let handed_out = dtypes_of_outputs(module, body);
        for value in module.graph(body).inputs().to_vec() {
            self.widen_container(module, value);
            match low_dtype(&module.value(value).ty) {
                Some(format) if as_it_was => {
                    let wide = new_cast(module, value, DType::F32, Position::First);
                    self.redirect(module, value, wide, format);
                }
                Some(_) | None => self.widen(module, value),
            }
        }
        self.constants(module, body);
        self.graph(module, body);
        if as_it_was {
            restore_outputs(module, body, &handed_out);
        }
        for index in 0..module.graph(body).outputs().len() {
            let output = module.graph(body).outputs()[index].clone();
            if element(&output.declared).is_some_and(DType::is_low)
                && element(&module.value(output.value).ty) == Some(DType::F32)
            {
                module.set_output_type(body, index, output.declared.with_element_dtype(DType::F32));
            }
        }
    }

    /// Makes a sequence or optional f32, if it is f32 in the emulated model.
    fn widen_container(&self, module: &mut Module, value: Value) {
        if self.contained.contains(&flow::resolve_captures(module, value)) {
            let ty = module.value(value).ty.with_element_dtype(DType::F32);
            module.set_type(value, ty);
        }
    }

    /// Makes a formal or capture of a body f32, because its value is f32.
    fn widen(&mut self, module: &mut Module, value: Value) {
        if let Some(format) = low_dtype(&module.value(value).ty) {
            let ty = module.value(value).ty.with_element_dtype(DType::F32);
            module.set_type(value, ty);
            self.low.insert(value, format);
        }
    }

    /// Casts the first `count` operands to 16 bits again.
    fn operands(&mut self, module: &mut Module, node: Node, count: usize) {
        for slot in 0..count {
            let Some(value) = module.node(node).operands()[slot] else { continue };
            if handed_in_as_f32(module, node, slot) {
                continue;
            }
            if let Some(&format) = self.low.get(&value) {
                let narrow = low_behind(module, value, format)
                    .unwrap_or_else(|| new_cast(module, value, format, Position::Before(node)));
                module.set_operand(node, slot, Some(narrow));
            }
        }
    }

    /// Rounds constant tensors in attributes beforehand, like initializers.
    fn attributes(&mut self, module: &mut Module, node: Node) {
        let kind = module.node(node).schema().map(|s| s.kind);
        if module.node(node).results().iter().flatten().any(|v| self.contained.contains(v)) {
            set_element_attribute(module, node, DType::F32);
        }
        if !matches!(kind, Some(OpKind::Constant | OpKind::ConstantOfShape)) {
            return;
        }
        let value = module.intern("value");
        let Some(AttrValue::Tensor(data)) = module.node(node).attr(value).map(|a| &a.value) else { return };
        if data.dtype().is_low() {
            let wide = Arc::new(data.converted(Conversion { to: DType::F32, clamp: false }));
            module.set_attr(node, value, AttrValue::Tensor(wide));
        }
    }

    /// True if a result is passed out of bodies, or through them, and needs no rounding.
    fn hands_on(&self, module: &Module, node: Node, slot: usize) -> bool {
        let port = Ports::of(module, node).and_then(|ports| ports.of_result(slot));
        let port = port.and_then(|port| Some(Var { node, var: u16::try_from(port).ok()? }));
        port.is_some_and(|port| flow::operands_of(module, port).all(|(_, v)| self.low.contains_key(&v)))
    }

    fn results(&mut self, module: &mut Module, node: Node) {
        let inferred = check_node(module, node, self.facts).ok().flatten();
        let clear = rounds_nothing(module, node);
        for (slot, value) in module.node(node).results().to_vec().into_iter().enumerate() {
            let Some(value) = value else { continue };
            self.widen_container(module, value);
            let Some(format) = low_dtype(&module.value(value).ty) else { continue };
            let returned = callee(module, node).and_then(|graph| {
                Some(module.value(module.graph(graph).outputs().get(slot)?.value).ty.dtype())
            });
            let now = returned.unwrap_or_else(|| inferred.as_ref().and_then(|i| i.types.get(slot)?.dtype()));
            if now == Some(DType::F32) {
                let ty = module.value(value).ty.with_element_dtype(DType::F32);
                module.set_type(value, ty);
                // The function has rounded the values that it returns.
                if clear || returned.is_some() || self.hands_on(module, node, slot) {
                    self.low.insert(value, format);
                    continue;
                }
                let narrow = new_cast(module, value, format, Position::After(node));
                let (cast, _) = module.producer(narrow).expect("a cast makes its result");
                let wide = new_cast(module, narrow, DType::F32, Position::After(cast));
                self.redirect(module, value, wide, format);
            } else {
                let wide = new_cast(module, value, DType::F32, Position::After(node));
                self.redirect(module, value, wide, format);
            }
        }
    }
}
