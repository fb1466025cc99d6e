//! cuBLASLt: products of matrices in columns, computed in f64 and rounded once.

use crate::faults::{self, fault};
use crate::work::Work;
use crate::{complain, memory};
use cudarc::cublaslt::sys::{
    cublasComputeType_t, cublasLtEpilogue_t, cublasLtHandle_t, cublasLtMatmulAlgo_t,
    cublasLtMatmulAlgoConfigAttributes_t, cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t,
    cublasLtMatmulHeuristicResult_t, cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t,
    cublasLtMatrixLayout_t, cublasLtMatrixLayoutAttribute_t, cublasStatus_t, cudaDataType_t,
};
use cudarc::driver::sys::CUresult;
use half::{bf16, f16};
use std::ffi::{c_int, c_void};

const OK: cublasStatus_t = cublasStatus_t::CUBLAS_STATUS_SUCCESS;
const INVALID: cublasStatus_t = cublasStatus_t::CUBLAS_STATUS_INVALID_VALUE;
const UNSUPPORTED: cublasStatus_t = cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED;

#[derive(Clone, Copy, Default)]
struct Description {
    transposed: [bool; 2],
    /// A number of `cublasLtEpilogue_t`, or 0.
    epilogue: u32,
    bias: u64,
    /// True if operands may be rounded to TF32.
    tf32: bool,
}

/// Bits of epilogues.
const RELU: u32 = cublasLtEpilogue_t::CUBLASLT_EPILOGUE_RELU as u32;
const BIAS: u32 = cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS as u32;
const GELU: u32 = cublasLtEpilogue_t::CUBLASLT_EPILOGUE_GELU as u32;

impl Description {
    fn has(&self, bit: u32) -> bool {
        self.epilogue & bit != 0
    }

    /// The operand as it is multiplied.
    fn operand(&self, x: f64) -> f64 {
        if !self.tf32 {
            return x;
        }
        #[expect(clippy::cast_possible_truncation, reason = "the element is f32")]
        let bits = (x as f32).to_bits();
        f64::from(f32::from_bits(bits & !0x1fff))
    }

    fn activated(&self, x: f64) -> f64 {
        if self.has(RELU) && x < 0.0 {
            return 0.0;
        }
        if self.has(GELU) {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            return 0.5 * x * (1.0 + inner.tanh());
        }
        x
    }
}

#[derive(Clone, Copy)]
struct Layout {
    dtype: cudaDataType_t,
    rows: usize,
    columns: usize,
    ld: usize,
    batch: usize,
    stride: usize,
}

/// A product on a stream: D = f(α op(A) op(B) + bias) with the function of an epilogue.
#[derive(Clone)]
pub(crate) struct Product {
    description: Description,
    layouts: [Layout; 3],
    places: [u64; 3],
    alpha: f32,
}

fn size(dtype: cudaDataType_t) -> Option<usize> {
    match dtype {
        cudaDataType_t::CUDA_R_32F => Some(4),
        cudaDataType_t::CUDA_R_16F | cudaDataType_t::CUDA_R_16BF => Some(2),
        _ => None,
    }
}

impl Layout {
    /// The bytes from the first element to behind the last.
    fn bytes(&self) -> usize {
        let one = (self.columns.max(1) - 1) * self.ld + self.rows;
        ((self.batch - 1) * self.stride + one) * size(self.dtype).unwrap_or(0)
    }

    fn place(&self, batch: usize, row: usize, column: usize) -> usize {
        batch * self.stride + column * self.ld + row
    }
}

/// An element.
///
/// # Safety
/// It is alive.
unsafe fn load(at: u64, dtype: cudaDataType_t, i: usize) -> f64 {
    // SAFETY: as the caller says.
    unsafe {
        match dtype {
            cudaDataType_t::CUDA_R_16F => (*(at as *const f16).add(i)).to_f64(),
            cudaDataType_t::CUDA_R_16BF => (*(at as *const bf16).add(i)).to_f64(),
            _ => f64::from(*(at as *const f32).add(i)),
        }
    }
}

/// # Safety
/// The element is alive.
#[expect(clippy::cast_possible_truncation, reason = "rounding")]
unsafe fn store(at: u64, dtype: cudaDataType_t, i: usize, number: f64) {
    // A device rounds the sum in f32 to 16 bits.
    let number = number as f32;
    // SAFETY: as the caller says.
    unsafe {
        match dtype {
            cudaDataType_t::CUDA_R_16F => *(at as *mut f16).add(i) = f16::from_f32(number),
            cudaDataType_t::CUDA_R_16BF => *(at as *mut bf16).add(i) = bf16::from_f32(number),
            _ => *(at as *mut f32).add(i) = number,
        }
    }
}

