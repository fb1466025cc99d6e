//! Resize and Upsample: target extents from scales or sizes, attributes or operands.

use super::node::{NodeView, OpError, Part, normalize_axis};
use super::reduce::Axes;
use crate::op::OpKind;
use crate::ty::{Dim, Dims};

/// The treatment of the aspect ratio by sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AspectRatio {
    /// Not at all.
    Stretch,
    /// The largest extents of the same ratio that are not larger.
    NotLarger,
    /// The smallest extents of the same ratio that are not smaller.
    NotSmaller,
}

/// Source of the extents of the result, per axis of [`ResizeView::axes`].
#[derive(Clone, PartialEq, Debug)]
pub enum Target {
    /// Factors; `cropped` if they apply to a region of the input that is not known.
    Scales {
        /// One factor per axis.
        scales: Vec<f64>,
        /// True if they apply to a region.
        cropped: bool,
    },
    /// Extents.
    Sizes(Vec<Dim>, AspectRatio),
    /// Not known before the graph runs.
    Unknown,
}

/// How values between elements follow from them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interpolation {
    /// The element that a rule says is nearest.
    Nearest(Nearest),
    /// On the line between two neighbours.
    Linear,
    /// On a cubic through four neighbours.
    Cubic,
}

/// The rule for the element nearest to a position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Nearest {
    /// The nearest; of two the lower.
    RoundPreferFloor,
    /// The nearest; of two the upper.
    RoundPreferCeil,
    /// The lower.
    Floor,
    /// The upper.
    Ceil,
}

/// Which position of the input an element of the result is at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Coordinates {
    /// Elements are squares, and the borders of input and result fall together.
    HalfPixel,
    /// As [`HalfPixel`](Self::HalfPixel), and the centers fall together even if the extent was rounded.
    HalfPixelSymmetric,
    /// As [`HalfPixel`](Self::HalfPixel), but a single element is at the first one.
    PytorchHalfPixel,
    /// The first elements fall together.
    Asymmetric,
    /// As [`HalfPixel`](Self::HalfPixel), but for half an element.
    HalfPixelForNearest,
    /// The first and the last elements fall together.
    AlignCorners,
    /// As [`AlignCorners`](Self::AlignCorners), for a region of the input.
    CropAndResize,
}

/// Attributes of Resize and Upsample besides the extents.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SamplingView {
    /// How values between elements follow from them.
    pub interpolation: Interpolation,
    /// Which position of the input an element of the result is at.
    pub coordinates: Coordinates,
    /// True if elements of a smaller result take in all elements that they stand for.
    pub antialias: bool,
    /// The coefficient of the cubic.
    pub cubic_coeff_a: f32,
    /// True if elements outside of the input have no weight; otherwise they equal the border.
    pub exclude_outside: bool,
    /// The value outside of the region of the input with [`Coordinates::CropAndResize`].
    pub extrapolation_value: f32,
}

impl SamplingView {
    /// Reads a Resize or Upsample.
    ///
    /// # Errors
    /// If a mode is invalid.
    pub fn read(view: &NodeView<'_>) -> Result<SamplingView, OpError> {
        // Below 11 there is no choice.
        let nearest = match view.string("nearest_mode") {
            Some("round_prefer_floor" | "") => Nearest::RoundPreferFloor,
            Some("round_prefer_ceil") => Nearest::RoundPreferCeil,
            Some("floor") | None => Nearest::Floor,
            Some("ceil") => Nearest::Ceil,
            Some(other) => {
                let expected = "round_prefer_floor, round_prefer_ceil, floor or ceil";
                return Err(OpError::attr("nearest_mode", expected, other));
            }
        };
        let coordinates = match view.string("coordinate_transformation_mode") {
            Some("half_pixel") => Coordinates::HalfPixel,
            Some("half_pixel_symmetric") => Coordinates::HalfPixelSymmetric,
            Some("pytorch_half_pixel") => Coordinates::PytorchHalfPixel,
            Some("asymmetric") | None => Coordinates::Asymmetric,
            Some("tf_half_pixel_for_nn") => Coordinates::HalfPixelForNearest,
            Some("align_corners") => Coordinates::AlignCorners,
            Some("tf_crop_and_resize") => Coordinates::CropAndResize,
            Some(other) => {
                let expected = "a mode of Resize";
                return Err(OpError::attr("coordinate_transformation_mode", expected, other));
            }
        };
        let interpolation = match view.string("mode").unwrap_or("nearest") {
            "nearest" => Interpolation::Nearest(nearest),
            "linear" | "bilinear" => Interpolation::Linear,
            "cubic" => Interpolation::Cubic,
            other => return Err(OpError::attr("mode", "nearest, linear or cubic", other)),
        };
        Ok(SamplingView {
            interpolation,
            coordinates,
            antialias: view.int("antialias").unwrap_or(0) != 0,
            cubic_coeff_a: view.float("cubic_coeff_a").unwrap_or(-0.75),
            exclude_outside: view.int("exclude_outside").unwrap_or(0) != 0,
            extrapolation_value: view.float("extrapolation_value").unwrap_or(0.0),
        })
    }
}

