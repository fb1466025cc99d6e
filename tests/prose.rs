//! A lint of prose: doc comments and documents name their subject first.
//!
//! A sentence that begins with "What", "Whether", "Of", "Who" or "Those" makes a reader wait for its subject. A noun
//! ("The number of casts"), a verb ("Inserts casts"), or "True if" says it at once. Questions are fine, and code is
//! not linted. A word for an unnamed person, such as `nobody`, hides the noun anywhere in a sentence.

#![allow(clippy::unwrap_used, reason = "a test fails and tells by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

/// First words of no sentence, unless it is a question.
const OPENINGS: &[&str] = &[
    "What",
    "Whatever",
    "Whether",
    "Whichever",
    "Of",
    "Who",
    "Whoever",
    "Whom",
    "Whose",
    "Those",
    "For what",
    "For whom",
    "For whoever",
];

/// Words for unnamed persons, which hide the reader, writer or caller that a sentence is about.
const PERSONS: &[&str] = &["anybody", "nobody", "somebody", "whoever", "whomever"];

/// Folders with Rust code of the workspace.
const CODE: &[&str] = &["ir", "passes", "runtime", "src", "fuzz", "tests", "benches", "examples"];

/// Documents outside of `docs/`.
const DOCUMENTS: &[&str] = &[
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "benches/README.md",
    "testdata/README.md",
    "testdata/corpus/README.md",
    "tests/judge/README.md",
];

/// The longest sentence of ARCHITECTURE.md, in words.
const MAX_WORDS: usize = 35;

/// The length of ARCHITECTURE.md, in lines.
const MAX_LINES: usize = 200;

#[test]
fn doc_comments_begin_with_their_subject() {
    let findings: Vec<String> = code().iter().flat_map(|path| findings(path, &doc_comments)).collect();
    assert!(findings.is_empty(), "{}", report(&findings));
}

#[test]
fn documents_begin_sentences_with_their_subject() {
    let findings: Vec<String> = documents().iter().flat_map(|path| findings(path, &markdown)).collect();
    assert!(findings.is_empty(), "{}", report(&findings));
}

#[test]
fn headings_begin_with_their_subject() {
    let mut findings = Vec::new();
    for path in documents() {
        let found = headings(&read(&path));
        findings.extend(found.into_iter().map(|(line, heading)| format!("{path}:{line}: {heading}")));
    }
    assert!(findings.is_empty(), "{}", report(&findings));
}

#[test]
fn help_texts_begin_with_their_subject() {
    let code = code();
    let arguments: Vec<&String> = code.iter().filter(|path| path.starts_with("src/cli/args")).collect();
    assert!(arguments.len() > 3, "{arguments:?}");
    let findings: Vec<String> = arguments.iter().flat_map(|path| findings(path, &attributes)).collect();
    assert!(findings.is_empty(), "{}", report(&findings));
}

#[test]
fn the_map_is_short() {
    let text = read("ARCHITECTURE.md");
    assert!(text.lines().count() <= MAX_LINES, "ARCHITECTURE.md has {} lines", text.lines().count());
    let long: Vec<String> = markdown(&text)
        .iter()
        .flat_map(|paragraph| paragraph.sentences())
        .filter(|(_, sentence)| words(sentence) > MAX_WORDS)
        .map(|(line, sentence)| format!("ARCHITECTURE.md:{line}: {} words: {sentence}", words(&sentence)))
        .collect();
    assert!(long.is_empty(), "sentences of more than {MAX_WORDS} words:\n{}", long.join("\n"));
}

