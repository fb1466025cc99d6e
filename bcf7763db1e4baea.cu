
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
struct State { float count, s2; };
__device__ __forceinline__ State merged(const State& a, const State& b) {
  State y;
  y.count = a.count + b.count;
  const float part = y.count == 0 ? 0 : b.count / y.count;
  y.s2 = a.s2 + b.s2;
  return y;
}
__device__ __forceinline__ State read(const float* states, u64 stride, float count) {
  State y;
  y.count = count;
  y.s2 = states[0 * stride];
  return y;
}
__device__ __forceinline__ void write(float* states, u64 stride, const State& x) {
  states[0 * stride] = x.s2;
}
__device__ __forceinline__ State of_few(const float* few2, int n) {
  State y;
  y.count = n;
  y.s2 = 0;
  #pragma unroll
  for (int m = 0; m < 8; m++) if (m < n) y.s2 += few2[m];
  return y;
}
__device__ State block_state(State x) {
  __shared__ State part[32];
  for (int o = 1; o < 32; o <<= 1) {
    State y;
    y.count = __shfl_down_sync(0xffffffffu, x.count, o);
    y.s2 = __shfl_down_sync(0xffffffffu, x.s2, o);
    if ((threadIdx.x & (2 * o - 1)) == 0) x = merged(x, y);
  }
  __syncthreads();
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = x;
  __syncthreads();
  x = part[0];
  for (u32 w = 1; w < blockDim.x >> 5; w++) x = merged(x, part[w]);
  return x;
}
extern "C" __global__ void cast_sub_sub_and_5_f16(const u16* x0, const float* x1, const float* x2, u64 bx1_, u64 dx2_, i64 sx3, u64 bx4_, i64 sx5, const float* x3, u64 dx6_, i64 sx7, u64 bx8_, i64 sx9, float* states, u64 channels_, u64 inner_, u64 count_, u64 parts_, u64 stride_) {
  const u32 bx1 = (u32)bx1_;
  const u32 dx2 = (u32)dx2_;
  const u32 bx4 = (u32)bx4_;
  const u32 dx6 = (u32)dx6_;
  const u32 bx8 = (u32)bx8_;
  const u32 channels = (u32)channels_;
  const u32 inner = (u32)inner_;
  const u32 count = (u32)count_;
  const u32 parts = (u32)parts_;
  const u32 stride = (u32)stride_;
  const u32 c = blockIdx.x / parts, part = blockIdx.x % parts;
  const u32 lane = threadIdx.x, lanes = blockDim.x;
  const bool is_in = true;
  const u64 low = (u64)(count / 4) * part / parts * 4, high = (u64)(count / 4) * (part + 1) / parts * 4;
  const float b1 = x1[c];
  const bool whole = (((u64)x0) & 15) == 0;
  State state;
  state.count = 0;
  state.s2 = 0;
  for (u64 start = low; start < high; start += (u64)lanes * 8) {
    float few2[8];
    int many = 0;
    #pragma unroll
    for (int u = 0; u < 2; u++) {
      const u64 k = start + ((u64)u * lanes + lane) * 4;
      if (k >= high) continue;
      const u32 o = (u32)k / inner, at = (o * channels + c) * inner + ((u32)k - o * inner);
      const Vector<u16, 4> v0 = taken<4>(x0 + at, whole);
      const float b2 = x2[((i64)0 + (i64)(((at) / bx1) % dx2) * sx3 + (i64)((at) / bx4) * sx5)];
      #pragma unroll
      for (int v = 0; v < 4; v++) {
      const u16 b0 = v0.at[v];
      const float b3 = x3[((i64)0 + (i64)(((at + v)) % dx6) * sx7 + (i64)((at + v) / bx8) * sx9)];
    float t0 = from_f16(b0);
    float t1 = (float)(t0);
    float t2 = t1 - b1;
    float t3 = (float)(t2);
    float t4 = t3 - b2;
    float t5 = (float)(t4);
    float t6 = t5 * b3;
    float t7 = (float)(t6);
      few2[u * 4 + v] = t7;
      }
      many = (u + 1) * 4;
    }
    if (many) state = merged(state, of_few(few2, many));
  }
  state = block_state(state);
  if (threadIdx.x) return;
  write(states + ((u64)part * channels + c), stride, state);
}
