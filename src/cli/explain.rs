//! `--explain NODE`: the decision about a node, and its reason.

use super::diagnose;
use super::diagnose::type_text;
use super::problem::Failure;
use super::shown;
use super::summary::amount;
use super::table::Table;
use ampc::Report;
use ampc::ir::module::{Def, GraphOwner, Op, Provenance};
use ampc::ir::ports::Ports;
use ampc::ir::verify::name_of;
use ampc::ir::views::resolve_captures;
use ampc::ir::{GraphId, Module, Node, Value};
use ampc::passes::policy::{Names, Pin, op_key};
use ampc::passes::suggest::did_you_mean;
use ampc::passes::{Paths, Policy};
use ampc::report::{MAX_FORCED, NodeReport, is_cast};
use rustc_hash::{FxHashMap, FxHashSet};
use std::fmt::Write as _;
use std::sync::Arc;

/// Nodes that one pattern explains at most.
const SHOWN_NODES: usize = 20;

/// Nodes to explain, found before the passes run.
pub(crate) struct Explained {
    nodes: Vec<Wanted>,
    /// The failure of patterns that match nothing, beside patterns that match.
    unmatched: Option<Failure>,
    /// Note about patterns that match more than is shown.
    more: String,
    paths: Option<Arc<Paths>>,
}

/// A node to explain.
struct Wanted {
    path: String,
    /// The node of the source.
    node: Node,
    /// True if the path leads through a call: the call in the result may be of another form of the function.
    by_call: bool,
}

impl Explained {
    /// Finds the nodes: names, globs and regular expressions, read as in pins.
    ///
    /// # Errors
    /// If no pattern matches a node.
    pub(crate) fn find(module: &Module, wanted: &[String]) -> Result<Explained, Failure> {
        if wanted.is_empty() {
            return Ok(Explained { nodes: Vec::new(), unmatched: None, more: String::new(), paths: None });
        }
        let paths = Paths::of(module);
        let (mut nodes, mut more) = (Vec::new(), String::new());
        let mut unmatched: Option<Failure> = None;
        for pattern in wanted {
            if let Some(node) = paths.by_call(module, pattern).filter(|_| paths.node(pattern).is_none()) {
                nodes.push(Wanted { path: pattern.clone(), node, by_call: true });
                continue;
            }
            let found = matching(&paths, pattern, str::to_owned)?;
            if found.is_empty() {
                let failure = no_such_node(&paths, pattern);
                match &mut unmatched {
                    Some(first) => first.problems.extend(failure.problems),
                    None => unmatched = Some(failure),
                }
                continue;
            }
            if found.len() > SHOWN_NODES {
                let pattern = shown::name(pattern);
                let _ = writeln!(more, "\nand {} more that `{pattern}` matches", found.len() - SHOWN_NODES);
            }
            let found = found.into_iter().take(SHOWN_NODES);
            nodes.extend(found.map(|node| Wanted {
                path: paths.path(node).to_owned(),
                node,
                by_call: false,
            }));
        }
        match unmatched {
            Some(failure) if nodes.is_empty() => Err(failure),
            unmatched => Ok(Explained { nodes, unmatched, more, paths: Some(paths) }),
        }
    }

    /// The failure of patterns that match nothing, once the nodes of the others are explained.
    pub(crate) fn unmatched(&self) -> Option<Failure> {
        self.unmatched.clone()
    }

    /// Their paths.
    pub(crate) fn paths(&self) -> Vec<String> {
        self.nodes.iter().map(|wanted| wanted.path.clone()).collect()
    }

    /// The decisions about the matched nodes, as text.
    pub(crate) fn text(&self, module: &Module, report: &Report) -> String {
        let Some(paths) = &self.paths else { return String::new() };
        let result = self.nodes.iter().any(|n| n.by_call).then(|| Paths::of(module));
        let by_path: FxHashMap<&str, &NodeReport> =
            report.nodes.iter().rev().map(|node| (&*node.path, node)).collect();
        let cx = Cx { module, paths, report, by_path: &by_path };
        let text = |Wanted { path, node, by_call }: &Wanted| {
            // A decision that is equal for all calls is listed under the name of the function.
            let listed = if by_path.contains_key(&**path) { path } else { paths.path(*node) };
            let in_result = result.as_ref().filter(|_| *by_call);
            let found = in_result.and_then(|result| Some((result, result.by_call(module, path)?)));
            let (paths, node) = found.unwrap_or((paths, *node));
            Cx { paths, ..cx }.node(path, listed, node)
        };
        let texts: Vec<String> = self.nodes.iter().map(text).collect();
        let asked: FxHashSet<&str> = self.nodes.iter().map(|wanted| &*wanted.path).collect();
        let uncosted = if report.optimum.is_some() && asked.len() > MAX_FORCED {
            format!("\nthe cost of the other format is computed for the first {MAX_FORCED} nodes only\n")
        } else {
            String::new()
        };
        texts.join("\n") + &self.more + &uncosted
    }
}

