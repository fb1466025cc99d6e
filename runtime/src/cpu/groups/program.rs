//! The program of a group: operations on blocks of elements, with a slot for each value that is alive.
//!
//! A node becomes the terms of its expression on numbers that are f32, and a rounding to its element type. A value of a
//! 16-bit float that stays in the group is rounded in place; its bits are made only where they are stored or chosen.

use super::roundings::{Step, settle};
use crate::cpu::kernels::broadcast::Walk;
use crate::elementwise::{Member, Read};
use crate::kernel::{Dims, Site};
use ampc_ir::views::expression::{Arithmetic, Function, Logic, Order, Term};
use ampc_ir::{DType, Value};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// The form of the elements in a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// Numbers as f32.
    Wide,
    /// The bits of 16-bit floats.
    Bits,
    /// Truth values as bytes.
    Truths,
}

/// An operation. Operands are earlier operations, by index.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Operation {
    /// The results of the product that the group begins with, not yet rounded.
    Given,
    /// Elements of an operand of the group.
    Load(usize, Form),
    /// One number.
    Number(f32),
    Apply(Function, usize),
    Combine(Arithmetic, usize, usize),
    /// Numbers as left operands, and this number as the right operand of each.
    CombineWith(Arithmetic, usize, f32),
    /// This number as the left operand, and numbers as right operands.
    CombineOf(Arithmetic, f32, usize),
    Compare(Order, usize, usize),
    Join(Logic, usize, usize),
    Not(usize),
    /// Elements of a form, by a condition.
    Choose(Form, [usize; 3]),
    /// Numbers, but this number where they are less; NaN stays NaN.
    AtLeast(f32, usize),
    /// Numbers, but this number where they are greater; NaN stays NaN.
    AtMost(f32, usize),
    /// Numbers rounded to a 16-bit float.
    Round(DType, usize),
    /// The bits of numbers rounded to a 16-bit float.
    Narrow(DType, usize),
    /// The numbers of bits.
    Widen(DType, usize),
    /// Writes elements to a result of the group.
    Store(usize, usize),
    /// Writes the bits of numbers rounded to a 16-bit float to a result of the group.
    StoreNarrow(usize, DType, usize),
}

impl Operation {
    /// The result that it writes.
    pub(super) fn stored(self) -> Option<usize> {
        match self {
            Operation::Store(result, _) | Operation::StoreNarrow(result, ..) => Some(result),
            _ => None,
        }
    }

    /// The operations that it reads.
    pub(super) fn reads(mut self) -> SmallVec<[usize; 3]> {
        self.reads_mut().into_iter().map(|read| *read).collect()
    }

    pub(super) fn reads_mut(&mut self) -> SmallVec<[&mut usize; 3]> {
        match self {
            Operation::Given | Operation::Load(..) | Operation::Number(_) => SmallVec::new(),
            Operation::Apply(_, a)
            | Operation::CombineWith(_, a, _)
            | Operation::CombineOf(_, _, a)
            | Operation::AtLeast(_, a)
            | Operation::AtMost(_, a)
            | Operation::Not(a)
            | Operation::Round(_, a)
            | Operation::Narrow(_, a)
            | Operation::Widen(_, a)
            | Operation::Store(_, a)
            | Operation::StoreNarrow(_, _, a) => SmallVec::from_iter([a]),
            Operation::Combine(_, a, b) | Operation::Compare(_, a, b) | Operation::Join(_, a, b) => {
                SmallVec::from_iter([a, b])
            }
            Operation::Choose(_, [a, b, c]) => SmallVec::from_iter([a, b, c]),
        }
    }
}

/// An operand of a group.
pub(super) struct Operand {
    pub(super) dtype: DType,
    /// Its walk along the elements of the group.
    pub(super) walk: Walk,
}

/// The operations of a group on a block.
pub(super) struct Program {
    pub(super) steps: Vec<Step>,
    pub(super) n_slots: usize,
    pub(super) operands: Vec<Operand>,
    pub(super) results: Vec<DType>,
    /// The elements of each result.
    pub(super) count: usize,
}

/// Element types whose numbers an f32 holds, and truth values.
fn is_known(dtype: DType) -> bool {
    dtype.is_low() || matches!(dtype, DType::F32 | DType::Bool)
}

/// A node, if the operations of a group compute its bits.
pub(super) fn member_of(site: &Site<'_>) -> Option<Member> {
    Member::read(site, is_known)
}

/// The forms of a value that there are so far, as operations.
#[derive(Clone, Copy, Default)]
struct Made {
    /// Numbers before they are rounded.
    exact: Option<usize>,
    wide: Option<usize>,
    bits: Option<usize>,
    truths: Option<usize>,
}

struct Compiler {
    operations: Vec<Operation>,
    values: FxHashMap<Value, (DType, Made)>,
    /// The operands of the group with their dims as its nodes read them.
    operands: Vec<(DType, Option<Dims>)>,
    number_of: FxHashMap<Value, usize>,
}

