//! Warnings of parameters of an exported program that a step does not train as PyTorch does.

use super::exported::Exported;
use super::is_whole_reader;
use super::origin::{Origin, is_made_to_read, program_node, readers};
use super::signature::InputKind;
use crate::graph::keys::op_key;
use crate::pass::PassCx;
use crate::pass::training_error::ParameterError;
use crate::training::autodiff::is_differentiable;
use ampc_ir::op::OpKind;
use ampc_ir::verify::name_of;
use ampc_ir::views::NodeView;
use ampc_ir::views::norm::BatchNormView;
use ampc_ir::{Module, Node, Value};
use std::collections::{BTreeMap, BTreeSet};

/// The entry of the metadata of the main graph that lists parameters that are not trained as in PyTorch: a line each, with
/// the reason behind a tab.
pub(super) const UNTRAINED: &str = "ampc.untrained";

/// The entry of the metadata of the main graph that lists tied parameters: a line each, with the parameter that has the
/// tensor behind a tab.
const TIED: &str = "ampc.tied";

/// The way out of most such differences.
pub(super) const HINT: &str = "Export the model with `optimize=False` to keep every parameter";

/// The way out for a model with BatchNormalization, which no other export writes for training.
const TRAINING: &str = "Export the model with `dynamo=False, training=torch.onnx.TrainingMode.TRAINING, \
                        do_constant_folding=False`, which keeps every parameter and has BatchNormalization train \
                        (docs/training.md)";

/// Parameters that are not trained as in PyTorch, and why.
type Untrained = BTreeMap<String, String>;

/// Warns of every parameter that is not trained as in PyTorch, and lists them in the metadata of the main graph. `trained` are
/// the constants that are trained. Returns true if BatchNormalization was spoken of.
pub(super) fn tell(exported: &Exported, module: &mut Module, trained: &[Value], cx: &mut PassCx<'_>) -> bool {
    let mut untrained = Untrained::new();
    let missing = exported.missing();
    let norms = Norms::of(exported, module, &missing);
    folded(exported, module, &norms, cx, &mut untrained);
    norms.tell(exported, module, trained, cx, &mut untrained);
    merged(exported, module, &missing, &norms, cx, &mut untrained);
    note(module, UNTRAINED, &untrained);
    note(module, TIED, &exported.tied);
    !norms.lost.is_empty()
}

/// Writes a list into the metadata of the main graph.
fn note(module: &mut Module, key: &str, list: &BTreeMap<String, String>) {
    let lines: Vec<String> = list.iter().map(|(name, what)| format!("{name}\t{what}")).collect();
    let entry = (module.intern(key), module.intern(&lines.join("\n")));
    let main = module.main();
    let mut metadata = module.graph(main).metadata.clone();
    metadata.retain(|&(key, _)| key != entry.0);
    if !lines.is_empty() {
        metadata.push(entry);
    }
    module.set_graph_metadata(main, metadata);
}

/// The parameters that are not trained as in PyTorch, each with the reason, in the order of their names.
pub fn untrained(module: &Module) -> Vec<(String, String)> {
    noted(module, UNTRAINED)
}

/// The parameters that are tied in PyTorch and whose tensor the file has under the name of another parameter, each with
/// that parameter.
pub fn tied(module: &Module) -> Vec<(String, String)> {
    noted(module, TIED)
}

fn noted(module: &Module, list: &str) -> Vec<(String, String)> {
    let entries = module.graph(module.main()).metadata.iter();
    let mut lists = entries.filter(|&&(key, _)| module.text(key) == list).map(|&(_, text)| module.text(text));
    let lines = lists.next().unwrap_or_default().lines();
    lines
        .filter_map(|line| line.split_once('\t'))
        .map(|(name, why)| (name.to_owned(), why.to_owned()))
        .collect()
}

