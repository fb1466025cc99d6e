//! `insert-casts`: values get the element types that were assigned, and casts stand where readers want another.
//!
//! One cast per (value, format), shared by all readers and slots, right after the producer (before the first
//! reader, where the producer is an input or constant). An output of the graph keeps its type and name: if what
//! makes it is low now, the widening cast takes the public name. Readers without a decision (custom operators) get
//! the type the value had.
//!
//! What a body captures is cast outside every loop it is read in, and within the branch of an If that reads it, unless
//! both branches do or it is cast outside anyway: so a cast runs as often as it has to and no more.
//!
//! Sequences and optionals are retyped and never cast; attributes that say what is in them follow.
//!
//! A cast of the author whose operand now has the type it casts to does nothing any more and is left out.

mod opsets;
mod scopes;

use self::scopes::{Behind, Scopes};
use crate::analysis::cost::Objective;
use crate::analysis::values::same_number;
use crate::graph::containers::{element, is_container, is_structural_node};
use crate::graph::flow::{self, Reader, Var};
use crate::graph::names;
use crate::pass::invariants::Invariants;
use crate::pass::options::{KEEP_IO, OBJECTIVE, PassOption, Setting, Spelled, print_keep_io, settings};
use crate::pass::{Changed, Pass, PassCx, PassError, sound};
pub use crate::policy::KeepIo;
use crate::policy::pinned::pin_of_cast;
use crate::precision::assign::{Optimum, count_rewritten};
use ampc_ir::edit::Position;
use ampc_ir::entity::SecondaryMap;
use ampc_ir::infer::{Facts, check_node};
use ampc_ir::module::{Def, GraphOwner, Provenance};
use ampc_ir::op::{AttrKind, OpKind, OpSchema};
use ampc_ir::ports::Ports;
use ampc_ir::{AttrValue, DType, GraphId, Inserter, Module, Node, NodeSpec, Value};
use rustc_hash::{FxHashMap, FxHashSet};

/// The pass.
#[derive(Clone, Debug, Default)]
pub struct InsertCasts {
    /// Which inputs and outputs keep their types.
    pub keep_io: KeepIo,
    /// Whether what is read in several branches is cast once around them, though not all of them may be taken.
    pub fewest: bool,
}

impl Spelled for InsertCasts {
    const NAME: &'static str = "insert-casts";
    const ABOUT: &'static str = "gives values their assigned types and inserts casts between them";
    const OPTIONS: &'static [PassOption<Self>] = &[
        PassOption {
            def: KEEP_IO,
            print: |pass| print_keep_io(&pass.keep_io),
            read: |pass, given| given.keep_io().map(|keep_io| pass.keep_io = keep_io),
        },
        PassOption {
            def: OBJECTIVE,
            print: |pass| pass.fewest.then(|| Setting::word(Objective::Casts)),
            read: |pass, given| {
                let objective: Objective = given.read(|word| word.parse().ok())?;
                pass.fewest = objective == Objective::Casts;
                Ok(())
            },
        },
    ];
    fn blank() -> Self {
        InsertCasts::default()
    }
}

