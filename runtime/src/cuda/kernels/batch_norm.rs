//! Normalizations by reduced statistics: BatchNormalization, InstanceNormalization, GroupNormalization,
//! LpNormalization, MeanVarianceNormalization; and LRN.
//!
//! Moments are computed in one pass ([`super::moments`]), and a second pass normalizes.

mod channel;

use self::channel::{Channel, blocks_of_channels};
use super::fold::{Fold, function, wide_float};
use super::moments::{MOMENTS, Moments, moments};
use super::reduce::Reduction;
use super::stage::{Place, Scratch, Source, Stage, staged};
use super::{Maker, Prepare};
use crate::cuda::elements::{VECTORS, reciprocal};
use crate::cuda::launch::{THREADS, blocks_for};
use crate::cuda::text::{Elem, f32_text, f64_text};
use crate::kernel::{KernelError, Prepared, Result};
use ampc_ir::DType;
use ampc_ir::op::OpKind;
use ampc_ir::views::norm::{BatchNormView, ChannelNormView, lp_normalization};
use ampc_ir::views::reduce::Axes;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    Some(match kind {
        OpKind::BatchNormalization => batch_norm,
        OpKind::GroupNormalization | OpKind::InstanceNormalization => channel_norm,
        OpKind::LpNormalization => lp_norm,
        OpKind::LRN => lrn,
        OpKind::MeanVarianceNormalization => mean_variance_norm,
        _ => return None,
    })
}

/// A literal of the accumulator type.
fn number(acc: Elem, x: f64) -> String {
    #[expect(clippy::cast_possible_truncation, reason = "rounding")]
    if acc == Elem::F64 { f64_text(x) } else { f32_text(x as f32) }
}

fn typedef(acc: Elem) -> String {
    format!("typedef {} A;\n", acc.wide())
}

fn batch_norm(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let mut dims = site.dims(0)?;
    if site.channels_last {
        // All positions of all images become the batch, with one element per channel.
        dims = [dims[..dims.len() - 1].iter().product(), dims[dims.len() - 1]].into_iter().collect();
    }
    let view = BatchNormView::read(&site.view);
    let elem = maker.real(0)?;
    let acc = wide_float(elem);
    let behind = |axis: usize| dims.get(axis..).unwrap_or_default().iter().product();
    // A vector is a batch with one channel. Without `spatial`, each element after the batch axis is a channel.
    let (channels, run): (usize, usize) = match (view.spatial, dims.get(1)) {
        (true, Some(&channels)) => (channels, behind(2)),
        (true, None) => (1, 1),
        (false, _) => (behind(1), 1),
    };
    let batch = dims.first().copied().unwrap_or(1);
    let (mut scratch, mut stages) = (Scratch::default(), Vec::new());
    let n: usize = dims.iter().product();
    let mut source = Source::new(n);
    source.function(&format!("{VECTORS}{}", typedef(acc)));
    source.from("x", elem, Place::operand(0));
    source.to("y", elem, Place::result(0));
    source.number("n", n);
    source.number("channels", channels);
    source.number("run", run);
    let read = if view.training {
        let dims = [batch, channels, run];
        let found = moments(maker, &dims, &|axis| axis != 1, elem, &mut scratch, &mut stages)?;
        let places = [(); 2].map(|()| scratch.part(channels * acc.bytes()));
        stages.push(running(maker, &view, acc, channels, (&found, places))?);
        found.read(&mut source, acc);
        source.from("factors", acc, places[0]);
        source.from("offsets", acc, places[1]);
        "A mean = means[c], factor = factors[c], offset = offsets[c];".to_owned()
    } else {
        source.from("means", maker.real(3)?, Place::operand(3));
        source.from("variances", maker.real(4)?, Place::operand(4));
        let read = format!(
            "A mean = {}, rest = 0, variance = {};",
            maker.real(3)?.load("means[c]"),
            maker.real(4)?.load("variances[c]")
        );
        read + &coefficients(maker, &mut source, acc, view.epsilon)?
    };
    let lanes = 16 / elem.bytes();
    source.signed("run_by", reciprocal(run).cast_signed());
    source.signed("channels_by", reciprocal(channels).cast_signed());
    let normalized = |vector: usize| {
        let Channel { before, of_vector, of_element, behind } =
            Channel::new(source.index, site.channels_last, &read);
        format!(
            "{{
    constexpr int V = {vector};{before}
    for (u64 at = first(); at < n / V; at += step()) {{
      {of_vector}
      Vector<{stored}, V> v = load<V>(x + at * V);
      #pragma unroll
      for (int k = 0; k < V; k++) {{
        {of_element}
        A z = ((A){load} - mean) * factor + offset;
        v.at[k] = {store};
      }}
      store(y + at * V, v);{behind}
    }}
  }}",
            stored = elem.stored(),
            load = elem.load("v.at[k]"),
            store = elem.store("z"),
        )
    };
    let multiple = if site.channels_last { "channels" } else { "run" };
    let body = format!(
        "  if ({multiple} % {lanes} == 0 && (((u64)x | (u64)y) & 15) == 0) {} else {}",
        normalized(lanes),
        normalized(1)
    );
    let extent = if site.channels_last { channels } else { run };
    let lanes = if extent.is_multiple_of(lanes) { lanes } else { 1 };
    let blocks = match site.channels_last {
        true => blocks_of_channels(n / lanes, lanes, channels),
        false => blocks_for(n / lanes),
    };
    stages.push(source.launch(maker, &body, [blocks, THREADS as usize])?);
    Ok(staged(stages, &scratch).in_place(&[0]))
}

