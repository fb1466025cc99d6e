//! What a labelling costs, said without a network: the meaning of the terms, which certificates are checked against.

use super::problem::{Label, Problem, Scoped, Vertex};

/// Why a labelling is not allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Broken {
    /// Not one label per vertex.
    #[error("there are {found} labels for {expected} vertices")]
    Labels {
        /// The number of vertices.
        expected: usize,
        /// The number of labels.
        found: usize,
    },
    /// A fixed vertex has the other label.
    #[error("{0} is fixed to the other label")]
    Fix(Vertex),
    /// Two vertices that must agree do not.
    #[error("{full} is full and {low} is low, but group {group} makes them equal")]
    Equal {
        /// Which [`Problem::equal`].
        group: usize,
        /// A full member.
        full: Vertex,
        /// A low member.
        low: Vertex,
    },
    /// An implication does not hold.
    #[error("{if_full} is full and {then_full} is not, against implication {implication}")]
    Imply {
        /// Which [`Problem::imply`].
        implication: usize,
        /// The vertex that is full.
        if_full: Vertex,
        /// The vertex that is low.
        then_full: Vertex,
    },
}

impl Problem {
    /// The cost of the labels, or what they break. Linear.
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

    /// The places of a [`Problem::scoped`] value (the `term`th) that hold a cast, a cheapest set of them; among equally
    /// cheap ones, the outermost. They narrow if the producer is full and widen if it is low. A term that does not
    /// exist has no places.
    pub fn used_places(&self, term: usize, labels: &[Label]) -> Result<Vec<usize>, Broken> {
        self.check_length(labels)?;
        let Some(term) = self.scoped.get(term) else { return Ok(Vec::new()) };
        let needs = Needs::new(self, term, labels);
        let mut used = Vec::new();
        // Whether a place may cast: what is around it does not.
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

/// What the readers of a scoped value need, by place.
struct Needs {
    /// Whether something in the place or inside it reads the other format.
    any: Vec<bool>,
    /// What serving the place and all inside it costs, if nothing around it casts.
    costs: Vec<i64>,
    /// Whether a cast in the place itself is among the cheapest ways.
    casts_here: Vec<bool>,
}

impl Needs {
    /// From the innermost places outwards: `min(own cast, sum over the places inside)`.
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
