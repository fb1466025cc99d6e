//! "Did you mean": the nearest of the words that would have been right.

/// The candidate with the least edit distance to `wanted`, if that is at most a third of its length or 2.
pub fn nearest<'a>(wanted: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A transposition counts two.
    let n = wanted.chars().count();
    let limit = if n < 4 { 1 } else { (n / 3).max(2) };
    candidates
        .into_iter()
        .filter(|c| c.len().abs_diff(wanted.len()) <= limit * 4)
        .map(|c| (distance(wanted, c, limit), c))
        .filter(|&(d, _)| d <= limit)
        .min_by_key(|&(d, _)| d)
        .map(|(_, c)| c)
}

/// The end of a message about a name that is not known: the name that was probably meant, if there is one.
pub fn did_you_mean(near: Option<&str>) -> String {
    near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"))
}

/// Levenshtein distance without regard to case, cut off above `limit`.
fn distance(a: &str, b: &str, limit: usize) -> usize {
    let a: Vec<char> = a.to_lowercase().chars().collect();
    let b: Vec<char> = b.to_lowercase().chars().collect();
    if a.len().abs_diff(b.len()) > limit {
        return limit + 1;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let next = (diagonal + usize::from(x != y)).min(row[j] + 1).min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], next);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_found_and_far_ones_are_not() {
        assert_eq!(nearest("matmul", ["Conv", "MatMul", "Gemm"]), Some("MatMul"));
        assert_eq!(nearest("taint", ["paint", "taints"]), Some("paint"));
        assert_eq!(nearest("xyz", ["Conv", "MatMul"]), None);
    }
}
