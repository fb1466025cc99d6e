//! NVRTC: kernels are compiled by g++ behind `device.h`. The image of a program is the path of a shared object.
//!
//! Shared objects stay in the folder that `AMPC_SIM_OBJECTS` names, by a hash of header and text, so that later runs find
//! them. Without a name they are in a folder of the process.

use crate::faults::{self, fault};
use crate::races;
use cudarc::nvrtc::sys::{nvrtcProgram, nvrtcResult};
use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_int};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use std::sync::{Condvar, Mutex, PoisonError};

const HEADER: &str = include_str!("device.h");

/// Before the path of an image.
pub(crate) const MAGIC: &[u8] = b"cuda-sim:";

struct Program {
    text: String,
    log: Vec<u8>,
    image: Vec<u8>,
}

/// The files that are being compiled, and a signal that one is done. Each file is written by one thread.
static COMPILING: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
static COMPILED: Condvar = Condvar::new();

/// The right to write a file.
struct Writing(PathBuf);

impl Writing {
    /// Waits until no other thread writes the file.
    fn of(file: &Path) -> Writing {
        let open = COMPILING.lock().unwrap_or_else(PoisonError::into_inner);
        let mut open =
            COMPILED.wait_while(open, |open| open.contains(file)).unwrap_or_else(PoisonError::into_inner);
        open.insert(file.to_owned());
        Writing(file.to_owned())
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        COMPILING.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
        COMPILED.notify_all();
    }
}

const FLAGS: &[&str] = &["-std=c++17", "-O1", "-w", "-fPIC", "-ffp-contract=off", "-fno-threadsafe-statics"];

/// Instructions in PTX as calls: `asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));` is `y = ptx_cvt_f32_f16(x);`.
fn without_asm(text: &str) -> String {
    let mut parts = text.split("asm(\"");
    let mut made = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (statement, rest) = part.split_once(");").unwrap_or((part, ""));
        let name = statement.split([' ', '"']).next().unwrap_or_default().replace('.', "_");
        let mut operands = statement.split("\"(").skip(1).map(|x| x.split(')').next().unwrap_or_default());
        let to = operands.next().unwrap_or_default();
        let from: Vec<&str> = operands.collect();
        made += &format!("{to} = ptx_{name}({});{rest}", from.join(", "));
    }
    made
}