/// Warns of parameters from which constants were computed. Another export helps only those whose readers have gradients.
fn folded(
    exported: &Exported,
    module: &Module,
    norms: &Norms,
    cx: &mut PassCx<'_>,
    untrained: &mut Untrained,
) {
    let mut folded: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for (&value, origin) in &exported.of {
        if let Origin::Computed(names) = origin {
            names.iter().for_each(|name| folded.entry(name).or_default().push(value));
        }
    }
    let constants = |values: &[Value]| {
        let names: Vec<String> =
            values.iter().map(|&value| format!("`{}`", name_of(module, value))).collect();
        names.join(", ")
    };
    let parts = |folded: &BTreeMap<&str, Vec<Value>>| {
        listed(folded.iter().map(|(name, values)| format!("`{name}` (in {})", constants(values))).collect())
    };
    for (name, values) in &folded {
        untrained.insert((*name).to_owned(), format!("folded into {}", constants(values)));
    }
    let (stuck, folded): (BTreeMap<_, _>, BTreeMap<_, _>) =
        folded.into_iter().partition(|(_, values)| without_gradient(module, values).is_some());
    if !folded.is_empty() {
        let (are, them) =
            if folded.len() == 1 { ("a parameter is", "it") } else { ("parameters are", "them") };
        let message = format!(
            "{are} not trained as in PyTorch, since the exporter has computed constants from {them}: {}. {}",
            parts(&folded),
            norms.hint()
        );
        cx.warn("parameters.folded", None, message);
    }
    let values: Vec<Value> = stuck.values().flatten().copied().collect();
    if let Some(ops) = without_gradient(module, &values) {
        let (parameters, them) =
            if stuck.len() == 1 { ("a parameter", "it") } else { ("parameters", "them") };
        let message = format!(
            "{parameters} cannot be trained, since the exporter has computed constants from {them} for {ops}: {}",
            parts(&stuck)
        );
        cx.warn("parameters.folded", None, message);
    }
}

/// The operators that read constants, as operators without gradients, if none of them has one.
fn without_gradient(module: &Module, constants: &[Value]) -> Option<String> {
    let readers = constants.iter().flat_map(|&value| module.uses(value)).map(|(node, _)| node);
    let mut ops: BTreeSet<String> = BTreeSet::new();
    for node in readers {
        let kind = module.node(node).schema()?.kind;
        if is_differentiable(kind) {
            return None;
        }
        let (domain, op, _) = module.op_name(node);
        ops.insert(op_key(domain, op));
    }
    let have = if ops.len() == 1 { "has" } else { "have" };
    let ops: Vec<String> = ops.into_iter().collect();
    (!ops.is_empty()).then(|| format!("{}, which {have} no gradient", ops.join(" and ")))
}

/// The parameters from which constants were computed, and what can be done, if there are no others.
pub(super) fn all_folded(exported: &Exported, module: &Module) -> Option<ParameterError> {
    let computed = exported.of.iter().filter_map(|(&value, origin)| match origin {
        Origin::Computed(names) => Some((value, names)),
        _ => None,
    });
    let (values, names): (Vec<Value>, Vec<&Vec<String>>) = computed.unzip();
    let names: BTreeSet<String> = names.into_iter().flatten().map(|name| format!("`{name}`")).collect();
    let has_others = exported.of.values().any(|origin| origin.parameter().is_some());
    let advice = match without_gradient(module, &values) {
        Some(ops) => format!("they are read by {ops}"),
        None => HINT.replacen("Export", "export", 1),
    };
    let names = listed(names.into_iter().collect());
    (!values.is_empty() && !has_others).then_some(ParameterError::Folded { names, advice })
}

/// BatchNormalization modules of the exported program.
struct Norms {
    /// Modules that update running statistics in PyTorch, and not in the file.
    lost: Vec<String>,
    /// Parameters of modules that the exporter has folded into other weights, in order.
    folded: Vec<String>,
}

impl Norms {
    fn of(exported: &Exported, module: &Module, missing: &[String]) -> Norms {
        let signature = &exported.origins.signature;
        let buffers = signature.tensors().filter(|spec| spec.kind == InputKind::Buffer);
        let modules: Vec<&str> = buffers.filter_map(|spec| module_of(&spec.target)).collect();
        let nodes = norms(module);
        let (mut updated, mut read) = (BTreeSet::new(), 0);
        for (node, trains) in nodes {
            read += 1;
            let statistics = [3, 4].into_iter().filter_map(|slot| *module.node(node).operands().get(slot)?);
            let names = statistics.filter_map(|value| match exported.of.get(&value)? {
                Origin::Tensor(_, name) | Origin::Moved(name) => Some(name.clone()),
                _ => None,
            });
            updated.extend(names.filter(|_| trains));
        }
        let is_lost = |buffer: &&String| module_of(buffer).is_some() && !updated.contains(*buffer);
        let lost = signature.mutated().iter().filter(is_lost).filter_map(|buffer| module_of(buffer));
        let lost = lost.map(str::to_owned).collect();
        // With a node for each module, none was folded: equal tensors were merged.
        let is_missing = |name: &str| missing.iter().any(|missing| missing == name);
        let is_folded =
            |module: &&&str| read < modules.len() && is_missing(&of_module(module, "running_var"));
        let names = modules
            .iter()
            .filter(is_folded)
            .flat_map(|module| ["weight", "bias"].map(|name| of_module(module, name)));
        Norms { lost, folded: names.filter(|name| is_missing(name)).collect() }
    }

