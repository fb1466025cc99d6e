//! Matrix products of cuBLASLt. Our matrices are row-major and cuBLASLt's are column-major, so cuBLASLt computes the
//! transposed product, with the operands exchanged.

mod descriptors;

use self::descriptors::{Description, Layout, Preference, algorithm_text, bytes_of, failed, type_of};
use super::choices::Recorded;
use super::kernels::library::Activation;
use super::queue::CudaQueue;
use super::text::Elem;
use crate::kernel::{KernelError, Result};
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use std::borrow::Borrow;
use std::ffi::c_void;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// The maximum workspace of a product in bytes.
const WORKSPACE: usize = 32 << 20;

/// The alignment of tensors, in bytes.
const ALIGNMENT: u32 = 256;

/// The handle of cuBLASLt, shared between threads.
#[derive(Clone)]
pub(super) struct Products {
    handle: Arc<Handle>,
    /// True if f32 products may use TF32.
    tf32: bool,
    choices: Arc<Recorded>,
}

struct Handle(sys::cublasLtHandle_t);

// SAFETY: NVIDIA's documentation permits the use of a handle by several threads.
#[expect(unsafe_code, reason = "the handle is a pointer")]
unsafe impl Send for Handle {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "the handle is a pointer")]
unsafe impl Sync for Handle {}

impl Drop for Handle {
    #[expect(unsafe_code, reason = "a call of cuBLASLt")]
    fn drop(&mut self) {
        // SAFETY: the handle is destroyed once. Nothing can be done about a failure.
        let _ = unsafe { result::destroy_handle(self.0) };
    }
}

/// The product of row-major matrices, `m` × `k` and `k` × `n`; each may be stored transposed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) transposed: [bool; 2],
    /// The number of products, and the distance in elements between consecutive matrices of each operand.
    pub(super) batch: usize,
    pub(super) strides: [usize; 2],
    pub(super) alpha: f32,
    pub(super) elem: Elem,
    pub(super) to: Elem,
    /// True if a vector of `n` elements is added to each row (bias epilogue).
    pub(super) has_bias: bool,
    /// The activation of the epilogue, applied before the sums are rounded.
    pub(super) activation: Option<Activation>,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { m, n, k, transposed: [trans_a, trans_b], batch, elem, to, .. } = *self;
        write!(f, "{batch} products of {elem:?}[{m}, {k}] and [{k}, {n}] to {to:?}")?;
        for (is_there, what) in [
            (trans_a, "first transposed"),
            (trans_b, "second transposed"),
            (self.has_bias, "bias"),
            (self.activation == Some(Activation::Relu), "ReLU"),
            (self.activation == Some(Activation::GeluTanh), "GELU"),
        ] {
            if is_there {
                write!(f, ", {what}")?;
            }
        }
        Ok(())
    }
}

/// The version of the loaded cuBLASLt, in NVIDIA's numbering.
#[expect(unsafe_code, reason = "a call of cuBLASLt")]
pub(super) fn version() -> usize {
    // SAFETY: the library is loaded, and has the function.
    unsafe { sys::cublasLtGetVersion() }
}

/// The addresses of operands, bias, result and workspace.
pub(super) struct Places {
    pub(super) a: u64,
    pub(super) b: u64,
    pub(super) bias: u64,
    pub(super) to: u64,
    pub(super) workspace: u64,
}

/// A product that is ready to run.
pub(super) struct Product {
    shape: Shape,
    /// The alignment of operands and results that the algorithm requires.
    alignment: u32,
    /// Products for addresses with a smaller alignment, created on demand.
    others: Mutex<Vec<Arc<Product>>>,
    products: Products,
    /// Locked while the address of the bias is set.
    description: Mutex<Description>,
    layouts: [Layout; 3],
    algorithm: sys::cublasLtMatmulAlgo_t,
    workspace: usize,
}