impl Pass for InsertCasts {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn options(&self) -> Vec<(&'static str, Setting)> {
        settings(self)
    }
    fn requires(&self) -> Invariants {
        Invariants::CORE.with(Invariants::CLASSIFIED).with(Invariants::ASSIGNED)
    }
    fn ensures(&self) -> Invariants {
        self.requires().with(Invariants::LOWERED)
    }
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let mut state = State {
            scopes: Scopes::new(module, self),
            casts: FxHashMap::default(),
            before: SecondaryMap::default(),
            edits: Vec::new(),
            dropped: false,
            followed: false,
            changed: false,
        };
        let graph = module.main();
        state.inputs(module, graph, &self.keep_io);
        state.graph(module, cx.facts);
        module.set_operands(std::mem::take(&mut state.edits));
        state.outputs(module, graph, &self.keep_io);
        let before = &state.before;
        let is_cast = |m: &Module, v| m.uses(v).any(|(n, _)| flow::inserted_result(m, n).is_some());
        names::part(module, |module, value| before[value].is_some() || is_cast(module, value));
        for graph in flow::graphs(module).into_iter().rev() {
            for node in module.nodes(graph).collect::<Vec<_>>().into_iter().rev() {
                module.prune_captures(node);
            }
        }
        let reimported = opsets::agree(module);
        let placed_so = |o: &&mut Optimum| {
            let fewest = o.objective == Objective::Casts;
            fewest == self.fewest && o.keep_io == self.keep_io && !o.counted
        };
        if let Some(optimum) = cx.results.current::<Optimum>().filter(placed_so) {
            let counted = count_rewritten(module, optimum);
            (optimum.merged, optimum.counted) = (optimum.cost - counted, true);
            if state.followed {
                // The choice did not know of it.
                optimum.optimal &= optimum.merged == 0;
            } else if optimum.merged < 0 || optimum.merged > 0 && !state.dropped {
                return Err(PassError::Recount { chosen: optimum.cost, counted });
            }
        }
        Ok(Changed::when(state.changed || reimported))
    }
}

/// A step of the walk, which enters bodies without recursion.
enum Step {
    Node(Node),
    /// The outputs of a body.
    Leave(GraphId),
    /// The results of a node with bodies.
    Results(Node),
}

struct State {
    scopes: Scopes,
    /// Casts that stand, by operand and element type.
    casts: FxHashMap<(Value, DType), Value>,
    /// The element type of a value before it was retyped.
    before: SecondaryMap<Value, Option<DType>>,
    /// Operands to set: done all at once, see [`Module::set_operands`].
    edits: Vec<(Node, usize, Option<Value>)>,
    /// Whether casts of the author were left out, or read around.
    dropped: bool,
    /// Whether a result that no operand types follows one that a pin made another type.
    followed: bool,
    changed: bool,
}

impl State {
    fn graph(&mut self, module: &mut Module, facts: &Facts) {
        let steps = |module: &Module, graph| {
            let mut steps: Vec<Step> = module.nodes(graph).map(Step::Node).collect();
            steps.reverse();
            steps
        };
        // What calls hand in and get back is of the types of their function wherever they are.
        let functions: Vec<GraphId> = module.functions().map(|(_, f)| f.graph).collect();
        for ports in functions.iter().filter_map(|&graph| Ports::of_body(module, graph)).collect::<Vec<_>>() {
            self.retype_ports(module, ports.node());
        }
        let mut work = Vec::new();
        for &graph in functions.iter().rev() {
            work.push(Step::Leave(graph));
            work.extend(steps(module, graph));
        }
        work.extend(steps(module, module.main()));
        while let Some(step) = work.pop() {
            match step {
                Step::Node(node) => {
                    let edited = self.edits.len();
                    self.operands(module, node);
                    let bodies: Vec<GraphId> = module.node(node).bodies().collect();
                    if !bodies.is_empty() {
                        self.enter(module, node, &bodies);
                        work.push(Step::Results(node));
                        for &body in bodies.iter().rev() {
                            work.push(Step::Leave(body));
                            work.extend(steps(module, body));
                        }
                    } else if module.node(node).schema().is_some() && !self.drop_idle_cast(module, node) {
                        self.results(module, node, edited, facts);
                    }
                }
                Step::Leave(body) => self.leave(module, body),
                Step::Results(node) => self.retype_ports(module, node),
            }
        }
    }

    /// Gives what the ports of a node make the types that were decided for them.
    fn retype_ports(&mut self, module: &mut Module, node: Node) {
        for var in flow::vars(module, node).collect::<Vec<_>>() {
            let Some(precision) = decided(module, var) else { continue };
            for (_, value) in flow::results_of(module, var).collect::<Vec<_>>() {
                self.retype(module, value, precision);
            }
        }
    }

