//! The scalar expression of an element-wise operator: the formula of one element of its result.
//!
//! An [`Expression`] is read from a node, with its attributes as numbers. It is the one definition that several
//! operators can be joined by into one loop, and that text of a kernel can be printed from: each [`Term`] is an operation
//! on earlier terms, and the last term is the result. An operand is broadcast to the result; it is a number if its element
//! type is a float, and a truth value if it is bool.
//!
//! Every term computes in f32, in f64 where an operand is f64. The result of the last term is rounded to the element type
//! of the result, once. The functions of [`Function`] are those of the CPU runtime, down to their last bit there.
//!
//! Operators without an expression, though a result element depends on one element of each operand:
//!
//! - on integers: arithmetic wraps, and no float is exact for 64 bits;
//! - Mod, BitShift, the bitwise operators: their operands are integers as a rule;
//! - Pow, but with a constant exponent of 2: the exponent may have another type, and its value chooses the formula;
//! - Dropout, PhiloxDropout and the Random operators: an element depends on its position;
//! - Cast to integers and to floats of 8 bits or fewer: their encodings are no operation on numbers;
//! - quantization, whose scales belong to axes.

use super::broadcast::{Bound, ClipView};
use super::node::NodeView;
use crate::dtype::DType;
use crate::op::OpKind;

/// A function of one number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Function {
    /// |x|.
    Abs,
    /// Arc cosine.
    Acos,
    /// Inverse hyperbolic cosine; NaN below 1.
    Acosh,
    /// Arc sine.
    Asin,
    /// Inverse hyperbolic sine.
    Asinh,
    /// Arc tangent.
    Atan,
    /// Inverse hyperbolic tangent.
    Atanh,
    /// The smallest whole number that is not less.
    Ceil,
    /// Cosine.
    Cos,
    /// Hyperbolic cosine.
    Cosh,
    /// The error function.
    Erf,
    /// eˣ.
    Exp,
    /// eˣ − 1 without loss of digits near 0.
    ExpM1,
    /// The greatest whole number that is not greater.
    Floor,
    /// x · Φ(x) with the distribution function Φ of the standard normal distribution.
    Gelu,
    /// x · Φ(x), approximated by a tanh.
    GeluTanh,
    /// The natural logarithm.
    Ln,
    /// ln(1 + x) without loss of digits near 0.
    Ln1p,
    /// x · tanh(ln(1 + eˣ)).
    Mish,
    /// −x.
    Neg,
    /// The nearest whole number, the even one of two.
    Round,
    /// 1 / (1 + e⁻ˣ).
    Sigmoid,
    /// Sine.
    Sin,
    /// Hyperbolic sine.
    Sinh,
    /// The square root.
    Sqrt,
    /// Tangent.
    Tan,
    /// Hyperbolic tangent.
    Tanh,
}

/// An operation on two numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Arithmetic {
    /// a + b.
    Add,
    /// a − b.
    Sub,
    /// a · b.
    Mul,
    /// a / b.
    Div,
    /// The greater of two, NaN if one is.
    Max,
    /// The smaller of two, NaN if one is.
    Min,
}

/// A comparison of two numbers: false if one is NaN, but for `Unequal`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Order {
    /// a = b.
    Equal,
    /// a ≠ b.
    Unequal,
    /// a < b.
    Less,
    /// a ≤ b.
    LessOrEqual,
    /// a > b.
    Greater,
    /// a ≥ b.
    GreaterOrEqual,
}

/// An operation on two truth values.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Logic {
    /// True if both are.
    And,
    /// True if one is.
    Or,
    /// True if they differ.
    Xor,
    /// True if they are the same.
    Same,
}

/// A term: an operation on earlier terms, which it names by their index.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Term {
    /// An element of an operand of the node.
    Operand(usize),
    /// A number, rounded to the type that is computed in.
    Number(f64),
    /// A function of a number.
    Apply(Function, usize),
    /// A number from two.
    Combine(Arithmetic, usize, usize),
    /// A truth value from two numbers.
    Compare(Order, usize, usize),
    /// A truth value from two.
    Join(Logic, usize, usize),
    /// The opposite of a truth value.
    Not(usize),
    /// The second term if the first is true, otherwise the third. It computes nothing: NaNs keep their bits.
    Choose(usize, usize, usize),
}

/// The formula of one element of the result of a node. The last term is the result.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Expression {
    terms: Vec<Term>,
}

