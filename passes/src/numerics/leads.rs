//! What values lead to: what of their errors is made large by what reads them, directly or through operators that pass
//! errors on.
//!
//! A walk backwards, from the rows of [`AMPLIFIERS`] and from differences of what is nearly equal, through operators
//! that move, add, multiply and round. Products of matrices, norms and functions with bounds end most ways: behind
//! them an error is one among many, or small.

use super::{Held, Numerics, is_product, kind, repeat, scalar, squares};
use crate::flow;
use ampc_ir::convert::{Conversion, can_convert, convert, max_finite, min_normal, unit_roundoff};
use ampc_ir::op::{self, AMPLIFIERS, Amplified, Amplifier, Class, OpKind};
use ampc_ir::views::constant_of;
use ampc_ir::{DType, Module, Node, Value};
use std::ops::{BitOr, BitOrAssign};

/// No error is made large by a divisor, root or logarithm of what is at least as large as this.
const FAR: f64 = 0.5;

/// A difference that is multiplied by more than this shows what its terms are rounded by.
const SCALE: f64 = 8.0;

/// Elements of the largest divisor that is looked at for elements that vanish.
const MAX_DIVISORS: u64 = 1 << 16;

/// A set of what values lead to.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Lead(u16);

impl Lead {
    pub(crate) const NOTHING: Lead = Lead(0);
    /// [`Amplified::Exponent`].
    pub(crate) const EXPONENT: Lead = Lead(1);
    /// [`Amplified::Angle`] or [`Amplified::Position`].
    pub(crate) const PLACE: Lead = Lead(1 << 1);
    /// [`Amplified::Zero`].
    pub(crate) const ZERO: Lead = Lead(1 << 2);
    /// [`Amplified::One`], or a difference from a constant that leads to [`Amplified::Zero`].
    pub(crate) const ONE: Lead = Lead(1 << 3);
    /// A difference of what is nearly equal.
    pub(crate) const DIFFERENCE: Lead = Lead(1 << 4);
    /// A distance: squared norms minus twice a product.
    pub(crate) const DISTANCE: Lead = Lead(1 << 5);
    /// A sum or mean over an axis.
    pub(crate) const SUM: Lead = Lead(1 << 6);
    /// A logarithm.
    pub(crate) const LOG: Lead = Lead(1 << 7);
    /// A logarithm of squares.
    pub(crate) const LOG_OF_SQUARES: Lead = Lead(1 << 8);
    /// A factor larger than [`SCALE`].
    pub(crate) const SCALED: Lead = Lead(1 << 9);

    /// All that makes a small error large.
    pub(crate) const AMPLIFIED: Lead = Lead(0b111_1111 & !(1 << 6));

    /// Whether one of some is there.
    pub(crate) fn any(self, others: Lead) -> bool {
        self.0 & others.0 != 0
    }
    fn among(self, others: Lead) -> Lead {
        Lead(self.0 & others.0)
    }
    fn without(self, others: Lead) -> Lead {
        Lead(self.0 & !others.0)
    }
}

impl BitOr for Lead {
    type Output = Lead;
    fn bitor(self, other: Lead) -> Lead {
        Lead(self.0 | other.0)
    }
}

impl BitOrAssign for Lead {
    fn bitor_assign(&mut self, other: Lead) {
        self.0 |= other.0;
    }
}

/// What a value leads to.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Leads {
    /// By some reader.
    pub(crate) some: Lead,
    /// By every reader.
    pub(crate) all: Lead,
    /// A row of [`AMPLIFIERS`] that is reached, counted from 1; 0 if none is.
    row: u8,
}

impl Leads {
    /// A row of the table that is reached.
    pub(crate) fn amplifier(self) -> Option<&'static Amplifier> {
        AMPLIFIERS.get(usize::from(self.row).checked_sub(1)?)
    }

    /// What two readers lead to.
    pub(crate) fn and(self, other: Leads) -> Leads {
        Leads {
            some: self.some | other.some,
            all: self.all.among(other.all),
            row: if self.row == 0 { other.row } else { self.row },
        }
    }

    /// The same, but what is not among some kinds.
    fn among(self, kinds: Lead) -> Leads {
        let some = self.some.among(kinds);
        Leads { some, all: self.all.among(kinds), row: if some.any(Lead::AMPLIFIED) { self.row } else { 0 } }
    }

    fn with(mut self, lead: Lead) -> Leads {
        self.some |= lead;
        self.all |= lead;
        self
    }
}

fn lead_of(what: Amplified) -> Lead {
    match what {
        Amplified::Exponent => Lead::EXPONENT,
        Amplified::Angle | Amplified::Position => Lead::PLACE,
        Amplified::Zero => Lead::ZERO,
        Amplified::One => Lead::ONE,
    }
}

