//! Kernels of the scalar expressions of element-wise operators, for one node or a group of nodes.
//!
//! A node evaluates its expression in f32, or in f64 if it reads an f64, and rounds the result to its element type. A
//! later node of the group reads the rounded bits, so a group gives the same bits as its separate nodes.
//! `y = -Relu(a + b)` in f16:
//!
//! ```text
//! float t0 = from_f16(b0); float t1 = from_f16(b1); float t2 = t0 + t1; u16 t3 = to_f16(t2);
//! float t4 = from_f16(t3); bool t5 = t4 < 0.0f; float t6 = t5 ? 0.0f : t4; u16 t7 = to_f16(t6);
//! float t8 = from_f16(t7); float t9 = -(t8); u16 t10 = to_f16(t9);
//! r0 = t10;
//! ```

use super::Maker;
use super::functions;
use crate::cuda::Shared;
use crate::cuda::elements::{Elements, Source};
use crate::cuda::text::{Elem, TO_ODD, f32_text, f64_text};
use crate::elementwise::{Member, Read};
use crate::groups::unsupported_group;
use crate::kernel::{Dims, Prepared, Result};
use ampc_ir::views::expression::{Arithmetic, Logic, Order, Term};
use ampc_ir::{DType, Value};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Arc;

/// True if expressions can read and produce the element type.
pub(super) fn is_known(dtype: DType) -> bool {
    dtype.is_low() || matches!(dtype, DType::F64 | DType::F32 | DType::Bool)
}

/// The kernel of a node; `None` if the node has no expression.
pub(super) fn prepare(maker: &Maker<'_>) -> Option<Result<Prepared>> {
    let view = &maker.site.view;
    let member = Member::read(maker.site, is_known)?;
    let operand_of = |value| (0..view.n_operands()).find(|&i| view.operand(i) == Some(value));
    let results = [member.result];
    Some(of_members(maker.shared, &[member], operand_of, &results))
}

/// The kernel of nodes in program order whose results have the same dims. `operand_of` maps a value from outside to
/// the index of the kernel's operand; `results` are the values of its results.
pub(super) fn of_members(
    shared: &Arc<Shared>,
    members: &[Member],
    operand_of: impl Fn(Value) -> Option<usize>,
    results: &[Value],
) -> Result<Prepared> {
    let dims = &members.first().ok_or_else(unsupported_group)?.dims;
    let mut printer = Printer::default();
    for member in members {
        printer.member(member).ok_or_else(unsupported_group)?;
    }
    of_printed(shared, printer, dims, operand_of, results)
}

/// The kernel of printed nodes whose results have the dims `dims`. `operand_of` and `results` are those of
/// [`of_members`].
pub(super) fn of_printed(
    shared: &Arc<Shared>,
    mut printer: Printer,
    dims: &[usize],
    operand_of: impl Fn(Value) -> Option<usize>,
    results: &[Value],
) -> Result<Prepared> {
    let mut elems = Vec::new();
    for (j, value) in results.iter().enumerate() {
        let made = printer.values.get(value).ok_or_else(unsupported_group)?;
        let _ = writeln!(printer.body, "    r{j} = {};", made.bits);
        elems.push(made.elem);
    }
    let Printer { body, functions, sources, .. } = printer;
    let functions = functions.into_iter().collect::<String>();
    let (values, sources): (Vec<Input>, Vec<Source>) = sources.into_iter().unzip();
    let operand_of = |key: &Input| match key {
        Input::Value(value) => operand_of(*value),
        Input::Array(_) => None,
    };
    let operands: Option<Vec<usize>> = values.iter().map(operand_of).collect();
    let operands = operands.ok_or_else(unsupported_group)?;
    let elements = Elements {
        functions: &functions,
        dims,
        sources: &sources,
        results: &elems,
        params: &[],
        body: &body,
    };
    let kernel = elements.kernel(shared)?;
    let (mut first, mut others) = (Vec::new(), Vec::new());
    for (j, elem) in elems.iter().enumerate() {
        for (at, source) in sources.iter().enumerate() {
            // Other threads also read a value that has two different access patterns.
            let is_alone = values.iter().filter(|&&key| key == values[at]).count() == 1;
            if is_alone && kernel.is_whole(at) && source.elem.bytes() == elem.bytes() {
                match j {
                    0 => first.push(operands[at]),
                    _ => others.push((j, operands[at])),
                }
            }
        }
    }
    let places: Vec<usize> = (0..results.len()).collect();
    let prepared = Prepared::new(move |io| kernel.launch(io, &operands, &places, &[]));
    Ok(prepared.in_place(&first).others_in_place(&others))
}

/// A value as variables of the body.
#[derive(Clone)]
pub(super) struct Printed {
    pub(super) elem: Elem,
    /// The stored element.
    pub(super) bits: String,
    /// The widened number or the bool, if it was computed.
    wide: Option<String>,
}

