//! The roundings of a program, as few as possible.
//!
//! A node of 16-bit floats is an operation on numbers as f32 and a rounding. [`settle`] leaves out roundings of numbers that
//! the format has, lets an operation round its own numbers, and lets a store narrow the numbers that it writes. The program of
//! `y = -Relu(a + b)` in f16, before and after:
//!
//! ```text
//! 0 Load(0)                      0 Load(0)
//! 1 Load(1)                      1 Load(1)
//! 2 Combine(Add, 0, 1)           2 Combine(Add, 0, 1), rounded to f16
//! 3 Round(F16, 2)                3 AtLeast(0.0, 2)
//! 4 AtLeast(0.0, 3)              4 Apply(Neg, 3)
//! 5 Round(F16, 4)                5 StoreNarrow(0, F16, 4)
//! 6 Apply(Neg, 5)
//! 7 Narrow(F16, 6)
//! 8 Store(0, 7)
//! ```

use super::program::{Form, Operand, Operation};
use ampc_ir::DType;
use ampc_ir::views::expression::{Arithmetic, Function};
use half::{bf16, f16};

/// An operation of a program.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Step {
    pub(super) operation: Operation,
    /// The 16-bit format to which the operation rounds its numbers.
    pub(super) rounds_to: Option<DType>,
    /// The slot that the operation writes; a store writes none.
    pub(super) slot: usize,
}

/// The steps of operations that read these operands, all in slot 0.
pub(super) fn settle(operations: &[Operation], operands: &[Operand]) -> Vec<Step> {
    let mut readers: Vec<Vec<Operation>> = vec![Vec::new(); operations.len()];
    for operation in operations {
        operation.reads().into_iter().for_each(|read| readers[read].push(*operation));
    }
    let is_only_stored = |at: usize| matches!(readers[at][..], [Operation::Store(..)]);
    let mut settled = Settled { steps: Vec::new(), formats: Vec::new(), operands };
    // The step of each operation.
    let mut step_of = Vec::with_capacity(operations.len());
    for (at, &original) in operations.iter().enumerate() {
        let mut operation = original;
        operation.reads_mut().into_iter().for_each(|read| *read = step_of[*read]);
        step_of.push(match (operation, original) {
            (Operation::Round(dtype, x), _) if settled.formats[x] == Some(dtype) => x,
            (Operation::Narrow(_, x), _) if is_only_stored(at) => x,
            (Operation::Store(result, x), Operation::Store(_, from)) => match operations[from] {
                Operation::Narrow(dtype, _) if is_only_stored(from) => {
                    settled.push(Operation::StoreNarrow(result, dtype, x), None)
                }
                _ => settled.push(operation, None),
            },
            _ => settled.push(operation, rounding_for(&readers[at])),
        });
    }
    settled.steps
}

/// The 16-bit format to which all readers round the numbers, and one of the readers takes them as f32.
fn rounding_for(readers: &[Operation]) -> Option<DType> {
    let rounded = |reader: &Operation| match *reader {
        Operation::Round(dtype, _) | Operation::Narrow(dtype, _) => Some(dtype),
        _ => None,
    };
    let dtype = readers.first().and_then(rounded)?;
    let is_read_wide = readers.iter().any(|reader| matches!(reader, Operation::Round(..)));
    (is_read_wide && readers.iter().all(|reader| rounded(reader) == Some(dtype))).then_some(dtype)
}

struct Settled<'a> {
    steps: Vec<Step>,
    /// The 16-bit format in which every number of the step is exact.
    formats: Vec<Option<DType>>,
    operands: &'a [Operand],
}

impl Settled<'_> {
    /// Adds a step, which rounds its numbers if they are not in the format already. Returns its number.
    fn push(&mut self, operation: Operation, rounds_to: Option<DType>) -> usize {
        let format = self.format(operation);
        let rounds_to = rounds_to.filter(|&dtype| format != Some(dtype) && can_round(operation));
        self.steps.push(Step { operation, rounds_to, slot: 0 });
        self.formats.push(rounds_to.or(format));
        self.steps.len() - 1
    }

    /// The 16-bit format in which every number is exact that an operation computes from the steps before it.
    fn format(&self, operation: Operation) -> Option<DType> {
        let both = |a: usize, b: usize| self.formats[a].filter(|_| self.formats[a] == self.formats[b]);
        let with = |x: usize, number: f32| self.formats[x].filter(|&dtype| has(dtype, number));
        match operation {
            Operation::Load(operand, Form::Wide) => Some(self.operands[operand].dtype).filter(|d| d.is_low()),
            Operation::Round(dtype, _) | Operation::Widen(dtype, _) => Some(dtype),
            Operation::Apply(Function::Abs | Function::Neg, x) => self.formats[x],
            Operation::Combine(Arithmetic::Max | Arithmetic::Min, a, b)
            | Operation::Choose(Form::Wide, [_, a, b]) => both(a, b),
            Operation::CombineWith(Arithmetic::Max | Arithmetic::Min, x, number)
            | Operation::CombineOf(Arithmetic::Max | Arithmetic::Min, number, x)
            | Operation::AtLeast(number, x)
            | Operation::AtMost(number, x) => with(x, number),
            _ => None,
        }
    }
}

