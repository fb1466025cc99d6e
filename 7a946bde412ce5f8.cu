
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

template <int V, class T> __device__ __forceinline__ Vector<T, V> taken(const T* from, bool whole) {
  if (whole) return load<V>(from);
  Vector<T, V> x;
  #pragma unroll
  for (int v = 0; v < V; v++) x.at[v] = from[v];
  return x;
}
template <int V, class T> __device__ __forceinline__ void put(T* to, const Vector<T, V>& x, bool whole) {
  if (whole) { store<V>(to, x); return; }
  #pragma unroll
  for (int v = 0; v < V; v++) to[v] = x.at[v];
}
struct State { float count, h0, m0, s0, q0; };
__device__ __forceinline__ State merged(const State& a, const State& b) {
  State y;
  y.count = a.count + b.count;
  const float part = y.count == 0 ? 0 : b.count / y.count;
  y.h0 = a.h0;
  const float away0 = b.m0 - a.m0;
  y.m0 = a.m0 + away0 * part;
  y.s0 = a.s0 + b.s0;
  y.q0 = a.q0 + b.q0 + away0 * away0 * (a.count * part);
  return y;
}
__device__ __forceinline__ State read(const float* states, u64 stride, float count) {
  State y;
  y.count = count;
  y.h0 = states[0 * stride];
  y.m0 = states[1 * stride];
  y.s0 = states[2 * stride];
  y.q0 = states[3 * stride];
  return y;
}
__device__ __forceinline__ void write(float* states, u64 stride, const State& x) {
  states[0 * stride] = x.h0;
  states[1 * stride] = x.m0;
  states[2 * stride] = x.s0;
  states[3 * stride] = x.q0;
}
__device__ __forceinline__ State of_few(const float* few0, int n) {
  State y;
  y.count = n;
  y.h0 = 0;
  y.s0 = 0;
  #pragma unroll
  for (int m = 0; m < 8; m++) if (m < n) y.s0 += few0[m];
  y.m0 = y.s0 / (float)n;
  y.q0 = 0;
  #pragma unroll
  for (int m = 0; m < 8; m++) if (m < n) y.q0 += (few0[m] - y.m0) * (few0[m] - y.m0);
  return y;
}
__device__ State block_state(State x) {
  __shared__ State part[32];
  for (int o = 1; o < 32; o <<= 1) {
    State y;
    y.count = __shfl_down_sync(0xffffffffu, x.count, o);
    y.h0 = __shfl_down_sync(0xffffffffu, x.h0, o);
    y.m0 = __shfl_down_sync(0xffffffffu, x.m0, o);
    y.s0 = __shfl_down_sync(0xffffffffu, x.s0, o);
    y.q0 = __shfl_down_sync(0xffffffffu, x.q0, o);
    if ((threadIdx.x & (2 * o - 1)) == 0) x = merged(x, y);
  }
  __syncthreads();
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = x;
  __syncthreads();
  x = part[0];
  for (u32 w = 1; w < blockDim.x >> 5; w++) x = merged(x, part[w]);
  return x;
}
extern "C" __global__ void batchnormalization_add_relu_f16(const u16* x0, float* states, u64 channels_, u64 inner_, u64 count_, u64 parts_, u64 stride_) {
  const u32 channels = (u32)channels_;
  const u32 inner = (u32)inner_;
  const u32 count = (u32)count_;
  const u32 parts = (u32)parts_;
  const u32 stride = (u32)stride_;
  u32 c = blockIdx.x / parts * 32 + (threadIdx.x & 31), part = blockIdx.x % parts;
  const u32 lane = threadIdx.x >> 5, lanes = 8;
  const bool is_in = c < channels;
  if (!is_in) c = 0;
  const u64 low = (u64)count * part / parts, high = is_in ? (u64)count * (part + 1) / parts : 0;
  const bool whole = (((u64)x0) & 15) == 0;
  State state;
  state.count = 0;
  state.h0 = 0;
  state.m0 = 0;
  state.s0 = 0;
  state.q0 = 0;
  if (is_in) {
    const u32 at = c * inner; const int v = 0;
    const u16 b0 = x0[at];
    float t0 = from_f16(b0);
    if (is_finite(t0)) state.h0 = t0;
  }
  for (u64 start = low; start < high; start += (u64)lanes * 8) {
    float few0[8];
    int many = 0;
    #pragma unroll
    for (int u = 0; u < 8; u++) {
      const u64 k = start + ((u64)u * lanes + lane) * 1;
      if (k >= high) continue;
      const u32 o = (u32)k / inner, at = (o * channels + c) * inner + ((u32)k - o * inner);
      const Vector<u16, 1> v0 = taken<1>(x0 + at, whole);
      #pragma unroll
      for (int v = 0; v < 1; v++) {
      const u16 b0 = v0.at[v];
    float t0 = from_f16(b0);
      few0[u * 1 + v] = t0 - state.h0;
      }
      many = (u + 1) * 1;
    }
    if (many) state = merged(state, of_few(few0, many));
  }
  __shared__ State rows[8][32];
  rows[lane][threadIdx.x & 31] = state;
  __syncthreads();
  if (lane || !is_in) return;
  for (u32 r = 1; r < lanes; r++) state = merged(state, rows[r][threadIdx.x & 31]);
  write(states + ((u64)part * channels + c), stride, state);
}
