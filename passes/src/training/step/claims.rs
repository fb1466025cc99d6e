//! The claims of a step's metadata about its states, compared with the graph: every input and output exists
//! once, has the required type, and is computed from the claimed state.

pub(super) mod forward;

use crate::graph::metadata::FORWARD;
use crate::training::step::entry::{StateEntry, StateKind};
use crate::training::step::forward::Forward;
use ampc_ir::module::Def;
use ampc_ir::op::{OpKind, optimizers};
use ampc_ir::verify::name_of;
use ampc_ir::{Dim, Module, Node, Shape, Symbol, Type, Value};
use rustc_hash::{FxHashMap, FxHashSet};

/// Compares a list of states with the step.
///
/// # Errors
/// The first claim that is not true of the step, in words.
pub(super) fn check(module: &Module, entries: &[StateEntry]) -> Result<(), String> {
    let main = module.graph(module.main());
    let claims = Claims {
        module,
        inputs: main.inputs().iter().map(|&input| (name_of(module, input), input)).collect(),
        outputs: main
            .outputs()
            .iter()
            .map(|output| (name_of(module, output.value), (output.value, &output.declared)))
            .collect(),
        weights: entries
            .iter()
            .filter(|entry| entry.kind == StateKind::Weight)
            .map(|entry| entry.input.as_str())
            .collect(),
        open_dims: main.inputs().iter().flat_map(|&input| names_of_dims(module, input)).collect(),
    };
    claims.once(entries)?;
    claims.not_of_forward(entries)?;
    entries.iter().try_for_each(|entry| claims.entry(entry))
}

struct Claims<'a> {
    module: &'a Module,
    inputs: FxHashMap<String, Value>,
    /// The outputs and their declared types.
    outputs: FxHashMap<String, (Value, &'a Type)>,
    weights: FxHashSet<&'a str>,
    /// The named dims of the inputs.
    open_dims: FxHashSet<Symbol>,
}

