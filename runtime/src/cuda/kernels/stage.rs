//! Kernels of several launches: the source of a launch with its parameters, and the matching arguments.
//!
//! Extents and strides are parameters and not in the source, so that tensors of different dims share a kernel.
//! Indices have 32 bits if that suffices for all of them.

use super::Maker;
pub(super) use super::moves::moved;
use crate::cuda::dnn::{AttentionPlaces, AttentionPlan, TENSORS};
use crate::cuda::elements::Loop;
use crate::cuda::launch::{Args, Kernel, THREADS, blocks_for, operand_or_none, queue, result, scratch};
use crate::cuda::products::{Places, Product};
use crate::cuda::text::{Elem, FAIL, HEAD, Steps, Walk, index_type};
use crate::device::Rows;
use crate::kernel::{Io, KernelError, Prepared, Result};
use std::fmt::Write;
use std::sync::Arc;

/// The memory of a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Base {
    Operand(usize),
    Result(usize),
    Scratch,
}

/// An address on the device, 0 for an absent operand or result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    base: Base,
    /// The offset in bytes.
    offset: u64,
}

impl Place {
    /// Operand `i`.
    pub(super) fn operand(i: usize) -> Place {
        Place { base: Base::Operand(i), offset: 0 }
    }

    /// Result `j`.
    pub(super) fn result(j: usize) -> Place {
        Place { base: Base::Result(j), offset: 0 }
    }

    /// The start of the scratch memory.
    pub(super) fn scratch() -> Place {
        Place { base: Base::Scratch, offset: 0 }
    }

    /// The place `bytes` bytes later.
    pub(super) fn plus(self, bytes: usize) -> Place {
        Place { offset: self.offset + bytes as u64, ..self }
    }

    /// The offset in bytes in the operand, result or scratch memory.
    pub(super) fn offset(self) -> usize {
        usize::try_from(self.offset).unwrap_or(usize::MAX)
    }

    fn address(self, io: &Io<'_>) -> Result<u64> {
        let base = match self.base {
            Base::Operand(i) => operand_or_none(io, i)?,
            Base::Result(j) => result(io, j)?,
            Base::Scratch => scratch(io)?,
        };
        Ok(if base == 0 { 0 } else { base + self.offset })
    }
}

/// The scratch memory of a kernel: parts in order of their allocation, then the workspace that all products share.
#[derive(Default)]
pub(super) struct Scratch {
    bytes: usize,
    workspace: usize,
}

impl Scratch {
    /// Allocates a part of `bytes` bytes.
    pub(super) fn part(&mut self, bytes: usize) -> Place {
        let at = self.bytes;
        self.bytes += bytes.max(1).next_multiple_of(super::PART);
        Place { base: Base::Scratch, offset: at as u64 }
    }
}

/// The maximum number of parameters of a kernel: each has 8 bytes, and every device permits 4096 bytes.
pub(super) const MOST_PARAMETERS: usize = 512;

/// The argument of a parameter.
#[derive(Clone, Copy, Debug)]
pub(super) enum Argument {
    Place(Place),
    Number(u64),
}

impl Argument {
    /// Operand `i`.
    pub(super) fn operand(i: usize) -> Argument {
        Argument::Place(Place::operand(i))
    }

    /// Result `j`.
    pub(super) fn result(j: usize) -> Argument {
        Argument::Place(Place::result(j))
    }

    /// The value that a launch passes.
    ///
    /// # Errors
    /// If an operand or result is not on the device.
    pub(super) fn value(self, io: &Io<'_>) -> Result<u64> {
        match self {
            Argument::Place(place) => place.address(io),
            Argument::Number(number) => Ok(number),
        }
    }
}

/// One operation of a kernel.
#[derive(Clone)]
pub(super) enum Stage {
    /// A launch; `message` is the index of its error message, if it can fail.
    Launch { kernel: Kernel, arguments: Vec<Argument>, message: Option<u32> },
    /// An element-wise loop, with the places of its sources and results.
    Elements { elements: Arc<Loop>, places: Vec<Place> },
    /// Products in sequence, with the strides in bytes between matrices of both operands and the result.
    Product { product: Arc<Product>, a: Place, b: Place, to: Place, repeats: Vec<[usize; 3]> },
    /// An attention or its gradient. The tensors are in the order of [`AttentionPlaces`].
    Attention { plan: Arc<AttentionPlan>, tensors: Vec<Option<Place>>, bias: Option<Place>, scale: f32 },
}

impl Stage {
    /// A product.
    pub(super) fn product(product: Product, [a, b, to]: [Place; 3], scratch: &mut Scratch) -> Stage {
        scratch.workspace = scratch.workspace.max(product.workspace());
        Stage::Product { product: Arc::new(product), a, b, to, repeats: vec![[0; 3]] }
    }

