//! `insert-casts`: gives values their assigned element types and inserts the casts of the [placement](crate::placement).
//!
//! The placement has each cast with its graph and readers. The pass carries it out without a choice of its own, and compares
//! the module with it at the end. A cast stands right behind the producer of its tensor, or before its first reader if the
//! tensor is an input, a constant or a capture. For example, with MatMul low:
//!
//! ```text
//! %a = MatMul(%x, %x) : f32      prec=f16        %x.f16 = Cast(%x) : f16       before its first reader
//! %y = Exp(%a) : f32             prec=f32        %a = MatMul(%x.f16, %x.f16) : f16
//! output %a                                      %a.f32 = Cast(%a) : f32       shared by Exp and the output
//! ```
//!
//! - An output of the model keeps its type and its name: the cast that makes it takes the name (`%a`), and the low value is
//!   renamed (`%a.f16`).
//! - A reader without a decision, such as a custom operator, reads the type that the value had.
//! - Sequences and optionals are retyped and never cast; attributes that say their element type follow.
//! - A cast of the author whose operand now has the type that the cast makes is left out.

mod nodes;
mod opsets;
mod state;

pub(crate) use self::nodes::{new_cast, set_element_attribute, set_target};
use self::state::State;

use crate::analysis::cost::Objective;
use crate::analysis::placement::Placement;
use crate::graph::flow;
use crate::graph::names;
use crate::pass::invariants::Invariants;
use crate::pass::options::{KEEP_IO, OBJECTIVE, PassOption, Setting, Spelled, print_keep_io, settings};
use crate::pass::{Changed, Pass, PassCx, PassError};
pub use crate::policy::KeepIo;
use crate::precision::assign::{Optimum, settle_free_results};
use ampc_ir::Module;

/// The pass.
#[derive(Clone, Debug, Default)]
pub struct InsertCasts {
    /// The inputs and outputs that keep their types.
    pub keep_io: KeepIo,
    /// The quantity that the scopes of casts minimize: for `casts` a tensor that several branches read is cast once around
    /// them, for the others where it is cast least often.
    pub objective: Objective,
}

impl Spelled for InsertCasts {
    const NAME: &'static str = "insert-casts";
    const ABOUT: &'static str = "gives values their assigned types and inserts casts between them";
    const OPTIONS: &'static [PassOption<Self>] = &[
        PassOption {
            def: KEEP_IO,
            print: |pass| print_keep_io(&pass.keep_io),
            read: |pass, given| given.keep_io().map(|keep_io| pass.keep_io = keep_io),
        },
        PassOption {
            def: OBJECTIVE,
            print: |pass| (pass.objective != Objective::Time).then(|| Setting::word(pass.objective)),
            read: |pass, given| given.read(|word| word.parse().ok()).map(|read| pass.objective = read),
        },
    ];
    fn blank() -> Self {
        InsertCasts::default()
    }
}

impl Pass for InsertCasts {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn options(&self) -> Vec<(&'static str, Setting)> {
        settings(self)
    }
    fn requires(&self) -> Invariants {
        Invariants::CORE.with(Invariants::CLASSIFIED).with(Invariants::ASSIGNED)
    }
    fn ensures(&self) -> Invariants {
        self.requires().with(Invariants::LOWERED)
    }
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let placed = cx.results.current::<Placement>().filter(|p| p.is_for(&self.keep_io, self.objective));
        let placed = placed.cloned();
        let is_carried_out = placed.is_some();
        let mut is_settled = false;
        let placement = placed.unwrap_or_else(|| {
            is_settled = settle_free_results(module, cx.facts);
            Placement::of_decided(module, &self.keep_io, self.objective)
        });
        let mut state = State::new(&placement);
        let graph = module.main();
        state.inputs(module, graph);
        state.graphs(module);
        state.outputs(module, graph, &self.keep_io);
        let before = &state.before;
        let is_cast = |m: &Module, v| m.uses(v).any(|(n, _)| flow::inserted_result(m, n).is_some());
        names::part(module, |module, value| before[value].is_some() || is_cast(module, value));
        placement.check(module, |value| state.now(value))?;
        for graph in flow::graphs(module).into_iter().rev() {
            for node in module.nodes(graph).collect::<Vec<_>>().into_iter().rev() {
                module.prune_captures(node);
            }
        }
        let reimported = opsets::agree(module);
        if let Some(optimum) = cx.results.current::<Optimum>().filter(|_| is_carried_out) {
            optimum.carried_out = true;
        }
        Ok(Changed::when(state.changed || is_settled || reimported))
    }
}
