//! The cost of a labelling, computed from the terms without a network. Certificates are checked against it.

use super::problem::{Label, Problem, Scoped, Vertex};

/// The reason why a labelling is not allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Broken {
    /// The number of labels is not the number of vertices.
    #[error("there are {found} labels for {expected} vertices")]
    Labels {
        /// The number of vertices.
        expected: usize,
        /// The number of labels.
        found: usize,
    },
    /// A fixed vertex has the opposite label.
    #[error("{0} is fixed to the other label")]
    Fix(Vertex),
    /// Two vertices that must agree have different labels.
    #[error("{full} is full and {low} is low, but group {group} makes them equal")]
    Equal {
        /// The index of the [`Problem::equal`].
        group: usize,
        /// A full member.
        full: Vertex,
        /// A low member.
        low: Vertex,
    },
    /// An implication does not hold.
    #[error("{if_full} is full and {then_full} is not, against implication {implication}")]
    Imply {
        /// The index of the [`Problem::imply`].
        implication: usize,
        /// The vertex that is full.
        if_full: Vertex,
        /// The vertex that is low.
        then_full: Vertex,
    },
}

impl Problem {
    /// Returns the cost of the labels, or the constraint that they break. Linear.
    pub fn cost(&self, labels: &[Label]) -> Result<i64, Broken> {
        self.check_allowed(labels)?;
        let is = |vertex: Vertex, label: Label| labels[vertex.index()] == label;
        let any = |readers: &[Vertex], label: Label| readers.iter().any(|&reader| is(reader, label));
        let mut cost = 0;
        for term in &self.unary {
            cost += if is(term.vertex, Label::Full) { term.full } else { term.low };
        }
        for (term, readers) in self.tensors.iter().zip(self.tensor_readers.iter()) {
            match labels[term.producer.index()] {
                Label::Full if any(readers, Label::Low) => cost += term.narrow,
                Label::Low if any(readers, Label::Full) => cost += term.widen,
                Label::Full | Label::Low => {}
            }
        }
        for term in &self.scoped {
            cost += Needs::new(self, term, labels).costs.first().copied().unwrap_or(0);
        }
        for (dup, readers) in self.shared.iter().zip(self.shared_readers.iter()) {
            if any(readers, Label::Full) && any(readers, Label::Low) {
                cost += dup;
            }
        }
        for (term, readers) in self.foreign.iter().zip(self.foreign_readers.iter()) {
            cost += if any(readers, Label::Full) { term.to_full } else { 0 };
            cost += if any(readers, Label::Low) { term.to_low } else { 0 };
        }
        Ok(cost)
    }

    /// Returns the places of the `term`th [`Problem::scoped`] value that hold a cast: a cheapest set of places, among
    /// equally cheap sets the outermost. The casts narrow if the producer is full and widen if it is low. A term that
    /// does not exist has no places.
    pub fn used_places(&self, term: usize, labels: &[Label]) -> Result<Vec<usize>, Broken> {
        self.check_length(labels)?;
        let Some(term) = self.scoped.get(term) else { return Ok(Vec::new()) };
        let needs = Needs::new(self, term, labels);
        let mut used = Vec::new();
        // True if the place may hold a cast, because no place around it holds one.
        let mut open = vec![true; needs.costs.len()];
        for (place, data) in self.places[term.range()].iter().enumerate() {
            open[place] = data.parent.is_none_or(|parent| open[parent as usize]);
            if open[place] && needs.any[place] && needs.casts_here[place] {
                used.push(place);
                open[place] = false;
            }
        }
        Ok(used)
    }

    fn check_length(&self, labels: &[Label]) -> Result<(), Broken> {
        let expected = self.vertices as usize;
        if labels.len() == expected { Ok(()) } else { Err(Broken::Labels { expected, found: labels.len() }) }
    }

    fn check_allowed(&self, labels: &[Label]) -> Result<(), Broken> {
        self.check_length(labels)?;
        if let Some(&(vertex, _)) = self.fixed.iter().find(|(v, label)| labels[v.index()] != *label) {
            return Err(Broken::Fix(vertex));
        }
        for (group, members) in self.equal.iter().enumerate() {
            let with = |label| members.iter().find(|v| labels[v.index()] == label);
            if let (Some(&full), Some(&low)) = (with(Label::Full), with(Label::Low)) {
                return Err(Broken::Equal { group, full, low });
            }
        }
        for (implication, &(if_full, then_full)) in self.imply.iter().enumerate() {
            if labels[if_full.index()] == Label::Full && labels[then_full.index()] == Label::Low {
                return Err(Broken::Imply { implication, if_full, then_full });
            }
        }
        Ok(())
    }
}

/// The needs of the readers of a scoped value, by place.
struct Needs {
    /// True if a reader in the place or inside it needs the format that the producer does not have.
    any: Vec<bool>,
    /// The cost of serving the place and all places inside it, if no place around it holds a cast.
    costs: Vec<i64>,
    /// True if a cast in the place itself is among the cheapest solutions.
    casts_here: Vec<bool>,
}

impl Needs {
    /// Computes the needs from the innermost places outwards: `min(own cast, sum over the places inside)`.
    fn new(problem: &Problem, term: &Scoped, labels: &[Label]) -> Needs {
        let producer = labels[term.producer.index()];
        let range = term.range();
        let places = &problem.places[range.clone()];
        let count = places.len();
        let mut needs =
            Needs { any: vec![false; count], costs: vec![0; count], casts_here: vec![false; count] };
        for (place, data) in places.iter().enumerate().rev() {
            let own = match producer {
                Label::Full => data.narrow,
                Label::Low => data.widen,
            };
            let readers = problem.place_readers.get(range.start + place);
            let reads_other = readers.iter().any(|reader| labels[reader.index()] != producer);
            needs.any[place] |= reads_other;
            needs.casts_here[place] = reads_other || own <= needs.costs[place];
            if needs.any[place] && needs.casts_here[place] {
                needs.costs[place] = own;
            }
            if let Some(parent) = data.parent {
                let parent = parent as usize;
                needs.any[parent] |= needs.any[place];
                needs.costs[parent] += needs.costs[place];
            }
        }
        needs
    }
}
