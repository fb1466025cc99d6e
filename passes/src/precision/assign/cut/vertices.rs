//! Which variable or source each vertex of the choice of formats stands for, and which vertices are connected.

use crate::analysis::tensors::End;
use crate::graph::flow::Var;
use crate::graph::var_map::VarMap;
use crate::precision::cut::Vertex;
use ampc_ir::Value;
use rustc_hash::FxHashMap;

/// The vertices of variables and of sources.
#[derive(Default)]
pub(super) struct Vertices {
    pub(super) vars: VarMap<Vertex>,
    pub(super) sources: FxHashMap<Value, Vertex>,
}

impl Vertices {
    pub(super) fn get(&self, end: End) -> Option<Vertex> {
        match end {
            End::Var(var) => self.vars.get(&var).copied(),
            End::Source(value) => self.sources.get(&value).copied(),
            End::Full | End::Low | End::Other(_) => None,
        }
    }

    /// The vertex of a variable, of a group its first, that the choice has added before.
    pub(super) fn of(&self, var: Var) -> Vertex {
        *self.vars.get(&var).expect("every variable that is held or free has a vertex")
    }

    pub(super) fn insert(&mut self, end: End, vertex: Vertex) {
        match end {
            End::Var(var) => {
                self.vars.insert(var, vertex);
            }
            End::Source(value) => {
                self.sources.insert(value, vertex);
            }
            End::Full | End::Low | End::Other(_) => unreachable!("only variables and sources have vertices"),
        }
    }
}

/// Vertices that are connected.
pub(super) struct Components {
    parents: Vec<usize>,
}

impl Components {
    pub(super) fn new(vertices: usize) -> Components {
        Components { parents: (0..vertices).collect() }
    }
    pub(super) fn of(&self, vertex: Vertex) -> usize {
        let mut at = vertex.index();
        while self.parents[at] != at {
            at = self.parents[at];
        }
        at
    }
    pub(super) fn join(&mut self, a: Vertex, b: Vertex) {
        let (a, b) = (self.root(a.index()), self.root(b.index()));
        self.parents[a.max(b)] = a.min(b);
    }
    pub(super) fn root(&mut self, mut at: usize) -> usize {
        while self.parents[at] != at {
            self.parents[at] = self.parents[self.parents[at]];
            at = self.parents[at];
        }
        at
    }
}
