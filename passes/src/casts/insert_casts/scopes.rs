//! Where casts of captured values stand: outside every loop, within the one branch that reads them.
//!
//! A body that reads a captured value in another format needs a cast of it, and there is a choice of graphs: its own,
//! or any around it. Out of a Loop, Scan or SequenceMap the cast always moves, to run once. Among branches of Ifs those
//! places are taken that run least often together: one branch alone, which runs every other time, has the cast for
//! itself; where both branches of an If, or what is around it, read the value so, one cast stands around. For example:
//!
//! ```text
//! h = Softmax(x)
//! y = If(c) { then: MatMul(h, h)     low: only this branch reads h low, so h is cast in it,
//!             else: Exp(h) }         and where c is false no cast runs
//! g = Softmax(y)
//! g.f16 = Cast(g)                    the body reads g low: the cast stands before the Loop,
//! z = Loop(n, x) { MatMul(p, g.f16)  and what the body captures is its result
//!   p.f16 = Cast(p) … }              p is state, another value in each iteration: cast in the body
//! ```

use super::{InsertCasts, decided};
use crate::analysis::cost::{Executions, Sizes};
use crate::analysis::values::is_stored;
use crate::graph::flow::{self, Reader, Var};
use crate::policy::pinned::pin_of_cast;
use ampc_ir::module::{Decision, Def, Rule};
use ampc_ir::op::{Class, OpKind};
use ampc_ir::verify::name_of;
use ampc_ir::views::resolve_captures;
use ampc_ir::{DType, GraphId, Module, Node, Value};
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// The graphs in which captured values are cast.
#[derive(Default)]
pub(super) struct Scopes {
    of: BTreeMap<(Value, DType), BTreeSet<GraphId>>,
    /// What is behind values.
    known: RefCell<FxHashMap<Value, Behind>>,
}

/// What is behind a value.
#[derive(Clone, Copy)]
pub(super) struct Behind {
    /// The value that it is the same number as.
    pub(super) root: Value,
    /// The graph of the first cast on the way that is the author's and makes it fp32.
    widened: Option<GraphId>,
    /// Whether a cast of the author from a 16-bit format to the same is on the way.
    pub(super) low_identity: bool,
}

impl Scopes {
    pub(super) fn new(module: &Module, pass: &InsertCasts) -> Scopes {
        let InsertCasts { keep_io, fewest } = pass;
        let mut scopes = Scopes::default();
        let graphs = flow::graphs(module);
        // Without bodies everything is cast where it is.
        if graphs.len() == 1 {
            return scopes;
        }
        for &graph in &graphs {
            for node in module.nodes(graph) {
                // What reads such a cast is asked, and not the cast.
                if flow::inserted_result(module, node).is_some() || scopes.is_exact_as_decided(module, node) {
                    continue;
                }
                scopes.narrows(module, node, graph);
                // A node that takes any element type needs no cast of its operands, through whatever nodes they arrive.
                if takes_what_arrives(module, node) {
                    continue;
                }
                for (slot, value) in (0u32..).zip(module.node(node).formal_operands()) {
                    if let Some(value) = *value {
                        scopes.reads(module, value, flow::reader_var(module, node, slot), graph);
                    }
                }
            }
            for (slot, output) in (0u32..).zip(module.graph(graph).outputs()) {
                let port = flow::var_of_reader(module, Reader::Output(graph, slot));
                let (root, _) = scopes.behind(module, output.value);
                // What need not keep its type is cast for nobody, but where a cast makes it that is there.
                let follows = graph == module.main()
                    && !keep_io.keeps(&name_of(module, output.value))
                    && root == output.value;
                // What a body hands out of what it captures is cast in the body.
                if !follows && module.value(root).graph == graph {
                    scopes.reads(module, output.value, port, graph);
                }
            }
        }
        let executions =
            if *fewest { Executions::once() } else { Executions::count(module, &Sizes::default()) };
        for (&(root, _), scopes) in &mut scopes.of {
            *scopes = cheapest(module, &executions, root, scopes);
        }
        // Inputs may change yet.
        scopes.known.get_mut().clear();
        scopes
    }

