//! The table of operators: a row for each version of a schema, generated, and the types of a row.

mod generated;
mod rows;
mod schema;

pub(super) use generated::IDENTITIES;
pub use generated::{LATEST_IR_VERSION, LATEST_OPSETS, OpKind, SCHEMAS};
pub use schema::{
    Arity, AttrDefault, AttrKind, AttrSchema, Declared, Formal, FormalType, OpSchema, Side, TypeSet, TypeVar,
};
pub(super) use schema::{counterpart, formals, formals_of};
