//! Units: operators written out, such as a norm, a softmax or GELU as exporters write it.
//!
//! A *unit* is a set of nodes with one meaning. [`find`] matches each node as the last node of a unit against the
//! formulas of `table`, and proves operators, constants, axes, and that nothing else reads an inner value: no node
//! outside, no body, no output. Matching changes nothing, and takes time linear in the nodes.
//!
//! The formulas are real arithmetic: `pattern` describes their language, `chains` reads sums and products of a graph
//! in that sense, and `matcher` compares the two with backtracking over the order of terms and factors. Casts that
//! change no number, casts that an earlier run inserted, and Identity nodes are looked through; a cast of the author
//! that rounds is not, except where a formula says `round`. Functions are not searched, since their types are those of
//! a call.
//!
//! ```
//! use ampc_ir::infer::infer;
//! use ampc_ir::text::{NoData, parse};
//! use ampc_passes::units::{Kind, find};
//!
//! let nodes = "%h = Mul(%x, %half) : f32[N, 8]\n  %d = Mul(%x, %r) : f32[N, 8]\n  %e = Erf(%d) : f32[N, 8]\n  \
//!              %s = Add(%e, %one) : f32[N, 8]\n  %y = Mul(%h, %s) : f32[N, 8]";
//! let text = format!("opset ai.onnx=13\n\ngraph {{\n  input %x : f32[N, 8]\n  const %half : f32 = 0.5\n  \
//!                     const %r : f32 = 0.70710677\n  const %one : f32 = 1.0\n  {nodes}\n  output %y\n}}\n");
//! let mut module = parse(&text, &NoData)?;
//! let (inference, _) = infer(&module);
//! inference.types.clone().apply(&mut module);
//! let units = find(&module, &inference.facts);
//! assert_eq!((units[0].kind, units[0].nodes.len()), (Kind::Gelu, 5));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod chains;
mod halves;
mod matcher;
mod norms;
mod pattern;
mod table;

use self::matcher::{Flats, Matcher, State};
use self::pattern::{Capture, Chain, Function, Number, Pattern, Rule, rules};
use ampc_ir::infer::Facts;
use ampc_ir::op::OpKind;
use ampc_ir::{Dim, Module, Node, Value};
use rustc_hash::{FxHashMap, FxHashSet};

/// The meaning of a unit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// `(x - mean) / sqrt(variance + epsilon) · scale + bias` over the last axes.
    LayerNorm,
    /// `x / sqrt(mean(x²) + epsilon) · scale` over the last axes.
    RmsNorm,
    /// A layer normalization of each group of channels, with scale and bias per channel.
    GroupNorm,
    /// A layer normalization of each channel, with scale and bias per channel.
    InstanceNorm,
    /// `exp(x) / sum(exp(x))`.
    Softmax,
    /// `x - log(sum(exp(x)))`.
    LogSoftmax,
    /// `log(sum(exp(x)))`.
    LogSumExp,
    /// `x · Φ(x)`, by Erf.
    Gelu,
    /// Its approximation by Tanh.
    GeluTanh,
    /// `x · sigmoid(1.702 · x)`.
    QuickGelu,
    /// `x · sigmoid(alpha · x)`; SiLU if `alpha` is 1.
    Swish,
    /// `x · tanh(softplus(x))`.
    Mish,
    /// `x · clip(x + 3, 0, 6) / 6`.
    HardSwish,
    /// A rotary embedding of the halves of the last axis.
    Rotary,
    /// A rotary embedding of neighbours on the last axis.
    RotaryInterleaved,
}

impl Kind {
    /// All kinds with their names in reports and in the table of patterns.
    const NAMES: [(Kind, &'static str); 15] = [
        (Kind::LayerNorm, "layer-norm"),
        (Kind::RmsNorm, "rms-norm"),
        (Kind::GroupNorm, "group-norm"),
        (Kind::InstanceNorm, "instance-norm"),
        (Kind::Softmax, "softmax"),
        (Kind::LogSoftmax, "log-softmax"),
        (Kind::LogSumExp, "log-sum-exp"),
        (Kind::Gelu, "gelu"),
        (Kind::GeluTanh, "gelu-tanh"),
        (Kind::QuickGelu, "quick-gelu"),
        (Kind::Swish, "swish"),
        (Kind::Mish, "mish"),
        (Kind::HardSwish, "hard-swish"),
        (Kind::Rotary, "rotary"),
        (Kind::RotaryInterleaved, "rotary-interleaved"),
    ];

    /// All kinds.
    pub fn all() -> impl Iterator<Item = Kind> {
        Kind::NAMES.iter().map(|&(kind, _)| kind)
    }

    /// The name of the kind in reports.
    pub fn name(self) -> &'static str {
        let row = Kind::NAMES.iter().find(|(kind, _)| *kind == self);
        row.map_or("", |(_, name)| name)
    }
}

/// Nodes with one meaning.
#[derive(Clone, PartialEq, Debug)]
pub struct Unit {
    /// The meaning.
    pub kind: Kind,
    /// The nodes, in program order. The last makes the result.
    pub nodes: Vec<Node>,
    /// The result.
    pub result: Value,
    /// The operand, as nodes of the unit read it: behind different casts it may be several values, in the order of the
    /// formula. Never empty.
    pub operands: Vec<Value>,
    /// The axes of the reductions, from the front.
    pub axes: Vec<usize>,
    /// The scale of a norm.
    pub scale: Option<Value>,
    /// The bias of a norm.
    pub bias: Option<Value>,
    /// The number that a norm adds to the variance.
    pub epsilon: Option<f64>,
    /// The factor in the sigmoid of Swish.
    pub alpha: Option<f64>,
    /// The number of groups of a group normalization.
    pub groups: Option<u64>,
    /// The cosines and sines of a rotary embedding.
    pub angles: Option<[Value; 2]>,
}