    /// Gives what bodies get from around them the types it has now.
    fn enter(&mut self, module: &mut Module, node: Node, bodies: &[GraphId]) {
        for &body in bodies {
            for value in module.graph(body).captures().to_vec() {
                let outer = element(&module.value(flow::resolve_captures(module, value)).ty);
                if let Some(outer) = outer {
                    self.retype(module, value, outer);
                }
            }
        }
        for var in flow::vars(module, node).collect::<Vec<_>>() {
            let Some(precision) = decided(module, var) else { continue };
            for (_, value) in flow::results_of(module, var).collect::<Vec<_>>() {
                if module.value(value).graph != module.node(node).graph {
                    self.retype(module, value, precision);
                }
            }
        }
    }

    /// Gives the outputs of a body the types that were decided for the ports they go to.
    fn leave(&mut self, module: &mut Module, body: GraphId) {
        for index in 0..module.graph(body).outputs().len() {
            let value = module.graph(body).outputs()[index].value;
            if is_container(&module.value(value).ty) {
                let declared = &module.graph(body).outputs()[index].declared;
                if let Some(now) = element(&module.value(value).ty)
                    .filter(|&now| element(declared).is_some_and(|d| d != now))
                {
                    let declared = declared.with_element_dtype(now);
                    module.set_output_type(body, index, declared);
                }
                continue;
            }
            let Some(present) = module.value(value).ty.dtype() else { continue };
            // A cast of what is captured may be one with casts for readers in the body.
            let (root, _) = self.scopes.behind(module, value);
            self.dropped |= module.value(root).graph != body;
            let slot = u32::try_from(index).expect("fewer than 2^32 outputs");
            let port = flow::var_of_reader(module, Reader::Output(body, slot));
            let original = self.before[value].unwrap_or(present);
            let wanted = port.and_then(|port| decided(module, port)).filter(|_| original.is_float());
            let wanted = wanted.unwrap_or(original);
            // What a body captures is nothing that it makes, so it cannot be its output.
            let captured = |module: &Module, value| matches!(module.value(value).def, Def::Capture { .. });
            let behind = flow::behind_inserted(module, value);
            let elsewhere = behind != value && captured(module, value);
            if present != wanted || elsewhere {
                let mut cast = self.cast(module, value, wanted, body, Position::Last);
                let of_function = matches!(module.graph(body).owner, GraphOwner::Function(_));
                if of_function && module.producer(cast).is_none() && module.producer(value).is_some() {
                    // ONNX Runtime takes no function that hands out what it is handed.
                    cast = new_cast(module, value, wanted, Position::Last);
                }
                if captured(module, cast) {
                    // What an earlier run cast is there as it was before.
                    let from = module.capture_into(body, behind);
                    cast = new_cast(module, from, wanted, Position::Last);
                }
                module.set_output(body, index, cast);
                self.changed = true;
            }
            let declared = &module.graph(body).outputs()[index].declared;
            if declared.dtype().is_some_and(|d| d != wanted) {
                let declared = declared.with_element_dtype(wanted);
                module.set_output_type(body, index, declared);
            }
        }
    }

    /// Gives a float value, or a sequence or optional of floats, another element type.
    fn retype(&mut self, module: &mut Module, value: Value, to: DType) {
        let ty = module.value(value).ty.clone();
        let Some(present) = element(&ty) else { return };
        if present != to && present.is_float() && to.is_float() {
            self.before[value] = Some(present);
            module.set_type(value, ty.with_element_dtype(to));
            self.changed = true;
        }
    }

    /// The element type that operand `slot` of `node` must have.
    fn wanted(&self, module: &Module, node: Node, slot: usize, value: Value) -> Option<DType> {
        let present = module.value(value).ty.dtype()?;
        let decided = u32::try_from(slot)
            .ok()
            .and_then(|slot| flow::reader_var(module, node, slot))
            .and_then(|var| flow::decision(module, var)?.precision);
        let original = self.before[value].unwrap_or(present);
        // Only floats are ever cast: a decision about a variable that an integer binds is its own type.
        Some(decided.filter(|d| d.is_float() && original.is_float()).unwrap_or(original))
    }

