//! Steps 2 and 3: names and order.
//!
//! A name that a body reads and does not define comes from the graphs around it; such *free* names are
//! collected from the innermost graphs outwards. They count as operands of the owning node, so a body that
//! reads a later value moves its owner behind that value, and a body that reads a value that depends on the
//! owner is a cycle.

use super::Import;
use super::names::NameTable;
use super::raw::{RawGraph, RawNode, RawOwner, Tables};
use crate::onnx::error::{ProblemKind, Warning};
use ampc_ir::{Module, Op, Symbol};
use petgraph::algo::tarjan_scc;
use petgraph::graph::DiGraph;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The definition of a name in a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DefinedBy {
    Input,
    Constant,
    Node(usize),
}

/// A name taken from outside, and its reader: graph and node, or no node for an output.
#[derive(Clone, Copy)]
struct Free {
    name: Symbol,
    reader: (usize, Option<usize>),
}

/// Resolves the names of every graph and sorts its nodes.
pub(super) fn resolve(import: &mut Import<'_>, tables: &mut Tables) {
    let mut free: Vec<Vec<Free>> = tables.graphs.iter().map(|_| Vec::new()).collect();
    let (mut listed, mut unsorted) = ([0, 0], Vec::new());
    let (mut defined, mut seen) = (NameTable::new(), NameTable::new());
    for g in (0..tables.graphs.len()).rev() {
        defined.start();
        seen.start();
        definitions(import, &tables.graphs, g, tables.header.ir_version, &mut defined, &mut listed);
        let graph = &tables.graphs[g];
        let order = order(&import.module, graph, &defined, &free).unwrap_or_else(|nodes| {
            let place = path_of(&import.module, &tables.graphs, graph.owner);
            import.problem(place, ProblemKind::Cycle { nodes });
            (0..graph.nodes.len()).collect()
        });
        free[g] = free_names(graph, g, &order, &defined, &mut seen, &free);
        if !order.is_sorted() {
            unsorted.push(g);
        }
        tables.graphs[g].order = order;
        tables.graphs[g].free = free[g].iter().map(|f| f.name).collect();
        if !matches!(tables.graphs[g].owner, RawOwner::Body { .. }) {
            for Free { name, reader: (graph, node) } in std::mem::take(&mut free[g]) {
                let place = reader_label(&import.module, &tables.graphs, graph, node);
                let name = import.module.text(name).to_owned();
                import.problem(place, ProblemKind::Undefined { name });
            }
        }
    }
    // The outermost first.
    if let Some((&first, others)) = unsorted.split_last() {
        let graph = graph_label(&import.module, &tables.graphs, first);
        import.warnings.push(Warning::Unsorted { graph, more: others.len() });
    }
    warn_of_unnamed(import, &tables.graphs);
    if import.sparse_initializers > 0 {
        import.warnings.push(Warning::SparseInitializers { count: import.sparse_initializers });
    }
    let [constants, overridable] = listed;
    if constants > 0 {
        import.warnings.push(Warning::ListedInitializers { count: constants });
    }
    if overridable > 0 {
        import.warnings.push(Warning::OverridableInitializers { count: overridable });
    }
}

/// Warns of graphs without a name; functions without one have been reported.
fn warn_of_unnamed(import: &mut Import<'_>, graphs: &[RawGraph]) {
    let is_unnamed =
        |&g: &usize| graphs[g].name.is_empty() && !matches!(graphs[g].owner, RawOwner::Function(_));
    let mut unnamed = (0..graphs.len()).filter(is_unnamed);
    if let Some(first) = unnamed.next() {
        let first = graph_label(&import.module, graphs, first);
        import.warnings.push(Warning::UnnamedGraph { first, more: unnamed.count() });
    }
}

