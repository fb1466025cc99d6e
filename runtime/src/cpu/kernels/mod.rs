//! Kernels by family. A family is a function from operators to what prepares them.

mod attention;
mod broadcast;
mod cast;
mod convolution;
mod elements;
mod gather;
mod image;
mod indexing;
mod lanes;
mod linear;
mod logic;
mod loss;
mod movement;
mod normalize;
mod optimizer;
mod pad;
mod pointwise;
mod pool;
mod quantize;
mod random;
mod recurrent;
mod reduce;
mod scatter;
mod select;
mod sequence;
mod shape;
mod signal;
mod source;
mod strided;
mod strings;
mod unique;

use super::kernel::Prepare;
use ampc_ir::op::OpKind;

/// What makes the kernel of an operator, if there is one.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    let families: [fn(OpKind) -> Option<Prepare>; 25] = [
        pointwise::find,
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
        image::find,
        attention::find,
        recurrent::find,
        loss::find,
        optimizer::find,
        quantize::find,
        random::find,
        sequence::find,
        source::find,
    ];
    families.iter().find_map(|find| find(kind)).or_else(|| signal::find(kind)).or_else(|| strings::find(kind))
}
