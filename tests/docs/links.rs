//! Links between documents of the repository.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Folders that are not documents of ours.
const SKIPPED: &[&str] = &["target", ".git", ".venv", "node_modules"];

/// Links to files or headings that are not there.
pub(crate) fn dead() -> Vec<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut dead = Vec::new();
    let documents = documents(root);
    assert!(documents.len() > 20, "{documents:?}");
    for document in &documents {
        let text = fs::read_to_string(document).unwrap();
        for (line, link) in links(&text) {
            if let Err(why) = leads_somewhere(document, &link) {
                let name = document.strip_prefix(root).unwrap().display();
                dead.push(format!("{name}:{line}: `{link}`: {why}"));
            }
        }
    }
    dead
}

fn documents(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && !path.is_symlink() && !SKIPPED.contains(&name.as_str()) {
                folders.push(path);
            } else if name.ends_with(".md") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The targets of links within the repository, with their lines.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut is_code = false;
    for (i, line) in text.lines().enumerate() {
        is_code ^= line.starts_with("```");
        if is_code {
            continue;
        }
        // What stands in backquotes is not a link.
        let prose: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`");
        for rest in prose.split("](").skip(1) {
            let target = rest.split([')', ' ']).next().unwrap();
            if !target.contains("://") && !target.starts_with("mailto:") {
                found.push((i + 1, target.to_owned()));
            }
        }
    }
    found
}

fn leads_somewhere(document: &Path, link: &str) -> Result<(), String> {
    let (file, heading) = link.split_once('#').map_or((link, None), |(file, heading)| (file, Some(heading)));
    let path = if file.is_empty() { document.to_owned() } else { document.parent().unwrap().join(file) };
    if !path.exists() {
        return Err("there is no such file".into());
    }
    match heading {
        Some(heading) if !headings(&fs::read_to_string(path).unwrap()).contains(heading) => {
            Err("the file has no such heading".into())
        }
        _ => Ok(()),
    }
}

/// The anchors of headings, as GitHub makes them.
fn headings(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut is_code = false;
    for line in text.lines() {
        is_code ^= line.starts_with("```");
        let title = line.trim_start_matches('#');
        if is_code || title.len() == line.len() {
            continue;
        }
        let slug = title.trim().to_lowercase().replace(' ', "-");
        let slug: String = slug.chars().filter(|c| c.is_alphanumeric() || ['-', '_'].contains(c)).collect();
        let same = (1..).map(|n| format!("{slug}-{n}"));
        let slug = std::iter::once(slug.clone()).chain(same).find(|slug| !found.contains(slug)).unwrap();
        found.insert(slug);
    }
    found
}
