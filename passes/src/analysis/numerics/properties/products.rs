//! The properties of products of matrices.

use super::super::back::MAX_STEPS;
use super::super::squares::is_gram;
use super::{Known, MAX_SQUARES, MAX_TERMS, Properties, UNKNOWN_EXTENT};
use crate::analysis::cost::{Extents, Sizes, amount};
use crate::graph::flow;
use ampc_ir::op::{self, OpKind};
use ampc_ir::views::NodeView;
use ampc_ir::{Dim, Module, Shape, Value};

impl Known<'_> {
    /// The properties of a product of matrices.
    pub(super) fn of_product(&self, view: &NodeView<'_>) -> Properties {
        let module = self.module;
        let factors = self.factors(view);
        let computed: Vec<Properties> =
            factors.iter().copied().filter(|properties| !properties.has(Properties::CONSTANT)).collect();
        let any = computed.iter().fold(Properties::NOTHING, |all, &properties| all | properties);
        let mut made = Properties::PRODUCT | any.among(Properties::SINUSOIDS | Properties::LONG_SUM);
        if !computed.is_empty() && computed.iter().all(|properties| properties.has(Properties::NORMS)) {
            made |= Properties::PRODUCTS_OF_NORMS;
        }
        if let [one] = computed[..]
            && one.has(Properties::SQUARES)
        {
            made |= Properties::SQUARES | Properties::SUMMED_SQUARES;
        }
        if computed.len() > 1
            && op::is_single_product(view.kind())
            && !self.adds_up_to_one(view)
            && self.terms_of(view, any) > if is_gram(module, view.node) { MAX_SQUARES } else { MAX_TERMS }
        {
            made |= Properties::LONG_SUM;
        }
        made
    }

    /// True if a factor of a product is a distribution over the terms that the product adds up.
    fn adds_up_to_one(&self, view: &NodeView<'_>) -> bool {
        (0..view.n_operands())
            .filter(|&i| view.operand(i).is_some_and(|v| self.of(v).has(Properties::DISTRIBUTION)))
            .any(|i| normalizes_contraction(view, i))
    }

    /// The number of terms that a product of computed factors sums up. An axis of unknown extent counts as long, unless
    /// a factor has unknown range like an input of the model, about which nothing is known at all.
    fn terms_of(&self, view: &NodeView<'_>, factors: Properties) -> u64 {
        let unknown =
            if factors.has(Properties::UNKNOWN_RANGE) { Sizes::default().other } else { UNKNOWN_EXTENT };
        terms(self.module, view, unknown)
    }

    /// The properties of each factor of a product.
    pub(super) fn factors(&self, view: &NodeView<'_>) -> Vec<Properties> {
        let n = if view.kind() == OpKind::Einsum { view.n_operands() } else { 2 };
        (0..n).filter_map(|i| view.operand(i)).map(|v| self.of(v)).collect()
    }
}

/// True unless a factor of a product is a Softmax over an axis that the product does not contract:
/// `Softmax(x, axis=-1)`, transposed, adds up to 1 over its rows, and not over its columns.
pub(crate) fn normalizes_contraction(view: &NodeView<'_>, i: usize) -> bool {
    let module = view.module;
    let rank = |value: Value| module.value(value).ty.shape().and_then(Shape::dims).map(<[Dim]>::len);
    let Some((mut value, n)) = view.operand(i).and_then(|value| Some((value, rank(value)?))) else {
        return true;
    };
    let (before_last, last) = (n.saturating_sub(2), n.saturating_sub(1));
    let mut axis = match (view.kind(), i) {
        (OpKind::MatMul, 0) => last,
        (OpKind::MatMul, 1) => before_last,
        (OpKind::Gemm, 0) => {
            if view.int("transA") == Some(1) {
                before_last
            } else {
                last
            }
        }
        (OpKind::Gemm, 1) => {
            if view.int("transB") == Some(1) {
                last
            } else {
                before_last
            }
        }
        _ => return true,
    };
    for _ in 0..MAX_STEPS {
        value = flow::behind_casts(module, value);
        let Some(producer) = module.producer(value).and_then(|(node, _)| NodeView::new(module, node)) else {
            return true;
        };
        match producer.kind() {
            OpKind::Softmax => {
                let axis_of = producer.int("axis").unwrap_or(-1);
                let own = if axis_of < 0 { axis_of + i64::try_from(n).unwrap_or(0) } else { axis_of };
                return usize::try_from(own) == Ok(axis);
            }
            OpKind::Transpose => {
                let Some(perm) = producer.int_list("perm") else { return true };
                let Some(from) = perm.get(axis).and_then(|&from| usize::try_from(from).ok()) else {
                    return true;
                };
                axis = from;
            }
            OpKind::Dropout | OpKind::Identity => {}
            _ => return true,
        }
        let Some(of) = producer.operand(0) else { return true };
        value = of;
    }
    true
}

/// The number of products that an element of a product of matrices sums up, with `unknown` elements per axis of unknown
/// extent.
pub(crate) fn terms(module: &Module, view: &NodeView<'_>, unknown: u64) -> u64 {
    let sizes = Sizes { other: unknown, ..Sizes::default() };
    let extents = Extents { module, sizes: &sizes };
    let results = view.data().result(0).map_or(0, |value| extents.elements(value));
    (amount(view, extents).product / 2).checked_div(results).unwrap_or(0)
}
