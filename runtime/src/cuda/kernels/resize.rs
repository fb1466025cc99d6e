//! Resize and Upsample.
//!
//! Positions and weights are computed in f64, by a launch per resized axis. A thread computes one result, a weighted
//! sum over all axes.

use super::fold::wide_float;
use super::stage::{Place, Scratch, Source, Stage, staged};
use super::{Maker, Prepare, signed};
use crate::cuda::text::{Elem, f32_text, f64_text};
use crate::kernel::{KernelError, Prepared, Result};
use ampc_ir::Dim;
use ampc_ir::op::OpKind;
use ampc_ir::views::OpError;
use ampc_ir::views::resize::{Coordinates, Interpolation, Nearest, ResizeView, SamplingView};

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::Resize | OpKind::Upsample => resize,
        _ => return None,
    })
}

#[expect(clippy::cast_precision_loss, reason = "an extent")]
fn float(n: usize) -> String {
    f64_text(n as f64)
}

/// The cubic convolution kernel of Keys (1981).
pub(super) const CUBIC: &str = "__device__ double cubic(double x, double a) {
  x = fabs(x);
  if (x <= 1.0) return ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
  return x < 2.0 ? ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a : 0.0;
}
";

/// A resized axis.
struct Axis {
    axis: usize,
    input: usize,
    output: usize,
    factor: (f64, f64),
    region: (f64, f64),
    taps: usize,
    /// The indices, and the weights. Without weights, a flag says if the index is inside.
    indices: Place,
    weights: Place,
}

fn is_one(x: f64) -> bool {
    x.to_bits() == 1f64.to_bits()
}

impl Axis {
    /// The factor by which antialiasing widens the filter of a smaller result.
    fn narrow(&self, sampling: &SamplingView) -> f64 {
        if sampling.antialias { (self.factor.0 / self.factor.1).min(1.0) } else { 1.0 }
    }

    /// The position of index `i` in the input, an expression of type `W`.
    fn position(&self, coordinates: Coordinates, is_f32: bool) -> String {
        let number = |x: f64| if is_f32 { format!("W({})", f64_text(x)) } else { f64_text(x) };
        let (up, down) = (number(self.factor.0), number(self.factor.1));
        let half_pixel = format!("((W)i + (W)0.5) * {down} / {up} - (W)0.5");
        match coordinates {
            Coordinates::HalfPixelSymmetric => {
                format!("input * (W)0.5 * ((W)1 - output / scaled) + ({half_pixel})")
            }
            Coordinates::PytorchHalfPixel if self.output <= 1 => "(W)0".into(),
            Coordinates::HalfPixel | Coordinates::PytorchHalfPixel => half_pixel,
            Coordinates::Asymmetric => format!("(W)i * {down} / {up}"),
            Coordinates::HalfPixelForNearest => format!("((W)i + (W)0.5) * {down} / {up}"),
            Coordinates::AlignCorners => {
                "scaled == (W)1 ? (W)0 : (W)i * (input - (W)1) / (scaled - (W)1)".into()
            }
            Coordinates::CropAndResize => {
                let (start, end) = (number(self.region.0), number(self.region.1));
                format!(
                    "{start} * (input - (W)1) + (scaled == (W)1 ? (W)0.5 : (W)i / (scaled - (W)1)) * ({end} - {start}) * (input - (W)1)"
                )
            }
        }
    }

