//! Temporary folders, which change places with the folder that they replace.
//!
//! A folder whose files belong together is made anew beside the old one, with links to all other files of the
//! old folder, and both are exchanged in one system call: at any moment all files belong to one run. The rest
//! of the old folder is removed afterwards, except files that appeared in it meanwhile, which move.

use super::{PREFIX, RANDOM, names};
use crate::bytes::FileId;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

const SUFFIX: &str = ".dir";

/// A folder under a temporary name beside another one, removed unless it takes its place.
#[derive(Debug)]
pub(crate) struct TemporaryFolder {
    path: PathBuf,
    /// The folder that it is to replace.
    old: PathBuf,
    /// Held as long as the folder is in use.
    _lock: Option<File>,
}

impl TemporaryFolder {
    /// A folder that may replace `old`, with links to all its files except the names `replaced`. `None` where
    /// that is not possible: it has other things than files, is where the process stands, or the system
    /// refuses.
    pub(crate) fn beside(old: &Path, replaced: &BTreeSet<OsString>) -> Option<TemporaryFolder> {
        let old = fs::canonicalize(old).ok()?;
        if std::env::current_dir().ok()?.starts_with(&old) {
            return None;
        }
        let parent = old.parent()?;
        sweep(parent);
        let mut builder = tempfile::Builder::new();
        builder.prefix(PREFIX).suffix(SUFFIX).rand_bytes(RANDOM);
        let path = {
            let mut names = names();
            let path = builder.tempdir_in(parent).ok()?.keep();
            names.push(path.clone());
            path
        };
        let lock = File::open(&path).ok().filter(|folder| folder.try_lock().is_ok());
        let folder = TemporaryFolder { path, old, _lock: lock };
        folder.take_over(replaced).ok()?;
        Some(folder)
    }

    /// The folder under its temporary name.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn take_over(&self, replaced: &BTreeSet<OsString>) -> io::Result<()> {
        let of_old = fs::metadata(&self.old)?;
        if !has_owner_of(&fs::metadata(&self.path)?, &of_old) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        for entry in fs::read_dir(&self.old)? {
            let entry = entry?;
            if !entry.file_type()?.is_file() {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            if !replaced.contains(&entry.file_name()) {
                // A signal removes the folder: no file may appear in it meanwhile.
                let _names = names();
                fs::hard_link(entry.path(), self.path.join(entry.file_name()))?;
            }
        }
        fs::set_permissions(&self.path, of_old.permissions())
    }

    /// Replaces the old folder.
    ///
    /// # Errors
    /// If the system cannot exchange folders; both are then unchanged.
    pub(crate) fn replace(self, replaced: &BTreeSet<OsString>) -> io::Result<()> {
        // A signal ends the program when the old folder is gone, which has the temporary name from the exchange on.
        super::make_sure_of_memory();
        let mut names = names();
        exchange(&self.path, &self.old)?;
        names.retain(|name| *name != self.path);
        if let Some(parent) = self.old.parent().and_then(|parent| File::open(parent).ok()) {
            parent.sync_all().ok();
        }
        clear(&self.path, &self.old, replaced).ok();
        Ok(())
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        let mut names = names();
        if names.contains(&self.path) {
            names.retain(|name| *name != self.path);
            // It has new files and links.
            fs::remove_dir_all(&self.path).ok();
        }
    }
}

/// Removes the files of an old folder that was replaced; files that the new one lacks move there.
fn clear(old: &Path, new: &Path, replaced: &BTreeSet<OsString>) -> io::Result<()> {
    let id = |path: &Path| fs::symlink_metadata(path).ok().and_then(|metadata| FileId::of(&metadata));
    for entry in fs::read_dir(old)?.flatten() {
        let (path, kept) = (entry.path(), new.join(entry.file_name()));
        let is_linked = id(&path).is_some() && id(&path) == id(&kept);
        if is_linked || replaced.contains(&entry.file_name()) {
            fs::remove_file(path)?;
        } else {
            fs::rename(path, kept)?;
        }
    }
    fs::remove_dir(old)
}