    /// The way out of differences of this model.
    fn hint(&self) -> &'static str {
        if self.lost.is_empty() && self.folded.is_empty() { HINT } else { TRAINING }
    }

    fn tell(
        &self,
        exported: &Exported,
        module: &Module,
        trained: &[Value],
        cx: &mut PassCx<'_>,
        untrained: &mut Untrained,
    ) {
        if !self.lost.is_empty() {
            let names = self.lost.iter().map(|name| format!("`{name}`")).collect();
            let message = format!(
                "BatchNormalization {} trains in PyTorch (statistics of the batch), but the exporter has written it for inference: it computes with running \
                 statistics, which stay unchanged. {TRAINING}",
                listed(names)
            );
            cx.warn("parameters.statistics", None, message);
        }
        if self.folded.is_empty() {
            return;
        }
        let is_product = |(value, origin): &(&Value, &Origin)| {
            matches!(origin, Origin::Tensor(InputKind::Parameter, _))
                && exported.origins.is_product(module, **value)
        };
        let names = |values: &[Value]| {
            listed(values.iter().map(|&value| format!("`{}`", name_of(module, value))).collect())
        };
        let products: Vec<Value> = exported.of.iter().filter(is_product).map(|(&value, _)| value).collect();
        let of_them: Vec<Value> = products.iter().copied().filter(|value| trained.contains(value)).collect();
        let as_products =
            if of_them.len() == 1 { "is trained as a product" } else { "are trained as products" };
        let into = match (products.len(), of_them.len()) {
            (0, _) => "weights of convolutions or linear layers".to_owned(),
            // No frozen constant is trained as anything.
            (_, 0) => names(&products),
            (all, some) if all == some => format!("{}, which {as_products}", names(&products)),
            _ => format!("{}, of which {} {as_products}", names(&products), names(&of_them)),
        };
        let names = self.folded.iter().map(|name| format!("`{name}`")).collect();
        let message = format!(
            "parameters of BatchNormalization are not trained, since the exporter has folded them into {into}: {}. {TRAINING}",
            listed(names)
        );
        cx.warn("parameters.folded", None, message);
        untrained
            .extend(self.folded.iter().map(|name| (name.clone(), "folded into other weights".to_owned())));
    }
}

/// The BatchNormalization nodes of the main graph, and whether they train.
fn norms(module: &Module) -> impl Iterator<Item = (Node, bool)> + '_ {
    let views = module.nodes(module.main()).filter_map(|node| Some((node, NodeView::new(module, node)?)));
    views
        .filter(|(_, view)| view.kind() == OpKind::BatchNormalization)
        .map(|(node, view)| (node, BatchNormView::read(&view).training))
}

/// The module whose running variance or mean a buffer is; once for each module.
fn module_of(buffer: &str) -> Option<&str> {
    match buffer.strip_suffix("running_var")? {
        "" => Some(""),
        module => module.strip_suffix('.'),
    }
}

fn of_module(module: &str, name: &str) -> String {
    if module.is_empty() { name.to_owned() } else { format!("{module}.{name}") }
}