impl Numerics {
    /// Finds what values lead to. Bodies come after the nodes that they belong to, so one walk backwards sees what is
    /// inside before what is around, and what goes out of a body is looked at again.
    pub(super) fn find_leads(&mut self, module: &Module, nodes: &[Node], to: DType) {
        repeat(module, || {
            let mut found = false;
            for &node in nodes.iter().rev() {
                let results = module.node(node).results().iter().copied().flatten();
                let inputs = module.node(node).bodies().flat_map(|body| module.graph(body).inputs().to_vec());
                for value in results.chain(inputs).collect::<Vec<_>>() {
                    let leads = self.leads_of(module, value, to);
                    found |= leads != self.leads[value];
                    self.leads[value] = leads;
                }
            }
            found
        });
    }

    /// What a value leads to, by what its readers lead to.
    fn leads_of(&self, module: &Module, value: Value, to: DType) -> Leads {
        let mut found: Option<Leads> = None;
        let mut work = vec![value];
        while let Some(value) = work.pop() {
            let graph = module.value(value).graph;
            for slot in module.output_slots(value) {
                let reader = flow::Reader::Output(graph, slot);
                let leads = flow::var_of_reader(module, reader).map(|port| self.through_port(module, port));
                found = Some(found.map_or(leads.unwrap_or_default(), |f| f.and(leads.unwrap_or_default())));
            }
            for (node, slot) in module.uses(value) {
                let n_formal = module.node(node).n_formal();
                if slot as usize >= n_formal {
                    let bodies = module.node(node).bodies();
                    work.extend(bodies.flat_map(|body| module.graph(body).captures_of(slot).to_vec()));
                    continue;
                }
                let leads = self.through(module, node, slot, to);
                found = Some(found.map_or(leads, |f| f.and(leads)));
            }
        }
        found.unwrap_or_default()
    }

    fn through_port(&self, module: &Module, port: flow::Var) -> Leads {
        let results = flow::results_of(module, port).map(|(_, result)| self.leads[result]);
        results.reduce(Leads::and).unwrap_or_default()
    }

    /// What an operand leads to by being read there.
    pub(crate) fn through(&self, module: &Module, node: Node, slot: u32, to: DType) -> Leads {
        if let Some(port) = flow::reader_var(module, node, slot).filter(|&var| flow::is_port(module, var)) {
            return self.through_port(module, port);
        }
        let Some(kind) = kind(module, node) else { return Leads::default() };
        let data = module.node(node);
        let at = slot as usize;
        let Some(operand) = data.operand(at) else { return Leads::default() };
        let float = |value: Value| module.value(value).ty.dtype().is_some_and(DType::is_float);
        let results = data.results().iter().copied().flatten().filter(|&value| float(value));
        // A result that nobody reads says nothing.
        let read = results.filter(|&value| module.uses(value).next().is_some() || is_output(module, value));
        let results = read.map(|value| self.leads[value]).reduce(Leads::and).unwrap_or_default();
        let mut leads = results.among(self.passed(module, node, kind, at));
        let amplifier = op::amplifier(kind, at).filter(|row| {
            let far = row.what == Amplified::Zero && self.is_far_from_zero(module, operand);
            !far && !is_low_anyway(module, node, slot)
        });
        if let Some(amplifier) = amplifier {
            leads = leads.with(lead_of(amplifier.what));
            if kind == OpKind::Log {
                leads = leads.with(Lead::LOG);
            }
            let row = AMPLIFIERS.iter().position(|row| row.kind == kind && row.operand == at);
            leads.row = row.and_then(|row| u8::try_from(row + 1).ok()).unwrap_or(0);
        }
        if op::sums(kind) && at == 0 {
            leads = leads.with(Lead::SUM);
        }
        if (squares(module, node) || kind == OpKind::ReduceL2) && results.some.any(Lead::LOG) {
            leads = leads.with(Lead::LOG_OF_SQUARES);
        }
        leads.with(self.by_difference(module, node, kind, operand, results.some, to))
    }

    /// Whether no element is near 0: what 1 + |x| makes.
    fn is_far_from_zero(&self, module: &Module, value: Value) -> bool {
        self.interval(module, value).is_some_and(|i| i.lo >= FAR || i.hi <= -FAR)
    }

