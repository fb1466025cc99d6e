//! The operator table: the schemas of ONNX for every operator at every version, and the classes and traits that
//! ampc adds.
//!
//! Operators that ONNX Runtime adds to ONNX's and that exporters and its optimizer write are in the table as
//! well, as far as ampc knows them. Their domain `com.microsoft` is open: it has more operators, and ONNX
//! Runtime changes its versions, so an unknown operator there is not an error ([`is_open`]).
//!
//! An operator is described once. The schemas of ONNX (formals, type variables, legal types, attributes) are
//! generated into [`SCHEMAS`]; written by hand beside it are the precision classes ([`formal_class`],
//! [`var_class`]), the effect of operators on numbers ([`moves`], [`sums`] and similar functions) and on errors
//! ([`AMPLIFIERS`]), and the amount of computation ([`work`]). No other code lists operators by their
//! properties: passes ask the table.
//!
//! A node has the newest version of its operator that is not newer than the operator set imported by its model:
//!
//! ```
//! use ampc_ir::op::{Lookup, OpKind, lookup};
//!
//! let Lookup::Found(schema) = lookup("", "Softmax", 12) else { panic!("known since 1") };
//! assert_eq!((schema.kind, schema.since), (OpKind::Softmax, 11));
//! assert_eq!(lookup("ai.onnx", "Gelu", 13), Lookup::TooNew { since: 20 });
//! ```
//!
//! Every node is looked up once, so look-up takes constant time and allocates nothing: the name's hash leads into
//! a table of 1024 slots, computed by the compiler, with a quarter of them taken.

mod amplifiers;
mod class;
mod classes;
mod exceptions;
mod legality;
mod lookup;
pub mod optimizers;
mod signature;
mod table;
mod traits;
mod work;

pub use amplifiers::{AMPLIFIERS, Amplified, Amplifier, amplifier, is_periodic, singular_at_zero};
pub use class::{Class, UnknownClass};
pub use classes::{base_class, formal_class, formal_class_given, schema_class, var_class, var_class_given};
pub use legality::{Legality, formal_legality, legality, legality_at, type_legality};
pub use lookup::{Lookup, all, is_open, latest_opset, lookup, lookup_overload, versions};
pub use signature::{Count, Signature, SignatureError, SignatureFormal};
pub use table::{
    Arity, AttrDefault, AttrKind, AttrSchema, Declared, Formal, FormalType, LATEST_IR_VERSION, LATEST_OPSETS,
    OpKind, OpSchema, SCHEMAS, Side, TypeSet, TypeVar,
};
pub use traits::{
    Sign, adds, compares, dequantizes, dtype_follows_operand, is_deterministic, is_elementwise, may_reduce,
    moves, moves_all, quantizes, reads_only_dims, replacement, result_range, stays_within_operand,
    subtracts_mean, sums,
};
pub use work::{Work, is_single_product, work};
