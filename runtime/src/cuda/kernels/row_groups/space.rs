//! The values of a row group in its index space of `rows × n` elements.

use super::nodes::{Op, RowNode};
use crate::cuda::text::{Elem, Steps, Walk};
use crate::elementwise::Read;
use ampc_ir::Value;
use rustc_hash::FxHashMap;

/// The part of the index space over which a value varies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    /// A number for each element.
    Full,
    /// A number for each row.
    Row,
    /// A number for each element of a row, the same in all rows.
    Column,
    /// One number.
    Scalar,
    /// Sums along columns: a result of the group that none of its nodes reads.
    Sums,
}

/// The access pattern of a value from outside.
pub(super) struct Source {
    pub(super) value: Value,
    pub(super) elem: Elem,
    /// The first element of each row.
    pub(super) rows: Walk,
    /// The class of the value. Full and column values have an element for each index of a row.
    pub(super) class: Class,
}

/// The nodes of a group with the classes of their values.
pub(super) struct Program<'a> {
    pub(super) nodes: Vec<&'a RowNode>,
    pub(super) classes: Vec<Class>,
    pub(super) rows: usize,
    pub(super) n: usize,
    /// The node that produces a value, and the index of the result.
    pub(super) makers: FxHashMap<Value, (usize, usize)>,
    /// The values from outside.
    pub(super) sources: Vec<Source>,
    pub(super) source_of: FxHashMap<Value, usize>,
}

/// The access pattern of a node's operand.
struct OperandWalk {
    rows: Walk,
    has_columns: bool,
}

impl OperandWalk {
    /// True if each row reads the same elements.
    fn is_same(&self) -> bool {
        self.rows.operands[0].steps.iter().all(|&step| step == 0)
    }

    /// True if a value of this class, produced in the group, has its elements in this order.
    fn fits(&self, class: Class, reader: Class, n: usize) -> bool {
        let follows = |by: usize| match &self.rows.operands[0].steps[..] {
            [] => true,
            &[step] => usize::try_from(step) == Ok(by),
            _ => false,
        };
        match class {
            Class::Full => self.has_columns && reader == Class::Full && follows(n),
            Class::Row => !self.has_columns && matches!(reader, Class::Full | Class::Row) && follows(1),
            Class::Column => {
                self.has_columns && matches!(reader, Class::Full | Class::Column) && self.is_same()
            }
            Class::Scalar => !self.has_columns && self.is_same(),
            Class::Sums => false,
        }
    }
}

/// The number of leading axes that form the rows, if the dims are those of all elements.
fn split(dims: &[usize], [rows, n]: [usize; 2]) -> Option<usize> {
    let is_split = |&at: &usize| {
        dims[..at].iter().product::<usize>() == rows && dims[at..].iter().product::<usize>() == n
    };
    (0..=dims.len()).find(is_split)
}

/// The access pattern of an operand for a node of a class; `None` if the elements of a row are not contiguous.
fn operand_walk(read: &Read, dims: &[usize], class: Class, space: [usize; 2]) -> Option<OperandWalk> {
    let at = match class {
        Class::Full => split(dims, space)?,
        Class::Row => dims.len(),
        Class::Column | Class::Scalar | Class::Sums => 0,
    };
    let Steps { steps, .. } = Steps::broadcast(&read.dims, dims)?;
    let part =
        |dims: &[usize], steps: &[i64]| Walk::new(dims, vec![Steps { first: 0, steps: steps.to_vec() }]);
    let rows = part(&dims[..at], &steps[..at]);
    let columns = part(&dims[at..], &steps[at..]);
    let has_columns = match &columns.operands[0].steps[..] {
        [1] => true,
        steps if steps.iter().all(|&step| step == 0) => false,
        _ => return None,
    };
    Some(OperandWalk { rows, has_columns })
}

