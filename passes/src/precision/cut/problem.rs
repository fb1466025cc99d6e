//! The problem: vertices that are full or low, and terms that restrict labels or give them a cost.

use std::fmt;

/// A vertex: an entity that has one precision.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Vertex(pub u32);

impl Vertex {
    /// The index of the vertex in a list of labels.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Vertex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vertex {}", self.0)
    }
}

/// The precision of a vertex.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Label {
    /// The 16-bit format. A vertex without terms is low.
    #[default]
    Low,
    /// fp32.
    Full,
}

/// A scope that may hold the casts of a value; see [`Problem::scoped`].
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Index of the place around this place; `None` for the first place only. A place comes after the place around it.
    pub parent: Option<usize>,
    /// The cost of a narrowing cast in this place.
    pub narrow: i64,
    /// The cost of a widening cast in this place.
    pub widen: i64,
    /// The readers of the value in this scope itself, without the scopes inside it.
    pub readers: &'a [Vertex],
}

/// The error of a term that was not added. The problem is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Invalid {
    /// A vertex that does not exist.
    #[error("{vertex} is not one of the {vertices} vertices")]
    NoSuchVertex {
        /// The vertex.
        vertex: Vertex,
        /// The number of vertices of the problem.
        vertices: u32,
    },
    /// A cost below 0.
    #[error("a cost is {0}, but costs are 0 or more")]
    NegativeCost(i64),
    /// All costs together exceed [`Problem::MAX_TOTAL`].
    #[error("the costs add up to more than {}", Problem::MAX_TOTAL)]
    TotalTooLarge,
    /// The vertices, terms and readers are too many to be numbered.
    #[error("the problem has more vertices, terms and readers than can be numbered")]
    TooManyTerms,
    /// The first place has a parent, or a later place has no parent or a parent that does not come before it.
    #[error("place {0} does not come after the place around it")]
    PlaceOrder(usize),
}

/// Lists of vertices, one after the other.
#[derive(Clone, Debug, Default)]
pub(super) struct Lists {
    ends: Vec<u32>,
    items: Vec<Vertex>,
}

impl Lists {
    fn push(&mut self, list: &[Vertex]) {
        self.items.extend_from_slice(list);
        let end = u32::try_from(self.items.len()).expect("the builder has counted the readers");
        self.ends.push(end);
    }

    pub(super) fn get(&self, index: usize) -> &[Vertex] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        &self.items[start..self.ends[index] as usize]
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &[Vertex]> {
        (0..self.len()).map(|index| self.get(index))
    }
}

#[derive(Clone, Debug)]
pub(super) struct Unary {
    pub(super) vertex: Vertex,
    pub(super) full: i64,
    pub(super) low: i64,
}

#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub(super) producer: Vertex,
    pub(super) narrow: i64,
    pub(super) widen: i64,
}

/// A place of a scoped value; places of one value follow each other, parents first.
#[derive(Clone, Debug)]
pub(super) struct ScopedPlace {
    /// Index of the parent among the places of the same value.
    pub(super) parent: Option<u32>,
    pub(super) narrow: i64,
    pub(super) widen: i64,
}

#[derive(Clone, Debug)]
pub(super) struct Scoped {
    pub(super) producer: Vertex,
    /// The range of its places in `Problem::places`.
    pub(super) places: std::ops::Range<u32>,
}

impl Scoped {
    pub(super) fn range(&self) -> std::ops::Range<usize> {
        self.places.start as usize..self.places.end as usize
    }
}

#[derive(Clone, Debug)]
pub(super) struct Foreign {
    pub(super) to_full: i64,
    pub(super) to_low: i64,
}

/// A set of vertices and terms. The cost of a labelling is the sum over the terms; see [`Problem::cost`].
///
/// Terms of one kind are numbered in the order in which they are added.
#[derive(Clone, Debug, Default)]
pub struct Problem {
    pub(super) vertices: u32,
    pub(super) fixed: Vec<(Vertex, Label)>,
    pub(super) unary: Vec<Unary>,
    pub(super) equal: Lists,
    pub(super) imply: Vec<(Vertex, Vertex)>,
    pub(super) tensors: Vec<Tensor>,
    pub(super) tensor_readers: Lists,
    pub(super) scoped: Vec<Scoped>,
    pub(super) places: Vec<ScopedPlace>,
    pub(super) place_readers: Lists,
    pub(super) shared: Vec<i64>,
    pub(super) shared_readers: Lists,
    pub(super) foreign: Vec<Foreign>,
    pub(super) foreign_readers: Lists,
    /// An upper bound of the sum of the capacities of the network.
    total: i64,
    /// An upper bound of the number of nodes and arcs of the network.
    size: u32,
}

impl Problem {
    /// An upper bound of all costs together, so that no sum of costs overflows.
    ///
    /// A cost counts once, except that a cost of [`Problem::shared`] or [`Problem::foreign`] counts twice.
    pub const MAX_TOTAL: i64 = i64::MAX / 4;

    const MAX_SIZE: u32 = u32::MAX / 4;

    /// Returns a problem with vertices 0 to `count` - 1 and no terms.
    pub fn with_vertices(count: u32) -> Result<Problem, Invalid> {
        let mut problem = Problem::default();
        problem.charge(&[], u64::from(count))?;
        problem.vertices = count;
        Ok(problem)
    }

    /// Adds a vertex.
    pub fn add_vertex(&mut self) -> Result<Vertex, Invalid> {
        self.charge(&[], 1)?;
        let vertex = Vertex(self.vertices);
        self.vertices += 1;
        Ok(vertex)
    }