/// The names that a graph defines. A name may be both input and initializer: then the initializer is the
/// input's default.
fn definitions(
    import: &mut Import<'_>,
    graphs: &[RawGraph],
    g: usize,
    ir_version: i64,
    defined: &mut NameTable<DefinedBy>,
    listed: &mut [usize; 2],
) {
    let graph = &graphs[g];
    let clash = |import: &mut Import<'_>, name, first, second| {
        let place = path_of(&import.module, graphs, graph.owner);
        let what = |by| match by {
            DefinedBy::Input => "an input".to_owned(),
            DefinedBy::Constant => "an initializer".to_owned(),
            DefinedBy::Node(i) => format!("a result of `{}`", label(&import.module, "", &graph.nodes[i], i)),
        };
        let name = import.module.text(name).to_owned();
        let kind = ProblemKind::DuplicateName { name, first: what(first), second: what(second) };
        import.problem(place, kind);
    };
    for input in &graph.inputs {
        if let Some(first) = defined.insert(input.name, DefinedBy::Input) {
            clash(import, input.name, first, DefinedBy::Input);
        }
    }
    for constant in &graph.constants {
        match defined.insert(constant.name, DefinedBy::Constant) {
            Some(DefinedBy::Input) => listed[usize::from(ir_version > 3)] += 1,
            Some(first) => clash(import, constant.name, first, DefinedBy::Constant),
            None => {}
        }
    }
    for (i, node) in graph.nodes.iter().enumerate() {
        for &name in node.outputs.iter().flatten() {
            if let Some(first) = defined.insert(name, DefinedBy::Node(i)) {
                clash(import, name, first, DefinedBy::Node(i));
            }
        }
    }
}

/// The free variables of a graph, in the order of their first readers in program order, in which the graph is
/// written.
fn free_names(
    graph: &RawGraph,
    g: usize,
    order: &[usize],
    defined: &NameTable<DefinedBy>,
    seen: &mut NameTable<()>,
    free: &[Vec<Free>],
) -> Vec<Free> {
    let mut names = Vec::new();
    let mut read = |f: Free| {
        if defined.get(f.name).is_none() && seen.insert(f.name, ()).is_none() {
            names.push(f);
        }
    };
    for &i in order {
        let node = &graph.nodes[i];
        node.inputs.iter().flatten().for_each(|&name| read(Free { name, reader: (g, Some(i)) }));
        for &body in graph.bodies.get(&i).into_iter().flatten() {
            free[body].iter().for_each(|&f| read(f));
        }
    }
    graph.outputs.iter().for_each(|o| read(Free { name: o.name, reader: (g, None) }));
    names
}

/// Program order: the order of the file where that is topological, else the smallest topological one (Kahn 1962,
/// smallest index first). The error names the nodes of a cycle.
fn order(
    module: &Module,
    graph: &RawGraph,
    defined: &NameTable<DefinedBy>,
    free: &[Vec<Free>],
) -> Result<Vec<usize>, Vec<String>> {
    let n = graph.nodes.len();
    let producers = |i: usize| {
        let bodies = graph.bodies.get(&i).into_iter().flatten();
        let captured = bodies.flat_map(|&b| free[b].iter().map(|f| f.name));
        graph.nodes[i].inputs.iter().flatten().copied().chain(captured).filter_map(|name| {
            match defined.get(name) {
                Some(DefinedBy::Node(producer)) => Some(producer),
                Some(DefinedBy::Input | DefinedBy::Constant) | None => None,
            }
        })
    };
    if (0..n).all(|i| producers(i).all(|p| p < i)) {
        return Ok((0..n).collect());
    }
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); n];
    let mut missing = vec![0usize; n];
    for (i, missing) in missing.iter_mut().enumerate() {
        for p in producers(i) {
            readers[p].push(i);
            *missing += 1;
        }
    }
    let mut ready: BinaryHeap<Reverse<usize>> = (0..n).filter(|&i| missing[i] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(n);
    while let Some(Reverse(i)) = ready.pop() {
        order.push(i);
        for &reader in &readers[i] {
            missing[reader] -= 1;
            if missing[reader] == 0 {
                ready.push(Reverse(reader));
            }
        }
    }
    if order.len() == n {
        return Ok(order);
    }
    let edges = (0..n).filter(|&i| missing[i] > 0).flat_map(|i| readers[i].iter().map(move |&r| (i, r)));
    let names = cycle(edges).into_iter().map(|i| label(module, "", &graph.nodes[i], i));
    Err(names.collect())
}

