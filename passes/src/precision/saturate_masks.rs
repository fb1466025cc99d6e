//! `saturate-masks`: replaces numbers of masks that are added to the scores of a softmax by numbers that fit the 16-bit
//! format.
//!
//! An attention mask is 0 at a position that counts and a huge negative number at any other position: −3.4e38 or −∞. No
//! finite number of a 16-bit format is that low, so guards keep the addition and the softmax in fp32. Any number far
//! below the scores gives the same weights. The pass replaces numbers below the *floor*, half of the lowest finite
//! number of the format, by the floor (−32752 in f16), so that a score can be added without overflow:
//!
//! ```text
//! m = Where(keep, 0, −3.4e38)      m = Where(keep, 0, −32752)
//! s = Add(scores, m)               s = Add(scores, m)              no guard denies it
//! p = Softmax(s)                   p = Softmax(s)
//! ```
//!
//! The weights are the same if every score is within ±2¹⁴ in f16 and no row is masked entirely: the weight of a masked
//! position is 0 either way. In a row that is masked entirely, a finite mask gives equal weights in fp32, and the
//! weights of the scores after this pass; a mask of −∞ gives NaN before this pass. The pass can prove neither
//! condition, so it runs only on request.
//!
//! A mask is recognised by its computation from constants and truth values alone: operators that move elements, Where,
//! a product with numbers from 0 to 1, and `1 − m`. A mask is replaced only if softmaxes, through additions, are its
//! only readers. Constants with more than 2¹⁶ elements are skipped.

use crate::graph::flow;
use crate::pass::options::{FORMAT, PassOption, Setting, Spelled, Words, settings};
use crate::pass::{Changed, Pass, PassCx, PassError};
use ampc_ir::convert::max_finite;
use ampc_ir::op::{self, OpKind, Sign};
use ampc_ir::views::{NodeView, constant_of, resolve_captures};
use ampc_ir::{AttrValue, DType, Module, Node, Payload, TensorData, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The words of the option that runs the pass.
pub const MASKS: Words = Words { no: "keep", yes: "saturate" };

/// The code of the warning that masks were saturated.
pub const SATURATED: &str = "masks.saturated";

/// The number of elements of the largest constant that is read.
const MAX_ELEMENTS: u64 = 1 << 16;

/// The pass `saturate-masks`.
#[derive(Clone, Copy, Debug)]
pub struct SaturateMasks {
    /// The format that the model is lowered to: f16 or bf16.
    pub to: DType,
}

impl Spelled for SaturateMasks {
    const NAME: &'static str = "saturate-masks";
    const ABOUT: &'static str = "gives masks in front of a softmax numbers that fit the 16-bit format";
    const OPTIONS: &'static [PassOption<Self>] = &[PassOption {
        def: FORMAT,
        print: |pass| Some(Setting::word(pass.to)),
        read: |pass, given| given.format().map(|to| pass.to = to),
    }];
    fn blank() -> Self {
        SaturateMasks { to: DType::F16 }
    }
}

impl Pass for SaturateMasks {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn options(&self) -> Vec<(&'static str, Setting)> {
        settings(self)
    }
    fn run(&self, module: &mut Module, cx: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let floor = floor_of(self.to);
        let found = Finder::new(module, floor).find();
        let count = found.softmaxes;
        let leaves = found.leaves;
        if leaves.is_empty() {
            return Ok(Changed::No);
        }
        let mut made: FxHashMap<Value, Value> = FxHashMap::default();
        for leaf in leaves {
            saturate(module, leaf, floor, &mut made);
        }
        let message = format!(
            "masks in front of {count} × Softmax are {floor} at least: the weights are the same if scores are within ±{} and no row is masked entirely",
            -floor / 2.0
        );
        cx.warn(SATURATED, None, message);
        Ok(Changed::Yes)
    }
}