    /// An attention or its gradient.
    pub(super) fn attention(
        plan: AttentionPlan,
        tensors: Vec<Option<Place>>,
        bias: Option<Place>,
        scale: f32,
        scratch: &mut Scratch,
    ) -> Stage {
        scratch.workspace = scratch.workspace.max(plan.workspace());
        Stage::Attention { plan: Arc::new(plan), tensors, bias, scale }
    }

    /// Runs the stage. `parts` is the size of the scratch memory before the workspace.
    fn run(&self, io: &mut Io<'_>, parts: u64) -> Result<()> {
        match self {
            Stage::Launch { kernel, arguments, message } => {
                let mut args = Args::new();
                for argument in arguments {
                    args.push(argument.value(io)?);
                }
                let queue = queue(io)?;
                if let Some(message) = message {
                    args.extend(queue.failure(*message));
                }
                kernel.launch(queue, &args)
            }
            Stage::Elements { elements, places } => {
                let addresses = places.iter().map(|place| place.address(io)).collect::<Result<Args>>()?;
                elements.launch_at(io, &addresses, &[])
            }
            Stage::Product { product, a, b, to, repeats } => {
                let [a, b, to] = [a.address(io)?, b.address(io)?, to.address(io)?];
                let workspace = scratch(io)? + parts;
                let queue = queue(io)?;
                for [from_a, from_b, from_to] in repeats.iter().map(|offsets| offsets.map(|n| n as u64)) {
                    let places =
                        Places { a: a + from_a, b: b + from_b, bias: 0, to: to + from_to, workspace };
                    product.launch(queue, &places)?;
                }
                Ok(())
            }
            Stage::Attention { plan, tensors, bias, scale } => {
                let mut addresses = [0; TENSORS];
                for (address, place) in addresses.iter_mut().zip(tensors) {
                    *address = place.map_or(Ok(0), |place| place.address(io))?;
                }
                let bias = bias.map_or(Ok(0), |place| place.address(io))?;
                let workspace = scratch(io)? + parts;
                let places = AttentionPlaces { tensors: addresses, bias, workspace, scale: *scale };
                plan.launch(queue(io)?, &places)
            }
        }
    }
}

/// A kernel that runs stages in order.
pub(super) fn staged(stages: Vec<Stage>, scratch: &Scratch) -> Prepared {
    let parts = scratch.bytes as u64;
    let prepared = Prepared::new(move |io| stages.iter().try_for_each(|stage| stage.run(io, parts)));
    prepared.scratch(scratch.bytes + scratch.workspace)
}

/// The source of a launch with its parameters and arguments.
pub(super) struct Source {
    /// The type of indices.
    pub(super) index: &'static str,
    functions: String,
    parameters: String,
    locals: String,
    arguments: Vec<Argument>,
    message: Option<u32>,
    names: usize,
    /// The maximum number of threads of a block, if the compiler must know it.
    bound: Option<usize>,
}

impl Source {
    /// A source with indices below `n`.
    pub(super) fn new(n: usize) -> Source {
        Source {
            index: index_type(n),
            functions: String::new(),
            parameters: String::new(),
            locals: String::new(),
            arguments: Vec::new(),
            message: None,
            names: 0,
            bound: None,
        }
    }

    /// Adds functions before the kernel.
    pub(super) fn function(&mut self, text: &str) {
        self.functions += text;
    }

    fn parameter(&mut self, text: &str, argument: Argument) {
        if !self.parameters.is_empty() {
            self.parameters += ", ";
        }
        self.parameters += text;
        self.arguments.push(argument);
    }

    /// Adds a pointer to elements that are read.
    pub(super) fn from(&mut self, name: &str, elem: Elem, place: Place) {
        self.pointer(&format!("const {}", elem.stored()), name, place);
    }

    /// Adds a pointer to elements that are written.
    pub(super) fn to(&mut self, name: &str, elem: Elem, place: Place) {
        self.pointer(elem.stored(), name, place);
    }

    /// Adds a pointer to elements of a C type.
    pub(super) fn pointer(&mut self, ty: &str, name: &str, place: Place) {
        self.parameter(&format!("{ty}* {name}"), Argument::Place(place));
    }

    /// Adds an extent.
    pub(super) fn number(&mut self, name: &str, value: usize) {
        self.parameter(&format!("u64 {name}_"), Argument::Number(value as u64));
        let _ = writeln!(self.locals, "  const {0} {name} = ({0}){name}_;", self.index);
    }

    /// Adds a signed integer.
    pub(super) fn signed(&mut self, name: &str, value: i64) {
        self.parameter(&format!("i64 {name}"), Argument::Number(value.cast_unsigned()));
    }

    /// Adds a statement before the body.
    pub(super) fn local(&mut self, text: &str) {
        let _ = writeln!(self.locals, "  {text}");
    }

