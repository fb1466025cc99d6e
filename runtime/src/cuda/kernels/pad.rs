//! Pad and CenterCropPad.

use super::stage::{Place, Scratch, Source, staged};
use super::{Maker, Prepare};
use crate::cuda::text::{Elem, f32_text, f64_text};
use crate::geometry;
use crate::kernel::{KernelError, Prepared, Result};
use ampc_ir::op::OpKind;
use ampc_ir::views::broadcast::Bound;
use ampc_ir::views::{OpError, PadView};

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::CenterCropPad => center_crop_pad,
        OpKind::Pad => pad,
        _ => return None,
    })
}

/// The value of the padding.
enum Fill {
    Number(f32),
    Operand(usize),
}

fn pad(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let view = PadView::read(&site.view)?;
    let befores = geometry::pads_before(site, &view)?;
    let fill = match view.value {
        Bound::Operand(i) if view.mode == "constant" => {
            if site.dims(i)?.iter().product::<usize>() != 1 {
                let found = format!("{:?}", site.dims(i)?);
                return Err(OpError::operand(i, "one element", found).into());
            }
            Fill::Operand(i)
        }
        Bound::Number(value) => Fill::Number(value),
        Bound::None | Bound::Operand(_) => Fill::Number(0.0),
    };
    padded(maker, &befores, view.mode, &fill)
}

fn center_crop_pad(maker: &Maker<'_>) -> Result<Prepared> {
    let befores = geometry::crops_before(maker.site)?;
    padded(maker, &befores, "constant", &Fill::Number(0.0))
}

/// The index in `[0, m)` whose element pads index `at`, which is outside; `m` is the number of elements that are
/// kept.
fn outside(mode: &str) -> &'static str {
    match mode {
        "edge" => "at = at < 0 ? 0 : m - 1;",
        "wrap" => "{ at %= m; if (at < 0) at += m; }",
        _ => {
            "if (m == 1) at = 0; else { i64 period = 2 * (m - 1); at %= period; if (at < 0) at += period; if (at >= m) at = period - at; }"
        }
    }
}

/// The kernel of a result that starts `befores` elements before operand 0 along each axis.
fn padded(maker: &Maker<'_>, befores: &[i64], mode: &str, fill: &Fill) -> Result<Prepared> {
    let site = maker.site;
    let (dims, result) = (site.dims(0)?, site.result_dims(0)?);
    let elem = maker.raw(0)?;
    let n: usize = result.iter().product();
    let mut source = Source::new(n.max(dims.iter().product()));
    source.from("x", elem, Place::operand(0));
    let value = match fill {
        Fill::Operand(i) => {
            source.from("fill", elem, Place::operand(*i));
            "fill[0]".to_owned()
        }
        Fill::Number(value) if *value == 0.0 => "0".to_owned(),
        Fill::Number(value) => match Elem::number(site.dtype(0)?).filter(|elem| elem.is_float()) {
            Some(Elem::F64) => format!("__double_as_longlong({})", f64_text(f64::from(*value))),
            Some(Elem::F32) => format!("__float_as_uint({})", f32_text(*value)),
            Some(float) => float.store(&f32_text(*value)),
            None => return Err(site.no_kernel()),
        },
    };
    source.to("y", elem, Place::result(0));
    let mut body = String::from("i64 from = 0; bool is_in = true;\n");
    let signed = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let (mut below, mut stride) = (1usize, 1i64);
    for axis in (0..dims.len()).rev() {
        let (all, extent, before) = (signed(dims[axis]), signed(result[axis]), befores[axis]);
        // The result ends before elements that are cropped at the end.
        let low = before.saturating_neg().clamp(0, all);
        let high = all.min(extent.saturating_sub(before)).max(low);
        if mode != "constant" && high == low && n > 0 {
            return Err(KernelError::value(format!("elements to repeat along axis {axis}"), "none"));
        }
        if dims[axis] != 1 || result[axis] != 1 {
            let quotient = if below == 1 {
                "i".to_owned()
            } else {
                source.number(&format!("below{axis}"), below);
                format!("i / below{axis}")
            };
            source.number(&format!("extent{axis}"), result[axis]);
            source.signed(&format!("shift{axis}"), before.saturating_add(low));
            source.signed(&format!("kept{axis}"), high - low);
            source.signed(&format!("low{axis}"), low);
            source.signed(&format!("stride{axis}"), stride);
            let there = match mode {
                "constant" => "is_in = false;",
                mode => outside(mode),
            };
            body += &format!(
                "    {{ i64 at = (i64)(({quotient}) % extent{axis}) - shift{axis}, m = kept{axis}; if (at < 0 || at >= m) {there} from += (at + low{axis}) * stride{axis}; }}\n"
            );
        }
        below = below.saturating_mul(result[axis]);
        stride = stride.saturating_mul(all.max(1));
    }
    body += &format!("    y[i] = is_in ? x[from] : {value};");
    if below == 0 || dims.contains(&0) {
        body = body.replace("x[from]", &value);
    }
    Ok(staged(vec![source.each(maker, n, &body)?], &Scratch::default()))
}
