//! Contributions to gradients, and their sums.
//!
//! A contribution to the gradient of a 16-bit value keeps the type in which it was computed, f32 or 16 bits. The sum of
//! several, of a gradient that is read low (`reads.rs`) or not:
//!
//! | contributions | read low | otherwise |
//! |---|---|---|
//! | all in f32 | added in f32, rounded once | added in f32 |
//! | some in f32 | those in f32 are added and rounded, then all are added in 16 bits | the same |
//! | all in 16 bits | added in 16 bits | the same |
//!
//! A single contribution in f32 is rounded where it was computed, before it waits for the others. Contributions to an f32
//! value, or to a parameter that was rounded, are added in f32.

use super::sections::{Section, joined};
use super::{Backward, Build, Ruled};
use crate::pass::training_error::RuleError;
use crate::training::autodiff::reads;
use ampc_ir::{DType, Dim, Shape, Type, Value};
use rustc_hash::FxHashSet;

/// A contribution to the gradient of a value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contribution {
    pub(super) gradient: Value,
    /// The gradient in f32, if `gradient` is rounded.
    exact: Option<Value>,
}

impl Contribution {
    /// A contribution in the type in which it was computed.
    pub(super) fn of(gradient: Value) -> Contribution {
        Contribution { gradient, exact: None }
    }
}

