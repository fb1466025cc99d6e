//! Kernels by family. A family is a function from operators to what prepares them.

pub(super) mod attention;
mod broadcast;
mod cast;
mod convolution;
mod gather;
mod image;
mod indexing;
pub(super) mod lanes;
pub(super) mod linear;
mod linear_attention;
mod logic;
mod loss;
mod ml;
mod movement;
mod normalize;
mod optimizer;
mod pointwise;
mod pool;
mod quantize;
mod random;
mod recurrent;
mod reduce;
mod rotary;
mod select;
mod sequence;
mod shape;
mod signal;
mod slots;
mod source;
mod strings;

use super::kernel::Prepare;
use ampc_ir::op::OpKind;

/// What makes the kernel of an operator, if there is one.
pub(super) fn find(kind: OpKind) -> Option<Prepare> {
    let families = [
        pointwise::find,
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
        rotary::find,
        linear_attention::find,
        recurrent::find,
        loss::find,
        optimizer::find,
        quantize::find,
        random::find,
        sequence::find,
        source::find,
        signal::find,
        strings::find,
        ml::find,
    ];
    families.iter().find_map(|find: &fn(OpKind) -> Option<Prepare>| find(kind))
}
