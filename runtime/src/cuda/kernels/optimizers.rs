//! The optimizers of ai.ampc: Adam, AdamW and SGD. Values that depend only on scalars are computed in f64 and rounded
//! to f32 once; elements are computed in f32, in the order of the optimizers' definitions.
//!
//! Nodes with the same attributes, element types and scalar operands form one group. A group gives the same bits as
//! its separate nodes, because the same statements compute a chunk of a tensor. Where nodes that keep the old running
//! statistics of a skipped step form groups in the same way.

use super::stage::Argument;
use super::tensors::{Tensor, Tensors};
use super::{Maker, Prepare};
use crate::backend::GroupSite;
use crate::cuda::Shared;
use crate::cuda::elements::VECTORS;
use crate::cuda::text::{Elem, f32_text, f64_text};
use crate::kernel::{KernelError, Prepared, Result, Site};
use ampc_ir::op::OpKind;
use ampc_ir::views::optimizer::{AdamView, AdamWMode, Momentum, OnOverflow, SgdView};
use ampc_ir::{DType, Value};
use std::fmt::Write;
use std::sync::Arc;

/// The kernels of this family.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    is_optimizer(kind).then_some(single)
}

pub(super) fn is_optimizer(kind: OpKind) -> bool {
    matches!(kind, OpKind::Adam | OpKind::AdamW | OpKind::SGD)
}

/// True for a Where of f32 with one condition for all elements, by which skipped steps keep the old states.
pub(super) fn is_selection(site: &Site<'_>) -> bool {
    site.kind() == OpKind::Where && selection(site).is_ok()
}

/// The number of elements that a thread updates at a time, if all tensors are aligned.
const LANES: usize = 4;

/// An operand or result of a node.
#[derive(Clone, Copy)]
enum Port {
    Operand(usize),
    Result(usize),
}

impl Port {
    fn argument(self) -> Argument {
        match self {
            Port::Operand(i) => Argument::operand(i),
            Port::Result(j) => Argument::result(j),
        }
    }
}

/// A tensor of a node that has the weights' dims.
#[derive(Clone, Copy)]
struct Field {
    name: &'static str,
    port: Port,
    elem: Elem,
}

impl Field {
    fn ty(self) -> String {
        match self.port {
            Port::Result(_) => format!("{}*", self.elem.stored()),
            Port::Operand(_) => format!("const {}*", self.elem.stored()),
        }
    }
}

/// A node as source text, with the operands and results that the text names.
pub(super) struct Optimizer {
    /// The number of weights.
    n: usize,
    /// The scalars: type, name, and index of the operand.
    scalars: Vec<(&'static str, &'static str, usize)>,
    fields: Vec<Field>,
    /// Statements before the loop over the elements of a chunk.
    before: String,
    /// Statements that update `w`, `m` and `v` of an element with the gradient `g_`.
    update: String,
    /// Pairs of a result and the operand that it may alias.
    in_place: Vec<(usize, usize)>,
}

impl Optimizer {
    /// Reads the optimizer of a node.
    ///
    /// # Errors
    /// If the node has no kernel.
    pub(super) fn read(site: &Site<'_>) -> Result<Optimizer> {
        match site.kind() {
            OpKind::Adam | OpKind::AdamW => adam(site),
            OpKind::SGD => sgd(site),
            OpKind::Where => selection(site),
            _ => Err(site.no_kernel()),
        }
    }

    /// True if the source text permits one launch for both nodes.
    pub(super) fn has_text_of(&self, other: &Optimizer) -> bool {
        let has_same_text = |(a, b): (&Field, &Field)| (a.name, a.elem) == (b.name, b.elem);
        self.before == other.before
            && self.update == other.update
            && self.fields.len() == other.fields.len()
            && self.fields.iter().zip(&other.fields).all(has_same_text)
    }

    /// The indices of scalar operands.
    pub(super) fn scalars(&self) -> impl Iterator<Item = usize> {
        self.scalars.iter().map(|&(_, _, operand)| operand)
    }

    /// The statements of a block.
    fn body(&self) -> String {
        let addresses: Vec<String> = self.fields.iter().map(|field| format!("(u64){}", field.name)).collect();
        format!(
            "{before}  bool aligned = (({addresses}) & 15) == 0;
  for (u64 at = from + threadIdx.x * {LANES}; at < to; at += blockDim.x * {LANES}) {{
    if (aligned && at + {LANES} <= to) {{ u64 i = at;
{vectors}    }} else for (u64 i = at; i < to && i < at + {LANES}; i++) {{
{singles}    }}
  }}
",
            before = self.before,
            addresses = addresses.join(" | "),
            vectors = self.piece(LANES),
            singles = self.piece(1),
        )
    }

