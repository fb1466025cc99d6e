//! Delta debugging: the smallest part of a list that is found to pass a test (Zeller and Hildebrandt, "Simplifying and
//! isolating failure-inducing input", IEEE Trans. Softw. Eng. 28(2), 2002).

/// Removes halves, quarters and so on of a list that passes a test, the last elements first, as long as the rest passes. Ends
/// when the list has at most `least` elements, when no single element can be removed, or when the test gives `None`.
///
/// For example, elements of which `b` and `f` are needed:
///
/// ```text
/// a b c d e f g h   passes
/// a b c d           fails     a half removed
///         e f g h   fails
/// a b c d e f       passes    a quarter removed
/// a b c d           fails
/// a b     e f       passes
///         e f       fails
/// a b     e         fails     single elements
/// a b       f       passes
///   b       f       passes; neither can be removed
/// ```
pub(super) fn shrink<T: Clone, E>(
    mut all: Vec<T>,
    least: usize,
    mut passes: impl FnMut(&[T]) -> Result<Option<bool>, E>,
) -> Result<Vec<T>, E> {
    let mut part = all.len().div_ceil(2);
    while all.len() > least {
        let before = all.len();
        let mut end = all.len();
        while end > 0 && all.len() > least {
            let start = end.saturating_sub(part);
            let rest: Vec<T> = all[..start].iter().chain(&all[end..]).cloned().collect();
            match passes(&rest)? {
                None => return Ok(all),
                Some(true) => all = rest,
                Some(false) => {}
            }
            end = start;
        }
        if part == 1 && all.len() == before {
            break;
        }
        part = part.min(all.len()).div_ceil(2);
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lists that are tested, with those that pass in capitals, and the result.
    fn tried(all: &str, needed: &str, least: usize) -> (Vec<String>, String) {
        let mut tried = Vec::new();
        let passes = |rest: &[char]| -> Result<Option<bool>, ()> {
            let passes = needed.chars().all(|c| rest.contains(&c));
            let text: String = rest.iter().collect();
            tried.push(if passes { text.to_uppercase() } else { text });
            Ok(Some(passes))
        };
        let found = shrink(all.chars().collect(), least, passes).unwrap();
        (tried, found.into_iter().collect())
    }

    #[test]
    fn the_needed_elements_remain() {
        let (tried, found) = tried("abcdefgh", "bf", 1);
        assert_eq!(found, "bf");
        assert_eq!(tried[..6], ["abcd", "efgh", "ABCDEF", "abcd", "ABEF", "ef"]);
    }

    #[test]
    fn the_search_ends_at_the_least_length() {
        assert_eq!(tried("abcdefgh", "bf", 4).1, "abef");
        assert_eq!(tried("ab", "ab", 1), (vec!["a".into(), "b".into()], "ab".into()));
    }

    #[test]
    fn the_test_may_end_the_search() {
        let found: Result<Vec<u8>, ()> = shrink(vec![1, 2, 3], 1, |_| Ok(None));
        assert_eq!(found, Ok(vec![1, 2, 3]));
    }
}
