//! Running the binary in a folder of its own.

use ampc::passes::guard::{GUARDS, GuardDef, Judges};
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A small model: three layers with Relu, and a Softmax.
pub(crate) const MLP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/mlp.onnx");

/// The body of a module with a MatMul and a Relu.
pub(crate) const MATMUL: &str = "  input %x : f32[N, 4]\n  const %w : f32[4, 2] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]\n  \
                          %h = MatMul(%x, %w) : f32[N, 2] @matmul\n  %y = Relu(%h) : f32[N, 2] @relu\n  \
                          output %y : f32[N, 2]\n";

/// The body of a module with a product behind two tables: once the product is fp32, the tables are stored low.
pub(crate) const EMBEDDING: &str = "  input %i : i64[2]\n  const %t : f32[300, 400] = random(1)\n  \
                             const %u : f32[300, 400] = random(2)\n  const %w : f32[400, 4] = random(3)\n  \
                             const %s : f32[400] = random(4)\n  %g = Gather(%t, %i) : f32[2, 400] @word\n  \
                             %h = Gather(%u, %i) : f32[2, 400] @position\n  \
                             %a = Add(%g, %h) : f32[2, 400] @plus\n  \
                             %n = LayerNormalization(%a, %s) : f32[2, 400] @norm\n  \
                             %y = MatMul(%n, %w) : f32[2, 4] @mm\n  output %y : f32[2, 4]\n";

/// The text of a module with this main graph.
pub(crate) fn module(body: &str) -> String {
    format!("module ir=10\nopset ai.onnx=21\n\ngraph @main {{\n{body}}}\n")
}

/// Result of a run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) bytes: Vec<u8>,
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "exit code {}", self.code)?;
        for (name, text) in [("stdout", &self.stdout), ("stderr", &self.stderr)] {
            if !text.is_empty() {
                write!(f, "--- {name}\n{text}")?;
            }
        }
        Ok(())
    }
}

/// A folder that goes when it is dropped.
pub(crate) struct Dir(tempfile::TempDir);

impl Dir {
    pub(crate) fn new() -> Dir {
        Dir(tempfile::tempdir().unwrap())
    }
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        std::fs::write(self.path(name), content).unwrap();
    }
    pub(crate) fn copy(&self, from: &str, name: &str) {
        std::fs::copy(from, self.path(name)).unwrap();
    }
    /// Names in it, sorted.
    pub(crate) fn files(&self) -> Vec<String> {
        Dir::files_of(self.0.path())
    }
    pub(crate) fn files_of(path: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(path).unwrap();
        let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
    pub(crate) fn run(&self, args: &[&str]) -> Run {
        self.run_with(args, b"")
    }
    pub(crate) fn run_with(&self, args: &[&str], stdin: &[u8]) -> Run {
        let mut command = command(args);
        let mut child = command.current_dir(self.0.path()).spawn().unwrap();
        let mut pipe = child.stdin.take().unwrap();
        let stdin = stdin.to_vec();
        let feeder = std::thread::spawn(move || drop(pipe.write_all(&stdin)));
        let output = child.wait_with_output().unwrap();
        feeder.join().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        Run { code: output.status.code().unwrap(), stdout, stderr, bytes: output.stdout }
    }
}

pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ampc"));
    command.args(args).env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE").env("TERM", "xterm");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A run whose standard output is closed before it writes.
pub(crate) fn run_unread(args: &[&str]) -> Run {
    let mut child = command(args).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    Run { code: output.status.code().unwrap(), stdout: String::new(), stderr, bytes: Vec::new() }
}

/// Compares a run with its snapshot. Run in the folder by relative names, so that no path is in it.
pub(crate) fn snapshot(name: &str, run: &Run) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path("snapshots");
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.add_filter(&regex(MLP), "testdata/mlp.onnx");
    settings.add_filter(r"\.ampc-\w+\.tmp", ".ampc-[random].tmp");
    settings.add_filter(r"/[\w./-]*/\.tmp\w+", "[dir]");
    settings.add_filter(r#"(meta ampc\.step = )"[0-9a-f]{32}""#, "$1\"[hash]\"");
    settings.bind(|| insta::assert_snapshot!(name, without_guards(&run.to_string())));
}

