//! Matches a pattern against a value, with the captures and nodes found so far.

use super::chains::{Flat, Scalar, behind, flat, scalar};
use super::halves;
use super::pattern::{Capture, Constant, Function, Number, Pattern, Rule};
use crate::graph::flow;
use ampc_ir::infer::Facts;
use ampc_ir::op::OpKind;
use ampc_ir::views::norm::ChannelNormView;
use ampc_ir::views::reduce::ReduceView;
use ampc_ir::views::{NodeView, constant_of};
use ampc_ir::{DType, Module, Node, Value};
use smallvec::SmallVec;

/// A number of the table and a constant may differ by this share of the number, beside the rounding of the constant:
/// exporters write six or more digits.
const DIGITS: f64 = 1.0 / (1 << 20) as f64;

/// The captures and nodes so far.
#[derive(Clone, Debug, Default)]
pub(super) struct State {
    /// Captured values, behind casts.
    values: [Option<Value>; 5],
    /// Captured values as they are read, each occurrence.
    reads: SmallVec<[(Capture, Value); 8]>,
    numbers: [Option<f64>; 2],
    named: SmallVec<[Option<Value>; 3]>,
    /// The axes of all reductions, from the front and sorted, and the value that is reduced first.
    pub(super) axes: Option<SmallVec<[usize; 4]>>,
    /// The nodes of the unit.
    pub(super) nodes: SmallVec<[Node; 24]>,
    /// The highest rank of a constant with one element.
    pub(super) rank: usize,
}

impl State {
    /// A captured value behind casts.
    pub(super) fn value(&self, capture: Capture) -> Option<Value> {
        self.values[capture as usize]
    }

    /// A captured value, as the nodes of the unit read it.
    pub(super) fn reads(&self, capture: Capture) -> impl Iterator<Item = Value> + '_ {
        self.reads.iter().filter(move |(of, _)| *of == capture).map(|&(_, value)| value)
    }

    /// A captured number.
    pub(super) fn number(&self, number: Number) -> Option<f64> {
        self.numbers[number as usize]
    }

    fn bind_number(&mut self, name: Number, found: f64) -> Option<()> {
        let is_valid = match name {
            Number::Eps => found > 0.0 && found.is_finite(),
            Number::Alpha => found != 0.0 && found.is_finite(),
        };
        let known = self.numbers[name as usize].get_or_insert(found);
        (is_valid && *known == found).then_some(())
    }

    fn bind_axes(&mut self, axes: &[usize]) -> Option<()> {
        let known = self.axes.get_or_insert_with(|| axes.iter().copied().collect());
        (known[..] == *axes).then_some(())
    }
}

/// Matches the formulas of a rule.
#[derive(Clone, Copy)]
pub(super) struct Matcher<'a> {
    pub(super) module: &'a Module,
    pub(super) facts: &'a Facts,
    pub(super) rule: &'a Rule,
}

