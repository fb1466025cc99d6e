//! The terms of the choice for a tensor: a cast for each format that the tensor is read in and not made in.

use super::{Choice, FULL, Held, LOW};
use crate::analysis::placement::Scopes;
use crate::analysis::tensors::{End, Producer, Reading, Tensor};
use crate::precision::cut::{Invalid, Label, Place, Vertex};
use ampc_ir::{DType, GraphId, Node, Value};
use std::collections::BTreeMap;

/// The readers of a tensor, with the graph in which a cast for each would stand.
struct Readers {
    read: Vec<(GraphId, Vertex)>,
    /// The same, where the author has cast to fp32 before.
    widened: Vec<(GraphId, Vertex)>,
    /// Outputs of bodies around which the tensor is made: each has a cast of its own.
    own: Vec<(GraphId, Vertex)>,
    /// The readers in the kernel that makes the tensor, by node.
    fused: BTreeMap<Node, Vec<Vertex>>,
    /// The formats and graphs of casts of the author that serve no other reader.
    casts: Vec<(DType, GraphId)>,
}

impl Choice<'_> {
    /// Adds the cost of the casts of a tensor.
    pub(super) fn tensor(&mut self, at: usize) -> Result<(), Invalid> {
        let Tensor { value, producer, ref readers, ref casts, .. } = self.all[at];
        let (to, full, casts) = (self.tensors.to, DType::F32, casts.clone());
        let (mut read, mut widened, mut own) = (Vec::new(), Vec::new(), Vec::new());
        let mut fused: BTreeMap<Node, Vec<Vertex>> = BTreeMap::new();
        for reading in readers.clone() {
            let Some(vertex) = self.of_end(reading.end)? else { continue };
            if let Some(node) = reading.fused {
                fused.entry(node).or_default().push(vertex);
                continue;
            }
            if reading.own && producer != Producer::Constant {
                own.push((reading.graph, vertex));
                continue;
            }
            read.push((reading.graph, vertex));
            widened.push((reading.widened, vertex));
        }
        for readers in [&mut read, &mut widened, &mut own] {
            readers.sort_unstable();
        }
        read.dedup();
        widened.dedup();
        let end = match producer {
            Producer::Constant => {
                let readers: Vec<Vertex> = read.iter().map(|&(_, vertex)| vertex).collect();
                return self.problem.shared(self.costs.copy_cost(value), &readers);
            }
            Producer::End(end) => end,
        };
        if let Some(format) = self.other(end) {
            let readers = Readers { read, widened, own, fused, casts };
            return self.tensor_of_other(value, format, &readers);
        }
        let Some(producer) = self.of_end(end)? else { return Ok(()) };
        let price = self.price(value);
        for readers in fused.values() {
            let cost = self.costs.fused_cast_cost(value, full, to);
            self.problem.tensor(producer, cost + price, cost, readers)?;
        }
        for (result, graph) in casts {
            if result == to {
                let narrow = self.costs.cast_cost(value, graph, full, to) + price;
                self.problem.tensor(producer, narrow, 0, &[LOW])?;
            } else {
                self.problem.tensor(producer, 0, self.costs.cast_cost(value, graph, to, full), &[FULL])?;
            }
        }
        for (graph, vertex) in own {
            let narrow = self.costs.cast_cost(value, graph, full, to) + price;
            let widen = self.costs.cast_cost(value, graph, to, full);
            self.problem.tensor(producer, narrow, widen, &[vertex])?;
        }
        if read == widened {
            return self.casts_of(producer, value, &read, [Some((full, to)), Some((to, full))]);
        }
        self.casts_of(producer, value, &read, [Some((full, to)), None])?;
        self.casts_of(producer, value, &widened, [None, Some((to, full))])
    }

    /// Adds the cost of the casts of a tensor of another 16-bit format. Its producer is neither fp32 nor low, so it counts as
    /// two: one that everything low is cast from, and one that everything fp32 is.
    fn tensor_of_other(&mut self, value: Value, format: DType, readers: &Readers) -> Result<(), Invalid> {
        let (to, full) = (self.tensors.to, DType::F32);
        for fused in readers.fused.values() {
            self.problem.tensor(FULL, self.costs.fused_cast_cost(value, format, to), 0, fused)?;
            self.problem.tensor(LOW, 0, self.costs.fused_cast_cost(value, format, full), fused)?;
        }
        for &(result, graph) in &readers.casts {
            self.problem.tensor(FULL, self.costs.cast_cost(value, graph, format, result), 0, &[LOW])?;
        }
        for &(graph, vertex) in &readers.own {
            self.problem.tensor(FULL, self.costs.cast_cost(value, graph, format, to), 0, &[vertex])?;
            self.problem.tensor(LOW, 0, self.costs.cast_cost(value, graph, format, full), &[vertex])?;
        }
        self.casts_of(FULL, value, &readers.read, [Some((format, to)), None])?;
        self.casts_of(LOW, value, &readers.widened, [None, Some((format, full))])
    }

    /// One cast for what is low and one for what is fp32, each from a type to another, as few and as seldom run as
    /// can be.
    fn casts_of(
        &mut self,
        producer: Vertex,
        value: Value,
        readers: &[(GraphId, Vertex)],
        [narrow, widen]: [Option<(DType, DType)>; 2],
    ) -> Result<(), Invalid> {
        let price = self.price(value);
        let cost = |graph, cast: Option<(DType, DType)>| {
            let price = |from| if from == DType::F32 { price } else { 0 };
            cast.map_or(0, |(from, to)| self.costs.cast_cost(value, graph, from, to) + price(from))
        };
        let module = self.tensors.module;
        let mut scopes = Scopes::new(module.value(value).graph);
        let mut of_scopes: Vec<Vec<Vertex>> = Vec::new();
        for &(graph, vertex) in readers {
            let scope = scopes.of(module, graph);
            of_scopes.resize(scopes.all().len(), Vec::new());
            of_scopes[scope].push(vertex);
        }
        let places = scopes.all().iter().zip(&of_scopes);
        let places: Vec<Place<'_>> = places
            .map(|(scope, readers)| Place {
                parent: scope.parent,
                narrow: cost(scope.graph, narrow),
                widen: cost(scope.graph, widen),
                readers,
            })
            .collect();
        match places[..] {
            [Place { narrow, widen, readers, .. }] => self.problem.tensor(producer, narrow, widen, readers),
            _ => self.problem.scoped(producer, &places),
        }
    }

    /// The price of rounding a value; 0 if error costs nothing.
    fn price(&self, value: Value) -> i64 {
        self.prices.map_or(0, |prices| prices.of(value))
    }

    /// Ties the ends of a tensor that never cause a cast to the tensor: operators that take any element type, and sources.
    pub(super) fn follow(&mut self, at: usize) -> Result<(), Invalid> {
        let Tensor { value, producer, ref readers, .. } = self.all[at];
        for Reading { end, .. } in readers.clone() {
            if let Producer::End(source @ End::Source(_)) = producer {
                let source = self.vertex(source)?;
                match self.of_end(end)? {
                    Some(reader) => self.problem.imply(reader, source)?,
                    None => self.problem.fix(source, Label::Full)?,
                }
            }
            let End::Var(var) = end else { continue };
            if self.held.get(&var) != Some(&Held::Free) || !self.tensors.follows(var) {
                continue;
            }
            let vertex = self.vertex(end)?;
            match producer {
                Producer::Constant if self.tensors.is_exact(value) => {}
                Producer::Constant => self.problem.imply(FULL, vertex)?,
                Producer::End(from) => {
                    let from = self.of_end(from)?.unwrap_or(FULL);
                    self.problem.imply(from, vertex)?;
                }
            }
        }
        Ok(())
    }
}
