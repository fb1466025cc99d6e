//! Pooling: MaxPool, AveragePool, LpPool, and global pooling, which is a reduction. A thread computes one result.

use super::fold::{Fold, function, wide_float};
use super::reduce::Reduction;
use super::stage::{Place, Scratch, Source, staged};
use super::{Maker, Prepare};
use crate::cuda::text::{Elem, f32_text, f64_text};
use crate::kernel::{KernelError, Prepared, Result};
use ampc_ir::op::OpKind;
use ampc_ir::views::window::WindowView;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::AveragePool | OpKind::LpPool | OpKind::MaxPool => pool,
        OpKind::GlobalAveragePool | OpKind::GlobalLpPool | OpKind::GlobalMaxPool => global,
        _ => return None,
    })
}

/// A literal of the accumulator type.
fn number(acc: Elem, x: f64) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "rounding")]
    if acc == Elem::F64 { f64_text(x) } else { f32_text(x as f32) }
}

/// The exponent of a norm: an integer attribute, or a float in the first version.
fn exponent(maker: &Maker<'_>) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "no norm has such an exponent")]
    let whole = maker.site.view.int("p").map(|p| p as f64);
    whole.or_else(|| maker.site.view.float("p").map(f64::from)).unwrap_or(2.0)
}

/// The formulas `|x|^p`, and the p-th root of `acc`.
fn norm(acc: Elem, p: f64) -> [String; 2] {
    let abs = format!("{}(x)", function(acc, "fabs"));
    if p == 1.0 {
        [abs, "acc".into()]
    } else if p == 2.0 {
        ["x * x".into(), format!("{}(acc)", function(acc, "sqrt"))]
    } else {
        let pow = function(acc, "pow");
        [
            format!("{pow}({abs}, {})", number(acc, p)),
            format!("{pow}(acc, {} / {})", number(acc, 1.0), number(acc, p)),
        ]
    }
}

