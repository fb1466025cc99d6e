//! The cost of a placement, as the choice of formats counts it.
//!
//! A cast costs as often as its graph runs. A reader that is [fused](crate::fusions) with the producer of the tensor casts in
//! its kernel, and an output of a body that is captured has a cast of its own. A constant costs a copy if it is read in fp32
//! and in the format, and a cast of an integer or boolean to fp32 makes the format for nothing if all readers read the format.

use super::{Placement, Places, agreed, format, formats};
use crate::analysis::cost::CostModel;
use crate::analysis::tensors::{End, Producer, Reading, Tensor, Tensors};
use ampc_ir::{DType, GraphId, Node, Value};
use std::collections::BTreeSet;

/// A part of the cost of a placement.
#[derive(Clone, Copy, Debug)]
pub(super) enum Charge {
    /// A cast of a value in a graph, from a format to another.
    Cast(Value, GraphId, DType, DType),
    /// A cast in the kernel that makes a value and reads it.
    Fused(Value, DType, DType),
    /// The second copy of a constant.
    Copy(Value),
}

impl Charge {
    pub(super) fn cost(&self, costs: &CostModel<'_>) -> i64 {
        match *self {
            Charge::Cast(value, graph, from, to) => costs.cast_cost(value, graph, from, to),
            Charge::Fused(value, from, to) => costs.fused_cast_cost(value, from, to),
            Charge::Copy(value) => costs.copy_cost(value),
        }
    }
}

impl Placement {
    /// Adds the cost of the casts of a tensor that is made in a format.
    pub(super) fn charge(
        &mut self,
        tensors: &Tensors<'_>,
        tensor: &Tensor,
        made: DType,
        executions: &impl Fn(GraphId) -> i64,
    ) {
        let (value, full, low) = (tensor.value, DType::F32, tensors.to);
        let is_counted = |to: DType| to == full || to == low;
        let wants = |reading: &Reading| format(tensors, reading.end);
        if tensor.producer == Producer::Constant {
            let alone = || tensor.readers.iter().filter(|reading| reading.fused.is_none());
            let is_read = |to| alone().any(|reading| wants(reading) == to);
            if is_read(full) && is_read(low) {
                self.charges.push(Charge::Copy(value));
            }
            return;
        }
        let is_source = matches!(tensor.producer, Producer::End(End::Source(_)));
        let made = if is_source && agreed(tensors, tensor) == Some(low) { low } else { made };
        for &(to, graph) in &tensor.casts {
            self.charges.push(Charge::Cast(value, graph, made, to));
        }
        let differs = |reading: &&Reading| is_counted(wants(reading)) && wants(reading) != made;
        let own = tensor.readers.iter().filter(|reading| reading.own && reading.fused.is_none());
        for reading in own.filter(differs) {
            self.charges.push(Charge::Cast(value, reading.graph, made, wants(reading)));
        }
        let mut fused: BTreeSet<(Node, DType)> = BTreeSet::new();
        for reading in tensor.readers.iter().filter(differs) {
            fused.extend(reading.fused.map(|node| (node, wants(reading))));
        }
        self.charges.extend(fused.into_iter().map(|(_, to)| Charge::Fused(value, made, to)));
        let others = tensor.readers.iter().filter(|reading| !reading.own && reading.fused.is_none());
        let others: Vec<&Reading> = others.filter(differs).collect();
        for to in formats(tensors, &others) {
            let readers: Vec<&Reading> =
                others.iter().filter(|reading| wants(reading) == to).copied().collect();
            let places = Places::new(tensors.module, tensor, to, &readers, executions);
            for &scope in &places.chosen {
                let graph = places.scopes.all()[scope].graph;
                self.charges.push(Charge::Cast(value, graph, made, to));
            }
        }
    }
}

/// The cost of the casts that stand in a module, and of constants in two formats, as a placement counts them; the tensors are
/// those in the present formats.
pub fn standing_cost(tensors: &Tensors<'_>, costs: &CostModel<'_>) -> i64 {
    let mut charges: Vec<Charge> = Vec::new();
    tensors.each(|tensor| charge_standing(tensors, tensor, &mut charges));
    charges.iter().map(|charge| charge.cost(costs)).fold(0, i64::saturating_add)
}

/// Adds the cost of the casts of a tensor that stand: each once for a format and a graph.
fn charge_standing(tensors: &Tensors<'_>, tensor: &Tensor, charges: &mut Vec<Charge>) {
    let (module, root) = (tensors.module, tensor.value);
    let is_source = matches!(tensor.producer, Producer::End(End::Source(_)));
    if is_source && agreed(tensors, tensor) == Some(tensors.to) && module.producer(root).is_some() {
        return;
    }
    let present = |value: Value| module.value(value).ty.dtype();
    let Some(made) = present(root) else { return };
    let mut formats: BTreeSet<DType> = BTreeSet::new();
    let mut casts: BTreeSet<(DType, DType, GraphId)> = BTreeSet::new();
    let mut fused: BTreeSet<(Node, DType)> = BTreeSet::new();
    for reading in &tensor.readers {
        let Some(read) = present(reading.value) else { continue };
        formats.insert(read);
        if reading.stands {
            let to = format(tensors, reading.end);
            formats.insert(to);
            match reading.fused {
                Some(node) => drop(fused.insert((node, to))),
                None => drop(casts.insert((read, to, reading.graph))),
            }
        }
        match reading.fused {
            Some(node) if read != made => drop(fused.insert((node, read))),
            Some(_) => {}
            None => {
                let graph = if read == DType::F32 { reading.widened } else { reading.graph };
                casts.insert((made, read, graph));
            }
        }
    }
    if tensor.producer == Producer::Constant {
        if formats.contains(&DType::F32) && formats.contains(&tensors.to) {
            charges.push(Charge::Copy(root));
        }
        return;
    }
    charges.extend(tensor.casts.iter().map(|&(to, graph)| Charge::Cast(root, graph, made, to)));
    let is_counted = |to: &DType| *to == DType::F32 || *to == tensors.to;
    let counted = casts.into_iter().filter(|(from, to, _)| from != to && is_counted(to));
    charges.extend(counted.map(|(from, to, graph)| Charge::Cast(root, graph, from, to)));
    let counted = fused.into_iter().filter(|(_, to)| is_counted(to));
    charges.extend(counted.map(|(_, to)| Charge::Fused(root, made, to)));
}
