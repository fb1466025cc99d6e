//! Compilation of kernels, and the kernels that were compiled.

use crate::backend::KernelError;
use cudarc::driver::{CudaContext, CudaFunction};
use cudarc::nvrtc::{Ptx, result, sys};
use rustc_hash::FxHashMap;
use std::ffi::{CStr, CString};
use std::sync::{Arc, Mutex, PoisonError};

/// The name of the function in each text.
pub(super) const ENTRY: &str = "run";

pub(super) struct Compiler {
    context: Arc<CudaContext>,
    architecture: String,
    /// Functions by their texts.
    functions: Mutex<FxHashMap<String, CudaFunction>>,
    /// The values that kernels expect, for errors.
    messages: Mutex<Vec<String>>,
}

impl Compiler {
    pub(super) fn new(context: Arc<CudaContext>, (major, minor): (i32, i32)) -> Compiler {
        let architecture = format!("--gpu-architecture=sm_{major}{minor}");
        Compiler { context, architecture, functions: Mutex::default(), messages: Mutex::default() }
    }

    /// The number of different texts.
    pub(super) fn len(&self) -> usize {
        self.functions.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// The function of a text.
    ///
    /// # Errors
    /// If the compiler or the driver refuses the text: an error of the backend.
    pub(super) fn function(&self, text: &str) -> Result<CudaFunction, KernelError> {
        let known = self.functions.lock().unwrap_or_else(PoisonError::into_inner).get(text).cloned();
        if let Some(function) = known {
            return Ok(function);
        }
        let refused = |error: String| KernelError::unsupported(format!("a kernel: {error}"));
        let image = compiled(text, &self.architecture).map_err(refused)?;
        let module = self.context.load_module(Ptx::from_binary(image));
        let function = module.and_then(|module| module.load_function(ENTRY));
        let function = function.map_err(|error| refused(error.to_string()))?;
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        functions.insert(text.to_owned(), function.clone());
        Ok(function)
    }

    /// The number of the values that a kernel expects, for errors.
    pub(super) fn expects(&self, values: String) -> u32 {
        let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
        let at = messages.iter().position(|known| *known == values).unwrap_or(messages.len());
        if at == messages.len() {
            messages.push(values);
        }
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    pub(super) fn message(&self, at: usize) -> String {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner).get(at).cloned().unwrap_or_default()
    }
}

/// A program of NVRTC.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    #[expect(unsafe_code, reason = "a call of NVRTC")]
    fn drop(&mut self) {
        // SAFETY: the program is destroyed once. Nothing can be done about a failure.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

/// Machine code for an architecture. Products and sums are not fused, so that elements round as operators do one by one.
#[expect(unsafe_code, reason = "calls of NVRTC")]
fn compiled(text: &str, architecture: &str) -> Result<Vec<u8>, String> {
    let source = CString::new(text).map_err(|error| error.to_string())?;
    let program = Program(result::create_program(&source, None).map_err(|error| error.to_string())?);
    // SAFETY: the program is alive.
    let done = unsafe { result::compile_program(program.0, &[architecture, "--fmad=false", "--std=c++17"]) };
    done.map_err(|error| {
        // SAFETY: the program is alive, and its log ends with a zero.
        let log = unsafe { result::get_program_log(program.0) }.unwrap_or_default();
        let log: Vec<u8> = log.into_iter().map(i8::cast_unsigned).collect();
        let log = CStr::from_bytes_until_nul(&log).map(|log| log.to_string_lossy().into_owned());
        format!("{error}: {}", log.unwrap_or_default())
    })?;
    let mut len = 0;
    // SAFETY: the program is alive and compiled.
    unsafe { sys::nvrtcGetCUBINSize(program.0, &raw mut len) }.result().map_err(|error| error.to_string())?;
    let mut image = vec![0u8; len];
    // SAFETY: as above, and the image has the length that NVRTC says.
    unsafe { sys::nvrtcGetCUBIN(program.0, image.as_mut_ptr().cast()) }
        .result()
        .map_err(|error| error.to_string())?;
    Ok(image)
}
