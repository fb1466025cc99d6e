//! Type variables of a graph, and the names of its nodes: what passes read of a module, whatever they decide.

pub(crate) mod containers;
pub mod flow;
pub(crate) mod instances;
pub(crate) mod keys;
pub(crate) mod marks;
pub(crate) mod metadata;
pub(crate) mod names;
pub mod paths;
pub(crate) mod roles;
pub mod sequences;
pub(crate) mod var_map;
