//! Products, reductions and the pointwise operations of attention, and the graphs of them that have engines.

use super::compute::broadcast;
use super::{Descriptor, Graph, Made, Operation, Refusal, Tensor, bad, unsupported};
use cudarc::cudnn::sys::{
    cudnnBackendAttributeName_t as A, cudnnBackendAttributeType_t as Type, cudnnDataType_t as DataType,
    cudnnPointwiseMode_t as Mode, cudnnReduceTensorOp_t as Operator,
};
use std::collections::BTreeMap;
use std::f32::consts::LOG2_E;
use std::sync::Arc;

/// The operands of a pointwise operation; `None` if the mode is not simulated.
pub(super) fn operands(mode: u32) -> Option<usize> {
    let one_of = |modes: &[Mode]| modes.iter().any(|&known| known as u32 == mode);
    let unary = [
        Mode::CUDNN_POINTWISE_RELU_FWD,
        Mode::CUDNN_POINTWISE_EXP,
        Mode::CUDNN_POINTWISE_LOG,
        Mode::CUDNN_POINTWISE_GEN_INDEX,
    ];
    let binary = [
        Mode::CUDNN_POINTWISE_ADD,
        Mode::CUDNN_POINTWISE_MUL,
        Mode::CUDNN_POINTWISE_SUB,
        Mode::CUDNN_POINTWISE_DIV,
        Mode::CUDNN_POINTWISE_CMP_GE,
    ];
    if one_of(&unary) {
        Some(1)
    } else if one_of(&binary) {
        Some(2)
    } else {
        one_of(&[Mode::CUDNN_POINTWISE_BINARY_SELECT]).then_some(3)
    }
}

/// An element of the result of a pointwise operation, from those of its operands.
/// A difference that is an exponent is one in base 2.
pub(super) fn pointwise(mode: u32, is_exponent: bool, [x, b, t]: [f32; 3]) -> f32 {
    let is = |known: Mode| known as u32 == mode;
    if is(Mode::CUDNN_POINTWISE_ADD) {
        x + b
    } else if is(Mode::CUDNN_POINTWISE_MUL) {
        x * b
    } else if is(Mode::CUDNN_POINTWISE_SUB) {
        if is_exponent { x * LOG2_E - b * LOG2_E } else { x - b }
    } else if is(Mode::CUDNN_POINTWISE_DIV) {
        // A row without keys: its result is not documented, so that callers must not use it.
        if b == 0.0 { 1.0 } else { x / b }
    } else if is(Mode::CUDNN_POINTWISE_EXP) {
        x.exp2()
    } else if is(Mode::CUDNN_POINTWISE_LOG) {
        x.ln()
    } else if is(Mode::CUDNN_POINTWISE_CMP_GE) {
        f32::from(u8::from(x >= b))
    } else if is(Mode::CUDNN_POINTWISE_BINARY_SELECT) {
        if t == 0.0 { b } else { x }
    } else if x < 0.0 {
        0.0
    } else {
        x
    }
}

/// A product of matrices: the last two dims are multiplied, and an operand with fewer batches is read several times.
pub(super) fn product(of: &Descriptor) -> Result<Made, Refusal> {
    if !matches!(of.made(A::CUDNN_ATTR_OPERATION_MATMUL_DESC)?, [Made::Product]) {
        return bad("a product without its descriptor");
    }
    let [a, b, c] = [
        of.tensor(A::CUDNN_ATTR_OPERATION_MATMUL_ADESC)?,
        of.tensor(A::CUDNN_ATTR_OPERATION_MATMUL_BDESC)?,
        of.tensor(A::CUDNN_ATTR_OPERATION_MATMUL_CDESC)?,
    ];
    let rank = c.dims.len();
    if a.dims.len() != rank || b.dims.len() != rank || rank < 3 {
        return bad("a product of tensors of several ranks, or of rank 2");
    }
    let batches =
        |of: &Tensor| of.dims[..rank - 2].iter().zip(&c.dims).all(|(&own, n)| n.is_multiple_of(own));
    let fits = a.dims[rank - 2] == c.dims[rank - 2]
        && b.dims[rank - 1] == c.dims[rank - 1]
        && a.dims[rank - 1] == b.dims[rank - 2];
    if !fits || !batches(&a) || !batches(&b) {
        return bad(format!("a product of {:?} and {:?} to {:?}", a.dims, b.dims, c.dims));
    }
    // A virtual operand of f32 is rounded in registers.
    let is_wide = a.is_virtual && a.dtype == DataType::CUDNN_DATA_FLOAT as u32;
    if a.dtype != b.dtype && !is_wide {
        return unsupported("a product of operands of two data types");
    }
    Ok(Made::Operation(Arc::new(Operation::Product { a, b, c })))
}