    /// What an operator passes on of what its results lead to.
    fn passed(&self, module: &Module, node: Node, kind: OpKind, slot: usize) -> Lead {
        let everything = Lead(u16::MAX);
        if op::moves(kind, slot).is_some() || op::adds(kind) {
            return everything;
        }
        let scales = || {
            let others = module.node(node).formal_operands().iter().enumerate();
            others.filter(|&(i, _)| i != slot).filter_map(|(_, &v)| v).all(|v| self.is_constant(module, v))
        };
        // What only moves, adds and scales leads on to sums, and to distances.
        let linear = Lead::SUM | Lead::DISTANCE | Lead::LOG_OF_SQUARES | Lead::SCALED;
        match kind {
            OpKind::Mul if scales() => everything,
            OpKind::Div if slot == 0 && scales() => everything,
            _ if op::sums(kind) => everything.without(linear),
            OpKind::Mul | OpKind::Div | OpKind::Pow | OpKind::Sqrt | OpKind::Reciprocal | OpKind::Abs => {
                everything.without(linear)
            }
            OpKind::Relu | OpKind::LeakyRelu | OpKind::Clip | OpKind::Max | OpKind::Min => {
                everything.without(Lead::DISTANCE)
            }
            OpKind::ReduceMax | OpKind::ReduceMin | OpKind::MaxPool | OpKind::GlobalMaxPool => {
                everything.without(linear)
            }
            OpKind::CumSum | OpKind::Dropout | OpKind::PhiloxDropout | OpKind::Resize | OpKind::Upsample
                if slot == 0 =>
            {
                everything.without(linear)
            }
            OpKind::Floor | OpKind::Ceil | OpKind::Round | OpKind::Mod => Lead::PLACE,
            OpKind::Tanh | OpKind::Sigmoid | OpKind::HardSigmoid | OpKind::Softsign | OpKind::Erf => {
                Lead::PLACE | Lead::EXPONENT
            }
            OpKind::Exp | OpKind::Log | OpKind::Atan | OpKind::Asin | OpKind::Acos => Lead::PLACE,
            // The third operand of a product is added to it.
            _ if is_product(kind) && slot == 2 && kind != OpKind::Einsum => everything,
            _ if is_product(kind) && scales() => {
                let operand = module.node(node).operand(slot);
                let squares = operand.is_some_and(|v| self.held(module, v).has(Held::SQUARES));
                if squares { Lead::ZERO | Lead::LOG | Lead::DIFFERENCE } else { Lead::NOTHING }
            }
            _ => Lead::NOTHING,
        }
    }

    /// What an operand leads to by being subtracted from, or divided by, something.
    fn by_difference(
        &self,
        module: &Module,
        node: Node,
        kind: OpKind,
        operand: Value,
        results: Lead,
        to: DType,
    ) -> Lead {
        let data = module.node(node);
        let (Some(a), Some(b)) = (data.operand(0), data.operand(1)) else { return Lead::NOTHING };
        if kind == OpKind::Div && operand == a {
            // A cosine: the product may be as small as the norms.
            let by_norms =
                self.held(module, b).has(Held::PRODUCTS_OF_NORMS) && self.held(module, a).has(Held::PRODUCT);
            let of_product = if by_norms { Lead::DISTANCE } else { Lead::NOTHING };
            return if vanishes(module, b, to) { Lead::DIFFERENCE } else { Lead::NOTHING }
                | of_product
                | scaled(module, node);
        }
        if kind == OpKind::Mul {
            return scaled(module, node);
        }
        if !op::adds(kind) {
            return Lead::NOTHING;
        }
        let mut lead = Lead::NOTHING;
        if self.is_distance(module, node) {
            lead |= Lead::DISTANCE | Lead::DIFFERENCE;
        }
        if self.is_difference_of_squares(module, node) {
            lead |= Lead::DIFFERENCE;
        }
        let other = if operand == a { b } else { a };
        let computed = !self.is_constant(module, a) && !self.is_constant(module, b);
        if subtracts(module, node) && computed && (results.any(Lead::SCALED) || is_detail(module, a, b)) {
            lead |= Lead::DISTANCE | Lead::DIFFERENCE;
        }
        if results.any(Lead::ZERO) && subtracts(module, node) && self.is_constant(module, other) {
            lead |= Lead::ONE;
        }
        lead
    }

    /// Whether a node is E[x²] − E[x]² or another difference of squares of what is computed.
    pub(crate) fn is_difference_of_squares(&self, module: &Module, node: Node) -> bool {
        let data = module.node(node);
        let squares = |i| data.operand(i).is_some_and(|v| self.held(module, v).has(Held::SQUARES));
        subtracts(module, node) && squares(0) && squares(1)
    }

