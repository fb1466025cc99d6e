//! Differences between two versions of an operator in their schemas: the proof behind steps that change nothing
//! but the version.

use ampc_ir::op::{Arity, AttrDefault, Formal, FormalType, OpSchema, TypeSet};

/// A reason why a node of one version may be invalid at the next version, or may mean something else there.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Difference {
    /// The operator is gone.
    Gone,
    /// A formal operand or result is gone.
    LostFormal(&'static str),
    /// A formal admits fewer types.
    FewerTypes(&'static str),
    /// A formal has to be there, or be of the type of others, and had not.
    Stricter(&'static str),
    /// Two formals have to be of one type and had not.
    OneType(&'static str, &'static str),
    /// There is a new operand or result that may be left out.
    NewOptional(&'static str),
    /// There is a new operand or result that has to be there.
    NewRequired(&'static str),
    /// An attribute is gone.
    LostAttr(&'static str),
    /// An attribute has a value of another kind.
    OtherKind(&'static str),
    /// Absence of an attribute means something else, or is not allowed any more.
    OtherDefault(&'static str),
    /// There is a new attribute that may be left out.
    NewAttr(&'static str),
    /// There is a new attribute that has to be there.
    NewRequiredAttr(&'static str),
}

/// All differences that could matter for a node that is raised from version `from` to version `to`.
pub(super) fn differences(from: &'static OpSchema, to: &'static OpSchema) -> Vec<Difference> {
    if to.is_gone() {
        return vec![Difference::Gone];
    }
    let mut found = Vec::new();
    for (old, new) in [(from.inputs, to.inputs), (from.outputs, to.outputs)] {
        formals(from, to, old, new, &mut found);
    }
    let kept: Vec<(&Formal, &Formal)> =
        from.inputs.iter().zip(to.inputs).chain(from.outputs.iter().zip(to.outputs)).collect();
    for (i, (old_a, new_a)) in kept.iter().enumerate() {
        for (old_b, new_b) in &kept[..i] {
            let var = |f: &Formal| if let FormalType::Var(v) = f.ty { Some(v) } else { None };
            let tied = |a: &Formal, b: &Formal| var(a).is_some() && var(a) == var(b);
            let (types_a, types_b) = (from.types_of(old_a), from.types_of(old_b));
            // Where there is one type only, nothing else could be there.
            let only = types_a == types_b
                && types_a == TypeSet { tensor: types_a.tensor, ..TypeSet::EMPTY }
                && types_a.tensor.is_power_of_two();
            if tied(new_a, new_b) && !tied(old_a, old_b) && !only {
                found.push(Difference::OneType(old_b.name, old_a.name));
            }
        }
    }
    attributes(from, to, &mut found);
    found
}

fn formals(
    from: &'static OpSchema,
    to: &'static OpSchema,
    old: &'static [Formal],
    new: &'static [Formal],
    found: &mut Vec<Difference>,
) {
    for (i, formal) in old.iter().enumerate() {
        let Some(next) = new.get(i) else {
            found.push(Difference::LostFormal(formal.name));
            continue;
        };
        let (had, has) = (from.types_of(formal), to.types_of(next));
        let fewer = |a: u32, b: u32| a & !b != 0;
        if fewer(had.tensor, has.tensor)
            || fewer(had.sequence, has.sequence)
            || fewer(had.optional, has.optional)
            || fewer(had.optional_sequence, has.optional_sequence)
            || had.other.iter().any(|text| !has.other.contains(text))
        {
            found.push(Difference::FewerTypes(formal.name));
        }
        let stricter = match (formal.arity, next.arity) {
            (Arity::Single, Arity::Single | Arity::Optional) | (Arity::Optional, Arity::Optional) => false,
            (
                Arity::Variadic { min, homogeneous },
                Arity::Variadic { min: min_next, homogeneous: homogeneous_next },
            ) => min_next > min || homogeneous_next && !homogeneous,
            (Arity::Optional | Arity::Single, Arity::Variadic { .. })
            | (Arity::Optional, Arity::Single)
            | (Arity::Variadic { .. }, Arity::Single | Arity::Optional) => true,
        };
        if stricter {
            found.push(Difference::Stricter(formal.name));
        }
    }
    found.extend(new.iter().skip(old.len()).map(|formal| match formal.arity {
        Arity::Optional | Arity::Variadic { min: 0, .. } => Difference::NewOptional(formal.name),
        Arity::Single | Arity::Variadic { .. } => Difference::NewRequired(formal.name),
    }));
}

fn attributes(from: &'static OpSchema, to: &'static OpSchema, found: &mut Vec<Difference>) {
    for attr in from.attrs {
        let Some(next) = to.attr(attr.name) else {
            found.push(Difference::LostAttr(attr.name));
            continue;
        };
        if attr.kind != next.kind {
            found.push(Difference::OtherKind(attr.name));
        }
        if !attr.required && (next.required || attr.default != next.default) {
            found.push(Difference::OtherDefault(attr.name));
        }
    }
    let new = to.attrs.iter().filter(|attr| from.attr(attr.name).is_none());
    found.extend(new.map(|attr| match (attr.required, attr.default) {
        (true, AttrDefault::None) => Difference::NewRequiredAttr(attr.name),
        _ => Difference::NewAttr(attr.name),
    }));
}