    /// Inputs that nobody asked to keep become low if every reader wants that.
    fn inputs(&mut self, module: &mut Module, graph: GraphId, keep: &KeepIo) {
        for input in module.graph(graph).inputs().to_vec() {
            let name = ampc_ir::verify::name_of(module, input);
            let data = module.value(input);
            let overridable = !matches!(data.def, Def::Input { default: None, .. });
            if keep.keeps(&name)
                || overridable
                || data.ty.dtype() != Some(DType::F32)
                || module.is_output(input)
            {
                continue;
            }
            let wanted = wanted_by_all(module, input);
            if let Some(low) = wanted.filter(|d| d.is_low()) {
                self.retype(module, input, low);
            }
        }
    }

    fn operands(&mut self, module: &mut Module, node: Node) {
        for slot in 0..module.node(node).n_formal() {
            let Some(value) = module.node(node).operands()[slot] else { continue };
            let Some(wanted) = self.wanted(module, node, slot, value) else { continue };
            let behind = flow::behind_inserted(module, value);
            let round_about = behind != value && module.value(behind).ty.dtype() == Some(wanted);
            let graph = module.node(node).graph;
            // A cast of an earlier run, of another cast or in another graph than the choice took it to be.
            let elsewhere = || {
                let (root, _) = self.scopes.behind(module, value);
                let (cast, _) = module.producer(flow::resolve_captures(module, value))?;
                let of = module.node(cast).operand(0).map(|of| flow::resolve_captures(module, of));
                let (scope, _) = self.scopes.of(module, (root, wanted), graph);
                Some(of != Some(root) || module.node(cast).graph != scope)
            };
            let elsewhere = || behind != value && elsewhere() == Some(true);
            if round_about || module.value(value).ty.dtype() != Some(wanted) || elsewhere() {
                let cast = self.cast(module, value, wanted, graph, Position::Before(node));
                self.edits.push((node, slot, Some(cast)));
                self.changed = true;
            }
        }
    }

    /// Edits from `edited` on are those of this node.
    fn results(&mut self, module: &mut Module, node: Node, edited: usize, facts: &Facts) {
        for var in flow::vars(module, node) {
            let Some(precision) = flow::decision(module, var).and_then(|d| d.precision) else { continue };
            let results: Vec<(usize, Value)> = flow::results_of(module, var).collect();
            // A variable that no operand binds is what attributes and the other operands make it.
            // Sequences and what is in them are as decided.
            let structural = is_structural_node(module, node);
            let bound = flow::operands_of(module, var).next().is_some() || structural;
            if structural && precision.is_float() {
                set_element_attribute(module, node, precision);
            }
            let precision = if bound || results.is_empty() || !precision.is_float() {
                precision
            } else {
                // Seldom: what has such a variable takes its operands as they come.
                module.set_operands(self.edits.split_off(edited));
                let inferred = check_node(module, node, facts).ok().flatten();
                let made = inferred.and_then(|i| i.types.get(results[0].0)?.dtype()).unwrap_or(precision);
                self.followed |= made != precision;
                module.node_mut(node).decisions[usize::from(var.var)].precision = Some(made);
                made
            };
            for (_, value) in results {
                self.retype(module, value, precision);
            }
        }
    }

