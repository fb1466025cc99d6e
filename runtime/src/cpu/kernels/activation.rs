//! Functions of one number, element by element: mathematical functions and activations.
//!
//! The formulas are from ONNX's operator text. Where they lose digits in f32, as `exp(x) − 1` does near 0, an
//! equivalent function without the loss is computed.

use super::functions::{erf, exp, gelu, gelu_tanh, mish, sigmoid, tanh};
use super::lanes::{Real, Wide, apply, clamp, for_int, for_real, map, map_cells, operand_of_result};
use super::pointwise::{walk_of, zipped};
use crate::host::Element;
use crate::kernel::{Prepare, Prepared, Result, Site};
use ampc_ir::op::OpKind;
use ampc_ir::views::OpError;
use num_traits::{Float, Zero};

/// A kernel that computes an expression of every float, in the type that its element type is computed in.
macro_rules! floats {
    (|$x:ident| $body:expr) => {
        |site: &Site<'_>| Ok(for_real!(site.dtype(0)?, site, T => mapped::<T>(|$x| $body)))
    };
    ($site:ident, ($($name:ident),*), |$x:ident| $body:expr) => {
        Ok(for_real!($site.dtype(0)?, $site, T => {
            $(let $name = <T as Real>::Wide::of($name);)*
            mapped::<T>(move |$x| $body)
        }))
    };
}

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    elementary(kind).or_else(|| {
        Some(match kind {
            OpKind::Abs => abs,
            OpKind::Celu => celu,
            OpKind::ContribBiasGelu => bias_gelu,
            OpKind::ContribFastGelu => fast_gelu,
            OpKind::ContribGelu => floats!(|x| gelu(x)),
            OpKind::ContribQuickGelu | OpKind::Swish => swish,
            OpKind::Elu => elu,
            OpKind::Gelu => gelu_of,
            OpKind::HardSigmoid => hard_sigmoid,
            OpKind::HardSwish => floats!(|x| x * clamp((x + 3.0) / 6.0, 0.0, 1.0)),
            OpKind::LeakyRelu => leaky_relu,
            OpKind::Mish => floats!(|x| mish(x)),
            OpKind::Neg => neg,
            OpKind::Relu => relu,
            OpKind::Selu => selu,
            OpKind::Shrink => shrink,
            OpKind::Sigmoid => floats!(|x| sigmoid(x)),
            OpKind::Sign => sign,
            OpKind::Softplus => floats!(|x| softplus(x)),
            OpKind::Softsign => floats!(|x| x / (1.0 + x.abs())),
            OpKind::SwiGLU => swi_glu,
            OpKind::ThresholdedRelu => thresholded_relu,
            _ => return None,
        })
    })
}

/// Functions of mathematics.
fn elementary(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::Acos => floats!(|x| x.acos()),
        // The crate gives numbers far below 1 a value.
        OpKind::Acosh => |s| twice(s, |x| libm::acoshf(domain(x)), |x| libm::acosh(domain(x))),
        OpKind::Asin => floats!(|x| x.asin()),
        OpKind::Asinh => |s| twice(s, libm::asinhf, libm::asinh),
        OpKind::Atan => floats!(|x| x.atan()),
        OpKind::Atanh => |s| twice(s, libm::atanhf, libm::atanh),
        OpKind::Ceil => floats!(|x| x.ceil()),
        OpKind::Cos => floats!(|x| x.cos()),
        OpKind::Cosh => floats!(|x| x.cosh()),
        OpKind::Erf => floats!(|x| erf(x)),
        OpKind::Exp => floats!(|x| exp(x)),
        OpKind::Floor => floats!(|x| x.floor()),
        OpKind::Log => floats!(|x| x.ln()),
        OpKind::Reciprocal => floats!(|x| x.recip()),
        OpKind::Round => floats!(|x| x.round_ties_even()),
        OpKind::Sin => floats!(|x| x.sin()),
        OpKind::Sinh => floats!(|x| x.sinh()),
        OpKind::Sqrt => floats!(|x| x.sqrt()),
        OpKind::Tan => floats!(|x| x.tan()),
        OpKind::Tanh => floats!(|x| tanh(x)),
        _ => return None,
    })
}

