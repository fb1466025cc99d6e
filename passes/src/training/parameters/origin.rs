//! The origin of a constant that an exporter of PyTorch wrote: a parameter, a buffer, or a result that was folded.
//!
//! It follows from the metadata of values and nodes. A folded constant is still a parameter if the exporter has
//! only moved its elements (`t`, `view`, or the weight of a linear layer, which is stored transposed); it is
//! not a parameter if numbers were computed (`exp`), copied (`expand`), or if several parameters contributed.

use super::signature::{InputKind, InputSpec, Signature};
use crate::graph::flow;
use ampc_ir::op::OpKind;
use ampc_ir::verify::name_of;
use ampc_ir::{Module, Node, Shape, Symbol, Value};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};

/// The key of a value that is a parameter of another name.
pub(super) const ORIGIN: &str = "ampc.parameter";
/// The names of the values from which a constant was folded, as a Python list.
const FOLDED_FROM: &str = "pkg.onnxscript.optimizer.folded_from";
/// The kind of a tensor that the exporter has not changed.
const KIND: &str = "pkg.torch.export.graph_signature.InputSpec.kind";
/// The name of a tensor in the exported program.
const ARG: &str = "pkg.torch.onnx.original_node_name";
/// The rule by which an exporter's optimizer made a node of others.
const RULE: &str = "pkg.onnxscript.rewriter.rule_name";
/// The node of the exported program that a node was made for.
const FX_NODE: &str = "pkg.torch.onnx.fx_node";
/// The modules around a node of the exported program and the name of the node, as a Python list, outermost first.
const SCOPES: &str = "pkg.torch.onnx.name_scopes";

/// Operators of PyTorch that move elements and change no number.
const MOVES: &[&str] = &[
    "t",
    "transpose",
    "permute",
    "view",
    "reshape",
    "_unsafe_view",
    "_reshape_alias",
    "unsqueeze",
    "squeeze",
    "flatten",
    "unflatten",
    "clone",
    "contiguous",
    "alias",
    "movedim",
    "moveaxis",
    "numpy_t",
    "swapaxes",
    "swapdims",
    "ravel",
    "mT",
    "transpose_copy",
    "permute_copy",
    "view_copy",
    "t_copy",
    "unsqueeze_copy",
    "squeeze_copy",
    "alias_copy",
];

/// Operators of PyTorch that read weights as they are but for the order of their elements.
const READERS: &[&str] = &[
    "linear",
    "addmm",
    "mm",
    "matmul",
    "bmm",
    "einsum",
    "bilinear",
    "conv1d",
    "conv2d",
    "conv3d",
    "convolution",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "prelu",
    "_prelu_kernel",
    "group_norm",
    "native_group_norm",
    "layer_norm",
    "native_layer_norm",
    "instance_norm",
    "batch_norm",
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training",
    "rms_norm",
    "_fused_rms_norm",
    "embedding",
    "embedding_bag",
];

/// The origin of a constant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Origin {
    /// A tensor of the model under its own name, with its name there.
    Tensor(InputKind, String),
    /// A parameter whose elements were only moved.
    Moved(String),
    /// A result that was computed from parameters.
    Computed(Vec<String>),
    /// A number or table that no parameter contributed to.
    Table,
    /// The origin is unknown.
    Unknown,
}

impl Origin {
    /// The parameter that the constant is, if it is one.
    pub(super) fn parameter(&self) -> Option<&str> {
        match self {
            Origin::Tensor(InputKind::Parameter, name) | Origin::Moved(name) => Some(name),
            Origin::Tensor(..) | Origin::Computed(_) | Origin::Table | Origin::Unknown => None,
        }
    }
}

/// A signature, and how much the metadata of values say beside it.
pub(super) struct Origins {
    pub(super) signature: Signature,
    /// True if constants name the values that they were folded from.
    says_folds: bool,
    /// True if tensors that the exporter has not changed are marked as such.
    says_kinds: bool,
    /// True if a node has constant operands only: the exporter's optimizer, which computes such nodes, was off.
    pub(super) is_unoptimized: bool,
    /// The names of intermediate values from which constants were folded.
    pub(super) contributors: Vec<String>,
}

impl Origins {
    pub(super) fn new(module: &Module, signature: Signature, constants: &[Value]) -> Origins {
        let has = |key| constants.iter().any(|&value| entry(module, value, key).is_some());
        let (says_folds, says_kinds) = (has(FOLDED_FROM) || has(KIND), has(KIND));
        let lists = constants.iter().filter_map(|&value| entry(module, value, FOLDED_FROM));
        let contributors = lists.flat_map(python_list).collect();
        let is_constant = |value: &Option<Value>| value.is_some_and(|value| module.constant(value).is_some());
        let is_unoptimized = module.nodes(module.main()).any(|node| {
            let operands = module.node(node).operands();
            !operands.is_empty() && operands.iter().all(is_constant)
        });
        Origins { signature, says_folds, says_kinds, is_unoptimized, contributors }
    }

