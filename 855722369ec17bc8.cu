
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
extern "C" __global__ void transpose_f32(const u32* x, u32* y, u64 d1_, i64 s2, u64 b3_, u64 d4_, i64 s5, u64 b6_, i64 s7, u64 n_) {
  const u32 d1 = (u32)d1_;
  const u32 b3 = (u32)b3_;
  const u32 d4 = (u32)d4_;
  const u32 b6 = (u32)b6_;
  const u32 n = (u32)n_;
  for (u64 flat = first(); flat < n; flat += step()) {
    u32 i = flat;
    y[i] = x[((i64)0 + (i64)((i) % d1) * s2 + (i64)((i / b3) % d4) * s5 + (i64)(i / b6) * s7)];
  }
}
