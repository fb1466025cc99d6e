//! A folder in which a reader of a document tries it out.

use super::snippets::Snippet;
use ampc::runtime::{HostTensor, npz};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The folder, with what documents take for granted.
pub(crate) struct Scratch(tempfile::TempDir);

/// What commands left.
pub(crate) struct Ran {
    stdout: String,
    stderr: String,
    /// What was written, where it is text.
    files: Vec<String>,
}

impl Scratch {
    pub(crate) fn new() -> Scratch {
        let scratch = Scratch(tempfile::tempdir().unwrap());
        for folder in ["testdata", "testdata/hidden"] {
            fs::create_dir(scratch.path(folder)).unwrap();
            for entry in fs::read_dir(Path::new(ROOT).join(folder)).unwrap().map(|e| e.unwrap()) {
                if entry.path().is_file() {
                    fs::copy(entry.path(), scratch.path(folder).join(entry.file_name())).unwrap();
                }
            }
        }
        fs::copy(scratch.path("testdata/mlp.onnx"), scratch.path("model.onnx")).unwrap();
        let values: Vec<f32> = (0..3 * 32u8).map(|i| f32::from(i) / 48.0 - 1.0).collect();
        let x = HostTensor::from_slice(&[3, 32], &values).unwrap();
        npz::write(File::create(scratch.path("inputs.npz")).unwrap(), [("x", &x)]).unwrap();
        let stored = "ampc run model.onnx --inputs inputs.npz --outputs test_data_set_0/";
        let output = scratch.output(stored);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        scratch
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Runs commands with the binary in the path.
    fn output(&self, commands: &str) -> Output {
        let binary = Path::new(env!("CARGO_BIN_EXE_ampc")).parent().unwrap();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut paths: OsString = binary.into();
        paths.push(":");
        paths.push(path);
        let mut command = Command::new("sh");
        command.args(["-e", "-c", commands]).current_dir(self.0.path()).env("PATH", paths);
        command.env_remove("NO_COLOR").output().unwrap()
    }

    fn files(&self) -> BTreeSet<PathBuf> {
        let mut found = BTreeSet::new();
        let mut folders = vec![self.0.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for path in fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
                if path.is_dir() {
                    folders.push(path);
                } else {
                    found.insert(path);
                }
            }
        }
        found
    }

    /// Runs a snippet as a user would, who has the binary in the path.
    pub(crate) fn shell(&self, place: &str, snippet: &Snippet) -> Ran {
        let before = self.files();
        let output = self.output(&snippet.text.replace("cargo run --release -- ", "ampc "));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert_eq!(output.status.code(), Some(snippet.exit_code()), "{place}:\n{stdout}{stderr}");
        let written = self.files().difference(&before).cloned().collect::<Vec<_>>();
        Ran { stdout, stderr, files: written.iter().filter_map(|f| fs::read_to_string(f).ok()).collect() }
    }

    /// Runs a program, if there is a Python for it.
    pub(crate) fn python(&self, place: &str, snippet: &Snippet) {
        #[expect(clippy::disallowed_methods, reason = "tests are told which Python has their packages")]
        let Ok(python) = std::env::var("AMPC_PYTHON") else {
            let _ = writeln!(
                std::io::stderr(),
                "{place}: skipped: AMPC_PYTHON does not name a Python that has ONNX Runtime"
            );
            return;
        };
        let output =
            Command::new(python).args(["-c", &snippet.text]).current_dir(self.0.path()).output().unwrap();
        assert!(output.status.success(), "{place}:\n{}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Ran {
    /// Checks that a text is what was printed, or in what was written.
    pub(crate) fn shows(&self, place: &str, snippet: &Snippet) {
        let wanted = format!("\n{}", snippet.text);
        let is_in = |text: &String| format!("\n{text}\n").contains(&wanted);
        let shown = [&self.stdout, &self.stderr].into_iter().chain(&self.files).any(is_in);
        assert!(shown, "{place}: not what is printed, which is\n{}{}", self.stdout, self.stderr);
    }
}

/// Checks that a package with these lines, beside a folder `ampc` with this repository, depends on it.
pub(crate) fn dependency(place: &str, lines: &str) {
    let folder = tempfile::tempdir().unwrap();
    let package = folder.path().join("mine");
    fs::create_dir_all(package.join("src")).unwrap();
    std::os::unix::fs::symlink(ROOT, folder.path().join("ampc")).unwrap();
    let manifest = format!("[package]\nname = \"mine\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n{lines}");
    fs::write(package.join("Cargo.toml"), manifest).unwrap();
    fs::write(package.join("src/main.rs"), "fn main() {}\n").unwrap();
    fs::copy(Path::new(ROOT).join("Cargo.lock"), package.join("Cargo.lock")).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["tree", "--offline", "--depth", "1", "--prefix", "none"]).current_dir(&package);
    let output = cargo.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (printed, stderr) = (text(&output.stdout), text(&output.stderr));
    let is_there = printed.lines().any(|l| l.starts_with(&format!("ampc v{}", env!("CARGO_PKG_VERSION"))));
    let is_understood = !stderr.contains("warning");
    assert!(output.status.success() && is_there && is_understood, "{place}:\n{printed}{stderr}");
}