/// The lowest number of a mask: half of the lowest finite number of the format.
fn floor_of(to: DType) -> f64 {
    -max_finite(to).unwrap_or(f64::MAX) / 2.0
}

/// A place where a number below the floor enters a mask.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
enum Leaf {
    /// An operand that is a constant: the node and the slot.
    Operand(Node, u32),
    /// The value of a ConstantOfShape.
    Fill(Node),
}

/// The range of the numbers of a value, as far as masks need it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Numbers {
    /// Numbers from 0 to 1.
    Unit,
    /// Numbers from the floor to the magnitude of the floor.
    Small,
    /// Small numbers and numbers below the floor.
    Mask,
}

/// The masks in front of softmaxes.
#[derive(Default)]
struct Found {
    leaves: BTreeSet<Leaf>,
    softmaxes: usize,
}

/// A mask: the nodes that compute it and the places where its numbers enter it.
#[derive(Clone, Default)]
struct Region {
    nodes: BTreeSet<Node>,
    leaves: BTreeSet<Leaf>,
}

struct Finder<'m> {
    module: &'m Module,
    floor: f64,
    /// Operands of additions, Where and attention that take a mask and end in a softmax.
    sinks: FxHashSet<(Node, u32)>,
    /// The masks, with the softmax or attention that reads each.
    regions: Vec<(Node, Region)>,
    constants: FxHashMap<Value, Option<Numbers>>,
}

