//! `raise-opset`: raises a model to a newer operator set, as a whole or not at all.
//!
//! ONNX changes operators from opset to opset: attributes become operands, defaults change, names change. A
//! model is raised one opset at a time. In each step every node whose operator has a version of that opset is
//! converted to the new form (by the data in `history`), in the main graph, in bodies, and in functions whose
//! own imports are older. Inserted nodes have the opset of their step, and are raised further like all other
//! nodes. Values keep their names, so that the interface stays; the IR version rises to the version that the
//! opset requires.
//!
//! If a node cannot be converted, the model is left unchanged, and the error lists all such operators and
//! steps. Opsets are never lowered. Operators of other domains stay at the version their import says.
//!
//! The pass runs first: new nodes are the author's as far as later passes know, and nothing is decided yet.

mod adapters;
#[cfg(test)]
mod compatible;
mod cx;
mod history;
mod kernels;
mod step;
mod target;

use crate::graph::paths::Paths;
use crate::opset::raise_units;
use crate::opset::raise_units::Families;
pub use crate::pass::error::NoForm;
use crate::pass::invariants::Invariants;
use crate::pass::options::{FORMAT, OptionDef, POLICY, PassOption, Setting, Spelled, option, settings};
use crate::pass::{Changed, Pass, PassCx, PassError};
use crate::policy::PolicyError;
use ampc_ir::infer::{Facts, infer_module};
use ampc_ir::op::{Arity, OpKind, OpSchema};
use ampc_ir::{DType, GraphId, Module, Node};
use cx::{Cx, Refused};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::sync::Arc;
use step::{Form, Step};
pub use target::{NEWEST_READ, Target, opset};

/// The pass.
#[derive(Clone, Debug)]
pub struct RaiseOpset {
    /// The opset of ai.onnx to raise to.
    pub to: Target,
}

impl Spelled for RaiseOpset {
    const NAME: &'static str = "raise-opset";
    const ABOUT: &'static str = "raises the model to a newer operator set";
    const OPTIONS: &'static [PassOption<Self>] = &[
        PassOption {
            def: option("to", "an opset or auto", None),
            print: |pass| Some(pass.to.number().map_or_else(|| Setting::word("auto"), Setting::word)),
            read: |pass, given| {
                let auto = || Target::Auto {
                    format: DType::F16,
                    policy: Arc::default(),
                    units: Families::default(),
                };
                pass.to = given.read(|word| match word {
                    "auto" => Some(auto()),
                    number => number.parse().ok().map(Target::Opset),
                })?;
                Ok(())
            },
        },
        PassOption {
            def: OptionDef { name: "format", ..FORMAT },
            print: |pass| pass.to.auto().map(|(format, _)| Setting::word(format)),
            read: |pass, given| {
                let read = given.format()?;
                if let Target::Auto { format, .. } = &mut pass.to {
                    *format = read;
                }
                Ok(())
            },
        },
        PassOption {
            def: POLICY,
            print: |pass| pass.to.auto().map(|(_, policy)| Setting::Policy(policy.clone())),
            read: |pass, given| {
                let read = given.policy()?;
                if let Target::Auto { policy, .. } = &mut pass.to {
                    *policy = read;
                }
                Ok(())
            },
        },
        PassOption {
            def: option("units", raise_units::UNITS, Some("")),
            print: |pass| match &pass.to {
                Target::Auto { units, .. } if !units.is_empty() => Some(raise_units::print_units(units)),
                Target::Auto { .. } | Target::Opset(_) => None,
            },
            read: |pass, given| {
                let read = given.listed(raise_units::read_units)?;
                if let Target::Auto { units, .. } = &mut pass.to {
                    *units = read;
                }
                Ok(())
            },
        },
    ];
    fn blank() -> Self {
        RaiseOpset { to: Target::Opset(0) }
    }
    fn check(&self) -> Result<(), PolicyError> {
        self.to.auto().map_or(Ok(()), |(format, policy)| policy.check_format(format))
    }
}

impl Pass for RaiseOpset {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn options(&self) -> Vec<(&'static str, Setting)> {
        settings(self)
    }
    fn renews_facts(&self) -> bool {
        true
    }
    fn revokes(&self) -> Invariants {
        Invariants::DECISIONS
    }
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let mut raised = module.clone();
        let mut changed = false;
        // What `auto` asks for can only be seen at the opset it led to: that of what was inserted, for example.
        while let Some(to) = self.to.opset(&raised, cx.facts)? {
            changed |= raise(&mut raised, cx.facts, to)?;
        }
        if let Some(opset) = self.to.number().filter(|&opset| opset > NEWEST_READ) {
            let message = format!(
                "ONNX Runtime 1.31 reads models up to opset {NEWEST_READ}: it cannot load one of opset {opset}"
            );
            cx.warn("opset.unread", None, message);
        }
        if changed {
            // Later passes read the types of what is new. If they do not fit, the check after the pass says so.
            let _ = infer_module(&mut raised);
            kernels::warn(module, &raised, cx);
            *module = raised;
        }
        Ok(Changed::when(changed))
    }
}

