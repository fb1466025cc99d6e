//! The language of patterns: formulas, read as real arithmetic.
//!
//! ```text
//! file    = { line }                       line = word ":" sum [ "where" name "=" sum { ";" name "=" sum } ]
//! sum     = product { ("+" | "-") product }
//! product = factor { ("*" | "/") factor }
//! factor  = [ "-" ] atom [ "^" number ]
//! atom    = number | name | function "(" sum { "," sum } ")" | "(" sum ")"
//! ```
//!
//! - A sum matches additions, subtractions and negations in any order; a product matches multiplications, divisions,
//!   negations, reciprocals, roots and powers in any order. `x / Sqrt(v)` and `Pow(v, -0.5) * x` are one product.
//! - Numbers match constants with one element, up to the rounding of the element type of the constant.
//! - `x`, `gamma`, `beta`, `sin` and `cos` capture values, `eps` and `alpha` numbers. A name that occurs twice has to
//!   match the same value or number; `_` matches any value.
//! - A name behind `where` stands for a value that matches its formula, and is one value or computed again.
//! - A function is an operator with its operands, or one of [`Function`].
//!
//! The first match of a formula counts, except for the order of terms and factors. So a formula that binds captures stands
//! before a bare capture, which matches any value; and `x` before `x * alpha`, whose `x` may be a part of the former.

use ampc_ir::op::OpKind;

/// A formula.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Pattern {
    /// Any value.
    Any,
    /// A captured value.
    Capture(Capture),
    /// The value of a definition behind `where`.
    Named(usize),
    /// A sum or product.
    Flat(Chain, Constant, Vec<(Pattern, f64)>),
    /// A function with its operands.
    Call(Function, Vec<Pattern>),
}

/// The operators that a flat pattern joins.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Chain {
    /// Terms, whose weights are signs.
    Sum,
    /// Factors, whose weights are exponents.
    Product,
}

/// The constant of a sum or product.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Constant {
    /// A number; 0 for a sum without a number, 1 for a product without a number.
    Number(f64),
    /// A captured number.
    Capture(Number),
}

/// A captured value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Capture {
    X,
    Gamma,
    Beta,
    Sin,
    Cos,
}

/// A captured number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Number {
    /// A positive number that is added.
    Eps,
    /// A factor; 1 if there is no factor.
    Alpha,
}

/// A function of patterns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Function {
    /// An operator whose operands all match; Min in either order, Reshape by its first operand.
    Op(OpKind),
    /// `mean`: a mean over the axes of the unit, which stay with extent 1.
    Mean,
    /// `sum`: a sum over the axes of the unit, which stay with extent 1.
    Sum,
    /// `max`: a maximum over the axes of the unit, which stay with extent 1.
    Max,
    /// `total`: a sum over the axes of the unit, which may go.
    Total,
    /// `clip(x, low, high)`: Clip with these bounds.
    Clip,
    /// `gate`: HardSigmoid with `alpha` = 1/6 and `beta` = 1/2.
    Gate,
    /// `standard`: InstanceNormalization with scales 1 and biases 0; captures `eps`.
    Standard,
    /// `round`: a cast from f32 to a 16-bit format.
    Round,
    /// `join(a, b)`: Concat along the last axis.
    Join,
    /// `weave(a, b)`: elements of `a` and `b` in turn along the last axis.
    Weave,
    /// `lo`, `hi`: the first and the second half of the last axis.
    Half(u8),
    /// `even`, `odd`: every other element of the last axis.
    Every(u8),
}

/// A line of the table.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Rule {
    /// The word before the colon.
    pub(super) word: String,
    /// The formula of the result.
    pub(super) root: Pattern,
    /// The formulas behind `where`.
    pub(super) named: Vec<Pattern>,
}

/// Reads a table. An error names the line and the rest of the text that is not understood.
pub(super) fn rules(text: &str) -> Result<Vec<Rule>, String> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(|line| rule(line).map_err(|rest| format!("`{line}`: at `{rest}`"))).collect()
}

