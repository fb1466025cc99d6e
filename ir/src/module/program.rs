//! Cached analyses that nearly every pass uses: the graphs and nodes of a module in program order, and the
//! index of their names. They are computed on demand and cached until an edit verb invalidates them: nodes and
//! their places, names of nodes, results and functions, the function that a node calls, and the metadata of
//! functions.

use super::Module;
use crate::entity::{GraphId, Node};
use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Analyses that were computed since the last change.
#[derive(Default)]
pub(crate) struct Program {
    listed: OnceLock<Listed>,
    /// The first index requested from [`Module::by_names`].
    named: OnceLock<Arc<dyn Any + Send + Sync>>,
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = self.named.get().is_some();
        f.debug_struct("Program").field("listed", &self.listed).field("named", &named).finish()
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Listed {
    graphs: Vec<GraphId>,
    nodes: Vec<Node>,
}

/// A copy of a module has its own lists, and shares data derived from names.
impl Clone for Program {
    fn clone(&self) -> Program {
        Program { listed: OnceLock::new(), named: self.named.clone() }
    }
}

impl Module {
    /// All graphs: the main graph, functions, and bodies, each after the graph around it.
    pub fn program_graphs(&self) -> &[GraphId] {
        &self.listed().graphs
    }

    /// The nodes of all graphs of [`program_graphs`](Self::program_graphs), each graph in program order.
    pub fn program_nodes(&self) -> &[Node] {
        &self.listed().nodes
    }

    fn listed(&self) -> &Listed {
        let listed = self.program.listed.get_or_init(|| self.list());
        // Where checks are on, that no verb has forgotten to say what it changed.
        debug_assert_eq!(*listed, self.list());
        listed
    }

    fn list(&self) -> Listed {
        let mut graphs = vec![self.main()];
        graphs.extend(self.functions().map(|(_, function)| function.graph));
        let (mut nodes, mut next) = (Vec::new(), 0);
        while let Some(&graph) = graphs.get(next) {
            for node in self.nodes(graph) {
                graphs.extend(self.node(node).bodies());
                nodes.push(node);
            }
            next += 1;
        }
        Listed { graphs, nodes }
    }

    /// The value that `make` computes from the names and the order of nodes, and the names, metadata and calls
    /// of functions: it may look at nothing else. The value is kept until any of these changes. A module keeps
    /// a value of one type, that of the paths by which users name nodes; of another type it is computed each
    /// time.
    pub fn by_names<T: Any + Send + Sync>(&self, make: impl Fn(&Module) -> T) -> Arc<T> {
        let kept = self.program.named.get_or_init(|| Arc::new(make(self)));
        Arc::clone(kept).downcast().unwrap_or_else(|_| Arc::new(make(self)))
    }

    /// Invalidates the program order; called by edit verbs that add, remove or move nodes.
    pub(crate) fn forget_program(&mut self) {
        self.program = Program::default();
    }

    /// Invalidates the names; called by edit verbs that rename something or change the function that a node
    /// calls.
    pub(crate) fn forget_names(&mut self) {
        self.program.named = OnceLock::new();
    }
}
