//! The results of operators on small constants. Results equal those of a runtime, bit by bit: movements,
//! arithmetic on integers, and correctly rounded operations on floats, computed in f64 and rounded once.

mod small;

pub(crate) use self::small::Small;

use self::small::{MAX_ELEMENTS, Numbers, broadcast_dims, broadcast_to, count, each_place, number_of};
use ampc_ir::infer::{Facts, Int};
use ampc_ir::op::OpKind;
use ampc_ir::views::reduce::ReduceView;
use ampc_ir::views::{
    Axes, CastView, ConcatView, FlattenView, NodeView, Part, Parts, ReshapeView, SliceView, SplitView,
    TileView, TransposeView, distinct_axes, normalize_axis, slice_range,
};
use ampc_ir::{AttrValue, DType, Module, Value};

/// The elements of an integer list that inference knows.
pub(crate) fn known_ints(module: &Module, facts: &Facts, value: Value) -> Option<Small> {
    let ints: Option<Vec<i64>> = facts.ints(value)?.iter().copied().map(Int::known).collect();
    let (list, ty) = (ints?, module.value(value).ty.as_tensor()?);
    let dims = ty.shape.to_known()?;
    let is_whole = list.len() as u64 == dims.iter().product::<u64>() && list.len() as u64 <= MAX_ELEMENTS;
    is_whole.then(|| Small::ints(ty.dtype, dims.to_vec(), list))
}

/// The results of a node whose operands are constants, if it is of an operator that is computed and they are small.
/// `operand` reads an operand.
pub(crate) fn evaluate(view: &NodeView<'_>, operand: &dyn Fn(usize) -> Option<Small>) -> Option<Vec<Small>> {
    let kind = view.kind();
    let one = match kind {
        OpKind::Identity => operand(0),
        OpKind::Cast => cast(&operand(0)?, CastView::read(view).ok()?.to?),
        OpKind::CastLike => cast(&operand(0)?, view.dtype(1)?),
        OpKind::Reshape => reshape(view, &operand(0)?),
        OpKind::Flatten => flatten(view, &operand(0)?),
        OpKind::Squeeze => squeeze(view, &operand(0)?),
        OpKind::Unsqueeze => unsqueeze(view, &operand(0)?),
        OpKind::Transpose => transpose(view, &operand(0)?),
        OpKind::Slice => slice(view, &operand(0)?),
        OpKind::Gather => gather(view, &operand(0)?, &operand(1)?),
        OpKind::Concat => concat(view, &(0..view.n_operands()).map(operand).collect::<Option<Vec<_>>>()?),
        OpKind::Expand => expand(&operand(0)?, operand(1)?.as_ints()?),
        OpKind::Tile => tile(view, &operand(0)?),
        OpKind::ConstantOfShape => filled(view, operand(0)?.as_ints()?),
        OpKind::NonZero => non_zero(&operand(0)?),
        OpKind::Range => range(&operand(0)?, &operand(1)?, &operand(2)?),
        OpKind::Split => return split(view, &operand(0)?),
        OpKind::ReduceProd | OpKind::ReduceSum | OpKind::ReduceMax | OpKind::ReduceMin => {
            reduce(view, &operand(0)?)
        }
        _ if view.n_operands() == 1 => unary(kind, &operand(0)?),
        _ if is_elementwise(kind) => {
            elementwise(kind, &(0..view.n_operands()).map(operand).collect::<Option<Vec<_>>>()?)
        }
        _ => None,
    };
    Some(vec![one?])
}

