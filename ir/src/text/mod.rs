//! The text form: a module as lines that a person reads, a test compares and [`parse`] reads back.
//!
//! `docs/text-form.md` has the grammar. Its properties:
//!
//! - nothing a later pass needs is missing: types, class and precision of every type variable with the reason,
//!   provenance of casts, roles, states, metadata, captures, pending conversions of constants;
//! - types are always written, so reading needs no inference, and a changed type shows in every diff;
//! - small constants stand in the text; a large one is `data("name", 0x<xxh3-128>)`, its bytes are elsewhere and
//!   are found through a [`DataResolver`];
//! - the canonical text is a pure function of the module: `parse(print(m)) == m` in the sense of
//!   [`same_module`](crate::eq::same_module), and canonical text prints to itself.
//!
//! Printing returns the position of each node in the text, and [`PrintOptions::note`] puts comments below
//! nodes: diagnostics are drawn over the printed module.
//!
//! Reading has two steps: `parser` turns lines into a syntax tree, recovering at the next line after an error;
//! `build` makes the module through the edit verbs. Both continue after an error, so that all errors are
//! reported at once. Bodies nest at most [`MAX_DEPTH`] deep; neither step recurses over bodies.
//!
//! ```
//! use ampc_ir::text::{NoData, parse};
//!
//! let text = "\
//! module ir=10
//! opset ai.onnx=21
//!
//! graph @main {
//!   input %x : f32[N, 2]
//!   const %w : f32[2] = [0.5, 2.0]
//!   %y = Mul(%x, %w) : f32[N, 2] class=infer
//!   output %y : f32[N, 2]
//! }
//! ";
//! let module = parse(text, &NoData).unwrap();
//! assert_eq!(module.to_text().unwrap(), text);
//! assert_eq!(module.to_string(), text, "the same, but for hashes of large constants");
//! ```

mod ast;
mod attr_parser;
mod build;
mod element;
mod lexer;
mod node_parser;
mod options;
mod parser;
mod printer;
mod quote;
mod signature;
mod type_printer;
mod value_parser;
mod value_printer;

pub use quote::{escape_hidden, escape_hidden_in_json, is_hidden};
pub use signature::signatures;

pub use self::options::{
    DataResolver, LargeConstant, MAX_DEPTH, MAX_INLINE, NoData, ParseError, ParseErrors, ParseOptions,
    ParseSubject, PrintOptions, Printed,
};

use crate::module::Module;
use crate::tensor::TensorError;
use crate::ty::Type;
use std::fmt;

/// Prints a module.
pub fn print(module: &Module, options: &PrintOptions<'_>) -> Printed {
    printer::print(module, options)
}

impl Module {
    /// The canonical text, as [`print()`] gives it by default; the hashes of large constants are computed for it.
    ///
    /// # Errors
    /// If the bytes of a constant cannot be read.
    pub fn to_text(&self) -> Result<String, TensorError> {
        let mut printed = print(self, &PrintOptions::default());
        printed.errors.pop().map_or(Ok(printed.text), Err)
    }
}

/// The text form for people: large constants are named without their hashes, so that no weight is read.
impl fmt::Display for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&print(self, &PrintOptions { omit_hashes: true, ..PrintOptions::default() }).text)
    }
}

/// The text of a type.
pub fn type_text(module: &Module, ty: &Type) -> String {
    let mut out = String::new();
    type_printer::write_type(&mut out, module, ty);
    out
}

/// The constants that the text of a module only names and that have to be written beside it.
///
/// # Errors
/// If the bytes of a constant cannot be read.
pub fn large_constants(module: &Module) -> Result<Vec<LargeConstant>, TensorError> {
    let mut printed = print(module, &PrintOptions::default());
    match printed.errors.pop() {
        Some(error) => Err(error),
        None => Ok(printed.large),
    }
}

/// Reads a module.
///
/// Everything in it counts as changed: it has no source that could be copied.
///
/// # Errors
/// Everything that is wrong with the text, in its order.
pub fn parse(text: &str, resolver: &dyn DataResolver) -> Result<Module, ParseErrors> {
    parse_with(text, resolver, &ParseOptions::default())
}

/// Reads a module with options.
///
/// # Errors
/// Everything that is wrong with the text, in its order.
pub fn parse_with(
    text: &str,
    resolver: &dyn DataResolver,
    options: &ParseOptions,
) -> Result<Module, ParseErrors> {
    build::parse(text, resolver, options)
}

#[cfg(test)]
mod tests;
