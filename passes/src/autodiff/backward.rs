//! What rules of gradients work with: the node at hand, the gradients of its results, and the means to build nodes.

use super::{Contributions, RuleError};
use ampc_ir::edit::Position;
use ampc_ir::entity::SecondaryMap;
use ampc_ir::infer::{Facts, describe};
use ampc_ir::module::Payload;
use ampc_ir::op::OpKind;
use ampc_ir::views::NodeView;
use ampc_ir::{AttrValue, DType, Dim, Inserter, Module, Node, NodeSpec, Type, Value};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cell::Cell;

/// What a rule returns.
pub(super) type Ruled<T = ()> = Result<T, RuleError>;

/// The key of the node metadata that says to which phase of a step a node belongs.
pub(crate) const PHASE: &str = "ampc.phase";
/// The phase of the nodes that autodiff makes.
pub(crate) const BACKWARD: &str = "bwd";

/// A node on the way back: the rule of its operator reads it and the gradients of its results (`dy`), and adds the
/// gradients of its operands.
///
/// All values that the methods take and return are of the main graph. Binary methods broadcast as ONNX does and take
/// operands of one element type.
#[derive(Debug)]
pub struct Backward<'m> {
    inserter: Inserter<'m>,
    node: Option<Node>,
    dy: Vec<Option<Value>>,
    /// Which of these the rule has asked for, those from the 64th on as one.
    asked: Cell<u64>,
    needs: SecondaryMap<Value, bool>,
    parameters: FxHashSet<Value>,
    contributions: Contributions,
    /// What was made of a value before: its widened form, its shape.
    wide: FxHashMap<Value, Value>,
    shapes: FxHashMap<Value, Value>,
}

/// Between the walk and its nodes.
impl<'m> Backward<'m> {
    pub(super) fn new(
        module: &'m mut Module,
        facts: &'m Facts,
        needs: SecondaryMap<Value, bool>,
        parameters: &[Value],
    ) -> Backward<'m> {
        let main = module.main();
        Backward {
            inserter: Inserter::new(module, main, Position::Last).with_facts(facts),
            node: None,
            dy: Vec::new(),
            asked: Cell::new(0),
            needs,
            parameters: parameters.iter().copied().collect(),
            contributions: Contributions::default(),
            wide: FxHashMap::default(),
            shapes: FxHashMap::default(),
        }
    }

    /// Begins with the gradient of the loss: the seed, or 1.
    pub(super) fn seed(&mut self, loss: Value, seed: Option<Value>) -> Ruled {
        let dtype = self.dtype(loss)?;
        let seed = match seed {
            Some(seed) => self.cast(seed, dtype)?,
            None => self.number(1.0, dtype)?,
        };
        let rank = self.rank(loss)?;
        let seed = if self.rank(seed)? == rank { seed } else { self.reshape_as(seed, loss)? };
        self.contributions.insert(loss, vec![seed]);
        Ok(())
    }

    /// Goes to a node. Whether a rule has to be applied: a result has a gradient, and an operand needs one.
    pub(super) fn enter(&mut self, node: Node) -> Ruled<bool> {
        self.node = Some(node);
        self.inserter.set_origin(Some(node));
        let data = self.inserter.module.node(node);
        let results: Vec<Option<Value>> = data.results().to_vec();
        if !data.operands().iter().flatten().any(|&value| self.needs[value]) {
            return Ok(false);
        }
        let cast = data.schema().is_some_and(|s| s.kind == OpKind::Cast);
        let parameter = data.operand(0).filter(|value| cast && self.parameters.contains(value));
        if let (Some(parameter), Some(Some(low))) = (parameter, results.first()) {
            // Contributions to a shared weight are added in the type of the weight.
            for part in self.contributions.remove(low).unwrap_or_default() {
                self.add_to(parameter, part)?;
            }
            return Ok(false);
        }
        self.dy.clear();
        self.asked.set(0);
        for result in results {
            let parts = result.and_then(|result| self.contributions.remove(&result));
            let dy = parts.map(|parts| self.sum(&parts)).transpose()?;
            self.dy.push(dy);
        }
        Ok(self.dy.iter().any(Option::is_some))
    }

    /// A result whose gradient the rule has not asked for.
    pub(super) fn unasked(&self) -> Option<usize> {
        (0..self.dy.len()).find(|&i| self.dy[i].is_some() && self.asked.get() & bit(i) == 0)
    }

    /// The gradients of parameters, `None` where there is none.
    pub(super) fn finish(
        mut self,
        parameters: &[Value],
    ) -> Result<Vec<Option<Value>>, (&'m Module, RuleError)> {
        self.inserter.set_origin(None);
        let mut found = Vec::with_capacity(parameters.len());
        let mut renamed = FxHashSet::default();
        for &parameter in parameters {
            let parts = self.contributions.remove(&parameter);
            let gradient = match parts.map(|parts| self.sum_for(parameter, &parts)).transpose() {
                Ok(gradient) => gradient,
                Err(error) => return Err((self.inserter.module, error)),
            };
            if let Some(gradient) = gradient.filter(|&gradient| renamed.insert(gradient)) {
                let module = &mut *self.inserter.module;
                // A gradient that the seed itself is keeps the seed's name.
                if module.producer(gradient).is_some() {
                    let name = ampc_ir::verify::name_of(module, parameter);
                    let name = module.fresh_name(&format!("{name}.grad"));
                    module.set_value_name(gradient, name);
                }
            }
            found.push(gradient);
        }
        Ok(found)
    }
}