    /// Notes a cast of the author that takes any element type and makes a 16-bit format where one is made, so that other
    /// casts to that format are merged with it.
    fn narrows(&mut self, module: &Module, node: Node, graph: GraphId) {
        let data = module.node(node);
        let (Some(operand), Some(result)) = (data.operand(0), data.result(0)) else { return };
        let is_cast = data.schema().is_some_and(|s| s.kind == OpKind::Cast);
        // What was decided for it before anything was chosen is low: nothing else is left to decide.
        let asked =
            |d: &Decision| d.class == Class::Allow && matches!(d.reason.rule(), Rule::Pin(_) | Rule::Replay);
        let takes = module.value(operand).ty.dtype() == Some(DType::F32)
            && !data.decisions.first().is_some_and(asked);
        if !is_cast || !takes || resolve_captures(module, operand) != operand {
            return;
        }
        let (root, _) = self.behind(module, operand);
        let to = module.value(result).ty.dtype().filter(|dtype| dtype.is_low());
        let from = will_be(module, root);
        if let Some(to) = to.filter(|_| from.is_some() && from != to) {
            self.of.entry((root, to)).or_default().insert(graph);
        }
    }

    /// Notes where a value is cast for a reader in a graph, if it is.
    fn reads(&mut self, module: &Module, value: Value, reader: Option<Var>, graph: GraphId) {
        // In a body of a custom operator no type is known, but what it captures has one.
        let present = module.value(resolve_captures(module, value)).ty.dtype();
        let (root, widened) = self.behind(module, value);
        let from = will_be(module, root);
        let wanted = reader.and_then(|var| decided(module, var)).or(present).filter(|d| d.is_float());
        let Some(wanted) = wanted.filter(|_| from.is_some() && from != wanted) else { return };
        // A cast of the author stays where it is.
        let stands = widened.filter(|_| wanted == DType::F32);
        let scope = stands.unwrap_or_else(|| outside_loops(module, root, graph));
        self.of.entry((root, wanted)).or_default().insert(scope);
    }

    /// What a value is the same number as, and the graph of the first cast on the way that is the author's and makes it
    /// fp32.
    pub(super) fn behind(&self, module: &Module, value: Value) -> (Value, Option<GraphId>) {
        let Behind { root, widened, .. } = self.walk(module, value);
        (root, widened)
    }

    /// Walks behind captures and casts, also those to the format that their operand will have.
    pub(super) fn walk(&self, module: &Module, value: Value) -> Behind {
        let mut value = resolve_captures(module, value);
        let mut way = Vec::new();
        let mut behind = Behind { root: value, widened: None, low_identity: false };
        while let Some((node, _)) = module.producer(value)
            && let Some(operand) = module.node(node).operand(0)
        {
            let inserted = flow::inserted_result(module, node).is_some();
            if !inserted && !self.is_exact_as_decided(module, node) {
                break;
            }
            let dtype = |value: Value| module.value(value).ty.dtype();
            let widens = !inserted && dtype(value) == Some(DType::F32);
            let same = !inserted && dtype(value) == dtype(operand) && dtype(value).is_some_and(DType::is_low);
            way.push((value, widens.then(|| module.node(node).graph), same));
            value = resolve_captures(module, operand);
            behind.root = value;
            if let Some(&known) = self.known.borrow().get(&value).filter(|known| is_alive(module, known.root))
            {
                behind = known;
                break;
            }
        }
        // Chains are walked once: of each value on the way it is known now.
        let mut known = self.known.borrow_mut();
        for (on_it, widened, same) in way.into_iter().rev() {
            behind.widened = behind.widened.or(widened);
            behind.low_identity |= same;
            known.insert(on_it, behind);
        }
        behind
    }

    /// Whether a node is a cast, of what is made in its graph, that will change no number, to fp32 or to what it reads.
    fn is_exact_as_decided(&self, module: &Module, node: Node) -> bool {
        let data = module.node(node);
        let (Some(operand), Some(result)) = (data.operand(0), data.result(0)) else { return false };
        if data.schema().is_none_or(|s| s.kind != OpKind::Cast)
            || resolve_captures(module, operand) != operand
        {
            return false;
        }
        let reads = flow::vars(module, node).next().and_then(|var| decided(module, var));
        let to = module.value(result).ty.dtype();
        will_be(module, flow::behind_inserted(module, operand)).is_some_and(|from| {
            let exact = to == Some(from) || to == Some(DType::F32) && from.is_low();
            let exact = exact && pin_of_cast(module, node).is_none();
            // One that was pinned to read fp32 has its operand widened.
            exact && reads.is_none_or(|reads| reads == from || reads == DType::F32 && to == Some(reads))
        })
    }