/// Raises a module to an opset that is not below its own; whether that changed anything.
fn raise(module: &mut Module, facts: &Facts, to: u16) -> Result<bool, PassError> {
    let mut raise = Raise { facts, steps: steps(), without: BTreeMap::new(), stuck: FxHashSet::default() };
    // Graphs by the one that has their imports.
    let mut scopes: BTreeMap<GraphId, Vec<GraphId>> = BTreeMap::new();
    for graph in module.graph_ids() {
        scopes.entry(module.root(graph)).or_default().push(graph);
    }
    let mut changed = false;
    for (root, graphs) in scopes {
        let Some(from) = module.opset(root, "").filter(|&from| from < to) else { continue };
        for opset in from + 1..=to {
            raise.step(module, &graphs, opset);
        }
        module.set_opset(root, "", to);
        changed = true;
    }
    if !raise.without.is_empty() {
        return Err(PassError::NoForm { to, missing: raise.missing(module) });
    }
    if changed {
        module.header.ir_version = module.header.ir_version.max(ir_version(to));
    }
    Ok(changed)
}

/// The table by operator and version.
fn steps() -> FxHashMap<(OpKind, u16), Step> {
    let same =
        history::SAME.iter().flat_map(|&(kind, list)| list.iter().map(move |&to| ((kind, to), Step::Same)));
    same.chain(history::CHANGED.iter().map(|&(kind, to, step)| ((kind, to), step))).collect()
}

struct Raise<'a> {
    facts: &'a Facts,
    steps: FxHashMap<(OpKind, u16), Step>,
    /// Nodes without a form, by their operator, its next version, and why; with their version.
    without: BTreeMap<(&'static str, u16, String), (u16, Vec<Node>)>,
    /// Nodes that cannot be raised further.
    stuck: FxHashSet<Node>,
}

impl Raise<'_> {
    /// Raises all nodes of these graphs, which share their imports, by one opset.
    fn step(&mut self, module: &mut Module, graphs: &[GraphId], opset: u16) {
        let mut cx = Cx::new(module, self.facts, opset);
        for &graph in graphs {
            for node in cx.inserter.module.nodes(graph).collect::<Vec<_>>() {
                let Some(schema) = cx.inserter.module.node(node).schema().filter(|s| s.domain.is_empty())
                else {
                    continue;
                };
                let Some(next) = schema.kind.versions().iter().find(|s| s.since == opset) else { continue };
                let step = self.steps.get(&(schema.kind, opset)).copied();
                let step = step.unwrap_or(Step::Missing("no version of ampc has looked at this step yet"));
                if let Err(Refused(why)) = self.node(&mut cx, node, step, next) {
                    self.stuck.insert(node);
                    let nodes = self.without.entry((schema.name, opset, why));
                    nodes.or_insert((schema.since, Vec::new())).1.push(node);
                }
            }
        }
    }

    /// The operators that have no form, for the error.
    fn missing(&self, module: &Module) -> Vec<NoForm> {
        let paths = Paths::of(module);
        let form = |(key, (from, nodes)): (&(&'static str, u16, String), &(u16, Vec<Node>))| NoForm {
            op: key.0,
            from: *from,
            to: key.1,
            why: key.2.clone(),
            count: nodes.len(),
            first: nodes.first().map_or_else(String::new, |&n| paths.path(n).to_owned()),
        };
        self.without.iter().map(form).collect()
    }

    fn node(&self, cx: &mut Cx<'_>, node: Node, step: Step, next: &'static OpSchema) -> Result<(), Refused> {
        match step {
            Step::Missing(why) => return Err(Refused(why.into())),
            // What the table says of later steps is worth saying; what functions say would be about another form.
            _ if self.stuck.contains(&node) => return Ok(()),
            Step::Same | Step::Kept(_) => {}
            Step::Form(form) => apply(cx, node, form, next)?,
            Step::By(adapter, _) if !cx.view(node).lacks_attributes() => adapter(cx, node)?,
            Step::By(_, what) => {
                return Err(Refused(format!(
                    "{what}; here an attribute is one of the function's, known at calls only"
                )));
            }
        }
        if !next.is_gone() {
            types_fit(cx.inserter.module, node, next)?;
            cx.inserter.module.set_version(node, next);
        }
        Ok(())
    }
}

/// Changes attributes as data says.
fn apply(cx: &mut Cx<'_>, node: Node, form: Form, next: &OpSchema) -> Result<(), Refused> {
    form.drop.iter().for_each(|name| cx.remove(node, name));
    form.write.iter().for_each(|&(name, value)| cx.write(node, name, value));
    if let Some((name, slot)) = form.operand {
        if let Some(list) = cx.attr(node, name) {
            let operand = cx.list(node, name, list)?;
            cx.set_operand(node, slot, Some(operand));
            cx.remove(node, name);
        } else if next.inputs.get(slot).is_some_and(|formal| formal.arity == Arity::Single) {
            return Err(Refused(format!("no `{name}`")));
        }
    }
    Ok(())
}