/// A hash of text, FNV-1a.
fn hash_of(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The name of the kernel of a text.
fn entry_of(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("extern \"C\" __global__ void ")?;
    let rest = match rest.strip_prefix("__launch_bounds__(") {
        Some(bounded) => bounded.split_once(')')?.1,
        None => rest,
    };
    rest.split_once('(').map(|(name, _)| name.trim())
}

/// Runs g++.
fn compiled(args: &[&str], paths: [&Path; 2]) -> Result<(), Vec<u8>> {
    let [source, object] = paths;
    let done = Command::new("g++").args(FLAGS).args(args).arg("-o").arg(object).arg(source).output();
    match done {
        Ok(done) if done.status.success() => Ok(()),
        Ok(done) => Err(done.stderr),
        Err(error) => Err(format!("g++: {error}").into_bytes()),
    }
}

/// The folder of objects, with the header compiled.
fn folder() -> Result<PathBuf, Vec<u8>> {
    let failed = |error: std::io::Error| error.to_string().into_bytes();
    let parent = match std::env::var_os("AMPC_SIM_OBJECTS") {
        Some(folder) => PathBuf::from(folder),
        None => std::env::temp_dir().join(format!("cuda-sim-{}", std::process::id())),
    };
    let folder = parent.join(format!("{:016x}", hash_of(&format!("{HEADER}{FLAGS:?}"))));
    let header = folder.join("device.h");
    let _writing = Writing::of(&header);
    if !header.with_extension("h.gch").exists() {
        fs::create_dir_all(&folder).map_err(failed)?;
        let part = header.with_extension(format!("{}.part", std::process::id()));
        // Other processes may include the header: it is never incomplete.
        fs::write(&part, HEADER).map_err(failed)?;
        fs::rename(&part, &header).map_err(failed)?;
        compiled(&["-x", "c++-header"], [&header, &part])?;
        fs::rename(part, header.with_extension("h.gch")).map_err(failed)?;
    }
    Ok(folder)
}

/// The image of a text.
pub(crate) fn image_of(text: &str) -> Result<Vec<u8>, Vec<u8>> {
    Ok([MAGIC, compile(text)?.as_os_str().as_encoded_bytes(), b"\0"].concat())
}

/// Compiles a text to a shared object.
fn compile(text: &str) -> Result<PathBuf, Vec<u8>> {
    let folder = folder()?;
    let finds_races = races::are_found();
    let object = folder.join(format!("{:016x}{}.so", hash_of(text), if finds_races { "-races" } else { "" }));
    let _writing = Writing::of(&object);
    if let Some(texts) = std::env::var_os("AMPC_SIM_TEXTS") {
        let text_file = PathBuf::from(texts).join(format!("{:016x}.cu", hash_of(text)));
        fs::write(text_file, text).map_err(|error| error.to_string())?;
    }
    if object.exists() {
        return Ok(object);
    }
    let waits = ["__syncthreads", "__syncwarp", "_sync("].iter().any(|operation| text.contains(operation));
    let name = entry_of(text).ok_or("no kernel is extern \"C\"")?;
    let whole = format!(
        "{}#include \"device.h\"\n#line 1\n{}\nextern \"C\" int sim_waits() {{ return {}; }}\nextern \"C\" int \
         sim_arguments() {{ return sim_count({name}); }}\nextern \"C\" void sim_entry(void **args) {{ sim_call({name}, \
         args); }}\nextern \"C\" const char *sim_name() {{ return \"{name}\"; }}\n",
        if finds_races { "#define SIM_RACES\n" } else { "" },
        without_asm(text),
        u8::from(waits),
    );
    let source = object.with_extension(format!("{}.cpp", std::process::id()));
    fs::write(&source, whole).map_err(|error| error.to_string())?;
    let part = source.with_extension("part");
    if finds_races {
        // The hooks of device.h take the place of the sanitizer's library, which is not linked.
        let plain = source.with_extension("o");
        compiled(&["-c", "-fsanitize=thread", "-fno-gnu-unique"], [&source, &plain])?;
        compiled(&["-shared"], [&plain, &part])?;
        let _ = fs::remove_file(plain);
    } else {
        compiled(&["-shared"], [&source, &part])?;
    }
    fs::rename(part, &object).map_err(|error| error.to_string())?;
    let _ = fs::remove_file(source);
    Ok(object)
}

unsafe fn program<'a>(program: nvrtcProgram) -> &'a mut Program {
    // SAFETY: the caller has it from `nvrtcCreateProgram`.
    unsafe { &mut *program.cast() }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetErrorString(_: nvrtcResult) -> *const c_char {
    c"an error of the simulated NVRTC".as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> nvrtcResult {
    fault!("nvrtcVersion");
    let (of_major, of_minor) = faults::version("AMPC_SIM_NVRTC");
    // SAFETY: the caller gives places.
    unsafe { (*major, *minor) = (of_major, of_minor) };
    nvrtcResult::NVRTC_SUCCESS
}

/// The architectures that NVRTC 13.0 compiles for.
const ARCHITECTURES: [c_int; 12] = [75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121];

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetNumSupportedArchs(count: *mut c_int) -> nvrtcResult {
    fault!("nvrtcGetNumSupportedArchs");
    // SAFETY: the caller gives a place.
    unsafe { *count = c_int::try_from(ARCHITECTURES.len()).unwrap_or(0) };
    nvrtcResult::NVRTC_SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetSupportedArchs(list: *mut c_int) -> nvrtcResult {
    fault!("nvrtcGetSupportedArchs");
    // SAFETY: the caller gives as many places.
    unsafe { list.copy_from_nonoverlapping(ARCHITECTURES.as_ptr(), ARCHITECTURES.len()) };
    nvrtcResult::NVRTC_SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcCreateProgram(
    made: *mut nvrtcProgram,
    text: *const c_char,
    _name: *const c_char,
    _headers: c_int,
    _texts: *const *const c_char,
    _names: *const *const c_char,
) -> nvrtcResult {
    fault!("nvrtcCreateProgram");
    // SAFETY: the text ends with a zero, as NVRTC asks.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    let program = Box::new(Program { text, log: Vec::new(), image: Vec::new() });
    // SAFETY: the caller gives a place.
    unsafe { *made = Box::into_raw(program).cast() };
    nvrtcResult::NVRTC_SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcDestroyProgram(at: *mut nvrtcProgram) -> nvrtcResult {
    fault!("nvrtcDestroyProgram");
    // SAFETY: the caller has it from `nvrtcCreateProgram`, and destroys it once.
    drop(unsafe { Box::from_raw((*at).cast::<Program>()) });
    nvrtcResult::NVRTC_SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcCompileProgram(
    at: nvrtcProgram,
    _count: c_int,
    _options: *const *const c_char,
) -> nvrtcResult {
    fault!("nvrtcCompileProgram");
    // SAFETY: the program is alive.
    let program = unsafe { program(at) };
    match image_of(&program.text) {
        Ok(image) => {
            program.image = image;
            nvrtcResult::NVRTC_SUCCESS
        }
        Err(log) => {
            program.log = log;
            nvrtcResult::NVRTC_ERROR_COMPILATION
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetProgramLogSize(at: nvrtcProgram, size: *mut usize) -> nvrtcResult {
    fault!("nvrtcGetProgramLogSize");
    // SAFETY: the program is alive, and the caller gives a place.
    unsafe { *size = program(at).log.len() + 1 };
    nvrtcResult::NVRTC_SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetProgramLog(at: nvrtcProgram, log: *mut u8) -> nvrtcResult {
    fault!("nvrtcGetProgramLog");
    // SAFETY: the program is alive, and the place has the size that it says.
    unsafe {
        let from = &program(at).log;
        log.copy_from_nonoverlapping(from.as_ptr(), from.len());
        *log.add(from.len()) = 0;
    }
    nvrtcResult::NVRTC_SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetCUBINSize(at: nvrtcProgram, size: *mut usize) -> nvrtcResult {
    fault!("nvrtcGetCUBINSize");
    // SAFETY: the program is alive, and the caller gives a place.
    unsafe { *size = program(at).image.len() };
    nvrtcResult::NVRTC_SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcGetCUBIN(at: nvrtcProgram, image: *mut u8) -> nvrtcResult {
    fault!("nvrtcGetCUBIN");
    // SAFETY: the program is alive, and the place has the size that it says.
    unsafe {
        let from = &program(at).image;
        image.copy_from_nonoverlapping(from.as_ptr(), from.len());
    }
    nvrtcResult::NVRTC_SUCCESS
}

#[cfg(test)]
mod tests {
    #[test]
    fn instructions_are_calls() {
        let text = "{ u16 y; asm(\"cvt.rn.f16.f32 %0, %1;\" : \"=h\"(y) : \"f\"(x)); return y; }";
        assert_eq!(super::without_asm(text), "{ u16 y; y = ptx_cvt_rn_f16_f32(x); return y; }");
    }
}