impl Claims<'_> {
    /// No input, no output, no state of a kind that a step has once, and no state of a weight is listed twice.
    fn once(&self, entries: &[StateEntry]) -> Result<(), String> {
        let (mut inputs, mut outputs, mut kinds) =
            (FxHashSet::default(), FxHashSet::default(), FxHashSet::default());
        for entry in entries {
            if !inputs.insert(&entry.input) {
                return Err(format!("input `{}` is listed as a state twice", entry.input));
            }
            if !outputs.insert(&entry.output) {
                return Err(format!("output `{}` is listed as the next value of two states", entry.output));
            }
            let is_repeated = matches!(entry.kind, StateKind::Weight | StateKind::Buffer | StateKind::State);
            if !is_repeated && !kinds.insert((kind_of(entry.kind), &entry.of)) {
                let of = entry.of.as_ref().map_or_else(String::new, |of| format!(" of `{of}`"));
                return Err(format!(
                    "`{}`: a second state of kind {}{of} is listed",
                    entry.input,
                    kind_of(entry.kind)
                ));
            }
        }
        Ok(())
    }

    /// No state is an input of the forward model, and no next value is the loss.
    fn not_of_forward(&self, entries: &[StateEntry]) -> Result<(), String> {
        let text = self.module.header.metadata.iter().find(|(key, _)| key == FORWARD).map(|(_, text)| text);
        let Some(forward) = text.and_then(|text| serde_json::from_str::<Forward>(text).ok()) else {
            return Ok(());
        };
        let own: FxHashSet<&String> = forward.inputs.iter().collect();
        for entry in entries {
            if own.contains(&entry.input) {
                return Err(format!(
                    "`{}` is an input of the forward model, and listed as a state",
                    entry.input
                ));
            }
            if forward.loss.as_ref() == Some(&entry.output) {
                return Err(format!(
                    "`{}`: its next value would be the loss, `{}`",
                    entry.input, entry.output
                ));
            }
        }
        Ok(())
    }

    fn entry(&self, entry: &StateEntry) -> Result<(), String> {
        let input = self.inputs.get(&entry.input);
        let &input = input.ok_or_else(|| format!("the model has no input `{}`", entry.input))?;
        let output = self.outputs.get(&entry.output);
        let &(output, declared) = output.ok_or_else(|| {
            format!(
                "`{}`: the model has no output `{}`, which is listed as its next value",
                entry.input, entry.output
            )
        })?;
        self.same_type(entry, input, (output, declared))?;
        self.owner(entry, input)?;
        self.made_of(entry, input, output)
    }

    fn same_type(
        &self,
        entry: &StateEntry,
        input: Value,
        (output, declared): (Value, &Type),
    ) -> Result<(), String> {
        // Before inference only the declared type of an output is known.
        let next = match &self.module.value(output).ty {
            Type::Unknown => declared,
            ty => ty,
        };
        let now = &self.module.value(input).ty;
        if self.may_follow(now, next) {
            return Ok(());
        }
        let (now, next) = (ampc_ir::infer::describe(now), ampc_ir::infer::describe(next));
        Err(format!(
            "`{}`: expected {now} as its next value, found {next} of `{}`",
            entry.input, entry.output
        ))
    }

    /// True if a value of the type `next` may be the next value of a state of the type `now`: element type, rank and
    /// dims are equal. A dim that inference does not know may be any number; a training compares it when the value
    /// is made.
    fn may_follow(&self, now: &Type, next: &Type) -> bool {
        let (Some(now), Some(next)) = (now.as_tensor(), next.as_tensor()) else {
            return now == next || *next == Type::Unknown;
        };
        now.dtype == next.dtype && self.has_dims(&now.shape, &next.shape)
    }

    /// True if a value of the shape `found` may have the dims `wanted`. A dim of an input may be any number, and is thus
    /// no number.
    fn has_dims(&self, wanted: &Shape, found: &Shape) -> bool {
        let fits = |(wanted, found): (&Dim, &Dim)| match (wanted, found) {
            (Dim::Known(_), Dim::Sym(name)) => !self.open_dims.contains(name),
            (Dim::Unknown, _) | (_, Dim::Unknown) => true,
            (wanted, found) => wanted == found,
        };
        match (wanted.dims(), found.dims()) {
            (Some(wanted), Some(found)) => wanted.len() == found.len() && wanted.iter().zip(found).all(fits),
            _ => true,
        }
    }

    /// A state of a weight names a weight of its dims, and other states none.
    fn owner(&self, entry: &StateEntry, input: Value) -> Result<(), String> {
        use StateKind::{Low, M, State, V};
        let belongs = matches!(entry.kind, Low | M | V | State);
        let Some(of) = &entry.of else {
            return match belongs {
                true => Err(format!("`{}`: expected the name of its weight (`of`), found none", entry.input)),
                false => Ok(()),
            };
        };
        if !belongs {
            let kind = kind_of(entry.kind);
            return Err(format!(
                "`{}`: a state of kind {kind} belongs to no weight, found `{of}`",
                entry.input
            ));
        }
        let weight = self.inputs.get(of).filter(|_| self.weights.contains(of.as_str()));
        let &weight =
            weight.ok_or_else(|| format!("`{}`: `{of}` is no weight that is listed", entry.input))?;
        let shape = |value: Value| self.module.value(value).ty.shape();
        let fits = entry.kind == State
            || shape(weight).zip(shape(input)).is_none_or(|(of, own)| self.has_dims(of, own));
        match fits {
            true => Ok(()),
            false => Err(format!("`{}`: expected the dims of its weight `{of}`, found others", entry.input)),
        }
    }

    /// An optimizer that makes the next value reads the state where it reads such a state; a number that a step has once
    /// is made of itself.
    fn made_of(&self, entry: &StateEntry, input: Value, output: Value) -> Result<(), String> {
        let wrong =
            || Err(format!("`{}`: its next value, `{}`, is not computed of it", entry.input, entry.output));
        let maker = match self.module.value(output).def {
            Def::Result { node, slot } => Some((node, slot as usize)),
            _ => None,
        };
        if let Some((node, slot)) = maker
            && let Some(low_slot) = low_slot(self.module, node)
        {
            let is_weight = slot == 0 || slot == low_slot;
            let operand = if is_weight { 0 } else { state_operand(self.module, node, slot) };
            let read = self.module.node(node).operand(operand).map(|value| behind_casts(self.module, value));
            let expected = match (entry.kind, &entry.of) {
                (StateKind::Low, Some(of)) => self.inputs.get(of).copied(),
                _ => Some(input),
            };
            let schema = self.module.node(node).schema();
            let is_named = |name| schema.and_then(|s| s.outputs.get(slot)).is_some_and(|f| f.name == name);
            let fits = match entry.kind {
                StateKind::Weight | StateKind::Low => is_weight,
                StateKind::M => is_named("m_next"),
                StateKind::V => is_named("v_next"),
                _ => false,
            };
            return if fits && read == expected { Ok(()) } else { wrong() };
        }
        use StateKind::{Bad, DropoutOffset, DropoutSeed, Good, LossScale, Step};
        let is_of_scale = |(node, _): (Node, usize)| {
            let schema = self.module.node(node).schema();
            schema.is_some_and(|schema| schema.kind == OpKind::UpdateLossScale)
        };
        if maker.is_some_and(is_of_scale) && !matches!(entry.kind, LossScale | Good | Bad) {
            return wrong();
        }
        let is_number = matches!(entry.kind, Step | LossScale | Good | Bad | DropoutSeed | DropoutOffset);
        if is_number && !depends_on(self.module, output, input) {
            return wrong();
        }
        Ok(())
    }
}

