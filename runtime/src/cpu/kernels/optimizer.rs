//! Optimizers of ai.onnx.preview.training: Adagrad, Adam, Momentum. Gradient has no kernel.
//!
//! The formulas are from the operators' texts, element by element; `norm_coefficient · X` is added to the
//! gradient first.

use super::fold::read_floats;
use super::lanes::Wide;
use super::parallel::{PIECE, pairs_of_pieces};
use crate::kernel::{Io, KernelError, Prepare, Prepared, Result, Site};
use ampc_ir::DType;
use ampc_ir::op::OpKind;
use ampc_ir::views::OpError;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::TrainingAdagrad | OpKind::TrainingAdam | OpKind::TrainingMomentum => optimizer,
        _ => return None,
    })
}

/// One step of one tensor with a rate that is adjusted to the count of steps.
#[derive(Clone, Copy)]
enum Rule {
    Adagrad { decay: f64, epsilon: f64 },
    Adam { alpha: f64, beta: f64, epsilon: f64, post: f64 },
    Momentum { alpha: f64, beta: f64, nesterov: bool },
}

fn optimizer(site: &Site<'_>) -> Result<Prepared> {
    let number = |name: &str, default: f32| f64::from(site.view.float(name).unwrap_or(default));
    let rule = match site.kind() {
        OpKind::TrainingAdagrad => {
            Rule::Adagrad { decay: number("decay_factor", 0.0), epsilon: number("epsilon", 0.0) }
        }
        OpKind::TrainingAdam => Rule::Adam {
            alpha: number("alpha", 0.9),
            beta: number("beta", 0.999),
            epsilon: number("epsilon", 0.0),
            post: number("norm_coefficient_post", 0.0),
        },
        _ => Rule::Momentum {
            alpha: number("alpha", 0.0),
            beta: number("beta", 0.0),
            nesterov: match site.view.string("mode") {
                Some("nesterov") => true,
                Some("standard") => false,
                mode => {
                    return Err(KernelError::value("the mode nesterov or standard", mode.unwrap_or("none")));
                }
            },
        },
    };
    let norm = number("norm_coefficient", 0.0);
    let kinds = if let Rule::Adam { .. } = rule { 4 } else { 3 };
    let n = site.view.n_operands().saturating_sub(2) / kinds;
    let dtypes = (0..n).map(|i| site.dtype(2 + i)).collect::<Result<Vec<_>>>()?;
    if dtypes.iter().any(|d| !matches!(d, DType::F32 | DType::F64)) {
        return Err(site.no_kernel());
    }
    Ok(Prepared::new(move |io| {
        let mut rate = [0.0];
        read_floats(io.tensor(0)?, &mut rate)?;
        let count = io.slice::<i64>(1)?.first().copied().unwrap_or(0);
        for (i, dtype) in dtypes.iter().enumerate() {
            let step = Step { rule, norm, i, n, rate: rate[0], count };
            match dtype {
                DType::F64 => step.run::<f64>(io)?,
                _ => step.run::<f32>(io)?,
            }
        }
        Ok(())
    }))
}

struct Step {
    rule: Rule,
    norm: f64,
    /// Which of so many tensors.
    i: usize,
    n: usize,
    rate: f64,
    count: i64,
}

impl Step {
    /// Operand `kind` of the tensor: it, its gradient, its states.
    fn operand<'a, A: Wide>(&self, io: &Io<'a>, kind: usize) -> Result<&'a [A]> {
        let operand = 2 + kind * self.n + self.i;
        let (elements, expected) = (io.slice(operand)?, io.tensor(2 + self.i)?.element_count());
        if elements.len() as u64 != expected {
            let found = elements.len().to_string();
            return Err(OpError::operand(operand, format!("{expected} elements"), found).into());
        }
        Ok(elements)
    }

    fn run<A: Wide>(&self, io: &mut Io<'_>) -> Result<()> {
        let (x, g) = (self.operand::<A>(io, 0)?, self.operand::<A>(io, 1)?);
        let v = self.operand::<A>(io, 2)?;
        let to = io.out::<A>(self.i)?;
        let new_v = io.out::<A>(self.n + self.i)?;
        let norm = A::of(self.norm);
        let count = self.count as f64;
        match self.rule {
            Rule::Adagrad { decay, epsilon } => {
                let rate = A::of(self.rate / (1.0 + count * decay));
                let epsilon = A::of(epsilon);
                update(x, g, v, to, new_v, |x, g, h| {
                    let g = norm * x + g;
                    let h = h + g * g;
                    (x - rate * g / (h.sqrt() + epsilon), h)
                });
            }
            Rule::Momentum { alpha, beta, nesterov } => {
                let (rate, alpha) = (A::of(self.rate), A::of(alpha));
                let beta = if self.count > 0 { A::of(beta) } else { A::one() };
                update(x, g, v, to, new_v, |x, g, v| {
                    let g = norm * x + g;
                    let v = alpha * v + beta * g;
                    (x - rate * if nesterov { g + alpha * v } else { v }, v)
                });
            }
            Rule::Adam { alpha, beta, epsilon, post } => {
                let adjusted = (1.0 - beta.powf(count)).sqrt() / (1.0 - alpha.powf(count));
                let rate = A::of(if self.count > 0 { self.rate * adjusted } else { self.rate });
                let (left, right) = (A::of(1.0 - alpha), A::of(1.0 - beta));
                let (alpha, beta, epsilon) = (A::of(alpha), A::of(beta), A::of(epsilon));
                let kept = A::of(1.0 - post);
                let h = self.operand::<A>(io, 3)?;
                let new_h = io.out::<A>(2 * self.n + self.i)?;
                update(x, g, v, to, new_v, |x, g, v| {
                    let g = norm * x + g;
                    (g, alpha * v + left * g)
                });
                // `to` holds the gradients for now.
                pairs_of_pieces((to, PIECE), (new_h, PIECE), |i, to, new_h| {
                    let here = i * PIECE..i * PIECE + to.len();
                    let from = x[here.clone()].iter().zip(&h[here.clone()]).zip(&new_v[here]);
                    for ((to, new_h), ((&x, &h), &v)) in to.iter_mut().zip(new_h).zip(from) {
                        *new_h = beta * h + right * *to * *to;
                        *to = kept * (x - rate * v / (new_h.sqrt() + epsilon));
                    }
                });
            }
        }
        Ok(())
    }
}

/// `(to[i], new[i]) = f(x[i], g[i], state[i])`
fn update<A: Wide>(
    x: &[A],
    g: &[A],
    state: &[A],
    to: &mut [A],
    new: &mut [A],
    f: impl Fn(A, A, A) -> (A, A) + Send + Sync,
) {
    pairs_of_pieces((to, PIECE), (new, PIECE), |i, to, new| {
        let here = i * PIECE..i * PIECE + to.len();
        let from = x[here.clone()].iter().zip(&g[here.clone()]).zip(&state[here]);
        for ((to, new), ((&x, &g), &state)) in to.iter_mut().zip(new).zip(from) {
            (*to, *new) = f(x, g, state);
        }
    });
}