    /// The launch that computes indices and weights of the axis.
    fn table(&self, maker: &Maker<'_>, sampling: &SamplingView) -> Result<Stage> {
        const EXACT: usize = 1 << 24;
        let is_nearest = matches!(sampling.interpolation, Interpolation::Nearest(_));
        // A scale that the model gives is an f32: positions of nearest elements are then computed in f32.
        let is_f32 = is_nearest && is_one(self.factor.1) && self.input.max(self.output) <= EXACT;
        let mut source = Source::new(self.output.max(self.input));
        source.function(CUBIC);
        source.function(&format!("typedef {} W;\n", if is_f32 { "float" } else { "double" }));
        source.pointer("int", "indices", self.indices);
        source.pointer("double", "weights", self.weights);
        let crops = sampling.coordinates == Coordinates::CropAndResize;
        let outside = if crops {
            "bool is_out = !(position >= 0.0 && position <= (double)last);"
        } else {
            "bool is_out = false;"
        };
        let choice = match sampling.interpolation {
            Interpolation::Nearest(Nearest::RoundPreferFloor) => "ratio > 0.5",
            Interpolation::Nearest(Nearest::RoundPreferCeil) => "ratio >= 0.5",
            Interpolation::Nearest(Nearest::Floor) => "false",
            Interpolation::Nearest(Nearest::Ceil) => "true",
            Interpolation::Linear | Interpolation::Cubic => "",
        };
        let clamp = "index < 0 ? 0 : index > last ? last : index";
        let taps = if is_nearest {
            format!(
                "i64 index = below + (is_element || {choice} ? 1 : 0);
    indices[i] = (int)({clamp}); weights[i] = is_out ? -1.0 : 1.0;"
            )
        } else {
            let weight = match sampling.interpolation {
                Interpolation::Cubic => {
                    format!("cubic(distance, {})", f64_text(f64::from(sampling.cubic_coeff_a)))
                }
                _ => "fmax(1.0 - fabs(distance), 0.0)".into(),
            };
            let excluded = if sampling.exclude_outside { "index < 0 || index > last ? 0.0 : " } else { "" };
            let shares = match sampling.exclude_outside || sampling.antialias {
                true => "if (fabs(sum) > 0.0) for (i64 k = 0; k < taps; k++) weights[i * taps + k] /= sum;",
                false => "",
            };
            // The first index marks positions outside of the region.
            format!(
                "double sum = 0.0;
    for (i64 k = 0; k < taps; k++) {{
      i64 step = k + 1 - taps / 2, index = below + step;
      double distance = ((double)step - ratio) * {narrow}, weight = {excluded}{weight};
      sum += weight;
      indices[i * taps + k] = (int)({clamp}); weights[i * taps + k] = weight;
    }}
    {shares}
    if (is_out) indices[i * taps] = -1;",
                narrow = f64_text(self.narrow(sampling)),
            )
        };
        source.signed("last", signed(self.input) - 1);
        source.signed("taps", signed(self.taps));
        let body = format!(
            "const W input = (W){input}, output = (W){output}, scaled = input * (W){up} / (W){down};
    double position = (double)({position});
    {outside}
    double low = floor(position);
    bool is_element = low == position;
    double near_ = low < -1e15 ? -1e15 : low > 1e15 ? 1e15 : low;
    i64 below = (i64)near_ - (is_element ? 1 : 0);
    double ratio = is_element ? 1.0 : position - low;
    {taps}",
            input = float(self.input),
            output = float(self.output),
            up = f64_text(self.factor.0),
            down = f64_text(self.factor.1),
            position = self.position(sampling.coordinates, is_f32),
        );
        let body = if is_nearest { body + "\n    if (is_out) indices[i] = -1;" } else { body };
        source.each(maker, self.output, &body)
    }
}

/// The maximum number of taps of an axis.
const MOST_TAPS: f64 = 1e9;

