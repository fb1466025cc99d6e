
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
struct State { float count, h5, h6, m4, m5, m6, s4, s5, s6, q0, q1, q2, q3; };
__device__ __forceinline__ State merged(const State& a, const State& b) {
  State y;
  y.count = a.count + b.count;
  const float part = y.count == 0 ? 0 : b.count / y.count;
  y.h5 = a.h5;
  y.h6 = a.h6;
  const float away4 = b.m4 - a.m4;
  y.m4 = a.m4 + away4 * part;
  const float away5 = b.m5 - a.m5;
  y.m5 = a.m5 + away5 * part;
  const float away6 = b.m6 - a.m6;
  y.m6 = a.m6 + away6 * part;
  y.s4 = a.s4 + b.s4;
  y.s5 = a.s5 + b.s5;
  y.s6 = a.s6 + b.s6;
  y.q0 = a.q0 + b.q0 + away5 * away5 * (a.count * part);
  y.q1 = a.q1 + b.q1 + away4 * away5 * (a.count * part);
  y.q2 = a.q2 + b.q2 + away6 * away6 * (a.count * part);
  y.q3 = a.q3 + b.q3 + away4 * away6 * (a.count * part);
  return y;
}
__device__ __forceinline__ State read(const float* states, u64 stride, float count) {
  State y;
  y.count = count;
  y.h5 = states[0 * stride];
  y.h6 = states[1 * stride];
  y.m4 = states[2 * stride];
  y.m5 = states[3 * stride];
  y.m6 = states[4 * stride];
  y.s4 = states[5 * stride];
  y.s5 = states[6 * stride];
  y.s6 = states[7 * stride];
  y.q0 = states[8 * stride];
  y.q1 = states[9 * stride];
  y.q2 = states[10 * stride];
  y.q3 = states[11 * stride];
  return y;
}
__device__ __forceinline__ void write(float* states, u64 stride, const State& x) {
  states[0 * stride] = x.h5;
  states[1 * stride] = x.h6;
  states[2 * stride] = x.m4;
  states[3 * stride] = x.m5;
  states[4 * stride] = x.m6;
  states[5 * stride] = x.s4;
  states[6 * stride] = x.s5;
  states[7 * stride] = x.s6;
  states[8 * stride] = x.q0;
  states[9 * stride] = x.q1;
  states[10 * stride] = x.q2;
  states[11 * stride] = x.q3;
}
extern "C" __global__ void add_greater_where_and_41_f32(const float* states, u64 channels_, u64 parts_, u64 stride_, u64 vectors_, const float* x0, const float* x1, const float* x2, const float* x3, const float* x4, float* y1, float* y2, float* y4, float* y5, float* z5, float* z6, float* z8, float* z9, float* z11, float* z12, float* z14, float* z15, u64 n_) {
  const u32 channels = (u32)channels_;
  const u32 parts = (u32)parts_;
  const u32 stride = (u32)stride_;
  const u32 vectors = (u32)vectors_;
  const u32 n = (u32)n_;
  for (u64 flat = first(); flat < n; flat += step()) {
    u32 i = flat;
    State state = {0};
    for (u64 part = 0, low = 0; part < parts; part++) {
      const u64 high = (u64)vectors * (part + 1) / parts;
      const State next = read(states + (part * channels + i), stride, (float)((high - low) * 4));
      state = part ? merged(state, next) : next;
      low = high;
    }
    const float count = state.count;
    const float shift0 = 0.0f, rest0 = 0.0f, mean0 = rest0;
    const float shift1 = 0.0f, rest1 = 0.0f, mean1 = rest1;
    const float shift2 = 0.0f, rest2 = 0.0f, mean2 = rest2;
    const float shift3 = 0.0f, rest3 = 0.0f, mean3 = rest3;
    const float shift4 = 0.0f, rest4 = state.s4 / count, mean4 = rest4;
    const float shift5 = state.h5, rest5 = state.s5 / count, mean5 = shift5 + rest5;
    const float shift6 = state.h6, rest6 = state.s6 / count, mean6 = shift6 + rest6;
    const float moment0 = state.q0;
    const float moment1 = state.q1;
    const float moment2 = state.q2;
    const float moment3 = state.q3;
    const float b0 = x0[0];
    const float b1 = x1[0];
    const float b2 = x2[i];
    const float b3 = x3[0];
    const float b4 = x4[i];
    float t0 = 0.0f + 1.0f;
    float t1 = mean0 + mean1;
    float t2 = mean5;
    float t3 = (float)(t2);
    float t4 = mean5 - t3;
    float t5 = t4 * t4;
    float t6 = 1.0f * (moment0 / count) + t5;
    float t7 = (float)(t6);
    float t8 = t7 + b1;
    float t9 = (float)(t8);
    float t10 = sqrtf(t9);
    float t11 = (float)(t10);
    float t12 = __int_as_float(0x3f800000) / t11;
    float t13 = (float)(t12);
    float t14 = t4 * t13;
    float t15 = mean4 * b2;
    float t16 = b2 * t13;
    float t17 = t15 * t14;
    float t18 = t16 * (moment1 / count) + t17;
    float t19 = (float)(t18);
    float t20 = t13 * t19;
    float t21 = t14 * t19;
    float t22 = t15;
    float t23 = (float)(t22);
    float t24 = t15 - t23;
    float t25 = 0.0f - t20;
    float t26 = t24 - t21;
    float t27 = b2 * t13;
    float t28 = t25 * t13;
    float t29 = t26 * t13;
    float t30 = mean4 * t14;
    float t31 = t13 * moment1 + t30 * count;
    float t32 = (float)(t31);
    float t33 = mean4 * count;
    float t34 = (float)(t33);
    float t35 = mean6;
    float t36 = (float)(t35);
    float t37 = mean6 - t36;
    float t38 = t37 * t37;
    float t39 = 1.0f * (moment2 / count) + t38;
    float t40 = (float)(t39);
    float t41 = t40 + b3;
    float t42 = (float)(t41);
    float t43 = sqrtf(t42);
    float t44 = (float)(t43);
    float t45 = __int_as_float(0x3f800000) / t44;
    float t46 = (float)(t45);
    float t47 = t37 * t46;
    float t48 = mean4 * b4;
    float t49 = b4 * t46;
    float t50 = t48 * t47;
    float t51 = t49 * (moment3 / count) + t50;
    float t52 = (float)(t51);
    float t53 = t46 * t52;
    float t54 = t47 * t52;
    float t55 = t48;
    float t56 = (float)(t55);
    float t57 = t48 - t56;
    float t58 = 0.0f - t53;
    float t59 = t57 - t54;
    float t60 = b4 * t46;
    float t61 = t58 * t46;
    float t62 = t59 * t46;
    float t63 = mean4 * t47;
    float t64 = t46 * moment3 + t63 * count;
    float t65 = (float)(t64);
    float t66 = mean4 * count;
    float t67 = (float)(t66);
    y1[i] = t32;
    y2[i] = t34;
    y4[i] = t65;
    y5[i] = t67;
    z5[i] = t3;
    z6[i] = t13;
    z8[i] = t19;
    z9[i] = t23;
    z11[i] = t36;
    z12[i] = t46;
    z14[i] = t52;
    z15[i] = t56;

  }
}