/// True if an operation writes numbers to a slot, where they can be rounded.
fn can_round(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::Apply(..)
            | Operation::Combine(..)
            | Operation::CombineWith(..)
            | Operation::CombineOf(..)
            | Operation::AtLeast(..)
            | Operation::AtMost(..)
            | Operation::Choose(Form::Wide, _)
    )
}

/// True if a number is exact in a 16-bit format.
fn has(dtype: DType, number: f32) -> bool {
    let rounded = match dtype {
        DType::F16 => f16::from_f32(number).to_f32(),
        _ => bf16::from_f32(number).to_f32(),
    };
    rounded.to_bits() == number.to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::kernels::broadcast::Walk;
    use Operation::{AtLeast, Combine, Load, Narrow, Round, Store, StoreNarrow};
    use ampc_ir::DType::{BF16, F16, F32};

    fn settled(operations: &[Operation], operands: &[DType]) -> Vec<(Operation, Option<DType>)> {
        let operands: Vec<Operand> =
            operands.iter().map(|&dtype| Operand { dtype, walk: Walk::new(&[4], &[&[4]]) }).collect();
        settle(operations, &operands).iter().map(|step| (step.operation, step.rounds_to)).collect()
    }

    const A: Operation = Load(0, Form::Wide);
    const B: Operation = Load(1, Form::Wide);
    const SUM: Operation = Combine(Arithmetic::Add, 0, 1);
    const NEG: fn(usize) -> Operation = |x| Operation::Apply(Function::Neg, x);

    /// The example of the module.
    #[test]
    fn a_chain_rounds_once_per_sum() {
        let all =
            [A, B, SUM, Round(F16, 2), AtLeast(0.0, 3), Round(F16, 4), NEG(5), Narrow(F16, 6), Store(0, 7)];
        let left = [
            (A, None),
            (B, None),
            (SUM, Some(F16)),
            (AtLeast(0.0, 2), None),
            (NEG(3), None),
            (StoreNarrow(0, F16, 4), None),
        ];
        assert_eq!(settled(&all, &[F16, F16]), left);
    }

    /// 0.1 is not a number of f16, and numbers of f16 are not numbers of bf16.
    #[test]
    fn numbers_of_other_formats_are_rounded() {
        let all = [A, AtLeast(0.1, 0), Round(F16, 1), NEG(2), Round(BF16, 3), Narrow(BF16, 4), Store(0, 5)];
        let left =
            [(A, None), (AtLeast(0.1, 0), Some(F16)), (NEG(1), Some(BF16)), (StoreNarrow(0, BF16, 2), None)];
        assert_eq!(settled(&all, &[F16]), left);
        let loaded = [A, Round(F16, 0), Narrow(F16, 1), Store(0, 2)];
        let same = [(A, None), (Round(F16, 0), None), (StoreNarrow(0, F16, 1), None)];
        assert_eq!(settled(&loaded, &[F32]), same);
    }

    /// A sum that is read in f32 as well, or in two formats, is not rounded in its slot; bits that more than a store reads
    /// are made.
    #[test]
    fn numbers_that_are_read_as_they_are_stay() {
        let two = [A, B, SUM, Round(F16, 2), Round(BF16, 2), Store(0, 3), Store(1, 4)];
        let same: Vec<_> = two.iter().map(|&operation| (operation, None)).collect();
        assert_eq!(settled(&two, &[F32, F32]), same);
        let bits = [A, B, SUM, Narrow(F16, 2), Store(0, 3), Store(1, 3)];
        let wide = [A, B, SUM, Round(F16, 2), Store(0, 2), Store(1, 3)];
        let given = [Operation::Given, Round(F16, 0), NEG(1), Store(0, 2)];
        for all in [&bits[..], &wide, &given] {
            let same: Vec<_> = all.iter().map(|&operation| (operation, None)).collect();
            assert_eq!(settled(all, &[F32, F32]), same);
        }
    }

    /// Operands in f16, and a result that f16 has only if both have its format.
    #[test]
    fn choices_have_the_format_of_their_operands() {
        let choices: [fn(usize, usize) -> Operation; 2] =
            [|a, b| Combine(Arithmetic::Max, a, b), |a, b| Operation::Choose(Form::Wide, [0, a, b])];
        for choice in choices {
            for (dtypes, rounds) in [([F16, F16], None), ([F16, BF16], Some(F16)), ([F32, F16], Some(F16))] {
                let all = [A, B, choice(0, 1), Round(F16, 2), NEG(3), Narrow(F16, 4), Store(0, 5)];
                let left = [
                    (A, None),
                    (B, None),
                    (choice(0, 1), rounds),
                    (NEG(2), None),
                    (StoreNarrow(0, F16, 3), None),
                ];
                assert_eq!(settled(&all, &dtypes), left);
            }
        }
        let least = |number| Operation::CombineWith(Arithmetic::Min, 0, number);
        for (number, rounds) in [(0.5, None), (0.1, Some(F16)), (-0.0, None)] {
            let all = [A, least(number), Round(F16, 1), NEG(2), Store(0, 3)];
            let left = [(A, None), (least(number), rounds), (NEG(1), None), (Store(0, 2), None)];
            assert_eq!(settled(&all, &[F16]), left);
        }
    }
}
