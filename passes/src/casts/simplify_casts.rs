//! `simplify-casts`: removes casts that repeat or undo each other exactly. The values of the model never change.
//!
//! - An inserted cast to the type of its operand is an identity and is removed.
//! - Two casts of one value to one type become one, unless both make outputs. The cast stands at the place of the
//!   first, so the order of the two does not matter.
//! - A cast of a cast, a → b → c, becomes a → c if the two are equal for every value of a ([`exact`](crate::exact)) and
//!   one of the two was inserted.
//! - The author's casts are treated alike, except casts that a pin names, because the choice of formats looks through
//!   them: identities are removed, casts that do the same become one, a cast reads around an exact cast, and casts
//!   without readers are removed.
//! - A DequantizeLinear with `output_dtype` (from opset 23 on) whose only readers are inserted casts to f16 makes f16
//!   itself. `output_dtype` is also the precision of the multiplication, so the rule needs integers of up to 8 bits and
//!   constant scales that are exact in f16: then the product is rounded once either way. The rule excludes bf16,
//!   because a runtime with kernels for the operator and the cast need not have a kernel that makes bf16.
//!
//! ```text
//! %a = Cast(%x) {to=f32}     %x is f16; the cast was inserted
//! %b = Cast(%a) {to=f16}     f16 → f32 → f16 is the identity: readers of %b read %x
//! %c = Cast(%a) {to=f64}     reads %x: f16 → f32 is exact, so f16 → f64 is the same
//! ```

use crate::analysis::exact::{composes, is_exact};
use crate::analysis::values::{is_capture, is_exact_in, is_plain};
use crate::casts::insert_casts::set_target;
use crate::graph::flow::{self, Var};
use crate::graph::names;
use crate::pass::options::{FORMAT, PassOption, Setting, Spelled, settings};
use crate::pass::{Changed, Pass, PassCx, PassError, sound};
use crate::policy::pinned::pin_of_cast;
use ampc_ir::edit::Position;
use ampc_ir::module::Provenance;
use ampc_ir::op::OpKind;
use ampc_ir::views::NodeView;
use ampc_ir::{AttrValue, DType, Inserter, Module, Node, NodeSpec, Value};
use rustc_hash::FxHashMap;
use std::collections::hash_map::Entry;

/// The pass `simplify-casts`.
#[derive(Clone, Copy, Debug)]
pub struct SimplifyCasts {
    /// The format that the model is lowered to: f16 or bf16.
    pub to: DType,
}

impl Spelled for SimplifyCasts {
    const NAME: &'static str = "simplify-casts";
    const ABOUT: &'static str = "removes casts that repeat or undo each other exactly";
    const OPTIONS: &'static [PassOption<Self>] = &[PassOption {
        def: FORMAT,
        print: |pass| Some(Setting::word(pass.to)),
        read: |pass, given| given.format().map(|to| pass.to = to),
    }];
    fn blank() -> Self {
        SimplifyCasts { to: DType::F16 }
    }
}

impl Pass for SimplifyCasts {
    fn name(&self) -> &'static str {
        Self::NAME
    }
    fn options(&self) -> Vec<(&'static str, Setting)> {
        settings(self)
    }
    fn run(&self, module: &mut Module, _: &mut PassCx<'_>) -> Result<Changed, PassError> {
        let chosen = Some(self.to);
        let is_pinned = |module: &Module, node| pin_of_cast(module, node).is_some();
        let mut changed = rounds(module, chosen, &is_pinned);
        while erase_unread(module, is_pinned) {
            changed = true;
            // An erased cast may have been the second reader of a cast that stayed because it had two readers.
            if !rounds(module, chosen, &is_pinned) {
                break;
            }
        }
        // Twins have been merged by now.
        for node in flow::nodes(module) {
            changed |= dequantize_into(module, node);
        }
        if changed {
            names::part_all(module);
        }
        Ok(Changed::when(changed))
    }
}

/// A predicate: true if a pin names a cast.
type IsPinned<'a> = dyn Fn(&Module, Node) -> bool + 'a;

/// Simplifies inserted casts before anything is decided. Returns true if anything changed. Nothing changes in a module
/// that this pass has written, so changes come from marks that no pass made.
pub(crate) fn simplify_inserted(module: &mut Module, is_pinned: &IsPinned<'_>) -> bool {
    let is_inserted = |module: &Module, node| module.node(node).provenance == Provenance::Inserted;
    let mut graphs = module.graph_ids();
    let any = graphs.any(|graph| module.nodes(graph).any(|node| is_inserted(module, node)));
    drop(graphs);
    any && rounds(module, None, is_pinned)
}