impl Products {
    /// # Errors
    /// If cuBLASLt cannot be initialised.
    pub(super) fn new(tf32: bool, choices: Arc<Recorded>) -> Result<Products, CublasError> {
        Ok(Products { handle: Arc::new(Handle(result::create_handle()?)), tf32, choices })
    }

    /// True if f32 products may use TF32.
    pub(super) fn tf32(&self) -> bool {
        self.tf32
    }

    /// Prepares a product with the algorithm that cuBLASLt's heuristics rank first.
    ///
    /// # Errors
    /// If cuBLASLt has no algorithm.
    pub(super) fn product(&self, shape: &Shape) -> Result<Product> {
        self.product_at(shape, ALIGNMENT)
    }

    /// Like [`product`](Self::product), for matrices whose addresses are multiples of `alignment` bytes.
    ///
    /// # Errors
    /// If cuBLASLt has no algorithm.
    pub(super) fn product_at(&self, shape: &Shape, alignment: u32) -> Result<Product> {
        self.product_within(shape, alignment, WORKSPACE)
    }

    /// Like [`product_at`](Self::product_at), with at most `workspace` bytes of workspace.
    fn product_within(&self, shape: &Shape, alignment: u32, workspace: usize) -> Result<Product> {
        let unsupported = || KernelError::unsupported(format!("a product of {:?}", shape.elem));
        let (elem, to) = (type_of(shape.elem), type_of(shape.to));
        let (elem, to) = (elem.ok_or_else(unsupported)?, to.ok_or_else(unsupported)?);
        let Shape { m, n, k, transposed: [trans_a, trans_b], .. } = *shape;
        // Sums accumulate in f32.
        let compute = match shape.elem {
            Elem::F32 if self.tf32 => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32,
            _ => sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
        };
        let description = result::create_matmul_desc(compute, sys::cudaDataType_t::CUDA_R_32F);
        let description = Description(description.map_err(failed)?);
        type Attribute = sys::cublasLtMatmulDescAttributes_t;
        description.set_transposed(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, trans_b)?;
        description.set_transposed(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, trans_a)?;
        type Epilogue = sys::cublasLtEpilogue_t;
        let epilogue = match (shape.activation, shape.has_bias) {
            (None, false) => None,
            (None, true) => Some(Epilogue::CUBLASLT_EPILOGUE_BIAS),
            (Some(Activation::Relu), false) => Some(Epilogue::CUBLASLT_EPILOGUE_RELU),
            (Some(Activation::Relu), true) => Some(Epilogue::CUBLASLT_EPILOGUE_RELU_BIAS),
            (Some(Activation::GeluTanh), false) => Some(Epilogue::CUBLASLT_EPILOGUE_GELU),
            (Some(Activation::GeluTanh), true) => Some(Epilogue::CUBLASLT_EPILOGUE_GELU_BIAS),
        };
        if let Some(epilogue) = epilogue {
            description.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
        }
        let [stride_a, stride_b] = shape.strides;
        let batch = shape.batch;
        let layouts = [
            if trans_b {
                Layout::new(elem, k, n, batch, stride_b)?
            } else {
                Layout::new(elem, n, k, batch, stride_b)?
            },
            if trans_a {
                Layout::new(elem, m, k, batch, stride_a)?
            } else {
                Layout::new(elem, k, m, batch, stride_a)?
            },
            Layout::new(to, n, m, batch, m * n)?,
        ];
        let preference = Preference(result::create_matmul_pref().map_err(failed)?);
        type PreferenceAttribute = sys::cublasLtMatmulPreferenceAttributes_t;
        preference.set(PreferenceAttribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace)?;
        // Partial sums of a split-K product are added in f32, so that a result is rounded once.
        let scheme = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        preference.set(PreferenceAttribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &scheme)?;
        for least in [
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            PreferenceAttribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            preference.set(least, &alignment)?;
        }
        let [b, a, d] = &layouts;
        #[expect(unsafe_code, reason = "a call of cuBLASLt")]
        // SAFETY: all descriptors are alive.
        let found = unsafe {
            result::get_matmul_algo_heuristic(self.handle.0, description.0, b.0, a.0, d.0, d.0, preference.0)
        };
        let found = found.map_err(failed)?;
        // Everything that the heuristic sees.
        let Shape { strides, alpha, .. } = shape;
        let operation = format!(
            "{shape}, strides {strides:?}, alpha {alpha}, aligned to {alignment}, at most {workspace} bytes of workspace, TF32 {}",
            self.tf32
        );
        self.choices.add(operation, algorithm_text(&found.algo));
        Ok(Product {
            shape: *shape,
            alignment,
            others: Mutex::default(),
            products: self.clone(),
            description: Mutex::new(description),
            layouts,
            algorithm: found.algo,
            workspace: found.workspaceSize,
        })
    }
}

