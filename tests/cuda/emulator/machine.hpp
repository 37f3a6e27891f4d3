// What the parts of the emulator share; kernels do not see it.
#pragma once
#include "gf_emulator.hpp"

#define GF_PUBLIC extern "C" __attribute__((visibility("default")))

namespace gf {

// memory.cpp. One stretch of addresses: shared memory first, then all of device memory.
enum : size_t { REGION = (size_t)1 << 30, HEAP = (size_t)1 << 20 };
extern char *const region;
// A device address is a host address plus this: no program can read through it by mistake, on x86-64 or aarch64.
constexpr uint64_t DEVICE = (uint64_t)1 << 52;

// blocks.cpp
extern const Kernel *kernel;       // the one that runs
extern void *const *actual;        // its arguments, pointers already the host's
[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));  // ends the launch
extern int me;                     // the number of the running thread in its block
const char *thread_name(int number);  // "(1,0,0)"

// race.cpp. The clock ticks at every barrier; accesses with a barrier between them are ordered.
void begin_launch();
void begin_block();
void end_launch();
void note_block_barrier();
void note_warp_barrier(int warp);
void mark_allocation(size_t offset, size_t bytes, bool is_valid);
void describe(char *text, size_t bytes, size_t offset);  // of an address in the region

}  // namespace gf
