//! The order of modules: imports run downwards.
//!
//! A folder of up to [`MOST_FILES`] files is one thought, whose files may import each other in any direction. In a larger
//! folder the modules have an order: none imports, directly or through others, a module that imports it. `ampc-passes`
//! names its order, [`LAYERS`], which ARCHITECTURE.md lists.

#![allow(clippy::unwrap_used, reason = "a test fails and tells by panicking")]

#[path = "modules/scan.rs"]
mod scan;

use scan::Tree;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The folders of `passes/src`, from the ground up: each imports only those before it.
const LAYERS: &[&str] = &[
    "spelling",
    "graph",
    "target",
    "policy",
    "pass",
    "analysis",
    "opset",
    "functions",
    "precision",
    "casts",
    "training",
    "pipeline",
];

/// A larger folder has no circle among its modules.
const MOST_FILES: usize = 10;

/// The source folders of the crates.
const CRATES: &[&str] = &["ir/src", "passes/src", "runtime/src", "src"];

/// Circles that are left: the folder, and its modules, of which `self` is the file of the folder. The list may only
/// shrink.
const LEFT: &[(&str, &[&str])] = &[
    (
        "runtime/src/cpu/kernels",
        &[
            "broadcast",
            "convolution",
            "depthwise",
            "fold",
            "functions",
            "lanes",
            "linear",
            "product",
            "reduce",
        ],
    ),
    (
        "runtime/src/cuda",
        &["dnn", "dump", "elements", "kernels", "launch", "layouts", "names", "products", "queue", "self"],
    ),
    ("runtime/src/cuda/kernels", &["casts", "integers", "pointwise"]),
    ("runtime/src/cuda/kernels", &["moves", "stage"]),
    (
        "runtime/src/session",
        &[
            "bind",
            "control",
            "device_bytes",
            "device_heap",
            "executable",
            "flight",
            "frame",
            "inlined",
            "layouts",
            "needs",
            "observe",
            "pairs",
            "partition",
            "recording",
            "self",
            "states",
            "walk",
        ],
    ),
    ("src", &["json", "text_files"]),
];

#[test]
fn layers_of_passes_import_only_layers_below() {
    let tree = tree("passes/src");
    let found: BTreeSet<String> = tree.files.keys().filter_map(|module| module.first().cloned()).collect();
    assert_eq!(found, LAYERS.iter().map(|&layer| layer.to_owned()).collect(), "layers of passes/src");
    let upward = upward(&tree, LAYERS);
    assert!(upward.is_empty(), "imports of a layer above:\n{}", upward.join("\n"));
}

#[test]
fn the_map_lists_the_layers() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let section = text.split("\n## ").find(|section| section.starts_with("`passes/`")).unwrap();
    let first_cells = section.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
    let folders = first_cells.flat_map(|cell| cell.split('`')).filter_map(|word| word.strip_suffix('/'));
    let mut listed: Vec<&str> = folders.collect();
    listed.reverse();
    assert_eq!(listed, LAYERS, "ARCHITECTURE.md lists the layers from the top down");
}

#[test]
fn modules_of_large_folders_import_each_other_in_one_direction() {
    let mut found = Vec::new();
    for folder in CRATES {
        for (inner, circle) in tree(folder).circles(MOST_FILES) {
            found.push((format!("{folder}/{inner}").trim_end_matches('/').to_owned(), circle));
        }
    }
    let left: Vec<(String, Vec<String>)> = LEFT
        .iter()
        .map(|(folder, circle)| {
            ((*folder).to_owned(), circle.iter().map(|&module| module.to_owned()).collect())
        })
        .collect();
    let shown = |circles: &[(String, Vec<String>)]| {
        circles
            .iter()
            .map(|(folder, circle)| format!("  {folder}: {}\n", circle.join(", ")))
            .collect::<String>()
    };
    let new: Vec<_> = found.iter().filter(|circle| !left.contains(circle)).cloned().collect();
    let gone: Vec<_> = left.iter().filter(|circle| !found.contains(circle)).cloned().collect();
    assert!(
        new.is_empty() && gone.is_empty(),
        "new circles:\n{}circles of the list that are broken or smaller:\n{}",
        shown(&new),
        shown(&gone)
    );
}