    pub(super) fn of(&self, module: &Module, value: Value) -> Origin {
        let name = name_of(module, value);
        if let Some(spec) = entry(module, value, ORIGIN).and_then(|name| self.signature.get(name)) {
            return match spec.kind {
                InputKind::Parameter => Origin::Moved(spec.target.clone()),
                kind => Origin::Tensor(kind, spec.target.clone()),
            };
        }
        let arg = entry(module, value, ARG).unwrap_or_default();
        if let Some(spec) = self.signature.get(&name).or_else(|| self.signature.get(arg)) {
            return Origin::Tensor(spec.kind, spec.target.clone());
        }
        match entry(module, value, FOLDED_FROM) {
            Some(list) => self.of_folded(module, value, &name, &python_list(list)),
            None if self.says_folds => Origin::Table,
            None => Origin::Unknown,
        }
    }

    /// The metadata of a tensor that was merged into another one.
    pub(super) fn of_merged(&self, module: &mut Module, kind: InputKind) -> Vec<(Symbol, Symbol)> {
        let kind = if kind == InputKind::Parameter { "PARAMETER" } else { "BUFFER" };
        let entry = (module.intern(KIND), module.intern(kind));
        if self.says_kinds { vec![entry] } else { Vec::new() }
    }

    /// True if the exporter has put other elements into a tensor of the model. If no tensor says that it is unchanged, weights of
    /// layers into which BatchNormalization can be folded count as changed.
    pub(super) fn is_product(&self, module: &Module, value: Value) -> bool {
        let is_layer = |(node, slot): (Node, u32)| {
            let kind = module.node(node).schema().map(|schema| schema.kind);
            slot > 0 && matches!(kind, Some(OpKind::Conv | OpKind::ConvTranspose | OpKind::Gemm))
        };
        self.is_rewritten(module, value) || !self.says_kinds && module.uses(value).any(is_layer)
    }

    /// True if the exporter has put other elements into a tensor of the model, as far as metadata say.
    pub(super) fn is_rewritten(&self, module: &Module, value: Value) -> bool {
        self.says_kinds && entry(module, value, KIND).is_none() && entry(module, value, ORIGIN).is_none()
    }

    fn of_folded(&self, module: &Module, value: Value, name: &str, from: &[String]) -> Origin {
        let (specs, between): (Vec<_>, Vec<_>) =
            from.iter().partition(|from| self.signature.get(from).is_some());
        let specs: Vec<_> = specs.into_iter().filter_map(|name| self.signature.get(name)).collect();
        let parameters: Vec<String> =
            specs.iter().filter(|s| s.kind == InputKind::Parameter).map(|s| s.target.clone()).collect();
        let is_moved = |name: &str| is_internal(name) || MOVES.contains(&base(name));
        match &parameters[..] {
            [] => Origin::Table,
            [parameter]
                if specs.len() == 1
                    && between.iter().all(|name| is_moved(name))
                    && (MOVES.contains(&base(name))
                        || is_internal(name) && is_read_as_weight(module, value, from.len())) =>
            {
                Origin::Moved(parameter.clone())
            }
            _ => Origin::Computed(parameters),
        }
    }

    /// The tensors of the model that a node was made to read, as far as its metadata say. A node into which BatchNormalization
    /// was folded has the metadata of BatchNormalization, and reads others.
    pub(super) fn operands(&self, module: &Module, node: Node) -> Vec<String> {
        if node_entry(module, node, RULE).is_some_and(|rule| rule.contains("BatchNorm")) {
            return Vec::new();
        }
        let mut found: Vec<String> = Vec::new();
        for spec in self.arguments(module, node) {
            if !found.contains(&spec.target) {
                found.push(spec.target.clone());
            }
        }
        found
    }

    /// The tensors of the model that the node of the exported program reads for which a node was made.
    fn arguments<'a>(&'a self, module: &'a Module, node: Node) -> impl Iterator<Item = &'a InputSpec> {
        fx_arguments(module, node).filter_map(|name| self.signature.get(name))
    }

