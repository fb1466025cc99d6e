
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
struct State { float count, h0, m0, m1, s0, s1, q0, q1; };
__device__ __forceinline__ State merged(const State& a, const State& b) {
  State y;
  y.count = a.count + b.count;
  const float part = y.count == 0 ? 0 : b.count / y.count;
  y.h0 = a.h0;
  const float away0 = b.m0 - a.m0;
  y.m0 = a.m0 + away0 * part;
  const float away1 = b.m1 - a.m1;
  y.m1 = a.m1 + away1 * part;
  y.s0 = a.s0 + b.s0;
  y.s1 = a.s1 + b.s1;
  y.q0 = a.q0 + b.q0 + away0 * away0 * (a.count * part);
  y.q1 = a.q1 + b.q1 + away0 * away1 * (a.count * part);
  return y;
}
extern "C" __global__ void reducemean_sub_mul_and_17_f32(const State* states, u64 channels_, u64 parts_, const float* x0, const float* x1, float* y0, float* y1, float* y5, float* y6, float* z5, float* z6, u64 n_) {
  const u32 channels = (u32)channels_;
  const u32 parts = (u32)parts_;
  const u32 n = (u32)n_;
  for (u64 flat = first(); flat < n; flat += step()) {
    u32 i = flat;
    State state = states[i];
    for (u64 part = 1; part < parts; part++) state = merged(state, states[part * channels + i]);
    const float count = state.count;
    const float shift0 = state.h0, rest0 = state.s0 / count, mean0 = shift0 + rest0;
    const float shift1 = 0.0f, rest1 = state.s1 / count, mean1 = rest1;
    const float moment0 = state.q0;
    const float moment1 = state.q1;
    const float b0 = x0[0];
    const float b1 = x1[i];
    float t0 = mean0;
    float t1 = (float)(t0);
    float t2 = mean0 - t1;
    float t3 = t2 * t2;
    float t4 = 1.0f * (moment0 / count) + t3;
    float t5 = (float)(t4);
    float t6 = t5 + b0;
    float t7 = (float)(t6);
    float t8 = sqrtf(t7);
    float t9 = (float)(t8);
    float t10 = __int_as_float(0x3f800000) / t9;
    float t11 = (float)(t10);
    float t12 = t2 * t11;
    float t13 = mean1 * b1;
    float t14 = b1 * t11;
    float t15 = t13 * t12;
    float t16 = t14 * (moment1 / count) + t15;
    float t17 = (float)(t16);
    float t18 = t11 * t17;
    float t19 = t12 * t17;
    float t20 = t13;
    float t21 = (float)(t20);
    float t22 = t13 - t21;
    float t23 = 0.0f - t18;
    float t24 = t22 - t19;
    float t25 = b1 * t11;
    float t26 = t23 * t11;
    float t27 = t24 * t11;
    float t28 = mean1 * t12;
    float t29 = t11 * moment1 + t28 * count;
    float t30 = (float)(t29);
    float t31 = mean1 * count;
    float t32 = (float)(t31);
    y0[i] = t1;
    y1[i] = t11;
    y5[i] = t30;
    y6[i] = t32;
    z5[i] = t17;
    z6[i] = t21;

  }
}