/// All units of the main graph and its bodies. No two units share a node.
pub fn find(module: &Module, facts: &Facts) -> Vec<Unit> {
    let rules = rules(table::PATTERNS).expect("a test reads the table");
    let (mut units, mut taken) = (Vec::new(), FxHashSet::default());
    for &graph in module.program_graphs() {
        if module.root(graph) != module.main() {
            continue;
        }
        let nodes: Vec<Node> = module.nodes(graph).collect();
        let places: FxHashMap<Node, usize> = nodes.iter().enumerate().map(|(i, &node)| (node, i)).collect();
        // From the back, so that a unit is found by its last node.
        for &node in nodes.iter().rev() {
            if taken.contains(&node) {
                continue;
            }
            if let Some(mut unit) = unit_at(module, facts, &rules, node, &taken) {
                unit.nodes.sort_unstable_by_key(|node| places.get(node));
                taken.extend(unit.nodes.iter().copied());
                units.push(unit);
            }
        }
    }
    units.reverse();
    units
}

/// The largest unit whose last node is a node.
fn unit_at(
    module: &Module,
    facts: &Facts,
    rules: &[Rule],
    node: Node,
    taken: &FxHashSet<Node>,
) -> Option<Unit> {
    let data = module.node(node);
    let kind = data.schema().filter(|schema| schema.domain.is_empty())?.kind;
    let result = data.result(0)?;
    let flats = Flats::default();
    rules.iter().filter(|rule| begins(&rule.root, kind)).find_map(|rule| {
        let mut state = Matcher { module, facts, rule, flats: &flats }.find(result)?;
        state.nodes.sort_unstable();
        state.nodes.dedup();
        let is_new = state.nodes.iter().all(|node| !taken.contains(node));
        let is_unit = is_new && is_closed(module, &state.nodes, result) && has_rank(module, &state);
        is_unit.then(|| unit(module, rule, &state, result))?
    })
}

/// True if an operator may be the last of a formula.
fn begins(root: &Pattern, kind: OpKind) -> bool {
    match root {
        Pattern::Flat(Chain::Sum, ..) => matches!(kind, OpKind::Add | OpKind::Sub),
        Pattern::Flat(Chain::Product, ..) => matches!(kind, OpKind::Mul | OpKind::Div),
        Pattern::Call(Function::Op(op), _) => *op == kind,
        Pattern::Call(Function::Join, _) => kind == OpKind::Concat,
        Pattern::Call(Function::Weave, _) => kind == OpKind::Reshape,
        Pattern::Call(..) | Pattern::Any | Pattern::Capture(_) | Pattern::Named(_) => false,
    }
}

/// True if nothing but the nodes reads a result of the nodes, except one result.
fn is_closed(module: &Module, nodes: &[Node], result: Value) -> bool {
    let results = nodes.iter().flat_map(|&node| module.node(node).results().iter().flatten());
    results.filter(|&&value| value != result).all(|&value| {
        let is_inner = |(reader, _)| nodes.binary_search(&reader).is_ok();
        !module.is_output(value) && !module.has_role(value) && module.uses(value).all(is_inner)
    })
}

/// True if no constant with one element gives the result more axes than the operand has.
fn has_rank(module: &Module, state: &State) -> bool {
    let rank = state.value(Capture::X).and_then(|x| module.value(x).ty.shape()?.rank());
    state.rank <= rank.unwrap_or(0)
}

fn unit(module: &Module, rule: &Rule, state: &State, result: Value) -> Option<Unit> {
    let first = |capture| state.reads(capture).next();
    let kind = Kind::all().find(|kind| kind.name() == rule.word).expect("a test reads the table");
    let mut unit = Unit {
        kind,
        nodes: state.nodes.to_vec(),
        result,
        operands: state.reads(Capture::X).collect(),
        axes: state.axes.iter().flatten().copied().collect(),
        scale: first(Capture::Gamma),
        bias: first(Capture::Beta),
        epsilon: state.number(Number::Eps),
        alpha: state.number(Number::Alpha),
        groups: None,
        angles: first(Capture::Cos).zip(first(Capture::Sin)).map(|(cos, sin)| [cos, sin]),
    };
    match kind {
        Kind::LayerNorm => norms::channels_or_layer(module, state, unit),
        Kind::RmsNorm => norms::layer(module, state, unit),
        Kind::GroupNorm => norms::groups(module, state, unit),
        Kind::Softmax | Kind::LogSoftmax => (unit.axes.len() == 1).then_some(unit),
        Kind::Swish => {
            let alpha = *unit.alpha.get_or_insert(1.0);
            let is_quick = (alpha - QUICK).abs() <= QUICK * 1e-6;
            Some(Unit { kind: if is_quick { Kind::QuickGelu } else { kind }, ..unit })
        }
        _ => Some(unit),
    }
}

/// The factor of QuickGelu.
const QUICK: f64 = 1.702;

/// The dims of a value, if the rank is known.
fn dims_of(module: &Module, value: Value) -> Option<&[Dim]> {
    module.value(value).ty.shape()?.dims()
}

#[cfg(test)]
mod tests;