/// Visits all casts until nothing changes. Returns true if anything changed.
fn rounds(module: &mut Module, chosen: Option<DType>, is_pinned: &IsPinned<'_>) -> bool {
    let mut changed = false;
    // The readers of a merged cast may be twins now, and an erased cast leaves one reader where there were two.
    while round(module, chosen, is_pinned) {
        changed = true;
    }
    changed
}

/// Visits all casts in program order. Returns true if anything changed.
fn round(module: &mut Module, chosen: Option<DType>, is_pinned: &IsPinned<'_>) -> bool {
    let mut changed = false;
    let mut first: FxHashMap<(Value, DType), Cast> = FxHashMap::default();
    for node in flow::nodes(module) {
        let Some(mut cast) = Cast::read(module, node) else { continue };
        if let Some(inner) = recast(module, &cast, chosen) {
            // The entry of the old type is removed; another cast may make the new type already.
            first.remove(&(inner.operand, inner.to));
            changed = true;
            continue;
        }
        // Casts of the author stay one behind another, so several casts may collapse.
        while let Some(shorter) = collapse(module, &cast, chosen, is_pinned) {
            cast = shorter;
            changed = true;
        }
        cast.goes = cast.inserted || chosen.is_some_and(|to| is_plain(module, node, to));
        let (goes, removable) = (cast.goes, cast.goes && !module.is_output(cast.result));
        if cast.from == cast.to && goes {
            changed |= leave_out(module, &cast);
            if !module.node(node).is_alive() {
                continue;
            }
        }
        match first.entry((cast.operand, cast.to)) {
            Entry::Vacant(entry) => {
                entry.insert(cast);
            }
            // The author's cast stays rather than an inserted cast, whichever comes first.
            Entry::Occupied(twin) if removable && (cast.inserted || !twin.get().inserted) => {
                replace(module, &cast, twin.get().result);
                changed = true;
            }
            Entry::Occupied(mut twin) if twin.get().goes && !module.is_output(twin.get().result) => {
                // The cast that has to stay moves to the place of the earlier cast.
                module.move_node(node, Position::Before(twin.get().node));
                let before = twin.insert(cast);
                replace(module, &before, twin.get().result);
                changed = true;
            }
            Entry::Occupied(_) => {}
        }
    }
    changed
}

/// Removes a cast that is an identity, or redirects its readers if the cast stays for the name of its result. Returns
/// true if there was anything to do.
fn leave_out(module: &mut Module, cast: &Cast) -> bool {
    let main = module.node(cast.node).graph == module.main();
    // An input, a constant and an output have names that they must keep.
    let is_free = module.producer(cast.operand).is_some() && !(main && module.is_output(cast.operand));
    match module.value(cast.result).name.filter(|_| module.is_output(cast.result)) {
        None => replace(module, cast, cast.operand),
        // No name in a body or function is public.
        Some(_) if !main && is_free => replace(module, cast, cast.operand),
        Some(public) if main && is_free && !cast.inserted => {
            let (producer, name) = (module.producer(cast.operand), module.value(cast.operand).name);
            if let Some((producer, _)) = producer
                && module.node(producer).name.is_none_or(|n| module.text(n).is_empty())
            {
                // Users go on calling the node by the name of its result.
                module.set_node_name(producer, name);
            }
            replace(module, cast, cast.operand);
            module.set_value_name(cast.operand, public);
        }
        Some(public) if main && cast.to.is_low() && !cast.inserted => {
            let same = identity(module, cast);
            replace(module, cast, same);
            module.set_value_name(same, public);
        }
        Some(_) => {
            let is_read = module.uses(cast.result).next().is_some();
            module.replace_uses(cast.result, cast.operand, |_, _| true);
            return is_read;
        }
    }
    true
}

/// Applies [`leave_out`] to a cast of the author that is an identity, except in a 16-bit format.
pub(crate) fn leave_out_wide(module: &mut Module, node: Node) -> bool {
    let cast = Cast::read(module, node).filter(|cast| cast.from == cast.to && !cast.to.is_low());
    cast.is_some_and(|cast| leave_out(module, &cast))
}

