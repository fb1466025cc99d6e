//! Lists of axes, which are an attribute at old versions and an operand at new versions.

use super::node::{NodeView, OpError, Part, normalize_axis};

/// The axes a node names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Axes {
    /// No axes are given; the operator defines the meaning.
    Absent,
    /// These, as written: negative ones count from the back.
    Known(Vec<i64>),
    /// An operand that inference does not see; perhaps it knows how many.
    Unknown(Option<u64>),
}

impl Axes {
    /// Reads the attribute `axes` if the operator has one at its version, else operand `i`.
    pub fn read(view: &NodeView<'_>, i: usize) -> Axes {
        if view.schema.attr("axes").is_some() {
            return match view.int_list("axes") {
                Some(axes) => Axes::Known(axes.to_vec()),
                None => Axes::Absent,
            };
        }
        if !view.has(i) {
            return Axes::Absent;
        }
        match view.known_ints(i) {
            Some(axes) => Axes::Known(axes),
            None => Axes::Unknown(match view.dims(i) {
                Some([n]) => n.known(),
                Some([]) => Some(1),
                _ => None,
            }),
        }
    }

    /// The place of the axes, for error messages: the attribute or operand `i`.
    pub fn part(view: &NodeView<'_>, i: usize) -> Part {
        if view.schema.attr("axes").is_some() { Part::Attr("axes".into()) } else { Part::Operand(i) }
    }
}

/// Axes counted from the front, each at most once.
///
/// # Errors
/// If an axis is outside [-rank, rank) or occurs twice.
pub fn distinct_axes(axes: &[i64], rank: usize, part: &Part) -> Result<Vec<usize>, OpError> {
    let mut seen = vec![false; rank];
    axes.iter()
        .map(|&axis| {
            let front = normalize_axis(axis, rank, part.clone())?;
            if std::mem::replace(&mut seen[front], true) {
                return Err(OpError {
                    part: part.clone(),
                    expected: "every axis at most once".into(),
                    found: format!("axis {front} twice"),
                });
            }
            Ok(front)
        })
        .collect()
}