/// Reading the node.
impl Backward<'_> {
    /// The module.
    pub fn module(&self) -> &Module {
        self.inserter.module
    }

    /// The node.
    ///
    /// # Panics
    /// If no node has been entered, which no rule sees.
    pub fn node(&self) -> Node {
        self.node.expect("rules are applied to nodes")
    }

    /// The node as views read it.
    ///
    /// # Errors
    /// If it is of no operator of the table.
    pub fn view(&self) -> Ruled<NodeView<'_>> {
        let view = NodeView::with_facts(self.module(), self.node(), self.inserter.facts());
        view.ok_or_else(|| RuleError::Unsupported("the operator has no schema".into()))
    }

    /// An operand, if it is there.
    pub fn operand(&self, i: usize) -> Option<Value> {
        self.module().node(self.node()).operand(i)
    }

    /// An operand that is needed.
    ///
    /// # Errors
    /// If it is absent.
    pub fn x(&self, i: usize) -> Ruled<Value> {
        self.operand(i).ok_or_else(|| RuleError::Unsupported(format!("operand {i} is absent")))
    }

    /// A result that is needed.
    ///
    /// # Errors
    /// If it is absent.
    pub fn y(&self, i: usize) -> Ruled<Value> {
        let result = self.module().node(self.node()).result(i);
        result.ok_or_else(|| RuleError::Unsupported(format!("result {i} is absent")))
    }

    /// A result of the node; if the node does not have it, it gets it, with this type.
    ///
    /// # Errors
    /// If the operator has no such result.
    pub fn result_or_new(&mut self, i: usize, ty: Type) -> Ruled<Value> {
        let node = self.node();
        if let Some(result) = self.module().node(node).result(i) {
            return Ok(result);
        }
        let has = self.module().node(node).schema().is_some_and(|schema| schema.output(i).is_some());
        if !has {
            return Err(RuleError::Unsupported(format!("bug: it has no result {i}")));
        }
        let first = ampc_ir::verify::name_of(self.module(), self.y(0)?);
        let module = &mut *self.inserter.module;
        let name = module.fresh_name(&first);
        Ok(module.add_result(node, i, name, ty))
    }

    /// The gradient of a result, of its element type; `None` if the loss does not depend on it.
    pub fn dy(&self, i: usize) -> Option<Value> {
        self.asked.set(self.asked.get() | bit(i));
        self.dy.get(i).copied().flatten()
    }

    /// The gradient of the first result.
    ///
    /// # Errors
    /// If there is none, because only other results lead to the loss.
    pub fn dy0(&self) -> Ruled<Value> {
        self.dy(0).ok_or_else(|| {
            RuleError::Unsupported("only another result than the first leads to the loss".into())
        })
    }

    /// Whether an operand needs a gradient.
    pub fn needs(&self, i: usize) -> bool {
        self.operand(i).is_some_and(|value| self.needs[value])
    }

    /// An error if an operand needs a gradient, for which the rule has no formula.
    ///
    /// # Errors
    /// If it does.
    pub fn refuse(&self, i: usize) -> Ruled {
        if !self.needs(i) {
            return Ok(());
        }
        let name =
            self.operand(i).map(|value| ampc_ir::verify::name_of(self.module(), value)).unwrap_or_default();
        Err(RuleError::Unsupported(format!(
            "there is none for operand {i} (`{name}`), which depends on parameters: freeze these (`--freeze`)"
        )))
    }

    /// The element type of a value.
    ///
    /// # Errors
    /// If it is not known.
    pub fn dtype(&self, value: Value) -> Ruled<DType> {
        self.module().value(value).ty.dtype().ok_or_else(|| {
            let name = ampc_ir::verify::name_of(self.module(), value);
            RuleError::Unsupported(format!("the element type of `{name}` is not known"))
        })
    }

    /// The dims of a value, if its rank is known.
    pub fn dims(&self, value: Value) -> Option<Vec<Dim>> {
        Some(self.module().value(value).ty.shape()?.dims()?.to_vec())
    }

    /// The dims of a value.
    ///
    /// # Errors
    /// If not even their number is known.
    pub fn shape(&self, value: Value) -> Ruled<Vec<Dim>> {
        self.dims(value).ok_or_else(|| {
            let name = ampc_ir::verify::name_of(self.module(), value);
            RuleError::Unsupported(format!(
                "the rank of `{name}` is not known: declare the shapes of inputs, or of its operator's results"
            ))
        })
    }

    /// The extents of a value.
    ///
    /// # Errors
    /// If one is not known.
    pub fn extents(&self, value: Value) -> Ruled<Vec<u64>> {
        let dims = self.shape(value)?;
        let known: Option<Vec<u64>> = dims.iter().map(|dim| dim.known()).collect();
        known.ok_or_else(|| {
            let name = ampc_ir::verify::name_of(self.module(), value);
            let ty = describe(&self.module().value(value).ty);
            RuleError::Unsupported(format!(
                "all extents of `{name}` have to be known, and it is {ty}: export the model with fixed ones"
            ))
        })
    }

    /// The number of axes of a value.
    ///
    /// # Errors
    /// If it is not known.
    pub fn rank(&self, value: Value) -> Ruled<usize> {
        Ok(self.shape(value)?.len())
    }
}