    /// Whether a node adds squared norms and a product: ‖a‖² + ‖b‖² − 2ab.
    pub(crate) fn is_distance(&self, module: &Module, node: Node) -> bool {
        let data = module.node(node);
        let held = |i: usize| data.operand(i).map_or(Held::NOTHING, |v| self.held(module, v));
        let is_norm = |held: Held| held.has(Held::SUMMED_SQUARES);
        let is_product = |held: Held| held.has(Held::PRODUCT) && !held.has(Held::SQUARES);
        let adds = kind(module, node).is_some_and(op::adds);
        adds && (is_norm(held(0)) && is_product(held(1)) || is_product(held(0)) && is_norm(held(1)))
    }
}

/// That a node multiplies by a large constant, or divides by a small one.
fn scaled(module: &Module, node: Node) -> Lead {
    let data = module.node(node);
    let constant = |i: usize| data.operand(i).and_then(|value| scalar(module, value)).map(f64::abs);
    let is_large = match kind(module, node) {
        Some(OpKind::Mul) => constant(0).or(constant(1)).is_some_and(|by| by >= SCALE),
        Some(OpKind::Div) => constant(1).is_some_and(|by| by <= SCALE.recip()),
        _ => false,
    };
    if is_large { Lead::SCALED } else { Lead::NOTHING }
}

/// Whether the second value is a convolution, or the means of windows, of the first: what is smooth of it.
fn is_detail(module: &Module, value: Value, smooth: Value) -> bool {
    let value = flow::behind_casts(module, value);
    let Some((node, _)) = module.producer(flow::behind_casts(module, smooth)) else { return false };
    if !matches!(kind(module, node), Some(OpKind::Conv | OpKind::AveragePool)) {
        return false;
    }
    let mut of = module.node(node).operand(0);
    // A border may be put around it before.
    for _ in 0..2 {
        let Some(behind) = of.map(|of| flow::behind_casts(module, of)) else { return false };
        if behind == value {
            return true;
        }
        let pad = module.producer(behind).filter(|&(pad, _)| kind(module, pad) == Some(OpKind::Pad));
        of = pad.and_then(|(pad, _)| module.node(pad).operand(0));
    }
    false
}

fn is_output(module: &Module, value: Value) -> bool {
    module.output_slots(value).next().is_some()
}

/// Whether the operand of a node is read in the low format whatever is done before it.
fn is_low_anyway(module: &Module, node: Node, slot: u32) -> bool {
    let var = flow::reader_var(module, node, slot);
    var.and_then(|var| flow::decision(module, var)).is_some_and(|d| match d.precision {
        Some(precision) => precision.is_low(),
        None => d.class == Class::Allow && kind(module, node) != Some(OpKind::Attention),
    })
}

/// Whether a node subtracts: Sub, and Add of a negative constant or of something that is negated.
pub(crate) fn subtracts(module: &Module, node: Node) -> bool {
    let data = module.node(node);
    let is_negative = |value: Value| {
        let value = flow::behind_casts(module, value);
        let negated = module.producer(value).and_then(|(node, _)| kind(module, node)) == Some(OpKind::Neg);
        negated || scalar(module, value).is_some_and(|number| number < 0.0)
    };
    match kind(module, node) {
        Some(OpKind::Sub) => true,
        Some(OpKind::Add) => data.formal_operands().iter().flatten().any(|&value| is_negative(value)),
        _ => false,
    }
}

/// Whether elements of a constant that is divided by are not 0, but round to 0 or lose most of their digits.
pub(crate) fn vanishes(module: &Module, divisor: Value, to: DType) -> bool {
    let Some(data) = constant_of(module, flow::behind_casts(module, divisor)) else { return false };
    let numbers = data.small_floats(MAX_DIVISORS).unwrap_or_default();
    worst_rounding_error(&numbers, to) > unit_roundoff(to).unwrap_or(1.0)
}

/// The largest error of rounding one of some numbers to a format, as a share of the number. Numbers that do not fit
/// have none, nor has 0.
pub(crate) fn worst_rounding_error(numbers: &[f64], to: DType) -> f64 {
    let (smallest, most) = (min_normal(to).unwrap_or(0.0), max_finite(to).unwrap_or(f64::INFINITY));
    let counts = |number: f64| number != 0.0 && number.abs() <= most && can_convert(DType::F64, to);
    let error = |&number: &f64| {
        // Among normal numbers it is at most the unit roundoff.
        if !counts(number) || number.abs() >= smallest {
            return 0.0;
        }
        let (mut low, mut wide) = (Vec::new(), Vec::new());
        convert(DType::F64, Conversion { to, clamp: true }, &number.to_le_bytes(), &mut low);
        convert(to, Conversion { to: DType::F64, clamp: false }, &low, &mut wide);
        let stored = wide.as_chunks::<8>().0.first().map_or(number, |&bytes| f64::from_le_bytes(bytes));
        ((stored - number) / number).abs()
    };
    numbers.iter().map(error).fold(0.0, f64::max)
}
