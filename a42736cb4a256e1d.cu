
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
__device__ __forceinline__ A join(A acc, A term) { return acc + term; }
extern "C" __global__ void reducemean_f32(const float* from, float* y, u64 count_, u64 whole_, i64 s1, i64 s2, u64 n_) {
  const u32 count = (u32)count_;
  const u32 whole = (u32)whole_;
  const u32 n = (u32)n_;
  for (u64 flat = first(); flat < n; flat += step()) {
    u32 i = flat;
    i64 base = ((i64)0 + (i64)(i) * s1);  A acc = 0;
    for (u32 k = 0; k < count; k++) { A x = (A)from[base + ((i64)0 + (i64)(k) * s2)]; acc = join(acc, (A)(x)); }
    y[i] = (float)(acc / (A)count);
  }
}
