//! Calls of the dynamic loader.

use super::Library;
pub(super) use libloading::os::unix::Library as Handle;
use libloading::os::unix::{RTLD_LAZY, RTLD_LOCAL};
use std::ffi::{CStr, OsStr, c_char, c_uint, c_void};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// A function that returns a version.
type ReturnVersion = unsafe extern "C" fn() -> usize;

/// Calls a function of a library that returns a number.
#[expect(unsafe_code, reason = "a call of a function that was looked up by name")]
pub(super) fn returned(handle: &Handle, function: &str) -> Option<u32> {
    let function = symbol(handle, function)?;
    // SAFETY: all callers pass names of functions of this type.
    let function = unsafe { std::mem::transmute::<*mut c_void, ReturnVersion>(function) };
    // SAFETY: as above.
    u32::try_from(unsafe { function() }).ok()
}

/// Loads a library from a file, unless the file is [damaged], with the flags that `cudarc` uses.
pub(super) fn dlopen_file(path: &Path) -> Result<Handle, String> {
    match damaged(path) {
        Some(reason) => Err(reason),
        None => dlopen(path.as_os_str()),
    }
}

/// Loads a library by its name, with the flags that `cudarc` uses. The caller has looked for [damaged] files.
#[expect(unsafe_code, reason = "a library runs code when it is loaded")]
pub(super) fn dlopen(name: &OsStr) -> Result<Handle, String> {
    // SAFETY: the names are those of NVIDIA's libraries, whose initialisers may run at any time.
    unsafe { Handle::open(Some(name), RTLD_LAZY | RTLD_LOCAL) }.map_err(|error| {
        // libloading puts the loader's message after its own.
        let source = std::error::Error::source(&error).map(ToString::to_string);
        source.unwrap_or_else(|| error.to_string())
    })
}

/// The address of a function of a library.
#[expect(unsafe_code, reason = "a call of the dynamic loader")]
pub(super) fn symbol(handle: &Handle, name: &str) -> Option<*mut c_void> {
    // SAFETY: only callers that know the type of the function call the address.
    let found = unsafe { handle.get::<*mut c_void>(name.as_bytes()) };
    found.ok().map(|symbol| symbol.into_raw()).filter(|address| !address.is_null())
}

/// The reason why the loader must not read a file: it waits for the writer of a pipe, and the process ends with SIGBUS if
/// a file ends before its segments. `None` for other files, also for those that the loader rejects.
pub(super) fn damaged(path: &Path) -> Option<String> {
    let metadata = std::fs::metadata(path).ok()?;
    if !metadata.is_file() {
        return Some("it is not a regular file".to_owned());
    }
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(1 << 16).read_to_end(&mut bytes).ok()?;
    let number = |at: usize, len: usize| {
        let bytes = bytes.get(at..at + len)?;
        Some(bytes.iter().rev().fold(0u64, |number, &byte| number << 8 | u64::from(byte)))
    };
    // The header of a 64-bit ELF file, and its program headers (System V ABI, chapter 5).
    let is_elf = bytes.starts_with(b"\x7fELF\x02\x01");
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    if !is_elf {
        return None;
    }
    let ends = (0..count).filter_map(|header| {
        let at = usize::try_from(table.checked_add(header * size)?).ok()?;
        let is_loaded = number(at, 4)? == 1;
        Some(number(at + 8, 8)?.saturating_add(number(at + 32, 8)?)).filter(|_| is_loaded)
    });
    let (expected, found) = (ends.max()?, metadata.len());
    let install = "the file is incomplete; install its package again";
    (expected > found).then(|| format!("expected at least {expected} bytes, found {found}: {install}"))
}

