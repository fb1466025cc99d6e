//! The graphs in which a tensor may be cast, and the cheapest of them for given readers.
//!
//! A body that reads a captured value in another format needs a cast of the value, and the cast may stand in the body or in
//! any graph around it. Out of a Loop, Scan or SequenceMap the cast always moves, to run once. Among branches of Ifs the graphs
//! are chosen that together run least often. A single branch, which runs every other time, has the cast for itself; where
//! both branches of an If, or the graph around it, read the value in the format, one cast stands around the If. For example:
//!
//! ```text
//! h = Softmax(x)
//! y = If(c) { then: MatMul(h, h)     low: only this branch reads h low, so h is cast in it,
//!             else: Exp(h) }         and where c is false no cast runs
//! g = Softmax(y)
//! g.f16 = Cast(g)                    the body reads g low: the cast stands before the Loop,
//! z = Loop(n, x) { MatMul(p, g.f16)  and the body captures its result
//!   p.f16 = Cast(p) … }              p is state, another value in each iteration: cast in the body
//! ```

use ampc_ir::op::OpKind;
use ampc_ir::{GraphId, Module, Node};
use rustc_hash::FxHashMap;

/// The graphs in which a tensor may be cast: the graph where it is made, and branches inside it.
#[derive(Debug)]
pub struct Scopes {
    graphs: Vec<Scope>,
    known: FxHashMap<GraphId, usize>,
}

/// A graph in which a tensor may be cast.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// The graph.
    pub graph: GraphId,
    /// The graph around it, as an index; `None` for the graph where the tensor is made.
    pub parent: Option<usize>,
    /// The node of the graph around it that has the graph as a body.
    pub owner: Option<Node>,
}

impl Scopes {
    /// The scopes of a tensor that is made in a graph, with no readers yet.
    pub fn new(home: GraphId) -> Scopes {
        let scope = Scope { graph: home, parent: None, owner: None };
        Scopes { graphs: vec![scope], known: FxHashMap::default() }
    }

    /// The scopes, each after the scope around it.
    pub fn all(&self) -> &[Scope] {
        &self.graphs
    }

    /// The innermost scope for a cast that a reader in a graph needs, as an index: the graph itself, or the graph around the
    /// outermost loop between the tensor and the reader.
    pub fn of(&mut self, module: &Module, graph: GraphId) -> usize {
        let home = self.graphs[0].graph;
        let (mut path, mut at) = (Vec::new(), graph);
        while at != home {
            let Some(owner) = module.owner(at) else { break };
            path.push((at, owner));
            at = module.node(owner).graph;
        }
        let mut scope = 0;
        for (inside, owner) in path.into_iter().rev() {
            if module.node(owner).schema().map(|schema| schema.kind) != Some(OpKind::If) {
                break;
            }
            let graphs = &mut self.graphs;
            scope = *self.known.entry(inside).or_insert_with(|| {
                graphs.push(Scope { graph: inside, parent: Some(scope), owner: Some(owner) });
                graphs.len() - 1
            });
        }
        scope
    }

    /// The cheapest scopes for casts that readers in some scopes need, outermost first.
    ///
    /// Each scope that is needed has a cast in it or around it. The outer of scopes that run
    /// equally often together is chosen, unless it would serve a single scope inside it. `executions` is the number of executions of a graph.
    pub fn cheapest(&self, needed: &[usize], executions: impl Fn(GraphId) -> i64) -> Vec<usize> {
        if let [] | [_] = needed {
            return needed.to_vec();
        }
        let mut is_needed = vec![false; self.graphs.len()];
        let mut children: Vec<Vec<usize>> = vec![Vec::new(); self.graphs.len()];
        for &scope in needed {
            is_needed[scope] = true;
            let mut inside = scope;
            while let Some(around) = self.graphs[inside].parent {
                if children[around].contains(&inside) {
                    break;
                }
                children[around].push(inside);
                inside = around;
            }
        }
        // The least executions of casts for everything in a scope, and whether one cast in the scope has them.
        let mut least = vec![(0, true); self.graphs.len()];
        for scope in (0..self.graphs.len()).rev() {
            let own = executions(self.graphs[scope].graph);
            let inside = children[scope].iter().fold(0i64, |sum, &child| sum.saturating_add(least[child].0));
            let is_cheapest = is_needed[scope]
                || children[scope].is_empty()
                || own < inside
                || own == inside && children[scope].len() > 1;
            least[scope] = if is_cheapest { (own, true) } else { (inside, false) };
        }
        let (mut chosen, mut work) = (Vec::new(), vec![0]);
        while let Some(scope) = work.pop() {
            if least[scope].1 {
                chosen.push(scope);
            } else {
                work.extend(&children[scope]);
            }
        }
        chosen.sort_unstable();
        chosen
    }

    /// The scope of some that is a scope or around it.
    pub fn around(&self, scope: usize, chosen: &[usize]) -> Option<usize> {
        let parents = std::iter::successors(Some(scope), |&scope| self.graphs[scope].parent);
        parents.into_iter().find(|scope| chosen.contains(scope))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ampc_ir::module::GraphOwner;
    use ampc_ir::text::{NoData, parse};

    /// A value that both branches of an If and a branch of a second If inside read, and a Loop in a branch.
    #[test]
    fn casts_stand_where_they_run_least() {
        let text = "opset ai.onnx=20\n\ngraph @main {\n  input %x : f32[4]\n  input %c : bool\n  input %n : i64\n  \
                    %y = If(%c; %x, %c, %n) {\n    then_branch: graph (%x, %c, %n) {\n      \
                    %l = Loop(%n, _; %x) {\n        body: graph (%x) {\n          input %i : i64\n          input %k : bool\n          \
                    %kk = Identity(%k) : bool\n          %s = Relu(%x) : f32[4]\n          output %kk\n          output %s\n        \
                    }\n      } : f32[*]\n      output %l\n    },\n    \
                    else_branch: graph (%x) {\n      %e = Relu(%x) : f32[4]\n      output %e\n    }\n  } : ?\n  output %y\n}\n";
        let module = parse(text, &NoData).unwrap();
        let graphs: Vec<GraphId> = module.program_graphs().to_vec();
        let body = |name: &str| {
            let is = |&&graph: &&GraphId| match module.graph(graph).owner {
                GraphOwner::Body { attr, .. } => module.text(attr) == name,
                _ => false,
            };
            *graphs.iter().find(is).unwrap()
        };
        let (then, in_loop, other) = (body("then_branch"), body("body"), body("else_branch"));
        let mut scopes = Scopes::new(module.main());
        let [of_then, of_loop, of_other] = [then, in_loop, other].map(|graph| scopes.of(&module, graph));
        assert_eq!(of_then, of_loop, "a cast moves out of a loop");
        let executions = |graph| if graph == module.main() { 2 } else { 1 };
        assert_eq!(scopes.cheapest(&[of_loop], executions), [of_then], "one branch has the cast for itself");
        assert_eq!(
            scopes.cheapest(&[of_then, of_other], executions),
            [0],
            "both branches share a cast around them"
        );
        assert_eq!(scopes.cheapest(&[0, of_other], executions), [0], "the main graph reads the cast too");
    }
}
