//! "Did you mean": the nearest valid word, and short lists of valid words.

/// The largest distance at which a word is near, however long it is.
const FAR: usize = 8;

/// Lists of more words than this are cut.
const WHOLE: usize = 16;

/// The number of words before the cut in a list.
const FIRST: usize = 12;

/// The number of characters of a word that a list shows.
const LETTERS: usize = 64;

/// The candidate with the least edit distance to `wanted`, if that is at most a third of its length (but no more than
/// 8) or 2; of several, the one that begins alike for longest. Takes time in proportion to the length of all candidates.
pub fn nearest<'a>(wanted: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A transposition counts two.
    let n = wanted.chars().count();
    let limit = if n < 4 { 1 } else { (n / 3).clamp(2, FAR) };
    candidates
        .into_iter()
        .filter(|c| c.len().abs_diff(wanted.len()) <= limit * 4)
        .map(|c| (distance(wanted, c, limit), c))
        .filter(|&(d, _)| d <= limit)
        .min_by_key(|&(d, c)| (d, std::cmp::Reverse(common(wanted, c))))
        .map(|(_, c)| c)
}

/// The number of characters with which two words begin alike, without regard to case.
fn common(a: &str, b: &str) -> usize {
    let pairs = a.chars().zip(b.chars());
    pairs.take_while(|(a, b)| a.to_lowercase().eq(b.to_lowercase())).count()
}

/// The end of a message about a name that is not known: the name that was probably meant, if there is one.
pub fn did_you_mean(near: Option<&str>) -> String {
    near.map_or_else(String::new, |near| format!("; did you mean `{near}`?"))
}

/// The words with commas between them: all of a few, of many the first ones, how many are left out, and the last.
/// Neither many words nor long ones make the text long.
pub fn listed<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let words: Vec<&str> = words.into_iter().collect();
    let n = words.len();
    let all = |words: &[&str]| words.iter().map(|word| clipped(word)).collect::<Vec<_>>().join(", ");
    match words.last() {
        Some(last) if n > WHOLE => {
            format!("{}, … and {} more, {}", all(&words[..FIRST]), n - FIRST - 1, clipped(last))
        }
        _ => all(&words),
    }
}

/// The beginning of a word that is long.
fn clipped(word: &str) -> String {
    match word.char_indices().nth(LETTERS) {
        Some((end, _)) => format!("{}…", &word[..end]),
        None => word.to_owned(),
    }
}

/// Levenshtein distance without regard to case, cut off above `limit`: only cells near the diagonal are
/// computed.
fn distance(a: &str, b: &str, limit: usize) -> usize {
    let a: Vec<char> = a.to_lowercase().chars().collect();
    let b: Vec<char> = b.to_lowercase().chars().collect();
    if a.len().abs_diff(b.len()) > limit {
        return limit + 1;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let (from, to) = (i.saturating_sub(limit), (i + limit + 1).min(b.len()));
        let mut diagonal = row[from];
        // What is left of the band is farther than anybody asks.
        row[from] = if from == 0 { i + 1 } else { limit + 1 };
        let mut least = row[from];
        for (j, y) in (from..to).zip(&b[from..to]) {
            let above = if j + 1 == i + limit + 1 { limit + 1 } else { row[j + 1] };
            let next = (diagonal + usize::from(x != y)).min(row[j] + 1).min(above + 1);
            diagonal = std::mem::replace(&mut row[j + 1], next);
            least = least.min(next);
        }
        if least > limit {
            return limit + 1;
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
        assert_eq!(nearest("taint", ["paint", "taints"]), Some("taints"));
        assert_eq!(nearest("xyz", ["Conv", "MatMul"]), None);
        assert_eq!(nearest("h100", ["v100", "a100", "h200"]), Some("h200"));
    }

    /// The distance in the band is the distance, wherever that is within the limit.
    #[test]
    fn distances_are_those_of_the_whole_table() {
        fn whole(a: &[u8], b: &[u8]) -> usize {
            match (a, b) {
                ([], rest) | (rest, []) => rest.len(),
                ([x, a @ ..], [y, b @ ..]) if x == y => whole(a, b),
                ([_, a_rest @ ..], [_, b_rest @ ..]) => {
                    1 + whole(a_rest, b).min(whole(a, b_rest)).min(whole(a_rest, b_rest))
                }
            }
        }
        let words: Vec<String> = (0..3u32.pow(5))
            .map(|n| (0..5).map(|k| ["", "a", "b"][(n / 3u32.pow(k) % 3) as usize]).collect())
            .collect();
        for a in words.iter().step_by(61) {
            for b in &words {
                for limit in 0..4 {
                    let want = whole(a.as_bytes(), b.as_bytes()).min(limit + 1);
                    assert_eq!(distance(a, b, limit).min(limit + 1), want, "{a} {b} {limit}");
                }
            }
        }
    }

    /// Quadratic time would be minutes.
    #[test]
    fn long_words_are_compared_in_a_moment() {
        let long = "x".repeat(1 << 20);
        let other = format!("{long}y");
        assert_eq!(nearest(&long, [other.as_str()]), Some(other.as_str()));
    }

    #[test]
    fn lists_stay_short_whatever_they_list() {
        let words: Vec<String> = (0..100_000).map(|n| format!("{n}{}", "x".repeat(100))).collect();
        assert!(listed(words.iter().map(String::as_str)).len() < 2000);
        assert_eq!(listed(["a", "b"]), "a, b");
        let many = listed(words[..20].iter().map(|word| &word[..2]));
        assert_eq!(many, "0x, 1x, 2x, 3x, 4x, 5x, 6x, 7x, 8x, 9x, 10, 11, … and 7 more, 19");
    }
}