/// True if the next version takes the types that a node has.
fn types_fit(module: &Module, node: Node, next: &'static OpSchema) -> Result<(), Refused> {
    let data = module.node(node);
    let operands = data.formal_operands().iter().enumerate().map(|(i, v)| (v, next.input(i)));
    let results = data.results().iter().enumerate().map(|(i, v)| (v, next.output(i)));
    for (value, formal) in operands.chain(results) {
        let (Some(value), Some(formal)) = (*value, formal) else { continue };
        let ty = &module.value(value).ty;
        if !next.types_of(formal).admits(ty) {
            let found = ty.element_dtype().map_or_else(|| "no tensor".to_owned(), |d| d.to_string());
            return Err(Refused(format!(
                "`{}` is {found}, which the operator does not take any more",
                formal.name
            )));
        }
    }
    Ok(())
}

/// The IR version that came with an opset of ai.onnx: ONNX's table of versions (`onnx.helper.VERSION_TABLE`).
pub fn ir_version(opset: u16) -> i64 {
    match opset {
        0..=8 => 3,
        9 => 4,
        10 => 5,
        11 => 6,
        12..=14 => 7,
        15..=18 => 8,
        19 | 20 => 9,
        21 | 22 => 10,
        23 => 11,
        24 => 12,
        25..=27 => 13,
        _ => 14,
    }
}

#[cfg(test)]
mod tests {
    use super::compatible::{Difference, differences};
    use super::*;
    use ampc_ir::op::latest_opset;

    /// All steps of ai.onnx that start at a version which models can have.
    fn all_steps() -> impl Iterator<Item = (&'static OpSchema, &'static OpSchema)> {
        let kinds = OpKind::ALL.iter().filter(|k| k.domain().is_empty());
        let pairs = kinds.flat_map(|k| k.versions().windows(2)).map(|pair| (&pair[0], &pair[1]));
        pairs.filter(|(from, _)| !from.is_gone())
    }

    #[test]
    fn every_step_is_in_the_table_once() {
        let mut listed: Vec<(OpKind, u16)> =
            history::SAME.iter().flat_map(|&(kind, list)| list.iter().map(move |&to| (kind, to))).collect();
        listed.extend(history::CHANGED.iter().map(|&(kind, to, _)| (kind, to)));
        listed.sort();
        let mut expected: Vec<(OpKind, u16)> = all_steps().map(|(_, to)| (to.kind, to.since)).collect();
        expected.sort();
        assert_eq!(listed, expected);
    }

    #[test]
    fn what_the_table_says_of_schemas_holds() {
        let steps = steps();
        let mut wrong = Vec::new();
        for (from, to) in all_steps() {
            let found = differences(from, to);
            let mut rest: Vec<Difference> = found.clone();
            let benign = |d: &Difference| matches!(d, Difference::NewAttr(_) | Difference::NewOptional(_));
            let why = match steps[&(to.kind, to.since)] {
                Step::Same => "proved",
                Step::Kept(why) => {
                    rest.retain(|d| !benign(d) && !matches!(d, Difference::FewerTypes(_)));
                    why
                }
                Step::Form(form) => {
                    let slot = form.operand.and_then(|(_, slot)| to.inputs.get(slot)).map(|f| f.name);
                    rest.retain(|d| match *d {
                        Difference::LostAttr(name) => {
                            !form.drop.contains(&name) && form.operand.is_none_or(|(attr, _)| attr != name)
                        }
                        Difference::OtherDefault(name) => form.write.iter().all(|&(n, _)| n != name),
                        Difference::NewRequired(name) => slot != Some(name),
                        _ => !benign(d),
                    });
                    form.why
                }
                // What these change is in their cases.
                Step::By(_, what) => {
                    rest.clear();
                    what
                }
                Step::Missing(why) => {
                    rest.clear();
                    why
                }
            };
            if !rest.is_empty() || why.is_empty() {
                wrong.push(format!("{} {} → {}: {rest:?}", to.name, from.since, to.since));
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn attributes_that_are_written_have_their_old_meaning() {
        // The defaults before, as the schemas have them; where they had none, the texts.
        for &(kind, to, step) in history::CHANGED {
            let Step::Form(form) = step else { continue };
            let before = kind.versions().iter().rev().find(|s| s.since < to).unwrap();
            for &(name, value) in form.write {
                let old = before.attr(name).map(|a| a.default);
                let texts = [
                    ("GRU", "direction"),
                    ("Concat", "axis"),
                    ("RoiAlign", "coordinate_transformation_mode"),
                ];
                assert!(old == Some(value) || texts.contains(&(kind.name(), name)), "{} {name}", kind.name());
            }
        }
    }

    #[test]
    fn every_opset_has_an_ir_version() {
        let latest = latest_opset("").unwrap();
        assert_eq!(ir_version(latest), ampc_ir::op::LATEST_IR_VERSION);
        assert!((1..latest).all(|n| ir_version(n) <= ir_version(n + 1)));
    }
}