/// A function that has a form for each of the types that are computed in.
fn twice(site: &Site<'_>, narrow: fn(f32) -> f32, wide: fn(f64) -> f64) -> Result<Prepared> {
    Ok(match site.dtype(0)? {
        ampc_ir::DType::F64 => mapped::<f64>(wide),
        ampc_ir::DType::F32 => mapped::<f32>(narrow),
        ampc_ir::DType::F16 => mapped::<half::f16>(narrow),
        ampc_ir::DType::BF16 => mapped::<half::bf16>(narrow),
        _ => return Err(site.no_kernel()),
    })
}

/// The number, or NaN below 1.
fn domain<W: Float>(x: W) -> W {
    if x < W::one() { W::nan() } else { x }
}

/// A kernel that computes `f` of every element.
pub(super) fn mapped<T: Real>(f: impl Fn(T::Wide) -> T::Wide + Copy + Send + Sync + 'static) -> Prepared {
    Prepared::new(move |io| {
        map::<T>(operand_of_result(io)?, io.out(0)?, &|from, to| apply(from, to, f));
        Ok(())
    })
    .in_place(&[0])
}

/// A kernel that computes `f` of every integer.
pub(super) fn mapped_int<T: Element + Send + Sync>(
    f: impl Fn(T) -> T + Copy + Send + Sync + 'static,
) -> Prepared {
    Prepared::new(move |io| {
        let f = |from: &[T], to: &mut [T]| to.iter_mut().zip(from).for_each(|(y, &x)| *y = f(x));
        map_cells(operand_of_result(io)?, io.out(0)?, &f);
        Ok(())
    })
    .in_place(&[0])
}

/// A float attribute.
fn attr(site: &Site<'_>, name: &str, default: f32) -> f64 {
    f64::from(site.view.float(name).unwrap_or(default))
}

fn relu(site: &Site<'_>) -> Result<Prepared> {
    if site.dtype(0)?.is_integer() {
        return Ok(for_int!(site.dtype(0)?, site, T => mapped_int::<T>(|x| x.max(T::zero()))));
    }
    // NaN stays NaN.
    Ok(for_real!(site.dtype(0)?, site, T => mapped::<T>(|x| if x < Zero::zero() { Zero::zero() } else { x })))
}

fn neg(site: &Site<'_>) -> Result<Prepared> {
    if site.dtype(0)?.is_integer() {
        return Ok(for_int!(site.dtype(0)?, site, T => mapped_int::<T>(|x| (T::zero()).wrapping_sub(x))));
    }
    Ok(for_real!(site.dtype(0)?, site, T => mapped::<T>(|x| -x)))
}

fn abs(site: &Site<'_>) -> Result<Prepared> {
    if site.dtype(0)?.is_integer() {
        #[allow(
            unused_comparisons,
            clippy::absurd_extreme_comparisons,
            reason = "unsigned types are instances too"
        )]
        let kernel = for_int!(site.dtype(0)?, site, T => mapped_int::<T>(|x| if x < T::zero() { T::zero().wrapping_sub(x) } else { x }));
        return Ok(kernel);
    }
    Ok(for_real!(site.dtype(0)?, site, T => mapped::<T>(Float::abs)))
}

fn sign(site: &Site<'_>) -> Result<Prepared> {
    if site.dtype(0)?.is_integer() {
        #[allow(
            unused_comparisons,
            clippy::absurd_extreme_comparisons,
            reason = "unsigned types are instances too"
        )]
        let kernel = for_int!(site.dtype(0)?, site, T => mapped_int::<T>(|x| match x {
            0 => 0,
            x if x < 0 => T::zero().wrapping_sub(1),
            _ => 1,
        }));
        return Ok(kernel);
    }
    floats!(site, (), |x| if x == 0.0 || x.is_nan() { x.abs() } else { x.signum() })
}

/// ln(1 + exp(x)), which overflows nowhere.
fn softplus<W: Wide>(x: W) -> W {
    let above = if x < W::zero() { W::zero() } else { x };
    above + exp(-x.abs()).ln_1p()
}

fn gelu_of(site: &Site<'_>) -> Result<Prepared> {
    match site.view.string("approximate") {
        None | Some("none") => floats!(site, (), |x| gelu(x)),
        Some("tanh") => floats!(site, (), |x| gelu_tanh(x)),
        Some(other) => Err(OpError::attr("approximate", "none or tanh", other).into()),
    }
}

