//! Calls of the dynamic loader.

use super::Library;
pub(super) use libloading::os::unix::Library as Handle;
use libloading::os::unix::{RTLD_LAZY, RTLD_LOCAL};
use std::ffi::{OsStr, c_void};

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

/// Loads a library by its path or name, with the flags that `cudarc` uses.
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

/// The address of a driver function, if the driver is installed.
pub(in crate::cuda) fn driver_function(name: &str) -> Option<*mut c_void> {
    let names = cudarc::get_lib_name_candidates(Library::Driver.stem());
    let handle = names.iter().find_map(|name| dlopen(name.as_ref()).ok())?;
    let function = symbol(&handle, name);
    // The driver stays loaded for the rest of the process.
    let _ = handle.into_raw();
    function
}
