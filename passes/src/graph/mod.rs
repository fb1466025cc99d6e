//! Type variables of a graph and names of its nodes: facts about a module that passes read, whatever the passes decide.

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