/// A Resize or Upsample over a tensor of known rank.
#[derive(Clone, PartialEq, Debug)]
pub struct ResizeView {
    /// The axes that scales and sizes are about.
    pub axes: Vec<usize>,
    /// The source of the extents.
    pub target: Target,
    /// True if the node is about to run. Then an extent on which runtimes differ is computed as in ONNX
    /// Runtime: the product in f32, whatever the region.
    pub decided: bool,
}

impl ResizeView {
    /// Reads a Resize or Upsample of a tensor of this rank.
    ///
    /// # Errors
    /// If scales and sizes are not as many as axes, are both there or both not, or are out of range.
    pub fn read(view: &NodeView<'_>, rank: usize) -> Result<ResizeView, OpError> {
        let axes = match view.int_list("axes") {
            Some(axes) if !axes.is_empty() => {
                Axes::of(axes, rank)?;
                let part = || Part::Attr("axes".into());
                axes.iter().map(|&a| normalize_axis(a, rank, part())).collect::<Result<Vec<_>, _>>()?
            }
            _ => (0..rank).collect(),
        };
        let target = match (view.kind(), view.since()) {
            (OpKind::Upsample, 0..7) => upsample_1(view, rank)?,
            (OpKind::Upsample, 7..9) => {
                let scales = view.float_list("scales");
                let scales = scales.ok_or_else(|| OpError::attr("scales", "a factor per axis", "none"))?;
                scales_of(
                    view,
                    scales.iter().map(|&s| f64::from(s)).collect(),
                    Part::Attr("scales".into()),
                    rank,
                )?
            }
            (OpKind::Upsample, _) | (OpKind::Resize, 0..11) => scales_operand(view, 1, axes.len())?,
            _ => scales_or_sizes(view, axes.len())?,
        };
        Ok(ResizeView { axes, target, decided: view.is_running() })
    }

    /// The extents of the result for an input of these dims.
    pub fn output(&self, dims: &[Dim]) -> Dims {
        let mut output: Dims = dims.iter().copied().collect();
        match &self.target {
            Target::Unknown => {
                for &axis in &self.axes {
                    output[axis] = Dim::Unknown;
                }
            }
            Target::Scales { cropped: true, .. } if !self.decided => {
                for &axis in &self.axes {
                    output[axis] = Dim::Unknown;
                }
            }
            Target::Scales { scales, .. } => {
                for (&axis, &scale) in self.axes.iter().zip(scales) {
                    output[axis] = scaled(dims[axis], scale, self.decided);
                }
            }
            Target::Sizes(sizes, AspectRatio::Stretch) => {
                for (&axis, &size) in self.axes.iter().zip(sizes) {
                    output[axis] = size;
                }
            }
            Target::Sizes(sizes, policy) => {
                let ratio = self.ratio(dims, sizes, *policy);
                for &axis in &self.axes {
                    output[axis] = match (ratio, dims[axis]) {
                        (Some(ratio), Dim::Known(n)) => to_extent((ratio * to_float(n)).round()),
                        _ => Dim::Unknown,
                    };
                }
            }
        }
        output
    }

    /// The factor of entry `i` of the axes as a numerator and a denominator, for an input of these dims and a result
    /// of this extent.
    pub fn factor(&self, i: usize, dims: &[Dim], output: u64) -> (f64, f64) {
        match &self.target {
            Target::Scales { scales, .. } => (scales[i], 1.0),
            Target::Sizes(sizes, policy) if *policy != AspectRatio::Stretch => {
                (self.ratio(dims, sizes, *policy).unwrap_or(1.0), 1.0)
            }
            Target::Sizes(..) | Target::Unknown => {
                (to_float(output), dims[self.axes[i]].known().map_or(1.0, to_float))
            }
        }
    }

    /// The one factor that keeps the aspect ratio.
    fn ratio(&self, dims: &[Dim], sizes: &[Dim], policy: AspectRatio) -> Option<f64> {
        let factors = self.axes.iter().zip(sizes).map(|(&axis, size)| {
            let n = dims[axis].known().filter(|&n| n > 0)?;
            Some(to_float(size.known()?) / to_float(n))
        });
        let factors: Vec<f64> = factors.collect::<Option<_>>()?;
        match policy {
            AspectRatio::NotSmaller => factors.into_iter().reduce(f64::max),
            AspectRatio::NotLarger | AspectRatio::Stretch => factors.into_iter().reduce(f64::min),
        }
    }
}

/// An extent as a float; beyond 2^53 it is rounded.
#[expect(clippy::cast_precision_loss, reason = "extents beyond 2^53 are no sizes of images")]
fn to_float(n: u64) -> f64 {
    n as f64
}

