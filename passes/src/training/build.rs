//! Building formulas: the builder of nodes for rules of gradients, losses and optimizers of a user.
//!
//! [`Nodes`] puts nodes at the end of the main graph and marks each with its purpose; [`Build`] is the
//! arithmetic on top, which [`Backward`](crate::training::autodiff::Backward),
//! [`LossNodes`](crate::training::step::custom::LossNodes) and [`UpdateNodes`](crate::training::step::custom::UpdateNodes) share.

mod nodes;

pub use self::nodes::Nodes;

use crate::pass::training_error::RuleError;
use ampc_ir::infer::describe;
use ampc_ir::module::Payload;
use ampc_ir::op::OpKind;
use ampc_ir::{AttrValue, DType, Dim, Module, NodeSpec, TensorData, Type, Value};

/// Result of building nodes.
pub(crate) type Ruled<T = ()> = Result<T, RuleError>;

/// Arithmetic, as nodes of the main graph.
///
/// All values that the methods take and return are of the main graph. Binary methods broadcast as ONNX does and take
/// operands of one element type.
pub trait Build<'m> {
    /// Where nodes go.
    fn nodes(&self) -> &Nodes<'m>;
    /// Where nodes go.
    fn nodes_mut(&mut self) -> &mut Nodes<'m>;

    /// The module.
    fn module<'a>(&'a self) -> &'a Module
    where
        'm: 'a,
    {
        self.nodes().inserter.module
    }

    /// The element type of a value.
    ///
    /// # Errors
    /// If it is not known.
    fn dtype(&self, value: Value) -> Ruled<DType> {
        self.module().value(value).ty.dtype().ok_or_else(|| {
            let name = ampc_ir::verify::name_of(self.module(), value);
            RuleError::Unsupported(format!("the element type of `{name}` is not known"))
        })
    }

    /// The dims of a value, if its rank is known.
    fn dims(&self, value: Value) -> Option<Vec<Dim>> {
        Some(self.module().value(value).ty.shape()?.dims()?.to_vec())
    }

    /// The dims of a value.
    ///
    /// # Errors
    /// If not even their number is known.
    fn shape(&self, value: Value) -> Ruled<Vec<Dim>> {
        self.dims(value).ok_or_else(|| {
            let name = ampc_ir::verify::name_of(self.module(), value);
            RuleError::Unsupported(format!(
                "the rank of `{name}` is not known: declare the shapes of inputs, or of its operator's results"
            ))
        })
    }

    /// The extents of a value.
    ///
    /// # Errors
    /// If an extent is not known.
    fn extents(&self, value: Value) -> Ruled<Vec<u64>> {
        let dims = self.shape(value)?;
        let known: Option<Vec<u64>> = dims.iter().map(|dim| dim.known()).collect();
        known.ok_or_else(|| {
            let name = ampc_ir::verify::name_of(self.module(), value);
            let ty = describe(&self.module().value(value).ty);
            RuleError::Unsupported(format!(
                "all extents of `{name}` have to be known, and it is {ty}: export the model with fixed ones"
            ))
        })
    }

    /// The number of axes of a value.
    ///
    /// # Errors
    /// If it is not known.
    fn rank(&self, value: Value) -> Ruled<usize> {
        Ok(self.shape(value)?.len())
    }

    /// The sum of values of one type.
    ///
    /// # Errors
    /// If they do not fit.
    fn sum(&mut self, parts: &[Value]) -> Ruled<Value> {
        match *parts {
            [one] => Ok(one),
            _ => self.op(OpKind::Sum, parts, &[]),
        }
    }

    /// The sum of all elements, a scalar.
    ///
    /// # Errors
    /// If it does not fit.
    fn total(&mut self, a: Value) -> Ruled<Value> {
        self.op(OpKind::ReduceSum, &[a], &[("keepdims", AttrValue::Int(0))])
    }

    /// The mean of all elements, a scalar.
    ///
    /// # Errors
    /// If it does not fit.
    fn mean(&mut self, a: Value) -> Ruled<Value> {
        self.op(OpKind::ReduceMean, &[a], &[("keepdims", AttrValue::Int(0))])
    }

    /// A node with one result.
    ///
    /// # Errors
    /// If the node does not fit its operator.
    fn op(&mut self, kind: OpKind, operands: &[Value], attrs: &[(&'static str, AttrValue)]) -> Ruled<Value> {
        let spec = attrs
            .iter()
            .fold(NodeSpec::new(kind, operands), |spec, (name, value)| spec.attr(*name, value.clone()));
        let [value] = self.insert(spec)?;
        Ok(value)
    }

    /// A node with so many results.
    ///
    /// # Errors
    /// If the node does not fit its operator.
    fn insert<const N: usize>(&mut self, spec: NodeSpec) -> Ruled<[Value; N]> {
        self.nodes_mut().add(spec)
    }

    /// A node with `n` results.
    ///
    /// # Errors
    /// If the node does not fit its operator.
    fn insert_n(&mut self, spec: NodeSpec, n: usize) -> Ruled<Vec<Value>> {
        self.nodes_mut().add_n(spec, n)
    }

    /// A constant number of a float type.
    ///
    /// # Errors
    /// If numbers cannot be rounded to the type.
    fn number(&mut self, number: f64, dtype: DType) -> Ruled<Value> {
        let nodes = self.nodes_mut();
        Ok(nodes.inserter.scalar(nodes.suffix, dtype, number)?)
    }

    /// A constant number of the type of a value.
    ///
    /// # Errors
    /// As [`number`](Self::number).
    fn number_like(&mut self, number: f64, like: Value) -> Ruled<Value> {
        let dtype = self.dtype(like)?;
        self.number(number, dtype)
    }

    /// A constant list of integers.
    fn ints(&mut self, list: &[i64]) -> Value {
        let nodes = self.nodes_mut();
        nodes.inserter.ints(nodes.suffix, list)
    }

    /// A constant tensor.
    fn constant(&mut self, data: TensorData) -> Value {
        let nodes = self.nodes_mut();
        nodes.inserter.constant(nodes.suffix, data)
    }

    /// The value in a type, itself if it has it.
    ///
    /// # Errors
    /// If there is no such cast.
    fn cast(&mut self, value: Value, to: DType) -> Ruled<Value> {
        if self.dtype(value)? == to {
            return Ok(value);
        }
        self.op(OpKind::Cast, &[value], &[("to", AttrValue::Int(i64::from(to.number())))])
    }

    /// The value in f32 if it has 16 bits, itself otherwise.
    ///
    /// # Errors
    /// If its type is not known.
    fn wide(&mut self, value: Value) -> Ruled<Value> {
        if !matches!(self.dtype(value)?, DType::F16 | DType::BF16) {
            return Ok(value);
        }
        if let Some(&wide) = self.nodes().wide.get(&value) {
            return Ok(wide);
        }
        let wide = self.cast(value, DType::F32)?;
        self.nodes_mut().wide.insert(value, wide);
        Ok(wide)
    }

    /// a + b.
    ///
    /// # Errors
    /// If they do not fit.
    fn plus(&mut self, a: Value, b: Value) -> Ruled<Value> {
        self.op(OpKind::Add, &[a, b], &[])
    }

    /// a − b.
    ///
    /// # Errors
    /// If they do not fit.
    fn minus(&mut self, a: Value, b: Value) -> Ruled<Value> {
        self.op(OpKind::Sub, &[a, b], &[])
    }

    /// a · b.
    ///
    /// # Errors
    /// If they do not fit.
    fn times(&mut self, a: Value, b: Value) -> Ruled<Value> {
        self.op(OpKind::Mul, &[a, b], &[])
    }

    /// a / b.
    ///
    /// # Errors
    /// If they do not fit.
    fn over(&mut self, a: Value, b: Value) -> Ruled<Value> {
        self.op(OpKind::Div, &[a, b], &[])
    }

    /// −a.
    ///
    /// # Errors
    /// If it does not fit.
    fn neg(&mut self, a: Value) -> Ruled<Value> {
        self.op(OpKind::Neg, &[a], &[])
    }

    /// a · number.
    ///
    /// # Errors
    /// If it does not fit.
    fn scaled(&mut self, a: Value, by: f64) -> Ruled<Value> {
        if by.to_bits() == 1f64.to_bits() {
            return Ok(a);
        }
        let by = self.number_like(by, a)?;
        self.times(a, by)
    }

    /// number − a.
    ///
    /// # Errors
    /// If it does not fit.
    fn number_minus(&mut self, number: f64, a: Value) -> Ruled<Value> {
        let number = self.number_like(number, a)?;
        self.minus(number, a)
    }

    /// a + number.
    ///
    /// # Errors
    /// If it does not fit.
    fn plus_number(&mut self, a: Value, number: f64) -> Ruled<Value> {
        let number = self.number_like(number, a)?;
        self.plus(a, number)
    }

    /// An operator with one operand and no attributes.
    ///
    /// # Errors
    /// If it does not fit.
    fn unary(&mut self, kind: OpKind, a: Value) -> Ruled<Value> {
        self.op(kind, &[a], &[])
    }

    /// a where the condition holds, else b.
    ///
    /// # Errors
    /// If they do not fit.
    fn select(&mut self, condition: Value, a: Value, b: Value) -> Ruled<Value> {
        self.op(OpKind::Where, &[condition, a, b], &[])
    }

    /// a where the condition holds, else 0.
    ///
    /// # Errors
    /// If they do not fit.
    fn masked(&mut self, condition: Value, a: Value) -> Ruled<Value> {
        let zero = self.number_like(0.0, a)?;
        self.select(condition, a, zero)
    }

    /// The comparison a > number.
    ///
    /// # Errors
    /// If it does not fit.
    fn greater(&mut self, a: Value, number: f64) -> Ruled<Value> {
        let number = self.number_like(number, a)?;
        self.op(OpKind::Greater, &[a, number], &[])
    }

    /// The comparison a < number.
    ///
    /// # Errors
    /// If it does not fit.
    fn less(&mut self, a: Value, number: f64) -> Ruled<Value> {
        let number = self.number_like(number, a)?;
        self.op(OpKind::Less, &[a, number], &[])
    }

    /// A reduction over axes, which stay with extent 1 if `keep`.
    ///
    /// # Errors
    /// If they are not the value's.
    fn reduce(&mut self, kind: OpKind, a: Value, axes: &[usize], keep: bool) -> Ruled<Value> {
        if axes.is_empty() {
            return Ok(a);
        }
        let spec = NodeSpec::new(kind, &[a]).attr("keepdims", AttrValue::Int(i64::from(keep)));
        self.nodes_mut().with_axes(spec, kind, a, axes)
    }

    /// The sum over axes.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce).
    fn sum_over(&mut self, a: Value, axes: &[usize], keep: bool) -> Ruled<Value> {
        self.reduce(OpKind::ReduceSum, a, axes, keep)
    }

    /// The mean over axes.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce).
    fn mean_over(&mut self, a: Value, axes: &[usize], keep: bool) -> Ruled<Value> {
        self.reduce(OpKind::ReduceMean, a, axes, keep)
    }

    /// The value with these axes of extent 1 put in.
    ///
    /// # Errors
    /// If they are not the result's.
    fn unsqueeze(&mut self, a: Value, axes: &[usize]) -> Ruled<Value> {
        if axes.is_empty() {
            return Ok(a);
        }
        self.nodes_mut().with_axes(NodeSpec::new(OpKind::Unsqueeze, &[a]), OpKind::Unsqueeze, a, axes)
    }

    /// The value without these axes of extent 1.
    ///
    /// # Errors
    /// If they are not its own.
    fn squeeze(&mut self, a: Value, axes: &[usize]) -> Ruled<Value> {
        if axes.is_empty() {
            return Ok(a);
        }
        self.nodes_mut().with_axes(NodeSpec::new(OpKind::Squeeze, &[a]), OpKind::Squeeze, a, axes)
    }

    /// The value with its axes in another order.
    ///
    /// # Errors
    /// If it is not a permutation.
    fn transpose(&mut self, a: Value, perm: &[usize]) -> Ruled<Value> {
        if perm.iter().enumerate().all(|(i, &axis)| i == axis) {
            return Ok(a);
        }
        let perm = perm.iter().map(|&axis| signed(axis)).collect();
        self.op(OpKind::Transpose, &[a], &[("perm", AttrValue::Ints(perm))])
    }

    /// The value with its last two axes exchanged.
    ///
    /// # Errors
    /// If it has fewer.
    fn transpose_last(&mut self, a: Value) -> Ruled<Value> {
        let rank = self.rank(a)?;
        let mut perm: Vec<usize> = (0..rank).collect();
        if rank < 2 {
            return Err(RuleError::Internal(format!("{rank} axes, of which two are to be exchanged")));
        }
        perm.swap(rank - 1, rank - 2);
        self.transpose(a, &perm)
    }

    /// The shape of a value, as an operand of Reshape or Expand: a constant if all extents are known.
    ///
    /// # Errors
    /// If its type is not known.
    fn shape_of(&mut self, a: Value) -> Ruled<Value> {
        if let Some(list) = known_shape(self.module(), a) {
            return Ok(self.ints(&list));
        }
        if let Some(&shape) = self.nodes().shapes.get(&a) {
            return Ok(shape);
        }
        let shape = self.op(OpKind::Shape, &[a], &[])?;
        self.nodes_mut().shapes.insert(a, shape);
        Ok(shape)
    }

    /// The elements of a value in the shape of another.
    ///
    /// # Errors
    /// If it has not as many.
    fn reshape_as(&mut self, a: Value, like: Value) -> Ruled<Value> {
        if let (Some(a_dims), Some(dims)) = (self.dims(a), self.dims(like)) {
            if same_dims(&a_dims, &dims) {
                return Ok(a);
            }
            // One extent that is not known follows from the others.
            let mut free = dims.iter().filter(|dim| dim.known().is_none());
            if free.next().is_some() && free.next().is_none() && dims.iter().all(|dim| dim.known() != Some(0))
            {
                let list: Vec<i64> = dims
                    .iter()
                    .map(|dim| dim.known().and_then(|n| i64::try_from(n).ok()).unwrap_or(-1))
                    .collect();
                return self.reshape(a, &list);
            }
        }
        let shape = self.shape_of(like)?;
        self.op(OpKind::Reshape, &[a, shape], &[("allowzero", AttrValue::Int(1))])
    }

    /// The elements of a value in a shape, as Reshape reads it: −1 for an inferred extent, 0 for a copied
    /// extent.
    ///
    /// # Errors
    /// If it has not as many.
    fn reshape(&mut self, a: Value, shape: &[i64]) -> Ruled<Value> {
        let shape = self.ints(shape);
        self.op(OpKind::Reshape, &[a, shape], &[])
    }

    /// The value repeated to the shape of another.
    ///
    /// # Errors
    /// If it does not broadcast to it.
    fn expand_as(&mut self, a: Value, like: Value) -> Ruled<Value> {
        if let (Some(a_dims), Some(dims)) = (self.dims(a), self.dims(like))
            && same_dims(&a_dims, &dims)
        {
            return Ok(a);
        }
        let shape = self.shape_of(like)?;
        self.op(OpKind::Expand, &[a, shape], &[])
    }

    /// Zeros of the type of one value and the shape of another.
    ///
    /// # Errors
    /// If types are not known.
    fn zeros(&mut self, dtype: DType, like: Value) -> Ruled<Value> {
        let zero = self.number(0.0, dtype)?;
        let shape = self.shape_of(like)?;
        self.op(OpKind::Expand, &[zero, shape], &[])
    }

    /// Matrix product.
    ///
    /// # Errors
    /// If they do not fit.
    fn matmul(&mut self, a: Value, b: Value) -> Ruled<Value> {
        self.op(OpKind::MatMul, &[a, b], &[])
    }

    /// αAᵃBᵇ of two matrices, each transposed or not.
    ///
    /// # Errors
    /// If they do not fit.
    fn gemm(&mut self, (a, trans_a): (Value, bool), (b, trans_b): (Value, bool), alpha: f32) -> Ruled<Value> {
        let flag = |flag: bool| AttrValue::Int(i64::from(flag));
        let attrs =
            [("transA", flag(trans_a)), ("transB", flag(trans_b)), ("alpha", AttrValue::Float(alpha))];
        self.op(OpKind::Gemm, &[a, b], &attrs)
    }

    /// The value as a matrix whose columns are its last axis.
    ///
    /// # Errors
    /// If it is a scalar.
    fn as_matrix(&mut self, a: Value) -> Ruled<Value> {
        let rank = self.rank(a)?;
        if rank == 2 {
            return Ok(a);
        }
        self.op(OpKind::Flatten, &[a], &[("axis", AttrValue::Int(signed(rank) - 1))])
    }

    /// Undoes a broadcast: the gradient of a value that was `like` before it was broadcast to the shape of
    /// `dy`, summed over the repeated axes. Sums are in f32 or wider, so the result may be wider than `dy`.
    ///
    /// ```text
    /// dy f16[8, 5, 4]   like f16[5, 1]    ReduceSum(f32(dy), axes 0 and 2) : f32[1, 5, 1], reshaped to f32[5, 1]
    /// dy f32[N, 4]      like f32[M, 4]    N = M, or M = 1: axes are found while the model runs
    /// ```
    ///
    /// # Errors
    /// If a rank is not known.
    fn unbroadcast(&mut self, dy: Value, like: Value) -> Ruled<Value> {
        self.unbroadcast_before(dy, like, 0)
    }

    /// [`unbroadcast`](Self::unbroadcast) where the last `same` axes of both have the same extents, known or not.
    ///
    /// # Errors
    /// If a rank is not known.
    fn unbroadcast_before(&mut self, dy: Value, like: Value, same: usize) -> Ruled<Value> {
        let (from, to) = (self.shape(dy)?, self.shape(like)?);
        let lead = from.len().checked_sub(to.len()).ok_or_else(|| {
            RuleError::Internal("a gradient has fewer axes than what was broadcast to it".into())
        })?;
        let mut axes: Vec<usize> = (0..lead).collect();
        let mut is_known = true;
        let broadcast = to.len().saturating_sub(same);
        for (i, (from, to)) in from[lead..].iter().zip(&to).enumerate().take(broadcast) {
            match (from, to) {
                (Dim::Known(1), _) => {}
                (_, Dim::Known(1)) => axes.push(lead + i),
                (_, Dim::Known(_)) => {}
                (Dim::Sym(a), Dim::Sym(b)) if a == b => {}
                _ => is_known = false,
            }
        }
        if is_known && axes.is_empty() {
            return Ok(dy);
        }
        let dy = self.wide(dy)?;
        if is_known {
            // Axes that are there on one side only go; those of extent 1 stay.
            let keep = axes.len() > lead;
            let sum = self.sum_over(dy, &axes, keep)?;
            return if keep && lead > 0 { self.reshape_as(sum, like) } else { Ok(sum) };
        }
        let (mut like_shape, shape) = (self.shape_of(like)?, self.shape_of(dy)?);
        if lead > 0 {
            let ones = self.ints(&vec![1; lead]);
            like_shape = self.op(OpKind::Concat, &[ones, like_shape], &[("axis", AttrValue::Int(0))])?;
        }
        let same = self.op(OpKind::Equal, &[like_shape, shape], &[])?;
        let differs = self.op(OpKind::Not, &[same], &[])?;
        let all: Vec<i64> = (0..from.len()).map(signed).collect();
        let all = self.ints(&all);
        let axes = self.op(OpKind::Compress, &[all, differs], &[("axis", AttrValue::Int(0))])?;
        let attrs = [("keepdims", AttrValue::Int(1)), ("noop_with_empty_axes", AttrValue::Int(1))];
        let sum = self.op(OpKind::ReduceSum, &[dy, axes], &attrs)?;
        let shape = self.shape_of(like)?;
        self.op(OpKind::Reshape, &[sum, shape], &[("allowzero", AttrValue::Int(1))])
    }

    /// The constant number that a value is.
    fn constant_number(&self, value: Value) -> Option<f64> {
        let payload = ampc_ir::views::constant_of(self.module(), value)?;
        match payload.small_floats(1)?[..] {
            [number] => Some(number),
            _ => None,
        }
    }

    /// True if a value is a constant of the graph.
    fn is_constant(&self, value: Value) -> bool {
        self.module().constant(value).is_some_and(|payload| matches!(payload, Payload::Dense(_)))
            || ampc_ir::views::constant_of(self.module(), value).is_some()
    }

    /// The type of a value.
    fn ty<'a>(&'a self, value: Value) -> &'a Type
    where
        'm: 'a,
    {
        &self.module().value(value).ty
    }
}