impl<'a> Program<'a> {
    /// Builds the program of nodes in program order in an index space; `None` if they cannot form a group.
    pub(super) fn new(nodes: Vec<&'a RowNode>, space: [usize; 2]) -> Option<Program<'a>> {
        let [rows, n] = space;
        if rows < 2 || n < 2 || nodes.iter().any(|node| node.space.is_some_and(|other| other != space)) {
            return None;
        }
        let mut makers = FxHashMap::default();
        for (at, node) in nodes.iter().enumerate() {
            for (j, made) in node.made.iter().enumerate() {
                if let Some(made) = made {
                    makers.insert(made.value, (at, j));
                }
            }
        }
        let classes = classes(&nodes, &makers, space)?;
        let mut program =
            Program { nodes, classes, rows, n, makers, sources: Vec::new(), source_of: FxHashMap::default() };
        program.check()?;
        Some(program)
    }

    /// The class of a value that the group produces.
    pub(super) fn class(&self, value: Value) -> Option<Class> {
        let &(at, j) = self.makers.get(&value)?;
        Some(result_class(self.nodes[at], self.classes[at], j))
    }

    /// True if the kernel can write a value.
    pub(super) fn can_be_result(&self, value: Value) -> bool {
        matches!(self.class(value), Some(Class::Full | Class::Row | Class::Sums))
    }

    /// Checks the operands of all nodes, and collects the values from outside.
    fn check(&mut self) -> Option<()> {
        for (node, &of_node) in self.nodes.iter().zip(&self.classes) {
            // Reductions iterate over all elements, whatever their result is.
            let of_node = if node.space.is_some() { Class::Full } else { of_node };
            for read in &node.reads {
                let walk = operand_walk(read, &node.dims, of_node, [self.rows, self.n])?;
                if let Some(&(at, j)) = self.makers.get(&read.value) {
                    let class = result_class(self.nodes[at], self.classes[at], j);
                    if !walk.fits(class, of_node, self.n) {
                        return None;
                    }
                    continue;
                }
                let class = match (walk.has_columns, walk.is_same()) {
                    (true, false) => Class::Full,
                    (true, true) => Class::Column,
                    (false, false) => Class::Row,
                    (false, true) => Class::Scalar,
                };
                if let Some(&at) = self.source_of.get(&read.value) {
                    let other: &Source = &self.sources[at];
                    if other.class != class
                        || other.rows.operands != walk.rows.operands
                        || other.rows.dims != walk.rows.dims
                    {
                        return None;
                    }
                    continue;
                }
                self.source_of.insert(read.value, self.sources.len());
                let elem = Elem::number(read.dtype)?;
                self.sources.push(Source { value: read.value, elem, rows: walk.rows, class });
            }
        }
        Some(())
    }
}

/// The class of result `j`. Statistics of a normalization are row values.
fn result_class(node: &RowNode, class: Class, j: usize) -> Class {
    match node.op {
        Op::Norm { .. } if j > 0 => Class::Row,
        _ => class,
    }
}

/// The classes of the first results: forward from the classes of operands, then backward from readers in the group.
fn classes(
    nodes: &[&RowNode],
    makers: &FxHashMap<Value, (usize, usize)>,
    space: [usize; 2],
) -> Option<Vec<Class>> {
    let [rows, n] = space;
    let mut classes: Vec<Option<Class>> = Vec::with_capacity(nodes.len());
    for node in nodes {
        let total = node.dims.iter().product::<usize>();
        let reads_row = || {
            node.reads.iter().any(|read| {
                let class = makers.get(&read.value).and_then(|&(at, j)| {
                    classes.get(at).copied().flatten().map(|class| result_class(nodes[at], class, j))
                });
                class == Some(Class::Row)
            })
        };
        classes.push(match node.op {
            Op::Fold(_) => Some(Class::Row),
            Op::Sums { .. } => Some(Class::Sums),
            Op::Softmax { .. } | Op::Norm { .. } => Some(Class::Full),
            // Random words belong to elements.
            Op::Dropout(_) => Some(split(&node.dims, space).map(|_| Class::Full)?),
            Op::Member(_) | Op::Copy | Op::View if split(&node.dims, space).is_some() => Some(Class::Full),
            Op::Member(_) | Op::Copy | Op::View => (total == rows && reads_row()).then_some(Class::Row),
        });
    }
    for at in (0..nodes.len()).rev() {
        if classes[at].is_some() {
            continue;
        }
        let total = nodes[at].dims.iter().product::<usize>();
        let value = nodes[at].made.first().copied().flatten()?.value;
        let uses = nodes.iter().zip(&classes).skip(at + 1).flat_map(|(reader, &class)| {
            let class = if reader.space.is_some() { Some(Class::Full) } else { class };
            let reads = reader.reads.iter().filter(|read| read.value == value);
            reads.map(move |read| Some((operand_walk(read, &reader.dims, class?, space)?, class?)))
        });
        let (walk, reader) = uses.into_iter().next()??;
        let class = match (walk.has_columns, walk.is_same(), reader) {
            (_, _, Class::Scalar) => Class::Scalar,
            (true, true, _) => Class::Column,
            (false, true, _) => Class::Scalar,
            (false, false, _) => Class::Row,
            (true, false, _) => return None,
        };
        let extent = match class {
            Class::Column => n,
            Class::Row => rows,
            _ => 1,
        };
        if total != extent {
            return None;
        }
        classes[at] = Some(class);
    }
    classes.into_iter().collect()
}