fn cast(x: &Small, to: DType) -> Option<Small> {
    let is_float = matches!(to, DType::F16 | DType::BF16 | DType::F32 | DType::F64);
    let is_int = to.is_integer() && to.bits().is_some_and(|bits| bits >= 8);
    #[expect(clippy::cast_precision_loss, reason = "rounded to a float, as a cast is")]
    let numbers = match &x.numbers {
        // Through f64, which is exact there.
        Numbers::Ints(list) if is_float && list.iter().all(|n| n.unsigned_abs() <= 1 << 53) => {
            Numbers::Floats(list.iter().map(|&n| n as f64).collect())
        }
        Numbers::Ints(list) if to == DType::Bool => {
            Numbers::Ints(list.iter().map(|&n| i64::from(n != 0)).collect())
        }
        Numbers::Ints(list) if is_int => Numbers::Ints(list.clone()),
        Numbers::Floats(list) if to == DType::Bool => {
            Numbers::Ints(list.iter().map(|&v| i64::from(v != 0.0)).collect())
        }
        Numbers::Floats(list) if is_int => {
            Numbers::Ints(list.iter().map(|&v| ampc_ir::views::whole(v.trunc())).collect::<Option<_>>()?)
        }
        Numbers::Floats(list) if is_float => Numbers::Floats(list.clone()),
        Numbers::Ints(_) | Numbers::Floats(_) => return None,
    };
    Some(Small { dtype: to, dims: x.dims.clone(), numbers })
}

fn reshape(view: &NodeView<'_>, x: &Small) -> Option<Small> {
    let target = ReshapeView::read(view);
    let list: Vec<i64> = target.target?.iter().map(|n| n.known()).collect::<Option<_>>()?;
    let mut dims = Vec::with_capacity(list.len());
    let mut free = None;
    for (i, &n) in list.iter().enumerate() {
        dims.push(match n {
            0 if !target.allow_zero => *x.dims.get(i)?,
            -1 => {
                free = Some(i);
                1
            }
            n => u64::try_from(n).ok()?,
        });
    }
    if let Some(i) = free {
        dims[i] = (x.len() as u64).checked_div(dims.iter().product())?;
    }
    x.with_dims(dims)
}

fn flatten(view: &NodeView<'_>, x: &Small) -> Option<Small> {
    let (outer, inner) = x.dims.split_at(FlattenView::read(view).split(x.dims.len()).ok()?);
    x.with_dims(vec![outer.iter().product(), inner.iter().product()])
}

fn squeeze(view: &NodeView<'_>, x: &Small) -> Option<Small> {
    let gone = match Axes::read(view, 1) {
        Axes::Absent => (0..x.dims.len()).filter(|&axis| x.dims[axis] == 1).collect(),
        Axes::Known(axes) => distinct_axes(&axes, x.dims.len(), &Part::Node).ok()?,
        Axes::Unknown(_) => return None,
    };
    let kept = (0..x.dims.len()).filter(|axis| !gone.contains(axis)).map(|axis| x.dims[axis]);
    x.with_dims(kept.collect())
}

fn unsqueeze(view: &NodeView<'_>, x: &Small) -> Option<Small> {
    let Axes::Known(axes) = Axes::read(view, 1) else { return None };
    let rank = x.dims.len() + axes.len();
    let new = distinct_axes(&axes, rank, &Part::Node).ok()?;
    let mut old = x.dims.iter();
    let dims = (0..rank).map(|axis| if new.contains(&axis) { Some(1) } else { old.next().copied() });
    x.with_dims(dims.collect::<Option<_>>()?)
}

fn transpose(view: &NodeView<'_>, x: &Small) -> Option<Small> {
    let perm = TransposeView::read(view).perm(x.dims.len()).ok()?;
    let dims: Vec<u64> = perm.iter().map(|&axis| x.dims[axis]).collect();
    let places = each_place(&dims)?;
    let from = |place: &Vec<u64>| {
        let mut source = vec![0; place.len()];
        perm.iter().zip(place).for_each(|(&axis, &at)| source[axis] = at);
        number_of(&source, &x.dims)
    };
    x.at(dims, &places.iter().map(from).collect::<Vec<_>>())
}

