//! Rewrites that carry out the decisions: casts are moved, inserted and simplified, constants converted, and what nothing
//! reads removed.

pub mod convert_constants;
pub mod dce;
pub mod emulate;
pub mod insert_casts;
pub mod move_casts;
pub mod simplify_casts;