/// The members of the first circle among the edges, in order of their number.
fn cycle(edges: impl Iterator<Item = (usize, usize)>) -> Vec<usize> {
    let mut graph = DiGraph::<usize, ()>::new();
    let mut vertex: FxHashMap<usize, _> = FxHashMap::default();
    for (from, to) in edges {
        let from = *vertex.entry(from).or_insert_with(|| graph.add_node(from));
        let to = *vertex.entry(to).or_insert_with(|| graph.add_node(to));
        graph.update_edge(from, to, ());
    }
    let circle = |c: &Vec<_>| c.len() > 1 || c.iter().any(|&v| graph.contains_edge(v, v));
    let circles = tarjan_scc(&graph).into_iter().filter(circle);
    let mut members: Vec<Vec<usize>> = circles.map(|c| c.into_iter().map(|v| graph[v]).collect()).collect();
    members.iter_mut().for_each(|m| m.sort_unstable());
    members.into_iter().min().unwrap_or_default()
}

/// Reports functions that call themselves.
pub(super) fn check_calls(import: &mut Import<'_>, tables: &Tables) {
    use ampc_ir::entity::EntityRef;
    let calls =
        tables.graphs.iter().filter_map(|g| Some((g.function?, &g.nodes))).flat_map(|(caller, nodes)| {
            nodes.iter().filter_map(move |n| match n.op {
                Some(Op::Call(callee)) => Some((caller, callee.index())),
                Some(Op::Schema(_) | Op::Custom { .. }) | None => None,
            })
        });
    let circle = cycle(calls);
    if !circle.is_empty() {
        let name = |i: usize| {
            let m = &tables.functions[i].message;
            format!("{}::{}", m.domain, m.name)
        };
        let names = circle.into_iter().map(name).collect();
        import.problem("", ProblemKind::RecursiveFunction { names });
    }
}

/// The path of a graph: empty for the main one, `function/` or `owner/attribute/` else.
pub(super) fn path_of(module: &Module, graphs: &[RawGraph], owner: RawOwner) -> String {
    let mut parts = Vec::new();
    let mut owner = owner;
    loop {
        match owner {
            RawOwner::Main => break,
            RawOwner::Function(i) => {
                // Functions follow the main graph in the table; a function that is being read is not there yet.
                parts.push(graphs.get(i + 1).map_or_else(|| format!("function {i}"), |g| g.name.clone()));
                break;
            }
            RawOwner::Body { graph, node, attr } => {
                parts.push(module.text(attr).to_owned());
                // An owner that is being read is not in the table yet.
                let Some(outer) = graphs.get(graph) else { break };
                parts.push(label(module, "", &outer.nodes[node], node));
                owner = outer.owner;
            }
        }
        if parts.len() > 16 {
            parts.push("…".to_owned());
            break;
        }
    }
    parts.reverse();
    parts.join("/")
}

/// Description of a node for messages: its path by name, by first result, or by number.
pub(super) fn label(module: &Module, graph: &str, node: &RawNode, index: usize) -> String {
    let name = node.name.or_else(|| node.outputs.iter().flatten().next().copied());
    match name {
        Some(name) => join(graph, module.text(name)),
        None => join(graph, &format!("node {index}")),
    }
}

pub(super) fn join(graph: &str, name: &str) -> String {
    if graph.is_empty() { name.to_owned() } else { format!("{graph}/{name}") }
}

fn graph_label(module: &Module, graphs: &[RawGraph], g: usize) -> String {
    match graphs[g].owner {
        RawOwner::Main => "the main graph".to_owned(),
        owner @ (RawOwner::Function(_) | RawOwner::Body { .. }) => {
            format!("`{}`", path_of(module, graphs, owner))
        }
    }
}

fn reader_label(module: &Module, graphs: &[RawGraph], g: usize, node: Option<usize>) -> String {
    let graph = path_of(module, graphs, graphs[g].owner);
    match node {
        Some(i) => label(module, &graph, &graphs[g].nodes[i], i),
        None => join(&graph, "outputs"),
    }
}
