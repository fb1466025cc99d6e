//! The folders in which toolkits and Python packages install the libraries.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Existing folders that usually contain the libraries of CUDA, in search order: the toolkit of `CUDA_HOME` or
/// `CUDA_PATH`; Python packages of the virtual environment, of conda, of the interpreters on `PATH`, and of the user;
/// then the system's toolkits, newest first. `variable` returns an environment variable.
///
/// The dynamic loader's own folders are searched before all of these.
pub fn standard_folders(variable: &dyn Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let mut folders = Vec::new();
    for root in ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(path) {
        toolkit(&root, &mut folders);
    }
    for prefix in ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(path) {
        packages(&prefix, &mut folders);
        folders.push(prefix.join("lib"));
    }
    for bin in variable("PATH").iter().flat_map(std::env::split_paths) {
        if bin.join("python3").exists() {
            bin.parent().into_iter().for_each(|prefix| packages(prefix, &mut folders));
            // Debian's interpreter in /usr uses the packages that the administrator installed below /usr/local.
            bin.parent().into_iter().for_each(|prefix| packages(&prefix.join("local"), &mut folders));
        }
    }
    if let Some(home) = path("HOME") {
        packages(&home.join(".local"), &mut folders);
    }
    for parent in ["/usr/local", "/opt"] {
        let is_toolkit = |name: &str| name == "cuda" || name.starts_with("cuda-");
        for root in newest_first(Path::new(parent), &is_toolkit) {
            toolkit(&root, &mut folders);
        }
    }
    folders.push("/usr/lib/wsl/lib".into());
    let mut known = Vec::new();
    for folder in folders {
        if folder.is_dir() && !known.contains(&folder) {
            known.push(folder);
        }
    }
    known
}

/// The library folders of a toolkit.
fn toolkit(root: &Path, to: &mut Vec<PathBuf>) {
    to.extend(["lib64", "targets/x86_64-linux/lib"].map(|folder| root.join(folder)));
}

/// The library folders of NVIDIA's Python packages below a prefix: `lib/python3.*/site-packages/nvidia/*/lib`.
fn packages(prefix: &Path, to: &mut Vec<PathBuf>) {
    for lib in ["lib", "lib64"] {
        for python in newest_first(&prefix.join(lib), &|name| name.starts_with("python3")) {
            for site in ["site-packages", "dist-packages"] {
                let packages = newest_first(&python.join(site).join("nvidia"), &|_| true);
                to.extend(packages.into_iter().map(|package| package.join("lib")));
            }
        }
    }
}

/// The entries of a folder whose names satisfy `is_wanted`, greatest first. Numbers in names are compared as numbers.
fn newest_first(folder: &Path, is_wanted: &dyn Fn(&str) -> bool) -> Vec<PathBuf> {
    let names = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.file_name());
    let names = names.filter_map(|name| name.into_string().ok());
    let mut names: Vec<String> = names.filter(|name| is_wanted(name)).collect();
    let numbers = |name: &String| -> Vec<u64> {
        name.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
    };
    names.sort_by(|a, b| numbers(b).cmp(&numbers(a)).then_with(|| a.cmp(b)));
    names.into_iter().map(|name| folder.join(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toolkits_and_packages_are_found_in_order() {
        let root = std::env::temp_dir().join(format!("ampc-folders-{}", std::process::id()));
        let existing = [
            "toolkit/lib64",
            "venv/lib/python3.9/site-packages/nvidia/cu13/lib",
            "venv/lib/python3.12/site-packages/nvidia/cu13/lib",
            "venv/lib/python3.12/site-packages/nvidia/cudnn/lib",
            "home/.local/lib/python3.11/site-packages/nvidia/cublas/lib",
            "venv/bin",
        ];
        for folder in existing {
            std::fs::create_dir_all(root.join(folder)).unwrap();
        }
        std::fs::write(root.join("venv/bin/python3"), "").unwrap();
        let of = |pairs: &'static [(&str, &str)], name: &str| {
            pairs
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, folder)| root.join(folder).into_os_string())
        };
        let below = |pairs: &'static [(&str, &str)]| -> Vec<String> {
            let found = standard_folders(&|name| of(pairs, name));
            let found = found.iter().filter_map(|folder| folder.strip_prefix(&root).ok());
            found.map(|folder| folder.display().to_string()).collect()
        };
        let wheels = [
            "venv/lib/python3.12/site-packages/nvidia/cu13/lib",
            "venv/lib/python3.12/site-packages/nvidia/cudnn/lib",
            "venv/lib/python3.9/site-packages/nvidia/cu13/lib",
        ];
        assert_eq!(below(&[("PATH", "venv/bin")]), wheels);
        assert_eq!(below(&[("CUDA_HOME", "toolkit"), ("HOME", "home")]), [existing[0], existing[4]]);
        assert_eq!(below(&[("VIRTUAL_ENV", "venv")]), [&wheels[..], &["venv/lib"]].concat());
        assert_eq!(below(&[("CUDA_PATH", "absent"), ("PATH", "absent")]), [""; 0]);
        std::fs::remove_dir_all(&root).unwrap();
    }
}
