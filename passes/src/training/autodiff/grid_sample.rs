//! The gradient of GridSample: of the image, and of the grid.
//!
//! The result at a position is a sum of elements of the image, the *taps*, with weights that are a product over
//! the axes: one tap for the nearest element, 2 and 4 per axis for linear and cubic interpolation. With the
//! taps of all positions, numbered as elements of a plane [N, taps · positions]:
//!
//! ```text
//! dx    = ScatterElements(0, taps, dy · weight) {add}
//! dgrid = Σ over taps of (Σ over channels of dy · x[tap]) · slope of the weight · slope of the position
//! ```
//!
//! A position outside of the image is clamped or reflected, for a cubic its taps are; with zeros, taps outside weigh 0. At a
//! border where a position is clamped, its slope is 0, as in PyTorch.

use super::backward::{Backward, Build, Ruled, signed};
use super::dims::extent;
use super::indexing::scatter_add;
use crate::pass::training_error::RuleError;
use ampc_ir::op::OpKind;
use ampc_ir::{AttrValue, DType, NodeSpec, Value};

/// The coefficient of cubics.
const A: f64 = -0.75;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Nearest,
    Linear,
    Cubic,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outside {
    Zeros,
    Border,
    Reflection,
}

/// An element near a position on an axis: its index and weight, and how the weight changes with the position; [N, P].
#[derive(Clone, Copy)]
struct Tap {
    index: Value,
    weight: Value,
    slope: Value,
}

/// The node's attributes.
#[derive(Clone, Copy)]
struct Sampler {
    mode: Mode,
    outside: Outside,
    aligns: bool,
}

impl Sampler {
    fn read(b: &Backward<'_>) -> Ruled<Sampler> {
        let view = b.view()?;
        let mode = match view.string("mode").unwrap_or("linear") {
            "nearest" => Mode::Nearest,
            "linear" | "bilinear" => Mode::Linear,
            "cubic" | "bicubic" => Mode::Cubic,
            other => return Err(RuleError::Unsupported(format!("its mode `{other}` is unknown"))),
        };
        let outside = match view.string("padding_mode").unwrap_or("zeros") {
            "zeros" => Outside::Zeros,
            "border" => Outside::Border,
            "reflection" => Outside::Reflection,
            other => {
                let what = format!("its padding mode `{other}` is unknown");
                return Err(RuleError::Unsupported(what));
            }
        };
        Ok(Sampler { mode, outside, aligns: view.int("align_corners").unwrap_or(0) != 0 })
    }
}

pub(super) fn grid_sample(b: &mut Backward<'_>) -> Ruled {
    let sampler = Sampler::read(b)?;
    let (x, grid, dy) = (b.x(0)?, b.x(1)?, b.dy0()?);
    let n_axes = b.rank(x)? - 2;
    let (image, dy) = (b.wide(x)?, b.wide(dy)?);
    let (image, dy) = (b.reshape(image, &[0, 0, -1])?, b.reshape(dy, &[0, 0, -1])?);
    let points = b.wide(grid)?;
    let points = b.reshape(points, &[0, -1, signed(n_axes)])?;
    // The taps of each axis, and the slope of the position.
    let (mut axes, mut slopes) = (Vec::with_capacity(n_axes), Vec::with_capacity(n_axes));
    for axis in 0..n_axes {
        let size = extent(b, x, axis + 2)?;
        let at = b.ints(&[signed(n_axes - 1 - axis)]);
        let point = b.op(OpKind::Gather, &[points, at], &[("axis", AttrValue::Int(2))])?;
        let point = b.squeeze(point, &[2])?;
        let (taps, slope) = sampler.axis(b, point, size, dy)?;
        axes.push((taps, size));
        slopes.push(slope);
    }
    let taps = combined(b, &axes)?;
    let parts: Vec<Value> = taps.iter().map(|taps| taps.index).collect();
    let index = side_by_side(b, &parts)?;
    let index = b.unsqueeze(index, &[1])?;
    let repeated = b.op(OpKind::Concat, &vec![dy; taps.len()], &[("axis", AttrValue::Int(2))])?;
    let index = b.expand_as(index, repeated)?;
    if b.needs(0) {
        let parts: Vec<Value> = taps.iter().map(|taps| taps.weight).collect();
        let weights = side_by_side(b, &parts)?;
        let weights = b.unsqueeze(weights, &[1])?;
        let updates = b.times(repeated, weights)?;
        let zeros = b.zeros(b.dtype(updates)?, image)?;
        let dx = scatter_add(b, zeros, index, updates, 2)?;
        let dx = b.reshape_as(dx, x)?;
        b.add(0, dx)?;
    }
    if b.needs(1) {
        let elements = b.op(OpKind::GatherElements, &[image, index], &[("axis", AttrValue::Int(2))])?;
        let products = b.times(repeated, elements)?;
        let sums = b.sum_over(products, &[1], false)?;
        let mut columns = Vec::with_capacity(n_axes);
        for (axis, &slope) in slopes.iter().enumerate().rev() {
            let parts: Vec<Value> = taps.iter().map(|taps| taps.slopes[axis]).collect();
            let change = side_by_side(b, &parts)?;
            let terms = b.times(sums, change)?;
            // The taps of a position are added.
            let apart = b.reshape(terms, &[0, i64::try_from(taps.len()).unwrap_or(1), -1])?;
            let sum = b.sum_over(apart, &[1], false)?;
            let column = b.times(sum, slope)?;
            columns.push(b.unsqueeze(column, &[2])?);
        }
        let d = b.op(OpKind::Concat, &columns, &[("axis", AttrValue::Int(2))])?;
        let d = b.reshape_as(d, grid)?;
        b.add(1, d)?;
    }
    Ok(())
}