    /// The statements for `lanes` elements from `i` on; they load all elements before the first store.
    fn piece(&self, lanes: usize) -> String {
        let mut text = String::new();
        let is_read = |field: &&Field| matches!(field.port, Port::Operand(_));
        for Field { name, .. } in self.fields.iter().filter(is_read) {
            let _ = writeln!(text, "      auto {name}_at = load<{lanes}>({name} + i);");
        }
        for Field { name, elem, .. } in self.fields.iter().filter(|field| !is_read(field)) {
            let _ = writeln!(text, "      Vector<{}, {lanes}> {name}_at;", elem.stored());
        }
        let _ = writeln!(text, "      for (int k = 0; k < {lanes}; k++) {{");
        for Field { name, elem, .. } in self.fields.iter().filter(is_read) {
            let number = elem.load(&format!("{name}_at.at[k]"));
            // The names of operands end in `s`: `ws` has the elements `w`.
            let _ = writeln!(text, "        float {} = {number};", name.trim_end_matches('s'));
        }
        let _ = writeln!(text, "{}", self.update);
        for Field { name, elem, .. } in self.fields.iter().filter(|field| !is_read(field)) {
            let number = elem.store(name.trim_end_matches("_next").trim_end_matches("_low"));
            let _ = writeln!(text, "        {name}_at.at[k] = {number};");
        }
        let _ = writeln!(text, "      }}");
        for Field { name, .. } in self.fields.iter().filter(|field| !is_read(field)) {
            let _ = writeln!(text, "      if ({name}) store({name} + i, {name}_at);");
        }
        text
    }
}

/// The kernel of one node.
fn single(maker: &Maker<'_>) -> Result<Prepared> {
    let node = Optimizer::read(maker.site)?;
    let in_place = node.in_place.clone();
    prepared(maker.shared, &[node], |_, port| port.argument(), &in_place)
}

/// The kernel of nodes with the same source text. The operands of the group are those of `group.operands`.
///
/// # Errors
/// If the nodes differ in source text or scalar operands.
pub(super) fn of_group(shared: &Arc<Shared>, group: &GroupSite<'_>) -> Result<Prepared> {
    let other = || KernelError::unsupported("groups of different optimizers");
    let nodes = group.sites.iter().map(Optimizer::read).collect::<Result<Vec<Optimizer>>>()?;
    let operand = |at: usize, i: usize| group.sites[at].view.operand(i);
    let result = |at: usize, j: usize| group.sites[at].view.data().result(j);
    for (at, node) in nodes.iter().enumerate() {
        if !node.has_text_of(&nodes[0]) || node.scalars().any(|i| operand(at, i) != operand(0, i)) {
            return Err(other());
        }
    }
    let within = |at: usize, port: Port| match port {
        Port::Operand(i) => operand(at, i).and_then(|value| group.operand(value)),
        Port::Result(j) => result(at, j).and_then(|value| group.result(value)),
    };
    let mut in_place = Vec::new();
    let read: Vec<Value> =
        group.sites.iter().flat_map(|site| site.view.data().operands()).flatten().copied().collect();
    for (at, node) in nodes.iter().enumerate() {
        for &(j, i) in &node.in_place {
            let places = (within(at, Port::Result(j)), within(at, Port::Operand(i)));
            // Blocks of other nodes may read an operand after it is overwritten.
            let is_alone =
                operand(at, i).is_some_and(|value| read.iter().filter(|&&v| v == value).count() == 1);
            if let (Some(result), Some(operand), true) = (places.0, places.1, is_alone) {
                in_place.push((result, operand));
            }
        }
    }
    if nodes
        .iter()
        .enumerate()
        .any(|(at, node)| node.scalars().any(|i| within(at, Port::Operand(i)).is_none()))
    {
        return Err(other());
    }
    let argument = |at: usize, port: Port| match (port, within(at, port)) {
        (Port::Operand(_), Some(i)) => Argument::operand(i),
        (Port::Result(_), Some(j)) => Argument::result(j),
        // Nothing outside the group reads the result.
        (_, None) => Argument::Number(0),
    };
    prepared(shared, &nodes, argument, &in_place)
}

