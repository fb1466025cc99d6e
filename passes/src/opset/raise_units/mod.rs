//! `raise-units`: replaces operators written out by ONNX's operator of the same meaning.
//!
//! The units are those of [`find`]. The operator takes the place of the last node of the unit, with its name and its
//! result; the other nodes of the unit are removed. A unit is left as it is if the opset of the model does not have
//! the operator, if an inner value is not f32, or if the operator would have a scale or result of other dims.
//!
//! The result differs from that of the unit by the rounding of its inner values. Two differences are larger, and in
//! favour of the operator: `exp(x) / sum(exp(x))` without the maximum is infinite divided by infinite beyond 88, and
//! `mean(x²) - mean(x)²` cancels if the mean is large.
//!
//! An operator that computes in fp32 inside and rounds once needs no casts around its parts when it is lowered.

mod family;
mod operators;

pub use self::family::{Families, Family};

use self::operators::insert;
use crate::analysis::units::{Kind, Unit, find};
use crate::analysis::values::same_number;
use crate::pass::invariants::Invariants;
use crate::pass::options::{PassOption, Setting, Spelled, Wrong, option, settings};
use crate::pass::{Changed, Pass, PassCx, PassError};
use crate::spelling::words::quoted;
use ampc_ir::infer::Facts;
use ampc_ir::op::{Legality, OpKind, legality};
use ampc_ir::{DType, Inserter, Module, Node, Position, Value};
use std::collections::BTreeMap;

/// The pass.
#[derive(Clone, Debug)]
pub struct RaiseUnits {
    /// The kinds to replace.
    pub units: Families,
}

/// The counts of a run, by kind; kinds without units are absent.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RaisedUnits(pub BTreeMap<Kind, Count>);

/// The number of units of a kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Count {
    /// The units that an operator has replaced.
    pub raised: u64,
    /// The units that were left.
    pub left: u64,
}

/// The name of the pass.
pub const NAME: &str = "raise-units";

/// Reads the option `units`.
pub(super) fn read_units(words: &[String]) -> Option<Families> {
    Families::of_words(words.iter().map(String::as_str)).ok()
}

/// Prints the option `units`.
pub(super) fn print_units(units: &Families) -> Setting {
    Setting::Text(units.words().map(quoted).collect::<Vec<_>>().join("+"))
}

/// The values of the option `units`.
pub(super) const UNITS: &str = "norms+softmax+gelu+swish+mish+hard-swish or all";

impl Spelled for RaiseUnits {
    const NAME: &'static str = NAME;
    const ABOUT: &'static str = "replaces operators written out, such as norms and GELU, by ONNX's operators";
    const OPTIONS: &'static [PassOption<Self>] = &[PassOption {
        def: option("units", UNITS, Some(Families::EVERY)),
        print: |pass| Some(print_units(&pass.units)),
        read: |pass, given| {
            pass.units = given.listed(read_units)?;
            Ok::<(), Wrong>(())
        },
    }];
    fn blank() -> Self {
        RaiseUnits { units: Families::default() }
    }
}

impl Pass for RaiseUnits {
    fn name(&self) -> &'static str {
        NAME
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
        let units = wanted(module, cx.facts, &self.units);
        let mut counts: BTreeMap<Kind, Count> = BTreeMap::new();
        let mut too_new: BTreeMap<&str, (u16, Vec<Node>)> = BTreeMap::new();
        let main = module.main();
        let mut inserter = Inserter::new(module, main, Position::Last).with_facts(cx.facts);
        for unit in units {
            let count = counts.entry(unit.kind).or_default();
            let Some((operator, since)) = operator(unit.kind) else { continue };
            let root = last(&unit);
            let opset = inserter.module.opset(inserter.module.node(root).graph, "");
            if opset.is_none_or(|opset| opset < since) {
                count.left += 1;
                too_new.entry(operator.name()).or_insert((since, Vec::new())).1.push(root);
            } else if replace(&mut inserter, operator, &unit).is_some() {
                count.raised += 1;
            } else {
                count.left += 1;
            }
        }
        for (operator, (since, nodes)) in too_new {
            let message = format!(
                "{} × {operator} written out stay as they are: the operator is in ONNX from opset {since} on",
                nodes.len()
            );
            cx.warn("units.opset", nodes.first().copied(), message);
        }
        let changed = counts.values().any(|count| count.raised > 0);
        cx.results.put(RaisedUnits(counts));
        Ok(Changed::when(changed))
    }
}

