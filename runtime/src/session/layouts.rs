//! The copy of a module in which the images chosen by the backend have channels last ([`crate::layouts`]).
//!
//! An image that a node produces with channels last has permuted dims. A node that needs the dims of the model reads
//! a copy, which a Transpose makes before the first such node. If both layouts have the same element order, or the
//! node reads only dims, the copy is an Identity, which is a view. Values that observers see, states, and graphs
//! other than the main graph are unchanged.

use super::bind::reads_dims;
use super::inlined::Inlined;
use super::observe::Watch;
use super::walk::is_nested;
use crate::backend::{Backend, Images};
use crate::layouts::{
    Image, Role, Roles, dims_of, is_reduction, is_same_in_both, listed_axes, moved_axes, moved_axis,
    reads_layout,
};
use crate::plan::{known_tensor, live_nodes};
use ampc_ir::attr::AttrValue;
use ampc_ir::edit::{InlinedCalls, NewNode, Position};
use ampc_ir::module::{Def, Op, Provenance};
use ampc_ir::op::OpKind;
use ampc_ir::tensor::TensorData;
use ampc_ir::views::NodeView;
use ampc_ir::{DType, GraphId, Module, Node, Shape, Type, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::smallvec;
use std::sync::Arc;

/// The nodes of a program that belong to images with channels last.
#[derive(Default)]
pub(super) struct Layouts {
    /// The nodes whose kernels read the layout.
    pub(super) channels_last: FxHashSet<Node>,
    /// Inserted nodes that are not folded, because programs for other dims have other nodes with the same ids.
    pub(super) in_each_run: FxHashSet<Node>,
}

/// Permutes the images that the backend chooses. Returns the layouts, and the source nodes extended by those of
/// inserted nodes.
pub(super) fn lay_out(
    backend: &dyn Backend,
    module: &mut Module,
    watch: &Watch,
    inlined: Option<Arc<Inlined>>,
) -> (Layouts, Option<Arc<Inlined>>) {
    let graph = module.main();
    // Inserted values would have the ids of values of function copies.
    let is_call = |node| matches!(module.node(node).op, Op::Call(_));
    if *watch == Watch::All || module.graph_ids().flat_map(|graph| module.nodes(graph)).any(is_call) {
        return (Layouts::default(), inlined);
    }
    let images = images(module, graph, watch);
    let chosen = backend.channels_last(&Images { module, graph, nodes: &images });
    if chosen.is_empty() {
        return (Layouts::default(), inlined);
    }
    let mut all: FxHashMap<Node, Roles> = images.into_iter().map(|image| (image.node, image.roles)).collect();
    let roles = chosen.into_iter().map(|node| {
        let roles = all.remove(&node).expect("a backend names images, each once");
        (node, roles)
    });
    let mut editor = Editor::new(module, graph, roles.collect());
    editor.transpose_filters();
    editor.add_axes();
    editor.edit();
    let Editor { module, roles, inserted, shared, .. } = editor;
    let mut calls = inlined.map_or_else(InlinedCalls::default, |inlined| inlined.calls.clone());
    inserted.iter().for_each(|&(node, of)| calls.add_copy(node, of));
    let reads_layout =
        |node: &Node| module.node(*node).schema().is_some_and(|schema| reads_layout(schema.kind));
    let channels_last = roles.into_keys().filter(reads_layout).collect();
    let in_each_run = inserted.iter().map(|&(node, _)| node).filter(|node| !shared.contains(node)).collect();
    let inlined = Inlined { module: module.clone(), calls };
    (Layouts { channels_last, in_each_run }, Some(Arc::new(inlined)))
}

/// The nodes that can compute with channels last.
fn images(module: &Module, graph: GraphId, watch: &Watch) -> Vec<Image> {
    let data = module.graph(graph);
    let mut read_inputs: FxHashSet<Value> = data.inputs().iter().copied().collect();
    let next: FxHashSet<Value> = data.states.iter().map(|&(_, next)| next).collect();
    let mut images = Vec::new();
    for node in live_nodes(module, graph) {
        let data = module.node(node);
        let results = || data.results().iter().flatten();
        // Other nodes may be folded.
        if reads_dims(data) || !data.operands().iter().flatten().any(|value| read_inputs.contains(value)) {
            continue;
        }
        read_inputs.extend(results());
        let is_sized = |value: &Value| known_tensor(&module.value(*value).ty).is_some();
        let is_seen = |value: &Value| watch.contains(*value) || next.contains(value);
        if is_nested(module, node)
            || !data.operands().iter().flatten().chain(results()).all(is_sized)
            || results().any(is_seen)
        {
            continue;
        }
        images.extend(Roles::of(module, node).map(|roles| Image { node, roles }));
    }
    images
}

/// The form of a copy of a value.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Form {
    /// An image with channels last.
    Last,
    /// An image with the dims of the model.
    First,
    /// The dims of the model, with elements in any order.
    Dims,
    /// One axis.
    Channels,
}

