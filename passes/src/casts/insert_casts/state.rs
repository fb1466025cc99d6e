//! The walk over a module that gives values their types and inserts the casts of a placement.

use super::nodes::{new_cast, set_element_attribute};
use crate::analysis::placement::{Placement, Read};
use crate::analysis::tensors::is_capture;
use crate::graph::containers::{element, is_container, is_structural_node};
use crate::graph::flow::{self, Reader, Var};
use crate::policy::KeepIo;
use crate::policy::pinned::pin_of_cast;
use ampc_ir::edit::Position;
use ampc_ir::entity::SecondaryMap;
use ampc_ir::op::OpKind;
use ampc_ir::ports::Ports;
use ampc_ir::{DType, GraphId, Module, Node, Value};
use rustc_hash::{FxHashMap, FxHashSet};

/// A step of the walk, which enters bodies without recursion.
enum Step {
    Node(Node),
    /// The outputs of a body.
    Leave(GraphId),
    /// The results of a node with bodies.
    Results(Node),
}

/// The state of the walk.
pub(super) struct State<'p> {
    placement: &'p Placement,
    /// The results of the casts of the placement that stand.
    made: Vec<Option<Value>>,
    /// The results of casts of the author that were left out, with their operands.
    left_out: FxHashMap<Value, Value>,
    /// The element type of a value before it was retyped.
    pub(super) before: SecondaryMap<Value, Option<DType>>,
    /// Operands to set: done all at once, see [`Module::set_operands`].
    edits: Vec<(Node, usize, Option<Value>)>,
    pub(super) changed: bool,
}

impl<'p> State<'p> {
    /// The state before the walk.
    pub(super) fn new(placement: &'p Placement) -> State<'p> {
        State {
            placement,
            made: vec![None; placement.casts().len()],
            left_out: FxHashMap::default(),
            before: SecondaryMap::default(),
            edits: Vec::new(),
            changed: false,
        }
    }

    /// Gives the values of the main graph, of functions and of bodies their types, and sets operands and outputs of bodies.
    pub(super) fn graphs(&mut self, module: &mut Module) {
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
                        self.results(module, node);
                    }
                }
                Step::Leave(body) => self.leave(module, body),
                Step::Results(node) => self.retype_ports(module, node),
            }
        }
        module.set_operands(std::mem::take(&mut self.edits));
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
            let slot = u32::try_from(index).expect("fewer than 2^32 outputs");
            let site = Reader::Output(body, slot);
            let port = flow::var_of_reader(module, site);
            let original = self.before[value].unwrap_or(present);
            let wanted = port.and_then(|port| decided(module, port)).filter(|_| original.is_float());
            let wanted = wanted.unwrap_or(original);
            if let Some(read) = self.placement.read(site) {
                let read = self.value_of(module, read, body, Position::Last);
                module.set_output(body, index, read);
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

    /// Gives inputs of the model that need not keep their types the formats of the placement.
    pub(super) fn inputs(&mut self, module: &mut Module, graph: GraphId) {
        for input in module.graph(graph).inputs().to_vec() {
            if let Some(low) = self.placement.format_of_input(input) {
                self.retype(module, input, low);
            }
        }
    }

    fn operands(&mut self, module: &mut Module, node: Node) {
        for slot in 0..module.node(node).n_formal() {
            let site = u32::try_from(slot).ok().map(|slot| Reader::Operand(node, slot));
            let Some(read) = site.and_then(|site| self.placement.read(site)) else { continue };
            let graph = module.node(node).graph;
            let value = self.value_of(module, read, graph, Position::Before(node));
            self.edits.push((node, slot, Some(value)));
            self.changed = true;
        }
        if flow::inserted_result(module, node).is_some() {
            // A cast of an earlier run reads its operand as it is now.
            let now = module.node(node).operand(0).and_then(|value| module.value(value).ty.dtype());
            if let (Some(decision), Some(now)) = (module.node_mut(node).decisions.first_mut(), now) {
                decision.precision = Some(now);
            }
        }
    }

    fn results(&mut self, module: &mut Module, node: Node) {
        for var in flow::vars(module, node) {
            let Some(precision) = flow::decision(module, var).and_then(|d| d.precision) else { continue };
            // Sequences and what is in them are as decided.
            if precision.is_float() && is_structural_node(module, node) {
                set_element_attribute(module, node, precision);
            }
            for (_, value) in flow::results_of(module, var).collect::<Vec<_>>() {
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
        let pinned = pin_of_cast(module, node).is_some();
        // A body hands out no value that it captures.
        let is_handed_out = || is_capture(module, operand) && self.placement.hands_out(module, result);
        if !retyped || !idle || pinned || module.is_output(result) || is_handed_out() {
            return false;
        }
        if !module.uses(result).all(decided) {
            return false;
        }
        module.replace_uses(result, operand, |_, _| true);
        module.erase_node(node);
        self.left_out.insert(result, operand);
        self.changed = true;
        true
    }

    /// A value as it is called now: the operand of a cast that was left out instead of its result.
    pub(super) fn now(&self, value: Value) -> Value {
        let operands = std::iter::successors(Some(value), |value| self.left_out.get(value).copied());
        operands.last().unwrap_or(value)
    }

    /// A value that is read in a graph, `before` the reader.
    fn value_of(&mut self, module: &mut Module, read: Read, graph: GraphId, before: Position) -> Value {
        let cast = match read {
            Read::Tensor(tensor) => return module.capture_into(graph, self.now(tensor)),
            Read::Cast(cast) => cast,
        };
        let placed = self.placement.casts()[cast];
        let made = self.made[cast].unwrap_or_else(|| {
            let local = module.capture_into(placed.graph, self.now(placed.tensor));
            let owner = owner_around(module, placed.graph, graph);
            let at = match (module.producer(local), owner) {
                (Some((producer, _)), _) => Position::After(producer),
                (None, Some(owner)) => Position::Before(owner),
                (None, None) => before,
            };
            new_cast(module, local, placed.to, at)
        });
        self.made[cast] = Some(made);
        module.capture_into(graph, made)
    }

    pub(super) fn outputs(&mut self, module: &mut Module, graph: GraphId, keep: &KeepIo) {
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
            let slot = u32::try_from(index).expect("fewer than 2^32 outputs");
            let Some(read) = self.placement.read(Reader::Output(graph, slot)) else { continue };
            let wide = self.value_of(module, read, graph, Position::After(producer));
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

/// The element type that was decided for a variable, if it is a float type.
fn decided(module: &Module, var: Var) -> Option<DType> {
    flow::decision(module, var)?.precision.filter(|d| d.is_float())
}

/// The node of a graph that has another graph in its bodies, at whatever depth.
fn owner_around(module: &Module, graph: GraphId, inside: GraphId) -> Option<Node> {
    let mut at = inside;
    while at != graph {
        let owner = module.owner(at)?;
        if module.node(owner).graph == graph {
            return Some(owner);
        }
        at = module.node(owner).graph;
    }
    None
}