fn rule(line: &str) -> Result<Rule, &str> {
    let (word, formulas) = line.split_once(':').ok_or(line)?;
    let (root, named) = match formulas.split_once(" where ") {
        Some((root, named)) => (root, named.split(';').collect()),
        None => (formulas, Vec::new()),
    };
    let named: Vec<(&str, &str)> =
        named.into_iter().map(|text| text.split_once('=').ok_or(text)).collect::<Result<_, _>>()?;
    let names: Vec<&str> = named.iter().map(|(name, _)| name.trim()).collect();
    let formula = |text| {
        let mut parser = Parser { rest: text, names: &names };
        let found = parser.sum()?;
        if parser.peek().is_some() { Err(parser.rest) } else { Ok(found) }
    };
    let definitions = named.iter().map(|&(_, text)| formula(text)).collect::<Result<_, _>>()?;
    Ok(Rule { word: word.trim().to_owned(), root: formula(root)?, named: definitions })
}

struct Parser<'t, 'n> {
    rest: &'t str,
    names: &'n [&'t str],
}

/// A parsed part: a pattern or a number.
enum Part {
    Pattern(Pattern),
    Constant(Constant),
}

impl<'t> Parser<'t, '_> {
    fn peek(&mut self) -> Option<char> {
        self.rest = self.rest.trim_start();
        self.rest.chars().next()
    }

    fn take(&mut self, wanted: char) -> bool {
        let is_next = self.peek() == Some(wanted);
        if is_next {
            self.rest = &self.rest[wanted.len_utf8()..];
        }
        is_next
    }

    /// The longest prefix of characters of a kind.
    fn word(&mut self, is_part: impl Fn(char) -> bool) -> &'t str {
        let rest = self.rest.trim_start();
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let (word, rest) = rest.split_at(end);
        self.rest = rest;
        word
    }

    fn sum(&mut self) -> Result<Pattern, &'t str> {
        let (mut constant, mut terms, mut sign) = (Constant::Number(0.0), Vec::new(), 1.0);
        loop {
            match self.product()? {
                Part::Pattern(term) => terms.push((term, sign)),
                Part::Constant(Constant::Number(k)) => constant = Constant::Number(sign * k),
                Part::Constant(capture) => constant = capture,
            }
            if self.take('+') {
                sign = 1.0;
            } else if self.take('-') {
                sign = -1.0;
            } else {
                break;
            }
        }
        match &terms[..] {
            [(term, weight)] if constant == Constant::Number(0.0) && *weight > 0.0 => Ok(term.clone()),
            _ => Ok(Pattern::Flat(Chain::Sum, constant, terms)),
        }
    }

    fn product(&mut self) -> Result<Part, &'t str> {
        let (mut number, mut capture, mut factors, mut power) = (1.0, None, Vec::new(), 1.0);
        loop {
            if self.take('-') {
                number = -number;
            }
            let (part, exponent) = self.factor()?;
            match part {
                Part::Pattern(factor) => factors.push((factor, exponent * power)),
                Part::Constant(Constant::Number(k)) => number *= k.powf(exponent * power),
                Part::Constant(Constant::Capture(name)) => capture = Some(name),
            }
            if self.take('*') {
                power = 1.0;
            } else if self.take('/') {
                power = -1.0;
            } else {
                break;
            }
        }
        let constant = capture.map_or(Constant::Number(number), Constant::Capture);
        Ok(match &factors[..] {
            [] => Part::Constant(constant),
            [(factor, 1.0)] if constant == Constant::Number(1.0) => Part::Pattern(factor.clone()),
            _ => Part::Pattern(Pattern::Flat(Chain::Product, constant, factors)),
        })
    }

    fn factor(&mut self) -> Result<(Part, f64), &'t str> {
        let part = self.atom()?;
        if !self.take('^') {
            return Ok((part, 1.0));
        }
        let text = self.word(|c| c.is_ascii_digit() || "-.".contains(c));
        Ok((part, text.parse().map_err(|_| self.rest)?))
    }

    fn atom(&mut self) -> Result<Part, &'t str> {
        if self.take('(') {
            let sum = self.sum()?;
            return if self.take(')') { Ok(Part::Pattern(sum)) } else { Err(self.rest) };
        }
        if self.peek().is_some_and(|c| c.is_ascii_digit()) {
            let text = self.word(|c| c.is_ascii_digit() || c == '.');
            return Ok(Part::Constant(Constant::Number(text.parse().map_err(|_| self.rest)?)));
        }
        let word = self.word(|c| c.is_ascii_alphanumeric() || c == '_');
        if self.take('(') {
            return self.call(word).map(Part::Pattern);
        }
        if let Some(i) = self.names.iter().position(|name| *name == word) {
            return Ok(Part::Pattern(Pattern::Named(i)));
        }
        Ok(match word {
            "_" => Part::Pattern(Pattern::Any),
            "x" => Part::Pattern(Pattern::Capture(Capture::X)),
            "gamma" => Part::Pattern(Pattern::Capture(Capture::Gamma)),
            "beta" => Part::Pattern(Pattern::Capture(Capture::Beta)),
            "sin" => Part::Pattern(Pattern::Capture(Capture::Sin)),
            "cos" => Part::Pattern(Pattern::Capture(Capture::Cos)),
            "eps" => Part::Constant(Constant::Capture(Number::Eps)),
            "alpha" => Part::Constant(Constant::Capture(Number::Alpha)),
            _ => return Err(self.rest),
        })
    }

    fn call(&mut self, word: &str) -> Result<Pattern, &'t str> {
        let function = function(word).ok_or(self.rest)?;
        let mut operands = Vec::new();
        loop {
            operands.push(self.sum()?);
            if !self.take(',') {
                break;
            }
        }
        if self.take(')') { Ok(Pattern::Call(function, operands)) } else { Err(self.rest) }
    }
}

