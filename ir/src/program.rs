//! The graphs and nodes of a module in program order: asked for by nearly every pass, changed by few. They are listed
//! when somebody asks and kept until an edit verb changes which nodes there are, or where.

use crate::{GraphId, Module, Node};
use std::sync::OnceLock;

/// Lists of graphs and nodes, if somebody has asked since the last change.
#[derive(Debug, Default)]
pub(crate) struct Program(OnceLock<Listed>);

#[derive(Debug, PartialEq, Eq)]
struct Listed {
    graphs: Vec<GraphId>,
    nodes: Vec<Node>,
}

/// A copy of a module lists its own.
impl Clone for Program {
    fn clone(&self) -> Program {
        Program::default()
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
        let listed = self.program.0.get_or_init(|| self.list());
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

    /// What edit verbs call that change which nodes there are, or where.
    pub(crate) fn forget_program(&mut self) {
        self.program = Program::default();
    }
}
