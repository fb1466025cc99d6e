
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

template <class T, int V> struct alignas(sizeof(T) * V) Vector { T at[V]; };
template <int V, class T> __device__ __forceinline__ Vector<T, V> load(const T* from) { return *(const Vector<T, V>*)from; }
template <int V, class T> __device__ __forceinline__ void store(T* to, Vector<T, V> x) { *(Vector<T, V>*)to = x; }
__device__ __forceinline__ u32 divided(u32 i, u32, u64 by) { return (__umulhi(i, (u32)by) + i) >> (u32)(by >> 32); }
__device__ __forceinline__ u64 divided(u64 i, u64 by, u64) { return i / by; }

__device__ __forceinline__ A warp_fold(A x) {
  for (int o = 16; o; o >>= 1) { A y = __shfl_xor_sync(0xffffffffu, x, o); x = join(x, y); }
  return x;
}
extern "C" __global__ void reducemean_f32(const float* from, float* y, u64 count_, u64 whole_, i64 s1, u64 parts_, u64 n_) {
  const u32 count = (u32)count_;
  const u32 whole = (u32)whole_;
  const u32 parts = (u32)parts_;
  const u32 n = (u32)n_;
  const int V = 4;
  const u64 task = (blockIdx.x * (u64)8 + (threadIdx.x >> 5));
  if (task >= (u64)n * parts) return;
  u32 i = task / parts, part = task % parts;
  u64 low = (u64)count * part / parts, high = (u64)count * (part + 1) / parts;
  i64 base = ((i64)0);  A acc = 0;
  const float* row = from + base;
  const bool is_vector = ((u64)(row + low) & 15) == 0;
  #pragma unroll 2
  for (u64 k = low + (threadIdx.x & 31) * V; k < high; k += 32 * V) {
    Vector<float, V> v;
    if (is_vector && k + V <= high) {
      v = load<V>(row + k);
    } else {
      #pragma unroll
      for (int m = 0; m < V; m++) if (k + m < high) v.at[m] = row[k + m];
    }
    #pragma unroll
    for (int m = 0; m < V; m++) {
      if (k + m < high) { A x = (A)v.at[m]; acc = join(acc, (A)(x)); }
    }
  }
  acc = warp_fold(acc);
  if ((threadIdx.x & 31) == 0) y[(u64)part * n + i] = (float)(acc / (A)count);
}
