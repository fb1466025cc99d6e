
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
template <int V> __device__ __forceinline__ void elements(u32 i, u64 n, u64 vectors, const float* x0, const float* x1, const float* x2, const float* x3, const float* x4, const float* x5, const float* x6, float* y0, float* y1, float* y2, float* y3, float* y4, u64 e1, u64 m1, u64 e2, u64 m2) {
  u32 q3 = i;
  u32 q2 = divided(q3, (u32)e2, m2), c2 = q3 - q2 * (u32)e2;
  u32 q1 = divided(q2, (u32)e1, m1), c1 = q2 - q1 * (u32)e1;
  u32 c0 = q1;
  Vector<float, V> v0 = load<V>(x0 + ((c0 * (u32)e1 + c1) * (u32)e2 + c2));
  Vector<float, V> v1 = load<V>(x1 + ((c0 * (u32)e1 + c1) * (u32)e2 + c2));
  Vector<float, V> v2 = load<V>(x2 + ((c0 * (u32)e1 + c1) * (u32)e2 + c2));
  float b3 = x3[0];
  Vector<float, V> v4 = load<V>(x4 + ((c0 * (u32)e1 + c1) * (u32)e2 + c2));
  float b5 = x5[c1];
  float b6 = x6[c1];
  Vector<float, V> w0;
  Vector<float, V> w1;
  Vector<float, V> w2;
  Vector<float, V> w3;
  Vector<float, V> w4;
  #pragma unroll
  for (int k = 0; k < V; k++) {
    float b0 = v0.at[k];
    float b1 = v1.at[k];
    float b2 = v2.at[k];
    float b4 = v4.at[k];
    float r0;
    float r1;
    float r2;
    float r3;
    float r4;
    float t0 = b0 + b1;
    float t1 = (float)(t0);
    bool t2 = b2 > b3;
    u8 t3 = t2 ? 1 : 0;
    float t4 = t2 ? t1 : b3;
    float t5 = b4 * b5;
    float t6 = (float)(t5);
    float t7 = t4 * b6;
    float t8 = (float)(t7);
    float t9 = t8 * t6;
    float t10 = (float)(t9);
    float t11 = t4 * t6;
    float t12 = (float)(t11);
    r0 = t4;
    r1 = t6;
    r2 = t8;
    r3 = t10;
    r4 = t12;
    w0.at[k] = r0;
    w1.at[k] = r1;
    w2.at[k] = r2;
    w3.at[k] = r3;
    w4.at[k] = r4;
  }
  store<V>(y0 + i, w0);
  store<V>(y1 + i, w1);
  store<V>(y2 + i, w2);
  store<V>(y3 + i, w3);
  store<V>(y4 + i, w4);
}
extern "C" __global__ void add_greater_where_and_4_f32(u64 n, u64 vectors, const float* x0, const float* x1, const float* x2, const float* x3, const float* x4, const float* x5, const float* x6, float* y0, float* y1, float* y2, float* y3, float* y4, u64 e1, u64 m1, u64 e2, u64 m2) {
  for (u64 at = first(); at < vectors; at += step()) elements<4>((u32)(at * 4), n, vectors, x0, x1, x2, x3, x4, x5, x6, y0, y1, y2, y3, y4, e1, m1, e2, m2);
  for (u64 at = vectors * 4 + first(); at < n; at += step()) elements<1>((u32)at, n, vectors, x0, x1, x2, x3, x4, x5, x6, y0, y1, y2, y3, y4, e1, m1, e2, m2);
}