/// A reduction of dims to one element.
pub(super) fn reduction(of: &Descriptor) -> Result<Made, Refusal> {
    let operator = match of.made(A::CUDNN_ATTR_OPERATION_REDUCTION_DESC)? {
        [Made::Reduction(operator)] => *operator,
        _ => return bad("a reduction without its operator"),
    };
    let known = [Operator::CUDNN_REDUCE_TENSOR_ADD, Operator::CUDNN_REDUCE_TENSOR_MAX];
    if !known.iter().any(|&known| known as u32 == operator) {
        return unsupported(format!("reduction operator {operator} is not simulated"));
    }
    let x = of.tensor(A::CUDNN_ATTR_OPERATION_REDUCTION_XDESC)?;
    let y = of.tensor(A::CUDNN_ATTR_OPERATION_REDUCTION_YDESC)?;
    if x.dims.len() != y.dims.len() || x.dims.iter().zip(&y.dims).any(|(&n, &own)| own != 1 && own != n) {
        return bad(format!("a reduction of {:?} to {:?}", x.dims, y.dims));
    }
    Ok(Made::Operation(Arc::new(Operation::Reduction { operator, x, y })))
}

/// A tensor of the same memory with other dims and strides.
pub(super) fn reshape(of: &Descriptor) -> Result<Made, Refusal> {
    let x = of.tensor(A::CUDNN_ATTR_OPERATION_RESHAPE_XDESC)?;
    let y = of.tensor(A::CUDNN_ATTR_OPERATION_RESHAPE_YDESC)?;
    let places = |of: &Tensor| {
        let mut places: Vec<usize> = (0..of.len()).map(|i| of.place(i)).collect();
        places.sort_unstable();
        places
    };
    if places(&x) != places(&y) || !y.is_virtual {
        return bad(format!("a view of {:?} {:?} as {:?} {:?}", x.dims, x.strides, y.dims, y.strides));
    }
    Ok(Made::Operation(Arc::new(Operation::View { x, y })))
}

/// The operator of a reduction descriptor.
pub(super) fn operator(of: &Descriptor) -> Result<u32, Refusal> {
    of.word(A::CUDNN_ATTR_REDUCTION_OPERATOR, Type::CUDNN_TYPE_REDUCTION_OPERATOR_TYPE)
}

/// The product in f64, each sum rounded once to f32.
pub(super) fn multiplied(values: &BTreeMap<i64, Vec<f32>>, [a, b, c]: [&Tensor; 3]) -> Vec<f32> {
    let rank = c.dims.len();
    let (rows, columns, depth) = (c.dims[rank - 2], c.dims[rank - 1], a.dims[rank - 1]);
    // The matrix of an operand for a matrix of the result: consecutive ones share one of fewer matrices.
    let matrix = |mut i: usize, of: &Tensor| {
        let (mut at, mut step) = (0, 1);
        for (&n, &own) in c.dims[..rank - 2].iter().zip(&of.dims).rev() {
            at += i % n / (n / own) * step;
            step *= own;
            i /= n;
        }
        at
    };
    let (from_a, from_b) = (&values[&a.id], &values[&b.id]);
    let mut made = Vec::new();
    for i in 0..c.len() / (rows * columns) {
        let (of_a, of_b) = (matrix(i, a) * rows * depth, matrix(i, b) * depth * columns);
        for row in 0..rows {
            for column in 0..columns {
                let term = |k: usize| {
                    f64::from(from_a[of_a + row * depth + k]) * f64::from(from_b[of_b + k * columns + column])
                };
                #[expect(clippy::cast_possible_truncation, reason = "rounding")]
                made.push((0..depth).map(term).sum::<f64>() as f32);
            }
        }
    }
    made
}

/// The reduction in f64, rounded once. The greatest of a row that has −∞ only is 0.
pub(super) fn reduced(values: &BTreeMap<i64, Vec<f32>>, operator: u32, x: &Tensor, y: &Tensor) -> Vec<f32> {
    let is_sum = operator == Operator::CUDNN_REDUCE_TENSOR_ADD as u32;
    let mut made = vec![if is_sum { 0.0 } else { f64::NEG_INFINITY }; y.len()];
    for (i, &number) in values[&x.id].iter().enumerate() {
        let (to, number) = (&mut made[broadcast(i, &x.dims, &y.dims)], f64::from(number));
        if is_sum {
            *to += number;
        } else if number.is_nan() || number > *to {
            *to = number;
        }
    }
    #[expect(clippy::cast_possible_truncation, reason = "rounding")]
    made.into_iter().map(|number| if number == f64::NEG_INFINITY { 0.0 } else { number as f32 }).collect()
}

