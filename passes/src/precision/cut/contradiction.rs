//! Checks that the terms `fix`, `equal` and `imply` can hold together, by a search from the vertices that are fixed
//! full.
//!
//! Example: a is fixed full, a implies b, group 0 makes b and c equal, and c is fixed low. The search reaches b by the
//! implication and c by the group, so the contradiction is `full: a` with the steps b (`Imply(0)`) and c (`Equal(0)`).

use super::adjacency::Adjacency;
use super::problem::{Label, Problem, Vertex};
use std::fmt;

/// A chain of terms that contradict each other: a vertex is fixed full, and the terms make a vertex full that is fixed
/// low.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Contradiction {
    /// The vertex that is fixed full.
    pub full: Vertex,
    /// The shortest chain of consequences. The last vertex is fixed low; without steps, `full` itself is fixed low too.
    pub steps: Vec<Step>,
}

/// A consequence: one more vertex that must be full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// The term.
    pub by: Link,
    /// The vertex that the term makes full.
    pub vertex: Vertex,
}

/// A term that makes vertices full.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    /// The index of the [`Problem::equal`].
    Equal(usize),
    /// The index of the [`Problem::imply`].
    Imply(usize),
}

impl Contradiction {
    /// The vertex that is fixed low.
    pub fn low(&self) -> Vertex {
        self.steps.last().map_or(self.full, |step| step.vertex)
    }
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is fixed full", self.full)?;
        for step in &self.steps {
            match step.by {
                Link::Equal(group) => write!(f, ", {} is equal by group {group}", step.vertex)?,
                Link::Imply(index) => write!(f, ", so {} is full by implication {index}", step.vertex)?,
            }
        }
        write!(f, ", but it is fixed low")
    }
}

impl std::error::Error for Contradiction {}

/// The reason why a vertex is full.
#[derive(Clone, Copy)]
enum Cause {
    None,
    Fixed,
    By(Link, Vertex),
}

/// Returns the contradiction with the fewest steps, if there is one. Linear.
pub(super) fn find(problem: &Problem) -> Option<Contradiction> {
    let count = problem.vertices as usize;
    let mut low = vec![false; count];
    let mut cause = vec![Cause::None; count];
    let mut queue = Vec::new();
    for &(vertex, label) in &problem.fixed {
        match label {
            Label::Low => low[vertex.index()] = true,
            Label::Full if matches!(cause[vertex.index()], Cause::None) => {
                cause[vertex.index()] = Cause::Fixed;
                queue.push(vertex);
            }
            Label::Full => {}
        }
    }
    let groups = groups_of(problem);
    let implied = Adjacency::new(count, (0..).zip(&problem.imply).map(|(i, &(from, _))| (from.0, i)));
    let mut seen_groups = vec![false; problem.equal.len()];
    let mut next = 0;
    while let Some(&vertex) = queue.get(next) {
        next += 1;
        if low[vertex.index()] {
            return Some(explain(&cause, vertex));
        }
        let mut reach = |link, to: Vertex| {
            if matches!(cause[to.index()], Cause::None) {
                cause[to.index()] = Cause::By(link, vertex);
                queue.push(to);
            }
        };
        for &group in groups.of(vertex.0) {
            let group = group as usize;
            if !std::mem::replace(&mut seen_groups[group], true) {
                problem.equal.get(group).iter().for_each(|&to| reach(Link::Equal(group), to));
            }
        }
        for &index in implied.of(vertex.0) {
            let index = index as usize;
            reach(Link::Imply(index), problem.imply[index].1);
        }
    }
    None
}

fn groups_of(problem: &Problem) -> Adjacency {
    let members = (0..)
        .zip(problem.equal.iter())
        .flat_map(|(group, members): (u32, &[Vertex])| members.iter().map(move |member| (member.0, group)));
    let pairs: Vec<(u32, u32)> = members.collect();
    Adjacency::new(problem.vertices as usize, pairs.into_iter())
}

fn explain(cause: &[Cause], low: Vertex) -> Contradiction {
    let mut vertex = low;
    let mut steps = Vec::new();
    while let Cause::By(by, from) = cause[vertex.index()] {
        steps.push(Step { by, vertex });
        vertex = from;
    }
    steps.reverse();
    Contradiction { full: vertex, steps }
}