/// Every kind of text is linted where it is wrong, and nowhere else.
#[test]
fn the_lint_finds_planted_sentences() {
    let code = [
        "/// The table. Of its rows the first",
        "/// counts.",
        "/// - Whether it holds",
        "///",
        "/// What is it? `x`. Ofen.",
        "// What is inline.",
        "fn f() {}",
        "    //! Who calls.",
    ];
    let lines = |paragraphs: Vec<Paragraph>| -> Vec<usize> {
        paragraphs.iter().flat_map(Paragraph::openings).map(|(line, _)| line).collect()
    };
    assert_eq!(lines(doc_comments(&code.join("\n"))), [1, 3, 8]);
    let document = "# What is it\n\nGood.\nWhat is bad.\n\n```sh\nWhat is code\n```\n| a | Those of b |\n\
                    1. **Of** a list.\nSee [x](y). Whoever reads\n";
    assert_eq!(lines(markdown(document)), [4, 9, 10, 11]);
    assert_eq!(lines(attributes("    #[arg(help = \"What it is\", long_help = \"It. Of\")]\n")), [1, 1]);
    let persons = "Nobody reads.\nRead `nobody`.\nA file that\nsomebody wrote.\n";
    let found: Vec<usize> =
        markdown(persons).iter().flat_map(Paragraph::persons).map(|(line, _)| line).collect();
    assert_eq!(found, [1, 3]);
    let found = headings("# What is it?\n## What it is\n```sh\n# What is code\n```\n## Whatnot\n");
    assert_eq!(found, [(2, "What it is".to_owned())]);
    assert_eq!(words("one `two three`, - four"), 4);
}

/// A paragraph, item of a list or cell of a table: its lines with their numbers.
#[derive(Default)]
struct Paragraph(Vec<(usize, String)>);

impl Paragraph {
    /// The sentences, with the line in which each begins.
    fn sentences(&self) -> Vec<(usize, String)> {
        let (mut found, mut at) = (Vec::new(), 0);
        let text = self.text();
        let ends = text.match_indices(". ").chain(text.match_indices("? ")).chain(text.match_indices("! "));
        let mut ends: Vec<usize> = ends.map(|(i, _)| i + 1).collect();
        ends.sort_unstable();
        ends.push(text.len());
        for end in ends {
            let sentence = text[at..end].trim();
            // An abbreviation or file name goes on in lower case.
            let rest = text[end..].trim_start();
            let goes_on = rest.starts_with(|c: char| c.is_lowercase()) && !rest.starts_with("ampc ");
            if goes_on || sentence.is_empty() {
                continue;
            }
            let start = at + text[at..].len() - text[at..].trim_start().len();
            found.push((self.line_of(start), sentence.to_owned()));
            at = end;
        }
        found
    }

    fn text(&self) -> String {
        self.0.iter().map(|(_, line)| line.as_str()).collect::<Vec<_>>().join(" ")
    }

    fn line_of(&self, mut at: usize) -> usize {
        for (number, line) in &self.0 {
            if at <= line.len() {
                return *number;
            }
            at -= line.len() + 1;
        }
        0
    }

    /// The sentences that begin with an opening and are not questions.
    fn openings(&self) -> Vec<(usize, String)> {
        let is_bad = |sentence: &str| {
            let text = sentence.trim_start_matches(['*', '(', '"', '_']);
            let opens = |opening: &&&str| {
                let rest = text.strip_prefix(**opening);
                rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric()))
            };
            OPENINGS.iter().any(|opening| opens(&opening)) && !sentence.ends_with('?')
        };
        self.sentences().into_iter().filter(|(_, sentence)| is_bad(sentence)).collect()
    }

    /// The sentences with a word for an unnamed person, outside of code.
    fn persons(&self) -> Vec<(usize, String)> {
        let is_bad = |sentence: &str| {
            let prose = sentence.split('`').step_by(2).collect::<Vec<_>>().join(" ").to_lowercase();
            prose.split(|c: char| !c.is_alphanumeric()).any(|word| PERSONS.contains(&word))
        };
        self.sentences().into_iter().filter(|(_, sentence)| is_bad(sentence)).collect()
    }
}

/// The headings of a document that begin with an opening and are not questions.
fn headings(text: &str) -> Vec<(usize, String)> {
    let (mut found, mut is_code) = (Vec::new(), false);
    for (i, line) in text.lines().enumerate() {
        is_code ^= line.starts_with("```");
        let heading = line.trim_start_matches('#').strip_prefix(' ');
        if let Some(heading) = heading.filter(|_| line.starts_with('#') && !is_code) {
            found.extend(Paragraph(vec![(i + 1, heading.to_owned())]).openings());
        }
    }
    found
}