impl<'m> Finder<'m> {
    fn new(module: &'m Module, floor: f64) -> Finder<'m> {
        let (sinks, constants) = (FxHashSet::default(), FxHashMap::default());
        Finder { module, floor, sinks, regions: Vec::new(), constants }
    }

    fn find(mut self) -> Found {
        for node in flow::nodes(self.module) {
            match self.kind(node) {
                Some(OpKind::Softmax) => self.scores(node, 0),
                Some(OpKind::Attention) => {
                    self.operand(node, node, 3);
                }
                _ => {}
            }
        }
        self.keep_closed();
        let softmaxes: BTreeSet<Node> = self.regions.iter().map(|&(softmax, _)| softmax).collect();
        let leaves = self.regions.into_iter().flat_map(|(_, region)| region.leaves).collect();
        Found { leaves, softmaxes: softmaxes.len() }
    }

    fn kind(&self, node: Node) -> Option<OpKind> {
        self.module.node(node).schema().map(|s| s.kind)
    }

    /// Looks for masks among the numbers that are added to the operand of a node that ends in a softmax.
    fn scores(&mut self, softmax: Node, slot: u32) {
        let mut work: Vec<Value> = self.module.node(softmax).operand(slot as usize).into_iter().collect();
        while let Some(value) = work.pop() {
            let Some((node, _)) = self.module.producer(value).filter(|_| self.is_read_once(value)) else {
                continue;
            };
            let Some(kind) = self.kind(node) else { continue };
            let slots: &[u32] = match kind {
                OpKind::Add => &[0, 1],
                OpKind::Where => &[1, 2],
                _ if op::moves_all(kind) && kind != OpKind::Neg && self.module.node(node).n_formal() > 0 => {
                    &[0]
                }
                _ => &[],
            };
            let takes_mask = matches!(kind, OpKind::Add | OpKind::Where);
            for &slot in slots {
                if !(takes_mask && self.operand(softmax, node, slot)) {
                    work.extend(self.module.node(node).operand(slot as usize));
                }
            }
        }
    }

    /// Records the mask that an operand is. Returns true if the operand is a mask.
    fn operand(&mut self, softmax: Node, node: Node, slot: u32) -> bool {
        let mut region = Region::default();
        let is_mask = self.numbers(node, slot, &mut region) == Some(Numbers::Mask);
        if is_mask {
            self.sinks.insert((node, slot));
            self.regions.push((softmax, region));
        }
        is_mask
    }

    fn is_read_once(&self, value: Value) -> bool {
        self.module.uses(value).count() == 1 && !self.module.is_output(value)
    }

    /// Returns the range of an operand and adds the nodes that compute the operand to the region. `None` if the operand
    /// does not follow from constants and truth values alone.
    fn numbers(&mut self, reader: Node, slot: u32, region: &mut Region) -> Option<Numbers> {
        let value = self.module.node(reader).operand(slot as usize)?;
        if let Some(numbers) = self.constant(value) {
            if numbers == Numbers::Mask {
                region.leaves.insert(Leaf::Operand(reader, slot));
            }
            return Some(numbers);
        }
        let (node, _) = self.module.producer(resolve_captures(self.module, value))?;
        let kind = self.kind(node)?;
        region.nodes.insert(node);
        match kind {
            OpKind::Cast => {
                let from = self.module.node(node).operand(0)?;
                let from = self.module.value(from).ty.dtype()?;
                if from.is_float() { self.numbers(node, 0, region) } else { Some(Numbers::Unit) }
            }
            OpKind::ConstantOfShape => self.fill(node, region),
            OpKind::Add | OpKind::Min => self.join(node, &[0, 1], region),
            OpKind::Mul => {
                let (a, b) = (self.numbers(node, 0, region)?, self.numbers(node, 1, region)?);
                match (a, b) {
                    (Numbers::Unit, other) | (other, Numbers::Unit) => Some(other),
                    (Numbers::Small | Numbers::Mask, Numbers::Small | Numbers::Mask) => None,
                }
            }
            OpKind::Sub => {
                let one =
                    self.module.node(node).operand(0).and_then(|value| constant_of(self.module, value))?;
                let is_one = one.small_floats(1).is_some_and(|numbers| numbers == [1.0]);
                let of_unit = self.numbers(node, 1, region) == Some(Numbers::Unit);
                (is_one && of_unit).then_some(Numbers::Unit)
            }
            _ => {
                let formals = 0..u32::try_from(self.module.node(node).n_formal()).ok()?;
                let moved: Vec<u32> =
                    formals.filter(|&slot| op::moves(kind, slot as usize) == Some(Sign::Kept)).collect();
                if moved.is_empty() { None } else { self.join(node, &moved, region) }
            }
        }
    }

    /// Returns the range of a result whose elements are elements, or sums of elements, of several operands.
    fn join(&mut self, node: Node, slots: &[u32], region: &mut Region) -> Option<Numbers> {
        let mut all = Numbers::Unit;
        for &slot in slots {
            if self.module.node(node).operand(slot as usize).is_some() {
                let numbers = self.numbers(node, slot, region)?;
                all = if all == Numbers::Mask || numbers == Numbers::Mask {
                    Numbers::Mask
                } else {
                    Numbers::Small
                };
            }
        }
        Some(all)
    }

    fn fill(&mut self, node: Node, region: &mut Region) -> Option<Numbers> {
        let value = match NodeView::new(self.module, node)?.attr("value") {
            Some(AttrValue::Tensor(data)) => *data.small_floats(1)?.first()?,
            _ => 0.0,
        };
        let numbers = self.classify(&[value])?;
        if numbers == Numbers::Mask {
            region.leaves.insert(Leaf::Fill(node));
        }
        Some(numbers)
    }

    fn constant(&mut self, value: Value) -> Option<Numbers> {
        if let Some(&known) = self.constants.get(&value) {
            return known;
        }
        let data = constant_of(self.module, value).and_then(|data| data.small_floats(MAX_ELEMENTS));
        let numbers = data.and_then(|numbers| self.classify(&numbers));
        self.constants.insert(value, numbers);
        numbers
    }

    fn classify(&self, numbers: &[f64]) -> Option<Numbers> {
        if numbers.iter().any(|number| number.is_nan() || *number > -self.floor) {
            None
        } else if numbers.iter().any(|&number| number < self.floor) {
            Some(Numbers::Mask)
        } else if numbers.iter().all(|number| (0.0..=1.0).contains(number)) {
            Some(Numbers::Unit)
        } else {
            Some(Numbers::Small)
        }
    }

    /// Drops masks that other nodes read, until softmaxes are the only readers of the remaining masks.
    fn keep_closed(&mut self) {
        loop {
            let inside: FxHashSet<Node> =
                self.regions.iter().flat_map(|(_, region)| region.nodes.iter().copied()).collect();
            let before = self.regions.len();
            let (module, sinks) = (self.module, &self.sinks);
            let is_closed = |node: &Node| {
                let results = module.node(*node).results().iter().flatten();
                results.clone().all(|&result| is_read_inside(module, result, &inside, sinks))
            };
            self.regions.retain(|(_, region)| region.nodes.iter().all(is_closed));
            if self.regions.len() == before {
                return;
            }
        }
    }
}

/// True if the only readers of a value, here or in bodies, are nodes of masks, sinks and operators that read its dims.
fn is_read_inside(
    module: &Module,
    value: Value,
    inside: &FxHashSet<Node>,
    sinks: &FxHashSet<(Node, u32)>,
) -> bool {
    let is_inside = |reader: flow::Reader| match reader {
        flow::Reader::Operand(node, slot) => {
            let reads_dims = module.node(node).schema().is_some_and(|s| op::reads_only_dims(s.kind));
            inside.contains(&node) || sinks.contains(&(node, slot)) || reads_dims
        }
        flow::Reader::Output(..) => false,
    };
    !module.is_output(value) && flow::readers(module, value).into_iter().all(is_inside)
}

/// Raises the numbers of a leaf to the floor.
fn saturate(module: &mut Module, leaf: Leaf, floor: f64, made: &mut FxHashMap<Value, Value>) {
    match leaf {
        Leaf::Operand(node, slot) => {
            let Some(value) = module.node(node).operand(slot as usize) else { return };
            let saturated = match made.get(&value) {
                Some(&known) => known,
                None => {
                    let Some(data) = constant_of(module, value) else { return };
                    let Some(raised) = raised(&data, floor) else { return };
                    let base = module.value_name(value).map_or("mask", |name| module.text(name)).to_owned();
                    let name = module.fresh_name(&format!("{base}.saturated"));
                    let graph = module.node(node).graph;
                    let constant = module.add_constant(graph, name, Payload::Dense(Arc::new(raised)));
                    made.insert(value, constant);
                    constant
                }
            };
            module.set_operand(node, slot as usize, Some(saturated));
        }
        Leaf::Fill(node) => {
            let dtype = module.node(node).result(0).and_then(|result| module.value(result).ty.dtype());
            let Ok(fill) = TensorData::from_f32(&[1], &[to_f32(floor)]) else { return };
            let fill = match dtype {
                Some(dtype) if dtype != DType::F32 => {
                    fill.converted(ampc_ir::convert::Conversion { to: dtype, clamp: false })
                }
                _ => fill,
            };
            let attr = module.intern("value");
            module.set_attr(node, attr, AttrValue::Tensor(Arc::new(fill)));
        }
    }
}

/// Returns a constant with its numbers raised to the floor, in its element type.
fn raised(data: &TensorData, floor: f64) -> Option<TensorData> {
    let numbers = data.small_floats(MAX_ELEMENTS)?;
    let numbers: Vec<f32> = numbers.into_iter().map(|number| to_f32(number.max(floor))).collect();
    let raised = TensorData::from_f32(data.dims(), &numbers).ok()?;
    let to = data.dtype();
    Some(if to == DType::F32 {
        raised
    } else {
        raised.converted(ampc_ir::convert::Conversion { to, clamp: false })
    })
}

/// Converts a number of a mask to f32; the number is within the range of f32.
#[expect(clippy::cast_possible_truncation, reason = "masks are rounded to the element type of the constant")]
fn to_f32(number: f64) -> f32 {
    number as f32
}
