//! GridSample, which samples an image at the positions of a grid, and AffineGrid.
//!
//! Positions are computed in f32, or in f64 for an f64 grid; elements and weights near a position in f64. A thread
//! computes one result, a weighted sum over all axes.

use super::fold::wide_float;
use super::resize::CUBIC;
use super::stage::{Place, Scratch, Source, staged};
use super::{Maker, Prepare, signed};
use crate::cuda::text::{Elem, f64_text};
use crate::kernel::{KernelError, Prepared, Result};
use ampc_ir::DType;
use ampc_ir::op::OpKind;
use ampc_ir::views::OpError;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::AffineGrid => affine_grid,
        OpKind::GridSample => grid_sample,
        _ => return None,
    })
}

/// The element index of a position along an axis, or -1 for no element, computed as in f64.
fn axis_functions(maker: &Maker<'_>, is_cubic: bool, is_nearest: bool) -> Result<String> {
    let site = maker.site;
    let padding = site.view.string("padding_mode").unwrap_or("zeros");
    let aligned = site.view.int("align_corners").unwrap_or(0) != 0;
    let wide = if site.dtype(1)? == DType::F64 { "double" } else { "float" };
    let borders = match aligned {
        true => "double low = 0.0, high = (double)n - 1.0;",
        false => "double low = -0.5, high = (double)n - 0.5;",
    };
    let denormalized = match aligned {
        true => format!("(x + ({wide})1) / ({wide})2 * (({wide})n - ({wide})1)"),
        false => format!("((x + ({wide})1) * ({wide})n - ({wide})1) / ({wide})2"),
    };
    let element = match padding {
        "zeros" => "return -1;",
        "border" => "return i < 0 ? 0 : n - 1;",
        "reflection" => {
            "double at = floor(fmax(reflected((double)i, low, high), 0.0)); return at > (double)n - 1.0 ? n - 1 : (i64)at;"
        }
        other => return Err(OpError::attr("padding_mode", "zeros, border or reflection", other).into()),
    };
    let clamped = "x = x < 0.0 ? 0.0 : x > (double)n - 1.0 ? (double)n - 1.0 : x;";
    let moved = match padding {
        "zeros" => String::new(),
        // Cubic interpolation continues beyond the border with the border elements.
        "border" if is_cubic => format!("if (!(fabs(x) <= 1.7976931348623157e308)) {clamped}"),
        "border" => clamped.to_owned(),
        _ => "x = reflected(x, low, high);".into(),
    };
    let rounded = if is_nearest { "x = rint(x);" } else { "" };
    Ok(format!(
        "{CUBIC}__device__ double reflected(double x, double low, double high) {{
  double range = high - low, beyond = x < low ? low - x : x - high;
  if (beyond <= 0.0) return x;
  if (range <= 0.0 || !(beyond <= 1.7976931348623157e308)) return low;
  double times = trunc(beyond / range), rest = beyond - times * range;
  return (fmod(times, 2.0) == 0.0) == (x < low) ? low + rest : high - rest;
}}
__device__ i64 element(i64 i, i64 n) {{
  {borders}
  if (i >= 0 && i < n) return i;
  {element}
}}
__device__ double position({wide} x, i64 n) {{ return (double)({denormalized}); }}
__device__ i64 whole(double x) {{ x = floor(x); return x < -1e15 ? -1000000000000000ll : x > 1e15 ? 1000000000000000ll : (i64)x; }}
__device__ double moved(double x, i64 n) {{
  {borders}
  if (x != x) x = {};
  {rounded}
  if (x < low || x > high) {{ {moved} }}
  return x;
}}
",
        f64_text(f64::NEG_INFINITY)
    ))
}

