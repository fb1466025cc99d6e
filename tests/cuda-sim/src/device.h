// CUDA C++ for the host: what kernels of the CUDA backend use, without NVIDIA's headers. Before the text of each kernel.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(threads)
#define __shared__ static
struct uint3 { unsigned x, y, z; };
// A thread, as blocks.rs has it.
struct SimThread { uint3 tid, bid, bdim, gdim; unsigned lane, parity; uint64_t (*slots)[32]; };
extern "C" { SimThread *sim_thread; void (*sim_wait)(int is_block, int line); }
// The bounds of static memory, in which shared memory lies.
extern "C" char __bss_start[] __attribute__((visibility("hidden"))), _end[] __attribute__((visibility("hidden")));
extern "C" inline __attribute__((used)) void sim_shared(uint64_t *range) { range[0] = (uint64_t)__bss_start, range[1] = (uint64_t)_end; }
#ifdef SIM_RACES
// g++ -fsanitize=thread calls these functions at each access; races.rs sets the one that they tell.
#define SIM_PLAIN __attribute__((no_sanitize("thread"), noinline))
extern "C" { void (*sim_access)(const void *at, unsigned bytes, int kind); }
// Functions that look up the kernel access memory too, before the function is set.
extern "C" SIM_PLAIN void sim_accessed(const void *at, unsigned bytes, int kind) { if (sim_access) sim_access(at, bytes, kind); }
#define SIM_ATOMIC(at) sim_accessed(at, sizeof *(at), 2)
#define SIM_HOOKS(n) \
  extern "C" SIM_PLAIN void __tsan_read##n(void *at) { sim_accessed(at, n, 0); } \
  extern "C" SIM_PLAIN void __tsan_write##n(void *at) { sim_accessed(at, n, 1); } \
  extern "C" SIM_PLAIN void __tsan_unaligned_read##n(void *at) { sim_accessed(at, n, 0); } \
  extern "C" SIM_PLAIN void __tsan_unaligned_write##n(void *at) { sim_accessed(at, n, 1); }
SIM_HOOKS(1)
SIM_HOOKS(2)
SIM_HOOKS(4)
SIM_HOOKS(8)
SIM_HOOKS(16)
extern "C" SIM_PLAIN void __tsan_read_range(void *at, unsigned long n) { sim_accessed(at, (unsigned)n, 0); }
extern "C" SIM_PLAIN void __tsan_write_range(void *at, unsigned long n) { sim_accessed(at, (unsigned)n, 1); }
extern "C" SIM_PLAIN void __tsan_func_entry(void *) {}
extern "C" SIM_PLAIN void __tsan_func_exit(void) {}
extern "C" SIM_PLAIN void __tsan_init(void) {}
#else
#define SIM_PLAIN
#define SIM_ATOMIC(at) (void)0
#endif
#define threadIdx (sim_thread->tid)
#define blockIdx (sim_thread->bid)
#define blockDim (sim_thread->bdim)
#define gridDim (sim_thread->gdim)
#define __syncthreads() sim_wait(1, __LINE__)
// Lanes write to one of two rows of slots in turn: a lane may go on before another has read.
template <class T> static T sim_shuffle(unsigned mask, T x, unsigned from, int line) {
  SimThread *me = sim_thread;
  uint64_t *row = me->slots[me->parity ^= 1], bits = 0;
  std::memcpy(&bits, &x, sizeof x);
  row[me->lane] = bits;
  sim_wait(mask == 0xffffffffu ? 0 : 2, line);
  std::memcpy(&x, &row[from & 31], sizeof x);
  return x;
}
#define __shfl_xor_sync(mask, x, o) sim_shuffle(mask, x, sim_thread->lane ^ (unsigned)(o), __LINE__)
#define __shfl_sync(mask, x, lane) sim_shuffle(mask, x, (unsigned)(lane), __LINE__)
#define __shfl_up_sync(mask, x, o) sim_shuffle(mask, x, sim_thread->lane - (sim_thread->lane < (unsigned)(o) ? 0 : (unsigned)(o)), __LINE__)
#define __shfl_down_sync(mask, x, o) sim_shuffle(mask, x, sim_thread->lane + (sim_thread->lane + (unsigned)(o) > 31 ? 0 : (unsigned)(o)), __LINE__)
#define __syncwarp() sim_wait(0, __LINE__)
static unsigned sim_ballot(unsigned mask, bool x, int line) {
  SimThread *me = sim_thread;
  uint64_t *row = me->slots[me->parity ^= 1];
  row[me->lane] = x;
  sim_wait(mask == 0xffffffffu ? 0 : 2, line);
  unsigned lanes = 0;
  for (int lane = 0; lane < 32; lane++) lanes |= (unsigned)(row[lane] & 1) << lane;
  return lanes;
}
#define __ballot_sync(mask, x) sim_ballot(mask, x, __LINE__)
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
template <class To, class From> static To sim_bits(From x) { To y; static_assert(sizeof x == sizeof y); std::memcpy(&y, &x, sizeof x); return y; }
static inline float __uint_as_float(unsigned x) { return sim_bits<float>(x); }
static inline float __int_as_float(int x) { return sim_bits<float>(x); }
static inline unsigned __float_as_uint(float x) { return sim_bits<unsigned>(x); }
static inline int __float_as_int(float x) { return sim_bits<int>(x); }
static inline double __longlong_as_double(long long x) { return sim_bits<double>(x); }
static inline long long __double_as_longlong(double x) { return sim_bits<long long>(x); }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
template <class T> static T min(T a, T b) { return b < a ? b : a; }
template <class T> static T max(T a, T b) { return a < b ? b : a; }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
// Coroutines of one thread of the host: a read and a write are one operation.
template <class T> static SIM_PLAIN T atomicCAS(T *at, T expected, T x) { SIM_ATOMIC(at); T old = *at; if (old == expected) *at = x; return old; }
template <class T> static SIM_PLAIN T atomicExch(T *at, T x) { SIM_ATOMIC(at); T old = *at; *at = x; return old; }
template <class T> static SIM_PLAIN T atomicAdd(T *at, T x) { SIM_ATOMIC(at); T old = *at; *at = old + x; return old; }
template <class T> static SIM_PLAIN T atomicMax(T *at, T x) { SIM_ATOMIC(at); T old = *at; if (old < x) *at = x; return old; }
// Instructions of PTX, by name.
static inline float ptx_cvt_f32_f16(unsigned short x) { return (float)sim_bits<_Float16>(x); }
static inline unsigned short ptx_cvt_rn_f16_f32(float x) { return x != x ? 0x7fff : sim_bits<unsigned short>((_Float16)x); }
static inline unsigned short ptx_cvt_rn_bf16_f32(float x) {
  unsigned bits = sim_bits<unsigned>(x);
  return x != x ? 0x7fff : (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
// The arguments of a kernel, by their addresses.
template <class... A> static int sim_count(void (*)(A...)) { return sizeof...(A); }
template <class T> struct sim_plain { typedef T type; };
template <class T> struct sim_plain<const T> { typedef T type; };
template <int... I> struct sim_places {};
// A kernel has hundreds of arguments, so that no template is nested as deeply.
template <class... A, int... I> static void sim_call(void (*f)(A...), void **args, sim_places<I...>) {
  f(*(typename sim_plain<A>::type *)args[I]...);
}
template <class... A> static void sim_call(void (*f)(A...), void **args) {
  sim_call(f, args, sim_places<__integer_pack(sizeof...(A))...>());
}
