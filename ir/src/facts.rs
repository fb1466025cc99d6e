//! Facts about the values of a module: inferred types, elements of small integer tensors, and the attributes of the call
//! that a function is inferred for.

use crate::attr::{Attr, AttrValue};
use crate::entity::{FunctionId, Node, SecondaryMap, Symbol, Value};
use crate::int::Int;
use crate::module::Module;
use crate::ty::Type;
use std::sync::Arc;

/// Facts of inference besides types: the elements of small integer tensors of rank 0 or 1.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub(crate) ints: SecondaryMap<Value, Option<Arc<[Int]>>>,
    /// The attributes of the call whose function body is being inferred; `None` outside functions.
    pub(crate) call_attrs: Option<CallAttrs>,
}

impl Facts {
    /// The elements of a value as far as known.
    pub fn ints(&self, value: Value) -> Option<&[Int]> {
        // A reference into the map: `SecondaryMap` hands out the default for what was never written.
        self.ints[value].as_deref()
    }
    /// Remembers the elements of a value.
    pub fn set_ints(&mut self, value: Value, ints: Vec<Int>) {
        self.ints[value] = Some(ints.into());
    }
    /// The attributes of the call whose function body is being inferred; `None` outside functions.
    pub fn call_attrs(&self) -> Option<&CallAttrs> {
        self.call_attrs.as_ref()
    }
    /// True if the body of a function is being inferred for a call.
    pub fn in_call(&self) -> bool {
        self.call_attrs.is_some()
    }
}

/// The inferred types, beside the types in the module.
#[derive(Clone, Debug, Default)]
pub struct Types(SecondaryMap<Value, Option<Type>>);

impl Types {
    /// No types yet, with room for all values of a module.
    pub(crate) fn with_room_for(module: &Module) -> Types {
        Types(SecondaryMap::with_capacity(module.n_values()))
    }
    /// The type of a value: the inferred type, or the type in the module for constants, inputs of the model,
    /// and results of unknown operators.
    pub fn of<'a>(&'a self, module: &'a Module, value: Value) -> &'a Type {
        self.0[value].as_ref().unwrap_or(&module.value(value).ty)
    }
    /// True if inference has reached a value.
    pub fn has(&self, value: Value) -> bool {
        self.0[value].is_some()
    }
    pub(crate) fn set(&mut self, value: Value, ty: Type) {
        self.0[value] = Some(ty);
    }
    /// Stores the inferred types in the module.
    pub fn apply(self, module: &mut Module) {
        for (value, ty) in self.0.into_entries() {
            if let Some(ty) = ty {
                module.set_type(value, ty);
            }
        }
    }
}

/// The attributes of a function that have defaults, sorted by name. Every call shares them.
#[derive(Clone, Debug, Default)]
pub struct Defaults(Arc<[Attr]>);

impl Defaults {
    /// The defaults of a function.
    pub fn of(module: &Module, function: FunctionId) -> Defaults {
        Defaults(sorted(module.function(function).attr_defaults.clone()).into())
    }

    fn get(&self, name: Symbol) -> Option<&AttrValue> {
        find(&self.0, name)
    }
}

/// The attributes that a call gives its function: the attributes of the node, and the defaults of all others.
#[derive(Clone, Debug, Default)]
pub struct CallAttrs {
    /// The attributes that differ from the default, sorted by name.
    pub(crate) given: Vec<Attr>,
    defaults: Defaults,
}

impl CallAttrs {
    /// The attributes of a call, with references resolved to `outer`, the attributes of the call around the node.
    pub fn new(module: &Module, node: Node, defaults: Defaults, outer: Option<&CallAttrs>) -> CallAttrs {
        let mut given: Vec<Attr> = Vec::new();
        for attr in module.node(node).attrs() {
            match &attr.value {
                AttrValue::Reference { name, .. } => {
                    let value = outer.and_then(|outer| outer.get(*name));
                    given.extend(value.map(|value| Attr { value: value.clone(), ..*attr }));
                }
                _ => given.push(attr.clone()),
            }
        }
        let mut given = sorted(given);
        // Calls that give an attribute its default are as calls without the attribute.
        given.retain(|attr| !defaults.get(attr.name).is_some_and(|default| is_same(default, &attr.value)));
        CallAttrs { given, defaults }
    }

    /// The value of an attribute of the function.
    pub fn get(&self, name: Symbol) -> Option<&AttrValue> {
        find(&self.given, name).or_else(|| self.defaults.get(name))
    }
}

/// Attributes by name; of several with one name, the first.
fn sorted(mut attrs: Vec<Attr>) -> Vec<Attr> {
    attrs.sort_by_key(|attr| attr.name);
    attrs.dedup_by_key(|attr| attr.name);
    attrs
}

fn find(sorted: &[Attr], name: Symbol) -> Option<&AttrValue> {
    sorted.binary_search_by_key(&name, |attr| attr.name).ok().map(|at| &sorted[at].value)
}

/// True if two values are surely the same: numbers and strings are compared, all others count as different.
fn is_same(a: &AttrValue, b: &AttrValue) -> bool {
    match (a, b) {
        (AttrValue::Int(a), AttrValue::Int(b)) => a == b,
        (AttrValue::Float(a), AttrValue::Float(b)) => a.to_bits() == b.to_bits(),
        (AttrValue::String(a), AttrValue::String(b)) => a == b,
        (AttrValue::Ints(a), AttrValue::Ints(b)) => a == b,
        (AttrValue::Floats(a), AttrValue::Floats(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
        }
        (AttrValue::Strings(a), AttrValue::Strings(b)) => a == b,
        _ => false,
    }
}