impl Backward<'_> {
    /// Takes back a gradient that was added to an operand, of an element type, for a rule that adds to it in its own way
    /// and then adds the sum.
    ///
    /// If an embedding is the weight of the last layer as well, the gradient of that product exists before the
    /// gradient of the lookup: the rows that were looked up are added to it by index, instead of to zeros of
    /// the same size.
    pub fn take(&mut self, i: usize, dtype: DType) -> Option<Value> {
        let value = self.operand(i)?;
        let module = &*self.nodes.inserter.module;
        let parts = self.contributions.get_mut(&value)?;
        let at = parts.iter().position(|part| module.value(part.gradient).ty.dtype() == Some(dtype))?;
        Some(parts.remove(at).gradient)
    }

    /// Adds a gradient of an operand as a 16-bit product gives it: in the type of the operand, unless the operand only stores
    /// a parameter low.
    pub(in crate::training::autodiff) fn add_rounded(&mut self, i: usize, gradient: Value) -> Ruled {
        let Some(value) = self.operand(i).filter(|&value| self.needs.any[value]) else { return Ok(()) };
        let dtype = self.dtype(value)?;
        let is_kept = self.is_parameter(value) || self.stores_parameter(value);
        let gradient = if is_kept { gradient } else { self.rounded(gradient, dtype)? };
        self.add_to(value, gradient)
    }

    /// Adds a gradient of a section of an operand, as [`add`](Self::add) does; it is left out if the operand needs none.
    pub(in crate::training::autodiff) fn add_section(&mut self, i: usize, section: Section) -> Ruled {
        let Some(value) = self.operand(i).filter(|&value| self.needs.any[value]) else { return Ok(()) };
        self.sections.entry(value).or_default().push(section);
        Ok(())
    }

    /// Values as operands of an operator that takes one type: unchanged if they have one, otherwise in f32 or wider.
    pub(in crate::training::autodiff) fn in_one_type(&mut self, values: &[Value]) -> Ruled<Vec<Value>> {
        let mut dtypes = values.iter().map(|&value| self.dtype(value)).collect::<Ruled<Vec<_>>>()?;
        dtypes.dedup();
        if dtypes.len() < 2 {
            return Ok(values.to_vec());
        }
        values.iter().map(|&value| self.wide(value)).collect()
    }

    /// Takes all contributions to the gradient of a value, after its last reader.
    pub(super) fn contributions_to(&mut self, value: Value) -> Ruled<Option<Vec<Contribution>>> {
        if let Some(sections) = self.sections.remove(&value) {
            let node = self.node;
            for gradient in joined(self, sections)? {
                self.add_to(value, gradient)?;
            }
            self.node = node;
            self.nodes.inserter.set_origin(node);
        }
        Ok(self.contributions.remove(&value))
    }

    /// The gradient of a result of the current node, `None` if nothing contributes to it; in the type of the result if
    /// `in_own_type`.
    pub(super) fn gradient_of(&mut self, result: Value, in_own_type: bool) -> Ruled<Option<Value>> {
        let Some(parts) = self.contributions_to(result)? else { return Ok(None) };
        let mut gradient = self.sum_of(result, &parts)?;
        if in_own_type {
            gradient = match self.dtype(result)? {
                DType::F32 => self.wide(gradient)?,
                dtype => self.cast(gradient, dtype)?,
            };
        }
        self.shape_as(gradient, result);
        Ok(Some(gradient))
    }

    pub(in crate::training::autodiff) fn add_to(&mut self, value: Value, gradient: Value) -> Ruled {
        let part = self.contribution(value, gradient)?;
        self.check_dims(value, part.gradient)?;
        self.shape_as(part.gradient, value);
        self.contributions.entry(value).or_default().push(part);
        Ok(())
    }

    /// A gradient as a contribution to that of a value.
    fn contribution(&mut self, value: Value, gradient: Value) -> Ruled<Contribution> {
        let (dtype, found) = (self.dtype(value)?, self.dtype(gradient)?);
        // Contributions to a parameter are rounded when all are added, and those to what only stores one low are not.
        if dtype == found || self.is_parameter(value) || self.stores_parameter(value) {
            return Ok(Contribution::of(gradient));
        }
        let is_low = self.needs.low[value].is_some();
        let is_float = matches!(found, DType::F16 | DType::BF16 | DType::F32 | DType::F64);
        let gradient = match dtype {
            DType::F16 | DType::BF16 if is_float && (found == DType::F32 || !is_low) => {
                let wide = self.wide(gradient)?;
                let exact = self.cast(wide, DType::F32)?;
                if is_low || self.needs.readers[value] > 1 {
                    let gradient = self.rounded(exact, dtype)?;
                    return Ok(Contribution { gradient, exact: Some(exact) });
                }
                exact
            }
            DType::F32 if found.is_low() && self.takes_low(value, found) => gradient,
            _ => self.cast(gradient, dtype)?,
        };
        Ok(Contribution::of(gradient))
    }

    /// A gradient rounded to a type, once for all its readers.
    fn rounded(&mut self, gradient: Value, dtype: DType) -> Ruled<Value> {
        if self.dtype(gradient)? == dtype {
            return Ok(gradient);
        }
        if let Some(&rounded) = self.rounded.get(&(gradient, dtype)) {
            return Ok(rounded);
        }
        let rounded = self.cast(gradient, dtype)?;
        self.rounded.insert((gradient, dtype), rounded);
        Ok(rounded)
    }

    /// Erases roundings that turned out to have no reader.
    pub(super) fn erase_unread_roundings(&mut self, gradients: &[Option<Value>]) {
        let mut rounded: Vec<Value> = std::mem::take(&mut self.rounded).into_values().collect();
        rounded.sort_unstable();
        let gradients: FxHashSet<Value> = gradients.iter().copied().flatten().collect();
        let module = &mut *self.nodes.inserter.module;
        for value in rounded {
            let is_read = module.uses(value).next().is_some() || gradients.contains(&value);
            if let Some((node, _)) = module.producer(value).filter(|_| !is_read) {
                module.erase_node(node);
            }
        }
    }

    /// An error if a gradient certainly has other dims than its value.
    fn check_dims(&self, value: Value, gradient: Value) -> Ruled {
        let (Some(want), Some(found)) = (self.dims(value), self.dims(gradient)) else { return Ok(()) };
        let differ = |(a, b): (&Dim, &Dim)| matches!((a.known(), b.known()), (Some(a), Some(b)) if a != b);
        if want.len() == found.len() && !want.iter().zip(&found).any(differ) {
            return Ok(());
        }
        let name = ampc_ir::verify::name_of(self.module(), value);
        let dtype = self.dtype(value)?;
        let shapes = [found, want].map(|dims| Type::tensor(dtype, Shape::of(dims)));
        let [found, want] = shapes.map(|ty| ampc_ir::infer::describe(&ty));
        Err(RuleError::Unsupported(format!(
            "there is no formula for operands of these shapes: the gradient of `{name}`, {want}, would be {found}"
        )))
    }

    /// Gives a gradient the shape of its value, of which inference may know less, so that later rules need not
    /// determine at run time which axes were broadcast.
    fn shape_as(&mut self, gradient: Value, value: Value) {
        let module = &mut *self.nodes.inserter.module;
        let (Type::Tensor(of_value), Type::Tensor(found)) =
            (&module.value(value).ty, &module.value(gradient).ty)
        else {
            return;
        };
        // The names of the value come first: rules compare dims by name.
        let Some(shape) = of_value.shape.meet(&found.shape) else { return };
        if module.producer(gradient).is_some() && shape != found.shape {
            let ty = Type::tensor(found.dtype, shape);
            module.set_type(gradient, ty);
        }
    }

    fn is_parameter(&self, value: Value) -> bool {
        reads::is_parameter(self.module(), &self.parameters, value)
    }

    /// True if a 16-bit value only stores a parameter: its gradient passes on to the parameter without rounding.
    fn stores_parameter(&self, value: Value) -> bool {
        reads::stores_parameter(self.module(), &self.parameters, value)
    }

    /// True if the rule of the producer of an f32 value widens a 16-bit gradient, or passes it on by operators that take it.
    fn takes_low(&self, value: Value, dtype: DType) -> bool {
        let producer = self.module().producer(value);
        producer.is_some_and(|(node, _)| {
            !self.needs.passed[value] || reads::takes_low(self.module(), node, dtype)
        })
    }

    /// The sum of the contributions to a value that is no parameter.
    fn sum_of(&mut self, value: Value, parts: &[Contribution]) -> Ruled<Value> {
        let exact: Vec<Value> = parts.iter().filter_map(|part| part.exact).collect();
        let gradients: Vec<Value> = parts.iter().map(|part| part.gradient).collect();
        if exact.len() == parts.len() && self.needs.low[value].is_none() {
            return self.sum(&exact);
        }
        if exact.len() > 1 {
            return self.sum_rounded(value, parts, &exact);
        }
        let dtype = self.dtype(value)?;
        let is_own = |&part: &Value| self.dtype(part).is_ok_and(|found| found == dtype);
        if gradients.iter().all(is_own) && !self.stores_parameter(value) {
            return self.sum(&gradients);
        }
        self.sum_wide(&gradients)
    }

    /// The sum of contributions of which several were rounded: these are added in f32 and rounded once.
    fn sum_rounded(&mut self, value: Value, parts: &[Contribution], exact: &[Value]) -> Ruled<Value> {
        let (dtype, sum) = (self.dtype(value)?, self.sum(exact)?);
        let mut all = vec![self.cast(sum, dtype)?];
        all.extend(parts.iter().filter(|part| part.exact.is_none()).map(|part| part.gradient));
        self.sum(&all)
    }

    /// The sum of contributions of any float types, in f32 or wider; one alone stays as it is.
    fn sum_wide(&mut self, parts: &[Value]) -> Ruled<Value> {
        if let &[one] = parts {
            return Ok(one);
        }
        let wide = parts.iter().map(|&part| self.wide(part)).collect::<Ruled<Vec<_>>>()?;
        self.sum(&wide)
    }

    /// The sum of contributions to a parameter: added in f32 or wider, and rounded once.
    pub(super) fn sum_for(&mut self, parameter: Value, parts: &[Contribution]) -> Ruled<Value> {
        let dtype = self.dtype(parameter)?;
        let sum = match *parts {
            [one] => one.gradient,
            _ => {
                let mut wide = Vec::with_capacity(parts.len());
                for part in parts {
                    let part = self.wide(part.gradient)?;
                    wide.push(if dtype.is_low() { part } else { self.cast(part, dtype)? });
                }
                self.sum(&wide)?
            }
        };
        self.cast(sum, dtype)
    }
}