impl Matcher<'_> {
    /// The captures and nodes of a value that matches the rule.
    pub(super) fn find(&self, value: Value) -> Option<State> {
        let named = smallvec::smallvec![None; self.rule.named.len()];
        self.pattern(&self.rule.root, value, State { named, ..State::default() })
    }

    fn pattern(&self, pattern: &Pattern, value: Value, mut state: State) -> Option<State> {
        match pattern {
            Pattern::Any => Some(state),
            Pattern::Capture(capture) => {
                let inner = behind(self.module, value).0;
                let known = state.values[*capture as usize].get_or_insert(inner);
                let is_same = *known == inner;
                state.reads.push((*capture, value));
                is_same.then_some(state)
            }
            Pattern::Named(i) => {
                let (inner, casts) = behind(self.module, value);
                if state.named[*i] == Some(inner) {
                    state.nodes.extend(casts);
                    return Some(state);
                }
                let mut state = self.pattern(&self.rule.named[*i], value, state)?;
                state.named[*i].get_or_insert(inner);
                Some(state)
            }
            Pattern::Flat(_, Constant::Number(k), items) if items.is_empty() => {
                let scalar = scalar(self.module, value)?;
                is_close(scalar, *k).then_some(state)
            }
            Pattern::Flat(chain, constant, items) => {
                let scaled = flat(self.module, *chain, value)
                    .and_then(|found| self.flat(*constant, items, &found, state.clone()));
                // A captured factor may be absent.
                let bare = || match (constant, &items[..]) {
                    (Constant::Capture(Number::Alpha), [(item, 1.0)]) => {
                        state.bind_number(Number::Alpha, 1.0)?;
                        self.pattern(item, value, state)
                    }
                    _ => None,
                };
                scaled.or_else(bare)
            }
            Pattern::Call(function, operands) => self.call(*function, operands, value, state),
        }
    }

    /// Matches the constant and the items of a sum or product.
    fn flat(
        &self,
        constant: Constant,
        items: &[(Pattern, f64)],
        found: &Flat,
        mut state: State,
    ) -> Option<State> {
        match constant {
            Constant::Number(k) => is_close(found.constant, k).then_some(())?,
            Constant::Capture(name) => state.bind_number(name, found.constant.number)?,
        }
        state.rank = state.rank.max(found.constant.rank);
        state.nodes.extend(found.nodes.iter().copied());
        self.assign(items, &found.items, state)
    }

    /// Matches each pattern with another item of its weight.
    fn assign(&self, patterns: &[(Pattern, f64)], items: &[(Value, f64)], state: State) -> Option<State> {
        let Some(((pattern, weight), rest)) = patterns.split_first() else {
            return items.is_empty().then_some(state);
        };
        if items.len() != patterns.len() {
            return None;
        }
        (0..items.len()).filter(|&i| items[i].1 == *weight).find_map(|i| {
            let state = self.pattern(pattern, items[i].0, state.clone())?;
            let others: SmallVec<[(Value, f64); 8]> =
                items.iter().enumerate().filter(|&(j, _)| j != i).map(|(_, &item)| item).collect();
            self.assign(rest, &others, state)
        })
    }

    fn call(&self, function: Function, operands: &[Pattern], value: Value, mut state: State) -> Option<State> {
        let (inner, casts) = behind(self.module, value);
        let (node, slot) = self.module.producer(inner)?;
        let view = NodeView::with_facts(self.module, node, self.facts)?;
        if !view.schema.domain.is_empty() || view.lacks_attributes() {
            return None;
        }
        state.nodes.extend(casts);
        let kind = view.kind();
        let wanted = match function {
            Function::Mean if kind != OpKind::ReduceMean => return self.scaled_sum(operands, inner, state),
            Function::Mean => OpKind::ReduceMean,
            Function::Sum | Function::Total => OpKind::ReduceSum,
            Function::Max => OpKind::ReduceMax,
            Function::Clip => OpKind::Clip,
            Function::Gate => OpKind::HardSigmoid,
            Function::Standard => OpKind::InstanceNormalization,
            Function::Round => OpKind::Cast,
            Function::Join => OpKind::Concat,
            Function::Weave => OpKind::Reshape,
            Function::Half(part) => return self.part(halves::half(&view, slot, part)?, node, operands, state),
            Function::Every(part) => return self.part(halves::every(&view, part)?, node, operands, state),
            Function::Op(wanted) => wanted,
        };
        if kind != wanted {
            return None;
        }
        state.nodes.push(node);
        match function {
            Function::Mean | Function::Sum | Function::Max | Function::Op(OpKind::ReduceLogSumExp) => {
                self.reduce(&view, operands, true, state)
            }
            Function::Total => self.reduce(&view, operands, false, state),
            Function::Clip => {
                let state = self.bound(&view, 1, "min", &operands[1], state)?;
                let state = self.bound(&view, 2, "max", &operands[2], state)?;
                self.pattern(&operands[0], view.operand(0)?, state)
            }
            Function::Gate => {
                let (alpha, beta) = (f64::from(view.float("alpha")?), f64::from(view.float("beta")?));
                let is_gate = is_close(exact(alpha), 1.0 / 6.0) && is_close(exact(beta), 0.5);
                is_gate.then_some(())?;
                self.pattern(&operands[0], view.operand(0)?, state)
            }
            Function::Standard => {
                let epsilon = ChannelNormView::read(&view).ok()?.epsilon;
                state.bind_number(Number::Eps, f64::from(epsilon))?;
                let is_standard = self.is_filled(view.operand(1)?, 1.0) && self.is_filled(view.operand(2)?, 0.0);
                is_standard.then_some(())?;
                self.pattern(&operands[0], view.operand(0)?, state)
            }
            Function::Round => {
                let result = flow::float_cast(self.module, node)?;
                let low = self.module.value(result).ty.dtype().is_some_and(DType::is_low);
                (low && view.dtype(0) == Some(DType::F32)).then_some(())?;
                self.pattern(&operands[0], view.operand(0)?, state)
            }
            Function::Join => {
                let (a, b) = halves::joined(&view)?;
                let state = self.pattern(&operands[0], a, state)?;
                self.pattern(&operands[1], b, state)
            }
            Function::Weave => {
                let (a, b, nodes) = halves::woven(&view, self.facts)?;
                state.nodes.extend(nodes);
                let state = self.pattern(&operands[0], a, state)?;
                self.pattern(&operands[1], b, state)
            }
            Function::Op(OpKind::Min) if view.n_operands() == 2 => {
                let values = [view.operand(0)?, view.operand(1)?].map(|value| (value, 1.0));
                let patterns: SmallVec<[_; 2]> = operands.iter().map(|p| (p.clone(), 1.0)).collect();
                self.assign(&patterns, &values, state)
            }
            Function::Op(_) => {
                let mut state = state;
                for (i, pattern) in operands.iter().enumerate() {
                    state = self.pattern(pattern, view.operand(i)?, state)?;
                }
                Some(state)
            }
            Function::Half(_) | Function::Every(_) => None,
        }
    }

    /// A part of a value along its last axis.
    fn part(&self, of: Value, node: Node, operands: &[Pattern], mut state: State) -> Option<State> {
        state.nodes.push(node);
        self.pattern(&operands[0], of, state)
    }

    /// A reduction over the axes of the unit.
    fn reduce(&self, view: &NodeView<'_>, operands: &[Pattern], keeps: bool, mut state: State) -> Option<State> {
        let reduce = ReduceView::read(view).ok().filter(|reduce| reduce.keep || !keeps)?;
        let axes = reduce.axes?;
        state.bind_axes(axes.as_slice())?;
        self.pattern(&operands[0], view.operand(0)?, state)
    }

    /// A mean that is written as a sum and the factor 1/n.
    fn scaled_sum(&self, operands: &[Pattern], value: Value, mut state: State) -> Option<State> {
        let Flat { constant, items, nodes } = flat(self.module, super::pattern::Chain::Product, value)?;
        let &[(sum, 1.0)] = &items[..] else { return None };
        state.nodes.extend(nodes);
        state.rank = state.rank.max(constant.rank);
        let (sum, casts) = behind(self.module, sum);
        state.nodes.extend(casts);
        let (node, _) = self.module.producer(sum)?;
        let view = NodeView::with_facts(self.module, node, self.facts)?;
        let axes = ReduceView::read(&view).ok().filter(|_| view.kind() == OpKind::ReduceSum)?.axes?;
        let dims = view.dims(0)?;
        let mut n = 1.0;
        for &axis in axes.as_slice() {
            #[expect(clippy::cast_precision_loss, reason = "compared with a rounded constant")]
            let extent = dims[axis].known()? as f64;
            n *= extent;
        }
        is_close(constant, 1.0 / n).then_some(())?;
        state.nodes.push(node);
        self.reduce(&view, operands, true, state)
    }

    /// A bound of Clip: an operand, or an attribute below opset 11.
    fn bound(&self, view: &NodeView<'_>, slot: usize, name: &str, to: &Pattern, state: State) -> Option<State> {
        let Pattern::Flat(_, Constant::Number(k), _) = to else { return None };
        let found = match view.operand(slot) {
            Some(value) => scalar(self.module, value)?,
            None => exact(f64::from(view.float(name)?)),
        };
        is_close(found, *k).then_some(state)
    }

    /// True if all elements of a small constant are a number.
    fn is_filled(&self, value: Value, number: f64) -> bool {
        let constant = constant_of(self.module, behind(self.module, value).0);
        let elements = constant.and_then(|data| data.small_floats(1 << 16));
        elements.is_some_and(|elements| elements.iter().all(|&element| element == number))
    }
}

fn exact(number: f64) -> Scalar {
    Scalar { number, slack: 0.0, rank: 0 }
}

/// True if a constant is a number of the table.
fn is_close(found: Scalar, number: f64) -> bool {
    (found.number - number).abs() <= number.abs() * (found.slack + DIGITS)
}
