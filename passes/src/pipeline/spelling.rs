//! The text of pipelines: `a{k=v, l=w+x}, b`.
//!
//! A value is one word or a list of words with `+` between them, each as [`words`](crate::spelling::words) has it:
//! `keep-io="a,b"+c` names `a,b` and `c`.

use super::PipelineError;
use crate::pass::Pass;
use crate::pass::options::Setting;
use crate::spelling::words::{quoted, quotes};

/// A pass as a text spells it.
pub(super) struct Spec {
    pub(super) name: String,
    /// Options and their values, quoted as in the text.
    pub(super) options: Vec<(String, String)>,
}

/// Passes as a text, and the files that it names: the policies and targets that do not come with ampc as they are.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Spelling {
    /// The passes. Empty for none.
    pub text: String,
    /// Names and contents of files, each of which is written where the names in the text refer to.
    pub files: Vec<(String, String)>,
}

impl Spelling {
    /// Files are `STEM.policy.json` and `STEM.target.json`; further files have numbers.
    pub(super) fn new(passes: &[Box<dyn Pass>], stem: &str) -> Spelling {
        let mut files: Vec<(String, String)> = Vec::new();
        let mut file = |kind: &str, content: String| {
            if let Some((name, _)) = files.iter().find(|(_, known)| *known == content) {
                return quoted(name);
            }
            let ending = |n: usize| if n == 1 { format!("{kind}.json") } else { format!("{kind}-{n}.json") };
            let mut names = (1..).map(|n| format!("{stem}.{}", ending(n)));
            let is_free = |name: &String| files.iter().all(|(known, _)| known != name);
            let name = names.find(is_free).expect("numbers do not end");
            let word = quoted(&name);
            files.push((name, content));
            word
        };
        let text = spell(passes, &mut |setting| match setting {
            Setting::Text(text) => text.clone(),
            Setting::Policy(policy) if policy.is_preset() => quoted(&policy.name),
            Setting::Policy(policy) => file("policy", policy.to_json()),
            Setting::Target(target) if target.is_preset() => quoted(&target.name),
            Setting::Target(target) => file("target", target.to_json()),
        });
        Spelling { text, files }
    }
}

/// Passes as a text that names policies and targets.
pub(super) fn name(passes: &[Box<dyn Pass>]) -> String {
    let name = |name: &str, is_preset: bool, kind: &str| {
        if is_preset { quoted(name) } else { quoted(&format!("{name}.{kind}.json")) }
    };
    spell(passes, &mut |setting| match setting {
        Setting::Text(text) => text.clone(),
        Setting::Policy(policy) => name(&policy.name, policy.is_preset(), "policy"),
        Setting::Target(target) => name(&target.name, target.is_preset(), "target"),
    })
}

fn spell(passes: &[Box<dyn Pass>], value: &mut dyn FnMut(&Setting) -> String) -> String {
    let spelled: Vec<String> = passes
        .iter()
        .map(|pass| {
            let settings = pass.options();
            let options = settings.iter().map(|(name, setting)| format!("{name}={}", value(setting)));
            let options: Vec<String> = options.collect();
            match options[..] {
                [] => pass.name().to_owned(),
                _ => format!("{}{{{}}}", pass.name(), options.join(", ")),
            }
        })
        .collect();
    spelled.join(", ")
}

/// Splits `a{k=v, l=w}, b` into passes and options.
pub(super) fn split(text: &str) -> Result<Vec<Spec>, PipelineError> {
    let mut specs = Vec::new();
    let mut rest = text.trim_start();
    let at = |rest: &str| text.len() - rest.len() + 1;
    while !rest.is_empty() {
        let end = rest.find(['{', ',']).unwrap_or(rest.len());
        let name = rest[..end].trim().to_owned();
        if name.is_empty() {
            return Err(PipelineError::Syntax { at: at(rest), expected: "the name of a pass" });
        }
        rest = rest[end..].trim_start();
        let mut options = Vec::new();
        if rest.starts_with('{') {
            let open = rest;
            loop {
                rest = rest[1..].trim_start();
                let end = item(rest).map_err(|expected| PipelineError::Syntax {
                    at: at(if expected.starts_with("a `}`") { open } else { rest }),
                    expected,
                })?;
                let spelled = rest[..end].trim();
                if !spelled.is_empty() {
                    let (key, value) = spelled
                        .split_once('=')
                        .ok_or(PipelineError::Syntax { at: at(rest), expected: "options as `key=value`" })?;
                    options.push((key.trim().to_owned(), value.trim().to_owned()));
                }
                rest = &rest[end..];
                if rest.starts_with('}') {
                    break;
                }
            }
            rest = rest[1..].trim_start();
        }
        specs.push(Spec { name, options });
        match rest.strip_prefix(',') {
            Some(after) => rest = after.trim_start(),
            None if rest.is_empty() => {}
            None => return Err(PipelineError::Syntax { at: at(rest), expected: "`,` between passes" }),
        }
    }
    Ok(specs)
}

/// The end of an option: the next `,` or `}` that is not in quotes. The error is the expected character.
fn item(text: &str) -> Result<usize, &'static str> {
    let mut at = 0;
    loop {
        let next = text[at..].find([',', '}', '"']).ok_or("a `}` that closes the options")?;
        at += next;
        if !text[at..].starts_with('"') {
            return Ok(at);
        }
        at += quotes(&text[at..]).ok_or("a `\"` that closes the quotes")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spelling::words::{word, words};

    #[test]
    fn words_of_options_round_trip() {
        let all =
            ["", "a", "a+b", "a,b", "a}{b", "a b", "é\u{a0}", "\"", "\\", "\\u{a}", "a\nb\u{7f}", "a=b"];
        for (one, two) in all.iter().flat_map(|one| all.map(|two| (*one, two))) {
            let list = format!("{}+{}", quoted(one), quoted(two));
            let spelled = format!("p{{k={list}, l={}}}, q", quoted(two));
            let specs = split(&spelled).unwrap();
            assert!(!spelled.contains('\n') && specs.len() == 2, "{spelled:?}");
            let [first, second] = &specs[0].options[..] else { panic!("{spelled}") };
            assert_eq!(words(&first.1).unwrap(), [one, two], "{spelled}");
            assert_eq!(word(&second.1).as_deref(), Some(two), "{spelled}");
        }
    }

    #[test]
    fn texts_that_break_off_are_refused() {
        let expected = |text: &str| match split(text) {
            Err(PipelineError::Syntax { at, expected }) => (at, expected),
            _ => panic!("{text} is read"),
        };
        assert_eq!(expected("p{k=\"a}"), (3, "a `\"` that closes the quotes"));
        assert_eq!(expected("p{k=\"}\""), (2, "a `}` that closes the options"));
        assert_eq!(expected("p{k=v, l}"), (8, "options as `key=value`"));
    }
}
