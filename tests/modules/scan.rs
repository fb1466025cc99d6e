//! A scan of Rust sources for the modules that each file imports.
//!
//! The scan reads text: `use` trees and paths that begin with `crate`, `self`, `super` or a child module. Comments,
//! strings and items with `#[cfg(test)]` do not count. A name that a module re-exports stands for its definition.

use std::collections::{BTreeMap, BTreeSet};

/// The segments of a path.
type Path = Vec<String>;

/// The sources of a crate.
#[derive(Default)]
pub(crate) struct Tree {
    /// The file of each module, by the path of the module.
    pub(crate) files: BTreeMap<Path, String>,
    /// The modules that a module imports.
    pub(crate) imports: BTreeMap<Path, BTreeSet<Path>>,
}

impl Tree {
    /// Reads the files of a crate, given by their paths from its source folder.
    pub(crate) fn of(sources: &[(String, String)]) -> Tree {
        let code: BTreeMap<Path, String> = sources
            .iter()
            .filter(|(file, _)| !file.ends_with("tests.rs") && !file.split('/').any(|part| part == "tests"))
            .map(|(file, text)| (module_of(file), without_tests(&plain(text))))
            .collect();
        let files = sources.iter().map(|(file, _)| (module_of(file), file.clone()));
        let files = files.filter(|(module, _)| code.contains_key(module)).collect();
        let mut found: BTreeMap<Path, Found> = BTreeMap::new();
        for (module, text) in &code {
            found.insert(module.clone(), Found::of(module, text, &code));
        }
        let mut imports = BTreeMap::new();
        for (module, Found { paths, .. }) in &found {
            let targets = paths.iter().filter_map(|path| resolve(path, &found, 0));
            let targets: BTreeSet<Path> = targets.filter(|target| target != module).collect();
            imports.insert(module.clone(), targets);
        }
        Tree { files, imports }
    }

    /// The circles among the modules of each folder with more than `most` files: the folder, and the modules of a
    /// circle. The file of the folder itself is the module `self`.
    pub(crate) fn circles(&self, most: usize) -> Vec<(String, Vec<String>)> {
        let folders: BTreeSet<Path> =
            self.files.keys().flat_map(|module| (0..module.len()).map(|n| module[..n].to_vec())).collect();
        let mut circles = Vec::new();
        for folder in folders {
            if self.files.keys().filter(|module| module.starts_with(&folder)).count() > most {
                let found = circles_in(&self.imports_in(&folder));
                circles.extend(found.into_iter().map(|circle| (folder.join("/"), circle)));
            }
        }
        circles
    }

    /// The imports among the modules of a folder, by their names.
    pub(crate) fn imports_in(&self, folder: &[String]) -> BTreeMap<String, BTreeSet<String>> {
        let part = |module: &Path| {
            let inside = module.strip_prefix(folder)?;
            Some(inside.first().cloned().unwrap_or_else(|| "self".to_owned()))
        };
        let mut imports: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (module, targets) in &self.imports {
            let Some(from) = part(module) else { continue };
            let targets = targets.iter().filter_map(part).filter(|to| *to != from);
            imports.entry(from.clone()).or_default().extend(targets);
        }
        imports
    }
}

/// The paths of a file, and the paths of the names that it re-exports.
#[derive(Default)]
struct Found {
    paths: BTreeSet<Path>,
    names: BTreeMap<String, Path>,
}

impl Found {
    fn of(module: &Path, text: &str, code: &BTreeMap<Path, String>) -> Found {
        let mut found = Found::default();
        let mut rest = text;
        while let Some(at) = word(rest, "use") {
            found.inline(module, &rest[..at], code);
            let is_public = rest[..at].trim_end().ends_with("pub");
            let end = rest[at..].find(';').map_or(rest.len(), |end| at + end);
            let mut leaves = Vec::new();
            leaves_of(&rest[at + "use".len()..end], "", &mut leaves);
            for (leaf, name) in leaves {
                let Some(path) = absolute(&leaf, module, code) else { continue };
                if is_public {
                    found.names.insert(name, path.clone());
                }
                found.paths.insert(path);
            }
            rest = &rest[end..];
        }
        found.inline(module, rest, code);
        found
    }

    /// Adds the paths of code without imports.
    fn inline(&mut self, module: &Path, text: &str, code: &BTreeMap<Path, String>) {
        let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        for token in text.split(|c| !is_path(c)).filter(|token| token.contains("::")) {
            self.paths.extend(absolute(token.trim_end_matches(':'), module, code));
        }
    }
}

/// The module of a file.
fn module_of(file: &str) -> Path {
    let mut module: Path = file.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
    if module.last().is_some_and(|last| last == "mod") || module == ["lib"] {
        module.pop();
    }
    module
}

