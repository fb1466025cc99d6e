
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
extern "C" __global__ void convtranspose_bf16(u64 n, u64 channels, u64 y1, u64 y2, u64 y3, u64 x1, u64 x2, u64 x3, const u16* x, const u16* bias, u16* y) {
  for (u64 i = first(); i < n; i += step()) {
    u64 c = i % y3, b = i / y3 % y2, rest = i / y3 / y2, a = rest % y1, plane = rest / y1;
    float sum = 0.0f;
    if (x && a < x1 && b < x2 && c < x3) { u64 at = ((plane * x1 + a) * x2 + b) * x3 + c; sum = from_bf16(x[at]); }
    if (bias) { u64 at = plane % channels; sum = sum + from_bf16(bias[at]); }
    y[i] = to_bf16(sum);
  }
}
