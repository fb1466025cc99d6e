//! Matches a pattern against a value, with the captures and nodes found so far.

use super::chains::{Flat, Scalar, behind, flat, scalar};
use super::halves;
use super::pattern::{Capture, Chain, Constant, Function, Number, Pattern, Rule};
use crate::graph::flow;
use ampc_ir::infer::Facts;
use ampc_ir::op::OpKind;
use ampc_ir::views::norm::ChannelNormView;
use ampc_ir::views::reduce::{Axes, ReduceView};
use ampc_ir::views::{NodeView, constant_of};
use ampc_ir::{DType, Module, Node, Value};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::rc::Rc;

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
    /// The sums and products of values, which several rules ask for.
    pub(super) flats: &'a Flats,
}

/// Sums and products that were read.
pub(super) type Flats = RefCell<FxHashMap<(Chain, Value), Option<Rc<Flat>>>>;

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
                let scaled = self
                    .flat_of(*chain, value)
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

    fn flat_of(&self, chain: Chain, value: Value) -> Option<Rc<Flat>> {
        let mut flats = self.flats.borrow_mut();
        flats.entry((chain, value)).or_insert_with(|| flat(self.module, chain, value).map(Rc::new)).clone()
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

    fn call(
        &self,
        function: Function,
        operands: &[Pattern],
        value: Value,
        mut state: State,
    ) -> Option<State> {
        let (inner, casts) = behind(self.module, value);
        let (node, slot) = self.module.producer(inner)?;
        let view = NodeView::with_facts(self.module, node, self.facts)?;
        if !view.schema.domain.is_empty() || view.lacks_attributes() {
            return None;
        }
        state.nodes.extend(casts);
        if function == Function::Mean && view.kind() != OpKind::ReduceMean {
            return self.scaled_sum(operands, inner, state);
        }
        if operator(function).is_some_and(|kind| kind != view.kind()) {
            return None;
        }
        state.nodes.push(node);
        let values = self.values(function, operands, &view, slot, &mut state)?;
        let patterns = operands.iter().cloned().zip([1.0; 3]);
        let values = values.into_iter().zip([1.0; 3]);
        if function == Function::Op(OpKind::Min) {
            let (patterns, values): (SmallVec<[_; 2]>, SmallVec<[_; 2]>) =
                (patterns.collect(), values.collect());
            return self.assign(&patterns, &values, state);
        }
        let mut pairs = patterns.zip(values);
        pairs.try_fold(state, |state, ((pattern, _), (value, _))| self.pattern(&pattern, value, state))
    }

    /// The values that the operands of a function have to match, if the node is the function otherwise.
    fn values(
        &self,
        function: Function,
        operands: &[Pattern],
        view: &NodeView<'_>,
        slot: u32,
        state: &mut State,
    ) -> Option<SmallVec<[Value; 3]>> {
        let first = view.operand(0)?;
        let is_function = match function {
            Function::Mean | Function::Sum | Function::Max | Function::Op(OpKind::ReduceLogSumExp) => {
                reduces(view, true, state).is_some()
            }
            Function::Total => reduces(view, false, state).is_some(),
            Function::Clip => {
                self.has_bound(view, 1, "min", &operands[1]) && self.has_bound(view, 2, "max", &operands[2])
            }
            Function::Gate => {
                let is = |name, k| view.float(name).is_some_and(|found| is_close(exact(found.into()), k));
                is("alpha", 1.0 / 6.0) && is("beta", 0.5)
            }
            Function::Standard => {
                let epsilon = ChannelNormView::read(view).ok()?.epsilon;
                state.bind_number(Number::Eps, f64::from(epsilon))?;
                self.is_filled(view.operand(1)?, 1.0) && self.is_filled(view.operand(2)?, 0.0)
            }
            Function::Round => {
                let result = flow::float_cast(self.module, view.node)?;
                let to = self.module.value(result).ty.dtype()?;
                to.is_low() && view.dtype(0) == Some(DType::F32)
            }
            Function::Half(part) => return Some(smallvec::smallvec![halves::half(view, slot, part)?]),
            Function::Every(part) => return Some(smallvec::smallvec![halves::every(view, part)?]),
            Function::Join => return Some(halves::joined(view)?.into_iter().collect()),
            Function::Weave => {
                let (woven, nodes) = halves::woven(view, self.facts)?;
                state.nodes.extend(nodes);
                return Some(woven.into_iter().collect());
            }
            Function::Op(_) => return (0..operands.len()).map(|i| view.operand(i)).collect(),
        };
        is_function.then(|| smallvec::smallvec![first])
    }

    /// A mean that is written as a sum and the factor 1/n.
    fn scaled_sum(&self, operands: &[Pattern], value: Value, mut state: State) -> Option<State> {
        let Flat { constant, items, nodes } = flat(self.module, Chain::Product, value)?;
        let &[(sum, 1.0)] = &items[..] else { return None };
        state.nodes.extend(nodes);
        state.rank = state.rank.max(constant.rank);
        let (sum, casts) = behind(self.module, sum);
        state.nodes.extend(casts);
        let (node, _) = self.module.producer(sum)?;
        let view = NodeView::with_facts(self.module, node, self.facts)?;
        let axes = reduces(&view, true, &mut state).filter(|_| view.kind() == OpKind::ReduceSum)?;
        let dims = view.dims(0)?;
        let n: u64 = axes.as_slice().iter().map(|&axis| dims[axis].known()).product::<Option<u64>>()?;
        #[expect(clippy::cast_precision_loss, reason = "compared with a rounded constant")]
        let mean = 1.0 / n as f64;
        is_close(constant, mean).then_some(())?;
        state.nodes.push(node);
        self.pattern(&operands[0], view.operand(0)?, state)
    }

    /// True if a bound of Clip, an operand or an attribute below opset 11, is a number.
    fn has_bound(&self, view: &NodeView<'_>, slot: usize, name: &str, to: &Pattern) -> bool {
        let found = match view.operand(slot) {
            Some(value) => scalar(self.module, value),
            None => view.float(name).map(|number| exact(number.into())),
        };
        let Pattern::Flat(_, Constant::Number(k), _) = to else { return false };
        found.is_some_and(|found| is_close(found, *k))
    }

    /// True if all elements of a small constant are a number.
    fn is_filled(&self, value: Value, number: f64) -> bool {
        let constant = constant_of(self.module, behind(self.module, value).0);
        let elements = constant.and_then(|data| data.small_floats(1 << 16));
        elements.is_some_and(|elements| elements.iter().all(|&element| element == number))
    }
}

