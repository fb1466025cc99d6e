//! The kinds of violations.

use crate::dtype::DType;
use crate::views::OpError;

/// The kinds of violations, by invariant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// I1: something names an entity that is erased or belongs to another graph.
    #[error("{what} names `{name}`, which is not a live value of the same graph")]
    Dangling {
        /// The kind of the entity with the name.
        what: String,
        /// The name.
        name: String,
    },
    /// I2: a value is read before it is defined.
    #[error("`{name}` is read before it is defined")]
    ReadBeforeDefined {
        /// The value.
        name: String,
    },
    /// I3: the use graph has not exactly one edge per operand.
    #[error("operand {operand} and the use graph disagree")]
    UsesDisagree {
        /// The operand slot.
        operand: usize,
    },
    /// I4: two values of one graph have one name.
    #[error("two values of one graph are called `{name}`")]
    DuplicateName {
        /// The name.
        name: String,
    },
    /// I4: a name hides a value that an inner body captures.
    #[error("`{name}` hides a value of the same name that a body captures")]
    Shadowed {
        /// The name.
        name: String,
    },
    /// I5: a missing required attribute, or an attribute of another kind.
    #[error("attribute `{attr}` of `{op}`: expected {expected}, found {found}")]
    Attribute {
        /// The operator and its version.
        op: String,
        /// The attribute.
        attr: String,
        /// The type or number that the schema requires.
        expected: String,
        /// The type or number found.
        found: String,
    },
    /// I5: an attribute that the operator does not have.
    #[error("`{op}` has no attribute `{attr}`: it has {known}")]
    UnknownAttribute {
        /// The operator and its version.
        op: String,
        /// The attribute.
        attr: String,
        /// The attributes it has.
        known: String,
    },
    /// I6: a body is not the one its owner names, or not only of that owner.
    #[error("attribute `{attr}` and its body do not belong to each other alone")]
    Body {
        /// The attribute.
        attr: String,
    },
    /// I6: a function calls itself, directly or through others.
    #[error("function `{name}` calls itself")]
    RecursiveFunction {
        /// The function.
        name: String,
    },
    /// I7: operands or results that the operator does not allow.
    #[error("{0}")]
    Operator(OpError),
    /// I7: an unknown element type.
    #[error("`{name}` has element type {dtype}, which ONNX does not define")]
    UnknownDType {
        /// The value.
        name: String,
        /// The element type.
        dtype: DType,
    },
    /// I8: a value has another type than inference finds.
    #[error("`{name}` is {found}, but as {what} it is {expected}")]
    TypeDisagrees {
        /// The value.
        name: String,
        /// The source of the inferred type: the operator that makes the value, or the node that hands the value
        /// to a body.
        what: &'static str,
        /// The inferred type.
        expected: String,
        /// The type found.
        found: String,
    },
    /// I9: a capture or output has another element type than the thing it stands for, or a constant another type
    /// than its elements.
    #[error("{what} `{name}`: expected {expected}, found {found}")]
    BoundaryDisagrees {
        /// Capture, output or constant.
        what: &'static str,
        /// Its name.
        name: String,
        /// The type on the other side.
        expected: String,
        /// Its type.
        found: String,
    },
    /// I9: an input of the model has unknown type.
    #[error("input `{name}` of the model has no type")]
    Untyped {
        /// The input.
        name: String,
    },
    /// I10: ONNX has no such IR version.
    #[error("IR version {found} does not exist; expected 1 to {newest}")]
    IrVersion {
        /// The version.
        found: i64,
        /// The newest that is known.
        newest: i64,
    },
    /// I10: the domain has no such opset.
    #[error("opset {found} of domain `{domain}` does not exist; expected 1 to {newest}")]
    OpsetVersion {
        /// The domain.
        domain: String,
        /// The version.
        found: u16,
        /// The newest that is known.
        newest: u16,
    },
    /// I10: a domain is imported at two versions.
    #[error("domain `{domain}` is imported twice, at opset {first} and at opset {second}")]
    DuplicateOpset {
        /// The domain.
        domain: String,
        /// First version.
        first: u16,
        /// Second version.
        second: u16,
    },
    /// I10: a node is of a domain that is not imported where it is.
    #[error(
        "domain `{domain}` of the operator is not imported: the model, or the function, has no opset of it"
    )]
    NotImported {
        /// The domain.
        domain: String,
    },
}