fn global(maker: &Maker<'_>) -> Result<Prepared> {
    let elem = maker.real(0)?;
    let acc = wide_float(elem);
    let site = maker.site;
    let dims = site.dims(0)?;
    let fold = match site.kind() {
        OpKind::GlobalMaxPool => Fold::greatest(acc),
        OpKind::GlobalAveragePool => Fold::sum(acc, "x", "acc / (A)count"),
        _ => {
            let [term, end] = norm(acc, exponent(maker));
            Fold::sum(acc, &term, &end)
        }
    };
    let mut scratch = Scratch::default();
    let reduction = Reduction {
        dims: &dims,
        is_reduced: &|axis| match site.channels_last {
            true => axis > 0 && axis + 1 < dims.len(),
            false => axis >= 2,
        },
        from: (Place::operand(0), elem),
        shift: None,
        to: (Place::result(0), elem),
    };
    Ok(staged(reduction.stages(maker, &fold, &mut scratch)?, &scratch))
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// The loops over a window: position `place` in the grid, first position of the window in the image, extents.
struct Loops {
    /// Statements before the loops.
    begin: String,
    /// The heads of the loops, the last axis innermost. `at` is the element of the plane.
    heads: String,
    /// The number of elements of the window in the image and its padding.
    padded: String,
    /// The number of elements of the window in the image.
    inside: String,
    /// Sums of the plane's index by columns.
    by_column: String,
}

/// Declares the parameters of a window and prints its loops.
fn loops(source: &mut Source, view: &WindowView, image: &[usize], grid: &[usize]) -> Result<Loops> {
    let rank = image.len();
    let [mut begin, mut heads] = [String::new(), String::new()];
    let [mut padded, mut inside] = ["1".to_owned(), "1".to_owned()];
    let mut by_column = "0".to_owned();
    let mut column_step = 1usize;
    for axis in 0..rank {
        let kernel = view.kernel[axis].known().ok_or(KernelError::NotYet)?;
        let (before, after) = view.pads(axis, image[axis] as u64, grid[axis] as u64);
        source.number(&format!("grid{axis}"), grid[axis]);
        source.number(&format!("below{axis}"), grid[axis + 1..].iter().product());
        let numbers = [
            ("image", image[axis] as u64),
            ("kernel", kernel),
            ("stride", view.strides[axis]),
            ("dilation", view.dilations[axis]),
            ("before", before),
            ("after", after),
            ("step", image[axis + 1..].iter().product::<usize>() as u64),
            ("column", column_step as u64),
        ];
        for (name, value) in numbers {
            source.signed(&format!("{name}{axis}"), signed(value));
        }
        column_step = column_step.saturating_mul(image[axis]);
        begin += &format!(
            "i64 first{axis} = (i64)(place / below{axis} % grid{axis}) * stride{axis} - before{axis};
    i64 room{axis} = (image{axis} + after{axis} - first{axis} + dilation{axis} - 1) / dilation{axis}; if (room{axis} > kernel{axis}) room{axis} = kernel{axis}; if (room{axis} < 0) room{axis} = 0;
    i64 low{axis} = first{axis} < 0 ? (dilation{axis} - 1 - first{axis}) / dilation{axis} : 0;
    i64 high{axis} = (image{axis} - first{axis} + dilation{axis} - 1) / dilation{axis}; if (high{axis} > kernel{axis}) high{axis} = kernel{axis}; if (high{axis} < low{axis}) high{axis} = low{axis};
    "
        );
        heads += &format!("for (i64 t{axis} = low{axis}; t{axis} < high{axis}; t{axis}++) ");
        padded += &format!(" * room{axis}");
        inside += &format!(" * (high{axis} - low{axis})");
        by_column += &format!(" + (first{axis} + t{axis} * dilation{axis}) * column{axis}");
    }
    Ok(Loops { begin, heads, padded, inside, by_column })
}

fn pool(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let kind = site.kind();
    let (x, y) = (site.channels_first(site.dims(0)?), site.channels_first(site.result_dims(0)?));
    let view = WindowView::read(&site.view, x.len() - 2, None)?;
    let elem = if kind == OpKind::MaxPool { maker.number(0)? } else { maker.real(0)? };
    let acc = match elem {
        elem if elem.is_float() => wide_float(elem),
        Elem::Bool => return Err(site.no_kernel()),
        Elem::I64 | Elem::U64 => elem,
        _ => Elem::I64,
    };
    let n: usize = y.iter().product();
    let (image, grid) = (&x[2..], &y[2..]);
    let mut source = Source::new(n.max(x.iter().product()));
    source.from("x_", elem, Place::operand(0));
    source.to("y", elem, Place::result(0));
    source.to("indices", Elem::I64, Place::result(1));
    source.number("grid", grid.iter().product());
    source.signed("image", signed(image.iter().product::<usize>() as u64));
    let Loops { begin, heads, padded, inside, by_column } = loops(&mut source, &view, image, grid)?;
    let at: String = (0..image.len())
        .map(|a| format!(" + (first{a} + t{a} * dilation{a}) * step{a}"))
        .collect::<Vec<_>>()
        .concat();
    let wide = acc.wide();
    // With channels first, planes are contiguous; with channels last, neighboring elements are those of other
    // channels.
    let (plane, load) = match site.channels_last {
        false => ("i64 plane = i / grid; auto place = i;", format!("x_[plane * image{at}]")),
        true => {
            source.number("channels", x[1]);
            let plane = "i64 plane = i / channels / grid, channel = i % channels; auto place = i / channels;";
            (plane, format!("x_[(plane * image{at}) * channels + channel]"))
        }
    };
    let load = elem.load(&load);
    let text = |start: &str, each: &str, end: &str| {
        format!(
            "{plane}
    {begin}{wide} acc = {start}; i64 found = -1;
    {heads}{{ {wide} x = {load}; {each} }}
    {end}"
        )
    };
    let store = |end: &str| format!("y[i] = {};", elem.store(end));
    let body = match kind {
        OpKind::MaxPool => {
            let start = match elem {
                Elem::I64 => "(-9223372036854775807ll - 1)".into(),
                Elem::U64 | Elem::U32 | Elem::U16 | Elem::U8 => "0".into(),
                Elem::I32 => "(-2147483647ll - 1)".into(),
                Elem::I16 => "-32768".into(),
                Elem::I8 => "-128".into(),
                _ => number(acc, f64::NEG_INFINITY),
            };
            // The index of the first maximum.
            let index = match (site.wants(1), site.view.int("storage_order").unwrap_or(0)) {
                (false, _) => "0".to_owned(),
                (true, 0) => format!("0{at}"),
                (true, _) => by_column,
            };
            let each = format!(
                "if (found < 0 || x > acc || (x != x && acc == acc)) {{ acc = x; found = {index}; }}"
            );
            // A window without elements has no first element.
            let indices =
                if site.wants(1) { "indices[i] = plane * image + (found < 0 ? 0 : found);" } else { "" };
            text(&start, &each, &format!("{} {indices}", store("acc")))
        }
        OpKind::AveragePool => {
            let count = match site.view.int("count_include_pad").unwrap_or(0) {
                0 => inside,
                _ => padded,
            };
            text("0", "acc += x;", &store(&format!("acc / ({wide})({count})")))
        }
        _ => {
            let [term, end] = norm(acc, exponent(maker));
            text("0", &format!("acc += {term};"), &store(&end))
        }
    };
    Ok(staged(vec![source.each(maker, n, &body)?], &Scratch::default()))
}