impl Expression {
    /// The expression of a node whose operands are floats and truth values; `None` if it has none.
    pub fn read(view: &NodeView<'_>) -> Option<Expression> {
        let of = |i: usize| view.dtype(i);
        let is_number = |i: usize| of(i).is_some_and(|d| d.is_low() || matches!(d, DType::F32 | DType::F64));
        let is_known = |i: usize| is_number(i) || of(i) == Some(DType::Bool);
        if !(0..view.n_operands()).filter(|&i| view.has(i)).all(is_known) || !view.has(0) {
            return None;
        }
        let mut expression = Expression::default();
        let found = if of(0) == Some(DType::Bool) {
            expression.of_truths(view)
        } else {
            expression.of_numbers(view).or_else(|| expression.of_pairs(view))
        };
        found.map(|_| expression)
    }

    /// The expression of a cast of numbers to truth values.
    fn is_not_zero(&mut self, x: usize) -> usize {
        let zero = self.number(0);
        self.compare(Order::Unequal, x, zero)
    }

    /// The terms, in order.
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    fn add(&mut self, term: Term) -> usize {
        self.terms.push(term);
        self.terms.len() - 1
    }
    fn operand(&mut self, i: usize) -> usize {
        self.add(Term::Operand(i))
    }
    fn number(&mut self, number: impl Into<f64>) -> usize {
        self.add(Term::Number(number.into()))
    }
    fn apply(&mut self, function: Function, x: usize) -> usize {
        self.add(Term::Apply(function, x))
    }
    fn combine(&mut self, operation: Arithmetic, a: usize, b: usize) -> usize {
        self.add(Term::Combine(operation, a, b))
    }
    fn compare(&mut self, order: Order, a: usize, b: usize) -> usize {
        self.add(Term::Compare(order, a, b))
    }
    /// `then` where a is ordered so before b, `other` elsewhere.
    fn choose(&mut self, (order, a, b): (Order, usize, usize), then: usize, other: usize) -> usize {
        let condition = self.compare(order, a, b);
        self.add(Term::Choose(condition, then, other))
    }
    /// x between two bounds; NaN stays NaN.
    fn clamp(&mut self, x: usize, low: Option<usize>, high: Option<usize>) -> usize {
        let x = low.map_or(x, |low| self.choose((Order::Less, x, low), low, x));
        high.map_or(x, |high| self.choose((Order::Greater, x, high), high, x))
    }

    /// Operators whose first operand is a truth value.
    fn of_truths(&mut self, view: &NodeView<'_>) -> Option<usize> {
        let x = self.operand(0);
        let logic = match view.kind() {
            OpKind::And => Logic::And,
            OpKind::Equal => Logic::Same,
            OpKind::Or => Logic::Or,
            OpKind::Xor => Logic::Xor,
            OpKind::Not => return Some(self.add(Term::Not(x))),
            OpKind::Cast | OpKind::CastLike => {
                let (one, zero) = (self.number(1), self.number(0));
                return Some(self.add(Term::Choose(x, one, zero)));
            }
            OpKind::Where if view.dtype(1) != Some(DType::Bool) => {
                let (then, other) = (self.operand(1), self.operand(2));
                return Some(self.add(Term::Choose(x, then, other)));
            }
            _ => return None,
        };
        let other = self.operand(1);
        Some(self.add(Term::Join(logic, x, other)))
    }