    /// The parameters among some that no node of the exported program reads; none if the metadata of nodes do not have all that
    /// they read, as where an optimizer has made nodes of others or merged results.
    pub(super) fn unread(
        &self,
        module: &Module,
        of: &BTreeMap<Value, Origin>,
        missing: &[String],
    ) -> BTreeSet<String> {
        if missing.is_empty() {
            return BTreeSet::new();
        }
        let nodes = flow::nodes(module);
        let inputs = module.graph(module.main()).inputs().iter().map(|&input| name_of(module, input));
        let constants = of.iter().filter(|(_, origin)| **origin != Origin::Unknown);
        let mut known: BTreeSet<String> =
            inputs.chain(constants.map(|(&value, _)| name_of(module, value))).collect();
        known.extend(nodes.iter().filter_map(|&node| program_node(module, node)).map(str::to_owned));
        let mut read: BTreeSet<&str> = BTreeSet::new();
        for &node in &nodes {
            if program_node(module, node).is_none() || node_entry(module, node, RULE).is_some() {
                return BTreeSet::new();
            }
            for argument in fx_arguments(module, node) {
                match self.signature.get(argument) {
                    Some(spec) => drop(read.insert(&spec.target)),
                    None if known.contains(argument) => {}
                    None => return BTreeSet::new(),
                }
            }
        }
        missing.iter().filter(|name| !read.contains(name.as_str())).cloned().collect()
    }

    /// The parameters among some that are tied, each with the parameter that has its tensor. PyTorch's exported program reads a
    /// tied tensor under one of its names: so no node names a tied parameter, and a node of its module reads the other one.
    pub(super) fn tied(&self, module: &Module, missing: &[String]) -> BTreeMap<String, String> {
        let mut tied = BTreeMap::new();
        if missing.is_empty() {
            return tied;
        }
        let is_parameter = |spec: &&InputSpec| spec.kind == InputKind::Parameter;
        let nodes: Vec<Node> = module.nodes(module.main()).collect();
        let named: BTreeSet<&str> = nodes
            .iter()
            .flat_map(|&node| self.arguments(module, node))
            .map(|spec| spec.target.as_str())
            .collect();
        for &node in &nodes {
            let Some(scope) = scope_of(module, node) else { continue };
            for read in self.arguments(module, node).filter(is_parameter) {
                let (owner, last) = read.target.rsplit_once('.').unwrap_or(("", &read.target));
                let own = if scope.is_empty() { last.to_owned() } else { format!("{scope}.{last}") };
                let is_absent = missing.contains(&own) && !named.contains(own.as_str());
                if owner != scope
                    && is_absent
                    && self.signature.get(&own).is_some_and(|spec| is_parameter(&spec))
                {
                    tied.entry(own).or_insert_with(|| read.target.clone());
                }
            }
        }
        tied
    }
}

/// The names that the arguments of a node of the exported program have.
fn fx_arguments(module: &Module, node: Node) -> impl Iterator<Item = &str> {
    let text = node_entry(module, node, FX_NODE).unwrap_or_default();
    let arguments = text.split_once("](").map_or("", |(_, arguments)| arguments);
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    arguments.split('%').skip(1).map(move |rest| rest.split(|c| !is_word(c)).next().unwrap_or_default())
}

/// The name of the node of the exported program that a node was made for.
pub(super) fn program_node(module: &Module, node: Node) -> Option<&str> {
    let (name, _) = node_entry(module, node, FX_NODE)?.split_once(" : ")?;
    name.strip_prefix('%')
}

/// The module of PyTorch in which a node is, by its path; empty for the outermost module.
fn scope_of(module: &Module, node: Node) -> Option<String> {
    let mut scopes = python_list(node_entry(module, node, SCOPES)?);
    // The last one is the node itself.
    scopes.pop()?;
    scopes.pop()
}

/// True if a node was made to read the folded result of this name.
pub(super) fn is_made_to_read(module: &Module, node: Node, name: &str) -> bool {
    fx_arguments(module, node).any(|argument| argument == name)
}

/// True if all readers of a folded constant without a name in the exported program are made for operators that read weights
/// as they are.
fn is_read_as_weight(module: &Module, value: Value, n_contributors: usize) -> bool {
    let mut readers = module.uses(value).peekable();
    readers.peek().is_some()
        && readers.all(|(node, _)| match fx_op(module, node) {
            Some(op) => READERS.contains(&op.as_str()),
            None => {
                let kind = module.node(node).schema().map(|schema| schema.kind);
                n_contributors == 1 && matches!(kind, Some(OpKind::MatMul | OpKind::Gemm))
            }
        })
}

