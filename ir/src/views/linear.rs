//! Matrix products and sums of products.

use super::node::{NodeView, OpError};

/// Gemm at its versions.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct GemmView {
    /// True if the first operand is transposed.
    pub trans_a: bool,
    /// True if the second operand is transposed.
    pub trans_b: bool,
    /// Factor of the product.
    pub alpha: f32,
    /// Factor of the third operand.
    pub beta: f32,
    /// True if the third operand may be smaller than the result; below 7 an attribute says so.
    pub broadcast_c: bool,
}

impl GemmView {
    /// Reads a Gemm.
    pub fn read(view: &NodeView<'_>) -> GemmView {
        let flag = |name| view.int(name).unwrap_or(0) != 0;
        GemmView {
            trans_a: flag("transA"),
            trans_b: flag("transB"),
            alpha: view.float("alpha").unwrap_or(1.0),
            beta: view.float("beta").unwrap_or(1.0),
            broadcast_c: view.schema.attr("broadcast").is_none() || flag("broadcast"),
        }
    }
}

/// An index of an [`Equation`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Label {
    /// The axes of the ellipsis.
    Ellipsis,
    /// One axis.
    Letter(u8),
}

/// The equation of an Einsum: labels of the axes of each operand and of the result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Equation {
    /// One list per operand.
    pub operands: Vec<Vec<Label>>,
    /// Labels of the result; spelled out where the equation leaves them implicit.
    pub result: Vec<Label>,
}

impl Equation {
    /// The equation of an Einsum.
    ///
    /// # Errors
    /// If it is missing, ill-formed, or has not as many terms as the node has operands.
    pub fn read(view: &NodeView<'_>) -> Result<Equation, OpError> {
        let text = view
            .string("equation")
            .ok_or_else(|| OpError::attr("equation", "an equation such as `ij,jk->ik`", "none"))?;
        let equation = Equation::parse(text)?;
        if equation.operands.len() != view.n_operands() {
            return Err(OpError::attr(
                "equation",
                format!("{} terms, one per operand", view.n_operands()),
                format!("{} in `{text}`", equation.operands.len()),
            ));
        }
        Ok(equation)
    }

    /// Parses an equation.
    ///
    /// # Errors
    /// If it is ill-formed.
    pub fn parse(text: &str) -> Result<Equation, OpError> {
        let bad = |expected: &str| OpError::attr("equation", expected, format!("`{text}`"));
        let dense: String = text.chars().filter(|&c| c != ' ').collect();
        let (left, right) = match dense.split_once("->") {
            Some((left, right)) => (left, Some(right)),
            None => (dense.as_str(), None),
        };
        let operands = left.split(',').map(|t| term(t).ok_or_else(|| bad("terms of letters and `...`")));
        let operands = operands.collect::<Result<Vec<_>, _>>()?;
        let mut all: Vec<Label> = operands.iter().flatten().copied().collect();
        all.sort_unstable();
        let result = match right {
            Some(right) => term(right).ok_or_else(|| bad("one term of letters and `...` behind `->`"))?,
            // The implicit result: the ellipsis, then every letter that occurs once, alphabetically.
            None => {
                let mut result: Vec<Label> = all
                    .chunk_by(|a, b| a == b)
                    .filter(|run| run[0] == Label::Ellipsis || run.len() == 1)
                    .map(|run| run[0])
                    .collect();
                result.dedup();
                result
            }
        };
        for (i, label) in result.iter().enumerate() {
            if result[..i].contains(label) {
                return Err(bad("every index of the result once"));
            }
            if *label != Label::Ellipsis && all.binary_search(label).is_err() {
                return Err(bad("indices of the result among those of the operands"));
            }
        }
        Ok(Equation { operands, result })
    }
}

fn term(text: &str) -> Option<Vec<Label>> {
    let mut labels = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        if first.is_ascii_alphabetic() {
            labels.push(Label::Letter(*first));
            rest = tail;
        } else {
            rest = rest.strip_prefix(b"...")?;
            if labels.contains(&Label::Ellipsis) {
                return None;
            }
            labels.push(Label::Ellipsis);
        }
    }
    Some(labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equations() {
        let spell = |labels: &[Label]| -> String {
            labels
                .iter()
                .map(|l| match l {
                    Label::Ellipsis => "...".to_owned(),
                    Label::Letter(c) => char::from(*c).to_string(),
                })
                .collect()
        };
        for (text, expected) in [
            ("ij,jk->ik", Some("ij,jk->ik")),
            ("ij , jk", Some("ij,jk->ik")),
            ("ba", Some("ba->ab")),
            ("...ii->...i", Some("...ii->...i")),
            ("...ij,...jk", Some("...ij,...jk->...ik")),
            ("ii->", Some("ii->")),
            ("->", Some("->")),
            ("ij->ijk", None),
            ("ij->ii", None),
            ("i.j->i", None),
            ("......->", None),
            ("ij->i->j", None),
            ("i1->i", None),
        ] {
            let found = Equation::parse(text).ok().map(|e| {
                let operands: Vec<String> = e.operands.iter().map(|t| spell(t)).collect();
                format!("{}->{}", operands.join(","), spell(&e.result))
            });
            assert_eq!(found.as_deref(), expected, "{text}");
        }
    }
}
