//! Cheapest labellings by a minimum cut: which vertices are full and which low, such that casts cost least.
//!
//! A [`Problem`] is vertices and terms: what a vertex pays for its label, what a tensor pays if its producer and a
//! reader differ (once per direction, however many readers), what must agree, what follows from what. It knows nothing
//! of graphs of operators. [`Problem::cost`] is its meaning; [`Problem::solve`] finds the labels that cost least.
//!
//! All terms are submodular, so that a minimum cut of a network of linear size is a cheapest labelling (Kolmogorov &
//! Zabih 2004). The steps are a file each:
//!
//! 1. `contradiction`: whether there is an allowed labelling, else the shortest chain of terms that says why not;
//! 2. `network`: the network;
//! 3. `reduce`: a smaller one with the same maximum flow;
//! 4. `max_flow`: a maximum flow of it;
//! 5. `reduce` again: the flow of the whole network, which is the [`Certificate`];
//! 6. `residual`: the labels. Full is what the source still reaches.
//!
//! **Ties.** The cheapest labellings form a lattice (Picard & Queyranne 1980). Of all of them the result is the one
//! whose full vertices are full in every other: the one with the most low vertices. It depends on neither the order of
//! vertices and terms nor the way in which the flow was found. What no term speaks of is low.
//!
//! **Exact.** Costs are integers, and sums are bounded when terms are added ([`Problem::MAX_TOTAL`]); nothing is
//! rounded. [`Certificate::check`] proves a result without trusting anything but the network and the meaning.
//!
//! **Work** is counted in arcs looked at. When the budget is spent the result is the best of a few labellings with a
//! lower bound, and says that it is not known to be optimal; it is the same on every machine.
//!
//! ```
//! use ampc_passes::cut::{DEFAULT_BUDGET, Label, Problem, Vertex};
//!
//! // A full producer, something free, and a low reader. Of two places for the one cast, the first leaves more low.
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

/// Three times what the largest benchmarks need that are like models, with a million vertices; spent within seconds.
pub const DEFAULT_BUDGET: u64 = 1 << 28;

/// How to solve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SolveOptions {
    /// How many visits of arcs the search for a maximum flow may make. The linear steps before and after it do not
    /// count.
    pub budget: u64,
    /// Whether to make the network smaller first. The result is the same.
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
    /// What the labels cost.
    pub cost: i64,
    /// What no labelling costs less than.
    pub lower_bound: i64,
    /// Whether the labels are a cheapest labelling, the one with the most low vertices.
    pub optimal: bool,
    /// The proof of the lower bound.
    pub certificate: Certificate,
    /// How many arcs the search for a maximum flow looked at.
    pub visits: u64,
}

impl Problem {
    /// A cheapest labelling, of all of them the one with the most low vertices; see the module about budgets.
    pub fn solve(&self, budget: u64) -> Result<Solution, Contradiction> {
        self.solve_with(&SolveOptions { budget, ..SolveOptions::default() })
    }

    /// As [`Problem::solve`], with all options.
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

    /// The cheapest of: all low, what infinite arcs demand, the cheapest level of the residual network, all full. Of
    /// equally cheap ones the first.
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
            // The last two may break an implication.
            if let Ok(cost) = self.cost(&candidate)
                && cost < best.1
            {
                best = (candidate, cost);
            }
        }
        best
    }
}