    /// A cast of the author that has become an identity: its readers read its operand.
    fn drop_idle_cast(&mut self, module: &mut Module, node: Node) -> bool {
        let data = module.node(node);
        if data.schema().map(|s| s.kind) != Some(OpKind::Cast) {
            return false;
        }
        let (Some(operand), Some(result)) = (data.operand(0), data.result(0)) else { return false };
        let retyped = self.before[operand].is_some();
        let present = module.value(operand).ty.dtype();
        // A cast that was pinned to read another type is not idle.
        let idle =
            present == module.value(result).ty.dtype() && self.wanted(module, node, 0, operand) == present;
        // Readers without a decision would take the operand for what it was before.
        let decided = |(n, s)| {
            flow::reader_var(module, n, s).and_then(|v| flow::decision(module, v)?.precision).is_some()
        };
        // It may stay for its pin or for what captures it, and counts as little as if it had gone.
        let pinned = pin_of_cast(module, node).is_some();
        let of_author = flow::inserted_result(module, node).is_none();
        self.dropped |= idle && (pinned || retyped && of_author);
        if !retyped || !idle || pinned || module.is_output(result) || !module.uses(result).all(decided) {
            return false;
        }
        module.replace_uses(result, operand, |_, _| true);
        module.erase_node(node);
        (self.changed, self.dropped) = (true, true);
        true
    }

    /// The value as `to` in a graph that reads it there, `before` a reader.
    fn cast(
        &mut self,
        module: &mut Module,
        value: Value,
        to: DType,
        graph: GraphId,
        before: Position,
    ) -> Value {
        // Casts that are exact are read around, and so is what an earlier run inserted.
        let Behind { root, low_identity, .. } = self.scopes.walk(module, value);
        // The choice takes what that makes for a tensor of its own.
        self.dropped |= low_identity;
        if root != value && module.value(root).ty.dtype() == Some(to) {
            self.dropped |= root != flow::behind_inserted(module, value);
            return module.capture_into(graph, root);
        }
        let (scope, owner) = self.scopes.of(module, (root, to), graph);
        let local = module.capture_into(scope, root);
        if let Some(&known) = self.casts.get(&(local, to)) {
            return module.capture_into(graph, known);
        }
        let at = match (module.producer(local), owner) {
            (Some((producer, _)), _) => Position::After(producer),
            (None, Some(owner)) => Position::Before(owner),
            (None, None) => before,
        };
        let result = new_cast(module, local, to, at);
        self.casts.insert((local, to), result);
        module.capture_into(graph, result)
    }

    fn outputs(&mut self, module: &mut Module, graph: GraphId, keep: &KeepIo) {
        // By the names they have now: the first of two outputs that are one value renames it.
        let kept: Vec<bool> = module
            .graph(graph)
            .outputs()
            .iter()
            .map(|o| keep.keeps(&ampc_ir::verify::name_of(module, o.value)))
            .collect();
        let mut renamed: FxHashSet<Value> = FxHashSet::default();
        for (index, kept) in kept.into_iter().enumerate() {
            let value = module.graph(graph).outputs()[index].value;
            let Some(public) = self.before[value] else { continue };
            let Some((producer, _)) = module.producer(value) else { continue };
            if !kept {
                let declared = &module.graph(graph).outputs()[index].declared;
                let low = module.value(value).ty.dtype().unwrap_or(public);
                let declared = declared.with_element_dtype(low);
                module.set_output_type(graph, index, declared);
                self.changed = true;
                continue;
            }
            let wide = match self.casts.get(&(value, public)) {
                Some(&known) => known,
                None => {
                    let wide = new_cast(module, value, public, Position::After(producer));
                    self.casts.insert((value, public), wide);
                    wide
                }
            };
            let (name, inner) = (module.value(value).name, module.value(wide).name);
            if let (Some(name), Some(inner)) = (name, inner) {
                // The public name moves; the low value takes one that says what it is.
                let low =
                    format!("{}.{}", module.text(name), module.value(value).ty.dtype().unwrap_or(public));
                let low = module.fresh_name(&low);
                if renamed.insert(wide) && name != inner {
                    module.set_value_name(value, low);
                    module.set_value_name(wide, name);
                    // A node without a name is called by what it makes: users go on calling it so.
                    if module.node(producer).name.is_none_or(|n| module.text(n).is_empty()) {
                        module.set_node_name(producer, Some(name));
                    }
                }
            }
            module.set_output(graph, index, wide);
            self.changed = true;
        }
    }
}