/// Paragraphs of a text in Markdown, given as lines with their numbers; without headings and code.
fn paragraphs(lines: impl Iterator<Item = (usize, String)>) -> Vec<Paragraph> {
    let (mut found, mut current, mut is_code) = (Vec::new(), Paragraph::default(), false);
    for (number, line) in lines {
        let text = line.trim();
        let item = item_of(text);
        let is_break = is_code || text.is_empty() || text.starts_with(['#', '|']) || text.starts_with("```");
        if is_break || item.is_some() {
            found.push(std::mem::take(&mut current));
        }
        is_code ^= text.starts_with("```");
        if text.starts_with('|') && !is_code {
            let cells = text.split('|').map(|cell| Paragraph(vec![(number, cell.trim().to_owned())]));
            found.extend(cells);
        } else if !is_break {
            current.0.push((number, item.unwrap_or(text).to_owned()));
        }
    }
    found.push(current);
    found
}

/// The text of an item of a list.
fn item_of(text: &str) -> Option<&str> {
    let digits = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let numbered = digits.strip_prefix(". ").filter(|_| digits.len() < text.len());
    text.strip_prefix("- ").or_else(|| text.strip_prefix("* ")).or(numbered)
}

/// The paragraphs of a document.
fn markdown(text: &str) -> Vec<Paragraph> {
    // Each line of a document is a sentence or more.
    paragraphs(text.lines().enumerate().map(|(i, line)| (i + 1, line.to_owned())))
}

/// The paragraphs of doc comments.
fn doc_comments(text: &str) -> Vec<Paragraph> {
    let line = |(i, line): (usize, &str)| {
        let text = line.trim_start();
        let doc = text.strip_prefix("///").or_else(|| text.strip_prefix("//!"));
        (i + 1, doc.filter(|doc| !doc.starts_with('/')).unwrap_or("").to_owned())
    };
    paragraphs(text.lines().enumerate().map(line))
}

/// The texts of attributes of arguments, such as `help = "…"`.
fn attributes(text: &str) -> Vec<Paragraph> {
    let names = ["help = \"", "about = \"", "help_heading = \""];
    let mut found = Vec::new();
    for (i, line) in text.lines().enumerate() {
        for name in names {
            for rest in line.split(name).skip(1) {
                found.push(Paragraph(vec![(i + 1, rest.split('"').next().unwrap().to_owned())]));
            }
        }
    }
    found
}

/// The number of words of a sentence.
fn words(sentence: &str) -> usize {
    sentence.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
}

/// The sentences of a file that begin with an opening, or have a word for an unnamed person.
fn findings(path: &str, paragraphs: &dyn Fn(&str) -> Vec<Paragraph>) -> Vec<String> {
    let of = |paragraph: &Paragraph| paragraph.openings().into_iter().chain(paragraph.persons());
    let found = paragraphs(&read(path)).iter().flat_map(of).collect::<Vec<_>>();
    found.into_iter().map(|(line, sentence)| format!("{path}:{line}: {sentence}")).collect()
}

fn report(findings: &[String]) -> String {
    let help = "begin with the subject: \"The number of ..\", \"Inserts ..\", \"True if ..\"";
    format!("{} sentences hide their subject; {help}:\n{}", findings.len(), findings.join("\n"))
}

/// The documents for users.
fn documents() -> Vec<String> {
    let mut found: Vec<String> = DOCUMENTS.iter().map(|&name| name.to_owned()).collect();
    found.extend(files("docs", "md"));
    assert!(found.len() > 10, "{found:?}");
    found
}

/// The Rust code of the workspace, but for generated files.
fn code() -> Vec<String> {
    let mut found: Vec<String> = CODE.iter().flat_map(|folder| files(folder, "rs")).collect();
    found.retain(|path| !path.ends_with("generated.rs"));
    assert!(found.len() > 300, "{}", found.len());
    found
}

/// The files in a folder and below it that end in `.ending`, sorted, as paths from the root of the repository.
fn files(folder: &str, ending: &str) -> Vec<String> {
    let (mut found, mut folders) = (Vec::new(), vec![root().join(folder)]);
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() && !path.is_symlink() && !path.ends_with("target") {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == ending) {
                found.push(path.strip_prefix(root()).unwrap().to_str().unwrap().replace('\\', "/"));
            }
        }
    }
    found.sort();
    found
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}