    /// Limits the registers per thread to those available in blocks of `threads` threads.
    pub(super) fn bound(&mut self, threads: usize) {
        self.bound = Some(threads);
    }

    fn name(&mut self, prefix: char) -> String {
        self.names += 1;
        format!("{prefix}x{}", self.names)
    }

    /// The offset for the index `at` of a tensor of `dims`.
    pub(super) fn position(&mut self, dims: &[usize], steps: &Steps, at: &str) -> String {
        let mut text = "(i64)0".to_owned();
        if steps.first != 0 {
            let first = self.name('f');
            self.signed(&first, steps.first);
            text = first;
        }
        let mut below = 1usize;
        for axis in (0..dims.len()).rev() {
            if steps.steps[axis] != 0 {
                let mut index = at.to_owned();
                if axis + 1 < dims.len() {
                    let name = self.name('b');
                    self.number(&name, below);
                    index = format!("{index} / {name}");
                }
                if axis > 0 {
                    let name = self.name('d');
                    self.number(&name, dims[axis]);
                    index = format!("({index}) % {name}");
                }
                let name = self.name('s');
                self.signed(&name, steps.steps[axis]);
                let _ = write!(text, " + (i64)({index}) * {name}");
            }
            below = below.saturating_mul(dims[axis]);
        }
        format!("({text})")
    }

    /// The offset in operand `i` of a walk for the index `at`.
    pub(super) fn walked(&mut self, walk: &Walk, i: usize, at: &str) -> String {
        if walk.is_plain(i) {
            return at.to_owned();
        }
        self.position(&walk.dims, &walk.operands[i], at)
    }

    /// Lets the kernel call `fail(failure, name, found)`. `expected` describes the valid numbers.
    pub(super) fn fails(&mut self, maker: &Maker<'_>, expected: String) {
        self.message = Some(maker.shared.compiler.expects(expected));
    }

    /// A launch of `blocks` blocks with `threads` threads each.
    ///
    /// # Errors
    /// If there are too many parameters or blocks.
    pub(super) fn launch(
        self,
        maker: &Maker<'_>,
        body: &str,
        [blocks, threads]: [usize; 2],
    ) -> Result<Stage> {
        let Source { functions, mut parameters, locals, arguments, message, bound, .. } = self;
        if arguments.len() + if message.is_some() { 2 } else { 0 } > MOST_PARAMETERS {
            return Err(KernelError::unsupported("tensors with this many axes"));
        }
        let fail = if message.is_some() { FAIL } else { "" };
        if message.is_some() {
            parameters += ", u64* failure, u64 name";
        }
        let bound = bound.map_or_else(String::new, |threads| format!("__launch_bounds__({threads}) "));
        let text = format!(
            "{HEAD}{fail}{functions}extern \"C\" __global__ void {bound}run({parameters}) {{\n{locals}{body}\n}}\n"
        );
        let threads = u32::try_from(threads).unwrap_or(THREADS);
        let kernel = Kernel::new(maker.shared, &text, blocks, threads)?;
        Ok(Stage::Launch { kernel, arguments, message })
    }

    /// A launch that runs the body for each index `i` below `n`.
    ///
    /// # Errors
    /// Like [`launch`](Self::launch).
    pub(super) fn each(mut self, maker: &Maker<'_>, n: usize, body: &str) -> Result<Stage> {
        self.number("n", n);
        let body = format!(
            "  for (u64 flat = first(); flat < n; flat += step()) {{\n    {} i = flat;\n    {body}\n  }}",
            self.index
        );
        self.launch(maker, &body, [blocks_for(n), THREADS as usize])
    }
}

/// Like [`moved`](super::moves::moved), and converts numbers to another type.
pub(super) fn converted(
    maker: &Maker<'_>,
    walk: &Walk,
    (from, from_elem): (Place, Elem),
    (to, to_elem): (Place, Elem),
) -> Result<Stage> {
    let n = walk.len();
    let mut source = Source::new(n);
    source.from("x", from_elem, from);
    source.to("y", to_elem, to);
    let at = source.walked(walk, 0, "i");
    let number = to_elem.store(&from_elem.load(&format!("x[{at}]")));
    source.each(maker, n, &format!("y[i] = {number};"))
}

/// Copies `count` rows of `len` bytes from operand `i` to result `j`, with offsets and strides in bytes.
pub(super) fn copy_rows(
    io: &mut Io<'_>,
    [i, j]: [usize; 2],
    [from, to]: [[usize; 2]; 2],
    [count, len]: [usize; 2],
) -> Result<()> {
    let (source, target) = (io.on_device(i)?.span, io.out_on_device(j)?);
    let from = Rows { memory: source.memory, offset: source.offset + from[0], stride: from[1] };
    let to = Rows { memory: target.memory, offset: target.offset + to[0], stride: to[1] };
    Ok(io.queue()?.copy(from, to, count, len)?)
}
