
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
template <int V> __device__ __forceinline__ void elements(u32 i, u64 n, u64 vectors, const u16* x0, const u16* x1, const u16* x2, const u16* x3, const u16* x4, const float* x5, const float* x6, const float* x7, const float* x8, const float* x9, const u16* x10, const float* x11, const float* x12, const float* x13, const float* x14, const float* x15, u16* y0, u16* y1, u64 e1, u64 m1, u64 e2, u64 m2) {
  u32 q3 = i;
  u32 q2 = divided(q3, (u32)e2, m2), c2 = q3 - q2 * (u32)e2;
  u32 q1 = divided(q2, (u32)e1, m1), c1 = q2 - q1 * (u32)e1;
  u32 c0 = q1;
  Vector<u16, V> v0 = load<V>(x0 + ((c0 * (u32)e1 + c1) * (u32)e2 + c2));
  Vector<u16, V> v1 = load<V>(x1 + ((c0 * (u32)e1 + c1) * (u32)e2 + c2));
  Vector<u16, V> v2 = load<V>(x2 + ((c0 * (u32)e1 + c1) * (u32)e2 + c2));
  u16 b3 = x3[0];
  Vector<u16, V> v4 = load<V>(x4 + ((c0 * (u32)e1 + c1) * (u32)e2 + c2));
  float b5 = x5[c1];
  float b6 = x6[c1];
  float b7 = x7[c1];
  float b8 = x8[c1];
  float b9 = x9[c1];
  Vector<u16, V> v10 = load<V>(x10 + ((c0 * (u32)e1 + c1) * (u32)e2 + c2));
  float b11 = x11[c1];
  float b12 = x12[c1];
  float b13 = x13[c1];
  float b14 = x14[c1];
  float b15 = x15[c1];
  Vector<u16, V> w0;
  Vector<u16, V> w1;
  #pragma unroll
  for (int k = 0; k < V; k++) {
    u16 b0 = v0.at[k];
    u16 b1 = v1.at[k];
    u16 b2 = v2.at[k];
    u16 b4 = v4.at[k];
    u16 b10 = v10.at[k];
    u16 r0;
    u16 r1;
    float t0 = from_f16(b0);
    float t1 = from_f16(b1);
    float t2 = t0 + t1;
    u16 t3 = to_f16(t2);
    float t4 = from_f16(b2);
    float t5 = from_f16(b3);
    bool t6 = t4 > t5;
    u8 t7 = t6 ? 1 : 0;
    u16 t8 = t6 ? t3 : b3;
    float t9 = from_f16(b4);
    float t10 = (float)(t9);
    float t11 = from_f16(t8);
    float t12 = (float)(t11);
    float t13 = t10 - b5;
    float t14 = (float)(t13);
    float t15 = t14 * b6;
    float t16 = (float)(t15);
    float t17 = t12 * b7;
    float t18 = (float)(t17);
    float t19 = t16 * b8;
    float t20 = (float)(t19);
    float t21 = t18 - b9;
    float t22 = (float)(t21);
    float t23 = t22 - t20;
    float t24 = (float)(t23);
    float t25 = b6 * t24;
    float t26 = (float)(t25);
    u16 t27 = to_f16(t26);
    float t28 = from_f16(b10);
    float t29 = (float)(t28);
    float t30 = (float)(t11);
    float t31 = t29 - b11;
    float t32 = (float)(t31);
    float t33 = t32 * b12;
    float t34 = (float)(t33);
    float t35 = t30 * b13;
    float t36 = (float)(t35);
    float t37 = t34 * b14;
    float t38 = (float)(t37);
    float t39 = t36 - b15;
    float t40 = (float)(t39);
    float t41 = t40 - t38;
    float t42 = (float)(t41);
    float t43 = b12 * t42;
    float t44 = (float)(t43);
    u16 t45 = to_f16(t44);
    r0 = t27;
    r1 = t45;
    w0.at[k] = r0;
    w1.at[k] = r1;
  }
  store<V>(y0 + i, w0);
  store<V>(y1 + i, w1);
}
extern "C" __global__ void add_greater_where_and_45_f32(u64 n, u64 vectors, const u16* x0, const u16* x1, const u16* x2, const u16* x3, const u16* x4, const float* x5, const float* x6, const float* x7, const float* x8, const float* x9, const u16* x10, const float* x11, const float* x12, const float* x13, const float* x14, const float* x15, u16* y0, u16* y1, u64 e1, u64 m1, u64 e2, u64 m2) {
  for (u64 at = first(); at < vectors; at += step()) elements<8>((u32)(at * 8), n, vectors, x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15, y0, y1, e1, m1, e2, m2);
  for (u64 at = vectors * 8 + first(); at < n; at += step()) elements<1>((u32)at, n, vectors, x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15, y0, y1, e1, m1, e2, m2);
}