/// The failure of a pattern that matches no node. Names are case-sensitive, so a name that differs in case only is told as
/// such.
fn no_such_node(paths: &Paths, pattern: &str) -> Failure {
    let in_case = matching(paths, pattern, str::to_lowercase).ok();
    let hint = match in_case.as_ref().and_then(|nodes| nodes.first()) {
        Some(&node) => {
            format!("; `{}` differs in upper and lower case only, which counts in names", paths.path(node))
        }
        None => did_you_mean(paths.nearest(pattern)),
    };
    let message = format!("`--explain {pattern}`: the model has no such node{hint}");
    Failure::usage("explain", message).with_help(super::help::PATHS)
}

/// The nodes that a pattern names, in program order. Pattern and names are compared in the case that `of` gives them.
fn matching(paths: &Paths, pattern: &str, of: fn(&str) -> String) -> Result<Vec<Node>, Failure> {
    let pattern = &of(pattern);
    if let Some(node) = paths.node(pattern) {
        return Ok(vec![node]);
    }
    let mut policy = Policy::default();
    policy.pin(pattern, Pin::Auto).map_err(|e| diagnose::policy(&e, None))?;
    let pins = policy.pins_in(&NodeNames(paths, of), &NoNames);
    let Some((Some(reading), _)) = pins.nodes.first() else { return Ok(Vec::new()) };
    let is_meant = |&node: &Node| paths.names(node).any(|name| reading.matches(&of(name)));
    Ok(paths.nodes().iter().copied().filter(is_meant).collect())
}

struct NodeNames<'a>(&'a Paths, fn(&str) -> String);

impl Names for NodeNames<'_> {
    fn has(&self, name: &str) -> bool {
        self.any(&|known| known == name)
    }
    fn any(&self, test: &dyn Fn(&str) -> bool) -> bool {
        self.0.nodes().iter().any(|&n| self.0.names(n).any(|name| test(&self.1(name))))
    }
}

struct NoNames;

impl Names for NoNames {
    fn has(&self, _: &str) -> bool {
        false
    }
    fn any(&self, _: &dyn Fn(&str) -> bool) -> bool {
        false
    }
}

#[derive(Clone, Copy)]
struct Cx<'a> {
    module: &'a Module,
    paths: &'a Paths,
    report: &'a Report,
    by_path: &'a FxHashMap<&'a str, &'a NodeReport>,
}