/// Adding gradients.
impl Backward<'_> {
    /// Adds a gradient of an operand: of its shape, in any float type, which is rounded to that of the operand. It is
    /// left out if the operand needs none.
    ///
    /// # Errors
    /// If it does not fit.
    pub fn add(&mut self, i: usize, gradient: Value) -> Ruled {
        match self.operand(i) {
            Some(value) if self.needs[value] => self.add_to(value, gradient),
            _ => Ok(()),
        }
    }

    fn add_to(&mut self, value: Value, gradient: Value) -> Ruled {
        let dtype = self.dtype(value)?;
        // Contributions to a parameter are rounded when all are added.
        let waits = self.parameters.contains(&value) && self.module().producer(value).is_none();
        let gradient = if waits { gradient } else { self.cast(gradient, dtype)? };
        if let (Some(want), Some(found)) = (self.dims(value), self.dims(gradient)) {
            let differ =
                |(a, b): (&Dim, &Dim)| matches!((a.known(), b.known()), (Some(a), Some(b)) if a != b);
            if want.len() != found.len() || want.iter().zip(&found).any(differ) {
                let name = ampc_ir::verify::name_of(self.module(), value);
                return Err(RuleError::Unsupported(format!(
                    "bug: the gradient of `{name}` has the shape {found:?} instead of {want:?}"
                )));
            }
        }
        self.contributions.entry(value).or_default().push(gradient);
        Ok(())
    }

    /// The sum of contributions to a parameter: added in f32 or wider, and rounded once.
    fn sum_for(&mut self, parameter: Value, parts: &[Value]) -> Ruled<Value> {
        let dtype = self.dtype(parameter)?;
        let sum = match *parts {
            [one] => one,
            _ => {
                let mut wide = Vec::with_capacity(parts.len());
                for &part in parts {
                    let part = self.wide(part)?;
                    wide.push(if dtype.is_low() { part } else { self.cast(part, dtype)? });
                }
                self.sum(&wide)?
            }
        };
        self.cast(sum, dtype)
    }

    /// The sum of values of one type.
    ///
    /// # Errors
    /// If they do not fit.
    pub fn sum(&mut self, parts: &[Value]) -> Ruled<Value> {
        match *parts {
            [one] => Ok(one),
            _ => self.op(OpKind::Sum, parts, &[]),
        }
    }
}

