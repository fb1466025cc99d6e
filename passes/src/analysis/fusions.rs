//! Fusions of a target: reads that happen in the kernel that makes the value.
//!
//! A profile names pairs of operators that become one kernel ([`Profile::is_fused`]). A tensor between two such
//! nodes of one graph stays in registers: nothing writes or reads it, and a cast of it is one more operation on
//! each element instead of a kernel of its own. Fusion depends on operators alone, never on formats, as a
//! minimum cut requires.
//!
//! Fusion sees through casts between fp32 and 16-bit formats: readers of the cast are fused with the producer
//! of its operand. A cast of the author that narrows is a reader, too, and fused if `Cast` is named.
//!
//! A value that a body captures, directly or through a cast, is never fused: the place of its cast is chosen
//! among graphs, and a reader outside would change that choice. Nodes with bodies are not kernels.
//!
//! ```text
//! %b = Exp(%a)             %b stays in registers: its only reader is in its kernel
//! %c = Relu(%b)            reads %b in the kernel of Exp, if the profile fuses Exp with Relu
//! %y = MatMul(%c, %w)      a kernel of its own: %c is written to memory
//! ```

use crate::analysis::values::{is_stored, same_number};
use crate::graph::flow;
use crate::target::Profile;
use ampc_ir::op::OpSchema;
use ampc_ir::{DType, Module, Node, Value};
use rustc_hash::FxHashSet;

/// The reads and tensors that are within kernels.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Fusions {
    reads: FxHashSet<(Node, u32)>,
    inside: FxHashSet<Value>,
}

impl Fusions {
    /// Finds the fusions of a module on a target.
    pub fn find(module: &Module, profile: &Profile) -> Fusions {
        let mut fusions = Fusions::default();
        if profile.fusions.is_empty() {
            return fusions;
        }
        for graph in flow::graphs(module) {
            for value in module.defined(graph) {
                let Some((maker, _)) = module.producer(value) else { continue };
                if is_f32_or_low(module, value) && cast_result(module, maker).is_none() {
                    fusions.add(module, profile, maker, value);
                }
            }
        }
        fusions
    }

    /// Records the readers of a value in the kernel of its producer, directly or behind a cast to another float format.
    fn add(&mut self, module: &Module, profile: &Profile, maker: Node, value: Value) {
        let Some(from) = kernel(module, maker).filter(|_| !is_stored(module, value)) else { return };
        let (mut reads, mut inside) = (Vec::new(), Vec::new());
        let mut roots = vec![value];
        while let Some(root) = roots.pop() {
            let (mut all, mut work, first) = (true, vec![root], reads.len());
            while let Some(value) = work.pop() {
                all &= !module.is_output(value);
                for (node, slot) in module.uses(value) {
                    let reader = module.node(node);
                    if slot as usize >= reader.n_formal() {
                        return;
                    }
                    if let Some(result) = same_number(module, node) {
                        work.push(result);
                        continue;
                    }
                    roots.extend(cast_result(module, node));
                    if kernel(module, node).is_some_and(|to| profile.is_fused(from, to)) {
                        reads.push((node, slot));
                    } else {
                        all = false;
                    }
                }
            }
            inside.extend((all && reads.len() > first).then_some(root));
        }
        self.reads.extend(reads);
        self.inside.extend(inside);
    }

    /// True if an operand is read within the kernel that makes it.
    pub fn reads(&self, node: Node, slot: u32) -> bool {
        self.reads.contains(&(node, slot))
    }

    /// True if only the kernel that makes a tensor reads it.
    pub fn is_inside(&self, value: Value) -> bool {
        self.inside.contains(&value)
    }
}

/// The operator of a node without bodies.
fn kernel(module: &Module, node: Node) -> Option<&'static OpSchema> {
    let data = module.node(node);
    data.schema().filter(|_| data.bodies().next().is_none())
}

/// The result of a cast between fp32 and 16-bit formats.
fn cast_result(module: &Module, node: Node) -> Option<Value> {
    let is_operand = module.node(node).operand(0).is_some_and(|operand| is_f32_or_low(module, operand));
    flow::float_cast(module, node).filter(|&result| is_operand && is_f32_or_low(module, result))
}