impl Printed {
    /// A stored element, not widened.
    pub(super) fn stored(elem: Elem, bits: String) -> Printed {
        Printed { elem, bits, wide: None }
    }
}

/// The tensor that a body reads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Input {
    Value(Value),
    /// An array that is not a value of the graph.
    Array(usize),
}

/// Prints the statements of nodes; holds the values printed so far.
#[derive(Default)]
pub(super) struct Printer {
    pub(super) body: String,
    pub(super) functions: BTreeSet<&'static str>,
    /// The printed values.
    pub(super) values: FxHashMap<Value, Printed>,
    /// The operands from outside. Variable `b` with the operand's index is the stored element.
    pub(super) sources: Vec<(Input, Source)>,
    loaded: Vec<Printed>,
    variables: usize,
}

impl Printer {
    /// A printer for an inner scope, which sees the values of this printer.
    pub(super) fn inner(&self) -> Printer {
        Printer { values: self.values.clone(), variables: self.variables, ..Printer::default() }
    }

    /// Takes functions and the numbering of variables from an inner printer.
    pub(super) fn absorb(&mut self, inner: Printer) {
        self.functions.extend(inner.functions);
        self.variables = inner.variables;
    }

    /// Defines a value.
    pub(super) fn define(&mut self, value: Value, printed: Printed) {
        self.values.insert(value, printed);
    }

    pub(super) fn has(&self, value: Value) -> bool {
        self.values.contains_key(&value)
    }

    pub(super) fn value(&self, value: Value) -> Option<Printed> {
        self.values.get(&value).cloned()
    }

    /// The stored form of a value.
    pub(super) fn bits(&self, value: Value) -> Option<String> {
        Some(self.values.get(&value)?.bits.clone())
    }

    /// Declares a new variable with an initial value; returns its name.
    pub(super) fn set(&mut self, ty: &str, to: &str) -> String {
        let name = format!("t{}", self.variables);
        self.variables += 1;
        let _ = writeln!(self.body, "    {ty} {name} = {to};");
        name
    }

    fn printed(&mut self, read: &Read) -> Option<&mut Printed> {
        if self.values.contains_key(&read.value) {
            return self.values.get_mut(&read.value);
        }
        let at = self.source(Input::Value(read.value), Elem::number(read.dtype)?, &read.dims);
        self.loaded.get_mut(at)
    }

    /// The index of the operand with these dims, which is added if it is new.
    pub(super) fn source(&mut self, key: Input, elem: Elem, dims: &Dims) -> usize {
        let is_same = |(other, source): &(Input, Source)| *other == key && source.dims == *dims;
        let at = self.sources.iter().position(is_same).unwrap_or(self.sources.len());
        if at == self.sources.len() {
            self.sources.push((key, Source { elem, dims: Dims::clone(dims) }));
            self.loaded.push(Printed { elem, bits: format!("b{at}"), wide: None });
        }
        at
    }

    /// The widened number, or the bool, of an operand.
    pub(super) fn wide(&mut self, read: &Read) -> Option<String> {
        let Printed { elem, bits, wide } = self.printed(read)?.clone();
        if wide.is_some() {
            return wide;
        }
        let name = match elem {
            Elem::F32 | Elem::F64 => bits,
            _ => self.set(elem.wide(), &elem.load(&bits)),
        };
        self.printed(read)?.wide = Some(name.clone());
        Some(name)
    }