fn slice(view: &NodeView<'_>, x: &Small) -> Option<Small> {
    let slice = SliceView::read(view);
    let known = |list: &[ampc_ir::infer::Int]| list.iter().map(|n| n.known()).collect::<Option<Vec<i64>>>();
    let (starts, ends) = (known(&slice.starts?)?, known(&slice.ends?)?);
    let steps = match slice.steps? {
        None => vec![1; starts.len()],
        Some(steps) => known(&steps)?,
    };
    let axes = match slice.axes {
        Axes::Absent => (0..starts.len()).collect(),
        Axes::Known(axes) => distinct_axes(&axes, x.dims.len(), &Part::Node).ok()?,
        Axes::Unknown(_) => return None,
    };
    let (mut dims, mut moves) = (x.dims.clone(), vec![(0i128, 1i128); x.dims.len()]);
    for (i, &axis) in axes.iter().enumerate() {
        let step = *steps.get(i).filter(|&&step| step != 0)?;
        let (start, n) = slice_range(*x.dims.get(axis)?, *starts.get(i)?, *ends.get(i)?, step);
        dims[axis] = u64::try_from(n).ok()?;
        moves[axis] = (start, step.into());
    }
    let mut numbers = Vec::new();
    for place in each_place(&dims)? {
        let source = place.iter().zip(&moves).map(|(&at, &(start, step))| start + i128::from(at) * step);
        let source: Vec<u64> = source.map(u64::try_from).collect::<Result<_, _>>().ok()?;
        numbers.push(number_of(&source, &x.dims));
    }
    x.at(dims, &numbers)
}

fn gather(view: &NodeView<'_>, x: &Small, indices: &Small) -> Option<Small> {
    let axis = normalize_axis(view.int("axis").unwrap_or(0), x.dims.len(), Part::Node).ok()?;
    let n = i64::try_from(x.dims[axis]).ok()?;
    let list = indices.as_ints()?;
    let front = |&i: &i64| u64::try_from(if i < 0 { i + n } else { i }).ok().filter(|&i| i < x.dims[axis]);
    let list: Vec<u64> = list.iter().map(front).collect::<Option<_>>()?;
    let dims: Vec<u64> =
        x.dims[..axis].iter().chain(&indices.dims).chain(&x.dims[axis + 1..]).copied().collect();
    let behind = axis + indices.dims.len();
    let from = |place: &Vec<u64>| {
        let at = list[number_of(&place[axis..behind], &indices.dims)];
        let source: Vec<u64> =
            place[..axis].iter().copied().chain([at]).chain(place[behind..].iter().copied()).collect();
        number_of(&source, &x.dims)
    };
    x.at(dims.clone(), &each_place(&dims)?.iter().map(from).collect::<Vec<_>>())
}

fn concat(view: &NodeView<'_>, parts: &[Small]) -> Option<Small> {
    let first = parts.first()?;
    let axis = normalize_axis(ConcatView::read(view).ok()?.axis, first.dims.len(), Part::Node).ok()?;
    if parts.iter().any(|part| part.dtype != first.dtype || part.dims.len() != first.dims.len()) {
        return None;
    }
    let mut dims = first.dims.clone();
    dims[axis] = parts.iter().map(|part| part.dims[axis]).sum();
    let (mut ints, mut floats) = (Vec::new(), Vec::new());
    for mut place in each_place(&dims)? {
        let part = parts.iter().find(|part| {
            let is_here = place[axis] < part.dims[axis];
            place[axis] -= if is_here { 0 } else { part.dims[axis] };
            is_here
        })?;
        let number = number_of(&place, &part.dims);
        match &part.numbers {
            Numbers::Ints(list) => ints.push(*list.get(number)?),
            Numbers::Floats(list) => floats.push(*list.get(number)?),
        }
    }
    let numbers = if first.as_ints().is_some() { Numbers::Ints(ints) } else { Numbers::Floats(floats) };
    Some(Small { dtype: first.dtype, dims, numbers })
}

fn expand(x: &Small, target: &[i64]) -> Option<Small> {
    let target: Vec<u64> = target.iter().map(|&n| u64::try_from(n).ok()).collect::<Option<_>>()?;
    let dims = broadcast_dims(&[&x.dims, &target])?;
    x.at(dims.clone(), &broadcast_to(&x.dims, &dims)?)
}

fn tile(view: &NodeView<'_>, x: &Small) -> Option<Small> {
    let TileView::All(Some(repeats)) = TileView::read(view) else { return None };
    if repeats.len() != x.dims.len() {
        return None;
    }
    let mut dims = Vec::with_capacity(x.dims.len());
    for (&dim, repeat) in x.dims.iter().zip(repeats.iter()) {
        dims.push(dim.checked_mul(u64::try_from(repeat.known()?).ok()?)?);
    }
    let from = |place: &Vec<u64>| {
        let source: Vec<u64> = place.iter().zip(&x.dims).map(|(&at, &dim)| at % dim).collect();
        number_of(&source, &x.dims)
    };
    x.at(dims.clone(), &each_place(&dims)?.iter().map(from).collect::<Vec<_>>())
}