fn grid_sample(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let (x, grid) = (site.dims(0)?, site.dims(1)?);
    let taps = match site.view.string("mode").unwrap_or("linear") {
        "linear" | "bilinear" => 2,
        "nearest" => 1,
        "cubic" | "bicubic" => 4,
        other => return Err(OpError::attr("mode", "linear, nearest or cubic", other).into()),
    };
    let n: usize = site.result_dims(0)?.iter().product();
    let image = &x[2..];
    if image.contains(&0) && n > 0 {
        return Err(KernelError::value("an image with elements", "none"));
    }
    let elem = if taps == 1 { maker.raw(0)? } else { maker.real(0)? };
    let grid_elem = maker.real(1)?;
    let acc = wide_float(elem).wide();
    let positions: usize = grid[1..grid.len() - 1].iter().product();
    let rank = image.len();
    let mut source = Source::new(n.max(x.iter().product()).max(grid.iter().product()));
    source.function(&axis_functions(maker, taps == 4, taps == 1)?);
    source.from("x", elem, Place::operand(0));
    source.from("grid", grid_elem, Place::operand(1));
    source.to("y", elem, Place::result(0));
    source.number("channels", x[1]);
    source.number("positions", positions);
    source.number("plane", image.iter().product());
    let mut begin =
        format!("u64 at = ((u64)(i / positions / channels) * positions + i % positions) * {rank};\n");
    let (mut heads, mut place, mut weight) = (String::new(), "0".to_owned(), "1.0".to_owned());
    let mut inside = "true".to_owned();
    for (axis, &extent) in image.iter().enumerate() {
        source.signed(&format!("extent{axis}"), signed(extent));
        let number = grid_elem.load(&format!("grid[at + {}]", rank - 1 - axis));
        begin += &format!("    double p{axis} = moved(position({number}, extent{axis}), extent{axis});\n");
        let indices: Vec<String> = match taps {
            // Truncated, because a reflected position may lie between elements.
            1 => vec![format!("element(whole(trunc(p{axis})), extent{axis})")],
            2 => (0..2).map(|k| format!("element(whole(p{axis}) + {k}, extent{axis})")).collect(),
            _ => (-1..3).map(|k| format!("element(whole(p{axis}) + ({k}), extent{axis})")).collect(),
        };
        let ratio = format!("(p{axis} - floor(p{axis}))");
        let weights: Vec<String> = match taps {
            1 => vec!["1.0".into()],
            2 => vec![format!("1.0 - {ratio}"), ratio],
            _ => (-1..3).map(|k| format!("cubic({k}.0 - {ratio}, -0.75)")).collect(),
        };
        begin += &format!(
            "    i64 e{axis}[{taps}] = {{{}}}; double w{axis}[{taps}] = {{{}}};\n",
            indices.join(", "),
            weights.join(", ")
        );
        heads += &format!("for (int k{axis} = 0; k{axis} < {taps}; k{axis}++) ");
        place = format!("({place}) * extent{axis} + e{axis}[k{axis}]");
        weight += &format!(" * w{axis}[k{axis}]");
        inside += &format!(" && e{axis}[k{axis}] >= 0");
    }
    let from = format!("x[(u64)(i / positions) * plane + {place}]");
    let body = if taps == 1 {
        format!("{begin}    y[i] = 0;\n    {heads}if ({inside}) y[i] = {from};")
    } else {
        format!(
            "{begin}    {acc} sum = 0;\n    {heads}if ({inside}) sum += {} * ({acc})({weight});\n    y[i] = {};",
            elem.load(&from),
            elem.store("sum")
        )
    };
    Ok(staged(vec![source.each(maker, n, &body)?], &Scratch::default()))
}

/// `grid[n, position] = theta[n] · (x, y, 1)`, or `(x, y, z, 1)`.
fn affine_grid(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let (theta, result) = (site.dims(0)?, site.result_dims(0)?);
    let elem = maker.real(0)?;
    let axes = &result[1..result.len() - 1];
    let rank = axes.len();
    if theta[1..] != [rank, rank + 1] {
        return Err(KernelError::value(format!("matrices of {rank} rows"), format!("{theta:?}")));
    }
    let n: usize = result.iter().product();
    let mut source = Source::new(n.max(theta.iter().product()));
    source.from("theta", elem, Place::operand(0));
    source.to("y", elem, Place::result(0));
    source.number("positions", axes.iter().product());
    let last = elem.load(&format!("theta[row * {} + {rank}]", rank + 1));
    let mut body = format!(
        "u64 row = (u64)(i / {rank} / positions) * {rank} + i % {rank}, rest = i / {rank} % positions;
    double sum = (double){last};\n"
    );
    for (c, &extent) in axes.iter().rev().enumerate() {
        source.number(&format!("extent{c}"), extent);
        let coordinate = match site.view.int("align_corners").unwrap_or(0) {
            0 => format!("(2.0 * (double)k + 1.0) / (double)extent{c} - 1.0"),
            _ => format!("extent{c} <= 1 ? 0.0 : 2.0 * (double)k / ((double)extent{c} - 1.0) - 1.0"),
        };
        body += &format!(
            "    {{ u64 k = rest % extent{c}; rest /= extent{c}; sum += (double){} * ({coordinate}); }}\n",
            elem.load(&format!("theta[row * {} + {c}]", rank + 1))
        );
    }
    let number = if elem == Elem::F64 { "sum" } else { "(float)sum" };
    body += &format!("    y[i] = {};", elem.store(number));
    Ok(staged(vec![source.each(maker, n, &body)?], &Scratch::default()))
}