    /// Computes results by statements, which read the operands' numbers by name and assign the results' variables.
    /// `None` if an operand has another element type.
    pub(super) fn statements(
        &mut self,
        functions: &[&'static str],
        operands: &[(&str, Read)],
        text: &str,
        results: &[(Value, Elem, &str)],
    ) -> Option<()> {
        let mut names = Vec::new();
        for (_, read) in operands {
            names.push((Elem::number(read.dtype)?.wide(), self.wide(read)?));
        }
        let made: Vec<String> = results.iter().map(|(_, elem, _)| self.declared(*elem)).collect();
        self.body += "    {\n";
        for ((name, _), (ty, from)) in operands.iter().zip(names) {
            let _ = writeln!(self.body, "    {ty} {name} = {from};");
        }
        self.body += text;
        for (bits, (_, elem, number)) in made.iter().zip(results) {
            let _ = writeln!(self.body, "    {bits} = {};", elem.store(number));
        }
        self.body += "    }\n";
        self.functions.extend(functions);
        for (bits, &(value, elem, _)) in made.into_iter().zip(results) {
            self.values.insert(value, Printed { elem, bits, wide: None });
        }
        Some(())
    }

    /// Declares a new variable for a stored element.
    fn declared(&mut self, elem: Elem) -> String {
        let name = format!("t{}", self.variables);
        self.variables += 1;
        let _ = writeln!(self.body, "    {} {name};", elem.stored());
        name
    }

    /// Prints a node; `None` if an operand has another element type.
    pub(super) fn member(&mut self, member: &Member) -> Option<()> {
        let elem = Elem::number(member.dtype)?;
        let terms = member.expression.terms();
        let read = |i: usize| member.operands.get(i)?.as_ref();
        // Where moves elements without changing their bits.
        if let &[Term::Operand(0), Term::Operand(x), Term::Operand(y), Term::Choose(0, 1, 2)] = terms
            && read(x)?.dtype == member.dtype
            && read(y)?.dtype == member.dtype
        {
            let condition = self.wide(read(0)?)?;
            let [x, y] = [self.printed(read(x)?)?.bits.clone(), self.printed(read(y)?)?.bits.clone()];
            let bits = self.set(elem.stored(), &format!("{condition} ? {x} : {y}"));
            self.values.insert(member.result, Printed { elem, bits, wide: None });
            return Some(());
        }
        let is_double = member.operands.iter().flatten().any(|read| read.dtype == DType::F64);
        let ty = if is_double { "double" } else { "float" };
        let mut names: Vec<String> = Vec::new();
        for term in terms {
            let name = match *term {
                Term::Operand(i) => {
                    let read = read(i)?;
                    let wide = self.wide(read)?;
                    let is_converted = is_double && !matches!(read.dtype, DType::F64 | DType::Bool);
                    if is_converted { format!("(double){wide}") } else { wide }
                }
                Term::Number(number) if is_double => f64_text(number),
                #[expect(clippy::cast_possible_truncation, reason = "rounding")]
                Term::Number(number) => f32_text(number as f32),
                Term::Apply(function, x) => {
                    let functions::Printed { names: of_types, definition } = functions::printed(function);
                    self.functions.insert(definition);
                    let function = of_types[usize::from(is_double)];
                    self.set(ty, &format!("{function}({})", names[x]))
                }
                Term::Combine(operation, a, b) => {
                    let (a, b) = (&names[a], &names[b]);
                    let text = match operation {
                        Arithmetic::Add => format!("{a} + {b}"),
                        Arithmetic::Sub => format!("{a} - {b}"),
                        Arithmetic::Mul => format!("{a} * {b}"),
                        Arithmetic::Div => format!("{a} / {b}"),
                        Arithmetic::Max => format!("{a} > {b} || {a} != {a} ? {a} : {b}"),
                        Arithmetic::Min => format!("{a} < {b} || {a} != {a} ? {a} : {b}"),
                    };
                    self.set(ty, &text)
                }
                Term::Compare(order, a, b) => {
                    let sign = match order {
                        Order::Equal => "==",
                        Order::Unequal => "!=",
                        Order::Less => "<",
                        Order::LessOrEqual => "<=",
                        Order::Greater => ">",
                        Order::GreaterOrEqual => ">=",
                    };
                    self.set("bool", &format!("{} {sign} {}", names[a], names[b]))
                }
                Term::Join(logic, a, b) => {
                    let sign = match logic {
                        Logic::And => "&&",
                        Logic::Or => "||",
                        Logic::Xor => "!=",
                        Logic::Same => "==",
                    };
                    self.set("bool", &format!("{} {sign} {}", names[a], names[b]))
                }
                Term::Not(a) => self.set("bool", &format!("!{}", names[a])),
                Term::Choose(c, x, y) => self.set(ty, &format!("{} ? {} : {}", names[c], names[x], names[y])),
            };
            names.push(name);
        }
        let last = names.pop()?;
        self.define_rounded(member.result, elem, last, is_double);
        Some(())
    }

    /// Defines a value as a number, rounded to the element type.
    pub(super) fn define_rounded(&mut self, value: Value, elem: Elem, number: String, is_double: bool) {
        let printed = match elem {
            Elem::Bool => {
                let bits = self.set("u8", &format!("{number} ? 1 : 0"));
                Printed { elem, bits, wide: Some(number) }
            }
            Elem::F16 | Elem::BF16 if is_double => {
                self.functions.insert(TO_ODD);
                self.rounded(elem, format!("to_odd({number})"))
            }
            _ => self.rounded(elem, number),
        };
        self.values.insert(value, printed);
    }

    /// A number, rounded to an element type.
    pub(super) fn rounded(&mut self, elem: Elem, number: String) -> Printed {
        if matches!(elem, Elem::F16 | Elem::BF16) {
            let bits = self.set("u16", &elem.store(&number));
            return Printed { elem, bits, wide: None };
        }
        let bits = self.set(elem.stored(), &format!("({})({number})", elem.stored()));
        Printed { elem, wide: Some(bits.clone()), bits }
    }
}