fn known_shape(module: &Module, a: Value) -> Option<Vec<i64>> {
    let dims = module.value(a).ty.shape()?.dims()?;
    dims.iter().map(|dim| i64::try_from(dim.known()?).ok()).collect()
}

/// Class numbers of which one counts for nothing: the same with 0 in its place, which is a class in any case, and where it
/// is, as bools. `labels` are i64 or i32, of any shape.
///
/// # Errors
/// If they are not integers.
pub(crate) fn without_ignored<'m>(
    b: &mut impl Build<'m>,
    labels: Value,
    ignored: i64,
) -> Ruled<(Value, Value)> {
    let integers = b.dtype(labels)?;
    let ignored = b.ints(&[ignored]);
    let ignored = b.cast(ignored, integers)?;
    let is_ignored = b.op(OpKind::Equal, &[labels, ignored], &[])?;
    let zero = b.ints(&[0]);
    let zero = b.cast(zero, integers)?;
    Ok((b.select(is_ignored, zero, labels)?, is_ignored))
}

/// An axis as attributes have it. Ranks are small.
pub(crate) fn signed(axis: usize) -> i64 {
    i64::try_from(axis).unwrap_or(i64::MAX)
}

/// True if two shapes are the same for certain.
fn same_dims(a: &[Dim], b: &[Dim]) -> bool {
    let same = |(a, b): (&Dim, &Dim)| match (a, b) {
        (Dim::Known(a), Dim::Known(b)) => a == b,
        (Dim::Sym(a), Dim::Sym(b)) => a == b,
        _ => false,
    };
    a.len() == b.len() && a.iter().zip(b).all(same)
}
