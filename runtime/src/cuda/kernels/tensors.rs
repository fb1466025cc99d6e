//! Launches over several tensors of different lengths: every block has one chunk of one tensor.
//!
//! The tensors are kernel parameters, so that a launch copies no table to the device. Parameters have 4 KiB, so many
//! tensors take several launches. A block finds its tensor by comparing its number with the first block of each
//! tensor. The relevant parts of the source for the tensors `x0` with two chunks and `x1` with one:
//!
//! ```text
//! run(chunk, …, x0, n0, first0 = 0, x1, n1, first1 = 2)
//!   if (blockIdx.x < first1) { x = x0; n = n0; first = first0; } else { x = x1; n = n1; first = first1; }
//!   from = (blockIdx.x - first) * chunk; to = min(n, from + chunk);
//!   … body …
//! ```

use super::stage::{Argument, MOST_PARAMETERS};
use crate::cuda::Shared;
use crate::cuda::launch::{Args, Kernel, THREADS, queue};
use crate::cuda::text::HEAD;
use crate::kernel::{Io, Result};
use std::fmt::Write;

/// The number of parameters of every launch: the elements of a chunk, and the chunks of earlier launches.
const OWN: usize = 2;

/// The minimum length of a chunk, and the maximum number of chunks of all tensors.
const LEAST_CHUNK: usize = 2048;
const MOST_CHUNKS: usize = 4096;

/// A tensor: its length, and the arguments of its fields.
pub(super) struct Tensor {
    pub(super) n: usize,
    pub(super) fields: Vec<Argument>,
}

/// A kernel over tensors.
pub(super) struct Tensors<'a> {
    /// Device functions.
    pub(super) functions: &'a str,
    /// The types and names of parameters that all blocks share.
    pub(super) shared: &'a [(&'a str, &'a str)],
    /// The types and names of the parameters of each tensor.
    pub(super) fields: &'a [(&'a str, &'a str)],
    /// The statements of a block. They read the parameters by name, and `n`, `from`, `to` and `part`: the length of
    /// the tensor, the bounds of the chunk, and the index of the chunk among the chunks of all tensors.
    pub(super) body: &'a str,
}

/// The launches of a kernel over tensors.
pub(super) struct Launches {
    launches: Vec<(Kernel, Vec<Argument>)>,
    /// The number of chunks of all tensors.
    pub(super) parts: usize,
}

impl Launches {
    /// Enqueues the launches on the queue of the running kernel.
    ///
    /// # Errors
    /// If the driver rejects a launch, or earlier work failed.
    pub(super) fn run(&self, io: &mut Io<'_>) -> Result<()> {
        for (kernel, arguments) in &self.launches {
            let args: Args = arguments.iter().map(|argument| argument.value(io)).collect::<Result<_>>()?;
            kernel.launch(queue(io)?, &args)?;
        }
        Ok(())
    }
}

/// The chunk length for tensors of these lengths: a power of two.
fn chunk_of(lengths: impl Iterator<Item = usize>) -> usize {
    let total: usize = lengths.sum();
    total.div_ceil(MOST_CHUNKS).next_power_of_two().max(LEAST_CHUNK)
}

impl Tensors<'_> {
    /// The launches over tensors. Tensors without elements have no block. `shared` are the arguments of the shared
    /// parameters.
    ///
    /// # Errors
    /// If there are more chunks than a grid permits blocks.
    pub(super) fn launches(
        &self,
        device: &Shared,
        shared: &[Argument],
        tensors: &[Tensor],
    ) -> Result<Launches> {
        let chunk = chunk_of(tensors.iter().map(|tensor| tensor.n));
        let tensors: Vec<&Tensor> = tensors.iter().filter(|tensor| tensor.n > 0).collect();
        let most = (MOST_PARAMETERS - OWN - self.shared.len()) / (self.fields.len() + 2);
        let (mut launches, mut parts) = (Vec::new(), 0);
        for tensors in tensors.chunks(most) {
            // Rounded to a power of two, so that similar numbers of tensors share a source.
            let slots = tensors.len().next_power_of_two().min(most);
            let mut arguments = vec![Argument::Number(chunk as u64), Argument::Number(parts as u64)];
            arguments.extend(shared);
            let mut blocks = 0;
            for tensor in tensors {
                arguments.extend(&tensor.fields);
                arguments.extend([tensor.n, blocks].map(|number| Argument::Number(number as u64)));
                blocks += tensor.n.div_ceil(chunk);
            }
            for _ in tensors.len()..slots {
                arguments.extend(self.fields.iter().map(|_| Argument::Number(0)));
                arguments.extend([Argument::Number(0), Argument::Number(u64::MAX)]);
            }
            launches.push((Kernel::new(device, &self.text(slots), blocks, THREADS)?, arguments));
            parts += blocks;
        }
        Ok(Launches { launches, parts })
    }

    fn text(&self, slots: usize) -> String {
        let mut parameters = "u64 chunk, u64 earlier".to_owned();
        for (ty, name) in self.shared {
            let _ = write!(parameters, ", {ty} {name}");
        }
        let mut locals = String::new();
        for (ty, name) in self.fields {
            let _ = write!(locals, "{ty} {name}; ");
        }
        for slot in 0..slots {
            for (ty, name) in self.fields {
                let _ = write!(parameters, ", {ty} {name}_{slot}");
            }
            let _ = write!(parameters, ", u64 n_{slot}, u64 first_{slot}");
        }
        format!(
            "{HEAD}{functions}extern \"C\" __global__ void run({parameters}) {{
  {locals}u64 n, first_block, part = earlier + blockIdx.x;
  {choice}
  u64 from = (blockIdx.x - first_block) * chunk, to = n - from < chunk ? n : from + chunk;
{body}}}
",
            functions = self.functions,
            choice = self.choice(0, slots),
            body = self.body,
        )
    }

    /// The statement that sets the locals to the tensor of a block, one of `from..to`.
    fn choice(&self, from: usize, to: usize) -> String {
        if to - from == 1 {
            let set = self.fields.iter().map(|(_, name)| format!("{name} = {name}_{from}; "));
            return format!("{{ {}n = n_{from}; first_block = first_{from}; }}", set.collect::<String>());
        }
        let middle = from.midpoint(to);
        let [before, after] = [self.choice(from, middle), self.choice(middle, to)];
        format!("if (blockIdx.x < first_{middle}) {before} else {after}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_grow_with_the_tensors() {
        assert_eq!(chunk_of([0].into_iter()), LEAST_CHUNK);
        assert_eq!(chunk_of([LEAST_CHUNK * MOST_CHUNKS].into_iter()), LEAST_CHUNK);
        assert_eq!(chunk_of([LEAST_CHUNK * MOST_CHUNKS, 1].into_iter()), 2 * LEAST_CHUNK);
    }

    #[test]
    fn a_block_finds_its_tensor_by_halving() {
        let tensors = Tensors { functions: "", shared: &[], fields: &[("float*", "x")], body: "" };
        let slot = |at: usize| format!("{{ x = x_{at}; n = n_{at}; first_block = first_{at}; }}");
        let want = format!(
            "if (blockIdx.x < first_1) {} else if (blockIdx.x < first_2) {} else {}",
            slot(0),
            slot(1),
            slot(2)
        );
        assert_eq!(tensors.choice(0, 3), want);
    }
}