/// Values [N, P] one behind the other, [N, n · P].
fn side_by_side(b: &mut Backward<'_>, parts: &[Value]) -> Ruled<Value> {
    b.op(OpKind::Concat, parts, &[("axis", AttrValue::Int(1))])
}

/// An element of a plane near a position, with how its weight changes along each axis.
struct Taps {
    index: Value,
    weight: Value,
    slopes: Vec<Value>,
}

/// Each tap of an axis with each of the others.
fn combined(b: &mut Backward<'_>, axes: &[(Vec<Tap>, Value)]) -> Ruled<Vec<Taps>> {
    let mut all: Vec<Taps> = Vec::new();
    for (axis, (taps, size)) in axes.iter().enumerate() {
        let before = std::mem::take(&mut all);
        if axis == 0 {
            let first = |tap: &Tap| Taps { index: tap.index, weight: tap.weight, slopes: vec![tap.slope] };
            all = taps.iter().map(first).collect();
            continue;
        }
        for so_far in &before {
            let rows = b.times(so_far.index, *size)?;
            for tap in taps {
                let mut slopes = Vec::with_capacity(axis + 1);
                for &slope in &so_far.slopes {
                    slopes.push(b.times(slope, tap.weight)?);
                }
                slopes.push(b.times(so_far.weight, tap.slope)?);
                let (index, weight) = (b.plus(rows, tap.index)?, b.times(so_far.weight, tap.weight)?);
                all.push(Taps { index, weight, slopes });
            }
        }
    }
    Ok(all)
}

impl Sampler {
    /// The taps of an axis with `size` elements, in the type of `like`, and the slope of the position by the number of the
    /// grid.
    fn axis(self, b: &mut Backward<'_>, point: Value, size: Value, like: Value) -> Ruled<(Vec<Tap>, Value)> {
        let dtype = b.dtype(point)?;
        let extent = b.cast(size, dtype)?;
        let last = b.plus_number(extent, -1.0)?;
        let above = b.plus_number(point, 1.0)?;
        let (mut at, mut slope) = if self.aligns {
            let half = b.scaled(above, 0.5)?;
            (b.times(half, last)?, b.scaled(last, 0.5)?)
        } else {
            let product = b.times(above, extent)?;
            let less = b.plus_number(product, -1.0)?;
            (b.scaled(less, 0.5)?, b.scaled(extent, 0.5)?)
        };
        if self.mode == Mode::Nearest {
            at = b.unary(OpKind::Round, at)?;
        } else if self.mode == Mode::Linear && self.outside != Outside::Zeros {
            if self.outside == Outside::Reflection {
                let (reflected, sign) = self.reflected(b, at, extent)?;
                (at, slope) = (reflected, b.times(slope, sign)?);
            }
            let zero = b.number(0.0, dtype)?;
            let (over, under) =
                (b.op(OpKind::Greater, &[at, zero], &[])?, b.op(OpKind::Less, &[at, last], &[])?);
            let inside = b.op(OpKind::And, &[over, under], &[])?;
            slope = b.masked(inside, slope)?;
            at = clamped(b, at, last)?;
        }
        let below = b.unary(OpKind::Floor, at)?;
        let ratio = b.minus(at, below)?;
        let mut taps = Vec::new();
        for (step, weight, change) in self.weights(b, ratio)? {
            let index = b.plus_number(below, step)?;
            taps.push(self.tap(b, (index, extent, last), weight, change, like)?);
        }
        let slope = b.cast(slope, b.dtype(like)?)?;
        Ok((taps, slope))
    }

