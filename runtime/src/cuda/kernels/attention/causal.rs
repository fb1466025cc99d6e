//! Masks that hide later keys, as automatic differentiation writes them: constants, or comparisons of positions.

use super::pattern::Finder;
use ampc_ir::op::OpKind;
use ampc_ir::views::{NodeView, constant_of};
use ampc_ir::{DType, Value};

/// The most positions of a sequence.
const MOST_POSITIONS: u64 = 1 << 20;

impl Finder<'_> {
    /// True if a value is a mask `[rows, keys]` by which query `i` attends to keys up to `i`.
    pub(super) fn is_causal(&self, value: Value, [rows, keys]: [i64; 2]) -> bool {
        if self.known(value) != Some((DType::Bool, vec![rows, keys])) {
            return false;
        }
        if let Some(data) = constant_of(self.module, value) {
            let keys = usize::try_from(keys).unwrap_or(usize::MAX);
            let is_kept = |(i, &byte): (usize, &u8)| (byte != 0) == (i % keys <= i / keys);
            return data.to_bytes().is_ok_and(|bytes| bytes.iter().enumerate().all(is_kept));
        }
        let Some((node, _)) = self.module.producer(value) else { return false };
        let Some(view) = NodeView::new(self.module, node) else { return false };
        let counts = |i: usize, n: i64| {
            let list = view.operand(i).and_then(|operand| self.positions(operand));
            list.is_some_and(|list| list.iter().copied().eq(0..n))
        };
        // The dims say which of the lists the rows are.
        view.kind() == OpKind::LessOrEqual
            && self.dims_of(&view, 0) == Some(vec![keys])
            && self.dims_of(&view, 1) == Some(vec![rows, 1])
            && counts(0, keys)
            && counts(1, rows)
    }

    fn dims_of(&self, view: &NodeView<'_>, i: usize) -> Option<Vec<i64>> {
        Some(self.known(view.operand(i)?)?.1)
    }

    /// The numbers of a list of positions, whatever its dims.
    fn positions(&self, value: Value) -> Option<Vec<i64>> {
        if let Some(data) = constant_of(self.module, value) {
            return data.small_ints(MOST_POSITIONS);
        }
        let (node, _) = self.module.producer(value)?;
        let view = NodeView::new(self.module, node)?;
        match view.kind() {
            OpKind::Range => {
                let [n] = self.known(value)?.1.try_into().ok()?;
                let is = |i: usize, number: i64| view.constant(i)?.small_ints(1).map(|list| list == [number]);
                let is_plain = is(0, 0)? && is(2, 1)?;
                (is_plain && n.cast_unsigned() <= MOST_POSITIONS).then(|| (0..n).collect())
            }
            OpKind::Unsqueeze => self.positions(view.operand(0)?),
            OpKind::Add => {
                let [by] = view.constant(1)?.small_ints(1)?.try_into().ok()?;
                let list = self.positions(view.operand(0)?)?;
                list.into_iter().map(|n| n.checked_add(by)).collect()
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Finder;
    use ampc_ir::text::{NoData, parse};
    use rustc_hash::FxHashSet;

    #[test]
    fn masks_of_later_keys() {
        let text = "module ir=10
opset ai.onnx=23

graph @main {
  input %count : i64
  const %zero : i64 = 0
  const %one : i64 = 1
  const %axis : i64[1] = [1]
  const %by : i64[1] = [0]
  const %next : i64[1] = [1]
  const %keys : i64[3] = [0, 1, 2]
  const %others : i64[3] = [0, 2, 1]
  const %given : bool[2, 3] = [true, false, false, true, true, false]
  const %shifted : bool[2, 3] = [true, true, false, true, true, true]
  %list = Range(%zero, %count, %one) : i64[2]
  %rows = Unsqueeze(%list, %axis) : i64[2, 1]
  %last = Add(%rows, %by) : i64[2, 1]
  %following = Add(%rows, %next) : i64[2, 1]
  %made = LessOrEqual(%keys, %last) : bool[2, 3]
  %later = LessOrEqual(%keys, %following) : bool[2, 3]
  %strict = Less(%keys, %last) : bool[2, 3]
  %mixed = LessOrEqual(%others, %last) : bool[2, 3]
  %turned = LessOrEqual(%last, %keys) : bool[2, 3]
  output %given
  output %made
  output %shifted
  output %later
  output %strict
  output %mixed
  output %turned
}
";
        let module = parse(text, &NoData).unwrap_or_else(|errors| panic!("{errors}"));
        let others = FxHashSet::default();
        let finder = Finder { module: &module, is_joinable: &|_| true, others: &others };
        let outputs = module.graph(module.main()).outputs();
        let found: Vec<bool> = outputs.iter().map(|output| finder.is_causal(output.value, [2, 3])).collect();
        assert_eq!(found, [true, true, false, false, false, false, false]);
        assert!(!finder.is_causal(outputs[0].value, [3, 2]));
    }
}