#[cfg(target_os = "linux")]
fn exchange(a: &Path, b: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE)?)
}

#[cfg(not(target_os = "linux"))]
fn exchange(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(unix)]
fn has_owner_of(own: &fs::Metadata, other: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    (own.uid(), own.gid()) == (other.uid(), other.gid())
}

#[cfg(not(unix))]
fn has_owner_of(_: &fs::Metadata, _: &fs::Metadata) -> bool {
    true
}

/// Removes the folders that killed processes left in a folder: new folders that are not complete, and old
/// folders that were replaced. Files that have no other name stay, unless they are test data.
fn sweep(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten().filter(|entry| is_temporary(&entry.file_name())) {
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let lock = File::open(entry.path()).ok().filter(|folder| is_folder && folder.try_lock().is_ok());
        if lock.is_none() {
            continue;
        }
        for file in fs::read_dir(entry.path()).into_iter().flatten().flatten() {
            if has_other_name(&file.path())
                || is_test_data(&file.file_name())
                || super::is_temporary(&file.file_name())
            {
                fs::remove_file(file.path()).ok();
            }
        }
        fs::remove_dir(entry.path()).ok();
    }
}

fn is_temporary(name: &OsStr) -> bool {
    let name = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
    let random = name.and_then(|rest| rest.strip_suffix(SUFFIX));
    random.is_some_and(|r| r.len() == RANDOM && r.bytes().all(|b| b.is_ascii_alphanumeric()))
}

#[cfg(unix)]
fn has_other_name(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.nlink() > 1)
}

#[cfg(not(unix))]
fn has_other_name(_: &Path) -> bool {
    false
}

/// True if a file has the name that a file of test data has: `input_0.pb`, `output_12.pb`.
fn is_test_data(name: &OsStr) -> bool {
    let stem = name.to_str().and_then(|name| name.strip_suffix(".pb"));
    let number = stem.and_then(|stem| stem.strip_prefix("input_").or_else(|| stem.strip_prefix("output_")));
    number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// Files of the old folder that are not replaced stay, including files that appear meanwhile, and nothing
    /// is left beside it.
    #[test]
    fn a_folder_is_replaced_in_one_step() {
        let parent = tempfile::tempdir().unwrap();
        let old = parent.path().join("o");
        fs::create_dir(&old).unwrap();
        for name in ["input_0.pb", "output_0.pb", "notes.txt"] {
            fs::write(old.join(name), "old").unwrap();
        }
        let replaced: BTreeSet<OsString> = ["input_0.pb", "output_0.pb"].map(OsString::from).into();
        let folder = TemporaryFolder::beside(&old, &replaced).unwrap();
        for name in &replaced {
            fs::write(folder.path().join(name), "new").unwrap();
        }
        fs::write(old.join("late.txt"), "late").unwrap();
        folder.replace(&replaced).unwrap();
        let read = |name: &str| fs::read_to_string(old.join(name)).unwrap();
        assert_eq!(
            ["input_0.pb", "output_0.pb", "notes.txt", "late.txt"].map(read),
            ["new", "new", "old", "late"]
        );
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
        // A folder that a killed process left goes with the next run; a file without another name stays.
        let left = parent.path().join(".ampc-abcdef.dir");
        fs::create_dir(&left).unwrap();
        fs::write(left.join("input_0.pb"), "left").unwrap();
        fs::hard_link(old.join("notes.txt"), left.join("notes.txt")).unwrap();
        drop(TemporaryFolder::beside(&old, &replaced).unwrap());
        assert!(!left.exists());
        fs::create_dir(old.join("folder")).unwrap();
        assert!(TemporaryFolder::beside(&old, &replaced).is_none());
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
    }
}
