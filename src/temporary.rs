//! Temporary files: they have another name until they are complete, and go with the process that made them.
//!
//! Whoever drops one removes it. A signal ends the program without dropping anything, so the names of all temporary
//! files are kept in one list: [`discard_all`] removes what is on it and holds the list, so that nothing is made or
//! renamed in the moment that is left. A file that the system would remove by itself (`O_TMPFILE`) cannot take a name
//! that another file has, and not every file system has such files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;
use tempfile::NamedTempFile;

/// Names of the temporary files that are there now.
static NAMES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn names() -> MutexGuard<'static, Vec<PathBuf>> {
    // A list of names is whole after any panic.
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file under a temporary name, removed unless it is given another one.
#[derive(Debug)]
pub(crate) struct Temporary(Option<NamedTempFile>);

impl Temporary {
    /// A new file in a folder.
    ///
    /// # Errors
    /// If the folder takes no file.
    pub(crate) fn new_in(folder: &Path) -> io::Result<Temporary> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(".ampc-").suffix(".tmp");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // What any other program would give a new file: the umask applies.
            builder.permissions(fs::Permissions::from_mode(0o666));
        }
        make_sure_of_memory();
        let mut names = names();
        let file = builder.tempfile_in(folder)?;
        names.push(file.path().to_owned());
        Ok(Temporary(Some(file)))
    }

    /// The file.
    pub(crate) fn file(&mut self) -> &mut fs::File {
        self.0.as_mut().expect("only `rename_all` and `drop` take the file out").as_file_mut()
    }
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

/// A temporary file and the name it is to have.
#[derive(Debug)]
pub(crate) struct Rename {
    pub(crate) file: Temporary,
    pub(crate) to: PathBuf,
    /// Whether a file of that name is replaced.
    pub(crate) force: bool,
}

/// Why [`rename_all`] stopped.
#[derive(Debug)]
pub(crate) struct RenameError {
    /// The name that could not be given.
    pub(crate) to: PathBuf,
    pub(crate) source: io::Error,
    /// Files that were replaced before.
    pub(crate) replaced: Vec<PathBuf>,
}

/// Gives files that belong together their names; no signal comes in between. If one fails, those that have their
/// names already are removed again, unless they replaced something.
///
/// # Errors
/// If a name is taken, or the system refuses.
pub(crate) fn rename_all(files: Vec<Rename>) -> Result<(), RenameError> {
    make_sure_of_memory();
    let mut names = names();
    let files: Vec<(NamedTempFile, PathBuf, bool)> = files
        .into_iter()
        .filter_map(|Rename { mut file, to, force }| Some((file.0.take()?, to, force)))
        .collect();
    let (mut added, mut replaced) = (Vec::new(), Vec::new());
    for (file, to, force) in files {
        let temporary = file.path().to_owned();
        let there = to.exists();
        let renamed = if force { file.persist(&to) } else { file.persist_noclobber(&to) };
        names.retain(|name| *name != temporary);
        match renamed {
            Ok(_) if there => replaced.push(to),
            Ok(_) => added.push(to),
            Err(error) => {
                for path in added {
                    fs::remove_file(path).ok();
                }
                return Err(RenameError { to, source: error.error, replaced });
            }
        }
    }
    Ok(())
}

/// No temporary file is made, renamed or left while this lives.
#[derive(Debug)]
pub struct Discarded {
    _names: MutexGuard<'static, Vec<PathBuf>>,
}

/// As [`discard_all`], for a thread that may hold the list itself, since it was refused memory while it did: then it
/// gives up after a second, and files stay.
#[must_use = "the process must end while this lives"]
pub fn discard_soon() -> Option<Discarded> {
    for _ in 0..100 {
        let mut names = match NAMES.try_lock() {
            Ok(names) => names,
            Err(TryLockError::Poisoned(names)) => names.into_inner(),
            Err(TryLockError::WouldBlock) => {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            }
        };
        for path in names.drain(..) {
            fs::remove_file(path).ok();
        }
        return Some(Discarded { _names: names });
    }
    None
}

/// What little things are made of while the list is held is asked for before, so that none of them is refused.
fn make_sure_of_memory() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(16 << 10)));
}

/// Removes all temporary files of the process. To be called when it is about to end; what others are writing fails
/// or has no name any more.
#[must_use = "the process must end while this lives"]
pub fn discard_all() -> Discarded {
    let mut names = names();
    for path in names.drain(..) {
        fs::remove_file(path).ok();
    }
    Discarded { _names: names }
}