impl Cx<'_> {
    fn node(&self, path: &str, listed: &str, node: Node) -> String {
        let mut text = format!("{}\n", shown::message(&format!("{} `{path}`", self.op(node))));
        let data = self.module.node(node);
        if !data.is_alive() {
            let why = if self.is_cast(node) {
                "it was an identity, a duplicate or unused, or moved out of its loop"
            } else {
                "nothing needs it"
            };
            text.push_str(&format!("  is not in the result: {why}\n"));
        }
        let decisions = self.decisions(path, listed);
        if decisions.is_empty() {
            let why = shown::message(&self.why_undecided(node));
            let _ = writeln!(text, "  nothing was decided: {why}");
        } else {
            let _ = write!(text, "{decisions}");
        }
        if data.is_alive() {
            text.push_str(&self.operands(node));
            text.push_str(&self.ports(node));
            text.push_str(&self.results(node));
        }
        text
    }

    fn decisions(&self, path: &str, listed: &str) -> Table {
        let mut table = Table::new(2, &[]);
        for var in self.by_path.get(listed).map_or(&[][..], |n| &n.vars) {
            let rule = match var.evidence.is_empty() {
                true => var.rule.clone(),
                false => format!("{}: {}", var.rule, var.evidence),
            };
            let other = self.other(path, &var.var).map_or_else(String::new, |other| format!("; {other}"));
            let class = format!("class {}", var.class);
            let by = format!("by {rule}{other}");
            table.row([&*var.var, &*var.precision, &class, &by]);
        }
        table
    }

    /// Cost of a pin of a variable to the other format.
    fn other(&self, path: &str, var: &str) -> Option<String> {
        let optimum = self.report.optimum.as_ref()?;
        let forced = optimum.forced.iter().find(|forced| forced.node == path && forced.var == var)?;
        let size = amount(optimum, forced.costs_more.unsigned_abs());
        Some(match forced.costs_more.signum() {
            0 => format!("a pin to {} would cost as much", forced.precision),
            1 => format!("a pin to {} would cost {size} more", forced.precision),
            _ => format!("a pin to {} would cost {size} less", forced.precision),
        })
    }

    fn why_undecided(&self, node: Node) -> String {
        let first = Ports::of(self.module, node).map(|ports| ports.node()).filter(|&first| first != node);
        match (first, self.module.node(node).op) {
            (Some(first), _) => {
                format!("the ports of the function belong to its first call, `{}`", self.paths.path(first))
            }
            (None, Op::Schema(_) | Op::Call(_)) => "it has no floats to decide about".into(),
            (None, Op::Custom { .. }) => {
                "its operator is not in the operator table, and no signature of the policy describes it"
                    .into()
            }
        }
    }

    fn operands(&self, node: Node) -> String {
        let data = self.module.node(node);
        let mut table = Table::new(4, &[]);
        for (i, operand) in data.operands().iter().enumerate() {
            let Some(value) = *operand else { continue };
            let formal = match data.schema().and_then(|s| s.input(i)) {
                _ if i >= data.n_formal() => "captured".to_owned(),
                Some(formal) => formal.name.to_owned(),
                None => format!("#{i}"),
            };
            table.row([formal, self.name(value), type_text(self.module, value), self.origin(value)]);
        }
        if table.is_empty() { String::new() } else { format!("  reads\n{table}") }
    }

    /// Values that enter and leave bodies, or a function.
    fn ports(&self, node: Node) -> String {
        let Some(ports) = Ports::of(self.module, node) else { return String::new() };
        let data = self.module.node(node);
        let typed = |value| format!("`{}` {}", self.name(value), type_text(self.module, value));
        let mut table = Table::new(4, &[]);
        for port in 0..ports.len() {
            let operand = ports.operand(port).and_then(|slot| data.operand(slot));
            let result = ports.result(port).and_then(|slot| data.result(slot));
            let mut ways: Vec<String> =
                operand.map(|value| format!("takes {}", typed(value))).into_iter().collect();
            let inputs = ports.body_inputs(self.module, port);
            ways.extend(inputs.map(|value| format!("inside it is {}", typed(value))));
            for (body, slot) in ports.body_outputs(self.module, port) {
                let value = self.module.graph(body).outputs()[slot].value;
                let place =
                    self.attr(body).map_or_else(|| "the function".to_owned(), |attr| format!("`{attr}`"));
                ways.push(format!("{place} returns {}", typed(value)));
            }
            ways.extend(result.map(|value| format!("makes {}", typed(value))));
            table.row([ports.name(port), ways.join(", ")]);
        }
        if table.is_empty() { String::new() } else { format!("  ports\n{table}") }
    }

    /// The origin of a value.
    fn origin(&self, value: Value) -> String {
        let data = self.module.value(value);
        match &data.def {
            Def::Capture { .. } => {
                let outer = resolve_captures(self.module, value);
                // A capture without an operand stands for nothing; no valid module has one.
                if outer == value { "captured".into() } else { format!("captured: {}", self.origin(outer)) }
            }
            Def::Input { slot, .. } => self.origin_of_input(data.graph, *slot as usize),
            Def::Constant(payload) => match payload.dense() {
                Some(data) if !data.pending().is_empty() => {
                    format!("constant, converted from {}", data.stored_dtype())
                }
                Some(_) | None => "constant".into(),
            },
            Def::Result { node: maker, .. } => match self.module.node(*maker).operand(0) {
                Some(from) if self.is_inserted(*maker) => format!(
                    "cast inserted: from `{}`, {}, {}",
                    self.name(from),
                    type_text(self.module, from),
                    self.origin(from)
                ),
                _ => format!("made by {}", self.called(*maker)),
            },
            Def::Erased => "gone".into(),
        }
    }

    fn origin_of_input(&self, graph: GraphId, slot: usize) -> String {
        let ports = Ports::of_body(self.module, graph);
        let port = ports.as_ref().and_then(|ports| Some(self.port(ports, ports.of_body_input(slot)?)));
        match (self.module.graph(graph).owner, port) {
            (_, Some(port)) => format!("enters through port {port}"),
            (GraphOwner::Body { node, .. }, None) => match (ports, slot) {
                (None, _) => format!("input of a body of {}", self.called(node)),
                (Some(_), 0) => format!("number of the iteration of {}", self.called(node)),
                (Some(_), _) => format!("condition of {}", self.called(node)),
            },
            (GraphOwner::Function(f), None) => {
                format!("input of function `{}`", self.module.text(self.module.function(f).name))
            }
            (GraphOwner::Main | GraphOwner::Erased, None) => "input of the graph".into(),
        }
    }

    /// `` `loop1#state0` ``.
    fn port(&self, ports: &Ports, port: usize) -> String {
        format!("`{}#{}`", self.paths.path(ports.node()), ports.name(port))
    }

    fn results(&self, node: Node) -> String {
        let data = self.module.node(node);
        let mut table = Table::new(4, &[]);
        for (i, result) in data.results().iter().enumerate() {
            let Some(value) = *result else { continue };
            let formal = data
                .schema()
                .and_then(|s| s.output(i))
                .map_or_else(|| format!("#{i}"), |f| f.name.to_owned());
            table.row([
                formal,
                self.name(value),
                type_text(self.module, value),
                self.readers(value).join(", "),
            ]);
        }
        if table.is_empty() { String::new() } else { format!("  makes\n{table}") }
    }

    fn readers(&self, value: Value) -> Vec<String> {
        const SHOWN: usize = 6;
        let mut nodes: Vec<(Node, bool)> = self
            .module
            .uses(value)
            .map(|(n, slot)| (n, slot as usize >= self.module.node(n).n_formal()))
            .collect();
        nodes.sort_unstable();
        nodes.dedup();
        let mut words = self.leaves(value);
        for &(reader, captures) in nodes.iter().take(SHOWN) {
            match self.module.node(reader).result(0) {
                _ if captures => words.push(format!("captured by {}", self.called(reader))),
                Some(cast) if self.is_inserted(reader) => {
                    let to = self
                        .module
                        .value(cast)
                        .ty
                        .element_dtype()
                        .map_or_else(String::new, |d| d.to_string());
                    words.push(format!("cast inserted to {to}: {}", self.readers(cast).join(" and ")));
                }
                _ => words.push(format!("read by {}", self.called(reader))),
            }
        }
        if nodes.len() > SHOWN {
            words.push(format!("and {} more", nodes.len() - SHOWN));
        }
        if words.is_empty() {
            words.push("not read".into());
        }
        words
    }

    /// The outputs that a value is.
    fn leaves(&self, value: Value) -> Vec<String> {
        let graph = self.module.value(value).graph;
        let ports = Ports::of_body(self.module, graph);
        let of = |&slot: &u32| match (self.module.graph(graph).owner, &ports) {
            (GraphOwner::Body { node, .. }, Some(ports)) => match ports.of_body_output(slot as usize) {
                Some(port) => format!("leaves through port {}", self.port(ports, port)),
                None => format!("condition of {}", self.called(node)),
            },
            (GraphOwner::Function(_), Some(ports)) => match ports.of_body_output(slot as usize) {
                Some(port) => format!("leaves through port {}", self.port(ports, port)),
                None => "output of the function".into(),
            },
            (GraphOwner::Function(_), None) => "output of the function".into(),
            (GraphOwner::Body { node, .. }, None) => format!("output of a body of {}", self.called(node)),
            (GraphOwner::Main | GraphOwner::Erased, _) => "output of the graph".into(),
        };
        let mut words: Vec<String> = self.module.output_slots(value).map(|slot| of(&slot)).collect();
        words.dedup();
        words
    }

    /// A value's name; a capture has the name of the captured value.
    fn name(&self, value: Value) -> String {
        name_of(self.module, value)
    }

    /// The attribute that a body is in; a function's graph is in none.
    fn attr(&self, body: GraphId) -> Option<&str> {
        match self.module.graph(body).owner {
            GraphOwner::Body { attr, .. } => Some(self.module.text(attr)),
            GraphOwner::Main | GraphOwner::Function(_) | GraphOwner::Erased => None,
        }
    }

    fn op(&self, node: Node) -> String {
        let (domain, op, _) = self.module.op_name(node);
        op_key(domain, op)
    }

    fn called(&self, node: Node) -> String {
        format!("{} `{}`", self.op(node), self.paths.path(node))
    }

    fn is_cast(&self, node: Node) -> bool {
        is_cast(self.module, node)
    }

    fn is_inserted(&self, node: Node) -> bool {
        self.is_cast(node) && self.module.node(node).provenance == Provenance::Inserted
    }
}
