//! The sums of a channel group that one pass over the elements can compute.
//!
//! A *base* is a value of the whole space that depends on no reduction of the group. An f32 value is a polynomial of
//! centered bases whose coefficients are values per channel. With `p = x - mean(x)` for a base `x`, and `q = g -
//! mean(g)` for a base `g`:
//!
//! ```text
//! x = p + mean(x)      d = x - mean(x) = p      n = d · r = r p      mean(d · d) = C(x, x) / n
//! g = q + mean(g)      w g = w q + w mean(g)    mean(w g · n) = w r C(x, g) / n
//! ```
//!
//! The mean of a polynomial of degree 2 needs only the means of the bases and the co-moments `C(a, b) = Σ p q`, because
//! sums of centered values are 0. Threads merge both ([`super::pass`]).

use super::items::{Item, Norm, Reduction, Space};
use crate::cuda::kernels::expressions::Printer;
use crate::cuda::text::{Elem, f32_text};
use crate::elementwise::{Member, Read};
use ampc_ir::views::expression::{Arithmetic, Term};
use ampc_ir::{DType, Value};
use rustc_hash::{FxHashMap, FxHashSet};

/// A value whose sums the pass over the elements computes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Base {
    pub(super) value: Value,
    pub(super) dtype: DType,
    /// True if a sum needs it.
    pub(super) is_used: bool,
    /// True if an element is subtracted from it, so that a mean that is large beside the deviation costs no digits.
    pub(super) has_shift: bool,
}

/// A polynomial of centered bases. Coefficients are names of numbers.
#[derive(Clone, Default)]
struct Poly {
    pairs: Vec<([usize; 2], String)>,
    linear: Vec<(usize, String)>,
    /// The constant term; `None` is 0.
    constant: Option<String>,
}

#[derive(Clone)]
enum Number {
    /// One number per channel.
    Channel(String),
    Full(Poly),
    /// A value of the whole space without a polynomial.
    Other,
}

/// The statistics of a group, and the statements that compute the numbers of a channel from them.
pub(super) struct Statistics<'a> {
    space: &'a Space,
    /// False if the statements are not needed.
    prints: bool,
    pub(super) printer: Printer,
    pub(super) bases: Vec<Base>,
    /// The pairs of bases whose co-moments are needed.
    pub(super) pairs: Vec<[usize; 2]>,
    numbers: FxHashMap<Value, Number>,
    /// Values of the whole space that are known behind the pass alone.
    pub(super) late: FxHashSet<Value>,
    /// Values of the group with one number per channel.
    pub(super) of_channels: FxHashSet<Value>,
    /// Values of the whole space that the group makes.
    pub(super) made: FxHashMap<Value, DType>,
    /// For each normalization, the variables of subtrahend, factor and offset.
    pub(super) norms: Vec<[String; 3]>,
}

const ONE: &str = "1.0f";

