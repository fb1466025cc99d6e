//! Signatures in the text form: `signature acme::Scale(x: T, scale?: f32, rest*: T) -> (y: T shape=x) {T=[f32,
//! f16]} class=infer`, for operators of nodes in the module that no table has.

use super::parser::{Parsed, Parser};
use super::quote::write_word;
use crate::dtype::DType;
use crate::entity::Symbol;
use crate::module::Module;
use crate::op::{Class, Count, OpSchema, Signature, SignatureFormal};
use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// The signatures of the operators of nodes in the module, one per name, sorted.
pub fn signatures(module: &Module) -> Vec<Signature> {
    let mut found: BTreeMap<(&str, &str), &OpSchema> = BTreeMap::new();
    for graph in module.graph_ids() {
        let schemas = module.nodes(graph).filter_map(|n| module.node(n).schema());
        for schema in schemas.filter(|s| s.declared.is_some()) {
            found.entry((schema.domain, schema.name)).or_insert(schema);
        }
    }
    found.into_values().filter_map(Signature::of).collect()
}

/// Its spelling in the text form, behind the operator.
impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = String::new();
        write_signature(&mut out, self);
        f.write_str(&out)
    }
}

fn write_signature(out: &mut String, signature: &Signature) {
    formals(out, &signature.inputs);
    out.push_str(" -> ");
    formals(out, &signature.outputs);
    if !signature.types.is_empty() {
        out.push_str(" {");
        for (i, (var, dtypes)) in signature.types.iter().enumerate() {
            out.push_str(if i > 0 { ", " } else { "" });
            let dtypes: Vec<String> = dtypes.iter().map(ToString::to_string).collect();
            let _ = write!(out, "{var}=[{}]", dtypes.join(", "));
        }
        out.push('}');
    }
    let _ = write!(out, " class={}", signature.class);
}

fn formals(out: &mut String, formals: &[SignatureFormal]) {
    out.push('(');
    for (i, formal) in formals.iter().enumerate() {
        out.push_str(if i > 0 { ", " } else { "" });
        write_word(out, &formal.name);
        out.push_str(match formal.count {
            Count::One => "",
            Count::Optional => "?",
            Count::Variadic => "*",
        });
        let _ = write!(out, ": {}", formal.ty);
        if let Some(class) = formal.class {
            let _ = write!(out, " class={class}");
        }
        if let Some(shape) = &formal.shape {
            out.push_str(" shape=");
            write_word(out, shape);
        }
    }
    out.push(')');
}

impl Parser<'_, '_> {
    /// `signature acme::Scale(x: T) -> (y: T shape=x) {T=[f32, f16]} class=infer`
    pub(super) fn signature(&mut self) -> Parsed<()> {
        self.advance();
        let span = self.tok.span;
        let (domain, name, _) = self.op_name()?;
        let inputs = self.formals()?;
        if self.tok.kind != super::lexer::Kind::Arrow {
            return self.fail("`->`");
        }
        self.advance();
        let outputs = self.formals()?;
        let mut types = Vec::new();
        if self.eat(b'{') {
            while !self.eat(b'}') {
                if !types.is_empty() {
                    self.expect(b',')?;
                }
                types.push(self.variable()?);
            }
        }
        if !self.eat_word("class") {
            return self.fail("`class=`");
        }
        let class = self.class()?;
        let text = |symbol: Symbol| self.module.text(symbol).to_owned();
        let signature = Signature { domain: text(domain), name: text(name), inputs, outputs, types, class };
        match signature.schema() {
            Ok(schema) if self.signatures.insert((domain, name), schema).is_none() => {}
            Ok(_) => {
                let found = format!("a second one of `{}::{}`", signature.domain, signature.name);
                self.error(span, "signatures of different operators", found);
            }
            Err(error) => self.error(span, "a valid signature", error.reason),
        }
        self.line_end()
    }

    /// `(x: T, scale?: f32 class=fixed)`
    fn formals(&mut self) -> Parsed<Vec<SignatureFormal>> {
        self.expect(b'(')?;
        let mut formals = Vec::new();
        while !self.eat(b')') {
            if !formals.is_empty() {
                self.expect(b',')?;
            }
            let name = self.word("the name of a formal")?.into_owned();
            let count = match () {
                () if self.eat(b'?') => Count::Optional,
                () if self.eat(b'*') => Count::Variadic,
                () => Count::One,
            };
            self.expect(b':')?;
            let ty = self.word("a type variable or an element type")?.into_owned();
            let class = if self.eat_word("class") { Some(self.class()?) } else { None };
            let mut shape = None;
            if self.eat_word("shape") {
                self.expect(b'=')?;
                shape = Some(self.word("the name of an operand")?.into_owned());
            }
            formals.push(SignatureFormal { name, ty, count, class, shape });
        }
        Ok(formals)
    }

    /// `T=[f32, f16]`
    fn variable(&mut self) -> Parsed<(String, Vec<DType>)> {
        let var = self.word("a type variable")?.into_owned();
        self.expect(b'=')?;
        self.expect(b'[')?;
        let mut dtypes = Vec::new();
        while !self.eat(b']') {
            if !dtypes.is_empty() {
                self.expect(b',')?;
            }
            dtypes.push(self.dtype()?);
        }
        Ok((var, dtypes))
    }

    /// `=infer`
    fn class(&mut self) -> Parsed<Class> {
        self.expect(b'=')?;
        self.spelled("a class such as `allow` or `deny`")
    }
}
