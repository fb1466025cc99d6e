//! Matrix products of cuBLASLt. Matrices are in rows, those of cuBLASLt in columns: so the transposed product is computed,
//! of the second matrix with the first.

use super::queue::CudaQueue;
use super::text::Elem;
use crate::device::DeviceError;
use crate::kernel::{KernelError, Result};
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

/// The most bytes of memory that one product may take for itself.
const WORKSPACE: usize = 32 << 20;

/// The alignment of tensors, in bytes.
const ALIGNMENT: u32 = 256;

/// cuBLASLt, which threads share.
#[derive(Clone)]
pub(super) struct Products(Arc<Handle>);

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

/// A product of matrices in rows: `m` × `k` and `k` × `n`, each as it is or stored transposed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) transposed: [bool; 2],
    /// The number of products, and the elements from one matrix to the next of both operands.
    pub(super) batch: usize,
    pub(super) strides: [usize; 2],
    pub(super) alpha: f32,
    pub(super) elem: Elem,
    pub(super) to: Elem,
    /// True if a vector of `n` elements is added to each row.
    pub(super) has_bias: bool,
}

/// The addresses of a product.
pub(super) struct Places {
    pub(super) a: u64,
    pub(super) b: u64,
    pub(super) bias: u64,
    pub(super) to: u64,
    pub(super) workspace: u64,
}

/// A product that is ready to run.
pub(super) struct Product {
    products: Products,
    /// Locked while the address of the bias is set.
    description: Mutex<Description>,
    layouts: [Layout; 3],
    algorithm: sys::cublasLtMatmulAlgo_t,
    workspace: usize,
    alpha: f32,
    has_bias: bool,
}

struct Description(sys::cublasLtMatmulDesc_t);
struct Layout(sys::cublasLtMatrixLayout_t);
struct Preference(sys::cublasLtMatmulPreference_t);

// SAFETY: plain memory of cuBLASLt, without a thread of its own.
#[expect(unsafe_code, reason = "descriptors are pointers")]
unsafe impl Send for Description {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "descriptors are pointers")]
unsafe impl Send for Layout {}
// SAFETY: a layout is not changed once it is made.
#[expect(unsafe_code, reason = "descriptors are pointers")]
unsafe impl Sync for Layout {}

macro_rules! destroyed {
    ($type:ident, $destroy:path) => {
        impl Drop for $type {
            #[expect(unsafe_code, reason = "a call of cuBLASLt")]
            fn drop(&mut self) {
                // SAFETY: the value owns the descriptor. Nothing can be done about a failure.
                let _ = unsafe { $destroy(self.0) };
            }
        }
    };
}

destroyed!(Description, result::destroy_matmul_desc);
destroyed!(Layout, result::destroy_matrix_layout);
destroyed!(Preference, result::destroy_matmul_pref);

/// The address of a value, and its size.
fn bytes_of<T>(value: &T) -> (*const c_void, usize) {
    (std::ptr::from_ref(value).cast(), size_of::<T>())
}

/// The error of a failed call. The library's own messages are not used: they need a symbol of their own.
fn failed(error: CublasError) -> KernelError {
    use sys::cublasStatus_t as Status;
    let reason = format!("cuBLASLt: {:?}", error.0);
    match error.0 {
        Status::CUBLAS_STATUS_NOT_SUPPORTED | Status::CUBLAS_STATUS_ARCH_MISMATCH => {
            KernelError::unsupported(format!("a product ({reason})"))
        }
        Status::CUBLAS_STATUS_INVALID_VALUE => DeviceError::Invalid(reason).into(),
        // A lost device fails the next call of the driver too.
        _ => DeviceError::Failed(reason).into(),
    }
}

fn type_of(elem: Elem) -> Option<sys::cudaDataType_t> {
    Some(match elem {
        Elem::F32 => sys::cudaDataType_t::CUDA_R_32F,
        Elem::F16 => sys::cudaDataType_t::CUDA_R_16F,
        Elem::BF16 => sys::cudaDataType_t::CUDA_R_16BF,
        _ => return None,
    })
}

impl Products {
    /// # Errors
    /// If cuBLASLt cannot be initialised.
    pub(super) fn new() -> Result<Products, CublasError> {
        Ok(Products(Arc::new(Handle(result::create_handle()?))))
    }

    /// Prepares a product, with the algorithm that cuBLASLt estimates to be the fastest.
    ///
    /// # Errors
    /// If cuBLASLt has no algorithm.
    pub(super) fn product(&self, shape: &Shape) -> Result<Product> {
        self.product_at(shape, ALIGNMENT)
    }

