//! `philox-dropout`: dropouts that train draw from a generator whose state the step carries.
//!
//! The random numbers of ONNX's Dropout are the runtime's own: two runs of a step differ, and so do two
//! runtimes. A PhiloxDropout of [`ai.ampc`](ampc_ir::bodies) computes its mask from a seed, an offset and the
//! number of the dropout in the model, in integers, so the mask is the same everywhere and can be recomputed in
//! the gradient instead of being kept.
//!
//! ```text
//! %y = Dropout(%x, %ratio, %true)
//!
//! %y = PhiloxDropout(%x, %dropout_seed, %dropout_offset, %ratio) {stream=0}
//! ```
//!
//! Seed and offset are inputs, with the roles [`SEED`] and [`OFFSET`], which [`update`](super::update) turns
//! into states: the seed stays, the offset grows by one after every step.
//!
//! A Dropout stays unchanged if it drops nothing (in inference, or with a constant ratio of 0), if its mask has
//! readers, in bodies and functions, in f64, and if its ratio is not known to be a scalar.

use crate::pass::invariants::Invariants;
use crate::pass::options::{PassOption, Setting, Spelled, option, settings};
use crate::pass::{Changed, Pass, PassCx, PassError, sound};
use crate::training::names::{import_ampc, public_name_or_warn, state_input};
use crate::training::parameters::add_role;
use ampc_ir::inserter::InsertError;
use ampc_ir::op::OpKind;
use ampc_ir::views::NodeView;
use ampc_ir::views::broadcast::DropoutView;
use ampc_ir::{AttrValue, DType, Inserter, Module, Node, NodeSpec, Symbol, TensorData, Value};

/// The role of the input that is the seed of all dropouts.
pub const SEED: &str = "dropout-seed";
/// The role of the input that says how many steps have drawn random numbers.
pub const OFFSET: &str = "dropout-offset";

/// The ratio of a Dropout that does not name one.
const DEFAULT_RATIO: f64 = 0.5;

/// The pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct PhiloxDropout {
    /// The seed that a state begins with.
    pub seed: u64,
}

impl Spelled for PhiloxDropout {
    const NAME: &'static str = "philox-dropout";
    const ABOUT: &'static str = "makes training dropouts draw the same numbers in every runtime";
    const OPTIONS: &'static [PassOption<Self>] = &[PassOption {
        def: option("seed", "an integer from 0 on", Some("0")),
        print: |pass| (pass.seed != 0).then(|| Setting::word(pass.seed)),
        read: |pass, given| given.read(|word| word.parse().ok()).map(|seed| pass.seed = seed),
    }];
    fn blank() -> Self {
        PhiloxDropout::default()
    }
}

impl Pass for PhiloxDropout {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn options(&self) -> Vec<(&'static str, Setting)> {
        settings(self)
    }
    fn revokes(&self) -> Invariants {
        Invariants::DECISIONS
    }
    fn renews_facts(&self) -> bool {
        true
    }
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let dropouts: Vec<Node> = training_dropouts(module).collect();
        if dropouts.is_empty() {
            return Ok(Changed::No);
        }
        import_ampc(module);
        let seed = input(module, "dropout_seed", self.seed, cx);
        let offset = input(module, "dropout_offset", 0, cx);
        add_role(module, SEED, vec![seed]);
        add_role(module, OFFSET, vec![offset]);
        for (stream, node) in (0..).zip(dropouts) {
            sound(replace(module, node, [seed, offset], stream));
        }
        Ok(Changed::Yes)
    }
}

/// True if a module may have dropouts that are replaced, as far as that is known without types.
pub fn draws(module: &Module) -> bool {
    module.nodes(module.main()).any(|node| {
        let view = NodeView::new(module, node).filter(|view| view.kind() == OpKind::Dropout);
        view.is_some_and(|view| {
            let dropout = DropoutView::read(&view);
            let ratio = dropout.ratio_operand.and_then(|i| view.operand(i));
            dropout.training == Some(true) && ratio.and_then(|r| constant_number(module, r)) != Some(0.0)
        })
    })
}

/// The dropouts of the main graph that drop something and can be replaced.
fn training_dropouts(module: &Module) -> impl Iterator<Item = Node> + '_ {
    module.nodes(module.main()).filter(|&node| {
        let Some(view) = NodeView::new(module, node).filter(|view| view.kind() == OpKind::Dropout) else {
            return false;
        };
        let dropout = DropoutView::read(&view);
        let result = module.node(node).result(0).and_then(|y| module.value(y).ty.dtype());
        let is_float = matches!(result, Some(DType::F32 | DType::F16 | DType::BF16));
        let mask = module.node(node).result(1);
        let is_read = mask.is_some_and(|mask| module.is_output(mask) || module.uses(mask).next().is_some());
        let ratio = dropout.ratio_operand.and_then(|i| view.operand(i));
        let drops = match ratio {
            None => dropout.ratio_operand.is_none(),
            Some(ratio) => match constant_number(module, ratio) {
                Some(number) => number != 0.0,
                None => module.value(ratio).ty.shape().and_then(|shape| shape.rank()) == Some(0),
            },
        };
        dropout.training == Some(true) && is_float && !is_read && drops
    })
}

fn constant_number(module: &Module, value: Value) -> Option<f64> {
    match ampc_ir::views::constant_of(module, value)?.small_floats(1)?[..] {
        [number] => Some(number),
        _ => None,
    }
}

/// An input of one u64, with a value to begin with.
fn input(module: &mut Module, name: &str, number: u64, cx: &mut PassCx<'_>) -> Value {
    let data = TensorData::from_bytes(DType::U64, &[], number.to_le_bytes().to_vec());
    let name = public_name_or_warn(module, name, cx);
    state_input(module, name, data.expect("one element"))
}

/// Lets PhiloxDropout number `stream` stand for a Dropout, with its name and that of its result.
fn replace(
    module: &mut Module,
    node: Node,
    [seed, offset]: [Value; 2],
    stream: i64,
) -> Result<(), InsertError> {
    let data = module.node(node);
    let (x, y) = (data.operand(0), data.result(0));
    let (Some(x), Some(y)) = (x, y) else { return Ok(()) };
    let (ratio, name) = (data.operand(1), data.name);
    let mut inserter = Inserter::before(module, node);
    inserter.copies_metadata = true;
    let constant = ratio.map_or(Some(DEFAULT_RATIO), |ratio| constant_number(inserter.module, ratio));
    let ratio = match (constant, ratio) {
        (Some(number), _) => inserter.scalar("ratio", DType::F32, number)?,
        (None, Some(ratio)) if inserter.module.value(ratio).ty.dtype() != Some(DType::F32) => {
            let to = AttrValue::Int(i64::from(DType::F32.number()));
            inserter.op(OpKind::Cast, &[ratio], &[("to", to)])?
        }
        (None, ratio) => ratio.expect("an absent ratio is a number"),
    };
    let spec = NodeSpec::new(OpKind::PhiloxDropout, &[x, seed, offset, ratio]);
    let [dropped] = inserter.insert(spec.attr("stream", AttrValue::Int(stream)))?;
    stand_for(module, node, y, dropped, name);
    Ok(())
}

/// Lets a new value stand for the result of a node, which goes, under the names of both.
pub(super) fn stand_for(module: &mut Module, node: Node, old: Value, new: Value, name: Option<Symbol>) {
    let kept = module.value(old).name;
    module.replace_value(old, new);
    module.erase_node(node);
    if let Some((made, _)) = module.producer(new) {
        module.set_node_name(made, name);
    }
    if let Some(kept) = kept {
        module.set_value_name(new, kept);
    }
}