/// A whole number as an extent.
fn to_extent(x: f64) -> Dim {
    if (0.0..9_007_199_254_740_992.0).contains(&x) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "in range, and rounded before"
        )]
        let n = x as u64;
        Dim::Known(n)
    } else {
        Dim::Unknown
    }
}

/// `floor(extent · scale)`; unknown where the product in f32, which kernels use, and the exact one differ, unless the
/// node is about to run.
fn scaled(dim: Dim, scale: f64, decided: bool) -> Dim {
    match dim {
        Dim::Known(n) => {
            let exact = (to_float(n) * scale).floor();
            #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is what is asked for")]
            let rounded = f64::from((to_float(n) as f32 * scale as f32).floor());
            if decided || exact.to_bits() == rounded.to_bits() { to_extent(rounded) } else { Dim::Unknown }
        }
        same if scale.to_bits() == 1f64.to_bits() => same,
        Dim::Sym(_) | Dim::Unknown => Dim::Unknown,
    }
}

fn upsample_1(view: &NodeView<'_>, rank: usize) -> Result<Target, OpError> {
    if rank != 4 {
        return Err(OpError::operand(0, "a tensor of rank 4", format!("rank {rank}")));
    }
    let factor = |name: &str| {
        let scale = view.float(name).ok_or_else(|| OpError::attr(name, "a factor", "none"))?;
        Ok(f64::from(scale))
    };
    let scales = vec![1.0, 1.0, factor("height_scale")?, factor("width_scale")?];
    scales_of(view, scales, Part::Attr("height_scale".into()), 4)
}

fn scales_of(view: &NodeView<'_>, scales: Vec<f64>, part: Part, n: usize) -> Result<Target, OpError> {
    if scales.len() != n || scales.iter().any(|s| !s.is_finite() || *s <= 0.0) {
        let expected = format!("{n} positive factors");
        return Err(OpError { part, expected, found: format!("{scales:?}") });
    }
    let cropped = view.string("coordinate_transformation_mode") == Some("tf_crop_and_resize");
    Ok(Target::Scales { scales, cropped })
}

fn scales_operand(view: &NodeView<'_>, operand: usize, n: usize) -> Result<Target, OpError> {
    let entries = view.dims(operand).and_then(|d| match d {
        [one] => one.known(),
        _ => None,
    });
    if let Some(found) = entries.filter(|&e| u64::try_from(n) != Ok(e)) {
        return Err(OpError::operand(operand, format!("{n} factors"), found.to_string()));
    }
    match view.constant(operand).and_then(|c| c.small_floats(crate::views::MAX_INTS)) {
        Some(scales) => scales_of(view, scales, Part::Operand(operand), n),
        None => Ok(Target::Unknown),
    }
}

/// The operands `scales` and `sizes` of Resize from 11 on: exactly one is present, and an empty tensor counts
/// as absent.
fn scales_or_sizes(view: &NodeView<'_>, n: usize) -> Result<Target, OpError> {
    let is_empty = |i: usize| matches!(view.dims(i), Some([Dim::Known(0)]));
    let given = |i: usize| view.has(i) && !is_empty(i);
    let policy = match view.string("keep_aspect_ratio_policy").unwrap_or("stretch") {
        "stretch" => AspectRatio::Stretch,
        "not_larger" => AspectRatio::NotLarger,
        "not_smaller" => AspectRatio::NotSmaller,
        other => {
            let expected = "stretch, not_larger or not_smaller";
            return Err(OpError::attr("keep_aspect_ratio_policy", expected, other));
        }
    };
    // An operand whose length is not known may be the empty one.
    let certain = |i: usize| given(i) && matches!(view.dims(i), Some([Dim::Known(_)]));
    match (given(2), given(3)) {
        (false, false) => Err(OpError::node("scales or sizes", "neither")),
        (true, true) if certain(2) && certain(3) && view.since() >= 13 => {
            Err(OpError::node("either scales or sizes", "both"))
        }
        (true, false) if certain(2) && policy != AspectRatio::Stretch => Err(OpError::attr(
            "keep_aspect_ratio_policy",
            "stretch, since there are scales",
            "another policy",
        )),
        (true, false) => scales_operand(view, 2, n),
        (_, true) if certain(3) => sizes(view, n, policy),
        (_, true) => Ok(Target::Unknown),
    }
}

fn sizes(view: &NodeView<'_>, n: usize, policy: AspectRatio) -> Result<Target, OpError> {
    let entries = view.dims(3).and_then(|d| d.first()?.known());
    if let Some(found) = entries.filter(|&e| u64::try_from(n) != Ok(e)) {
        return Err(OpError::operand(3, format!("{n} extents"), found.to_string()));
    }
    match view.extents(3) {
        Some(sizes) if sizes.len() == n => Ok(Target::Sizes(sizes, policy)),
        _ => Ok(Target::Unknown),
    }
}
