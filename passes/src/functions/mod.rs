//! Functions of a model: a copy for every call before decisions, one for equal copies after them, and signatures of
//! operators that no table has.

pub mod bind_signatures;
pub mod share_functions;
pub mod specialize_functions;