fn filled(view: &NodeView<'_>, shape: &[i64]) -> Option<Small> {
    let fill = match view.attr("value") {
        Some(AttrValue::Tensor(data)) => Small::read(data)?,
        Some(_) => return None,
        None => Small { dtype: DType::F32, dims: vec![1], numbers: Numbers::Floats(vec![0.0]) },
    };
    let dims: Vec<u64> = shape.iter().map(|&n| u64::try_from(n).ok()).collect::<Option<_>>()?;
    let n = count(&dims)?;
    fill.at(dims, &vec![0; n])
}

fn non_zero(x: &Small) -> Option<Small> {
    let is_set = |i: usize| match &x.numbers {
        Numbers::Ints(list) => list[i] != 0,
        Numbers::Floats(list) => list[i] != 0.0,
    };
    if x.dims.is_empty() {
        return None;
    }
    let found: Vec<Vec<u64>> =
        each_place(&x.dims)?.into_iter().enumerate().filter(|&(i, _)| is_set(i)).map(|(_, at)| at).collect();
    let rows = (0..x.dims.len()).flat_map(|axis| found.iter().map(move |at| at[axis]));
    let list = rows.map(i64::try_from).collect::<Result<_, _>>().ok()?;
    Some(Small::ints(DType::I64, vec![x.dims.len() as u64, found.len() as u64], list))
}

fn range(start: &Small, limit: &Small, delta: &Small) -> Option<Small> {
    let number = |x: &Small| x.as_ints().and_then(|list| list.first().copied()).map(i128::from);
    let (from, to, step) = (number(start)?, number(limit)?, number(delta).filter(|&step| step != 0)?);
    let n = ((to - from + step - step.signum()) / step).max(0);
    let n = count(&[u64::try_from(n).ok()?])?;
    let list = (0..n as i128).map(|i| i64::try_from(from + i * step).ok()).collect::<Option<_>>()?;
    Some(Small::ints(start.dtype, vec![n as u64], list))
}

fn split(view: &NodeView<'_>, x: &Small) -> Option<Vec<Small>> {
    let split = SplitView::read(view).ok()?;
    let axis = normalize_axis(split.axis, x.dims.len(), Part::Node).ok()?;
    let (n, whole) = (view.n_results() as u64, x.dims[axis]);
    let sizes: Vec<u64> = match split.parts {
        Parts::Sizes(sizes) => sizes.iter().map(|n| u64::try_from(n.known()?).ok()).collect::<Option<_>>()?,
        Parts::Equal | Parts::Ceil if n > 0 => {
            let each = whole.div_ceil(n);
            (0..n).map(|i| each.min(whole.saturating_sub(i * each))).collect()
        }
        Parts::Equal | Parts::Ceil | Parts::Unknown => return None,
    };
    if sizes.len() as u64 != n || sizes.iter().try_fold(0u64, |sum, &size| sum.checked_add(size))? != whole {
        return None;
    }
    let mut start = 0;
    let mut parts = Vec::with_capacity(sizes.len());
    for size in sizes {
        let mut dims = x.dims.clone();
        dims[axis] = size;
        let from = |place: &Vec<u64>| {
            let mut source = place.clone();
            source[axis] += start;
            number_of(&source, &x.dims)
        };
        parts.push(x.at(dims.clone(), &each_place(&dims)?.iter().map(from).collect::<Vec<_>>())?);
        start += size;
    }
    Some(parts)
}