/// The operator that replaces a kind, and the first opset that has it in this form.
pub(super) fn operator(kind: Kind) -> Option<(OpKind, u16)> {
    Some(match kind {
        Kind::LayerNorm => (OpKind::LayerNormalization, 17),
        Kind::RmsNorm => (OpKind::RMSNormalization, 23),
        // Below 21 scale and bias are per group.
        Kind::GroupNorm => (OpKind::GroupNormalization, 21),
        Kind::InstanceNorm => (OpKind::InstanceNormalization, 6),
        // Below 13 all axes from one on are normalized together.
        Kind::Softmax => (OpKind::Softmax, 13),
        Kind::LogSoftmax => (OpKind::LogSoftmax, 13),
        Kind::Gelu | Kind::GeluTanh => (OpKind::Gelu, 20),
        Kind::QuickGelu | Kind::Swish => (OpKind::Swish, 24),
        Kind::Mish => (OpKind::Mish, 18),
        Kind::HardSwish => (OpKind::HardSwish, 14),
        Kind::LogSumExp | Kind::Rotary | Kind::RotaryInterleaved => return None,
    })
}

/// The lowest opset at which all units of these families have their operator, with the format.
pub(super) fn opset_for(module: &Module, facts: &Facts, units: &Families, format: DType) -> Option<u16> {
    if units.is_empty() {
        return None;
    }
    let found = wanted(module, facts, units);
    let operators = found.iter().filter(|unit| dtype_of(module, unit).is_some());
    operators
        .filter_map(|unit| operator(unit.kind))
        .map(|(kind, since)| with_format(kind, since, format))
        .max()
}

/// The first opset from `since` on at which an operator has the format; `since` if no opset has it.
fn with_format(kind: OpKind, since: u16, format: DType) -> u16 {
    let versions = kind.versions().iter().filter(|schema| legality(schema, 0, format) == Legality::Legal);
    versions.map(|schema| schema.since).min().map_or(since, |first| first.max(since))
}

fn wanted(module: &Module, facts: &Facts, units: &Families) -> Vec<Unit> {
    let mut found = find(module, facts);
    found.retain(|unit| units.has(unit.kind));
    found
}

fn last(unit: &Unit) -> Node {
    *unit.nodes.last().expect("a unit has nodes")
}

/// The element type of the operator: that of the result, if all inner values are f32. The result is of a 16-bit format
/// only if the unit rounds before the scale, as RMSNormalization does.
fn dtype_of(module: &Module, unit: &Unit) -> Option<DType> {
    let dtype = |value: Value| module.value(value).ty.dtype();
    let is_cast = |node: Node| module.node(node).schema().is_some_and(|schema| schema.kind == OpKind::Cast);
    let inner = unit.nodes.iter().filter(|&&node| node != last(unit) && !is_cast(node));
    let mut inner = inner.flat_map(|&node| module.node(node).results().iter().flatten());
    let result = dtype(unit.result)?;
    let rounds = unit.nodes.iter().any(|&node| {
        is_cast(node) && same_number(module, node).is_none() && dtype_of_result(module, node) == Some(result)
    });
    let is_wide = inner.all(|&value| dtype(value) == Some(DType::F32));
    (is_wide && (result == DType::F32 || rounds && unit.kind == Kind::RmsNorm)).then_some(result)
}

fn dtype_of_result(module: &Module, node: Node) -> Option<DType> {
    module.value(module.node(node).result(0)?).ty.dtype()
}

/// Puts the operator in place of the last node of a unit; `None` if the operator does not fit.
fn replace(inserter: &mut Inserter<'_>, operator: OpKind, unit: &Unit) -> Option<()> {
    let root = last(unit);
    let dtype = dtype_of(inserter.module, unit)?;
    inserter.move_before(root);
    let x = operand(inserter.module, unit, dtype)?;
    let made = insert(inserter, operator, unit, x).ok().flatten()?;
    let module = &mut *inserter.module;
    let (new, old) = (&module.value(made).ty, &module.value(unit.result).ty);
    let fits =
        new.dtype() == old.dtype() && old.meet(new).is_some() && old.shape()?.rank() == new.shape()?.rank();
    let (node, _) = module.producer(made)?;
    let data = module.node(node).clone();
    module.erase_node(node);
    fits.then_some(())?;
    for attr in module.node(root).attrs().to_vec() {
        module.remove_attr(root, attr.name);
    }
    module.set_formal_operands(root, data.formal_operands());
    module.set_op(root, data.op);
    for attr in data.attrs() {
        module.set_attr(root, attr.name, attr.value.clone());
    }
    for &node in unit.nodes.iter().rev().skip(1) {
        module.erase_node(node);
    }
    Some(())
}

/// The operand of a unit with an element type: as a node of the unit reads it, or behind casts that change no number.
fn operand(module: &Module, unit: &Unit, dtype: DType) -> Option<Value> {
    let behind = |&value: &Value| {
        let (node, _) = module.producer(value)?;
        same_number(module, node).and(module.node(node).operand(0))
    };
    let mut values = unit.operands.clone();
    values.extend(unit.operands.iter().filter_map(behind));
    values.into_iter().find(|&value| module.value(value).ty.dtype() == Some(dtype))
}