/// The kernel of nodes with the same source text. `argument` maps an operand or result of a node to one of the
/// kernel.
fn prepared(
    shared: &Shared,
    nodes: &[Optimizer],
    argument: impl Fn(usize, Port) -> Argument,
    in_place: &[(usize, usize)],
) -> Result<Prepared> {
    let first = &nodes[0];
    let types: Vec<String> = first.fields.iter().map(|field| field.ty()).collect();
    let fields: Vec<(&str, &str)> =
        types.iter().zip(&first.fields).map(|(ty, field)| (&ty[..], field.name)).collect();
    let scalars: Vec<(&str, &str)> = first.scalars.iter().map(|&(ty, name, _)| (ty, name)).collect();
    let tensors = nodes.iter().enumerate().map(|(at, node)| Tensor {
        n: node.n,
        fields: node.fields.iter().map(|field| argument(at, field.port)).collect(),
    });
    let tensors: Vec<Tensor> = tensors.collect();
    let arguments: Vec<Argument> = first.scalars().map(|i| argument(0, Port::Operand(i))).collect();
    let body = first.body();
    let kernel = Tensors { functions: VECTORS, shared: &scalars, fields: &fields, body: &body };
    let launches = kernel.launches(shared, &arguments, &tensors)?;
    let (first, others): (Vec<_>, Vec<_>) = in_place.iter().partition(|&&(result, _)| result == 0);
    let first: Vec<usize> = first.into_iter().map(|(_, operand)| operand).collect();
    Ok(Prepared::new(move |io| launches.run(io)).in_place(&first).others_in_place(&others))
}

/// The field for the low-precision copy of the weights.
fn low_copy(w_lo: Option<DType>, j: usize, site: &Site<'_>) -> Result<Option<Field>> {
    let Some(dtype) = w_lo.filter(|_| site.wants(j)) else { return Ok(None) };
    let elem = Elem::float(dtype).ok_or_else(|| site.no_kernel())?;
    Ok(Some(Field { name: "w_low", port: Port::Result(j), elem }))
}

/// The element type of the gradient of a node.
fn gradient(site: &Site<'_>) -> Result<Elem> {
    Elem::float(site.dtype(1)?).ok_or_else(|| site.no_kernel())
}

fn read_field(name: &'static str, i: usize, elem: Elem) -> Field {
    Field { name, port: Port::Operand(i), elem }
}

fn written(name: &'static str, j: usize) -> Field {
    Field { name, port: Port::Result(j), elem: Elem::F32 }
}

fn selection(site: &Site<'_>) -> Result<Optimizer> {
    let dims = site.result_dims(0)?;
    let n = dims.iter().product();
    let has_one = site.dims(0)?.iter().product::<usize>() == 1;
    let is_whole = [1, 2].into_iter().all(|i| {
        let is_f32 = site.dtype(i).is_ok_and(|dtype| dtype == DType::F32);
        is_f32 && site.dims(i).is_ok_and(|own| own == dims)
    });
    if !has_one || !is_whole || n < 2 {
        return Err(site.no_kernel());
    }
    Ok(Optimizer {
        n,
        scalars: vec![("const u8*", "condition", 0)],
        fields: vec![read_field("xs", 1, Elem::F32), read_field("ys", 2, Elem::F32), written("w_next", 0)],
        before: String::new(),
        update: "        float w = *condition ? x : y;".into(),
        in_place: vec![(0, 1), (0, 2)],
    })
}

#[expect(clippy::cast_possible_truncation, reason = "rounding")]
fn rounded(x: f64) -> String {
    f32_text(x as f32)
}