/// Reductions of integers, and maxima and minima of floats, which do not depend on the order.
fn reduce(view: &NodeView<'_>, x: &Small) -> Option<Small> {
    let reduce = ReduceView::read(view).ok()?;
    let axes = reduce.axes?;
    let kind = view.kind();
    let kept: Vec<u64> =
        x.dims.iter().enumerate().map(|(axis, &dim)| if axes.has(axis) { 1 } else { dim }).collect();
    let mut groups: Vec<Vec<usize>> = vec![Vec::new(); count(&kept)?];
    for (i, place) in each_place(&x.dims)?.iter().enumerate() {
        let at: Vec<u64> =
            place.iter().enumerate().map(|(axis, &at)| if axes.has(axis) { 0 } else { at }).collect();
        groups[number_of(&at, &kept)].push(i);
    }
    let two = match kind {
        OpKind::ReduceProd => OpKind::Mul,
        OpKind::ReduceSum => OpKind::Add,
        OpKind::ReduceMax => OpKind::Max,
        _ => OpKind::Min,
    };
    let start = match kind {
        OpKind::ReduceProd => Some(1),
        OpKind::ReduceSum => Some(0),
        _ => None,
    };
    let numbers = match &x.numbers {
        Numbers::Ints(list) => {
            let fold = |group: &Vec<usize>| {
                let mut all = group.iter().map(|&i| list[i]);
                let first = start.or_else(|| all.next())?;
                all.try_fold(first, |a, b| ints(two, a, b))
            };
            Numbers::Ints(groups.iter().map(fold).collect::<Option<_>>()?)
        }
        Numbers::Floats(list) if start.is_none() => {
            let fold = |group: &Vec<usize>| {
                let mut all = group.iter().map(|&i| list[i]);
                let first = all.next().filter(|v| !v.is_nan())?;
                all.try_fold(first, |a, b| floats(two, a, b))
            };
            Numbers::Floats(groups.iter().map(fold).collect::<Option<_>>()?)
        }
        Numbers::Floats(_) => return None,
    };
    let gone = x.dims.iter().enumerate().filter(|&(axis, _)| !axes.has(axis)).map(|(_, &dim)| dim);
    let dims = if reduce.keep { kept } else { gone.collect() };
    Some(Small { dtype: x.dtype, dims, numbers })
}

fn unary(kind: OpKind, x: &Small) -> Option<Small> {
    let numbers = match &x.numbers {
        Numbers::Ints(list) => {
            let apply = |&n: &i64| match kind {
                OpKind::Abs => n.checked_abs(),
                OpKind::Neg => n.checked_neg(),
                OpKind::Not => Some(i64::from(n == 0)),
                OpKind::Sign => Some(n.signum()),
                _ => None,
            };
            Numbers::Ints(list.iter().map(apply).collect::<Option<_>>()?)
        }
        Numbers::Floats(list) => {
            let apply = |&v: &f64| match kind {
                OpKind::Abs => Some(v.abs()),
                OpKind::Neg => Some(-v),
                OpKind::Floor => Some(v.floor()),
                OpKind::Ceil => Some(v.ceil()),
                OpKind::Round => Some(v.round_ties_even()),
                OpKind::Sqrt => Some(v.sqrt()),
                OpKind::Reciprocal => Some(1.0 / v),
                _ => None,
            };
            Numbers::Floats(list.iter().map(apply).collect::<Option<_>>()?)
        }
    };
    Some(Small { dtype: x.dtype, dims: x.dims.clone(), numbers })
}

fn is_comparison(kind: OpKind) -> bool {
    use OpKind::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual};
    matches!(kind, Equal | Greater | GreaterOrEqual | Less | LessOrEqual)
}

fn is_elementwise(kind: OpKind) -> bool {
    use OpKind::{Add, And, Div, Max, Min, Mod, Mul, Or, Sub, Where, Xor};
    is_comparison(kind) || matches!(kind, Add | And | Div | Max | Min | Mod | Mul | Or | Sub | Where | Xor)
}

