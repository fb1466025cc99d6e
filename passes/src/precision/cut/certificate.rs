//! A proof of optimality that does not depend on how the labels were found.

use super::contradiction::Contradiction;
use super::evaluate::Broken;
use super::network::{Network, SINK, SOURCE};
use super::problem::{Label, Problem, Vertex};
use super::residual::{UNREACHED, levels};

/// A flow in the unreduced network of a problem. No labelling costs less than the value of the flow plus the cost that
/// every labelling pays (weak duality; Ford & Fulkerson 1956).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Certificate {
    pub(super) flow: Vec<i64>,
}

/// The reason why a certificate does not prove labels optimal.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Uncertified {
    /// No labelling is allowed.
    #[error(transparent)]
    Contradiction(#[from] Contradiction),
    /// The labels are not allowed.
    #[error(transparent)]
    Broken(#[from] Broken),
    /// The flow belongs to another network.
    #[error("the flow has {found} arcs and the network {expected}")]
    Arcs {
        /// The number of arcs of the network.
        expected: usize,
        /// The number of arcs of the flow.
        found: usize,
    },
    /// The flow along an arc is negative or exceeds its capacity.
    #[error("the flow along arc {0} is not between 0 and its capacity")]
    Capacity(usize),
    /// The flow into a node differs from the flow out of it.
    #[error("flow is not conserved at node {0}")]
    Conservation(usize),
    /// The cost of the labels differs from the lower bound that the flow proves. A cost below the bound is an error in
    /// the network.
    #[error("the labels cost {cost} and the flow proves {lower_bound}")]
    Gap {
        /// The cost of the labels.
        cost: i64,
        /// The lower bound that the flow proves.
        lower_bound: i64,
    },
    /// Another optimal labelling makes this vertex low.
    #[error("{0} could be low")]
    CouldBeLow(Vertex),
}

impl Certificate {
    /// Checks that the labels are a cheapest labelling, namely the one with the most low vertices.
    ///
    /// The cost is computed by [`Problem::cost`], which does not use the network. The flow must be feasible and its
    /// bound equal to the cost, and the source must reach every full vertex in the residual network (Picard & Queyranne
    /// 1980). Linear.
    pub fn check(&self, problem: &Problem, labels: &[Label]) -> Result<(), Uncertified> {
        let cost = problem.cost(labels)?;
        let network = Network::new(problem)?;
        let lower_bound = self.bound(&network)?;
        if cost != lower_bound {
            return Err(Uncertified::Gap { cost, lower_bound });
        }
        let levels = levels(&network, &self.flow);
        for ((vertex, &label), &node) in (0..).map(Vertex).zip(labels).zip(&network.node_of) {
            if label == Label::Full && levels[node as usize] == UNREACHED {
                return Err(Uncertified::CouldBeLow(vertex));
            }
        }
        Ok(())
    }

    /// Returns a lower bound of the cost of every labelling, if the flow is feasible, even if the labels are not
    /// optimal. Linear.
    pub fn lower_bound(&self, problem: &Problem) -> Result<i64, Uncertified> {
        self.bound(&Network::new(problem)?)
    }

    pub(super) fn bound(&self, network: &Network) -> Result<i64, Uncertified> {
        if self.flow.len() != network.arcs.len() {
            return Err(Uncertified::Arcs { expected: network.arcs.len(), found: self.flow.len() });
        }
        // Flows around cycles may add up to more than 64 bits hold.
        let mut surplus = vec![0_i128; network.nodes as usize];
        for (index, (arc, &flow)) in network.arcs.iter().zip(&self.flow).enumerate() {
            if flow < 0 || flow > arc.capacity {
                return Err(Uncertified::Capacity(index));
            }
            surplus[arc.from as usize] -= i128::from(flow);
            surplus[arc.to as usize] += i128::from(flow);
        }
        let inner = surplus.iter().enumerate().skip(SINK as usize + 1);
        if let Some((node, _)) = inner.into_iter().find(|(_, surplus)| **surplus != 0) {
            return Err(Uncertified::Conservation(node));
        }
        let bound = i128::from(network.base) - surplus[SOURCE as usize];
        // Every cut is an upper bound, and a finite cut fits into 64 bits.
        i64::try_from(bound).map_err(|_| Uncertified::Conservation(SOURCE as usize))
    }
}