/// A text that shows guards by what they judge, so that one more changes none: every guard of a policy has its line, and
/// in errors they are in the order of their table.
fn without_guards(text: &str) -> String {
    let names: Vec<&str> = GUARDS.iter().map(|guard| guard.name).collect();
    // An error breaks its lines wherever the list makes them too long.
    let unbroken = text.replace("\n  | ", " ");
    let text = if unbroken.contains("guards are") { unbroken } else { text.to_owned() };
    let text = text.replace(&names.join(", "), "[guards]");
    let Some((before, shown)) = text.split_once("\nguards\n") else { return text };
    let (rows, after) =
        shown.split_at(shown.match_indices('\n').nth(names.len() - 1).expect("a line for each").0);
    let is_on = |guard: &GuardDef| {
        let row = rows.lines().map(str::trim).find(|row| row.split(' ').next() == Some(guard.name));
        let row = row.unwrap_or_else(|| panic!("`{}` is not in\n{rows}", guard.name));
        assert!(row.ends_with(guard.about), "{row}");
        row.split_whitespace().nth(1) == Some("on")
    };
    let kinds = Judges::ALL.map(|judges| {
        let of_kind = GUARDS.iter().filter(|guard| guard.judges == judges);
        let (on, off): (Vec<&GuardDef>, Vec<_>) = of_kind.partition(|guard| is_on(guard));
        let names =
            |guards: &[&GuardDef]| guards.iter().map(|guard| guard.name).collect::<Vec<_>>().join(", ");
        match (&on[..], &off[..]) {
            (_, []) => format!("  [all {}] on", judges.group()),
            ([], _) => format!("  [all {}] off", judges.group()),
            (_, off) => format!("  [all {}] on but {}", judges.group(), names(off)),
        }
    });
    format!("{before}\nguards\n{}{after}", kinds.join("\n"))
}

/// A text with the hash in the name of a data file left out.
pub(crate) fn without_hash(text: &str) -> String {
    let Some((before, after)) = text.split_once(".data") else { return text.to_owned() };
    match before.len().checked_sub(16).and_then(|at| before.split_at_checked(at)) {
        Some((name, hash)) if hash.bytes().all(|b| b.is_ascii_hexdigit()) => {
            format!("{name}[hash].data{after}")
        }
        _ => text.to_owned(),
    }
}

/// The codes of all warnings in the source: what passes warn of, what the writer and reader do, what the report adds.
pub(crate) fn warning_codes() -> Vec<String> {
    let mut codes = Vec::new();
    let mut folders: Vec<PathBuf> =
        ["passes/src", "src"].map(|f| Path::new(env!("CARGO_MANIFEST_DIR")).join(f)).into();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()) {
            if entry.is_dir() {
                folders.push(entry);
                continue;
            }
            let text = std::fs::read_to_string(&entry).unwrap();
            // The code is the first argument, before the node.
            let warned = text.split(".warn(").skip(1).filter_map(|rest| {
                let end = [rest.find("Some("), rest.find("None")].into_iter().flatten().min()?;
                Some(&rest[..end])
            });
            let named = text.split("fn code(&self)").skip(1).filter_map(|rest| rest.split("\n    }").next());
            let added = text.split("code: ").skip(1).filter_map(|rest| rest.lines().next());
            let literals =
                warned.chain(named).chain(added).flat_map(|part| part.split('"').skip(1).step_by(2));
            codes.extend(literals.filter(|code| code.contains('.')).map(str::to_owned));
        }
    }
    codes.sort();
    codes.dedup();
    codes
}

fn regex(text: &str) -> String {
    text.chars().flat_map(|c| ['.', '-', '+'].contains(&c).then_some('\\').into_iter().chain([c])).collect()
}
