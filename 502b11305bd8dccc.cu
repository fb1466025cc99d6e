
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
__device__ __forceinline__ float from_f16(u16 x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y; }
__device__ __forceinline__ u16 to_f16(float x) { u16 y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }
__device__ __forceinline__ float from_bf16(u16 x) { return __uint_as_float((u32)x << 16); }
__device__ __forceinline__ u16 to_bf16(float x) { u16 y; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }
__device__ __forceinline__ bool is_finite(float x) { return fabsf(x) <= 3.402823466e38f; }
__device__ __forceinline__ u64 first() { return blockIdx.x * (u64)blockDim.x + threadIdx.x; }
__device__ __forceinline__ u64 step() { return gridDim.x * (u64)blockDim.x; }
typedef float A;
extern "C" __global__ void batchnormalization_f16(const float* scales, const float* biases, float* factors, float* offsets, const float* means, const float* rests, const float* variances, const float* old0, float* new1, const float* old1, float* new2, u64 n_) {
  const u32 n = (u32)n_;
  for (u64 flat = first(); flat < n; flat += step()) {
    u32 i = flat;
    u32 c = i;
    A mean = means[c], rest = rests[c], variance = variances[c];
      A factor = (A)scales[c] / sqrtf(variance + __int_as_float(0x3727c5ac)), offset = (A)biases[c] - rest * factor;
    factors[c] = factor; offsets[c] = offset;
    new1[c] = (float)((A)old0[c] * __int_as_float(0x3f400000) + (mean + rest) * (__int_as_float(0x3f800000) - __int_as_float(0x3f400000)));
    new2[c] = (float)((A)old1[c] * __int_as_float(0x3f400000) + variance * (__int_as_float(0x3f800000) - __int_as_float(0x3f400000)));

  }
}