/// Warns of tensors that are not in the file although nothing was computed from them: equal ones were merged.
fn merged(
    exported: &Exported,
    module: &Module,
    missing: &[String],
    norms: &Norms,
    cx: &mut PassCx<'_>,
    untrained: &mut Untrained,
) {
    let signature = &exported.origins.signature;
    let is_parameter =
        |name: &&String| signature.get(name).is_some_and(|spec| spec.kind == InputKind::Parameter);
    let (parameters, buffers): (Vec<&String>, Vec<&String>) =
        missing.iter().filter(|name| !norms.folded.contains(name)).partition(is_parameter);
    let shared: Vec<String> = shared(exported, module);
    if parameters.is_empty() && (buffers.is_empty() || shared.is_empty()) {
        return;
    }
    let joint = joint(exported, module);
    let same = |name: &str| {
        let mut alike = joint.iter().filter(|other| last(other) == last(name));
        alike.next().filter(|_| alike.next().is_none())
    };
    let (same, gone): (Vec<_>, Vec<_>) =
        parameters.iter().map(|&name| (name, same(name))).partition(|(_, same)| same.is_some());
    let unread = exported.origins.unread(module, &exported.of, missing);
    let (unread, gone): (Vec<&String>, Vec<&String>) =
        gone.into_iter().map(|(name, _)| name).partition(|&name| unread.contains(name));
    let in_quotes = |names: &[&String]| listed(names.iter().map(|name| format!("`{name}`")).collect());
    let mut parts: Vec<String> = Vec::new();
    // A tied tensor is read under one of its names.
    let are_unread = match unread.len() {
        0 => None,
        1 => Some(("parameter", "it is trained only if it is tied to another one, as that one")),
        _ => Some(("parameters", "they are trained only if they are tied to others, as those")),
    };
    parts.extend(are_unread.map(|(parameters, are)| {
        format!("no node of the exported program reads {parameters} {}: {are}", in_quotes(&unread))
    }));
    for (name, other) in same.iter().filter_map(|&(name, other)| Some((name, other?))) {
        parts.push(format!(
            "parameter `{name}` is in the file as the same tensor as `{other}`, which is right if the two are tied in PyTorch"
        ));
    }
    let not_there = match (gone.len(), buffers.len()) {
        (0, 0) => None,
        (0, _) if shared.is_empty() => None,
        (0, 1) => Some(format!("buffer {} is", in_quotes(&buffers))),
        (0, _) => Some(format!("buffers {} are", in_quotes(&buffers))),
        (1, _) => Some(format!("parameter {} is", in_quotes(&gone))),
        _ => Some(format!("parameters {} are", in_quotes(&gone))),
    };
    parts.extend(not_there.map(|are| {
        format!(
            "{are} not in the file: the exporter merges tied and equal tensors, and leaves out biases of zeros and \
             tensors without readers"
        )
    }));
    if !shared.is_empty() {
        let is = if shared.len() == 1 { "is" } else { "are" };
        parts.push(format!(
            "{} {is} read by several nodes and trained as one tensor each",
            listed(shared.clone())
        ));
    }
    let has_remedy = !exported.origins.is_unoptimized && (!gone.is_empty() || !shared.is_empty());
    let hint = if has_remedy { format!(". {}", norms.hint()) } else { String::new() };
    cx.warn("parameters.merged", None, format!("{}{hint}", parts.join("; ")));
    let why = |other: Option<&String>| match other {
        Some(other) => format!("the same tensor as `{other}`"),
        None => "merged with a tied or equal tensor, or left out".to_owned(),
    };
    untrained.extend(same.into_iter().map(|(name, other)| (name.clone(), why(other))));
    untrained.extend(gone.into_iter().map(|name| (name.clone(), why(None))));
    untrained.extend(unread.into_iter().map(|name| (name.clone(), "read by no node".to_owned())));
}

/// The name of a parameter in its module.
fn last(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// Parameters in the file that several nodes of the program read: a parameter that another one is tied to is among them.
fn joint(exported: &Exported, module: &Module) -> Vec<String> {
    let mut readers: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for node in module.nodes(module.main()) {
        for name in exported.origins.operands(module, node) {
            readers.entry(name).or_default().extend(program_node(module, node));
        }
    }
    let there: BTreeSet<&str> = exported.of.values().filter_map(Origin::parameter).collect();
    let joint = readers.into_iter().filter(|(name, nodes)| nodes.len() > 1 && there.contains(name.as_str()));
    joint.map(|(name, _)| name).collect()
}

/// Parameters that several nodes read whole, and not because the program does so.
fn shared(exported: &Exported, module: &Module) -> Vec<String> {
    let mut found = Vec::new();
    for (&value, origin) in &exported.of {
        let Some(name) = origin.parameter() else { continue };
        let readers: Vec<Node> = readers(module, value).into_iter().map(|(node, _)| node).collect();
        let readers: Vec<Node> = readers.into_iter().filter(|&node| is_whole_reader(module, node)).collect();
        let constant = name_of(module, value);
        let is_own = |node: &Node| {
            let operands = exported.origins.operands(module, *node);
            operands.iter().any(|operand| operand == name) || is_made_to_read(module, *node, &constant)
        };
        if readers.len() > 1 && !readers.iter().all(is_own) {
            found.push(format!("`{name}`"));
        }
    }
    found
}

/// Names for a message.
fn listed(mut names: Vec<String>) -> String {
    const SHOWN: usize = 100;
    let more = names.len().saturating_sub(SHOWN);
    names.truncate(SHOWN);
    let names = names.join(", ");
    if more > 0 { format!("{names} and {more} more") } else { names }
}