/// Inserts an Identity in place of a cast.
fn identity(module: &mut Module, cast: &Cast) -> Value {
    let base = module.value_name(cast.operand).map_or_else(String::new, |name| module.text(name).to_owned());
    let spec = NodeSpec::new(OpKind::Identity, &[cast.operand]).node_name(module.node(cast.node).name);
    let spec = spec.result_name(module.fresh_name(&base));
    let [same] = sound(Inserter::before(module, cast.node).insert(spec));
    // The decision about the result of the cast.
    let decided =
        flow::producer_var(module, cast.result).and_then(|var| flow::decision(module, var)).cloned();
    let (node, _) = module.producer(same).expect("a node makes it");
    module.node_mut(node).decisions.extend(decided);
    same
}

/// Erases the casts without readers. A cast of the author is erased if no pin names it, but not in functions, which may
/// contain nothing else. Returns true if there were any.
pub(crate) fn erase_unread(module: &mut Module, pinned: impl Fn(&Module, Node) -> bool) -> bool {
    let mut erased = false;
    // Backwards and inner bodies first, so that a value read only by unread casts is unread at its turn.
    for graph in flow::graphs(module).into_iter().rev() {
        let of_function = module.root(graph) != module.main();
        for node in module.nodes(graph).collect::<Vec<_>>().into_iter().rev() {
            module.prune_captures(node);
            let unread = |result: Value| {
                let is_read = module.uses(result).next().is_some();
                !is_read && !module.is_output(result) && !module.has_role(result)
            };
            let cast = Cast::read(module, node).filter(|cast| unread(cast.result));
            // A cast that an earlier run inserted keeps nothing alive.
            if cast.is_some_and(|cast| cast.inserted || !of_function && !pinned(module, node)) {
                module.erase_node(node);
                erased = true;
            }
        }
    }
    erased
}

/// Replaces the result of a cast by another value for all readers, and erases the cast.
fn replace(module: &mut Module, cast: &Cast, by: Value) {
    module.replace_value(cast.result, by);
    module.erase_node(cast.node);
}

/// Makes a DequantizeLinear produce f16 if all its readers cast its result to f16. Returns true if it does.
fn dequantize_into(module: &mut Module, node: Node) -> bool {
    let Some((result, to, casts)) = dequantized(module, node) else { return false };
    let output_dtype = module.intern("output_dtype");
    module.set_attr(node, output_dtype, AttrValue::Int(i64::from(to.number())));
    let ty = module.value(result).ty.with_element_dtype(to);
    module.set_type(result, ty);
    decide(module, result, to);
    for cast in casts {
        replace(module, &cast, result);
    }
    true
}

/// The result of a DequantizeLinear that can make f16 itself, the format, and the casts to erase.
fn dequantized(module: &Module, node: Node) -> Option<(Value, DType, Vec<Cast>)> {
    let view = NodeView::new(module, node).filter(|v| v.kind() == OpKind::DequantizeLinear)?;
    let result = view.data().result(0)?;
    let (formal, _) = (view.schema.output(0)?, view.schema.attr("output_dtype")?);
    // The difference of two integers of 8 bits is exact in f16.
    let narrow = view.dtype(0).is_some_and(|d| d.is_integer() && d.bits().is_some_and(|b| b <= 8));
    if !narrow || module.is_output(result) || view.is_unresolved("output_dtype") {
        return None;
    }
    let casts: Option<Vec<Cast>> =
        module.uses(result).map(|(reader, _)| Cast::read(module, reader)).collect();
    let casts = casts.filter(|casts| !casts.is_empty())?;
    let to = DType::F16;
    let goes = |c: &Cast| c.inserted && c.from == DType::F32 && c.to == to && !module.is_output(c.result);
    let legal = view.schema.types_of(formal).has_tensor(to);
    (legal && casts.iter().all(goes) && is_exact_in(&*view.constant(1)?, to)).then_some((result, to, casts))
}

struct Cast {
    node: Node,
    operand: Value,
    result: Value,
    from: DType,
    to: DType,
    inserted: bool,
    /// True if another cast may replace this cast.
    goes: bool,
}

impl Cast {
    /// Returns the cast at a node, if both types are known.
    fn read(module: &Module, node: Node) -> Option<Cast> {
        let data = module.node(node);
        if data.schema()?.kind != OpKind::Cast {
            return None;
        }
        let (operand, result) = (data.operand(0)?, data.result(0)?);
        Some(Cast {
            node,
            operand,
            result,
            from: module.value(operand).ty.dtype()?,
            to: module.value(result).ty.dtype()?,
            inserted: data.provenance == Provenance::Inserted,
            goes: false,
        })
    }

    /// True if the cast makes the other 16-bit format, which is not part of the choice.
    fn is_in_other_format(&self, chosen: DType) -> bool {
        self.to.is_low() && self.to != chosen
    }
}