/// Operators whose operands broadcast.
fn elementwise(kind: OpKind, operands: &[Small]) -> Option<Small> {
    let dims = broadcast_dims(&operands.iter().map(|x| x.dims.as_slice()).collect::<Vec<_>>())?;
    let all: Vec<Small> =
        operands.iter().map(|x| x.at(dims.clone(), &broadcast_to(&x.dims, &dims)?)).collect::<Option<_>>()?;
    if kind == OpKind::Where {
        let [condition, yes, no] = &all[..] else { return None };
        let chosen = condition.as_ints()?;
        let pick = |i: usize| if chosen[i] != 0 { i } else { i + yes.len() };
        let both = match (&yes.numbers, &no.numbers) {
            (Numbers::Ints(a), Numbers::Ints(b)) => Numbers::Ints([a.clone(), b.clone()].concat()),
            (Numbers::Floats(a), Numbers::Floats(b)) => Numbers::Floats([a.clone(), b.clone()].concat()),
            _ => return None,
        };
        let both = Small { dtype: yes.dtype, dims: Vec::new(), numbers: both };
        return both.at(dims, &(0..chosen.len()).map(pick).collect::<Vec<_>>());
    }
    let (first, rest) = all.split_first()?;
    rest.iter().try_fold(first.clone(), |a, b| two(kind, &a, b))
}

fn two(kind: OpKind, a: &Small, b: &Small) -> Option<Small> {
    let dtype = if is_comparison(kind) { DType::Bool } else { a.dtype };
    let numbers = match (&a.numbers, &b.numbers) {
        (Numbers::Ints(a), Numbers::Ints(b)) => {
            Numbers::Ints(a.iter().zip(b).map(|(&a, &b)| ints(kind, a, b)).collect::<Option<_>>()?)
        }
        (Numbers::Floats(a), Numbers::Floats(b)) if is_comparison(kind) => {
            let apply = |(&a, &b): (&f64, &f64)| {
                i64::from(match kind {
                    OpKind::Equal => a == b,
                    OpKind::Greater => a > b,
                    OpKind::GreaterOrEqual => a >= b,
                    OpKind::Less => a < b,
                    _ => a <= b,
                })
            };
            Numbers::Ints(a.iter().zip(b).map(apply).collect())
        }
        (Numbers::Floats(x), Numbers::Floats(y)) => {
            let list = x.iter().zip(y).map(|(&a, &b)| floats(kind, a, b)).collect::<Option<Vec<_>>>()?;
            // Rounded once after every operation.
            let exact = Small { dtype, dims: a.dims.clone(), numbers: Numbers::Floats(list) };
            return Small::read(&exact.to_data()?);
        }
        (Numbers::Ints(_), Numbers::Floats(_)) | (Numbers::Floats(_), Numbers::Ints(_)) => return None,
    };
    // An integer that the type does not have is not computed.
    let found = Small { dtype, dims: a.dims.clone(), numbers };
    found.to_data().map(|_| found)
}

fn ints(kind: OpKind, a: i64, b: i64) -> Option<i64> {
    let truth = |holds: bool| Some(i64::from(holds));
    match kind {
        OpKind::Add => a.checked_add(b),
        OpKind::Sub => a.checked_sub(b),
        OpKind::Mul => a.checked_mul(b),
        OpKind::Div => a.checked_div(b),
        // With other signs the result depends on the attribute `fmod`.
        OpKind::Mod if a >= 0 && b > 0 => Some(a % b),
        OpKind::Max => Some(a.max(b)),
        OpKind::Min => Some(a.min(b)),
        OpKind::Equal => truth(a == b),
        OpKind::Greater => truth(a > b),
        OpKind::GreaterOrEqual => truth(a >= b),
        OpKind::Less => truth(a < b),
        OpKind::LessOrEqual => truth(a <= b),
        OpKind::And => truth(a != 0 && b != 0),
        OpKind::Or => truth(a != 0 || b != 0),
        OpKind::Xor => truth((a != 0) != (b != 0)),
        _ => None,
    }
}

fn floats(kind: OpKind, a: f64, b: f64) -> Option<f64> {
    match kind {
        OpKind::Add => Some(a + b),
        OpKind::Sub => Some(a - b),
        OpKind::Mul => Some(a * b),
        OpKind::Div => Some(a / b),
        // Runtimes differ in NaNs, and in which zero is greater.
        OpKind::Max | OpKind::Min if a.is_nan() || b.is_nan() || a == b && a == 0.0 => None,
        OpKind::Max => Some(a.max(b)),
        OpKind::Min => Some(a.min(b)),
        _ => None,
    }
}
