//! Temporary files: they have another name until they are complete, and are removed with the process that made
//! them.
//!
//! Dropping a temporary file removes it. A signal ends the program without dropping values, so the names of all
//! temporary files are kept in one list: [`discard_all`] removes the files on it and locks the list, so that no
//! file is created or renamed in the remaining moment. A file that the system would remove by itself
//! (`O_TMPFILE`) cannot replace another file, and not every file system supports such files.
//!
//! A process that is killed, or a machine that stops, removes nothing. So the writer of a temporary file holds
//! a lock on it, which the system releases with the process, and the first temporary file that is created in a
//! folder removes temporary files without a lock holder. On file systems without locks no writer is known to be
//! gone, and nothing is removed.
//!
//! A file that replaces another file gets its permissions before any content, so private content is never
//! readable by others.

#[cfg(feature = "run")]
mod folder;

#[cfg(feature = "run")]
pub(crate) use folder::TemporaryFolder;

use crate::bytes::FileId;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{self, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tempfile::NamedTempFile;

const PREFIX: &str = ".ampc-";
const SUFFIX: &str = ".tmp";
/// Random characters between them.
const RANDOM: usize = 6;
/// The maximal number of times that another process may remove a new file as a left-over, before the file is used without a lock.
const TRIES: u32 = 16;

/// Names of the temporary files that are there now.
static NAMES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
/// Folders from which left-over files have been removed.
static SWEPT: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn names() -> MutexGuard<'static, Vec<PathBuf>> {
    // A list of names is whole after any panic.
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file under a temporary name, removed unless it is given another one.
#[derive(Debug)]
pub(crate) struct Temporary(Option<NamedTempFile>);

impl Temporary {
    /// A new file in a folder, locked, with the permissions of `like`, or by default the permissions of any new
    /// file. Files that killed processes left in the folder are removed.
    ///
    /// # Errors
    /// If the folder takes no file.
    pub(crate) fn new_in(folder: &Path, like: Option<&Metadata>) -> io::Result<Temporary> {
        if SWEPT.lock().unwrap_or_else(PoisonError::into_inner).insert(folder.to_owned()) {
            sweep(folder);
        }
        let mut tries = 0;
        loop {
            let file = Temporary::unlocked_in(folder, like)?;
            tries += 1;
            if tries == TRIES || file.0.as_ref().is_some_and(|file| claim(file.as_file())) {
                return Ok(file);
            }
        }
    }

    fn unlocked_in(folder: &Path, like: Option<&Metadata>) -> io::Result<Temporary> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(PREFIX).suffix(SUFFIX).rand_bytes(RANDOM);
        make_sure_of_memory();
        let mut names = names();
        // What any other program would give a new file: the umask applies. Errors are those of the system.
        let mut options = File::options();
        options.read(true).write(true).create_new(true);
        if let Some(like) = like {
            for_owner_only(&mut options, like);
        }
        let file = builder.make_in(folder, |path| options.open(path))?;
        if let Some(like) = like {
            permit(file.as_file(), like);
        }
        names.push(file.path().to_owned());
        Ok(Temporary(Some(file)))
    }

    /// Copies the permissions of another file.
    pub(crate) fn permit_like(&mut self, like: &Metadata) {
        permit(self.file(), like);
    }

    /// The file.
    pub(crate) fn file(&mut self) -> &mut File {
        self.0.as_mut().expect("only `rename` and `drop` take the file out").as_file_mut()
    }
}

/// Restricts a new file to its owner, without any permission that `like` lacks.
#[cfg(unix)]
fn for_owner_only(options: &mut OpenOptions, like: &Metadata) {
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
    options.mode(like.mode() & 0o700);
}

#[cfg(not(unix))]
fn for_owner_only(_: &mut OpenOptions, _: &Metadata) {}

/// Gives a file the owner, group and permission bits of another one, as far as the process may. A group that
/// the process may not set gets no more permissions than others. If the file system refuses a change, the file
/// has less permissions, never more.
#[cfg(unix)]
fn permit(file: &File, like: &Metadata) {
    use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
    let same_group = || file.metadata().is_ok_and(|m| m.gid() == like.gid());
    if !file.metadata().is_ok_and(|m| m.uid() == like.uid()) {
        fchown(file, Some(like.uid()), Some(like.gid())).ok();
    }
    if !same_group() {
        fchown(file, None, Some(like.gid())).ok();
    }
    let bits = like.mode() & 0o777;
    let bits = if same_group() { bits } else { bits & !0o070 | bits & (bits << 3) & 0o070 };
    file.set_permissions(fs::Permissions::from_mode(bits)).ok();
}

#[cfg(not(unix))]
fn permit(_: &File, _: &Metadata) {}

/// Locks a new file. `false` if another process removed it as a left-over, in the moment before it had its
/// lock.
fn claim(file: &File) -> bool {
    match file.try_lock() {
        Ok(()) => has_name(file),
        Err(fs::TryLockError::WouldBlock) => false,
        Err(fs::TryLockError::Error(_)) => true,
    }
}

#[cfg(unix)]
fn has_name(file: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    file.metadata().is_ok_and(|m| m.nlink() > 0)
}

#[cfg(not(unix))]
fn has_name(_: &File) -> bool {
    true
}

