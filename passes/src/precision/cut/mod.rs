//! Labels every vertex full or low so that the casts between them cost least, by a minimum cut.
//!
//! A [`Problem`] consists of vertices and terms. A term is the cost of a label of a vertex, the cost of a cast of a
//! tensor whose producer and some reader differ (once per direction, whatever the number of readers), a set of vertices
//! that must agree, or an implication between two vertices. A problem knows nothing of graphs of operators.
//! [`Problem::cost`] defines the cost of a labelling; [`Problem::solve`] finds the cheapest labelling.
//!
//! All terms are submodular, so a minimum cut of a network of linear size is a cheapest labelling (Kolmogorov & Zabih
//! 2004). Each step is a file:
//!
//! 1. `contradiction`: checks that an allowed labelling exists; if not, finds the shortest chain of terms that
//!    contradict each other;
//! 2. `network`: builds the network;
//! 3. `reduce`: builds a smaller network with the same maximum flow;
//! 4. `max_flow`: finds a maximum flow of the smaller network;
//! 5. `reduce` again: lifts that flow to the whole network, where it is the [`Certificate`];
//! 6. `residual`: reads the labels from the residual network. A vertex that the source still reaches is full.
//!
//! **Ties.** The cheapest labellings form a lattice (Picard & Queyranne 1980). The result is the labelling with the
//! most low vertices: its full vertices are full in every cheapest labelling. The result depends neither on the order
//! of the vertices and terms nor on the way in which the flow was found. A vertex without terms is low.
//!
//! **Exact.** Costs are integers, and their sums are bounded when terms are added ([`Problem::MAX_TOTAL`]); nothing is
//! rounded. [`Certificate::check`] proves a result and trusts only `network` and [`Problem::cost`].
//!
//! **Work** is counted in visits of arcs. When the budget is spent, the result is the best of a few candidate
//! labellings with a lower bound, marked as not known to be optimal. Such a result is the same on every machine.
//!
//! ```
//! use ampc_passes::cut::{DEFAULT_BUDGET, Label, Problem, Vertex};
//!
//! // A full producer, a free vertex and a low reader. The first of two places for the cast leaves more vertices low.
//! let mut problem = Problem::with_vertices(3)?;
//! problem.fix(Vertex(0), Label::Full)?;
//! problem.fix(Vertex(2), Label::Low)?;
//! problem.tensor(Vertex(0), 1, 1, &[Vertex(1)])?;
//! problem.tensor(Vertex(1), 1, 1, &[Vertex(2)])?;
//! let solution = problem.solve(DEFAULT_BUDGET)?;
//! assert_eq!(solution.cost, 1);
//! assert_eq!(solution.labels, [Label::Full, Label::Low, Label::Low]);
//! solution.certificate.check(&problem, &solution.labels)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod adjacency;
mod certificate;
mod contradiction;
mod evaluate;
mod max_flow;
mod network;
mod problem;
mod reduce;
mod residual;

pub use certificate::{Certificate, Uncertified};
pub use contradiction::{Contradiction, Link, Step};
pub use evaluate::Broken;
pub use problem::{Invalid, Label, Place, Problem, Vertex};

use max_flow::max_flow;
use network::{Network, SINK};
use reduce::Reduced;
use residual::UNREACHED;

/// Three times the budget that the largest model-like benchmarks need, which have a million vertices. Spent within
/// seconds.
pub const DEFAULT_BUDGET: u64 = 1 << 28;

/// Options of [`Problem::solve_with`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SolveOptions {
    /// The number of arcs that the search for a maximum flow may visit. The linear steps before and after the search do
    /// not count.
    pub budget: u64,
    /// True if the network is reduced before the search. The result is the same.
    pub reduce: bool,
}

impl Default for SolveOptions {
    fn default() -> SolveOptions {
        SolveOptions { budget: DEFAULT_BUDGET, reduce: true }
    }
}

/// An allowed labelling.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Solution {
    /// The label of every vertex.
    pub labels: Vec<Label>,
    /// The cost of the labels.
    pub cost: i64,
    /// A lower bound of the cost of every labelling.
    pub lower_bound: i64,
    /// True if the labels are known to be the cheapest labelling with the most low vertices.
    pub optimal: bool,
    /// The proof of the lower bound.
    pub certificate: Certificate,
    /// The number of arcs that the search for a maximum flow visited.
    pub visits: u64,
}

impl Problem {
    /// Returns the cheapest labelling with the most low vertices. The module comment says what happens when the budget
    /// is spent.
    pub fn solve(&self, budget: u64) -> Result<Solution, Contradiction> {
        self.solve_with(&SolveOptions { budget, ..SolveOptions::default() })
    }

    /// Does the same as [`Problem::solve`], with all options.
    pub fn solve_with(&self, options: &SolveOptions) -> Result<Solution, Contradiction> {
        let network = Network::new(self)?;
        let reduced = Reduced::new(&network, options.reduce);
        let found = max_flow(&reduced.graph, options.budget);
        let flow = reduced.lift(&found);
        drop(reduced);
        let levels = residual::levels(&network, &flow);
        let certificate = Certificate { flow };
        let lower_bound = certificate.bound(&network).expect("lifted flows are feasible");
        let optimal = levels[SINK as usize] == UNREACHED;
        debug_assert!(optimal || !found.maximum, "a maximum flow is one after lifting");
        let (labels, cost) = if optimal {
            let labels = residual::labels(&network, &levels, UNREACHED - 1);
            let cost = self.cost(&labels).expect("infinite arcs are not cut");
            (labels, cost)
        } else {
            self.best_of_candidates(&network, &levels)
        };
        debug_assert!(!optimal || cost == lower_bound, "cost {cost} and bound {lower_bound} of an optimum");
        Ok(Solution { labels, cost, lower_bound, optimal, certificate, visits: found.visits })
    }

    /// Returns the cheapest of four labellings: only the vertices full that infinite arcs demand, the cheapest level of
    /// the residual network, all low, all full. The first of equally cheap labellings wins.
    fn best_of_candidates(&self, network: &Network, levels: &[u32]) -> (Vec<Label>, i64) {
        let terminals = |inner: u32| {
            let mut levels = vec![inner; levels.len()];
            (levels[network::SOURCE as usize], levels[SINK as usize]) = (0, UNREACHED);
            levels
        };
        let level = residual::cheapest_level(network, levels);
        let required = residual::labels(network, levels, 0);
        let cost = self.cost(&required).expect("infinite arcs stay within a level");
        let mut best = (required, cost);
        let candidates = [
            residual::labels(network, levels, level),
            residual::labels(network, &terminals(1), 0),
            residual::labels(network, &terminals(0), 0),
        ];
        for candidate in candidates {
            // The labellings all low and all full may break an implication.
            if let Ok(cost) = self.cost(&candidate)
                && cost < best.1
            {
                best = (candidate, cost);
            }
        }
        best
    }
}