/// Declares scale and bias. The returned statements compute `factor` and `offset` of channel `c` from its moments.
fn coefficients(maker: &Maker<'_>, source: &mut Source, acc: Elem, epsilon: f32) -> Result<String> {
    source.from("scales", maker.real(1)?, Place::operand(1));
    source.from("biases", maker.real(2)?, Place::operand(2));
    Ok(format!(
        "
      A factor = (A){} / {}(variance + {}), offset = (A){} - rest * factor;",
        maker.real(1)?.load("scales[c]"),
        function(acc, "sqrt"),
        number(acc, f64::from(epsilon)),
        maker.real(2)?.load("biases[c]"),
    ))
}

/// The launch that computes the running and saved statistics (results 1 to 4), and the factors and offsets of the
/// channels.
fn running(
    maker: &Maker<'_>,
    view: &BatchNormView,
    acc: Elem,
    channels: usize,
    (moments, [factors, offsets]): (&Moments, [Place; 2]),
) -> Result<Stage> {
    let site = maker.site;
    let mut source = Source::new(channels);
    source.function(&typedef(acc));
    let coefficients = coefficients(maker, &mut source, acc, view.epsilon)?;
    source.to("factors", acc, factors);
    source.to("offsets", acc, offsets);
    let mut body = format!(
        "{} c = i;\n    {MOMENTS}{coefficients}\n    factors[c] = factor; offsets[c] = offset;\n",
        source.index
    );
    moments.read(&mut source, acc);
    let momentum = number(acc, f64::from(view.momentum));
    for (j, batch) in [(0, "(mean + rest)"), (1, "variance")] {
        let from = maker.real(3 + j)?;
        source.from(&format!("old{j}"), from, Place::operand(3 + j));
        let old = from.load(&format!("old{j}[c]"));
        let one = number(acc, 1.0);
        let mixed = format!("(A){old} * {momentum} + {batch} * ({one} - {momentum})");
        for (result, value) in [(1 + j, mixed.as_str()), (3 + j, batch)] {
            if site.wants(result) {
                let to = Elem::number(site.result_dtype(result)?).ok_or_else(|| site.no_kernel())?;
                source.to(&format!("new{result}"), to, Place::result(result));
                body += &format!("    new{result}[c] = {};\n", to.store(value));
            }
        }
    }
    source.each(maker, channels, &body)
}

fn channel_norm(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let view = ChannelNormView::read(&site.view)?;
    let dims = site.dims(0)?;
    let elem = maker.real(0)?;
    let acc = wide_float(elem);
    if view.stash == DType::F64 && acc != Elem::F64 {
        return Err(site.no_kernel());
    }
    let channels = dims[1];
    let groups = view.groups.map_or(channels, |g| usize::try_from(g).unwrap_or(usize::MAX));
    let run: usize = dims[2..].iter().product();
    let per = channels / groups.max(1);
    let (mut scratch, mut stages) = (Scratch::default(), Vec::new());
    let rows = [dims[0] * groups, per * run];
    let found = moments(maker, &rows, &|axis| axis == 1, elem, &mut scratch, &mut stages)?;
    let n: usize = dims.iter().product();
    let mut source = Source::new(n);
    source.function(&typedef(acc));
    source.from("x", elem, Place::operand(0));
    source.from("scales", maker.real(1)?, Place::operand(1));
    source.from("biases", maker.real(2)?, Place::operand(2));
    source.to("y", elem, Place::result(0));
    source.number("length", rows[1]);
    source.number("each", if view.per_group { rows[1] } else { run });
    source.number("coefficients", if view.per_group { groups } else { channels });
    found.read(&mut source, acc);
    let body = format!(
        "{index} c = i / length, k = i / each % coefficients;
    {MOMENTS}
    A factor = (A){scale} / {sqrt}(variance + {epsilon});
    A z = ((A){load} - mean - rest) * factor + (A){bias};
    y[i] = {store};",
        index = source.index,
        scale = maker.real(1)?.load("scales[k]"),
        bias = maker.real(2)?.load("biases[k]"),
        epsilon = number(acc, f64::from(view.epsilon)),
        sqrt = function(acc, "sqrt"),
        load = elem.load("x[i]"),
        store = elem.store("z"),
    );
    stages.push(source.each(maker, n, &body)?);
    Ok(staged(stages, &scratch).in_place(&[0]))
}

/// The index of an element's statistics along the axes that are kept.
fn kept_index(source: &mut Source, dims: &[usize], is_reduced: &dyn Fn(usize) -> bool) -> String {
    let mut steps = vec![0; dims.len()];
    let mut step = 1i64;
    for axis in (0..dims.len()).rev().filter(|&axis| !is_reduced(axis)) {
        steps[axis] = step;
        step = step.saturating_mul(i64::try_from(dims[axis]).unwrap_or(i64::MAX));
    }
    source.position(dims, &crate::cuda::text::Steps { first: 0, steps }, "i")
}