impl Program {
    /// The program of nodes that have the same dims, in program order; `None` if two of them broadcast an operand in
    /// different ways. `given` is the result of the product that the group begins with, and its element type; it has the
    /// same dims, and no node outside reads it.
    pub(super) fn new(
        members: &[&Member],
        operands: &[Value],
        results: &[Value],
        given: Option<(Value, DType)>,
    ) -> Option<Program> {
        let mut compiler = Compiler {
            operations: Vec::new(),
            values: FxHashMap::default(),
            operands: vec![(DType::F32, None); operands.len()],
            number_of: operands.iter().copied().zip(0..).collect(),
        };
        if let Some((value, dtype)) = given {
            if results.contains(&value) {
                return None;
            }
            let exact = Some(compiler.add(Operation::Given));
            let wide = exact.filter(|_| dtype == DType::F32);
            compiler.values.insert(value, (dtype, Made { exact, wide, ..Made::default() }));
        }
        for &member in members {
            compiler.member(member)?;
            if let Some(result) = results.iter().position(|&value| value == member.result) {
                let from = compiler.stored(member.result)?;
                compiler.operations.push(Operation::Store(result, from));
            }
        }
        let dims = &members.first()?.dims;
        let dtype_of = |value: &Value| compiler.values.get(value).map(|made| made.0);
        let results = results.iter().map(dtype_of).collect::<Option<Vec<DType>>>()?;
        // An operand without dims is not read: the exponent of a square.
        let operands = compiler.operands.iter().map(|(dtype, of)| {
            let of = of.as_ref().map_or(&[][..], |of| &of[..]);
            Operand { dtype: *dtype, walk: Walk::new(dims, &[of]) }
        });
        let operands: Vec<Operand> = operands.collect();
        let mut steps = settle(&used(&compiler.operations), &operands);
        let n_slots = give_slots(&mut steps);
        let count = dims.iter().product();
        Some(Program { steps, n_slots, operands, results, count })
    }

    /// True if a result can be computed in place of an operand: they have the same elements, and nothing reads the operand
    /// after the result is stored.
    pub(super) fn fits(&self, result: usize, operand: usize) -> bool {
        let Operand { dtype, walk } = &self.operands[operand];
        let reads = |step: &Step| matches!(step.operation, Operation::Load(of, _) if of == operand);
        let stores = |step: &Step| step.operation.stored() == Some(result);
        dtype.bits() == self.results[result].bits()
            && walk.is_whole(0)
            && self.steps.iter().rposition(reads) < self.steps.iter().position(stores)
    }
}

impl Compiler {
    fn add(&mut self, operation: Operation) -> usize {
        self.operations.push(operation);
        self.operations.len() - 1
    }

    fn member(&mut self, member: &Member) -> Option<()> {
        let mut of_term: Vec<usize> = Vec::new();
        let terms = member.expression.terms();
        let mut made = Made::default();
        // Where moves elements: bits stay what they are.
        if let [.., Term::Operand(x), Term::Operand(y), Term::Choose(0, _, _)] = terms
            && terms.len() == 4
        {
            let condition = self.truths(member, 0)?;
            let form = if member.dtype.is_low() { Form::Bits } else { Form::Wide };
            let [x, y] = [*x, *y].map(|i| self.operand(member, i, form));
            let chosen = self.add(Operation::Choose(form, [condition, x?, y?]));
            match form {
                Form::Bits => made.bits = Some(chosen),
                _ => (made.wide, made.exact) = (Some(chosen), Some(chosen)),
            }
        } else {
            for term in terms {
                let operation = match *term {
                    Term::Operand(i) => {
                        let is_truth = member.operands[i].as_ref()?.dtype == DType::Bool;
                        let form = if is_truth { Form::Truths } else { Form::Wide };
                        of_term.push(self.operand(member, i, form)?);
                        continue;
                    }
                    Term::Number(number) => Operation::Number(rounded(number)),
                    Term::Apply(function, x) => Operation::Apply(function, of_term[x]),
                    Term::Combine(operation, a, b) => match (&terms[a], &terms[b]) {
                        (_, &Term::Number(number)) => {
                            Operation::CombineWith(operation, of_term[a], rounded(number))
                        }
                        (&Term::Number(number), _) => {
                            Operation::CombineOf(operation, rounded(number), of_term[b])
                        }
                        _ => Operation::Combine(operation, of_term[a], of_term[b]),
                    },
                    Term::Compare(order, a, b) => Operation::Compare(order, of_term[a], of_term[b]),
                    Term::Join(logic, a, b) => Operation::Join(logic, of_term[a], of_term[b]),
                    Term::Not(a) => Operation::Not(of_term[a]),
                    Term::Choose(c, x, y) => bound(terms, [c, x, y], &of_term)
                        .unwrap_or_else(|| Operation::Choose(Form::Wide, [c, x, y].map(|i| of_term[i]))),
                };
                of_term.push(self.add(operation));
            }
            let last = *of_term.last()?;
            match member.dtype {
                DType::Bool => made.truths = Some(last),
                DType::F32 => (made.wide, made.exact) = (Some(last), Some(last)),
                _ => made.exact = Some(last),
            }
        }
        self.values.insert(member.result, (member.dtype, made));
        Some(())
    }

