
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

template <class T, int V> struct alignas(sizeof(T) * V) Vector { T at[V]; };
template <int V, class T> __device__ __forceinline__ Vector<T, V> load(const T* from) { return *(const Vector<T, V>*)from; }
template <int V, class T> __device__ __forceinline__ void store(T* to, Vector<T, V> x) { *(Vector<T, V>*)to = x; }
__device__ __forceinline__ u32 divided(u32 i, u32, u64 by) { return (__umulhi(i, (u32)by) + i) >> (u32)(by >> 32); }
__device__ __forceinline__ u64 divided(u64 i, u64 by, u64) { return i / by; }
typedef float A;
extern "C" __global__ void batchnormalization_bf16(const u16* x, u16* y, u64 n_, u64 channels_, u64 run_, const float* means, const float* rests, const float* variances, const float* factors, const float* offsets) {
  const u32 n = (u32)n_;
  const u32 channels = (u32)channels_;
  const u32 run = (u32)run_;
  if (run % 8 == 0 && (((u64)x | (u64)y) & 15) == 0) {
    constexpr int V = 8;
    for (u64 at = first(); at < n / V; at += step()) {
      u32 c = (u32)(at * V) / run % channels;
      A mean = means[c], factor = factors[c], offset = offsets[c];
      Vector<u16, V> v = load<V>(x + at * V);
      #pragma unroll
      for (int k = 0; k < V; k++) {
        A z = ((A)from_bf16(v.at[k]) - mean) * factor + offset;
        v.at[k] = to_bf16(z);
      }
      store(y + at * V, v);
    }
  } else {
    constexpr int V = 1;
    for (u64 at = first(); at < n / V; at += step()) {
      u32 c = (u32)(at * V) / run % channels;
      A mean = means[c], factor = factors[c], offset = offsets[c];
      Vector<u16, V> v = load<V>(x + at * V);
      #pragma unroll
      for (int k = 0; k < V; k++) {
        A z = ((A)from_bf16(v.at[k]) - mean) * factor + offset;
        v.at[k] = to_bf16(z);
      }
      store(y + at * V, v);
    }
  }
}