/// The folders in which the dynamic loader searches, those of `LD_LIBRARY_PATH` first. Folders of its cache are missing.
#[expect(unsafe_code, reason = "calls of the dynamic loader")]
pub(super) fn loader_folders() -> Vec<PathBuf> {
    /// `Dl_serinfo` of glibc, and one `Dl_serpath` for each folder.
    #[repr(C)]
    struct Header {
        size: usize,
        count: c_uint,
    }
    #[repr(C)]
    struct Folder {
        name: *const c_char,
        flags: c_uint,
    }
    let program = Handle::this().into_raw();
    let mut header = Header { size: 0, count: 0 };
    // SAFETY: the call writes the size and the number of folders.
    if unsafe { libc::dlinfo(program, libc::RTLD_DI_SERINFOSIZE, (&raw mut header).cast()) } != 0 {
        return Vec::new();
    }
    // Of 8-byte words, for the alignment of the structure.
    let mut buffer = vec![0u64; header.size.div_ceil(8)];
    let start = buffer.as_mut_ptr().cast::<u8>();
    // SAFETY: the buffer has the size that the loader wants, which the first call also writes into it.
    unsafe {
        start.cast::<Header>().write(header);
        if libc::dlinfo(program, libc::RTLD_DI_SERINFO, start.cast()) != 0 {
            return Vec::new();
        }
        let count = (*start.cast::<Header>()).count as usize;
        let folders = start.add(size_of::<Header>()).cast::<Folder>();
        let name = |at: usize| CStr::from_ptr((*folders.add(at)).name).to_bytes();
        (0..count).map(|at| PathBuf::from(OsStr::from_bytes(name(at)))).collect()
    }
}

/// The file that a library was loaded from, with its handle.
#[expect(unsafe_code, reason = "a call of the dynamic loader")]
pub(super) fn path_of(handle: Handle) -> (Handle, Option<PathBuf>) {
    /// The first fields of `struct link_map` of glibc.
    #[repr(C)]
    struct LinkMap {
        address: usize,
        name: *const c_char,
    }
    const RTLD_DI_LINKMAP: i32 = 2;
    let raw = handle.into_raw();
    let mut map: *const LinkMap = std::ptr::null();
    // SAFETY: the handle is open, and the call writes one pointer.
    let status = unsafe { libc::dlinfo(raw, RTLD_DI_LINKMAP, (&raw mut map).cast()) };
    // SAFETY: the map and its NUL-terminated name live as long as the library.
    let name = (status == 0 && !map.is_null()).then(|| unsafe { CStr::from_ptr((*map).name) });
    let path = name.map(|name| PathBuf::from(OsStr::from_bytes(name.to_bytes())));
    // SAFETY: the handle comes from `into_raw`.
    (unsafe { Handle::from_raw(raw) }, path.filter(|path| !path.as_os_str().is_empty()))
}

/// The address of a driver function, if the driver is installed.
pub(in crate::cuda) fn driver_function(name: &str) -> Option<*mut c_void> {
    let names = cudarc::get_lib_name_candidates(Library::Driver.stem());
    let handle = names.iter().find_map(|name| dlopen(name.as_ref()).ok())?;
    let function = symbol(&handle, name);
    // The driver stays loaded for the rest of the process.
    let _ = handle.into_raw();
    function
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incomplete_files_are_not_loaded() {
        let folder = std::env::temp_dir().join(format!("ampc-loader-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let program = std::env::current_exe().unwrap();
        let mut bytes = Vec::new();
        File::open(&program).unwrap().take(100_000).read_to_end(&mut bytes).unwrap();
        let (short, text) = (folder.join("short.so"), folder.join("text.so"));
        std::fs::write(&short, bytes).unwrap();
        std::fs::write(&text, "no library").unwrap();
        assert_eq!(damaged(&program), None);
        assert!(damaged(&short).unwrap().contains("found 100000"));
        assert_eq!(damaged(&folder), Some("it is not a regular file".to_owned()));
        // The loader itself rejects these.
        assert_eq!([&text, &folder.join("absent.so")].map(|path| damaged(path)), [None, None]);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
