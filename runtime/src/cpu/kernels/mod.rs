//! Kernels by family. A family is a function from operators to functions that prepare their kernels.

mod activation;
pub(crate) mod attention;
mod batch_norm;
mod boxes;
pub(crate) mod broadcast;
mod cast;
mod channels;
mod convolution;
mod depthwise;
mod einsum;
pub(crate) mod elements;
mod fold;
pub(crate) mod functions;
mod gather;
mod indexing;
mod lane;
pub(crate) mod lanes;
pub(crate) mod linear;
mod linear_attention;
mod logic;
mod loss;
mod ml;
mod movement;
mod normalize;
mod optimizer;
mod pad;
pub(crate) mod parallel;
pub(crate) mod pointwise;
mod pool;
pub(crate) mod product;
mod quantize;
mod quantize_product;
mod random;
mod recurrent;
mod reduce;
mod resize;
mod rotary;
mod sample;
mod scatter;
mod select;
mod sequence;
mod shape;
mod signal;
mod slots;
mod softmax;
mod source;
mod strided;
mod strings;
#[cfg(test)]
mod tests;
mod tiles;
mod top_k;
mod training;
mod transposed;
mod unique;
pub(crate) mod vector;
mod window;

use crate::kernel::Prepare;
use ampc_ir::op::OpKind;

/// The function that prepares the kernel of an operator, if there is a kernel.
pub(crate) fn find(kind: OpKind) -> Option<Prepare> {
    const FAMILIES: &[fn(OpKind) -> Option<Prepare>] = &[
        pointwise::find,
        activation::find,
        logic::find,
        cast::find,
        linear::find,
        shape::find,
        movement::find,
        pad::find,
        gather::find,
        scatter::find,
        select::find,
        indexing::find,
        unique::find,
        reduce::find,
        normalize::find,
        convolution::find,
        pool::find,
        transposed::find,
        resize::find,
        sample::find,
        boxes::find,
        attention::find,
        rotary::find,
        linear_attention::find,
        recurrent::find,
        loss::find,
        optimizer::find,
        training::find,
        quantize::find,
        quantize_product::find,
        random::find,
        sequence::find,
        source::find,
        signal::find,
        strings::find,
        softmax::find,
        batch_norm::find,
        channels::find,
        einsum::find,
        ml::find,
    ];
    FAMILIES.iter().find_map(|find| find(kind))
}
