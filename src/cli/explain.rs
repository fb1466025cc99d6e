//! `--explain NODE`: what was decided about a node, and why.

use super::diagnose::type_text;
use super::problem::Failure;
use super::table::Table;
use ampc::Report;
use ampc::error::did_you_mean;
use ampc::ir::module::Provenance;
use ampc::ir::verify::name_of;
use ampc::ir::{Module, Node, Value};
use ampc::passes::Paths;
use ampc::report::is_cast;
use std::fmt::Write as _;

/// Nodes to explain, found before the passes run.
pub(crate) struct Explained {
    nodes: Vec<(String, Node)>,
    paths: Option<Paths>,
}

impl Explained {
    /// Finds the nodes.
    ///
    /// # Errors
    /// If there is no such node.
    pub(crate) fn find(module: &Module, wanted: &[String]) -> Result<Explained, Failure> {
        if wanted.is_empty() {
            return Ok(Explained { nodes: Vec::new(), paths: None });
        }
        let paths = Paths::new(module);
        let mut nodes = Vec::new();
        for path in wanted {
            let Some(node) = paths.node(path) else {
                let hint = did_you_mean(paths.nearest(path));
                let message = format!("`--explain {path}`: the model has no such node{hint}");
                return Err(Failure::usage("explain", message).with_help(super::help::PATHS));
            };
            nodes.push((path.clone(), node));
        }
        Ok(Explained { nodes, paths: Some(paths) })
    }

    /// What was decided about them.
    pub(crate) fn text(&self, module: &Module, report: &Report) -> String {
        let Some(paths) = &self.paths else { return String::new() };
        let cx = Cx { module, paths, report };
        let texts: Vec<String> = self.nodes.iter().map(|(path, node)| cx.node(path, *node)).collect();
        texts.join("\n")
    }
}

struct Cx<'a> {
    module: &'a Module,
    paths: &'a Paths,
    report: &'a Report,
}

impl Cx<'_> {
    fn node(&self, path: &str, node: Node) -> String {
        let (domain, op, _) = self.module.op_name(node);
        let mut text = format!("{} `{path}`\n", ampc::passes::policy::op_key(domain, op));
        let data = self.module.node(node);
        if !data.is_alive() {
            let why = if self.is_cast(node) { "; what it casts has the type it casts to" } else { "" };
            text.push_str(&format!("  is not in the result: nothing needs it{why}\n"));
        }
        let decisions = self.decisions(path);
        if decisions.is_empty() {
            let why = match data.schema() {
                Some(_) => "it has no floats to decide about",
                None => "its operator is not in the operator table",
            };
            let _ = writeln!(text, "  nothing was decided: {why}");
        } else {
            let _ = write!(text, "{decisions}");
        }
        if data.is_alive() {
            text.push_str(&self.operands(node));
            text.push_str(&self.results(node));
        }
        text
    }

    fn decisions(&self, path: &str) -> Table {
        let mut table = Table::new(2, &[]);
        for var in self.report.node(path).map_or(&[][..], |n| &n.vars) {
            let rule = match var.evidence.as_str() {
                "" => var.rule.clone(),
                evidence => format!("{}: {evidence}", var.rule),
            };
            table.row([&var.var, &var.precision, &format!("class {}", var.class), &format!("by {rule}")]);
        }
        table
    }

    fn operands(&self, node: Node) -> String {
        let data = self.module.node(node);
        let mut table = Table::new(4, &[]);
        for (i, operand) in data.formal_operands().iter().enumerate() {
            let Some(value) = *operand else { continue };
            let formal =
                data.schema().and_then(|s| s.input(i)).map_or_else(|| format!("#{i}"), |f| f.name.to_owned());
            table.row([
                formal,
                name_of(self.module, value),
                type_text(self.module, value),
                self.origin(value),
            ]);
        }
        if table.is_empty() { String::new() } else { format!("  reads\n{table}") }
    }

    /// Where a value comes from.
    fn origin(&self, value: Value) -> String {
        let Some((maker, _)) = self.module.producer(value) else {
            return match self.module.constant(value).and_then(|p| p.dense()) {
                Some(data) if !data.pending().is_empty() => {
                    format!("constant, converted from {}", data.stored_dtype())
                }
                Some(_) => "constant".into(),
                None => "input of the graph".into(),
            };
        };
        match self.module.node(maker).operand(0) {
            Some(from) if self.is_inserted(maker) => format!(
                "cast inserted: from `{}`, {}, {}",
                name_of(self.module, from),
                type_text(self.module, from),
                self.origin(from)
            ),
            _ => format!("made by {}", self.called(maker)),
        }
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
                name_of(self.module, value),
                type_text(self.module, value),
                self.readers(value).join(", "),
            ]);
        }
        if table.is_empty() { String::new() } else { format!("  makes\n{table}") }
    }

    fn readers(&self, value: Value) -> Vec<String> {
        const SHOWN: usize = 6;
        let mut nodes: Vec<Node> = self.module.uses(value).map(|(n, _)| n).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let mut words = Vec::new();
        if self.module.is_output(value) {
            words.push("output of the graph".to_owned());
        }
        for &reader in nodes.iter().take(SHOWN) {
            match self.module.node(reader).result(0) {
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

    fn called(&self, node: Node) -> String {
        let (domain, op, _) = self.module.op_name(node);
        format!("{} `{}`", ampc::passes::policy::op_key(domain, op), self.paths.path(node))
    }

    fn is_cast(&self, node: Node) -> bool {
        is_cast(self.module, node)
    }

    fn is_inserted(&self, node: Node) -> bool {
        self.is_cast(node) && self.module.node(node).provenance == Provenance::Inserted
    }
}
