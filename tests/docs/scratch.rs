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

/// Result of commands.
pub(crate) struct Ran {
    stdout: String,
    stderr: String,
    /// Written files that are text.
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

    /// Checks that the rows of a table were printed in this order, with numbers that differ by at most 5 percent; the last
    /// column is not compared, and a line with `…` stands for any rows.
    pub(crate) fn shows_rows(&self, place: &str, snippet: &Snippet) {
        let mut printed = self.stdout.lines().chain(self.stderr.lines());
        for line in snippet.text.lines().filter(|line| line.trim() != "…") {
            let is_alike = |other: &str| alike(line, other);
            assert!(
                printed.any(is_alike),
                "{place}: `{line}` is not what is printed, which is\n{}{}",
                self.stdout,
                self.stderr
            );
        }
    }
}

/// True if two lines have the same words but for the last, numbers within 5 percent.
fn alike(line: &str, other: &str) -> bool {
    let (line, other): (Vec<&str>, Vec<&str>) =
        (line.split_whitespace().collect(), other.split_whitespace().collect());
    line.len() == other.len()
        && line.iter().zip(&other).take(line.len().saturating_sub(1)).all(|(a, b)| {
            match (a.parse::<f64>(), b.parse::<f64>()) {
                (Ok(a), Ok(b)) => (a - b).abs() <= 0.05 * a.abs().max(b.abs()),
                _ => a == b,
            }
        })
}

/// A separate package, with these lines in its manifest and this program, beside a folder `ampc` with this
/// repository.
pub(crate) struct Package {
    folder: tempfile::TempDir,
}

impl Package {
    pub(crate) fn new(lines: &str, program: &str) -> Package {
        let package = Package { folder: tempfile::tempdir().unwrap() };
        fs::create_dir_all(package.path().join("src")).unwrap();
        std::os::unix::fs::symlink(ROOT, package.folder.path().join("ampc")).unwrap();
        package.write("Cargo.toml", &format!("{PACKAGE}{lines}"));
        package.write("src/main.rs", program);
        fs::copy(Path::new(ROOT).join("Cargo.lock"), package.path().join("Cargo.lock")).unwrap();
        package
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("mine")
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.path().join(name), text).unwrap();
    }

    /// Runs cargo in the package, without a network. Returns what it prints, or all that it says if it fails or warns.
    fn cargo(&self, args: &[&str]) -> Result<String, String> {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(args).arg("--offline").current_dir(self.path());
        if std::env::var_os(PROFILE).is_none() {
            cargo.env(PROFILE, "line-tables-only");
        }
        let output = cargo.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (printed, stderr) = (text(&output.stdout), text(&output.stderr));
        let is_understood = output.status.success() && !stderr.contains("warning");
        if is_understood { Ok(printed) } else { Err(printed + &stderr) }
    }

    /// Checks that the package depends on this one.
    pub(crate) fn depends(&self, place: &str) {
        let printed = self.cargo(&["tree", "--depth", "1", "--prefix", "none"]);
        let printed = printed.unwrap_or_else(|said| panic!("{place}:\n{said}"));
        let name = format!("ampc v{}", env!("CARGO_PKG_VERSION"));
        assert!(printed.lines().any(|l| l.starts_with(&name)), "{place}:\n{printed}");
    }

    /// Compiles the program; the error is the output of the compiler. Builds are those of this workspace, for
    /// which ampc has to be at its own path, and the profile the same.
    pub(crate) fn compiles(&self) -> Result<(), String> {
        let path = self.path().join("Cargo.toml");
        let manifest = fs::read_to_string(&path).unwrap();
        fs::write(path, manifest.replace("../ampc", ROOT)).unwrap();
        let target = Path::new(env!("CARGO_BIN_EXE_ampc")).ancestors().nth(2).unwrap();
        self.cargo(&["check", "--quiet", "--target-dir", target.to_str().unwrap()]).map(drop)
    }
}

/// The profile of this workspace, where it is not that of cargo.
const PROFILE: &str = "CARGO_PROFILE_DEV_DEBUG";

const PACKAGE: &str = "[package]\nname = \"mine\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n";