fn is_f32_or_low(module: &Module, value: Value) -> bool {
    module.value(value).ty.dtype().is_some_and(|dtype| dtype == DType::F32 || dtype.is_low())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ampc_ir::infer::infer_module;
    use ampc_ir::text::{NoData, parse};

    /// Returns the operators that read an operand within the kernel that makes it, and the operators whose results stay
    /// in a kernel.
    fn fused(lines: &str) -> (Vec<String>, Vec<String>) {
        let text = format!("module ir=10\nopset ai.onnx=22\n\ngraph {{\n{lines}}}\n");
        let mut module = parse(&text, &NoData).unwrap_or_else(|errors| panic!("{errors}\n{text}"));
        infer_module(&mut module).unwrap_or_else(|errors| panic!("{errors:?}\n{text}"));
        let fusions = Fusions::find(&module, &Profile::preset("tensorrt").unwrap());
        let name = |node: Node| module.node(node).schema().unwrap().name.to_owned();
        let nodes = flow::nodes(&module);
        let reads = nodes.iter().filter(|&&node| (0..3).any(|slot| fusions.reads(node, slot)));
        let result = |node: Node| module.node(node).result(0);
        let inside = nodes.iter().filter(|&&node| result(node).is_some_and(|value| fusions.is_inside(value)));
        (reads.map(|&node| name(node)).collect(), inside.map(|&node| name(node)).collect())
    }

    fn words(of: (&[&str], &[&str])) -> (Vec<String>, Vec<String>) {
        let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
        (owned(of.0), owned(of.1))
    }

    #[test]
    fn a_chain_of_pointwise_operators_is_one_kernel() {
        let lines = "  input %x : f32[4, 4]
  %a = MatMul(%x, %x) : ?
  %b = Exp(%a) : ?
  %c = Relu(%b) : ?
  %d = Tanh(%c) : ?
  %e = MatMul(%c, %d) : ?
  output %e
";
        // A product reads c and d.
        assert_eq!(fused(lines), words((&["Relu", "Tanh"], &["Exp"])));
        let output = lines.replace("output %e", "output %b");
        assert_eq!(fused(&output), words((&["Relu", "Tanh"], &[])));
    }

    #[test]
    fn casts_between_floats_are_no_operators() {
        let lines = "  input %x : f16[4, 4]
  %a = MatMul(%x, %x) : ?
  %b = Cast(%a) {to = 1} : ?
  %c = Relu(%b) : ?
  %d = Cast(%c) {to = 10} : ?
  %e = Cast(%d) {to = 1} : ?
  %f = Exp(%e) : ?
  output %f
";
        // Exp reads the rounded result of Relu; Relu reads the result of a product.
        assert_eq!(fused(lines), words((&["Cast", "Exp"], &["Relu", "Cast"])));
    }

    #[test]
    fn what_a_body_captures_is_in_memory() {
        let lines = "  input %c : bool
  input %x : f32[4, 4]
  %a = Exp(%x) : ?
  %b = Relu(%a) : ?
  %y = If(%c; %a) {
    then_branch: graph (%a) {
      %t = Tanh(%a) : ?
      %u = Neg(%t) : ?
      output %u
    },
    else_branch: graph (%a) {
      %t = Neg(%a) : ?
      output %t
    }
  } : f32[4, 4]
  output %b
  output %y
";
        assert_eq!(fused(lines), words((&["Neg"], &["Tanh"])));
        // A value that a body captures behind a cast is in memory, too.
        let cast = lines.replace("%b = Relu(%a) : ?", "%b = Relu(%a) : ?\n  %k = Cast(%a) {to = 10} : ?");
        let cast = cast.replace("If(%c; %a)", "If(%c; %k)").replace("graph (%a)", "graph (%k)");
        let cast = cast.replace("Tanh(%a)", "Tanh(%k)").replace("Neg(%a)", "Neg(%k)");
        let cast = cast.replace("f32[4, 4]\n  output %b", "f16[4, 4]\n  output %b");
        assert_eq!(fused(&cast), words((&["Neg"], &["Tanh"])));
    }
}