/// The operator of a function; `None` if there are several.
fn operator(function: Function) -> Option<OpKind> {
    Some(match function {
        Function::Op(kind) => kind,
        Function::Mean => OpKind::ReduceMean,
        Function::Sum | Function::Total => OpKind::ReduceSum,
        Function::Max => OpKind::ReduceMax,
        Function::Clip => OpKind::Clip,
        Function::Gate => OpKind::HardSigmoid,
        Function::Standard => OpKind::InstanceNormalization,
        Function::Round => OpKind::Cast,
        Function::Join => OpKind::Concat,
        Function::Weave => OpKind::Reshape,
        Function::Half(_) | Function::Every(_) => return None,
    })
}

/// The axes of a reduction, if they are the axes of the unit.
fn reduces(view: &NodeView<'_>, keeps: bool, state: &mut State) -> Option<Axes> {
    let reduce = ReduceView::read(view).ok().filter(|reduce| reduce.keep || !keeps)?;
    let axes = reduce.axes?;
    state.bind_axes(axes.as_slice()).map(|()| axes)
}

fn exact(number: f64) -> Scalar {
    Scalar { number, slack: 0.0, rank: 0 }
}

/// True if a constant is a number of the table.
fn is_close(found: Scalar, number: f64) -> bool {
    (found.number - number).abs() <= number.abs() * (found.slack + DIGITS)
}
