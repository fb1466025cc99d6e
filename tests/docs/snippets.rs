//! The fenced snippets of documents.

use std::path::Path;

/// A document of the repository.
pub(crate) struct Document {
    pub(crate) name: String,
    pub(crate) text: String,
    pub(crate) snippets: Vec<Snippet>,
}

/// Text between two fences.
pub(crate) struct Snippet {
    pub(crate) language: String,
    /// The words behind the language.
    pub(crate) marks: String,
    pub(crate) text: String,
    pub(crate) line: usize,
    /// Which heading it stands behind.
    pub(crate) section: usize,
}

impl Snippet {
    /// The text behind a mark and its colon.
    pub(crate) fn mark(&self, name: &str) -> Option<&str> {
        self.marks.strip_prefix(name)?.strip_prefix(": ")
    }
    /// The exit code that it ends with.
    pub(crate) fn exit_code(&self) -> i32 {
        self.marks.strip_prefix("exits ").map_or(0, |code| code.parse().unwrap())
    }
}

impl Document {
    pub(crate) fn read(name: &str) -> Document {
        let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap();
        Document { name: name.to_owned(), snippets: snippets(&text), text }
    }
}

/// The README and what is in `docs/`.
pub(crate) fn documents() -> Vec<Document> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name.ends_with(".md"));
    names.sort();
    let docs = names.into_iter().map(|name| format!("docs/{name}"));
    std::iter::once("README.md".to_owned()).chain(docs).map(|name| Document::read(&name)).collect()
}

fn snippets(text: &str) -> Vec<Snippet> {
    let mut found = Vec::new();
    let mut section = 0;
    let mut lines = text.lines().enumerate();
    while let Some((i, line)) = lines.next() {
        if line.starts_with('#') {
            section += 1;
        }
        let Some(info) = line.strip_prefix("```") else { continue };
        let (language, marks) = info.split_once(' ').unwrap_or((info, ""));
        let text: String =
            lines.by_ref().take_while(|(_, l)| *l != "```").map(|(_, l)| format!("{l}\n")).collect();
        let (language, marks) = (language.to_owned(), marks.to_owned());
        found.push(Snippet { language, marks, text, line: i + 1, section });
    }
    found
}
