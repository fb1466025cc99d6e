//! Type variables of a graph, and the names of its nodes: what passes read of a module, whatever they decide.

pub mod flow;
pub(crate) mod marks;
pub(crate) mod names;
pub mod paths;
pub mod sequences;
pub(crate) mod var_map;
