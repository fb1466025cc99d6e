
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
#define FEW 8
typedef float A;

struct State { A count, mean, square, sum; };
__device__ __forceinline__ State merged(State a, State b) {
  A count = a.count + b.count, part = count == 0 ? 0 : b.count / count, away = b.mean - a.mean;
  return State{count, a.mean + away * part, a.square + b.square + away * away * a.count * part, a.sum + b.sum};
}
__device__ __forceinline__ State of_few(const A* d, int n) {
  A sum = 0, square = 0;
  #pragma unroll
  for (int m = 0; m < FEW; m++) if (m < n) sum += d[m];
  A mean = sum / (A)n;
  #pragma unroll
  for (int m = 0; m < FEW; m++) if (m < n) square += (d[m] - mean) * (d[m] - mean);
  return State{(A)n, mean, square, sum};
}

__device__ State block_state(State x) {
  __shared__ State part[32];
  for (int o = 1; o < 32; o <<= 1) {
    State y;
    y.count = __shfl_down_sync(0xffffffffu, x.count, o);
    y.mean = __shfl_down_sync(0xffffffffu, x.mean, o);
    y.square = __shfl_down_sync(0xffffffffu, x.square, o);
    y.sum = __shfl_down_sync(0xffffffffu, x.sum, o);
    if ((threadIdx.x & (2 * o - 1)) == 0) x = merged(x, y);
  }
  __syncthreads();
  if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = x;
  __syncthreads();
  x = part[0];
  for (u32 w = 1; w < blockDim.x >> 5; w++) x = merged(x, part[w]);
  return x;
}
extern "C" __global__ void batchnormalization_bf16(const u16* from, float* shifts, float* rests, float* variances, State* states, u64 count_, u64 parts_, u64 n_, i64 s1, u64 d2_, i64 s3, u64 b4_, i64 s5) {
  const u32 count = (u32)count_;
  const u32 parts = (u32)parts_;
  const u32 n = (u32)n_;
  const u32 d2 = (u32)d2_;
  const u32 b4 = (u32)b4_;
  u32 i = blockIdx.x / parts, part = blockIdx.x % parts;
  u64 low = (u64)count * part / parts, high = (u64)count * (part + 1) / parts;
  i64 base = ((i64)0 + (i64)(i) * s1);
  A shift = count ? (A)from_bf16(from[base]) : (A)0;
  if (!(fabsf(shift) <= __int_as_float(0x7f7fffff))) shift = 0;
  State state = {0, 0, 0, 0};
  for (u64 start = low + threadIdx.x; start < high; start += FEW * blockDim.x) {
    A d[FEW];
    int many = 0;
    #pragma unroll
    for (int m = 0; m < FEW; m++) {
      u32 k = start + m * blockDim.x;
      if (start + m * blockDim.x < high) { d[m] = (A)from_bf16(from[base + ((i64)0 + (i64)((k) % d2) * s3 + (i64)(k / b4) * s5)]) - shift; many = m + 1; }
    }
    state = merged(state, of_few(d, many));
  }
  state = block_state(state);
  if (threadIdx.x) return;
  if (parts > 1) { states[(u64)part * n + i] = state; return; }
  shifts[i] = shift; rests[i] = state.sum / (A)count; variances[i] = state.square / (A)count;
}
