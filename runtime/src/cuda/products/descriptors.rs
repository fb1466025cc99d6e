//! Descriptors of cuBLASLt, destroyed on drop, and its errors.

use crate::cuda::text::Elem;
use crate::device::DeviceError;
use crate::kernel::{KernelError, Result};
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use std::ffi::c_void;

pub(super) struct Description(pub(super) sys::cublasLtMatmulDesc_t);
pub(super) struct Layout(pub(super) sys::cublasLtMatrixLayout_t);
pub(super) struct Preference(pub(super) sys::cublasLtMatmulPreference_t);

// SAFETY: the descriptor is plain memory of cuBLASLt and bound to no thread.
#[expect(unsafe_code, reason = "descriptors are pointers")]
unsafe impl Send for Description {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "descriptors are pointers")]
unsafe impl Send for Layout {}
// SAFETY: a layout is immutable after its construction.
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

/// The attributes of an algorithm, with their names. Attributes that cuBLASLt does not return are omitted.
#[expect(unsafe_code, reason = "calls of cuBLASLt")]
pub(super) fn algorithm_text(algorithm: &sys::cublasLtMatmulAlgo_t) -> String {
    type Attribute = sys::cublasLtMatmulAlgoConfigAttributes_t;
    let of_32_bits = [
        ("id", Attribute::CUBLASLT_ALGO_CONFIG_ID),
        ("tile", Attribute::CUBLASLT_ALGO_CONFIG_TILE_ID),
        ("stages", Attribute::CUBLASLT_ALGO_CONFIG_STAGES_ID),
        ("split-k", Attribute::CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
        ("reduction", Attribute::CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME),
        ("swizzle", Attribute::CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING),
        ("option", Attribute::CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION),
    ];
    let told = of_32_bits.into_iter().filter_map(|(name, attribute)| {
        let (mut value, mut written) = (0u32, 0usize);
        let place = (&raw mut value).cast::<c_void>();
        let len = size_of::<u32>();
        // SAFETY: the algorithm and the buffers live during the call, and the value has the size of the attribute.
        let status = unsafe {
            sys::cublasLtMatmulAlgoConfigGetAttribute(algorithm, attribute, place, len, &raw mut written)
        };
        (status == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS).then(|| format!("{name} {value}"))
    });
    told.collect::<Vec<_>>().join(", ")
}

/// The address of a value, and its size.
pub(super) fn bytes_of<T>(value: &T) -> (*const c_void, usize) {
    (std::ptr::from_ref(value).cast(), size_of::<T>())
}

/// The error of a failed call. cuBLASLt's own messages are not used: they would be one more required symbol.
pub(super) fn failed(error: CublasError) -> KernelError {
    use sys::cublasStatus_t as Status;
    let reason = format!("cuBLASLt: {:?}", error.0);
    match error.0 {
        Status::CUBLAS_STATUS_NOT_SUPPORTED | Status::CUBLAS_STATUS_ARCH_MISMATCH => {
            KernelError::unsupported(format!("a product ({reason})"))
        }
        Status::CUBLAS_STATUS_ALLOC_FAILED => DeviceError::OutOfMemory(reason).into(),
        Status::CUBLAS_STATUS_INVALID_VALUE => DeviceError::Invalid(reason).into(),
        // A lost device also fails the next call of the driver.
        _ => DeviceError::Failed(reason).into(),
    }
}

pub(super) fn type_of(elem: Elem) -> Option<sys::cudaDataType_t> {
    Some(match elem {
        Elem::F32 => sys::cudaDataType_t::CUDA_R_32F,
        Elem::F16 => sys::cudaDataType_t::CUDA_R_16F,
        Elem::BF16 => sys::cudaDataType_t::CUDA_R_16BF,
        _ => return None,
    })
}

impl Description {
    #[expect(unsafe_code, reason = "a call of cuBLASLt")]
    pub(super) fn set<T>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: &T) -> Result<()> {
        let (address, size) = bytes_of(value);
        // SAFETY: the descriptor is alive, and `size` is the size of the value.
        unsafe { result::set_matmul_desc_attribute(self.0, attribute, address, size) }.map_err(failed)
    }

    pub(super) fn set_transposed(
        &self,
        attribute: sys::cublasLtMatmulDescAttributes_t,
        transposed: bool,
    ) -> Result<()> {
        // CUBLAS_OP_N and CUBLAS_OP_T.
        self.set(attribute, &i32::from(transposed))
    }
}

impl Layout {
    /// A dense column-major matrix, or a batch of such matrices.
    #[expect(unsafe_code, reason = "calls of cuBLASLt")]
    pub(super) fn new(
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
            // SAFETY: the layout is alive, and `size` is the size of the value.
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
    pub(super) fn set<T>(
        &self,
        attribute: sys::cublasLtMatmulPreferenceAttributes_t,
        value: &T,
    ) -> Result<()> {
        let (address, size) = bytes_of(value);
        // SAFETY: the preference is alive, and `size` is the size of the value.
        unsafe { result::set_matmul_pref_attribute(self.0, attribute, address, size) }.map_err(failed)
    }
}