/// The largest power of two, at most `most`, that divides all `numbers`, such as addresses and offsets. Every power
/// of two divides 0.
pub(super) fn alignment_of(numbers: impl IntoIterator<Item = impl Borrow<u64>>, most: u32) -> u32 {
    let all = numbers.into_iter().fold(u64::from(most), |all, number| all | number.borrow());
    1 << all.trailing_zeros()
}

impl Product {
    /// The size of the workspace in bytes.
    pub(super) fn workspace(&self) -> usize {
        self.workspace
    }

    /// Enqueues the product. Addresses may have a smaller alignment than the product was prepared for.
    ///
    /// # Errors
    /// If cuBLASLt fails, or has no algorithm for these addresses.
    pub(super) fn launch(&self, queue: &mut CudaQueue, places: &Places) -> Result<()> {
        let Places { a, b, bias, to, .. } = *places;
        let alignment = alignment_of([a, b, bias, to], self.alignment);
        if alignment == self.alignment {
            return self.launch_aligned(queue, places);
        }
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        let other = match others.iter().find(|other| other.alignment == alignment) {
            Some(other) => other.clone(),
            None => {
                let other = self.products.product_within(&self.shape, alignment, self.workspace)?;
                others.push(Arc::new(other));
                others[others.len() - 1].clone()
            }
        };
        drop(others);
        other.launch_aligned(queue, places)
    }

    #[expect(unsafe_code, reason = "a call of cuBLASLt")]
    fn launch_aligned(&self, queue: &mut CudaQueue, places: &Places) -> Result<()> {
        let stream = queue.stream().clone();
        stream.context().bind_to_thread().map_err(super::memory::failed)?;
        let description = self.description.lock().unwrap_or_else(PoisonError::into_inner);
        if self.shape.has_bias {
            let attribute = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
            description.set(attribute, &places.bias)?;
        }
        let [b, a, d] = &self.layouts;
        let (alpha, beta) = (bytes_of(&self.shape.alpha).0, bytes_of(&0f32).0);
        let pointer = |address: u64| address as *const c_void;
        // SAFETY: all descriptors are alive, and the addresses are those of matrices that they describe.
        let done = unsafe {
            result::matmul(
                self.products.handle.0,
                description.0,
                alpha,
                beta,
                pointer(places.b),
                b.0,
                pointer(places.a),
                a.0,
                pointer(places.to),
                d.0,
                places.to as *mut c_void,
                d.0,
                &raw const self.algorithm,
                places.workspace as *mut c_void,
                self.workspace,
                stream.cu_stream().cast(),
            )
        };
        drop(description);
        done.map_err(|error| queue.failure_of_device().map_or_else(|| failed(error), KernelError::from))?;
        Ok(queue.launched()?)
    }
}

#[cfg(test)]
mod tests {
    use super::alignment_of;

    #[test]
    fn alignment_of_addresses() {
        assert_eq!(alignment_of([0x1000, 0, 0x2000], 256), 256);
        assert_eq!(alignment_of([0x1000, 0x2010], 256), 16);
        assert_eq!(alignment_of([0x1002, 0x2010], 16), 2);
    }
}