/// Building nodes.
impl Backward<'_> {
    /// What makes a node like the one at hand: operator and attributes, but for some by name, without operands.
    ///
    /// # Panics
    /// If no node has been entered, which no rule sees.
    #[must_use]
    pub fn like_node(&self, without: &[&str]) -> NodeSpec {
        let data = self.module().node(self.node());
        let kind = data.schema().expect("rules are of operators with a schema").kind;
        let attrs = data.attrs().iter().map(|attr| (self.module().text(attr.name), &attr.value));
        attrs
            .filter(|(name, _)| !without.contains(name))
            .fold(NodeSpec::new(kind, &[]), |spec, (name, value)| spec.attr(name.to_owned(), value.clone()))
    }

    /// A node with one result.
    ///
    /// # Errors
    /// If it is not what its operator takes.
    pub fn op(
        &mut self,
        kind: OpKind,
        operands: &[Value],
        attrs: &[(&'static str, AttrValue)],
    ) -> Ruled<Value> {
        let spec = attrs
            .iter()
            .fold(NodeSpec::new(kind, operands), |spec, (name, value)| spec.attr(*name, value.clone()));
        let [value] = self.insert(spec)?;
        Ok(value)
    }

    /// A node with so many results.
    ///
    /// # Errors
    /// If it is not what its operator takes.
    pub fn insert<const N: usize>(&mut self, spec: NodeSpec) -> Ruled<[Value; N]> {
        let results = self.inserter.insert(spec.suffix("grad"))?;
        self.mark(&results);
        Ok(results)
    }

    /// A node with `n` results.
    ///
    /// # Errors
    /// If it is not what its operator takes.
    pub fn insert_n(&mut self, spec: NodeSpec, n: usize) -> Ruled<Vec<Value>> {
        let results = self.inserter.insert_n(spec.suffix("grad"), n)?;
        self.mark(&results);
        Ok(results)
    }

    fn mark(&mut self, results: &[Value]) {
        let module = &mut *self.inserter.module;
        let (key, value) = (module.intern(PHASE), module.intern(BACKWARD));
        if let Some((node, _)) = results.first().and_then(|&result| module.producer(result)) {
            module.node_mut(node).metadata.push((key, value));
        }
    }

    /// Whether the operator, at the opset of the graph, takes its axes as an operand.
    fn takes_axes(&self, kind: OpKind) -> Ruled<bool> {
        Ok(self.inserter.schema(kind)?.attr("axes").is_none())
    }

    /// A node that takes axes beside its operand.
    fn with_axes(&mut self, spec: NodeSpec, kind: OpKind, a: Value, axes: &[usize]) -> Ruled<Value> {
        let axes: Vec<i64> = axes.iter().map(|&axis| signed(axis)).collect();
        let spec = if self.takes_axes(kind)? {
            let axes = self.ints(&axes);
            spec.operands(&[Some(a), Some(axes)])
        } else {
            spec.attr("axes", AttrValue::Ints(axes))
        };
        let [result] = self.insert(spec)?;
        Ok(result)
    }

    /// A constant number of a float type.
    ///
    /// # Errors
    /// If the type is none that numbers are rounded to.
    pub fn number(&mut self, number: f64, dtype: DType) -> Ruled<Value> {
        Ok(self.inserter.scalar("grad", dtype, number)?)
    }

    /// A constant number of the type of a value.
    ///
    /// # Errors
    /// As [`number`](Self::number).
    pub fn number_like(&mut self, number: f64, like: Value) -> Ruled<Value> {
        let dtype = self.dtype(like)?;
        self.number(number, dtype)
    }

    /// A constant list of integers.
    pub fn ints(&mut self, list: &[i64]) -> Value {
        self.inserter.ints("grad", list)
    }

    /// A constant tensor.
    pub fn constant(&mut self, data: ampc_ir::TensorData) -> Value {
        self.inserter.constant("grad", data)
    }

    /// The value in a type, itself if it has it.
    ///
    /// # Errors
    /// If there is no such cast.
    pub fn cast(&mut self, value: Value, to: DType) -> Ruled<Value> {
        if self.dtype(value)? == to {
            return Ok(value);
        }
        self.op(OpKind::Cast, &[value], &[("to", AttrValue::Int(i64::from(to.number())))])
    }

    /// The value in f32 if it has 16 bits, itself otherwise.
    ///
    /// # Errors
    /// If its type is not known.
    pub fn wide(&mut self, value: Value) -> Ruled<Value> {
        if !matches!(self.dtype(value)?, DType::F16 | DType::BF16) {
            return Ok(value);
        }
        if let Some(&wide) = self.wide.get(&value) {
            return Ok(wide);
        }
        let wide = self.cast(value, DType::F32)?;
        self.wide.insert(value, wide);
        Ok(wide)
    }

    /// a + b.
    ///
    /// # Errors
    /// If they do not fit.
    pub fn plus(&mut self, a: Value, b: Value) -> Ruled<Value> {
        self.op(OpKind::Add, &[a, b], &[])
    }
    /// a − b.
    ///
    /// # Errors
    /// If they do not fit.
    pub fn minus(&mut self, a: Value, b: Value) -> Ruled<Value> {
        self.op(OpKind::Sub, &[a, b], &[])
    }
    /// a · b.
    ///
    /// # Errors
    /// If they do not fit.
    pub fn times(&mut self, a: Value, b: Value) -> Ruled<Value> {
        self.op(OpKind::Mul, &[a, b], &[])
    }
    /// a / b.
    ///
    /// # Errors
    /// If they do not fit.
    pub fn over(&mut self, a: Value, b: Value) -> Ruled<Value> {
        self.op(OpKind::Div, &[a, b], &[])
    }
    /// −a.
    ///
    /// # Errors
    /// If it does not fit.
    pub fn neg(&mut self, a: Value) -> Ruled<Value> {
        self.op(OpKind::Neg, &[a], &[])
    }
    /// a · number.
    ///
    /// # Errors
    /// If it does not fit.
    pub fn scaled(&mut self, a: Value, by: f64) -> Ruled<Value> {
        if by.to_bits() == 1f64.to_bits() {
            return Ok(a);
        }
        let by = self.number_like(by, a)?;
        self.times(a, by)
    }
    /// number − a.
    ///
    /// # Errors
    /// If it does not fit.
    pub fn from_number(&mut self, number: f64, a: Value) -> Ruled<Value> {
        let number = self.number_like(number, a)?;
        self.minus(number, a)
    }
    /// a + number.
    ///
    /// # Errors
    /// If it does not fit.
    pub fn plus_number(&mut self, a: Value, number: f64) -> Ruled<Value> {
        let number = self.number_like(number, a)?;
        self.plus(a, number)
    }
    /// An operator with one operand and no attributes.
    ///
    /// # Errors
    /// If it does not fit.
    pub fn unary(&mut self, kind: OpKind, a: Value) -> Ruled<Value> {
        self.op(kind, &[a], &[])
    }
    /// a where the condition holds, else b.
    ///
    /// # Errors
    /// If they do not fit.
    pub fn select(&mut self, condition: Value, a: Value, b: Value) -> Ruled<Value> {
        self.op(OpKind::Where, &[condition, a, b], &[])
    }
    /// a where the condition holds, else 0.
    ///
    /// # Errors
    /// If they do not fit.
    pub fn masked(&mut self, condition: Value, a: Value) -> Ruled<Value> {
        let zero = self.number_like(0.0, a)?;
        self.select(condition, a, zero)
    }
    /// Whether a is greater than a number.
    ///
    /// # Errors
    /// If it does not fit.
    pub fn greater(&mut self, a: Value, number: f64) -> Ruled<Value> {
        let number = self.number_like(number, a)?;
        self.op(OpKind::Greater, &[a, number], &[])
    }
    /// Whether a is less than a number.
    ///
    /// # Errors
    /// If it does not fit.
    pub fn less(&mut self, a: Value, number: f64) -> Ruled<Value> {
        let number = self.number_like(number, a)?;
        self.op(OpKind::Less, &[a, number], &[])
    }

    /// A reduction over axes, which stay with extent 1 if `keep`.
    ///
    /// # Errors
    /// If they are not the value's.
    pub fn reduce(&mut self, kind: OpKind, a: Value, axes: &[usize], keep: bool) -> Ruled<Value> {
        if axes.is_empty() {
            return Ok(a);
        }
        let spec = NodeSpec::new(kind, &[a]).attr("keepdims", AttrValue::Int(i64::from(keep)));
        self.with_axes(spec, kind, a, axes)
    }

    /// The sum over axes.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce).
    pub fn sum_over(&mut self, a: Value, axes: &[usize], keep: bool) -> Ruled<Value> {
        self.reduce(OpKind::ReduceSum, a, axes, keep)
    }

    /// The mean over axes.
    ///
    /// # Errors
    /// As [`reduce`](Self::reduce).
    pub fn mean_over(&mut self, a: Value, axes: &[usize], keep: bool) -> Ruled<Value> {
        self.reduce(OpKind::ReduceMean, a, axes, keep)
    }

    /// The value with these axes of extent 1 put in.
    ///
    /// # Errors
    /// If they are not the result's.
    pub fn unsqueeze(&mut self, a: Value, axes: &[usize]) -> Ruled<Value> {
        if axes.is_empty() {
            return Ok(a);
        }
        self.with_axes(NodeSpec::new(OpKind::Unsqueeze, &[a]), OpKind::Unsqueeze, a, axes)
    }

    /// The value without these axes of extent 1.
    ///
    /// # Errors
    /// If they are not its own.
    pub fn squeeze(&mut self, a: Value, axes: &[usize]) -> Ruled<Value> {
        if axes.is_empty() {
            return Ok(a);
        }
        self.with_axes(NodeSpec::new(OpKind::Squeeze, &[a]), OpKind::Squeeze, a, axes)
    }

    /// The value with its axes in another order.
    ///
    /// # Errors
    /// If it is no permutation.
    pub fn transpose(&mut self, a: Value, perm: &[usize]) -> Ruled<Value> {
        if perm.iter().enumerate().all(|(i, &axis)| i == axis) {
            return Ok(a);
        }
        let perm = perm.iter().map(|&axis| signed(axis)).collect();
        self.op(OpKind::Transpose, &[a], &[("perm", AttrValue::Ints(perm))])
    }

    /// The value with its last two axes exchanged.
    ///
    /// # Errors
    /// If it has fewer.
    pub fn transpose_last(&mut self, a: Value) -> Ruled<Value> {
        let rank = self.rank(a)?;
        let mut perm: Vec<usize> = (0..rank).collect();
        if rank < 2 {
            return Err(RuleError::Unsupported(format!(
                "bug: {rank} axes, of which two are to be exchanged"
            )));
        }
        perm.swap(rank - 1, rank - 2);
        self.transpose(a, &perm)
    }

    /// The shape of a value, as an operand of Reshape or Expand: a constant if all extents are known.
    ///
    /// # Errors
    /// If its type is not known.
    pub fn shape_of(&mut self, a: Value) -> Ruled<Value> {
        if let Some(list) = self.known_shape(a) {
            return Ok(self.ints(&list));
        }
        if let Some(&shape) = self.shapes.get(&a) {
            return Ok(shape);
        }
        let shape = self.op(OpKind::Shape, &[a], &[])?;
        self.shapes.insert(a, shape);
        Ok(shape)
    }

    fn known_shape(&self, a: Value) -> Option<Vec<i64>> {
        self.dims(a)?.iter().map(|dim| i64::try_from(dim.known()?).ok()).collect()
    }

    /// The elements of a value in the shape of another.
    ///
    /// # Errors
    /// If it has not as many.
    pub fn reshape_as(&mut self, a: Value, like: Value) -> Ruled<Value> {
        if let (Some(a_dims), Some(dims)) = (self.dims(a), self.dims(like)) {
            if same_dims(&a_dims, &dims) {
                return Ok(a);
            }
            // One extent that is not known follows from the others.
            let mut free = dims.iter().filter(|dim| dim.known().is_none());
            if free.next().is_some() && free.next().is_none() && dims.iter().all(|dim| dim.known() != Some(0))
            {
                let list: Vec<i64> = dims
                    .iter()
                    .map(|dim| dim.known().and_then(|n| i64::try_from(n).ok()).unwrap_or(-1))
                    .collect();
                return self.reshape(a, &list);
            }
        }
        let shape = self.shape_of(like)?;
        self.op(OpKind::Reshape, &[a, shape], &[("allowzero", AttrValue::Int(1))])
    }

    /// The elements of a value in a shape, as Reshape reads it: −1 for one that follows, 0 for one that stays.
    ///
    /// # Errors
    /// If it has not as many.
    pub fn reshape(&mut self, a: Value, shape: &[i64]) -> Ruled<Value> {
        let shape = self.ints(shape);
        self.op(OpKind::Reshape, &[a, shape], &[])
    }

    /// The value repeated to the shape of another.
    ///
    /// # Errors
    /// If it does not broadcast to it.
    pub fn expand_as(&mut self, a: Value, like: Value) -> Ruled<Value> {
        if let (Some(a_dims), Some(dims)) = (self.dims(a), self.dims(like))
            && same_dims(&a_dims, &dims)
        {
            return Ok(a);
        }
        let shape = self.shape_of(like)?;
        self.op(OpKind::Expand, &[a, shape], &[])
    }

    /// Zeros of the type of one value and the shape of another.
    ///
    /// # Errors
    /// If types are not known.
    pub fn zeros(&mut self, dtype: DType, like: Value) -> Ruled<Value> {
        let zero = self.number(0.0, dtype)?;
        let shape = self.shape_of(like)?;
        self.op(OpKind::Expand, &[zero, shape], &[])
    }

    /// Matrix product.
    ///
    /// # Errors
    /// If they do not fit.
    pub fn matmul(&mut self, a: Value, b: Value) -> Ruled<Value> {
        self.op(OpKind::MatMul, &[a, b], &[])
    }

    /// αAᵃBᵇ of two matrices, each transposed or not.
    ///
    /// # Errors
    /// If they do not fit.
    pub fn gemm(
        &mut self,
        (a, trans_a): (Value, bool),
        (b, trans_b): (Value, bool),
        alpha: f32,
    ) -> Ruled<Value> {
        let flag = |flag: bool| AttrValue::Int(i64::from(flag));
        let attrs =
            [("transA", flag(trans_a)), ("transB", flag(trans_b)), ("alpha", AttrValue::Float(alpha))];
        self.op(OpKind::Gemm, &[a, b], &attrs)
    }

    /// The value as a matrix whose columns are its last axis.
    ///
    /// # Errors
    /// If it is a scalar.
    pub fn as_matrix(&mut self, a: Value) -> Ruled<Value> {
        let rank = self.rank(a)?;
        if rank == 2 {
            return Ok(a);
        }
        self.op(OpKind::Flatten, &[a], &[("axis", AttrValue::Int(signed(rank) - 1))])
    }

    /// What undoes a broadcast: the gradient of a value of which `like` was broadcast to the shape of `dy`, summed over
    /// the axes that were repeated. Sums are in f32 or wider, so the result may be wider than `dy`.
    ///
    /// ```text
    /// dy f16[8, 5, 4]   like f16[5, 1]    ReduceSum(f32(dy), axes 0 and 2) : f32[1, 5, 1], reshaped to f32[5, 1]
    /// dy f32[N, 4]      like f32[M, 4]    N = M, or M = 1: axes are found while the model runs
    /// ```
    ///
    /// # Errors
    /// If a rank is not known.
    pub fn unbroadcast(&mut self, dy: Value, like: Value) -> Ruled<Value> {
        let (from, to) = (self.shape(dy)?, self.shape(like)?);
        let lead = from.len().checked_sub(to.len()).ok_or_else(|| {
            RuleError::Unsupported("bug: a gradient has fewer axes than what was broadcast to it".into())
        })?;
        let mut axes: Vec<usize> = (0..lead).collect();
        let mut is_known = true;
        for (i, (from, to)) in from[lead..].iter().zip(&to).enumerate() {
            match (from, to) {
                (Dim::Known(1), _) => {}
                (_, Dim::Known(1)) => axes.push(lead + i),
                (_, Dim::Known(_)) => {}
                (Dim::Sym(a), Dim::Sym(b)) if a == b => {}
                _ => is_known = false,
            }
        }
        if is_known && axes.is_empty() {
            return Ok(dy);
        }
        let dy = self.wide(dy)?;
        if is_known {
            // Axes that are there on one side only go; those of extent 1 stay.
            let keep = axes.len() > lead;
            let sum = self.sum_over(dy, &axes, keep)?;
            return if keep && lead > 0 { self.reshape_as(sum, like) } else { Ok(sum) };
        }
        let (mut like_shape, shape) = (self.shape_of(like)?, self.shape_of(dy)?);
        if lead > 0 {
            let ones = self.ints(&vec![1; lead]);
            like_shape = self.op(OpKind::Concat, &[ones, like_shape], &[("axis", AttrValue::Int(0))])?;
        }
        let same = self.op(OpKind::Equal, &[like_shape, shape], &[])?;
        let differs = self.op(OpKind::Not, &[same], &[])?;
        let at = self.op(OpKind::NonZero, &[differs], &[])?;
        let axes = self.squeeze(at, &[0])?;
        let attrs = [("keepdims", AttrValue::Int(1)), ("noop_with_empty_axes", AttrValue::Int(1))];
        let sum = self.op(OpKind::ReduceSum, &[dy, axes], &attrs)?;
        let shape = self.shape_of(like)?;
        self.op(OpKind::Reshape, &[sum, shape], &[("allowzero", AttrValue::Int(1))])
    }

    /// Adds a gradient of an operand that was broadcast: [`unbroadcast`](Self::unbroadcast), then [`add`](Self::add).
    ///
    /// # Errors
    /// If it does not fit.
    pub fn add_unbroadcast(&mut self, i: usize, gradient: Value) -> Ruled {
        if !self.needs(i) {
            return Ok(());
        }
        let like = self.x(i)?;
        let gradient = self.unbroadcast(gradient, like)?;
        self.add(i, gradient)
    }

    /// The constant number that a value is.
    pub fn constant_number(&self, value: Value) -> Option<f64> {
        let payload = ampc_ir::views::constant_of(self.module(), value)?;
        match payload.small_floats(1)?[..] {
            [number] => Some(number),
            _ => None,
        }
    }

    /// Whether a value is a constant of the graph.
    pub fn is_constant(&self, value: Value) -> bool {
        self.module().constant(value).is_some_and(|payload| matches!(payload, Payload::Dense(_)))
            || ampc_ir::views::constant_of(self.module(), value).is_some()
    }

    /// The type of a value.
    pub fn ty(&self, value: Value) -> &Type {
        &self.module().value(value).ty
    }
}

fn bit(i: usize) -> u64 {
    1 << i.min(63)
}

/// An axis as attributes have it. Ranks are small.
pub(super) fn signed(axis: usize) -> i64 {
    i64::try_from(axis).unwrap_or(i64::MAX)
}

/// Whether two shapes are the same for certain.
fn same_dims(a: &[Dim], b: &[Dim]) -> bool {
    let same = |(a, b): (&Dim, &Dim)| match (a, b) {
        (Dim::Known(a), Dim::Known(b)) => a == b,
        (Dim::Sym(a), Dim::Sym(b)) => a == b,
        _ => false,
    };
    a.len() == b.len() && a.iter().zip(b).all(same)
}