    fn truths(&mut self, member: &Member, i: usize) -> Option<usize> {
        self.operand(member, i, Form::Truths)
    }

    /// Operand `i` of a node in a form.
    fn operand(&mut self, member: &Member, i: usize, form: Form) -> Option<usize> {
        let Read { value, dtype, dims } = member.operands[i].as_ref()?;
        if let Some(&number) = self.number_of.get(value) {
            let known = &mut self.operands[number];
            if known.1.get_or_insert_with(|| dims.clone()) != dims {
                return None;
            }
            known.0 = *dtype;
        }
        self.form(*value, *dtype, form)
    }

    /// A value in the form in which it is stored.
    fn stored(&mut self, value: Value) -> Option<usize> {
        let dtype = self.values.get(&value)?.0;
        let form = match dtype {
            DType::Bool => Form::Truths,
            DType::F32 => Form::Wide,
            _ => Form::Bits,
        };
        self.form(value, dtype, form)
    }

    /// A value in a form.
    fn form(&mut self, value: Value, dtype: DType, form: Form) -> Option<usize> {
        let mut made = self.values.get(&value).map_or_else(Made::default, |known| known.1);
        let place = match form {
            Form::Wide => made.wide,
            Form::Bits => made.bits,
            Form::Truths => made.truths,
        };
        if let Some(found) = place {
            return Some(found);
        }
        let operation = match (form, made) {
            (_, Made { exact: None, bits: None, .. }) => Operation::Load(*self.number_of.get(&value)?, form),
            (Form::Wide, Made { bits: Some(bits), .. }) => Operation::Widen(dtype, bits),
            (Form::Wide, Made { exact: Some(exact), .. }) => Operation::Round(dtype, exact),
            (Form::Bits, Made { exact: Some(exact), .. }) => Operation::Narrow(dtype, exact),
            _ => return None,
        };
        let at = self.add(operation);
        match form {
            Form::Wide => made.wide = Some(at),
            Form::Bits => made.bits = Some(at),
            Form::Truths => made.truths = Some(at),
        }
        self.values.insert(value, (dtype, made));
        Some(at)
    }
}

/// A number of an expression in the type that is computed in.
#[expect(clippy::cast_possible_truncation, reason = "rounding is what it is for")]
fn rounded(number: f64) -> f32 {
    number as f32
}

/// The operation of a choice between a number and x, by a comparison of x with the number: of `Relu`, 0 where x < 0.
fn bound(terms: &[Term], [condition, x, y]: [usize; 3], of_term: &[usize]) -> Option<Operation> {
    let (Term::Compare(order, a, b), Term::Number(number)) = (terms[condition], terms[x]) else {
        return None;
    };
    if (a, b) != (y, x) {
        return None;
    }
    match order {
        Order::Less => Some(Operation::AtLeast(rounded(number), of_term[y])),
        Order::Greater => Some(Operation::AtMost(rounded(number), of_term[y])),
        _ => None,
    }
}

/// The operations that results depend on, in order.
fn used(operations: &[Operation]) -> Vec<Operation> {
    let mut is_used = vec![false; operations.len()];
    for (at, operation) in operations.iter().enumerate().rev() {
        if is_used[at] || matches!(operation, Operation::Store(..)) {
            is_used[at] = true;
            operation.reads().into_iter().for_each(|read| is_used[read] = true);
        }
    }
    let mut number = vec![0; operations.len()];
    let mut kept = Vec::new();
    for (at, operation) in operations.iter().enumerate().filter(|(at, _)| is_used[*at]) {
        number[at] = kept.len();
        let mut operation = *operation;
        operation.reads_mut().into_iter().for_each(|read| *read = number[*read]);
        kept.push(operation);
    }
    kept
}

/// Gives each step a slot, and returns the number of slots: a slot is free behind the last step that reads it.
fn give_slots(steps: &mut [Step]) -> usize {
    let mut last: Vec<usize> = (0..steps.len()).collect();
    for (at, step) in steps.iter().enumerate() {
        step.operation.reads().into_iter().for_each(|read| last[read] = at);
    }
    let (mut free, mut n_slots): (Vec<usize>, usize) = (Vec::new(), 0);
    for at in 0..steps.len() {
        let operation = steps[at].operation;
        if operation.stored().is_none() {
            let slot = free.pop().unwrap_or_else(|| {
                n_slots += 1;
                n_slots - 1
            });
            steps[at].slot = slot;
            if last[at] == at {
                free.push(slot);
            }
        }
        let reads = operation.reads();
        for (i, &read) in reads.iter().enumerate() {
            if last[read] == at && !reads[..i].contains(&read) {
                free.push(steps[read].slot);
            }
        }
    }
    n_slots
}