struct Editor<'m> {
    module: &'m mut Module,
    graph: GraphId,
    /// The nodes that compute with channels last.
    roles: FxHashMap<Node, Roles>,
    copies: FxHashMap<(Value, Form), Value>,
    /// The inserted nodes, each with the node that it was inserted for.
    inserted: Vec<(Node, Node)>,
    /// The inserted nodes that have the same ids in all programs, which share folded results.
    shared: FxHashSet<Node>,
    /// Constants with the axes of reductions.
    axes: FxHashMap<Vec<i64>, Value>,
}

impl<'m> Editor<'m> {
    fn new(module: &'m mut Module, graph: GraphId, roles: FxHashMap<Node, Roles>) -> Editor<'m> {
        let (copies, inserted, shared, axes) = Default::default();
        Editor { module, graph, roles, copies, inserted, shared, axes }
    }

    /// Transposes the constant filters of all convolutions. Copies without readers become no steps.
    fn transpose_filters(&mut self) {
        for node in self.module.nodes(self.graph).collect::<Vec<Node>>() {
            let data = self.module.node(node);
            if !data.schema().is_some_and(|s| matches!(s.kind, OpKind::Conv | OpKind::ConvTranspose)) {
                continue;
            }
            let Some(filter) = data.operand(1) else { continue };
            let is_constant = matches!(self.module.value(filter).def, Def::Constant(_));
            let rank = dims_of(self.module, filter).map_or(0, |dims| dims.len());
            if is_constant && matches!(rank, 4 | 5) && !self.copies.contains_key(&(filter, Form::Last)) {
                self.transposed(filter, Form::Last, Position::First, node);
                self.shared.extend(self.inserted.last().map(|&(node, _)| node));
            }
        }
    }

    /// Adds constants for the axes of all reductions that take axes as an operand.
    fn add_axes(&mut self) {
        for node in self.module.nodes(self.graph).collect::<Vec<Node>>() {
            let Some(view) = NodeView::new(self.module, node) else { continue };
            if !is_reduction(view.kind()) || view.schema.attr("axes").is_some() {
                continue;
            }
            let Some(axes) = listed_axes(&view) else { continue };
            for rank in [4, 5] {
                let moved = moved_axes(&axes, rank);
                let n = moved.len() as u64;
                let Ok(data) = TensorData::from_i64(&[n], &moved) else { continue };
                if self.axes.contains_key(&moved) {
                    continue;
                }
                let attrs = vec![(self.module.intern("value"), AttrValue::Tensor(Arc::new(data)))];
                let new = NewNode {
                    op: Op::Schema(OpKind::Constant.newest()),
                    name: None,
                    operands: smallvec![],
                    attrs,
                    results: vec![Some((
                        self.module.fresh_name("axes"),
                        Type::tensor(DType::I64, Shape::known(&[n])),
                    ))],
                    provenance: Provenance::User,
                };
                let made = self.module.add_node(self.graph, Position::First, new);
                let value = self.module.node(made).result(0).expect("the node was given a result");
                self.axes.insert(moved, value);
                self.inserted.push((made, node));
                self.shared.insert(made);
            }
        }
    }

    /// Gives nodes operands with the dims that they need, and permutes the dims of images.
    fn edit(&mut self) {
        let mut made: Vec<Value> = Vec::new();
        for node in self.module.nodes(self.graph) {
            let Some(roles) = self.roles.get(&node) else { continue };
            let results = self.module.node(node).results().iter().zip(&roles.results);
            made.extend(results.filter(|(_, role)| **role == Role::Image).filter_map(|(value, _)| *value));
        }
        let images: FxHashSet<Value> = made.iter().copied().collect();
        let added: FxHashSet<Node> = self.inserted.iter().map(|&(node, _)| node).collect();
        let nodes: Vec<Node> = self.module.nodes(self.graph).filter(|node| !added.contains(node)).collect();
        let mut edits = Vec::new();
        for node in nodes {
            let dims_alone = reads_dims(self.module.node(node));
            for slot in 0..self.module.node(node).operands().len() {
                let Some(value) = self.module.node(node).operands()[slot] else { continue };
                let role = self.roles.get(&node).map(|roles| roles.operands[slot]);
                let form = match (role, images.contains(&value)) {
                    (Some(Role::Back), is_image) => {
                        let back = self.read_back(value, is_image, node);
                        edits.push((node, slot, Some(back)));
                        continue;
                    }
                    (Some(Role::Image), true) | (Some(Role::Fixed) | None, false) => continue,
                    (Some(Role::Image), false) => Form::Last,
                    (Some(Role::Channels), _) => Form::Channels,
                    (Some(Role::Fixed) | None, true) if dims_alone => Form::Dims,
                    (Some(Role::Fixed) | None, true) => Form::First,
                };
                let copy = self.transposed(value, form, Position::Before(node), node);
                edits.push((node, slot, Some(copy)));
            }
            if self.roles.contains_key(&node) {
                self.move_axes(node);
            }
        }
        self.module.set_operands(edits);
        for at in 0..self.module.graph(self.graph).outputs().len() {
            let value = self.module.graph(self.graph).outputs()[at].value;
            if let (true, Some((maker, _))) = (images.contains(&value), self.module.producer(value)) {
                let copy = self.transposed(value, Form::First, Position::Last, maker);
                self.module.set_output(self.graph, at, copy);
            }
        }
        for value in made {
            let ty = self.copy_type(value, Form::Last);
            self.module.set_type(value, ty);
        }
    }

    /// Permutes the axes of a Concat or a reduction.
    fn move_axes(&mut self, node: Node) {
        let Some(view) = NodeView::new(self.module, node) else { return };
        let dims = view.operand(0).and_then(|value| dims_of(self.module, value));
        let rank = dims.map_or(0, |dims| dims.len());
        if view.kind() == OpKind::Concat
            && let Some(axis) = view.int("axis")
        {
            let name = self.module.intern("axis");
            self.module.set_attr(node, name, AttrValue::Int(moved_axis(axis, rank)));
        } else if is_reduction(view.kind())
            && let Some(axes) = listed_axes(&view)
        {
            let (moved, is_attr) = (moved_axes(&axes, rank), view.schema.attr("axes").is_some());
            if is_attr {
                let name = self.module.intern("axes");
                self.module.set_attr(node, name, AttrValue::Ints(moved));
            } else {
                let value = self.axes[&moved];
                self.module.set_operand(node, 1, Some(value));
            }
        }
    }

    /// The type of a copy of a value. The types of images are changed last, so the value still has the type of the
    /// model.
    fn copy_type(&self, value: Value, form: Form) -> Type {
        let ty = &self.module.value(value).ty;
        let mut dims = dims_of(self.module, value).unwrap_or_default();
        match form {
            Form::Last => dims[1..].rotate_left(1),
            Form::First | Form::Dims => {}
            Form::Channels => dims.truncate(1),
        }
        Type::tensor(ty.dtype().unwrap_or(DType::F32), Shape::known(&dims))
    }

    /// A copy, with the dims of the model, of an image with channels last, for one reader.
    fn read_back(&mut self, value: Value, is_image: bool, reader: Node) -> Value {
        let (from, ty) = match is_image {
            true => (value, self.copy_type(value, Form::First)),
            false => {
                let ty = self.copy_type(value, Form::First);
                (self.transposed(value, Form::Last, Position::Before(reader), reader), ty)
            }
        };
        let rank = ty.shape().and_then(Shape::rank).unwrap_or(0);
        self.insert(from, ty, Some(perm(rank, Form::First)), Position::Before(reader), reader)
    }

    /// A copy of a value, inserted before its first reader.
    fn transposed(&mut self, value: Value, form: Form, at: Position, reader: Node) -> Value {
        if let Some(&made) = self.copies.get(&(value, form)) {
            return made;
        }
        let dims = dims_of(self.module, value).unwrap_or_default();
        let is_view = matches!(form, Form::Dims | Form::Channels) || is_same_in_both(&dims);
        let perm = (!is_view).then(|| perm(dims.len(), form));
        let ty = self.copy_type(value, form);
        let made = self.insert(value, ty, perm, at, reader);
        self.copies.insert((value, form), made);
        made
    }

    /// Inserts a Transpose, or an Identity if there is no permutation.
    fn insert(
        &mut self,
        value: Value,
        ty: Type,
        perm: Option<Vec<i64>>,
        at: Position,
        reader: Node,
    ) -> Value {
        let (kind, attrs) = match perm {
            None => (OpKind::Identity, Vec::new()),
            Some(perm) => (OpKind::Transpose, vec![(self.module.intern("perm"), AttrValue::Ints(perm))]),
        };
        let name = self.module.fresh_name("layout");
        let new = NewNode {
            op: Op::Schema(kind.newest()),
            name: None,
            operands: smallvec![Some(value)],
            attrs,
            results: vec![Some((name, ty))],
            provenance: Provenance::User,
        };
        let node = self.module.add_node(self.graph, at, new);
        self.inserted.push((node, reader));
        self.module.node(node).result(0).expect("the node was given a result")
    }
}

/// The permutation that gives a copy of an image its form.
fn perm(rank: usize, form: Form) -> Vec<i64> {
    let mut perm: Vec<i64> = (0..i64::try_from(rank).unwrap_or(0)).collect();
    match form {
        Form::Last => perm[1..].rotate_left(1),
        Form::First => perm[1..].rotate_right(1),
        Form::Dims | Form::Channels => {}
    }
    perm
}