/// Makes the attribute that says what is in an empty sequence, or in an optional, say this.
pub(crate) fn set_element_attribute(module: &mut Module, node: Node, to: DType) {
    let name = match module.node(node).schema().map(|s| s.kind) {
        Some(OpKind::SequenceEmpty) => module.intern("dtype"),
        Some(OpKind::Optional) => module.intern("type"),
        _ => return,
    };
    let is_sequence = module.node(node).schema().is_some_and(|s| s.kind == OpKind::SequenceEmpty);
    let number = i64::from(to.number());
    let value = match module.node(node).attr(name).map(|a| &a.value) {
        // An empty sequence is one of f32 if nothing is said.
        None if is_sequence && to != DType::F32 => AttrValue::Int(number),
        Some(&AttrValue::Int(now)) if now != number => AttrValue::Int(number),
        Some(AttrValue::Type(ty)) if element(ty).is_some_and(|now| now != to) => {
            AttrValue::Type(ty.with_element_dtype(to))
        }
        None | Some(_) => return,
    };
    module.set_attr(node, name, value);
}

/// The element type that was decided for a variable, if it is a float type.
fn decided(module: &Module, var: Var) -> Option<DType> {
    flow::decision(module, var)?.precision.filter(|d| d.is_float())
}

/// The element type that every reader of a value was assigned, if it is one; looking through casts of the author that
/// change no number.
fn wanted_by_all(module: &Module, value: Value) -> Option<DType> {
    let (mut all, mut work) = (None, vec![value]);
    while let Some(value) = work.pop() {
        for reader in flow::readers(module, value) {
            let same = match reader {
                Reader::Operand(node, _) => same_number(module, node),
                Reader::Output(..) => None,
            };
            if let Some(same) = same.filter(|&same| !module.is_output(same)) {
                work.push(same);
                continue;
            }
            let wanted = flow::decision(module, flow::var_of_reader(module, reader)?)?.precision?;
            if *all.get_or_insert(wanted) != wanted {
                return None;
            }
        }
    }
    all
}

/// Adds a cast and returns its result, called after the value and the format: `x.f16`.
pub(crate) fn new_cast(module: &mut Module, value: Value, to: DType, at: Position) -> Value {
    let graph = module.value(value).graph;
    let base = module.value_name(value).map_or_else(|| value.to_string(), |s| module.text(s).to_owned());
    let name = module.fresh_name(&format!("{base}.{to}"));
    let node_name = module.fresh_name(&format!("{base}.{to}.cast"));
    let opset = flow::onnx_opset(module, graph);
    if module.opset(graph, "").is_none() {
        // Its nodes are of other domains only.
        module.import_opset(graph, "", opset);
    }
    let mut inserter = Inserter::new(module, graph, at);
    inserter.provenance = Provenance::Inserted;
    let to = target_value(sound(inserter.schema(OpKind::Cast)), to);
    let cast = NodeSpec::new(OpKind::Cast, &[value]).attr("to", to).result_name(name);
    let [result] = sound(inserter.insert(cast.node_name(Some(node_name))));
    result
}

/// Makes a cast one to another type; what it makes has to be given that type as well.
pub(crate) fn set_target(module: &mut Module, cast: Node, to: DType) {
    if let Some(schema) = module.node(cast).schema() {
        let attr = module.intern("to");
        module.set_attr(cast, attr, target_value(schema, to));
    }
}

/// The attribute of a cast that says what it makes.
fn target_value(schema: &OpSchema, to: DType) -> AttrValue {
    match schema.attr("to").map(|a| a.kind) {
        // Below operator set 6 the type is spelled out.
        Some(AttrKind::String) => {
            AttrValue::String(to.onnx_name().to_uppercase().into_bytes().into_boxed_slice())
        }
        _ => to.into(),
    }
}