/// The bytes of workspace of the graph of an attention or its gradient.
///
/// # Errors
/// If no engine computes the graph.
pub(super) fn check(graph: &Graph) -> Result<usize, Refusal> {
    let products: Vec<[&Arc<Tensor>; 3]> = graph
        .operations
        .iter()
        .filter_map(|operation| match &**operation {
            Operation::Product { a, b, c } => Some([a, b, c]),
            _ => None,
        })
        .collect();
    if let [of_scores, of_value, of_shares, of_key, of_query] = products[..] {
        return check_gradient(graph, [of_scores, of_value, of_shares, of_key, of_query]);
    }
    let [[query, key, scores], [shares, value, result]] = products[..] else {
        return unsupported("a graph of products with another number than two or five");
    };
    let low = [DataType::CUDNN_DATA_HALF as u32, DataType::CUDNN_DATA_BFLOAT16 as u32];
    let operands = [query, key, value, result, shares];
    if operands.iter().any(|of| of.dtype != query.dtype || of.dims.len() != 4) || !low.contains(&query.dtype)
    {
        return unsupported(
            "an attention with other than 16-bit operands of rank 4 and shares of their type",
        );
    }
    if !scores.is_virtual || scores.dtype != DataType::CUDNN_DATA_FLOAT as u32 || !shares.is_virtual {
        return unsupported("an attention that stores scores");
    }
    let logarithms = |operation: &&Arc<Operation>| matches!(&***operation, Operation::Pointwise { mode, .. } if *mode == Mode::CUDNN_POINTWISE_LOG as u32);
    if graph.operations.iter().filter(logarithms).count() != 1 {
        return unsupported("an attention without the logarithms of its sums");
    }
    if query.strides[3] != 1 || key.strides[2] != 1 || value.strides[3] != 1 || result.strides[3] != 1 {
        return unsupported("an attention of heads whose elements are no neighbours");
    }
    for size in [query.dims[3], value.dims[3]] {
        if !size.is_multiple_of(8) || size > 256 {
            return unsupported(format!("an attention of heads of {size} elements"));
        }
    }
    Ok(256)
}

/// The bytes of workspace of a gradient: it has a matrix of 16-bit numbers, so that sums have one order.
///
/// # Errors
/// If no engine computes the graph.
fn check_gradient(
    graph: &Graph,
    [
        [query, key, scores],
        [shares, of_result, of_value],
        [_, value, of_shares],
        [of_scores, _, of_key],
        [_, rows, of_query],
    ]: [[&Arc<Tensor>; 3]; 5],
) -> Result<usize, Refusal> {
    let low = [DataType::CUDNN_DATA_HALF as u32, DataType::CUDNN_DATA_BFLOAT16 as u32];
    let all = [query, key, shares, of_result, of_value, value, of_scores, of_key, rows, of_query];
    if !low.contains(&query.dtype) || all.iter().any(|of| of.dtype != query.dtype || of.dims.len() != 4) {
        return unsupported("a gradient of an attention with other than 16-bit operands of rank 4");
    }
    let inner = [scores, of_shares, shares, of_scores];
    if inner.iter().any(|of| !of.is_virtual) || [of_value, of_key, of_query].iter().any(|of| of.is_virtual) {
        return unsupported("a gradient of an attention that stores scores, or no gradients");
    }
    let rows = [query, of_result, of_value, of_key, of_query];
    if rows.iter().any(|of| of.strides[3] != 1) || key.strides[2] != 1 || value.strides[2] != 1 {
        return unsupported("a gradient of heads whose elements are no neighbours");
    }
    let sums = |operation: &&Arc<Operation>| matches!(&***operation, Operation::Pointwise { y, .. } if !y.is_virtual);
    if graph.operations.iter().filter(sums).count() != 1 {
        return unsupported("a gradient of an attention without its sums in memory");
    }
    // Real engines have heads of 256 too: here tests meet an attention whose gradient has no engine.
    for size in [query.dims[3], of_result.dims[3]] {
        if !size.is_multiple_of(8) || size > 128 {
            return unsupported(format!("a gradient of heads of {size} elements"));
        }
    }
    Ok(256 + 2 * scores.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(id: i64, dims: [usize; 4]) -> Tensor {
        let strides = (0..4).map(|axis| dims[axis + 1..].iter().product()).collect();
        let (dtype, alignment) = (DataType::CUDNN_DATA_FLOAT as u32, 16);
        Tensor { id, dtype, dims: dims.into(), strides, alignment, is_virtual: false, is_by_value: false }
    }

    #[test]
    fn heads_that_share_a_matrix() {
        let (a, b, c) = (tensor(1, [1, 4, 1, 2]), tensor(2, [1, 2, 2, 1]), tensor(3, [1, 4, 1, 1]));
        let values = BTreeMap::from([
            (1, vec![1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 2.0, 0.0]),
            (2, vec![3.0, 5.0, 7.0, 11.0]),
        ]);
        assert_eq!(multiplied(&values, [&a, &b, &c]), [3.0, 5.0, 18.0, 14.0]);
    }

    #[test]
    fn reductions_of_rows() {
        let (x, y) = (tensor(1, [1, 1, 3, 2]), tensor(2, [1, 1, 3, 1]));
        let values =
            BTreeMap::from([(1, vec![1.0, -2.0, f32::NEG_INFINITY, f32::NEG_INFINITY, f32::NAN, 4.0])]);
        let (sum, most) =
            (Operator::CUDNN_REDUCE_TENSOR_ADD as u32, Operator::CUDNN_REDUCE_TENSOR_MAX as u32);
        assert_eq!(reduced(&values, sum, &x, &y)[0], -1.0);
        let greatest = reduced(&values, most, &x, &y);
        assert_eq!(greatest[..2], [1.0, 0.0]);
        assert!(greatest[2].is_nan());
    }
}