/// The operator of PyTorch that a node was made for: by its metadata, or by the name of the next node that has a name of the
/// exported program.
fn fx_op(module: &Module, node: Node) -> Option<String> {
    if let Some(text) = node_entry(module, node, FX_NODE) {
        let (_, target) = text.split_once("torch.ops.aten.")?;
        return target.split(['.', ']']).next().map(str::to_owned);
    }
    const STEPS: usize = 16;
    let mut at = node;
    for _ in 0..STEPS {
        let result = module.node(at).result(0)?;
        let name = name_of(module, result);
        if !is_internal(&name) {
            // A result that leaves the model has the name of the output; the node keeps that of the operator.
            let node_name = module.node(at).name.map(|name| module.text(name)).unwrap_or_default();
            let own = node_name
                .strip_prefix("node_")
                .filter(|name| name.starts_with(|c: char| c == '_' || c.is_lowercase()));
            return Some(base(own.unwrap_or(&name)).to_owned());
        }
        let mut readers = module.uses(result).map(|(node, _)| node);
        at = readers.next()?;
    }
    None
}

/// Entries of the metadata of a value.
pub(super) fn entry<'m>(module: &'m Module, value: Value, key: &str) -> Option<&'m str> {
    of_list(module, &module.value(value).metadata, key)
}

fn node_entry<'m>(module: &'m Module, node: Node, key: &str) -> Option<&'m str> {
    of_list(module, &module.node(node).metadata, key)
}

fn of_list<'m>(module: &'m Module, list: &[(Symbol, Symbol)], key: &str) -> Option<&'m str> {
    list.iter().find(|&&(k, _)| module.text(k) == key).map(|&(_, text)| module.text(text))
}

/// The name of a parameter of PyTorch that a value is under another name.
pub fn origin_of(module: &Module, value: Value) -> Option<&str> {
    entry(module, value, ORIGIN)
}

/// True if a value is the transpose of its parameter ([`origin_of`]): the exporter stores the weight of a linear layer
/// transposed, under a name of its own, and has folded it from the parameter alone.
pub fn is_transposed(module: &Module, value: Value) -> bool {
    let from = entry(module, value, FOLDED_FROM).map(python_list).unwrap_or_default();
    let is_matrix = module.value(value).ty.shape().and_then(Shape::rank) == Some(2);
    let name = name_of(module, value);
    let is_made_by_transpose = is_internal(&name) || matches!(base(&name), "t" | "numpy_t");
    is_matrix && from.len() == 1 && is_made_by_transpose && origin_of(module, value).is_some()
}

/// True if the exporter has put other elements into a parameter that is an input of the main graph, such as the product of
/// a weight with the factors of BatchNormalization: the exporter marks the parameters that it has not changed.
pub fn is_changed(module: &Module, value: Value) -> bool {
    let inputs = module.graph(module.main()).inputs();
    let is_marked = |value: Value| entry(module, value, KIND).is_some();
    inputs.iter().any(|&input| is_marked(input)) && !is_marked(value) && origin_of(module, value).is_none()
}

/// Names without their number: `transpose` of `transpose_3`.
fn base(name: &str) -> &str {
    match name.rsplit_once('_') {
        Some((base, number)) if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) => base,
        _ => name,
    }
}

/// True for names of values inside an operator of PyTorch: `val_3`.
pub(super) fn is_internal(name: &str) -> bool {
    base(name) == "val" && name != "val"
}

/// The texts of a Python list, `['a', "b"]`. Damaged elements are left out.
fn python_list(text: &str) -> Vec<String> {
    let (mut found, mut chars) = (Vec::new(), text.chars());
    while let Some(quote) = chars.next() {
        if !matches!(quote, '\'' | '"') {
            continue;
        }
        let mut item = String::new();
        while let Some(c) = chars.next().filter(|&c| c != quote) {
            item.extend(if c == '\\' { chars.next() } else { Some(c) });
        }
        found.push(item);
    }
    found
}

/// A count of the readers of each value by node.
pub(super) fn readers(module: &Module, value: Value) -> Vec<(Node, Vec<u32>)> {
    let (mut order, mut slots): (Vec<Node>, FxHashMap<Node, Vec<u32>>) = Default::default();
    for (node, slot) in module.uses(value) {
        let of_node = slots.entry(node).or_default();
        if of_node.is_empty() {
            order.push(node);
        }
        of_node.push(slot);
    }
    order.sort_unstable();
    order.into_iter().map(|node| (node, slots.remove(&node).unwrap_or_default())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_names_of_the_exporter() {
        assert_eq!(python_list(r#"['a.b', "it's", 'q\'s']"#), ["a.b", "it's", "q's"]);
        assert_eq!(
            (base("transpose_3"), base("t"), base("_unsafe_view"), base("exp_")),
            ("transpose", "t", "_unsafe_view", "exp_")
        );
        assert!(
            is_internal("val_12") && !is_internal("val") && !is_internal("value_1") && !is_internal("val_x")
        );
        assert!(python_list("['a").len() <= 1);
    }
}
