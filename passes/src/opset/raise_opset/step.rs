//! Change of a node in one step of its operator's history.

use super::cx::{Cx, Refused};
use ampc_ir::Node;
use ampc_ir::op::AttrDefault;

/// Brings a node into the form of the next version of its operator. The node is of the version before; the driver
/// gives it the next one when this is done, unless the operator has another name from here on.
pub(super) type Adapter = fn(&mut Cx<'_>, Node) -> Result<(), Refused>;

/// One step.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// Nothing but the version changes: proved from the schemas.
    Same,
    /// The form stays, the schemas differ in optional additions; with the reason why they may be absent.
    Kept(
        #[cfg_attr(
            not(test),
            expect(dead_code, reason = "for who reads the table, and the test that it is there")
        )]
        &'static str,
    ),
    /// Attributes change as data says.
    Form(Form),
    /// An adapter function, and a description of the change.
    By(Adapter, &'static str),
    /// There is no such node any more; why.
    Missing(&'static str),
}

/// A change of attributes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    /// Removed attributes: they have no effect, or state the later default.
    pub(super) drop: &'static [&'static str],
    /// Attributes that are written with this value where they are absent, since absence means something else now.
    pub(super) write: &'static [(&'static str, AttrDefault)],
    /// The attribute that becomes this operand.
    pub(super) operand: Option<(&'static str, usize)>,
    /// The reason why a node keeps its meaning.
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "for who reads the table, and the test that it is there")
    )]
    pub(super) why: &'static str,
}

pub(super) const fn kept(why: &'static str) -> Step {
    Step::Kept(why)
}

pub(super) const fn form(
    drop: &'static [&'static str],
    write: &'static [(&'static str, AttrDefault)],
    operand: Option<(&'static str, usize)>,
    why: &'static str,
) -> Step {
    Step::Form(Form { drop, write, operand, why })
}

pub(super) const fn drop(attrs: &'static [&'static str], why: &'static str) -> Step {
    form(attrs, &[], None, why)
}

pub(super) const fn write(attrs: &'static [(&'static str, AttrDefault)], why: &'static str) -> Step {
    form(&[], attrs, None, why)
}

pub(super) const fn operand(attr: &'static str, slot: usize, why: &'static str) -> Step {
    form(&[], &[], Some((attr, slot)), why)
}