    /// Operators of one number.
    fn of_numbers(&mut self, view: &NodeView<'_>) -> Option<usize> {
        if let Some(function) = function_of(view) {
            let x = self.operand(0);
            return Some(self.apply(function, x));
        }
        let attr = |name: &str, default: f32| f64::from(view.float(name).unwrap_or(default));
        let flag = |name: &str| view.int(name).is_none_or(|v| v != 0);
        let kind = view.kind();
        let is_one =
            matches!(
                kind,
                OpKind::Cast | OpKind::CastLike | OpKind::Celu | OpKind::Clip | OpKind::ContribQuickGelu
            ) || matches!(kind, OpKind::Elu | OpKind::HardSigmoid | OpKind::HardSwish | OpKind::IsInf)
                || matches!(kind, OpKind::IsNaN | OpKind::LeakyRelu | OpKind::Reciprocal | OpKind::Relu)
                || matches!(kind, OpKind::Selu | OpKind::Shrink | OpKind::Sign | OpKind::Softplus)
                || matches!(kind, OpKind::Softsign | OpKind::Swish | OpKind::ThresholdedRelu);
        if !is_one {
            return None;
        }
        let x = self.operand(0);
        Some(match kind {
            OpKind::Cast | OpKind::CastLike if to_truth(view) => self.is_not_zero(x),
            // The rounding to the element type of the result is the operation.
            OpKind::Cast | OpKind::CastLike => x,
            OpKind::Clip => {
                let ClipView { min, max } = ClipView::read(view);
                let mut bound = |bound| match bound {
                    Bound::None => None,
                    Bound::Number(number) => Some(self.number(number)),
                    Bound::Operand(i) => Some(self.operand(i)),
                };
                let (low, high) = (bound(min), bound(max));
                self.clamp(x, low, high)
            }
            OpKind::HardSigmoid => {
                let (alpha, beta) = (self.number(attr("alpha", 0.2)), self.number(attr("beta", 0.5)));
                let product = self.combine(Arithmetic::Mul, alpha, x);
                let line = self.combine(Arithmetic::Add, product, beta);
                let (zero, one) = (self.number(0), self.number(1));
                self.clamp(line, Some(zero), Some(one))
            }
            OpKind::HardSwish => {
                let (three, six) = (self.number(3), self.number(6));
                let moved = self.combine(Arithmetic::Add, x, three);
                let line = self.combine(Arithmetic::Div, moved, six);
                let (zero, one) = (self.number(0), self.number(1));
                let gate = self.clamp(line, Some(zero), Some(one));
                self.combine(Arithmetic::Mul, x, gate)
            }
            OpKind::IsInf => {
                let of = |found: bool| if found { f64::INFINITY } else { f64::NAN };
                let low = self.number(-of(flag("detect_negative")));
                let high = self.number(of(flag("detect_positive")));
                let (is_low, is_high) =
                    (self.compare(Order::Equal, x, low), self.compare(Order::Equal, x, high));
                self.add(Term::Join(Logic::Or, is_low, is_high))
            }
            OpKind::IsNaN => self.compare(Order::Unequal, x, x),
            OpKind::LeakyRelu => {
                let (alpha, zero) = (self.number(attr("alpha", 0.01)), self.number(0));
                let below = self.combine(Arithmetic::Mul, x, alpha);
                self.choose((Order::Less, x, zero), below, x)
            }
            OpKind::Reciprocal => {
                let one = self.number(1);
                self.combine(Arithmetic::Div, one, x)
            }
            OpKind::Relu => {
                let zero = self.number(0);
                self.choose((Order::Less, x, zero), zero, x)
            }
            OpKind::Shrink => {
                let (bias, lambd) = (attr("bias", 0.0), attr("lambd", 0.5));
                let (bias, low, high, zero) =
                    (self.number(bias), self.number(-lambd), self.number(lambd), self.number(0));
                let (up, down) =
                    (self.combine(Arithmetic::Add, x, bias), self.combine(Arithmetic::Sub, x, bias));
                let above = self.choose((Order::Greater, x, high), down, zero);
                self.choose((Order::Less, x, low), up, above)
            }
            OpKind::Sign => {
                let (zero, one, minus) = (self.number(0), self.number(1), self.number(-1));
                let size = self.apply(Function::Abs, x);
                let below = self.choose((Order::Less, x, zero), minus, size);
                self.choose((Order::Greater, x, zero), one, below)
            }
            OpKind::Softplus => {
                let zero = self.number(0);
                let above = self.choose((Order::Less, x, zero), zero, x);
                let size = self.apply(Function::Abs, x);
                let negative = self.apply(Function::Neg, size);
                let small = self.apply(Function::Exp, negative);
                let rest = self.apply(Function::Ln1p, small);
                self.combine(Arithmetic::Add, above, rest)
            }
            OpKind::Softsign => {
                let (one, size) = (self.number(1), self.apply(Function::Abs, x));
                let below = self.combine(Arithmetic::Add, one, size);
                self.combine(Arithmetic::Div, x, below)
            }
            OpKind::Swish | OpKind::ContribQuickGelu => {
                let alpha = self.number(attr("alpha", 1.0));
                self.swish(x, alpha)
            }
            OpKind::ThresholdedRelu => {
                let (alpha, zero) = (self.number(attr("alpha", 1.0)), self.number(0));
                self.choose((Order::Greater, x, alpha), x, zero)
            }
            // x above 0; alpha · (e^(x / alpha) − 1), or without the quotient, below.
            OpKind::Celu | OpKind::Elu | OpKind::Selu => {
                let alpha = attr("alpha", if kind == OpKind::Selu { 1.673_263_2 } else { 1.0 });
                let (alpha, zero) = (self.number(alpha), self.number(0));
                let exponent = if kind == OpKind::Celu { self.combine(Arithmetic::Div, x, alpha) } else { x };
                let power = self.apply(Function::ExpM1, exponent);
                let below = self.combine(Arithmetic::Mul, alpha, power);
                let both = self.choose((Order::Greater, x, zero), x, below);
                if kind != OpKind::Selu {
                    return Some(both);
                }
                let gamma = self.number(attr("gamma", 1.050_701));
                self.combine(Arithmetic::Mul, gamma, both)
            }
            _ => return None,
        })
    }

    /// x · σ(alpha · x).
    fn swish(&mut self, x: usize, alpha: usize) -> usize {
        let scaled = self.combine(Arithmetic::Mul, alpha, x);
        let gate = self.apply(Function::Sigmoid, scaled);
        self.combine(Arithmetic::Mul, x, gate)
    }