/// The names of the dims of a value.
fn names_of_dims(module: &Module, value: Value) -> impl Iterator<Item = Symbol> {
    let dims = module.value(value).ty.shape().and_then(Shape::dims).unwrap_or_default();
    dims.iter().filter_map(|dim| match dim {
        Dim::Sym(name) => Some(*name),
        Dim::Known(_) | Dim::Unknown => None,
    })
}

fn kind_of(kind: StateKind) -> String {
    let kind = serde_json::to_value(kind).unwrap_or_default();
    kind.as_str().unwrap_or_default().to_owned()
}

/// The result of an optimizer that is the low copy of its weight; `None` if a node is not an optimizer.
fn low_slot(module: &Module, node: Node) -> Option<usize> {
    optimizers::low_copy(module.node(node).schema()?)
}

/// The operand of an optimizer that holds the state of which a result is the next value: `v` for `v_next`.
fn state_operand(module: &Module, node: Node, slot: usize) -> usize {
    let place = || {
        let schema = module.node(node).schema()?;
        let name = schema.outputs.get(slot)?.name.strip_suffix("_next")?;
        schema.inputs.iter().position(|formal| formal.name == name)
    };
    place().unwrap_or(usize::MAX)
}

fn behind_casts(module: &Module, value: Value) -> Value {
    let mut at = value;
    while let Def::Result { node, .. } = module.value(at).def
        && module.node(node).schema().is_some_and(|schema| schema.kind == OpKind::Cast)
        && let Some(from) = module.node(node).operand(0)
    {
        at = from;
    }
    at
}

/// True if a value is computed of another one.
fn depends_on(module: &Module, value: Value, of: Value) -> bool {
    let (mut seen, mut left) = (FxHashSet::default(), vec![value]);
    while let Some(value) = left.pop() {
        if value == of {
            return true;
        }
        if let Def::Result { node, .. } = module.value(value).def
            && seen.insert(node)
        {
            left.extend(module.node(node).operands().iter().flatten());
        }
    }
    false
}
