//! The precision passes of ampc.
//!
//! Read [`pass`] (the interface of passes), then [`pipeline`] (how passes are combined and checked), then one
//! pass. The passes in the order in which a rewrite runs them:
//!
//! 0. [`bind_signatures`]: binds operators of the user to their signatures; [`raise_opset`]: on request, raises
//!    the model to a newer operator set, and [`raise_units`] replaces operators written out; [`move_casts`]: moves the author's casts to the smallest tensors;
//! 1. [`specialize_functions`]: gives every call its own copy of the function;
//! 2. [`classify`]: gives every type variable of every node a precision class;
//! 3. [`guard`]: finds patterns and ranges that make a node riskier than its class;
//! 4. [`taint`]: infer operators downstream of deny operators stay fp32;
//!    [`observe`]: operators whose values come near an end of the range on data stay fp32;
//! 5. [`assign`]: chooses the element type of every type variable;
//! 6. [`insert_casts`]: retypes results and places casts;
//! 7. [`simplify_casts`]: removes casts that repeat or undo each other exactly;
//! 8. [`convert_constants`]: replaces casts of constants by converted constants;
//! 9. [`dce`]: removes nodes and constants that the passes left without readers;
//! 10. [`share_functions`]: merges equal functions.
//!
//! A training step is made of a forward graph by [`autodiff`], which adds the gradients; before,
//! [`evaluate_constants`] evaluates constant expressions.
//!
//! Passes run no kernel and name no backend; facts about a target come in as data ([`target`]), from which
//! [`cost`] computes the cost of a precision, and [`fusions`] the fused kernels.
//!
//! The folders are layers, each of which imports only layers below it: from `pipeline/`, which knows all passes, down to
//! `spelling/`. The modules of a layer are re-exported here, and this is the path by which users name them.

mod analysis;
mod casts;
mod functions;
mod graph;
mod opset;
pub mod pass;
pub mod pipeline;
pub mod policy;
mod precision;
mod spelling;
pub mod target;
mod training;

pub use analysis::{cost, dataflow, exact, fusions, liveness, placement, ranges, tensors, units};
pub use casts::{convert_constants, dce, emulate, insert_casts, move_casts, simplify_casts};
pub use functions::{bind_signatures, share_functions, specialize_functions};
pub use graph::{flow, paths, sequences};
pub use opset::{declared, raise_opset, raise_units, text_casts};
pub use pass::{input_ranges, invariants, observed};
pub use precision::{assign, choices, classify, cut, guard, observe, saturate_masks, taint};
pub use spelling::{json, suggest};
pub use training::{autodiff, build, evaluate_constants, parameters, recompute, step};

pub use invariants::{Breach, Invariants};
pub use pass::{Changed, Pass, PassCx, PassError, Warning, sound};
pub use paths::Paths;
pub use policy::Policy;
pub use target::Profile;
