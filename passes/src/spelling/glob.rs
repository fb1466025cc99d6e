//! Globs of names.
//!
//! | glob | matches |
//! |---|---|
//! | `*` | any text, `/` included |
//! | `?` | one character |
//! | `[abc]`, `[a-z]`, `[!a]`, `[^a]` | one of these, one that is none of these |
//! | `{a,b*}` | one of the globs in it |
//! | `a/**/b`, `**/b` at the beginning | as `a/*/b` and `*/b`, and also `a/b` and `b` |
//! | `\*` | a `*` |
//!
//! A glob is read into a regular expression: `a{b,c}/?` into `^(?:a(?:b|c)/.)$`.

use regex::Regex;
use std::iter::Peekable;
use std::str::Chars;

/// Longer globs are names: a node of the expression takes a few hundred bytes, and a name takes time for each.
const MAX_LENGTH: usize = 4096;

/// The regular expression equivalent to a glob; `None` if the text is not a glob: an unmatched bracket or
/// brace, a range that runs backwards, a `\` at the end, too many characters, or a regular expression above the
/// size limit.
pub(crate) fn compile(glob: &str) -> Option<Regex> {
    if glob.len() > MAX_LENGTH {
        return None;
    }
    let mut pattern = String::from("^(?s:");
    let mut alternatives = 0;
    let mut chars = glob.chars().peekable();
    // What the next part follows: nothing at the beginning of the glob or of an alternative.
    let mut before = None;
    while let Some(c) = chars.next() {
        let mut last = Some(c);
        match c {
            '*' => last = stars(&mut pattern, before, &mut chars),
            '?' => pattern.push('.'),
            '[' => class(&mut pattern, &mut chars)?,
            '{' => {
                alternatives += 1;
                pattern.push_str("(?:");
                last = None;
            }
            ',' if alternatives > 0 => {
                pattern.push('|');
                last = None;
            }
            '}' => {
                alternatives = usize::checked_sub(alternatives, 1)?;
                pattern.push(')');
            }
            '\\' => {
                last = chars.next();
                literal(&mut pattern, last?);
            }
            c => literal(&mut pattern, c),
        }
        before = last;
    }
    pattern.push_str(")$");
    Regex::new(&pattern).ok().filter(|_| alternatives == 0)
}

/// One `*` or more, and the `/` behind two that stand for whole names; `before` is the character before them. Returns the
/// last character of them.
fn stars(pattern: &mut String, before: Option<char>, chars: &mut Peekable<Chars<'_>>) -> Option<char> {
    let mut n = 1;
    while chars.next_if_eq(&'*').is_some() {
        n += 1;
    }
    match (n, before, chars.peek()) {
        (2, None, Some('/')) => {
            pattern.push_str("(?:/?|.*/)");
            chars.next()
        }
        // The `/` before them is there already.
        (2, Some('/'), Some('/')) => {
            pattern.push_str("(?:.*/)?");
            chars.next()
        }
        _ => {
            pattern.push_str(".*");
            Some('*')
        }
    }
}

/// Parses the text between brackets: characters, and ranges of them.
fn class(pattern: &mut String, chars: &mut Peekable<Chars<'_>>) -> Option<()> {
    let negated = chars.next_if(|&c| c == '!' || c == '^').is_some();
    pattern.push_str(if negated { "[^" } else { "[" });
    let mut is_first = true;
    loop {
        let from = chars.next()?;
        if from == ']' && !is_first {
            break;
        }
        is_first = false;
        literal(pattern, from);
        let mut ahead = chars.clone();
        if ahead.next() == Some('-')
            && let Some(to) = ahead.next().filter(|&to| to != ']')
        {
            if to < from {
                return None;
            }
            pattern.push('-');
            literal(pattern, to);
            *chars = ahead;
        }
    }
    pattern.push(']');
    Some(())
}

fn literal(pattern: &mut String, c: char) {
    pattern.push_str(&regex::escape(c.encode_utf8(&mut [0; 4])));
}

#[cfg(test)]
mod tests {
    use super::compile;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    #[test]
    fn globs_match_whole_names() {
        for (glob, names, others) in [
            ("enc*", &["enc", "enc/0/fc"][..], &["dec/enc"][..]),
            ("h.?/w", &["h.1/w", "h.é/w"], &["h.10/w"]),
            ("[ab-d!]x", &["ax", "cx", "!x"], &["ex", "x"]),
            ("[!a]", &["b", "/"], &["a", ""]),
            ("{fc{1,2},out}/*", &["fc1/w", "out/"], &["fc3/w"]),
            ("a/**/b", &["a/b", "a/x/y/b"], &["ab", "a/xb"]),
            ("**/b", &["b", "/b", "a/b"], &["ab"]),
            ("**/**/b", &["b", "a/b", "a/a/b"], &["ab"]),
            ("a/**/**/b", &["a/b", "a/x/b"], &["ab"]),
            ("{**/fc1,**/fc2}", &["fc1", "enc/fc2"], &["fc3"]),
            (r"a\/**/b", &["a/b", "a/x/b"], &["ab"]),
            (r"a\*.b", &["a*.b"], &["axxb"]),
        ] {
            let regex = compile(glob).unwrap();
            assert!(names.iter().all(|name| regex.is_match(name)), "{glob}");
            assert!(!others.iter().any(|name| regex.is_match(name)), "{glob}");
        }
        for text in ["a[b", "a{b", "a}b", "[b-a]", "a\\"] {
            assert!(compile(text).is_none(), "{text}");
        }
    }

    /// Globs of up to six parts. They avoid patterns that globset reads in its own way: a `**` that is not a whole
    /// name, a `**` in braces, and empty alternatives.
    fn globs() -> impl Strategy<Value = String> {
        let simple = || {
            prop_oneof![
                "[ab/-]".prop_map(String::from),
                prop::sample::select(vec![
                    "?", "[ab]", "[!a]", "[^/]", "[a-b]", "[]a]", "[a-]", "[!-]", r"\*", r"\["
                ])
                .prop_map(String::from),
            ]
        };
        let one = prop_oneof![Just("*a".to_owned()), simple()];
        let several =
            prop::collection::vec(prop::collection::vec(one, 1..3).prop_map(|parts| parts.concat()), 1..4);
        let part = prop_oneof![
            4 => simple(),
            2 => prop::sample::select(vec!["*a", "a*", "***b", "a/**/b"]).prop_map(String::from),
            1 => several.prop_map(|several| format!("{{{}}}", several.join(","))),
        ];
        let parts = prop::collection::vec(part, 0..6).prop_map(|parts| parts.concat());
        let ends = prop::sample::select(vec![("", ""), ("", ""), ("**/a", ""), ("", "b/**")]);
        (ends, parts).prop_map(|((first, last), parts)| format!("{first}{parts}{last}"))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

        /// Names are of one byte per character: globset's `?` is a byte.
        #[test]
        fn globs_are_those_of_globset(glob in globs(), names in prop::collection::vec(r"[ab/*\[\]-]{0,5}", 24)) {
            let theirs = globset::Glob::new(&glob).expect("a glob").compile_matcher();
            let ours = compile(&glob).expect("a glob");
            for name in names {
                prop_assert_eq!(ours.is_match(&name), theirs.is_match(&name), "{} and {}", glob, name);
            }
        }

        #[test]
        fn no_text_panics(text in r"[ab/*?!^\-{},\[\]\\]{0,12}") {
            compile(&text);
        }
    }
}