/// Retargets a cast of the author from a type that is not a float: if its only reader is an inserted cast, the author's
/// cast makes the type of the inserted cast. Returns the author's cast as it was.
fn recast(module: &mut Module, outer: &Cast, chosen: Option<DType>) -> Option<Cast> {
    let inner = module.producer(outer.operand).and_then(|(node, _)| Cast::read(module, node));
    let inner = inner.filter(|inner| !inner.inserted && !inner.from.is_float())?;
    let only = module.uses(outer.operand).count() == 1 && !module.is_output(outer.operand);
    let may = outer.inserted && !module.is_output(outer.result) && composes(inner.from, inner.to, outer.to);
    let gives_way = |to| is_plain(module, inner.node, to) && !outer.is_in_other_format(to);
    if !only || !may || !chosen.is_some_and(gives_way) {
        return None;
    }
    set_target(module, inner.node, outer.to);
    let ty = module.value(inner.result).ty.with_element_dtype(outer.to);
    module.set_type(inner.result, ty);
    decide(module, inner.result, outer.to);
    replace(module, outer, inner.result);
    Some(inner)
}

/// Records the element type of a value in the decision of the variable that makes the value.
fn decide(module: &mut Module, value: Value, to: DType) {
    if let Some(var) = flow::producer_var(module, value) {
        set_precision(module, var, to);
    }
}

/// Records the element type of a variable in its decision, if it has one.
fn set_precision(module: &mut Module, var: Var, to: DType) {
    if let Some(decision) = module.node_mut(var.node).decisions.get_mut(usize::from(var.var)) {
        decision.precision = Some(to);
    }
}

/// Makes an inserted cast, or a cast of an inserted cast, read the value behind an exact cast.
fn collapse(
    module: &mut Module,
    outer: &Cast,
    chosen: Option<DType>,
    is_pinned: &IsPinned<'_>,
) -> Option<Cast> {
    let inner = Cast::read(module, module.producer(outer.operand)?.0)?;
    if !composes(inner.from, inner.to, outer.to) {
        return None;
    }
    // The choice of formats looks for neighbours of the author's identities, not behind them.
    let stays = !inner.inserted && inner.from == inner.to;
    // Don't fold through a cast whose operand was rounded for a pin; a later run would treat the result as inserted.
    let rounded = outer.inserted && !inner.inserted && {
        let made = module.producer(inner.operand).and_then(|(node, _)| Cast::read(module, node));
        made.is_some_and(|made| made.inserted && !is_exact(made.from, made.to))
    };
    // Don't make a cast of the author, or an inserted cast to a third format, read a captured value: the choice counts
    // the author's casts of a captured value separately.
    let captured = is_capture(module, inner.operand);
    let may_go = |to| is_plain(module, outer.node, to) && !captured;
    let stays = stays || captured && !inner.inserted && inner.from != outer.to;
    let ours = outer.inserted || inner.inserted || chosen.is_some_and(may_go);
    let stays = stays || is_pinned(module, inner.node);
    if !ours || stays || rounded {
        return None;
    }
    if !(inner.from == DType::F32 || inner.from.is_low()) {
        // The result takes the place of the author's cast, because no pass inserts casts of other types.
        let only = module.uses(outer.operand).count() == 1 && !module.is_output(outer.operand);
        let gives_way = |to| is_plain(module, inner.node, to) && !outer.is_in_other_format(to);
        if !only || !chosen.is_some_and(gives_way) {
            return None;
        }
        let decisions = module.node(inner.node).decisions.clone();
        let fields = module.node_mut(outer.node);
        *fields.provenance = Provenance::User;
        *fields.decisions = decisions;
        decide(module, outer.result, outer.to);
    }
    module.set_operand(outer.node, 0, Some(inner.operand));
    if let Some(var) = flow::reader_var(module, outer.node, 0) {
        set_precision(module, var, inner.from);
    }
    Cast::read(module, outer.node)
}

#[cfg(test)]
mod tests {

    /// G25: the products in DequantizeLinear are exact in f32, so f16 and f32 arithmetic round them alike, once.
    #[test]
    fn g25_products_of_small_integers_and_f16_are_exact_in_f32() {
        for scale in (0..0x7c00).map(|bits| half::f16::from_bits(bits).to_f32()) {
            for difference in -255..=255i16 {
                let product = f32::from(difference) * scale;
                assert_eq!(f64::from(product), f64::from(difference) * f64::from(scale));
            }
        }
    }
}
