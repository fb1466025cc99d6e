//! Derivatives of scalar expressions by dual numbers, in f64.
//!
//! A dual number is a value x and its derivative by each operand. With d/dx of every function and of every operation on
//! numbers, the derivative of a whole expression follows by the chain rule: of `Mul(x, Sigmoid(x))` at 0,
//!
//! ```text
//! term            value   derivative
//! x               0       1
//! Sigmoid(x)      0.5     σ(0) · (1 − σ(0)) = 0.25
//! Mul             0       1 · 0.5 + 0 · 0.25 = 0.5
//! ```

use ampc_ir::views::expression::{Arithmetic, Expression, Function, Logic, Order, Term};
use std::f64::consts::{FRAC_2_SQRT_PI, PI, SQRT_2};

/// A value and its derivatives by the operands.
#[derive(Clone, Debug)]
pub(crate) struct Dual {
    pub(crate) value: f64,
    pub(crate) derivatives: Vec<f64>,
}

enum Cell {
    Number(Dual),
    Truth(bool),
}

impl Cell {
    fn number(&self) -> &Dual {
        match self {
            Cell::Number(dual) => dual,
            Cell::Truth(_) => panic!("a number is expected"),
        }
    }

    fn truth(&self) -> bool {
        match self {
            Cell::Truth(truth) => *truth,
            Cell::Number(_) => panic!("a truth value is expected"),
        }
    }
}

/// The value of an expression and its derivatives, at operands that are numbers.
pub(crate) fn evaluate(expression: &Expression, operands: &[f64]) -> Dual {
    let n = operands.len();
    let constant = |value| Dual { value, derivatives: vec![0.0; n] };
    let mut cells: Vec<Cell> = Vec::new();
    for term in expression.terms() {
        let cell = match *term {
            Term::Operand(i) => {
                let mut dual = constant(operands[i]);
                dual.derivatives[i] = 1.0;
                Cell::Number(dual)
            }
            Term::Number(number) => Cell::Number(constant(number)),
            Term::Apply(function, x) => {
                let x = cells[x].number();
                let (value, slope) = function_at(function, x.value);
                Cell::Number(Dual { value, derivatives: x.derivatives.iter().map(|d| slope * d).collect() })
            }
            Term::Combine(operation, a, b) => {
                let (a, b) = (cells[a].number(), cells[b].number());
                let (value, by_a, by_b) = operation_at(operation, a.value, b.value);
                let both = a.derivatives.iter().zip(&b.derivatives);
                Cell::Number(Dual {
                    value,
                    derivatives: both.map(|(da, db)| by_a * da + by_b * db).collect(),
                })
            }
            Term::Compare(order, a, b) => {
                let (a, b) = (cells[a].number().value, cells[b].number().value);
                Cell::Truth(match order {
                    Order::Equal => a == b,
                    Order::Unequal => a != b,
                    Order::Less => a < b,
                    Order::LessOrEqual => a <= b,
                    Order::Greater => a > b,
                    Order::GreaterOrEqual => a >= b,
                })
            }
            Term::Join(logic, a, b) => {
                let (a, b) = (cells[a].truth(), cells[b].truth());
                Cell::Truth(match logic {
                    Logic::And => a && b,
                    Logic::Or => a || b,
                    Logic::Xor => a != b,
                    Logic::Same => a == b,
                })
            }
            Term::Not(a) => Cell::Truth(!cells[a].truth()),
            Term::Choose(condition, x, y) => {
                Cell::Number(cells[if cells[condition].truth() { x } else { y }].number().clone())
            }
        };
        cells.push(cell);
    }
    cells.last().expect("an expression has terms").number().clone()
}

/// The value of an operation and its derivatives by both numbers.
fn operation_at(operation: Arithmetic, a: f64, b: f64) -> (f64, f64, f64) {
    let first = |is_first: bool| if is_first { (a, 1.0, 0.0) } else { (b, 0.0, 1.0) };
    match operation {
        Arithmetic::Add => (a + b, 1.0, 1.0),
        Arithmetic::Sub => (a - b, 1.0, -1.0),
        Arithmetic::Mul => (a * b, b, a),
        Arithmetic::Div => (a / b, 1.0 / b, -a / (b * b)),
        Arithmetic::Max => first(a > b),
        Arithmetic::Min => first(a < b),
    }
}

/// The value of a function and its derivative.
fn function_at(function: Function, x: f64) -> (f64, f64) {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match function {
        Function::Abs => (x.abs(), x.signum()),
        Function::Acos => (x.acos(), -1.0 / (1.0 - x * x).sqrt()),
        Function::Acosh => (x.acosh(), 1.0 / (x * x - 1.0).sqrt()),
        Function::Asin => (x.asin(), 1.0 / (1.0 - x * x).sqrt()),
        Function::Asinh => (x.asinh(), 1.0 / (x * x + 1.0).sqrt()),
        Function::Atan => (x.atan(), 1.0 / (1.0 + x * x)),
        Function::Atanh => (x.atanh(), 1.0 / (1.0 - x * x)),
        Function::Ceil => (x.ceil(), 0.0),
        Function::Cos => (x.cos(), -x.sin()),
        Function::Cosh => (x.cosh(), x.sinh()),
        Function::Erf => (erf(x), FRAC_2_SQRT_PI * (-x * x).exp()),
        Function::Exp => (x.exp(), x.exp()),
        Function::ExpM1 => (x.exp_m1(), x.exp()),
        Function::Floor => (x.floor(), 0.0),
        Function::Gelu => {
            let below = 0.5 * (1.0 + erf(x / SQRT_2));
            (x * below, below + x * (-0.5 * x * x).exp() / (2.0 * PI).sqrt())
        }
        Function::GeluTanh => {
            let scale = (2.0 / PI).sqrt();
            let tanh = (scale * (x + 0.044_715 * x.powi(3))).tanh();
            let inner = scale * (1.0 + 3.0 * 0.044_715 * x * x);
            (0.5 * x * (1.0 + tanh), 0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * inner)
        }
        Function::Ln => (x.ln(), 1.0 / x),
        Function::Ln1p => (x.ln_1p(), 1.0 / (1.0 + x)),
        Function::Mish => {
            let tanh = x.exp().ln_1p().tanh();
            (x * tanh, tanh + x * (1.0 - tanh * tanh) * sigmoid(x))
        }
        Function::Neg => (-x, -1.0),
        Function::Round => (x.round_ties_even(), 0.0),
        Function::Sigmoid => (sigmoid(x), sigmoid(x) * sigmoid(-x)),
        Function::Sin => (x.sin(), x.cos()),
        Function::Sinh => (x.sinh(), x.cosh()),
        Function::Sqrt => (x.sqrt(), 0.5 / x.sqrt()),
        Function::Tan => (x.tan(), 1.0 / x.cos().powi(2)),
        Function::Tanh => (x.tanh(), 1.0 - x.tanh().powi(2)),
    }
}

/// erf(x) = 2/√π · Σ (−1)ⁿ x²ⁿ⁺¹ / (n! (2n + 1)), for |x| < 3: terms are below 10³, so 10 digits or more are right.
fn erf(x: f64) -> f64 {
    let (mut power, mut sum) = (x, 0.0);
    for n in 0..80 {
        let n = f64::from(n);
        sum += power / (2.0 * n + 1.0);
        power *= -x * x / (n + 1.0);
    }
    FRAC_2_SQRT_PI * sum
}