    /// The graph in which a value is cast for readers in a graph, and the node there that has them in its bodies.
    pub(super) fn of(
        &self,
        module: &Module,
        cast: (Value, DType),
        graph: GraphId,
    ) -> (GraphId, Option<Node>) {
        let home = module.value(cast.0).graph;
        let known = self.of.get(&cast);
        let (mut scope, mut inside) = ((graph, None), graph);
        while inside != home {
            let Some(owner) = module.owner(inside) else { break };
            inside = module.node(owner).graph;
            if known.is_some_and(|k| k.contains(&inside)) {
                scope = (inside, Some(owner));
            }
        }
        scope
    }
}

/// Whether a node is a cast of the author that nothing was to be cast for.
fn takes_what_arrives(module: &Module, node: Node) -> bool {
    let data = module.node(node);
    data.schema().is_some_and(|s| s.kind == OpKind::Cast)
        && data.decisions.first().is_some_and(|decision| decision.class == Class::Discrete)
        && pin_of_cast(module, node).is_none()
}

/// Whether what makes a value has not been left out.
fn is_alive(module: &Module, value: Value) -> bool {
    !matches!(module.value(value).def, Def::Erased)
}

/// The float type that a value will have where it is made.
fn will_be(module: &Module, value: Value) -> Option<DType> {
    let present = module.value(value).ty.dtype().filter(|d| d.is_float())?;
    Some(flow::producer_var(module, value).and_then(|var| decided(module, var)).unwrap_or(present))
}

/// The graph around all loops between a value and a graph that reads it. Constants are converted where they are.
fn outside_loops(module: &Module, root: Value, graph: GraphId) -> GraphId {
    let home = module.value(root).graph;
    let kind = |node: Node| module.node(node).schema().map(|s| s.kind);
    if is_stored(module, root) {
        return home;
    }
    let (mut scope, mut at) = (graph, graph);
    while at != home {
        let Some(owner) = module.owner(at) else { break };
        at = module.node(owner).graph;
        if kind(owner) != Some(OpKind::If) {
            scope = at;
        }
    }
    scope
}

/// Where a value is cast of which casts are wanted in some graphs: the places that are run least often together, and
/// of those that are run as often the outermost, unless it serves a single place inside.
fn cheapest(
    module: &Module,
    executions: &Executions,
    root: Value,
    wanted: &BTreeSet<GraphId>,
) -> BTreeSet<GraphId> {
    let home = module.value(root).graph;
    if wanted.len() <= 1 || wanted.contains(&home) {
        return wanted.iter().copied().filter(|&graph| graph == home || !wanted.contains(&home)).collect();
    }
    // The graphs between, each with those inside it, outermost first.
    let mut inside: BTreeMap<GraphId, BTreeSet<GraphId>> = BTreeMap::new();
    for &graph in wanted {
        let mut at = graph;
        while at != home {
            let Some(owner) = module.owner(at) else { break };
            let around = module.node(owner).graph;
            inside.entry(around).or_default().insert(at);
            at = around;
        }
    }
    let mut order = vec![home];
    let mut next = 0;
    while let Some(graph) = order.get(next).copied() {
        next += 1;
        if !wanted.contains(&graph) {
            order.extend(inside.get(&graph).into_iter().flatten());
        }
    }
    let mut least: BTreeMap<GraphId, (i64, bool)> = BTreeMap::new();
    for &graph in order.iter().rev() {
        let own = executions.of(graph);
        let children = inside.get(&graph).filter(|_| !wanted.contains(&graph));
        let found = children.map_or((own, true), |children| {
            let sum = children.iter().fold(0i64, |sum, child| sum.saturating_add(least[child].0));
            if own < sum || own == sum && children.len() > 1 { (own, true) } else { (sum, false) }
        });
        least.insert(graph, found);
    }
    let (mut places, mut work) = (BTreeSet::new(), vec![home]);
    while let Some(graph) = work.pop() {
        if least[&graph].1 {
            places.insert(graph);
        } else {
            work.extend(inside.get(&graph).into_iter().flatten());
        }
    }
    places
}
