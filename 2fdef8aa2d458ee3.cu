
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
extern "C" __global__ void add_greater_where_and_45_f32(const float* states, u64 channels_, u64 parts_, u64 stride_, u64 vectors_, const u16* x0, const float* x1, const float* x2, const float* x3, const float* x4, float* y1, float* y2, float* y4, float* y5, float* z5, float* z6, float* z8, float* z9, float* z11, float* z12, float* z14, float* z15, u64 n_) {
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
      const State next = read(states + (part * channels + i), stride, (float)((high - low) * 1));
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
    const u16 b0 = x0[0];
    const float b1 = x1[0];
    const float b2 = x2[i];
    const float b3 = x3[0];
    const float b4 = x4[i];
    float t0 = from_bf16(b0);
    float t1 = mean5;
    float t2 = (float)(t1);
    float t3 = mean5 - t2;
    float t4 = t3 * t3;
    float t5 = 1.0f * (moment0 / count) + t4;
    float t6 = (float)(t5);
    float t7 = t6 + b1;
    float t8 = (float)(t7);
    float t9 = sqrtf(t8);
    float t10 = (float)(t9);
    float t11 = __int_as_float(0x3f800000) / t10;
    float t12 = (float)(t11);
    float t13 = t3 * t12;
    float t14 = mean4 * b2;
    float t15 = b2 * t12;
    float t16 = t14 * t13;
    float t17 = t15 * (moment1 / count) + t16;
    float t18 = (float)(t17);
    float t19 = t12 * t18;
    float t20 = t13 * t18;
    float t21 = t14;
    float t22 = (float)(t21);
    float t23 = t14 - t22;
    float t24 = 0.0f - t19;
    float t25 = t23 - t20;
    float t26 = b2 * t12;
    float t27 = t24 * t12;
    float t28 = t25 * t12;
    float t29 = mean4 * t13;
    float t30 = t12 * moment1 + t29 * count;
    float t31 = (float)(t30);
    float t32 = mean4 * count;
    float t33 = (float)(t32);
    float t34 = mean6;
    float t35 = (float)(t34);
    float t36 = mean6 - t35;
    float t37 = t36 * t36;
    float t38 = 1.0f * (moment2 / count) + t37;
    float t39 = (float)(t38);
    float t40 = t39 + b3;
    float t41 = (float)(t40);
    float t42 = sqrtf(t41);
    float t43 = (float)(t42);
    float t44 = __int_as_float(0x3f800000) / t43;
    float t45 = (float)(t44);
    float t46 = t36 * t45;
    float t47 = mean4 * b4;
    float t48 = b4 * t45;
    float t49 = t47 * t46;
    float t50 = t48 * (moment3 / count) + t49;
    float t51 = (float)(t50);
    float t52 = t45 * t51;
    float t53 = t46 * t51;
    float t54 = t47;
    float t55 = (float)(t54);
    float t56 = t47 - t55;
    float t57 = 0.0f - t52;
    float t58 = t56 - t53;
    float t59 = b4 * t45;
    float t60 = t57 * t45;
    float t61 = t58 * t45;
    float t62 = mean4 * t46;
    float t63 = t45 * moment3 + t62 * count;
    float t64 = (float)(t63);
    float t65 = mean4 * count;
    float t66 = (float)(t65);
    y1[i] = t31;
    y2[i] = t33;
    y4[i] = t64;
    y5[i] = t66;
    z5[i] = t2;
    z6[i] = t12;
    z8[i] = t18;
    z9[i] = t22;
    z11[i] = t35;
    z12[i] = t45;
    z14[i] = t51;
    z15[i] = t55;

  }
}