/// The path from the root of the crate; `None` if the path leads out of it.
fn absolute(path: &str, module: &Path, code: &BTreeMap<Path, String>) -> Option<Path> {
    let mut parts = path.split("::").map(str::trim).filter(|part| !part.is_empty()).peekable();
    let mut base = module.clone();
    match *parts.peek()? {
        "crate" => base.clear(),
        "super" | "self" => {}
        child => {
            let inner: Path = module.iter().cloned().chain([child.to_owned()]).collect();
            code.contains_key(&inner).then_some(())?;
        }
    }
    for part in parts {
        match part {
            "crate" | "self" => {}
            "super" => drop(base.pop()?),
            _ => base.push(part.to_owned()),
        }
    }
    Some(base)
}

/// The module in which the definition stands that a path names.
fn resolve(path: &Path, found: &BTreeMap<Path, Found>, depth: usize) -> Option<Path> {
    let length = (0..=path.len()).rev().find(|&n| found.contains_key(&path[..n]))?;
    let module = &path[..length];
    let named = path.get(length).and_then(|name| found[module].names.get(name));
    match named.filter(|target| depth < 8 && *target != path) {
        Some(target) => resolve(target, found, depth + 1),
        None => Some(module.to_vec()),
    }
}

/// The sets of modules that import each other in a circle, each in alphabetical order.
fn circles_in(imports: &BTreeMap<String, BTreeSet<String>>) -> Vec<Vec<String>> {
    let reached = |from: &String| {
        let (mut seen, mut work) = (BTreeSet::new(), vec![from]);
        while let Some(module) = work.pop() {
            work.extend(imports.get(module).into_iter().flatten().filter(|&next| seen.insert(next.clone())));
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<String>> =
        imports.keys().map(|from| (from, reached(from))).collect();
    let mut circles: BTreeSet<Vec<String>> = BTreeSet::new();
    for (from, to) in &reached {
        let circle = to.iter().filter(|to| reached.get(to).is_some_and(|back| back.contains(*from)));
        let circle: Vec<String> = circle.cloned().collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

/// The leaves of a `use` tree: the path, and the name that the file gives it.
fn leaves_of(tree: &str, prefix: &str, leaves: &mut Vec<(String, String)>) {
    let tree = tree.trim();
    if let Some((before, inner)) = tree.split_once('{') {
        let inner = inner.trim_end().strip_suffix('}').unwrap_or(inner);
        let prefix = format!("{prefix}{}", before.trim());
        parts_of(inner).into_iter().for_each(|part| leaves_of(part, &prefix, leaves));
        return;
    }
    let (path, name) = tree.split_once(" as ").unwrap_or((tree, tree));
    let path = format!("{prefix}{}", path.trim()).trim_end_matches("::*").to_owned();
    let name = name.trim().rsplit("::").next().unwrap_or_default().to_owned();
    if !path.is_empty() {
        leaves.push((path.trim_end_matches("::self").to_owned(), name));
    }
}

/// The parts of a list, at commas outside of braces.
fn parts_of(list: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[start..]);
    parts.into_iter().filter(|part| !part.trim().is_empty()).collect()
}

/// The position of a word.
fn word(text: &str, word: &str) -> Option<usize> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).map(|(at, _)| at).find(|&at| {
        !text[..at].ends_with(is_part) && text[at + word.len()..].starts_with(|c: char| c.is_whitespace())
    })
}

/// The text without comments, and with empty strings.
fn plain(text: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(c) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(length) = raw_string(rest).filter(|_| !out.ends_with(char::is_alphanumeric)) {
            length
        } else if c == '"' {
            quoted(rest, '"')
        } else if c == '\'' && (rest[1..].starts_with('\\') || rest[1..].chars().nth(1) == Some('\'')) {
            quoted(rest, '\'')
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        };
        rest = &rest[skipped..];
    }
    out
}

/// The length of a raw string.
fn raw_string(text: &str) -> Option<usize> {
    let body = text.strip_prefix('r')?;
    let fence = body.len() - body.trim_start_matches('#').len();
    let inside = body[fence..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(fence));
    Some(1 + fence + 1 + inside.find(&end)? + end.len())
}

/// The length of a literal with its quotes.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The code without items for tests, and without the paths of visibilities.
fn without_tests(code: &str) -> String {
    let mut code = code.to_owned();
    while let Some(start) = code.find("#[cfg(test)]") {
        let (mut depth, mut end) = (0, code.len());
        for (at, c) in code[start..].char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            if depth == 0 && (c == '}' || c == ';') {
                end = start + at + 1;
                break;
            }
        }
        code.replace_range(start..end, "");
    }
    while let Some(start) = code.find("pub(") {
        let end = code[start..].find(')').map_or(code.len(), |end| start + end + 1);
        code.replace_range(start..end, "pub");
    }
    code
}