    /// The number of vertices.
    pub fn vertices(&self) -> u32 {
        self.vertices
    }

    /// Adds the constraint that the vertex has this label.
    pub fn fix(&mut self, vertex: Vertex, label: Label) -> Result<(), Invalid> {
        self.known(&[vertex])?;
        self.charge(&[], 1)?;
        self.fixed.push((vertex, label));
        Ok(())
    }

    /// Adds the cost `full` if the vertex is full and `low` if it is low.
    pub fn unary(&mut self, vertex: Vertex, full: i64, low: i64) -> Result<(), Invalid> {
        self.known(&[vertex])?;
        self.charge(&[full, low], 2)?;
        self.unary.push(Unary { vertex, full, low });
        Ok(())
    }

    /// Adds the constraint that the vertices have the same label.
    pub fn equal(&mut self, members: &[Vertex]) -> Result<(), Invalid> {
        self.known(members)?;
        self.charge(&[], members.len() as u64)?;
        self.equal.push(members);
        Ok(())
    }

    /// Adds the constraint that `then_full` is full if `if_full` is full.
    pub fn imply(&mut self, if_full: Vertex, then_full: Vertex) -> Result<(), Invalid> {
        self.known(&[if_full, then_full])?;
        self.charge(&[], 1)?;
        self.imply.push((if_full, then_full));
        Ok(())
    }

    /// Adds the casts of a tensor: `narrow` is paid once if the producer is full and some reader low, `widen` once if
    /// the producer is low and some reader full. A repeated reader counts once; a reader that is the producer does not
    /// count.
    pub fn tensor(
        &mut self,
        producer: Vertex,
        narrow: i64,
        widen: i64,
        readers: &[Vertex],
    ) -> Result<(), Invalid> {
        self.known(&[producer])?;
        self.known(readers)?;
        self.charge(&[narrow, widen], 4 + 2 * readers.len() as u64)?;
        self.tensors.push(Tensor { producer, narrow, widen });
        self.tensor_readers.push(readers);
        Ok(())
    }

    /// Adds the casts of a tensor that is read in several scopes. A cast in a place serves the readers in that place
    /// and in the places inside it; the cheapest set of places counts.
    pub fn scoped(&mut self, producer: Vertex, places: &[Place<'_>]) -> Result<(), Invalid> {
        self.known(&[producer])?;
        for (index, place) in places.iter().enumerate() {
            self.known(place.readers)?;
            let in_order = place.parent.map_or(index == 0, |parent| parent < index);
            if !in_order {
                return Err(Invalid::PlaceOrder(index));
            }
        }
        let costs: Vec<i64> = places.iter().flat_map(|place| [place.narrow, place.widen]).collect();
        let readers: usize = places.iter().map(|place| place.readers.len()).sum();
        self.charge(&costs, 4 * places.len() as u64 + 2 * readers as u64)?;
        let start = self.number_of_places();
        for place in places {
            let parent = place.parent.and_then(|parent| u32::try_from(parent).ok());
            self.places.push(ScopedPlace { parent, narrow: place.narrow, widen: place.widen });
            self.place_readers.push(place.readers);
        }
        self.scoped.push(Scoped { producer, places: start..self.number_of_places() });
        Ok(())
    }

    /// Adds a constant: `dup` is paid once if some reader is full and some reader is low.
    pub fn shared(&mut self, dup: i64, readers: &[Vertex]) -> Result<(), Invalid> {
        self.known(readers)?;
        self.charge(&[dup, dup], 5 + 2 * readers.len() as u64)?;
        self.shared.push(dup);
        self.shared_readers.push(readers);
        Ok(())
    }

    /// Adds a value of a third format: `to_full` is paid once if some reader is full, `to_low` once if some reader is
    /// low.
    pub fn foreign(&mut self, to_full: i64, to_low: i64, readers: &[Vertex]) -> Result<(), Invalid> {
        self.known(readers)?;
        self.charge(&[to_full, to_full, to_low, to_low], 7 + 2 * readers.len() as u64)?;
        self.foreign.push(Foreign { to_full, to_low });
        self.foreign_readers.push(readers);
        Ok(())
    }

    /// A capacity above every cut that breaks no `equal` and no `imply`.
    pub(super) fn infinity(&self) -> i64 {
        self.total + 1
    }

    fn number_of_places(&self) -> u32 {
        u32::try_from(self.places.len()).expect("the builder has counted the places")
    }

    fn known(&self, vertices: &[Vertex]) -> Result<(), Invalid> {
        match vertices.iter().find(|vertex| vertex.0 >= self.vertices) {
            Some(&vertex) => Err(Invalid::NoSuchVertex { vertex, vertices: self.vertices }),
            None => Ok(()),
        }
    }

    /// Adds the costs and the size to the bounds `total` and `size`. On an error, both bounds keep their values.
    fn charge(&mut self, costs: &[i64], size: u64) -> Result<(), Invalid> {
        let mut total = self.total;
        for &cost in costs {
            if cost < 0 {
                return Err(Invalid::NegativeCost(cost));
            }
            total = total.checked_add(cost).ok_or(Invalid::TotalTooLarge)?;
        }
        if total > Self::MAX_TOTAL {
            return Err(Invalid::TotalTooLarge);
        }
        let size = size.checked_add(u64::from(self.size)).and_then(|size| u32::try_from(size).ok());
        self.size = size.filter(|&size| size <= Self::MAX_SIZE).ok_or(Invalid::TooManyTerms)?;
        self.total = total;
        Ok(())
    }
}