impl<'a> Statistics<'a> {
    /// The statistics of nodes in program order; `None` if they are no group of this space.
    pub(super) fn of<'i>(
        space: &'a Space,
        items: impl Iterator<Item = &'i Item>,
        prints: bool,
    ) -> Option<Statistics<'a>> {
        let mut found = Statistics {
            space,
            prints,
            printer: Printer::default(),
            bases: Vec::new(),
            pairs: Vec::new(),
            numbers: FxHashMap::default(),
            late: FxHashSet::default(),
            of_channels: FxHashSet::default(),
            made: FxHashMap::default(),
            norms: Vec::new(),
        };
        for item in items {
            match item {
                Item::Element(member) if space.is_full(member) => found.full(member)?,
                Item::Element(member) => found.of_channel(member)?,
                Item::Alias(alias) => {
                    let is_made = found.of_channels.contains(&alias.from.value);
                    if alias.n != space.channels || found.made.contains_key(&alias.from.value) {
                        return None;
                    }
                    if is_made && prints {
                        let printed = found.printer.values.get(&alias.from.value)?.clone();
                        found.printer.values.insert(alias.to, printed);
                    }
                    // An alias of a value from outside is that value.
                    if is_made {
                        found.of_channels.insert(alias.to);
                    }
                }
                Item::Reduction(reduction) => found.reduction(reduction)?,
                Item::Norm(norm) => found.norm(norm)?,
            }
        }
        Some(found)
    }

    /// The element type of a value of the whole space that the group makes.
    pub(super) fn elem(&self, value: Value) -> Option<Elem> {
        self.made.get(&value).and_then(|&dtype| Elem::number(dtype))
    }

    /// Sets a variable, if statements are needed.
    fn set(&mut self, text: impl FnOnce() -> String) -> String {
        if self.prints { self.printer.set("float", &text()) } else { String::new() }
    }

    fn product(&mut self, a: &str, b: &str) -> String {
        match (a, b) {
            (ONE, other) | (other, ONE) => other.to_owned(),
            _ => self.set(|| format!("{a} * {b}")),
        }
    }

    /// The name of a number per channel.
    fn name(&mut self, read: &Read) -> Option<String> {
        if self.prints { self.printer.wide(read) } else { Some(String::new()) }
    }

    fn base(&mut self, value: Value, dtype: DType) -> Poly {
        let at = self.bases.iter().position(|base| base.value == value).unwrap_or(self.bases.len());
        if at == self.bases.len() {
            self.bases.push(Base { value, dtype, is_used: false, has_shift: false });
        }
        Poly { pairs: Vec::new(), linear: vec![(at, ONE.into())], constant: Some(format!("mean{at}")) }
    }

    /// The number that a node of the whole space reads; `None` if the group cannot read it.
    fn number(&mut self, read: &Read) -> Option<Number> {
        if self.of_channels.contains(&read.value) {
            return match self.space.has_channels(&read.dims) {
                true => Some(Number::Channel(self.name(read)?)),
                false => None,
            };
        }
        if let Some(number) = self.numbers.get(&read.value) {
            return Some(number.clone());
        }
        let is_float = Elem::float(read.dtype).is_some();
        let n: usize = read.dims.iter().product();
        Some(match is_float {
            true if read.dims == self.space.dims => Number::Full(self.base(read.value, read.dtype)),
            true if n == 1 || self.space.has_channels(&read.dims) => Number::Channel(self.name(read)?),
            _ => Number::Other,
        })
    }

    fn full(&mut self, member: &Member) -> Option<()> {
        let mut is_late = false;
        let mut operands = Vec::new();
        for read in &member.operands {
            operands.push(match read {
                None => Number::Other,
                Some(read) => {
                    is_late |= self.of_channels.contains(&read.value) || self.late.contains(&read.value);
                    self.number(read)?
                }
            });
        }
        let number = self.value(member, &operands);
        self.made.insert(member.result, member.dtype);
        if is_late {
            self.late.insert(member.result);
        }
        let number = match number {
            Number::Full(poly) if is_late || poly.linear.len() == 1 && poly.pairs.is_empty() => {
                Number::Full(poly)
            }
            _ if !is_late && Elem::float(member.dtype).is_some() => {
                Number::Full(self.base(member.result, member.dtype))
            }
            _ => Number::Other,
        };
        self.numbers.insert(member.result, number);
        Some(())
    }

    /// The polynomial of a node, if it has one and is not rounded to 16 bits.
    fn value(&mut self, member: &Member, operands: &[Number]) -> Number {
        if member.dtype != DType::F32 {
            return Number::Other;
        }
        let mut values: Vec<Number> = Vec::new();
        for term in member.expression.terms() {
            let value = match *term {
                Term::Operand(i) => operands.get(i).cloned().unwrap_or(Number::Other),
                #[expect(clippy::cast_possible_truncation, reason = "rounding")]
                Term::Number(number) => Number::Channel(f32_text(number as f32)),
                Term::Combine(operation, a, b) => self.combined(operation, &values[a], &values[b]),
                _ => Number::Other,
            };
            values.push(value);
        }
        values.pop().filter(|value| matches!(value, Number::Full(_))).unwrap_or(Number::Other)
    }

    fn combined(&mut self, operation: Arithmetic, a: &Number, b: &Number) -> Number {
        let of_channel = |name: &String| Poly { constant: Some(name.clone()), ..Poly::default() };
        match (operation, a, b) {
            (_, Number::Other, _) | (_, _, Number::Other) => Number::Other,
            (_, Number::Channel(a), Number::Channel(b)) => {
                let sign = match operation {
                    Arithmetic::Add => '+',
                    Arithmetic::Sub => '-',
                    Arithmetic::Mul => '*',
                    Arithmetic::Div => '/',
                    Arithmetic::Max | Arithmetic::Min => return Number::Other,
                };
                Number::Channel(self.set(|| format!("{a} {sign} {b}")))
            }
            (Arithmetic::Add | Arithmetic::Sub, a, b) => {
                let poly = |number: &Number| match number {
                    Number::Channel(name) => of_channel(name),
                    Number::Full(poly) => poly.clone(),
                    Number::Other => Poly::default(),
                };
                Number::Full(self.sum(&poly(a), &poly(b), operation == Arithmetic::Sub))
            }
            (Arithmetic::Mul, Number::Full(poly), Number::Channel(by))
            | (Arithmetic::Mul, Number::Channel(by), Number::Full(poly)) => {
                Number::Full(self.scaled(poly, by))
            }
            (Arithmetic::Div, Number::Full(poly), Number::Channel(by)) => {
                let by = self.set(|| format!("1.0f / {by}"));
                Number::Full(self.scaled(poly, &by))
            }
            (Arithmetic::Mul, Number::Full(a), Number::Full(b)) => {
                self.square(a, b).map_or(Number::Other, Number::Full)
            }
            _ => Number::Other,
        }
    }

    fn scaled(&mut self, poly: &Poly, by: &str) -> Poly {
        let pairs = poly.pairs.iter().map(|(pair, of)| (*pair, self.product(of, by))).collect();
        let linear = poly.linear.iter().map(|(base, of)| (*base, self.product(of, by))).collect();
        let constant = poly.constant.as_ref().map(|of| self.product(of, by));
        Poly { pairs, linear, constant }
    }

    fn sum(&mut self, a: &Poly, b: &Poly, is_negative: bool) -> Poly {
        let sign = if is_negative { '-' } else { '+' };
        let mut result = a.clone();
        for (pair, of) in &b.pairs {
            match result.pairs.iter().position(|(other, _)| other == pair) {
                Some(at) => {
                    let before = result.pairs[at].1.clone();
                    result.pairs[at].1 = self.set(|| format!("{before} {sign} {of}"));
                }
                None => result.pairs.push((*pair, self.set(|| format!("0.0f {sign} {of}")))),
            }
        }
        for (base, of) in &b.linear {
            match result.linear.iter().position(|(other, _)| other == base) {
                Some(at) => {
                    let before = result.linear[at].1.clone();
                    result.linear[at].1 = self.set(|| format!("{before} {sign} {of}"));
                }
                None => result.linear.push((*base, self.set(|| format!("0.0f {sign} {of}")))),
            }
        }
        result.constant = match (&a.constant, &b.constant) {
            (a, None) => a.clone(),
            (None, Some(b)) => Some(self.set(|| format!("0.0f {sign} {b}"))),
            (Some(a), Some(b)) => Some(self.set(|| format!("{a} {sign} {b}"))),
        };
        result
    }

    /// The product of two polynomials of degree 1. Its linear terms are left out: their sum is 0, and no product has a
    /// factor of degree 2.
    fn square(&mut self, a: &Poly, b: &Poly) -> Option<Poly> {
        if !a.pairs.is_empty() || !b.pairs.is_empty() {
            return None;
        }
        let mut result = Poly::default();
        for (i, of_a) in &a.linear {
            for (j, of_b) in &b.linear {
                let product = Poly {
                    pairs: vec![([*i.min(j), *i.max(j)], self.product(of_a, of_b))],
                    ..Poly::default()
                };
                result = if result.pairs.is_empty() { product } else { self.sum(&result, &product, false) };
            }
        }
        if let (Some(a), Some(b)) = (&a.constant, &b.constant) {
            result.constant = Some(self.product(a, b));
        }
        Some(result)
    }

    fn of_channel(&mut self, member: &Member) -> Option<()> {
        if !self.space.is_of_channels(member) || self.reads_elements(member) {
            return None;
        }
        if self.prints {
            self.printer.member(member)?;
        }
        self.of_channels.insert(member.result);
        Some(())
    }

    /// True of a node that reads a value of the whole space.
    fn reads_elements(&self, member: &Member) -> bool {
        member.operands.iter().flatten().any(|read| self.made.contains_key(&read.value))
    }

    /// The number of the co-moment of two bases.
    fn pair(&mut self, pair: [usize; 2]) -> usize {
        let at = self.pairs.iter().position(|&other| other == pair).unwrap_or(self.pairs.len());
        if at == self.pairs.len() {
            self.pairs.push(pair);
        }
        pair.iter().for_each(|&base| self.bases[base].is_used = true);
        self.bases[pair[0]].has_shift |= pair[0] == pair[1];
        at
    }

    fn reduction(&mut self, reduction: &Reduction) -> Option<()> {
        if reduction.space != *self.space {
            return None;
        }
        let Number::Full(poly) = self.number(&reduction.from)? else { return None };
        poly.linear.iter().for_each(|&(base, _)| self.bases[base].is_used = true);
        let mut terms: Vec<String> = Vec::new();
        for (pair, of) in &poly.pairs {
            let at = self.pair(*pair);
            let moment =
                if reduction.is_mean { format!("(moment{at} / count)") } else { format!("moment{at}") };
            terms.push(format!("{of} * {moment}"));
        }
        if let Some(constant) = &poly.constant {
            terms.push(if reduction.is_mean { constant.clone() } else { format!("{constant} * count") });
        }
        if self.prints {
            let sum = if terms.is_empty() { "0.0f".into() } else { terms.join(" + ") };
            let sum = self.printer.set("float", &sum);
            self.printer.define_rounded(reduction.to, reduction.elem, sum, false);
        }
        self.of_channels.insert(reduction.to);
        Some(())
    }

    fn norm(&mut self, norm: &Norm) -> Option<()> {
        let is_late = self.late.contains(&norm.x.value);
        if norm.space != *self.space || is_late {
            return None;
        }
        let base = self.base(norm.x.value, norm.x.dtype).linear[0].0;
        let pair = self.pair([base, base]);
        let [y, others @ ..] = norm.results;
        let (y, _) = y?;
        self.made.insert(y, norm.x.dtype);
        self.late.insert(y);
        self.numbers.insert(y, Number::Other);
        self.of_channels.extend(others.iter().flatten().map(|&(value, _)| value));
        if !self.prints {
            return Some(());
        }
        let [scale, bias, mean, variance] = &norm.coefficients;
        let [scale, bias] = [self.printer.wide(scale)?, self.printer.wide(bias)?];
        let found = self.set(|| format!("moment{pair} / count"));
        let factor = self.set(|| format!("{scale} / sqrtf({found} + {})", f32_text(norm.epsilon)));
        let offset = self.set(|| format!("{bias} - rest{base} * {factor}"));
        self.norms.push([format!("shift{base}"), factor, offset]);
        for (j, (old, batch)) in [(mean, format!("mean{base}")), (variance, found)].into_iter().enumerate() {
            let old = self.printer.wide(old)?;
            let share = f32_text(norm.momentum);
            let running = self.set(|| format!("{old} * {share} + {batch} * (1.0f - {share})"));
            for (result, number) in [(others[j], running), (others[j + 2], batch)] {
                if let Some((value, elem)) = result {
                    self.printer.define_rounded(value, elem, number, false);
                }
            }
        }
        Some(())
    }
}