fn adam(site: &Site<'_>) -> Result<Optimizer> {
    let view = AdamView::read(&site.view)?;
    let correction = |beta: f64| match view.bias_correction {
        true => format!("1.0 - pow({}, t)", f64_text(beta)),
        false => "1.0".into(),
    };
    let size = match view.mode {
        None | Some(AdamWMode::Torch) => "lr / correction1",
        Some(AdamWMode::Hf) => "lr * root2 / correction1",
    };
    let decay = match view.mode {
        None => f64_text(view.weight_decay),
        Some(AdamWMode::Torch | AdamWMode::Hf) => format!("lr * {}", f64_text(view.weight_decay)),
    };
    let (new1, old1) = (rounded(1.0 - view.beta1), rounded(view.beta1));
    let (new2, old2, epsilon) = (rounded(1.0 - view.beta2), rounded(view.beta2), rounded(view.epsilon));
    let update = match view.mode {
        None => format!(
            "g = g + w * decay; m = m + (g - m) * {new1}; v = v * {old2} + g * {new2} * g;
          w = w - m * size / (sqrtf(v) / root + {epsilon});"
        ),
        Some(AdamWMode::Torch) => format!(
            "m = m + (g - m) * {new1}; v = v * {old2} + g * {new2} * g;
          w = w * kept - m * size / (sqrtf(v) / root + {epsilon});"
        ),
        Some(AdamWMode::Hf) => format!(
            "m = m * {old1} + g * {new1}; v = v * {old2} + g * {new2} * g;
          w = w - m * size / (sqrtf(v) + {epsilon}); w = w - w * decay;"
        ),
    };
    let before = format!(
        "  __shared__ float shared[4];
  if (threadIdx.x == 0) {{
    double lr = *rate, t = (double)(*count + 1 > 1 ? *count + 1 : 1);
    double correction1 = {correction1}, root2 = sqrt({correction2}), decay = {decay};
    shared[0] = (float)({size}); shared[1] = (float)root2; shared[2] = (float)(1.0 - decay); shared[3] = (float)decay;
  }}
  __syncthreads();
  float size = shared[0], root = shared[1], kept = shared[2], decay = shared[3], factor = *mult;
  bool proceeds = *found == 0.0f;
",
        correction1 = correction(view.beta1),
        correction2 = correction(view.beta2),
    );
    let mut fields = vec![
        read_field("ws", 0, Elem::F32),
        read_field("gs", 1, gradient(site)?),
        read_field("ms", 2, Elem::F32),
        read_field("vs", 3, Elem::F32),
        written("w_next", 0),
        written("m_next", 1),
        written("v_next", 2),
    ];
    fields.extend(low_copy(view.w_lo, 3, site)?);
    Ok(Optimizer {
        n: site.dims(0)?.iter().product(),
        scalars: vec![
            ("const float*", "rate", 4),
            ("const float*", "mult", 5),
            ("const i64*", "count", 6),
            ("const float*", "found", 7),
        ],
        fields,
        before,
        update: format!("        if (proceeds) {{ g = g * factor;\n          {update} }}"),
        in_place: vec![(0, 0), (1, 2), (2, 3)],
    })
}

fn sgd(site: &Site<'_>) -> Result<Optimizer> {
    let view = SgdView::read(&site.view)?;
    let momentum = rounded(view.momentum);
    let has_momentum = view.direction != Momentum::Plain;
    let direction = match view.direction {
        Momentum::Plain => "g".into(),
        Momentum::Momentum => "v".into(),
        Momentum::Nesterov => format!("g + v * {momentum}"),
    };
    let proceeds = if view.on_overflow == OnOverflow::Skip { "proceeds" } else { "true" };
    let old = match has_momentum {
        true => format!("v = is_first ? g : v * {momentum} + g * {};", rounded(1.0 - view.dampening)),
        false => String::new(),
    };
    let update = format!(
        "        if ({proceeds}) {{ g = proceeds ? g * factor : 0.0f; g = g + w * {decay}; {old} w = w - ({direction}) * lr; }}",
        decay = rounded(view.weight_decay),
    );
    let mut fields = vec![read_field("ws", 0, Elem::F32), read_field("gs", 1, gradient(site)?)];
    let mut in_place = vec![(0, 0)];
    if has_momentum {
        fields.push(read_field("vs", 6, Elem::F32));
        in_place.push((1, 6));
    }
    fields.push(written("w_next", 0));
    if has_momentum {
        fields.push(written("v_next", 1));
    }
    fields.extend(low_copy(view.w_lo, 2, site)?);
    Ok(Optimizer {
        n: site.dims(0)?.iter().product(),
        scalars: vec![
            ("const float*", "rate", 2),
            ("const float*", "mult", 3),
            ("const i64*", "count", 4),
            ("const float*", "found", 5),
        ],
        fields,
        before:
            "  float lr = *rate, factor = *mult;\n  bool is_first = *count < 1, proceeds = *found == 0.0f;\n"
                .into(),
        update,
        in_place,
    })
}
