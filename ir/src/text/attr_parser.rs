//! Values of attributes except bodies, whose lines are parsed elsewhere.

use super::lexer::Kind;
use super::parser::{Broken, Parsed, Parser};
use crate::attr::AttrValue;
use crate::op::AttrKind;
use crate::tensor::{SparseData, TensorData};
use crate::ty::Type;
use std::sync::Arc;

/// One item of a list of attribute values.
enum Item {
    Float(f32),
    Int(i64),
    String(Box<[u8]>),
    Tensor(Arc<TensorData>),
    Sparse(Arc<SparseData>),
    Type(Type),
}

/// Collects the items of a list that `pick` accepts.
fn collect<T>(items: Vec<Item>, pick: impl Fn(Item) -> Option<T>) -> Vec<T> {
    items.into_iter().filter_map(pick).collect()
}

/// An empty list of a kind, if it is a kind of list.
fn empty_list(word: &str) -> Option<AttrValue> {
    Some(match word {
        "floats" => AttrValue::Floats(Vec::new()),
        "ints" => AttrValue::Ints(Vec::new()),
        "strings" => AttrValue::Strings(Vec::new()),
        "tensors" => AttrValue::Tensors(Vec::new()),
        "graphs" => AttrValue::Graphs(Vec::new()),
        "sparse_tensors" => AttrValue::SparseTensors(Vec::new()),
        "types" => AttrValue::Types(Vec::new()),
        _ => return None,
    })
}

fn kind_of(word: &str) -> Option<AttrKind> {
    Some(match word {
        "float" => AttrKind::Float,
        "int" => AttrKind::Int,
        "string" => AttrKind::String,
        "tensor" => AttrKind::Tensor,
        "graph" => AttrKind::Graph,
        "sparse_tensor" => AttrKind::SparseTensor,
        "type" => AttrKind::Type,
        list => return empty_list(list).map(|value| value.kind()),
    })
}

impl Parser<'_, '_> {
    /// The value of an attribute, bodies excepted.
    pub(super) fn attr_value(&mut self) -> Parsed<AttrValue> {
        if self.eat(b'[') {
            return self.attr_list();
        }
        if self.tok.kind == Kind::Word {
            if let Some(list) = empty_list(self.tok.text) {
                self.advance();
                self.expect(b'[')?;
                self.expect(b']')?;
                return Ok(list);
            }
            if self.eat_word("ref") {
                return self.reference();
            }
        }
        Ok(match self.item()? {
            Item::Float(v) => AttrValue::Float(v),
            Item::Int(v) => AttrValue::Int(v),
            Item::String(v) => AttrValue::String(v),
            Item::Tensor(v) => AttrValue::Tensor(v),
            Item::Sparse(v) => AttrValue::SparseTensor(v),
            Item::Type(v) => AttrValue::Type(v),
        })
    }

    /// `(name: kind)`
    fn reference(&mut self) -> Parsed<AttrValue> {
        self.expect(b'(')?;
        let name = self.word_symbol("an attribute of the function")?;
        self.expect(b':')?;
        let kind = if self.tok.kind == Kind::Word { kind_of(self.tok.text) } else { None };
        let Some(kind) = kind else {
            return self.fail("the kind of an attribute such as `int`, `floats` or `tensor`");
        };
        self.advance();
        self.expect(b')')?;
        Ok(AttrValue::Reference { kind, name })
    }

    fn item(&mut self) -> Parsed<Item> {
        let text = self.tok.text;
        match self.tok.kind {
            Kind::Str => Ok(Item::String(self.bytes("a string")?.into_owned().into())),
            Kind::Number if text == "-inf" || text.contains(['.', 'e', 'E']) => {
                self.float("a float").map(Item::Float)
            }
            Kind::Number => self.number("an integer").map(Item::Int),
            Kind::Word if matches!(text, "inf" | "nan") => self.float("a float").map(Item::Float),
            Kind::Word if text == "tensor" => {
                self.advance();
                Ok(Item::Tensor(Arc::new(self.tensor()?)))
            }
            Kind::Word if text == "sparse" => {
                self.advance();
                Ok(Item::Sparse(Arc::new(self.sparse()?)))
            }
            Kind::Word if text == "type" => {
                self.advance();
                self.expect(b'(')?;
                let ty = self.ty(0)?;
                self.expect(b')')?;
                Ok(Item::Type(ty))
            }
            Kind::Word
            | Kind::Value
            | Kind::At
            | Kind::Punct(_)
            | Kind::Path
            | Kind::Arrow
            | Kind::End
            | Kind::Bad(_) => self.fail("the value of an attribute"),
        }
    }

    /// The rest of a list after its `[`; items are of the kind of the first.
    pub(super) fn attr_list(&mut self) -> Parsed<AttrValue> {
        let mut items: Vec<Item> = Vec::new();
        while !self.eat(b']') {
            if !items.is_empty() {
                self.expect(b',')?;
            }
            let span = self.tok.span;
            let item = self.item()?;
            let same = |first: &Item| std::mem::discriminant(first) == std::mem::discriminant(&item);
            if !items.first().is_none_or(same) {
                self.error(span, "items of one kind", "an item of another kind than the first");
                return Err(Broken);
            }
            items.push(item);
        }
        Ok(match items.first() {
            None => return self.fail("an empty list with its kind, such as `ints[]`, before this"),
            Some(Item::Float(_)) => {
                AttrValue::Floats(collect(items, |i| if let Item::Float(v) = i { Some(v) } else { None }))
            }
            Some(Item::Int(_)) => {
                AttrValue::Ints(collect(items, |i| if let Item::Int(v) = i { Some(v) } else { None }))
            }
            Some(Item::String(_)) => {
                AttrValue::Strings(collect(items, |i| if let Item::String(v) = i { Some(v) } else { None }))
            }
            Some(Item::Tensor(_)) => {
                AttrValue::Tensors(collect(items, |i| if let Item::Tensor(v) = i { Some(v) } else { None }))
            }
            Some(Item::Sparse(_)) => {
                AttrValue::SparseTensors(collect(
                    items,
                    |i| {
                        if let Item::Sparse(v) = i { Some(v) } else { None }
                    },
                ))
            }
            Some(Item::Type(_)) => {
                AttrValue::Types(collect(items, |i| if let Item::Type(v) = i { Some(v) } else { None }))
            }
        })
    }
}