impl Product {
    pub(crate) fn run(&self) -> CUresult {
        let [a, b, d] = &self.layouts;
        let bias = (self.description.bias, d.rows * size(d.dtype).unwrap_or(0));
        let matrices = self.places.iter().copied().zip([a.bytes(), b.bytes(), d.bytes()]);
        let all = matrices.chain(self.description.has(BIAS).then_some(bias));
        if all.into_iter().any(|(at, len)| !memory::holds(at, len)) {
            complain("a product of memory that is not alive");
            return CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        let [trans_a, trans_b] = self.description.transposed;
        let k = if trans_a { a.rows } else { a.columns };
        let of = |layout: &Layout, place: u64, transposed: bool, batch: usize, i: usize, j: usize| {
            let (row, column) = if transposed { (j, i) } else { (i, j) };
            // SAFETY: the element lies in the matrix, which is alive.
            unsafe { load(place, layout.dtype, layout.place(batch, row, column)) }
        };
        for batch in 0..d.batch {
            for column in 0..d.columns {
                for row in 0..d.rows {
                    let term = |i| {
                        self.description.operand(of(a, self.places[0], trans_a, batch, row, i))
                            * self.description.operand(of(b, self.places[1], trans_b, batch, i, column))
                    };
                    let mut sum = (0..k).map(term).sum::<f64>() * f64::from(self.alpha);
                    if self.description.has(BIAS) {
                        // SAFETY: the bias has an element for each row, and is alive.
                        sum += unsafe { load(self.description.bias, d.dtype, row) };
                    }
                    let made = self.description.activated(sum);
                    // SAFETY: the element lies in the matrix, which is alive.
                    unsafe { store(self.places[2], d.dtype, d.place(batch, row, column), made) };
                }
            }
        }
        CUresult::CUDA_SUCCESS
    }
}

/// A value of an attribute, of which the caller gives the address and the size.
///
/// # Safety
/// The address is that of so many bytes.
unsafe fn read<T: Copy>(from: *const c_void, len: usize) -> Option<T> {
    // SAFETY: the value is as long as the caller says.
    (len == size_of::<T>()).then(|| unsafe { from.cast::<T>().read_unaligned() })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtGetVersion() -> usize {
    let (major, minor) = faults::version("AMPC_SIM_CUBLASLT");
    usize::try_from(major * 10_000 + minor * 100).unwrap_or(0)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtCreate(handle: *mut cublasLtHandle_t) -> cublasStatus_t {
    fault!("cublasLtCreate");
    // SAFETY: the caller gives a place.
    unsafe { *handle = Box::into_raw(Box::new(0u64)).cast() };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtDestroy(handle: cublasLtHandle_t) -> cublasStatus_t {
    fault!("cublasLtDestroy");
    // SAFETY: the caller has it from `cublasLtCreate`, and destroys it once.
    drop(unsafe { Box::from_raw(handle.cast::<u64>()) });
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulDescCreate(
    made: *mut cublasLtMatmulDesc_t,
    compute: cublasComputeType_t,
    scale: cudaDataType_t,
) -> cublasStatus_t {
    fault!("cublasLtMatmulDescCreate");
    let tf32 = compute == cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32;
    if (compute != cublasComputeType_t::CUBLAS_COMPUTE_32F && !tf32) || scale != cudaDataType_t::CUDA_R_32F {
        complain("products compute in f32 or TF32");
        return UNSUPPORTED;
    }
    // SAFETY: the caller gives a place.
    unsafe { *made = Box::into_raw(Box::new(Description { tf32, ..Description::default() })).cast() };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulDescSetAttribute(
    at: cublasLtMatmulDesc_t,
    attribute: cublasLtMatmulDescAttributes_t,
    value: *const c_void,
    len: usize,
) -> cublasStatus_t {
    fault!("cublasLtMatmulDescSetAttribute");
    type A = cublasLtMatmulDescAttributes_t;
    // SAFETY: the description is alive, and the value is as long as it says.
    unsafe {
        let description = &mut *at.cast::<Description>();
        let done = match attribute {
            A::CUBLASLT_MATMUL_DESC_TRANSA => {
                read::<c_int>(value, len).map(|x| description.transposed[0] = x == 1)
            }
            A::CUBLASLT_MATMUL_DESC_TRANSB => {
                read::<c_int>(value, len).map(|x| description.transposed[1] = x == 1)
            }
            A::CUBLASLT_MATMUL_DESC_EPILOGUE => read::<u32>(value, len)
                .filter(|&x| [BIAS, RELU, RELU | BIAS, GELU, GELU | BIAS].contains(&x))
                .map(|x| description.epilogue = x),
            A::CUBLASLT_MATMUL_DESC_BIAS_POINTER => read::<u64>(value, len).map(|x| description.bias = x),
            _ => None,
        };
        if done.is_some() { OK } else { INVALID }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulDescDestroy(at: cublasLtMatmulDesc_t) -> cublasStatus_t {
    fault!("cublasLtMatmulDescDestroy");
    // SAFETY: the caller has it from the function above, and destroys it once.
    drop(unsafe { Box::from_raw(at.cast::<Description>()) });
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatrixLayoutCreate(
    made: *mut cublasLtMatrixLayout_t,
    dtype: cudaDataType_t,
    rows: u64,
    columns: u64,
    ld: i64,
) -> cublasStatus_t {
    fault!("cublasLtMatrixLayoutCreate");
    let (rows, columns, ld) = (rows as usize, columns as usize, usize::try_from(ld).unwrap_or(0));
    if size(dtype).is_none() || ld < rows {
        return INVALID;
    }
    // SAFETY: the caller gives a place.
    unsafe {
        *made = Box::into_raw(Box::new(Layout { dtype, rows, columns, ld, batch: 1, stride: 0 })).cast()
    };
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatrixLayoutSetAttribute(
    at: cublasLtMatrixLayout_t,
    attribute: cublasLtMatrixLayoutAttribute_t,
    value: *const c_void,
    len: usize,
) -> cublasStatus_t {
    fault!("cublasLtMatrixLayoutSetAttribute");
    type A = cublasLtMatrixLayoutAttribute_t;
    // SAFETY: the layout is alive, and the value is as long as it says.
    unsafe {
        let layout = &mut *at.cast::<Layout>();
        let number = |x: i64| usize::try_from(x).ok();
        let done = match attribute {
            A::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT => {
                read::<i32>(value, len).and_then(|x| number(x.into())).map(|x| layout.batch = x)
            }
            A::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET => {
                read::<i64>(value, len).and_then(number).map(|x| layout.stride = x)
            }
            _ => None,
        };
        if done.is_some() { OK } else { INVALID }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatrixLayoutDestroy(at: cublasLtMatrixLayout_t) -> cublasStatus_t {
    fault!("cublasLtMatrixLayoutDestroy");
    // SAFETY: the caller has it from the function above, and destroys it once.
    drop(unsafe { Box::from_raw(at.cast::<Layout>()) });
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulPreferenceCreate(made: *mut cublasLtMatmulPreference_t) -> cublasStatus_t {
    fault!("cublasLtMatmulPreferenceCreate");
    // SAFETY: the caller gives a place.
    unsafe { *made = Box::into_raw(Box::new(ALIGNMENTS)).cast() };
    OK
}

/// The least alignments of A, B, C and D in bytes, as cuBLASLt documents them: 256 if the caller says nothing.
const ALIGNMENTS: [u32; 4] = [256; 4];

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulPreferenceSetAttribute(
    at: cublasLtMatmulPreference_t,
    attribute: cublasLtMatmulPreferenceAttributes_t,
    value: *const c_void,
    len: usize,
) -> cublasStatus_t {
    fault!("cublasLtMatmulPreferenceSetAttribute");
    type A = cublasLtMatmulPreferenceAttributes_t;
    let matrix = match attribute {
        A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES => 0,
        A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES => 1,
        A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES => 2,
        A::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES => 3,
        _ => return OK,
    };
    // SAFETY: the preference is alive, and the value is as long as it says.
    unsafe {
        match read::<u32>(value, len) {
            Some(bytes) => (*at.cast::<[u32; 4]>())[matrix] = bytes,
            None => return INVALID,
        }
    }
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulPreferenceDestroy(at: cublasLtMatmulPreference_t) -> cublasStatus_t {
    fault!("cublasLtMatmulPreferenceDestroy");
    // SAFETY: the caller has it from the function above, and destroys it once.
    drop(unsafe { Box::from_raw(at.cast::<[u32; 4]>()) });
    OK
}

/// The product of a description and layouts, if cuBLASLt documents its types and its extents agree.
unsafe fn product(
    description: cublasLtMatmulDesc_t,
    [a, b, d]: [cublasLtMatrixLayout_t; 3],
) -> Result<Product, cublasStatus_t> {
    // SAFETY: all are alive.
    let (description, layouts) = unsafe {
        let layout = |at: cublasLtMatrixLayout_t| *at.cast::<Layout>();
        (*description.cast::<Description>(), [layout(a), layout(b), layout(d)])
    };
    let [a, b, d] = &layouts;
    let [trans_a, trans_b] = description.transposed;
    let (m, k) = if trans_a { (a.columns, a.rows) } else { (a.rows, a.columns) };
    let (other, n) = if trans_b { (b.columns, b.rows) } else { (b.rows, b.columns) };
    if (m, n, k) != (d.rows, d.columns, other) || a.batch != d.batch || b.batch != d.batch {
        return Err(INVALID);
    }
    if a.dtype != b.dtype || (d.dtype != a.dtype && d.dtype != cudaDataType_t::CUDA_R_32F) {
        return Err(UNSUPPORTED);
    }
    Ok(Product { description, layouts, places: [0; 3], alpha: 1.0 })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulAlgoGetHeuristic(
    _: cublasLtHandle_t,
    description: cublasLtMatmulDesc_t,
    a: cublasLtMatrixLayout_t,
    b: cublasLtMatrixLayout_t,
    _c: cublasLtMatrixLayout_t,
    d: cublasLtMatrixLayout_t,
    preference: cublasLtMatmulPreference_t,
    _requested: c_int,
    results: *mut cublasLtMatmulHeuristicResult_t,
    count: *mut c_int,
) -> cublasStatus_t {
    fault!("cublasLtMatmulAlgoGetHeuristic");
    // SAFETY: all are alive, and the caller gives places.
    unsafe {
        if let Err(status) = product(description, [a, b, d]) {
            *count = 0;
            return status;
        }
        results.write_bytes(0, 1);
        // The algorithm needs the alignments of its preference.
        let [a, b, c, d] = (*preference.cast::<[u32; 4]>()).map(u64::from);
        // AMPC_SIM_ALGORITHM is the number of the algorithm.
        let number = std::env::var_os("AMPC_SIM_ALGORITHM").and_then(|text| text.to_str()?.parse().ok());
        (*results).algo.data = [a, b, c, d, number.unwrap_or(66), 20, 0, 0];
        *count = 1;
    }
    OK
}

/// Attributes of 32 bits: words 4 and 5 of an algorithm have its number and tile.
#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmulAlgoConfigGetAttribute(
    algorithm: *const cublasLtMatmulAlgo_t,
    attribute: cublasLtMatmulAlgoConfigAttributes_t,
    to: *mut c_void,
    len: usize,
    written: *mut usize,
) -> cublasStatus_t {
    type Attribute = cublasLtMatmulAlgoConfigAttributes_t;
    // SAFETY: the caller gives an algorithm and places, and the size of the place.
    unsafe {
        let value = match attribute {
            Attribute::CUBLASLT_ALGO_CONFIG_ID => (*algorithm).data[4],
            Attribute::CUBLASLT_ALGO_CONFIG_TILE_ID => (*algorithm).data[5],
            Attribute::CUBLASLT_ALGO_CONFIG_SPLITK_NUM => 1,
            Attribute::CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID
            | Attribute::CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID => return UNSUPPORTED,
            _ => 0,
        };
        if len != size_of::<u32>() {
            return INVALID;
        }
        to.cast::<u32>().write_unaligned(u32::try_from(value).unwrap_or(u32::MAX));
        *written = len;
    }
    OK
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cublasLtMatmul(
    _: cublasLtHandle_t,
    description: cublasLtMatmulDesc_t,
    alpha: *const c_void,
    a: *const c_void,
    a_layout: cublasLtMatrixLayout_t,
    b: *const c_void,
    b_layout: cublasLtMatrixLayout_t,
    beta: *const c_void,
    _c: *const c_void,
    _c_layout: cublasLtMatrixLayout_t,
    d: *mut c_void,
    d_layout: cublasLtMatrixLayout_t,
    algorithm: *const cublasLtMatmulAlgo_t,
    _workspace: *mut c_void,
    _size: usize,
    stream: *mut c_void,
) -> cublasStatus_t {
    fault!("cublasLtMatmul");
    // SAFETY: all are alive.
    unsafe {
        if *beta.cast::<f32>() != 0.0 {
            complain("products add no matrix");
            return UNSUPPORTED;
        }
        let product = match product(description, [a_layout, b_layout, d_layout]) {
            Ok(product) => product,
            Err(status) => return status,
        };
        let places = [a as u64, b as u64, d as u64];
        if let Some(algorithm) = algorithm.as_ref() {
            let least = [0, 1, 3].map(|matrix| algorithm.data[matrix].max(1));
            let bias = if product.description.has(BIAS) { product.description.bias } else { 0 };
            let is_misaligned = |(place, least): (&u64, u64)| !place.is_multiple_of(least);
            if places.iter().zip(least).any(is_misaligned) || is_misaligned((&bias, least[2])) {
                complain("a matrix is not aligned as the preference of its algorithm says");
                return INVALID;
            }
        }
        let work = Work::Product(Product { places, alpha: *alpha.cast::<f32>(), ..product });
        match crate::driver::enqueue(stream.cast(), work) {
            CUresult::CUDA_SUCCESS => OK,
            _ => cublasStatus_t::CUBLAS_STATUS_EXECUTION_FAILED,
        }
    }
}