    /// Operators of two numbers or more.
    fn of_pairs(&mut self, view: &NodeView<'_>) -> Option<usize> {
        let order = match view.kind() {
            OpKind::Equal => Some(Order::Equal),
            OpKind::Greater => Some(Order::Greater),
            OpKind::GreaterOrEqual => Some(Order::GreaterOrEqual),
            OpKind::Less => Some(Order::Less),
            OpKind::LessOrEqual => Some(Order::LessOrEqual),
            _ => None,
        };
        if let Some(order) = order {
            let (a, b) = (self.operand(0), self.operand(1));
            return Some(self.compare(order, a, b));
        }
        let operation = match view.kind() {
            OpKind::Add | OpKind::Sum | OpKind::Mean => Arithmetic::Add,
            OpKind::Sub => Arithmetic::Sub,
            OpKind::Mul => Arithmetic::Mul,
            OpKind::Div => Arithmetic::Div,
            OpKind::Max => Arithmetic::Max,
            OpKind::Min => Arithmetic::Min,
            _ => return self.of_few(view),
        };
        let n = view.n_operands();
        if n < 2 || !(0..n).all(|i| view.has(i)) {
            return None;
        }
        let mut sum = self.operand(0);
        for i in 1..n {
            let next = self.operand(i);
            sum = self.combine(operation, sum, next);
        }
        if view.kind() == OpKind::Mean {
            let share = self.number(u32::try_from(n).ok()?);
            sum = self.combine(Arithmetic::Div, sum, share);
        }
        Some(sum)
    }

    /// Operators of two numbers with a formula of their own.
    fn of_few(&mut self, view: &NodeView<'_>) -> Option<usize> {
        let kind = view.kind();
        match kind {
            OpKind::ContribBiasGelu | OpKind::ContribFastGelu => {
                let mut x = self.operand(0);
                if view.has(1) {
                    let bias = self.operand(1);
                    x = self.combine(Arithmetic::Add, x, bias);
                }
                let is_fast = kind == OpKind::ContribFastGelu;
                Some(self.apply(if is_fast { Function::GeluTanh } else { Function::Gelu }, x))
            }
            OpKind::PRelu => {
                let (x, slope, zero) = (self.operand(0), self.operand(1), self.number(0));
                let below = self.combine(Arithmetic::Mul, x, slope);
                Some(self.choose((Order::Less, x, zero), below, x))
            }
            OpKind::Pow => {
                let exponent = view.constant(1)?.small_floats(1)?;
                if exponent[..] != [2.0] {
                    return None;
                }
                let x = self.operand(0);
                Some(self.combine(Arithmetic::Mul, x, x))
            }
            OpKind::SwiGLU => {
                let (a, b) = (self.operand(0), self.operand(1));
                let alpha = self.number(f64::from(view.float("alpha").unwrap_or(1.0)));
                let gated = self.swish(a, alpha);
                Some(self.combine(Arithmetic::Mul, gated, b))
            }
            _ => None,
        }
    }
}

/// True if a cast makes truth values.
fn to_truth(view: &NodeView<'_>) -> bool {
    let result = view.data().results().first().copied().flatten();
    result.and_then(|value| view.type_of(value).as_tensor()).is_some_and(|ty| ty.dtype == DType::Bool)
}

/// The function that an operator is, if it is one.
fn function_of(view: &NodeView<'_>) -> Option<Function> {
    Some(match view.kind() {
        OpKind::Abs => Function::Abs,
        OpKind::Acos => Function::Acos,
        OpKind::Acosh => Function::Acosh,
        OpKind::Asin => Function::Asin,
        OpKind::Asinh => Function::Asinh,
        OpKind::Atan => Function::Atan,
        OpKind::Atanh => Function::Atanh,
        OpKind::Ceil => Function::Ceil,
        OpKind::ContribGelu => Function::Gelu,
        OpKind::Cos => Function::Cos,
        OpKind::Cosh => Function::Cosh,
        OpKind::Erf => Function::Erf,
        OpKind::Exp => Function::Exp,
        OpKind::Floor => Function::Floor,
        OpKind::Gelu => match view.string("approximate") {
            None | Some("none") => Function::Gelu,
            Some("tanh") => Function::GeluTanh,
            Some(_) => return None,
        },
        OpKind::Log => Function::Ln,
        OpKind::Mish => Function::Mish,
        OpKind::Neg => Function::Neg,
        OpKind::Round => Function::Round,
        OpKind::Sigmoid => Function::Sigmoid,
        OpKind::Sin => Function::Sin,
        OpKind::Sinh => Function::Sinh,
        OpKind::Sqrt => Function::Sqrt,
        OpKind::Tan => Function::Tan,
        OpKind::Tanh => Function::Tanh,
        _ => return None,
    })
}