    /// As [`product`](Self::product), for matrices whose addresses are multiples of `alignment` bytes.
    ///
    /// # Errors
    /// If cuBLASLt has no algorithm.
    pub(super) fn product_at(&self, shape: &Shape, alignment: u32) -> Result<Product> {
        let unsupported = || KernelError::unsupported(format!("a product of {:?}", shape.elem));
        let (elem, to) = (type_of(shape.elem), type_of(shape.to));
        let (elem, to) = (elem.ok_or_else(unsupported)?, to.ok_or_else(unsupported)?);
        let Shape { m, n, k, transposed: [trans_a, trans_b], .. } = *shape;
        // Accumulates in f32, and never in TF32.
        let description = Description(
            result::create_matmul_desc(
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                sys::cudaDataType_t::CUDA_R_32F,
            )
            .map_err(failed)?,
        );
        type Attribute = sys::cublasLtMatmulDescAttributes_t;
        description.set_transposed(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, trans_b)?;
        description.set_transposed(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, trans_a)?;
        if shape.has_bias {
            let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS;
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
        type Wish = sys::cublasLtMatmulPreferenceAttributes_t;
        preference.set(Wish::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE)?;
        // Partial sums of a split product are added in f32: a result is rounded once.
        let scheme = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        preference.set(Wish::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &scheme)?;
        for least in [
            Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
            Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
            Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
            Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
        ] {
            preference.set(least, &alignment)?;
        }
        let [b, a, d] = &layouts;
        #[expect(unsafe_code, reason = "a call of cuBLASLt")]
        // SAFETY: all descriptors are alive.
        let found = unsafe {
            result::get_matmul_algo_heuristic(self.0.0, description.0, b.0, a.0, d.0, d.0, preference.0)
        };
        let found = found.map_err(failed)?;
        Ok(Product {
            products: self.clone(),
            description: Mutex::new(description),
            layouts,
            algorithm: found.algo,
            workspace: found.workspaceSize,
            alpha: shape.alpha,
            has_bias: shape.has_bias,
        })
    }
}

impl Description {
    #[expect(unsafe_code, reason = "a call of cuBLASLt")]
    fn set<T>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: &T) -> Result<()> {
        let (address, size) = bytes_of(value);
        // SAFETY: the descriptor is alive, and the value is as long as it says.
        unsafe { result::set_matmul_desc_attribute(self.0, attribute, address, size) }.map_err(failed)
    }

    fn set_transposed(&self, attribute: sys::cublasLtMatmulDescAttributes_t, transposed: bool) -> Result<()> {
        // CUBLAS_OP_N and CUBLAS_OP_T.
        self.set(attribute, &i32::from(transposed))
    }
}

impl Layout {
    /// A matrix in columns without room between them, or several.
    #[expect(unsafe_code, reason = "calls of cuBLASLt")]
    fn new(
        elem: sys::cudaDataType_t,
        rows: usize,
        columns: usize,
        batch: usize,
        stride: usize,
    ) -> Result<Layout> {
        #[expect(clippy::cast_possible_wrap, reason = "extents of tensors")]
        let (ld, stride) = (rows as i64, stride as i64);
        let layout = result::create_matrix_layout(elem, rows as u64, columns as u64, ld).map_err(failed)?;
        let layout = Layout(layout);
        if batch > 1 {
            type Attribute = sys::cublasLtMatrixLayoutAttribute_t;
            let count = i32::try_from(batch).map_err(|_| KernelError::unsupported("2^31 products"))?;
            let (address, size) = bytes_of(&count);
            // SAFETY: the layout is alive, and the value is as long as it says.
            unsafe {
                result::set_matrix_layout_attribute(
                    layout.0,
                    Attribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                    address,
                    size,
                )
            }
            .map_err(failed)?;
            let (address, size) = bytes_of(&stride);
            // SAFETY: as above.
            unsafe {
                result::set_matrix_layout_attribute(
                    layout.0,
                    Attribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                    address,
                    size,
                )
            }
            .map_err(failed)?;
        }
        Ok(layout)
    }
}

impl Preference {
    #[expect(unsafe_code, reason = "a call of cuBLASLt")]
    fn set<T>(&self, attribute: sys::cublasLtMatmulPreferenceAttributes_t, value: &T) -> Result<()> {
        let (address, size) = bytes_of(value);
        // SAFETY: the preference is alive, and the value is as long as it says.
        unsafe { result::set_matmul_pref_attribute(self.0, attribute, address, size) }.map_err(failed)
    }
}

impl Product {
    /// The bytes of memory that it takes for itself.
    pub(super) fn workspace(&self) -> usize {
        self.workspace
    }

    /// Adds the product to a queue.
    ///
    /// # Errors
    /// If cuBLASLt fails.
    #[expect(unsafe_code, reason = "a call of cuBLASLt")]
    pub(super) fn launch(&self, queue: &mut CudaQueue, places: &Places) -> Result<()> {
        let stream = queue.stream().clone();
        stream.context().bind_to_thread().map_err(super::memory::failed)?;
        let description = self.description.lock().unwrap_or_else(PoisonError::into_inner);
        if self.has_bias {
            let attribute = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER;
            description.set(attribute, &places.bias)?;
        }
        let [b, a, d] = &self.layouts;
        let (alpha, beta) = (bytes_of(&self.alpha).0, bytes_of(&0f32).0);
        let pointer = |address: u64| address as *const c_void;
        // SAFETY: all descriptors are alive, and the addresses are those of matrices that they describe.
        let done = unsafe {
            result::matmul(
                self.products.0.0,
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
        done.map_err(failed)?;
        Ok(queue.launched()?)
    }
}