    /// Steps from the element below, weights, and how these change with the position.
    fn weights(self, b: &mut Backward<'_>, ratio: Value) -> Ruled<Vec<(f64, Value, Value)>> {
        let (zero, one) = (b.number_like(0.0, ratio)?, b.number_like(1.0, ratio)?);
        match self.mode {
            Mode::Nearest => Ok(vec![(0.0, one, zero)]),
            Mode::Linear => {
                let (rest, minus) = (b.number_minus(1.0, ratio)?, b.number_like(-1.0, ratio)?);
                Ok(vec![(0.0, rest, minus), (1.0, ratio, one)])
            }
            Mode::Cubic => {
                let far = [A, -5.0 * A, 8.0 * A, -4.0 * A];
                let near = [A + 2.0, -(A + 3.0), 0.0, 1.0];
                let mut all = Vec::with_capacity(4);
                for (step, of, sign) in
                    [(-1.0, far, 1.0), (0.0, near, 1.0), (1.0, near, -1.0), (2.0, far, -1.0)]
                {
                    // The distance grows with the position where the tap is below.
                    let distance = b.scaled(ratio, sign)?;
                    let distance = b.plus_number(distance, -step * sign)?;
                    let weight = polynomial(b, distance, &of)?;
                    let change = polynomial(b, distance, &[3.0 * of[0], 2.0 * of[1], of[2]])?;
                    all.push((step, weight, b.scaled(change, sign)?));
                }
                Ok(all)
            }
        }
    }

    /// A tap whose index, a whole float, may be outside.
    fn tap(
        self,
        b: &mut Backward<'_>,
        (index, extent, last): (Value, Value, Value),
        mut weight: Value,
        mut slope: Value,
        like: Value,
    ) -> Ruled<Tap> {
        let mut at = index;
        match self.outside {
            Outside::Zeros => {
                let zero = b.number_like(0.0, at)?;
                let (over, under) = (
                    b.op(OpKind::GreaterOrEqual, &[at, zero], &[])?,
                    b.op(OpKind::LessOrEqual, &[at, last], &[])?,
                );
                let inside = b.op(OpKind::And, &[over, under], &[])?;
                (weight, slope) = (b.masked(inside, weight)?, b.masked(inside, slope)?);
            }
            Outside::Border => {}
            Outside::Reflection => {
                let (reflected, _) = self.reflected(b, at, extent)?;
                at = b.unary(OpKind::Floor, reflected)?;
            }
        }
        let at = clamped(b, at, last)?;
        let index = b.cast(at, DType::I64)?;
        let zeros = b.scaled(at, 0.0)?;
        let dtype = b.dtype(like)?;
        // All of the shape of the positions.
        let (weight, slope) = (b.plus(weight, zeros)?, b.plus(slope, zeros)?);
        Ok(Tap { index, weight: b.cast(weight, dtype)?, slope: b.cast(slope, dtype)? })
    }

    /// A position reflected at both borders, and the sign of its slope.
    fn reflected(self, b: &mut Backward<'_>, at: Value, extent: Value) -> Ruled<(Value, Value)> {
        let low = if self.aligns { 0.0 } else { -0.5 };
        let span = if self.aligns { b.plus_number(extent, -1.0)? } else { extent };
        let one = b.number_like(1.0, at)?;
        // Any span serves an axis of one element, since the result is clamped.
        let span = b.op(OpKind::Max, &[span, one], &[])?;
        let from_low = b.plus_number(at, -low)?;
        let (distance, sign) = (b.unary(OpKind::Abs, from_low)?, b.unary(OpKind::Sign, from_low)?);
        let period = b.scaled(span, 2.0)?;
        let rest = b.op(OpKind::Mod, &[distance, period], &[("fmod", AttrValue::Int(1))])?;
        let beyond = b.minus(rest, span)?;
        let fold = b.unary(OpKind::Abs, beyond)?;
        let inside = b.minus(span, fold)?;
        let turned = b.greater(beyond, 0.0)?;
        let minus = b.neg(sign)?;
        let sign = b.select(turned, minus, sign)?;
        Ok((b.plus_number(inside, low)?, sign))
    }
}

/// Between 0 and the last index.
fn clamped(b: &mut Backward<'_>, at: Value, last: Value) -> Ruled<Value> {
    let zero = b.number_like(0.0, at)?;
    let at = b.op(OpKind::Max, &[at, zero], &[])?;
    let [at] = b.insert(NodeSpec::new(OpKind::Min, &[at, last]))?;
    Ok(at)
}

/// A polynomial, the highest power first.
fn polynomial(b: &mut Backward<'_>, x: Value, coefficients: &[f64]) -> Ruled<Value> {
    let mut sum = b.number_like(coefficients[0], x)?;
    for &coefficient in &coefficients[1..] {
        let product = b.times(sum, x)?;
        sum = b.plus_number(product, coefficient)?;
    }
    Ok(sum)
}