/// BiasGelu of com.microsoft: gelu(A + B).
fn bias_gelu(site: &Site<'_>) -> Result<Prepared> {
    let walk = walk_of(site, 2)?;
    Ok(for_real!(site.dtype(0)?, site, T => zipped::<T>(walk, |a, b| gelu(a + b))))
}

/// FastGelu of com.microsoft: gelu(X + bias) by the tanh, the bias optional.
fn fast_gelu(site: &Site<'_>) -> Result<Prepared> {
    if !site.has(1) {
        return floats!(site, (), |x| gelu_tanh(x));
    }
    let walk = walk_of(site, 2)?;
    Ok(for_real!(site.dtype(0)?, site, T => zipped::<T>(walk, |a, b| gelu_tanh(a + b))))
}

/// Swish, and QuickGelu of com.microsoft: x · sigmoid(alpha · x).
fn swish(site: &Site<'_>) -> Result<Prepared> {
    let alpha = attr(site, "alpha", 1.0);
    floats!(site, (alpha), |x| x * sigmoid(alpha * x))
}

fn swi_glu(site: &Site<'_>) -> Result<Prepared> {
    let (walk, alpha) = (walk_of(site, 2)?, attr(site, "alpha", 1.0));
    Ok(for_real!(site.dtype(0)?, site, T => {
        let alpha = <T as Real>::Wide::of(alpha);
        zipped::<T>(walk, move |a, b| a * sigmoid(alpha * a) * b)
    }))
}

fn celu(site: &Site<'_>) -> Result<Prepared> {
    let alpha = attr(site, "alpha", 1.0);
    floats!(site, (alpha), |x| if x > 0.0 { x } else { alpha * (x / alpha).exp_m1() })
}

fn elu(site: &Site<'_>) -> Result<Prepared> {
    let alpha = attr(site, "alpha", 1.0);
    floats!(site, (alpha), |x| if x > 0.0 { x } else { alpha * x.exp_m1() })
}

fn selu(site: &Site<'_>) -> Result<Prepared> {
    let (alpha, gamma) = (attr(site, "alpha", 1.673_263_2), attr(site, "gamma", 1.050_701));
    floats!(site, (alpha, gamma), |x| gamma * if x > 0.0 { x } else { alpha * x.exp_m1() })
}

fn hard_sigmoid(site: &Site<'_>) -> Result<Prepared> {
    let (alpha, beta) = (attr(site, "alpha", 0.2), attr(site, "beta", 0.5));
    floats!(site, (alpha, beta), |x| clamp(alpha * x + beta, 0.0, 1.0))
}

fn leaky_relu(site: &Site<'_>) -> Result<Prepared> {
    let alpha = attr(site, "alpha", 0.01);
    floats!(site, (alpha), |x| if x < 0.0 { x * alpha } else { x })
}

fn thresholded_relu(site: &Site<'_>) -> Result<Prepared> {
    let alpha = attr(site, "alpha", 1.0);
    floats!(site, (alpha), |x| if x > alpha { x } else { 0.0 })
}

/// x + bias below −lambd, x − bias above lambd, 0 between.
fn shrink(site: &Site<'_>) -> Result<Prepared> {
    let (bias, lambd) = (attr(site, "bias", 0.0), attr(site, "lambd", 0.5));
    if site.dtype(0)?.is_integer() {
        return Ok(for_int!(site.dtype(0)?, site, T => {
            #[expect(clippy::cast_possible_truncation, clippy::allow_attributes, reason = "as NumPy casts")]
            #[allow(clippy::cast_precision_loss, reason = "narrow types are instances too")]
            mapped_int::<T>(move |x| {
                // What is added has a fraction seldom; without one, no digit may be lost.
                let moved = |by: f64| match by.fract() == 0.0 {
                    true => x.wrapping_add(by as i64 as T),
                    false => (x as f64 + by) as i64 as T,
                };
                match x as f64 {
                    wide if wide < -lambd => moved(bias),
                    wide if wide > lambd => moved(-bias),
                    _ => 0,
                }
            })
        }));
    }
    floats!(site, (bias, lambd), |x| {
        if x < -lambd {
            x + bias
        } else if x > lambd {
            x - bias
        } else {
            0.0
        }
    })
}