/// `x / ‖x‖` along one axis, or 0 if the norm is 0.
fn lp_norm(maker: &Maker<'_>) -> Result<Prepared> {
    let dims = maker.site.dims(0)?;
    let (axis, p) = lp_normalization(&maker.site.view)?;
    let axis = axis.ok_or(KernelError::NotYet)?;
    let elem = maker.real(0)?;
    let acc = wide_float(elem);
    let fold = match p {
        1 => Fold::sum(acc, &format!("{}(x)", function(acc, "fabs")), "acc"),
        _ => Fold::sum(acc, "x * x", &format!("{}(acc)", function(acc, "sqrt"))),
    };
    let n: usize = dims.iter().product();
    let mut scratch = Scratch::default();
    let norms = scratch.part(n.checked_div(dims[axis]).unwrap_or(0) * acc.bytes());
    let is_reduced = |i: usize| i == axis;
    let reduction = Reduction {
        dims: &dims,
        is_reduced: &is_reduced,
        from: (Place::operand(0), elem),
        shift: None,
        to: (norms, acc),
    };
    let mut stages = reduction.stages(maker, &fold, &mut scratch)?;
    let mut source = Source::new(n);
    source.function(&typedef(acc));
    source.from("x", elem, Place::operand(0));
    source.from("norms", acc, norms);
    source.to("y", elem, Place::result(0));
    let c = kept_index(&mut source, &dims, &is_reduced);
    let body = format!(
        "A norm = norms[{c}]; y[i] = {};",
        elem.store(&format!("norm == 0 ? (A)0 : (A){} / norm", elem.load("x[i]")))
    );
    stages.push(source.each(maker, n, &body)?);
    Ok(staged(stages, &scratch).in_place(&[0]))
}

/// `(x - mean) / (√var + 1e-9)`, as in the operator's function body.
fn mean_variance_norm(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let dims = site.dims(0)?;
    let axes = Axes::of(site.view.int_list("axes").unwrap_or(&[0, 2, 3]), dims.len())?;
    let elem = maker.real(0)?;
    let acc = wide_float(elem);
    let is_reduced = |axis: usize| axes.has(axis);
    let (mut scratch, mut stages) = (Scratch::default(), Vec::new());
    let found = moments(maker, &dims, &is_reduced, elem, &mut scratch, &mut stages)?;
    let n: usize = dims.iter().product();
    let mut source = Source::new(n);
    source.function(&typedef(acc));
    source.from("x", elem, Place::operand(0));
    found.read(&mut source, acc);
    source.to("y", elem, Place::result(0));
    let c = kept_index(&mut source, &dims, &is_reduced);
    let body = format!(
        "i64 c = {c};
    {MOMENTS}
    y[i] = {};",
        elem.store(&format!(
            "((A){} - mean - rest) / ({}(variance) + {})",
            elem.load("x[i]"),
            function(acc, "sqrt"),
            number(acc, 1e-9)
        ))
    );
    stages.push(source.each(maker, n, &body)?);
    Ok(staged(stages, &scratch).in_place(&[0]))
}

/// `x / (bias + alpha / size · Σ x²)^beta`, with the sum over neighboring channels.
fn lrn(maker: &Maker<'_>) -> Result<Prepared> {
    let site = maker.site;
    let dims = site.dims(0)?;
    let elem = maker.real(0)?;
    let acc = wide_float(elem);
    let size = site.view.int("size").unwrap_or(1).max(1);
    let float = |name, default: f32| f64::from(site.view.float(name).unwrap_or(default));
    #[expect(clippy::cast_precision_loss, reason = "a divisor")]
    let alpha = float("alpha", 1e-4) / size as f64;
    let n: usize = dims.iter().product();
    let mut source = Source::new(n);
    source.function(&typedef(acc));
    source.from("x", elem, Place::operand(0));
    source.to("y", elem, Place::result(0));
    source.signed("channels", i64::try_from(dims[1]).unwrap_or(i64::MAX));
    source.signed("run", i64::try_from(dims[2..].iter().product::<usize>()).unwrap_or(i64::MAX));
    source.signed("before", (size - 1) / 2);
    source.signed("behind", size / 2);
    let body = format!(
        "i64 c = i / run % channels, low = c < before ? -c : -before, high = channels - 1 - c < behind ? channels - 1 - c : behind;
    A sum = 0;
    for (i64 d = low; d <= high; d++) {{ A z = (A){near}; sum += z * z; }}
    y[i] = {store};",
        near = elem.load("x[(i64)i + d * run]"),
        store = elem.store(&format!(
            "(A){} / {}({} + {} * sum, {})",
            elem.load("x[i]"),
            function(acc, "pow"),
            number(acc, float("bias", 1.0)),
            number(acc, alpha),
            number(acc, float("beta", 0.75)),
        )),
    );
    Ok(staged(vec![source.each(maker, n, &body)?], &Scratch::default()))
}
