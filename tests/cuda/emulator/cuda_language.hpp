// The words of CUDA C that TVM's code generator uses, for a C++ compiler: vector types, conversions, mathematics.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

#define GF_VECTORS(scalar, name)                                                      \
  struct alignas(2 * sizeof(scalar)) name##2 { scalar x, y; };                        \
  struct name##3 { scalar x, y, z; };                                                 \
  struct alignas(sizeof(scalar) < 8 ? 4 * sizeof(scalar) : 16) name##4 { scalar x, y, z, w; }; \
  static inline name##2 make_##name##2(scalar x, scalar y) { return {x, y}; }         \
  static inline name##3 make_##name##3(scalar x, scalar y, scalar z) { return {x, y, z}; } \
  static inline name##4 make_##name##4(scalar x, scalar y, scalar z, scalar w) { return {x, y, z, w}; }
GF_VECTORS(signed char, char)
GF_VECTORS(unsigned char, uchar)
GF_VECTORS(short, short)
GF_VECTORS(unsigned short, ushort)
GF_VECTORS(int, int)
GF_VECTORS(unsigned int, uint)
GF_VECTORS(long long, longlong)
GF_VECTORS(unsigned long long, ulonglong)
GF_VECTORS(float, float)
GF_VECTORS(double, double)
#undef GF_VECTORS

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
};

// CUDA's min and max take operands of two types, and of two floats return the one that is a number.
template <class A, class B>
using gf_common = std::enable_if_t<std::is_arithmetic_v<A> && std::is_arithmetic_v<B>, std::common_type_t<A, B>>;

template <class A, class B>
static inline gf_common<A, B> max(A a, B b) {
  using T = gf_common<A, B>;
  if constexpr (std::is_floating_point_v<T>) return std::fmax((T)a, (T)b);
  return (T)a < (T)b ? (T)b : (T)a;
}

template <class A, class B>
static inline gf_common<A, B> min(A a, B b) {
  using T = gf_common<A, B>;
  if constexpr (std::is_floating_point_v<T>) return std::fmin((T)a, (T)b);
  return (T)b < (T)a ? (T)b : (T)a;
}

template <class T>
static inline T __ldg(const T *address) {
  return *address;
}

template <class To, class From>
static inline To gf_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}
static inline int __float_as_int(float value) { return gf_bits<int>(value); }
static inline unsigned __float_as_uint(float value) { return gf_bits<unsigned>(value); }
static inline float __int_as_float(int value) { return gf_bits<float>(value); }
static inline float __uint_as_float(unsigned value) { return gf_bits<float>(value); }

static inline int __popc(unsigned value) { return __builtin_popcount(value); }
static inline int __popcll(unsigned long long value) { return __builtin_popcountll(value); }
static inline int __clz(int value) { return value ? __builtin_clz((unsigned)value) : 32; }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((uint64_t)a * b >> 32); }
static inline int __mulhi(int a, int b) { return (int)((int64_t)a * b >> 32); }

static inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
static inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
// The fast variants are wrong for some arguments (__powf of a negative base is NaN, __logf near one loses most digits),
// which no emulation on exact functions would show: kernels that use them are refused.
#pragma GCC poison __expf __exp10f __logf __log2f __log10f __powf __sinf __cosf __tanf __fdividef
