//! Kernels by family. A family is a function from operators to what prepares them.

mod activation;
mod attention;
mod broadcast;
mod cast;
mod convolution;
mod functions;
mod gather;
mod image;
mod indexing;
mod lane;
mod lanes;
mod linear;
mod logic;
mod loss;
mod movement;
mod normalize;
mod optimizer;
mod pointwise;
mod pool;
mod quantize;
mod quantize_product;
mod random;
mod recurrent;
mod reduce;
mod select;
mod sequence;
mod shape;
mod signal;
mod source;
mod strings;

use super::kernel::Prepare;
use ampc_ir::op::OpKind;

/// What makes the kernel of an operator, if there is one.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    let families: [fn(OpKind) -> Option<Prepare>; 24] = [
        pointwise::find,
        activation::find,
        logic::find,
        cast::find,
        linear::find,
        shape::find,
        movement::find,
        gather::find,
        select::find,
        indexing::find,
        reduce::find,
        normalize::find,
        convolution::find,
        pool::find,
        image::find,
        attention::find,
        recurrent::find,
        loss::find,
        optimizer::find,
        quantize::find,
        quantize_product::find,
        random::find,
        sequence::find,
        source::find,
    ];
    families.iter().find_map(|find| find(kind)).or_else(|| signal::find(kind)).or_else(|| strings::find(kind))
}
