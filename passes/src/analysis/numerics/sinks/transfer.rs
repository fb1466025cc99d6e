//! The transfer function of the walk for sinks: the kinds of sinks that an operator passes on to its operands.

use super::super::back::{behind_movement, producer};
use super::super::differences::subtracts_translation;
use super::super::facts::Numerics;
use super::super::operators::{is_product, kind};
use super::super::properties::{Properties, terms};
use super::super::sink::{Sink, when};
use super::super::squares::sums;
use crate::analysis::cost::Sizes;
use crate::graph::flow::{self, Reader};
use ampc_ir::op::{self, OpKind};
use ampc_ir::views::NodeView;
use ampc_ir::{Module, Node, Value};
use std::collections::BTreeSet;

/// The maximal number of terms of a product that combines the parts of a coordinate (bones, control points, corners).
/// Products of more terms are layers of a network, which pass no coordinate on.
const FEW_PARTS: u64 = 64;

/// The maximal number of operators that move the result of a product before a translation is subtracted from it.
const MAX_MOVES: usize = 8;

impl Numerics {
    /// The kinds of sinks that an operator passes on from its results to an operand: the transfer function of the walk.
    pub(super) fn passed(&self, module: &Module, node: Node, kind: OpKind, slot: usize) -> Sink {
        let everything = Sink::EVERYTHING;
        if op::moves(kind, slot).is_some() || op::adds(kind) {
            return everything;
        }
        let scales = || {
            let others = module.node(node).formal_operands().iter().enumerate();
            others.filter(|&(i, _)| i != slot).filter_map(|(_, &v)| v).all(|v| self.is_constant(module, v))
        };
        // These kinds concern the value itself, which only moving, adding and scaling preserve: a sum of |x| is not a
        // sum of x.
        let linear = Sink::SUM
            | Sink::DISTANCE
            | Sink::SPECTRUM
            | Sink::STATE
            | Sink::ROOT
            | Sink::MAGNIFIED
            | Sink::ENLARGED
            | Sink::PART_OF_POSITION;
        match kind {
            OpKind::Mul if scales() => everything,
            OpKind::Div if slot == 0 && scales() => everything,
            // Sums, products and magnitudes of the parts of a spectrum of an input.
            OpKind::Mul | OpKind::Pow if self.is_arithmetic(module, node) => {
                everything.without(linear) | Sink::SPECTRUM
            }
            OpKind::Sqrt => everything.without(linear) | Sink::SPECTRUM,
            _ if sums(module, node) && self.is_arithmetic(module, node) => {
                everything.without(linear) | Sink::SPECTRUM
            }
            _ if sums(module, node) => everything.without(linear),
            OpKind::Mul
            | OpKind::Div
            | OpKind::Pow
            | OpKind::Reciprocal
            | OpKind::Abs
            | OpKind::ReduceMax
            | OpKind::ReduceMin
            | OpKind::MaxPool
            | OpKind::GlobalMaxPool => everything.without(linear),
            OpKind::Relu | OpKind::LeakyRelu | OpKind::Clip | OpKind::Max | OpKind::Min => {
                everything.without(Sink::DISTANCE | Sink::ENLARGED | Sink::PART_OF_POSITION)
            }
            OpKind::CumSum | OpKind::Dropout | OpKind::PhiloxDropout if slot == 0 => {
                everything.without(linear)
            }
            OpKind::Resize | OpKind::Upsample if slot == 0 => everything.without(linear) | Sink::ENLARGED,
            OpKind::Floor | OpKind::Ceil | OpKind::Round | OpKind::Mod => Sink::POSITION,
            OpKind::Tanh | OpKind::Sigmoid | OpKind::HardSigmoid | OpKind::Softsign | OpKind::Erf => {
                Sink::POSITION | Sink::EXPONENT
            }
            OpKind::Exp | OpKind::Log | OpKind::Atan | OpKind::Asin | OpKind::Acos => Sink::POSITION,
            // The third operand of a product is added to it.
            _ if is_product(kind) && slot == 2 && kind != OpKind::Einsum => everything,
            _ if is_product(kind) => {
                let has = |value: Option<Value>, p| value.is_some_and(|v| self.properties(module, v).has(p));
                let data = module.node(node);
                let squares = scales() && has(data.operand(slot), Properties::SQUARES);
                let view = NodeView::new(module, node).filter(|_| op::is_single_product(kind));
                let combines =
                    view.is_some_and(|view| terms(module, &view, Sizes::default().other) <= FEW_PARTS);
                when(squares, Sink::ZERO | Sink::LOG | Sink::CANCELLATION | Sink::SPECTRUM)
                    | when(self.transforms.contains(&node), Sink::SPECTRUM)
                    | when(combines && self.is_linear_map(module, node, slot), Sink::ENLARGED)
                    | when(self.combines_points(module, node, slot), Sink::CANCELLATION | Sink::ENLARGED)
                    | when(has(data.result(0), Properties::ARITHMETIC), Sink::RESIDUAL)
                    | when(combines, Sink::PART_OF_POSITION)
            }
            _ => Sink::NOTHING,
        }
    }

    /// True if an operand is combined by weights that add up to 1, and the translation that it contains is subtracted
    /// from the result ([`subtracts_translation`]).
    fn combines_points(&self, module: &Module, node: Node, slot: usize) -> bool {
        let weights = |i: usize| {
            module
                .node(node)
                .operand(i)
                .is_some_and(|value| self.properties(module, value).has(Properties::DISTRIBUTION))
        };
        if weights(slot) || !(0..2).any(weights) {
            return false;
        }
        let mut level: BTreeSet<Value> = module.node(node).result(0).into_iter().collect();
        for _ in 0..MAX_MOVES {
            let readers = level.iter().flat_map(|&value| flow::readers_beyond_casts(module, value));
            let readers: Vec<_> = readers.filter_map(Reader::operand).collect();
            if readers.iter().any(|&(reader, _)| subtracts_translation(module, reader) == Some(node)) {
                return true;
            }
            let moves = readers.into_iter().filter(|&(reader, slot)| {
                kind(module, reader).is_some_and(|kind| op::moves(kind, slot as usize).is_some())
            });
            level = moves
                .flat_map(|(reader, _)| module.node(reader).results().iter().flatten().copied())
                .collect();
        }
        false
    }

    /// True if a product multiplies the result of a product with constants by a constant: together they are one linear map.
    fn is_linear_map(&self, module: &Module, node: Node, slot: usize) -> bool {
        let of = module.node(node).operand(slot).and_then(|of| producer(module, behind_movement(module, of)));
        self.weighted.contains(&node) && of.is_some_and(|(of, _)| self.weighted.contains(&of))
    }

    /// True if the result of a node is arithmetic of inputs.
    fn is_arithmetic(&self, module: &Module, node: Node) -> bool {
        let result = module.node(node).result(0);
        result.is_some_and(|result| self.properties(module, result).has(Properties::ARITHMETIC))
    }
}
