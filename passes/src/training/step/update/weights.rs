//! Storage of weights from step to step: in fp32, with a low copy that the optimizer writes as well, or in 16
//! bits alone.
//!
//! A weight `%w: f32` that the forward pass reads through `%low = Cast(%w)`, an inserted cast to f16:
//!
//! ```text
//! master weights, low copies      master weights                  no master weights
//! input %w: f32, %lo.w: f16       input %w: f32                   input %w: f16
//!                                 %low = Cast(%w)                 %wide = Cast(%w)
//! …reads %lo.w                    …reads %low                     …reads %w
//! %w_next, _, %lo.w_next          %w_next = SGD(%w, …)            %next, _, %w_next
//!     = SGD(%w, …)                                                    = SGD(%wide, …)
//! ```

use super::tail::UpdateBuilder;
use crate::graph::marks::Purpose;
use crate::training::inputs::only_cast;
use ampc_ir::inserter::InsertError;
use ampc_ir::module::{Def, Provenance};
use ampc_ir::op::OpKind;
use ampc_ir::{AttrValue, DType, Module, Node, NodeSpec, Payload, TensorData, Value};
use std::sync::Arc;

/// A weight as its optimizer sees it.
#[derive(Clone, Copy)]
pub(super) struct Weight {
    /// The input that is the state.
    pub(super) state: Value,
    /// Its value in fp32: the state, or a cast of it.
    pub(super) wide: Value,
    /// The value whose next value is the low result of the optimizer: a low copy, or the state.
    pub(super) low: Option<Value>,
}

impl Weight {
    /// True if its state is in 16 bits.
    pub(super) fn is_stored_low(self) -> bool {
        self.low == Some(self.state)
    }
}

impl UpdateBuilder<'_, '_> {
    /// Decides how `parameter` is stored: f16 or bf16 alone, fp32 with a low copy, or fp32. An inserted cast that the stored
    /// 16-bit value replaces is erased.
    pub(super) fn weight_of(&mut self, parameter: Value) -> Result<Weight, InsertError> {
        if !self.update.keeps_master_weights
            && let Some(wide) = self.store_low(parameter)?
        {
            return Ok(Weight { state: parameter, wide, low: Some(parameter) });
        }
        Ok(Weight { state: parameter, wide: parameter, low: self.low_copy(parameter) })
    }

    /// If an inserted cast to 16 bits is the only reader of `parameter`: gives the parameter the cast's type, converts its
    /// value, erases the cast. Returns a cast back to fp32 for the optimizer; `None` if the parameter stays fp32.
    fn store_low(&mut self, parameter: Value) -> Result<Option<Value>, InsertError> {
        let module = &mut *self.inserter.module;
        let Some((cast, to)) = only_cast(module, parameter) else { return Ok(None) };
        let (Some(result), Some(data)) = (module.node(cast).result(0), initial(module, parameter)) else {
            return Ok(None);
        };
        let low = Payload::Dense(Arc::new(in_format(&data, to)));
        module.replace_value(result, parameter);
        module.erase_node(cast);
        module.set_type(parameter, low.ty());
        module.set_default(parameter, low);
        let spec = NodeSpec::new(OpKind::Cast, &[parameter])
            .attr("to", AttrValue::Int(i64::from(DType::F32.number())));
        self.inserter.provenance = Provenance::Inserted;
        let wide = self.insert(spec, Purpose::MasterWeight);
        self.inserter.provenance = Provenance::User;
        wide.map(|[wide]| Some(wide))
    }

    /// Replaces an inserted cast of `parameter` to 16 bits by a new state `lo.NAME` with the same value. `None` if there is
    /// no such cast, its result is a graph output, or low copies are off.
    fn low_copy(&mut self, parameter: Value) -> Option<Value> {
        if !self.update.writes_low_copies {
            return None;
        }
        let module = &mut *self.inserter.module;
        let is_low = |module: &Module, node: Node| {
            let data = module.node(node);
            let is_cast = data.schema().is_some_and(|s| s.kind == OpKind::Cast);
            let to = data.result(0).and_then(|value| module.value(value).ty.dtype());
            is_cast && data.provenance == Provenance::Inserted && to.is_some_and(DType::is_low)
        };
        let cast = module.uses(parameter).map(|(node, _)| node).find(|&node| is_low(module, node))?;
        let result = module.node(cast).result(0).filter(|&value| !module.is_output(value))?;
        let to = module.value(result).ty.dtype()?;
        let low = in_format(initial(module, parameter)?.as_ref(), to);
        let name = format!("lo.{}", ampc_ir::verify::name_of(module, parameter));
        let input = self.state(&name, low);
        self.inserter.module.replace_value(result, input);
        self.inserter.module.erase_node(cast);
        Some(input)
    }

    /// Adds result `slot` to the optimizer node that makes `weight`: the next weight rounded to the type of `low`. Results
    /// before it may be absent.
    pub(super) fn write_low(&mut self, weight: Value, low: Value, slot: usize) -> Value {
        let module = &mut *self.inserter.module;
        let ty = module.value(low).ty.clone();
        let (node, _) = module.producer(weight).expect("an optimizer makes it");
        let number = ty.dtype().map_or(0, DType::number);
        let (key, name) = (module.intern("w_lo_dtype"), module.fresh_name("lo"));
        module.set_attr(node, key, AttrValue::Int(i64::from(number)));
        module.add_result(node, slot, name, ty)
    }
}

/// The initial value of a parameter.
fn initial(module: &Module, parameter: Value) -> Option<Arc<TensorData>> {
    match &module.value(parameter).def {
        Def::Input { default: Some(Payload::Dense(data)), .. } => Some(data.clone()),
        _ => None,
    }
}

fn in_format(data: &TensorData, to: DType) -> TensorData {
    data.converted(ampc_ir::convert::Conversion { to, clamp: false })
}