fn function(word: &str) -> Option<Function> {
    Some(match word {
        "mean" => Function::Mean,
        "sum" => Function::Sum,
        "max" => Function::Max,
        "total" => Function::Total,
        "clip" => Function::Clip,
        "gate" => Function::Gate,
        "standard" => Function::Standard,
        "round" => Function::Round,
        "join" => Function::Join,
        "weave" => Function::Weave,
        "lo" => Function::Half(0),
        "hi" => Function::Half(1),
        "even" => Function::Every(0),
        "odd" => Function::Every(1),
        operator => {
            let known = |kind: &&OpKind| kind.domain().is_empty() && kind.name() == operator;
            Function::Op(OpKind::ALL.iter().find(known).copied()?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formulas_are_flat() {
        let read = |text: &str| rules(text).unwrap().remove(0).root;
        let x = Pattern::Capture(Capture::X);
        let product = |k, factors: &[(Pattern, f64)]| {
            Pattern::Flat(Chain::Product, Constant::Number(k), factors.to_vec())
        };
        assert_eq!(read("A: x * 2 / 4"), product(0.5, &[(x.clone(), 1.0)]));
        assert_eq!(read("A: -x"), product(-1.0, &[(x.clone(), 1.0)]));
        let root = Pattern::Flat(
            Chain::Sum,
            Constant::Capture(Number::Eps),
            vec![(Pattern::Call(Function::Mean, vec![product(1.0, &[(x.clone(), 2.0)])]), 1.0)],
        );
        assert_eq!(read("A: (mean(x^2) + eps)^-0.5 * x"), product(1.0, &[(root, -0.5), (x.clone(), 1.0)]));
        let named = rules("A: d / sum(d) where d = Exp(x)").unwrap().remove(0);
        assert_eq!(named.named, [Pattern::Call(Function::Op(OpKind::Exp), vec![x])]);
    }

    #[test]
    fn a_wrong_formula_is_an_error() {
        for text in ["x", "A: y", "A: Unknown(x)", "A: (x", "A: x where d", "A: x x", "A: Exp(x"] {
            assert!(rules(text).is_err(), "{text}");
        }
    }
}
