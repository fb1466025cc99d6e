//! Decisions about the float type variables of nodes.

use ampc_ir::module::{Decision, Op};
use ampc_ir::{DType, FunctionId, Module, Node};
use rustc_hash::FxHashMap;

/// Decisions about the float type variables of every node. Decisions for the first call of a function hold for all
/// calls, and are summed once: a function of `n` inputs with `n` calls takes `n` steps.
pub(super) struct FloatDecisions<'a> {
    module: &'a Module,
    calls: FxHashMap<FunctionId, Floats<'a>>,
}

/// The decisions about the float type variables of one node.
#[derive(Clone, Copy, Default)]
pub(super) struct Floats<'a> {
    is_f32: bool,
    is_f16: bool,
    is_bf16: bool,
    first_low: Option<&'a Decision>,
    riskiest: Option<&'a Decision>,
}

impl<'a> FloatDecisions<'a> {
    pub(super) fn new(module: &'a Module) -> FloatDecisions<'a> {
        let calls = module.functions().filter_map(|(function, _)| {
            let first = module.calls(function).first()?;
            Some((function, Floats::of(&module.node(*first).decisions)))
        });
        FloatDecisions { module, calls: calls.collect() }
    }

    pub(super) fn module(&self) -> &'a Module {
        self.module
    }

    pub(super) fn of(&self, node: Node) -> Floats<'a> {
        let data = self.module.node(node);
        let of_calls = match data.op {
            Op::Call(function) => self.calls.get(&function),
            Op::Schema(_) | Op::Custom { .. } => None,
        };
        // The call may be removed, and with it the last call of its function.
        of_calls.copied().unwrap_or_else(|| Floats::of(&data.decisions))
    }
}

impl<'a> Floats<'a> {
    fn of(decisions: &'a [Decision]) -> Floats<'a> {
        let mut floats = Floats::default();
        for decision in decisions {
            let Some(precision) = decision.precision.filter(|p| p.is_float()) else { continue };
            match precision {
                DType::F32 => floats.is_f32 = true,
                DType::F16 => floats.is_f16 = true,
                DType::BF16 => floats.is_bf16 = true,
                _ => {}
            }
            if precision.is_low() {
                floats.first_low.get_or_insert(decision);
            }
            if floats.riskiest.is_none_or(|riskiest| riskiest.class <= decision.class) {
                floats.riskiest = Some(decision);
            }
        }
        floats
    }

    /// The 16-bit format of a variable: `preferred` if a variable has it.
    pub(super) fn low(&self, preferred: DType) -> Option<DType> {
        let has = |format| if format == DType::F16 { self.is_f16 } else { self.is_bf16 };
        [preferred, DType::F16, DType::BF16].into_iter().find(|&format| format.is_low() && has(format))
    }

    /// True if a variable is f32, and no variable is of a 16-bit format.
    pub(super) fn is_full(&self) -> bool {
        self.is_f32 && self.first_low.is_none()
    }

    /// The decision about the first variable of a 16-bit format.
    pub(super) fn first_low(&self) -> Option<&'a Decision> {
        self.first_low
    }

    /// The decision about the last variable of the highest class.
    pub(super) fn riskiest(&self) -> Option<&'a Decision> {
        self.riskiest
    }
}
