// Runs CUDA kernels on the CPU, to prove them correct where there is no GPU. Nothing here says how fast they are.
//
// A block's threads are fibers of one operating-system thread, and blocks run one after another. Barriers, shuffles and
// votes wait for the threads they must wait for; one that cannot be reached by all of them is an error, not a hang.
// In a build with race checks, every access of a kernel to device or shared memory is compared with others: race.cpp.
#pragma once
#include <cstddef>

#include "cuda_language.hpp"

namespace gf {

struct Array {  // in shared memory
  const char *name;
  size_t offset, bytes;
};

struct Argument {
  const char *name;
  bool is_pointer;
  size_t size;   // its own
  size_t bytes;  // of what it points to, 0 where that is not known
};

struct Kernel {
  const char *name;
  void (*call)(void *const *arguments);  // as cuLaunchKernel has them: the address of each
  int most_threads;                      // of a block, by __launch_bounds__; 0 where there are none
  bool has_barriers;                     // if not, threads run to their ends without fibers of their own
  bool has_warp_barriers;
  const Argument *arguments;
  int argument_count;
  const Array *shared;
  int shared_count;
  size_t shared_bytes;  // with the guards between the arrays
};

// Given by the translation unit of the kernels.
extern const Kernel kernels[];
extern const int kernel_count;
extern const bool checks_races;

enum { WARP = 32, MOST_THREADS = 1024, SHARED_BYTES = 48 << 10, SHARED_GUARD = 256 };

extern uint3 thread_index, block_index;
extern dim3 block_size, grid_size;
extern char *const shared_memory;

void block_barrier(int line);
void warp_barrier(int line, unsigned mask = 0xffffffffu);
unsigned active_mask(int line);
uint64_t exchange(unsigned mask, uint64_t value, int from, int line);  // lane `from`'s value; all ones if it has none
int lane();

[[noreturn]] void fail_misaligned(const volatile void *address, size_t bytes, size_t alignment);

// A device takes vectors at multiples of their size only. The compiler may take them apart, so this is asked first.
template <class Vector>
inline Vector *vector_at(const volatile void *address) {
  if ((uintptr_t)address % alignof(Vector)) fail_misaligned(address, sizeof(Vector), alignof(Vector));
  return (Vector *)address;
}

enum class Shuffle { FROM, UP, DOWN, XOR };

// Lanes talk within groups of `width`; whoever asks beyond its group gets its own value.
inline int source(Shuffle kind, int me, int by, int width) {
  int first = me / width * width, last = first + width - 1;
  switch (kind) {
    case Shuffle::FROM: return first + (by & (width - 1));
    case Shuffle::UP: return me - by < first ? me : me - by;
    case Shuffle::DOWN: return me + by > last ? me : me + by;
    default: return (me ^ by) > last ? me : me ^ by;
  }
}

template <class T>
T shuffle(Shuffle kind, int line, unsigned mask, T value, int by, int width = WARP) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof value);
  bits = exchange(mask, bits, source(kind, lane(), by, width), line);
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace gf

// At the head of every kernel: a thread's coordinates do not change, so they may stay in registers.
#define GF_COORDINATES                                                                \
  [[maybe_unused]] const uint3 threadIdx = gf::thread_index, blockIdx = gf::block_index; \
  [[maybe_unused]] const dim3 blockDim = gf::block_size, gridDim = gf::grid_size

#define __syncthreads() gf::block_barrier(__LINE__)
#define __syncwarp(...) gf::warp_barrier(__LINE__ __VA_OPT__(, ) __VA_ARGS__)
#define __activemask() gf::active_mask(__LINE__)
#define __shfl_sync(...) gf::shuffle(gf::Shuffle::FROM, __LINE__, __VA_ARGS__)
#define __shfl_up_sync(...) gf::shuffle(gf::Shuffle::UP, __LINE__, __VA_ARGS__)
#define __shfl_down_sync(...) gf::shuffle(gf::Shuffle::DOWN, __LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...) gf::shuffle(gf::Shuffle::XOR, __LINE__, __VA_ARGS__)