fn resize(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let (x, y) = (site.dims(0)?, site.result_dims(0)?);
    let view = ResizeView::read(&site.view, x.len())?;
    let sampling = SamplingView::read(&site.view)?;
    let known: Vec<Dim> = x.iter().map(|&d| Dim::Known(d as u64)).collect();
    let n_axes = view.axes.len();
    let region = match sampling.coordinates {
        Coordinates::CropAndResize => site.floats(1)?.unwrap_or_default(),
        _ => [vec![0.0; n_axes], vec![1.0; n_axes]].concat(),
    };
    if region.len() != 2 * n_axes {
        let expected = format!("{} numbers, start and end of the region", 2 * n_axes);
        return Err(OpError::operand(1, expected, region.len().to_string()).into());
    }
    let (mut scratch, mut stages, mut axes) = (Scratch::default(), Vec::new(), Vec::new());
    for (i, &axis) in view.axes.iter().enumerate() {
        let (input, output) = (x[axis], y[axis]);
        let factor = view.factor(i, &known, output as u64);
        let region = (region[i], region[i + n_axes]);
        if input == output && is_one(factor.0 / factor.1) && region == (0.0, 1.0) {
            continue;
        }
        if input == 0 && output > 0 {
            return Err(KernelError::value(
                "an input with elements",
                format!("an extent of 0 on axis {axis}"),
            ));
        }
        let none = scratch.part(0);
        let mut of = Axis { axis, input, output, factor, region, taps: 1, indices: none, weights: none };
        let reach = |support: f64| {
            let taps = (support / of.narrow(&sampling)).ceil().clamp(1.0, MOST_TAPS);
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "in range")]
            let taps = taps as usize;
            2 * taps
        };
        of.taps = match sampling.interpolation {
            Interpolation::Nearest(_) => 1,
            Interpolation::Linear => reach(1.0),
            Interpolation::Cubic => reach(2.0),
        };
        of.indices = scratch.part(of.taps * output * 4);
        of.weights = scratch.part(of.taps * output * 8);
        if i32::try_from(input).is_err() {
            return Err(site.no_kernel());
        }
        stages.push(of.table(maker, &sampling)?);
        axes.push(of);
    }
    stages.push(sampled(maker, &sampling, &axes)?);
    Ok(staged(stages, &scratch))
}

/// The launch that computes the weighted sums.
fn sampled(maker: &Maker<'_>, sampling: &SamplingView, axes: &[Axis]) -> Result<Stage> {
    let site = maker.site;
    let (x, y) = (site.dims(0)?, site.result_dims(0)?);
    let n: usize = y.iter().product();
    let is_nearest = matches!(sampling.interpolation, Interpolation::Nearest(_)) || axes.is_empty();
    let crops = sampling.coordinates == Coordinates::CropAndResize;
    let elem = match is_nearest && !crops {
        true => maker.raw(0)?,
        false => maker.real(0)?,
    };
    let acc = wide_float(elem).wide();
    let mut source = Source::new(n.max(x.iter().product()));
    source.from("x", elem, Place::operand(0));
    source.to("y", elem, Place::result(0));
    let (mut begin, mut heads) = ("i64 base = 0; bool is_out = false;\n".to_owned(), String::new());
    let [mut place, mut first, mut weight] = ["base", "base", "1"].map(str::to_owned);
    for axis in 0..x.len() {
        let step = x[axis + 1..].iter().product::<usize>();
        source.number(&format!("below{axis}"), y[axis + 1..].iter().product());
        source.number(&format!("extent{axis}"), y[axis]);
        source.signed(&format!("step{axis}"), signed(step));
        let index = format!("(i64)(i / below{axis} % extent{axis})");
        let Some(of) = axes.iter().find(|of| of.axis == axis) else {
            begin += &format!("    base += {index} * step{axis};\n");
            continue;
        };
        source.pointer("const int", &format!("indices{axis}"), of.indices);
        source.pointer("const double", &format!("weights{axis}"), of.weights);
        source.signed(&format!("taps{axis}"), signed(of.taps));
        begin += &format!(
            "    i64 at{axis} = {index} * taps{axis}; if (indices{axis}[at{axis}] < 0) is_out = true;\n"
        );
        heads += &format!("for (i64 k{axis} = 0; k{axis} < taps{axis}; k{axis}++) ");
        place += &format!(" + indices{axis}[at{axis} + k{axis}] * step{axis}");
        first += &format!(" + indices{axis}[at{axis}] * step{axis}");
        weight += &format!(" * weights{axis}[at{axis} + k{axis}]");
    }
    let outside = match elem {
        Elem::Raw(_) => "0".to_owned(),
        elem => elem.store(&f32_text(sampling.extrapolation_value)),
    };
    let load = elem.load(&format!("x[{place}]"));
    let body = if is_nearest {
        format!("{begin}    y[i] = is_out ? {outside} : x[{first}];")
    } else {
        format!(
            "{begin}    {acc} sum = 0;
    if (!is_out) {heads}sum += {load} * ({acc})({weight});
    y[i] = is_out ? {outside} : {};",
            elem.store("sum")
        )
    };
    source.each(maker, n, &body)
}