/// The imports that run up, by the order of the folders.
fn upward(tree: &Tree, order: &[&str]) -> Vec<String> {
    let rank =
        |module: &[String]| order.iter().position(|layer| Some(*layer) == module.first().map(String::as_str));
    let mut found = Vec::new();
    for (from, targets) in &tree.imports {
        let above = |to: &&Vec<String>| rank(from).is_some_and(|rank_of_from| rank(to) > Some(rank_of_from));
        let lines = targets.iter().filter(above);
        found.extend(lines.map(|to| format!("{} imports {}", tree.files[from], to.join("::"))));
    }
    found
}

#[test]
fn the_scan_finds_planted_imports() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c; mod d;\npub use b::B;"),
        (
            "a.rs",
            "/// [`crate::c`]\nuse crate::B;\n#[cfg(test)]\nmod tests { use crate::c::C; }\nconst S: &str = \"crate::d\";",
        ),
        ("b/mod.rs", "mod inner;\npub(crate) use inner::Deep;\npub struct B;"),
        ("b/inner.rs", "use super::B;\nuse crate::{c::{self, C}, d::D as E};\npub struct Deep;"),
        ("c.rs", "pub struct C;\nfn f() -> char { '\"' }\nfn g(_: crate::d::D) {}"),
        ("d.rs", "use crate::b::Deep;\n// use crate::a::A;\npub(in crate::a) struct D;"),
        ("d/tests.rs", "use crate::a::A;"),
    ];
    let tree = made_up(&files);
    let imports = |module: &str| {
        let module: Vec<String> = module.split('/').map(str::to_owned).collect();
        tree.imports[&module].iter().map(|target| target.join("/")).collect::<Vec<_>>()
    };
    assert_eq!(imports("a"), ["b"], "through the root, and neither comments, strings nor tests");
    assert_eq!(imports("b"), ["b/inner"]);
    assert_eq!(imports("b/inner"), ["b", "c", "d"]);
    assert_eq!(imports("c"), ["d"]);
    assert_eq!(imports("d"), ["b/inner"], "a re-export is its definition, and a visibility is no import");
    let order = ["a", "b", "c", "d"];
    let found = upward(&tree, &order);
    let expected = ["a.rs imports b", "b/inner.rs imports c", "b/inner.rs imports d", "c.rs imports d"]
        .map(str::to_owned);
    assert_eq!(found, expected);
    assert!(upward(&tree, &["d", "c", "b", "a"]).iter().all(|line| line.starts_with("d.rs")));
}

#[test]
fn the_scan_finds_planted_circles() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "use crate::b::B;"),
        ("b.rs", "mod x; mod y;\nuse crate::c::C;"),
        ("b/x.rs", "use super::y::Y;"),
        ("b/y.rs", "use super::x::X;"),
        ("c.rs", "use crate::b::x::X;"),
    ];
    let tree = made_up(&files);
    let circle = |folder: &str, modules: [&str; 2]| (folder.to_owned(), modules.map(str::to_owned).to_vec());
    assert_eq!(tree.circles(0), [circle("", ["b", "c"]), circle("b", ["x", "y"])]);
    assert_eq!(tree.circles(3), [circle("", ["b", "c"])], "a folder of three files is small");
    assert_eq!(tree.circles(6), []);
}

fn made_up(files: &[(&str, &str)]) -> Tree {
    let files: Vec<(String, String)> =
        files.iter().map(|&(file, text)| (file.to_owned(), text.to_owned())).collect();
    Tree::of(&files)
}

/// The modules of a source folder of the repository.
fn tree(folder: &str) -> Tree {
    let base = root().join(folder);
    let (mut files, mut folders) = (Vec::new(), vec![base.clone()]);
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let name = path.strip_prefix(&base).unwrap().to_str().unwrap().replace('\\', "/");
                files.push((name, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    Tree::of(&files)
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).into()
}