/// Removes the temporary files in a folder whose writers are gone. Files that cannot be examined stay.
fn sweep(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten().filter(|entry| is_temporary(&entry.file_name())) {
        let path = entry.path();
        if let Some(_held) = left(&path) {
            fs::remove_file(&path).ok();
        }
    }
}

/// True if a file has the name of a temporary one.
pub(crate) fn is_temporary(name: &OsStr) -> bool {
    let name = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
    let random = name.and_then(|rest| rest.strip_suffix(SUFFIX));
    random.is_some_and(|r| r.len() == RANDOM && r.bytes().all(|b| b.is_ascii_alphanumeric()))
}

/// The file at a path with its lock, if no process holds the lock.
fn left(path: &Path) -> Option<File> {
    let seen = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file)?;
    let file = File::open(path).ok()?;
    file.try_lock().ok()?;
    (FileId::of(&file.metadata().ok()?) == FileId::of(&seen)).then_some(file)
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(file) = self.0.take() {
            let mut names = names();
            names.retain(|name| name != file.path());
            drop(file);
        }
    }
}

/// A lock on the list of temporary files, which the handler of signals waits for: while this lives, no signal ends the
/// program, so that files that belong together are renamed together.
#[derive(Debug)]
pub(crate) struct Renaming {
    names: MutexGuard<'static, Vec<PathBuf>>,
}

impl Renaming {
    /// Waits for the lock.
    pub(crate) fn start() -> Renaming {
        make_sure_of_memory();
        Renaming { names: names() }
    }

    /// Gives a file its name, and returns true if it replaced a file.
    ///
    /// # Errors
    /// If the name is taken and `force` is not set, or the system refuses; the temporary file is removed then.
    pub(crate) fn rename(&mut self, mut file: Temporary, to: &Path, force: bool) -> io::Result<bool> {
        let file = file.0.take().expect("only `rename` and `drop` take the file out");
        let temporary = file.path().to_owned();
        let there = fs::symlink_metadata(to).is_ok();
        let renamed = if force { file.persist(to) } else { file.persist_noclobber(to) };
        self.names.retain(|name| *name != temporary);
        // Dropping the error removes the file.
        renamed.map(|_| there).map_err(|e| e.error)
    }
}

/// No temporary file is made, renamed or left while this lives.
#[derive(Debug)]
pub struct Discarded {
    _names: MutexGuard<'static, Vec<PathBuf>>,
}

/// As [`discard_all`], for a thread that may hold the lock on the list itself, because an allocation failed while it held
/// it. It gives up after a second, and then the files stay.
#[must_use = "the process must end while this lives"]
pub fn discard_soon() -> Option<Discarded> {
    for _ in 0..100 {
        let mut names = match NAMES.try_lock() {
            Ok(names) => names,
            Err(sync::TryLockError::Poisoned(names)) => names.into_inner(),
            Err(sync::TryLockError::WouldBlock) => {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            }
        };
        names.drain(..).for_each(|path| remove(&path));
        return Some(Discarded { _names: names });
    }
    None
}

/// Removes a temporary file, or a folder with temporary files and links.
fn remove(path: &Path) {
    if fs::remove_file(path).is_err() {
        fs::remove_dir_all(path).ok();
    }
}

/// Allocates and frees more than is allocated while the list is locked. If there is no memory left, the program then
/// ends here, where [`discard_soon`] can still take the lock, and not while it is held.
fn make_sure_of_memory() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(16 << 10)));
}

/// Removes all temporary files of the process. To be called when the program is about to end; other threads
/// fail to write or to rename their files from then on.
#[must_use = "the process must end while this lives"]
pub fn discard_all() -> Discarded {
    let mut names = names();
    names.drain(..).for_each(|path| remove(&path));
    Discarded { _names: names }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_in(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn what_a_killed_writer_left_goes_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let others = [".ampc-abc.tmp", ".ampc-abcdefg.tmp", ".ampc-abc_ef.tmp", "ampc-abcdef.tmp", "m.onnx"];
        for name in [".ampc-abcdef.tmp", ".ampc-held01.tmp"].iter().chain(&others) {
            fs::write(at(name), b"x").unwrap();
        }
        fs::create_dir(at(".ampc-folder.tmp")).unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink(at("m.onnx"), at(".ampc-linked.tmp")).unwrap();
        let held = File::open(at(".ampc-held01.tmp")).unwrap();
        held.lock().unwrap();
        let mine = Temporary::new_in(folder.path(), None).unwrap();
        let is_there = || mine.0.as_ref().is_some_and(|file| file.path().exists());
        let there = names_in(folder.path());
        assert!(!there.contains(&".ampc-abcdef.tmp".to_owned()), "{there:?}");
        for name in others.iter().chain(&[".ampc-held01.tmp", ".ampc-folder.tmp"]) {
            assert!(there.contains(&(*name).to_owned()), "{name}: {there:?}");
        }
        #[cfg(unix)]
        assert!(there.contains(&".ampc-linked.tmp".to_owned()));
        assert!(is_there(), "one that is being written is not taken for one that was left");
        sweep(folder.path());
        assert!(is_there());
        drop(held);
        sweep(folder.path());
        assert!(!at(".ampc-held01.tmp").exists());
    }

    #[test]
    fn errors_are_those_of_the_system() {
        let folder = tempfile::tempdir().unwrap();
        let error = Temporary::new_in(&folder.path().join("none"), None).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(2), "{error}");
        assert!(!error.to_string().contains(PREFIX), "{error}");
    }
}
