// A launch: its blocks one after another, the threads of a block as fibers that take turns at barriers.
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "fiber.hpp"
#include "machine.hpp"

namespace gf {

enum class State { READY, AT_BLOCK_BARRIER, AT_WARP_BARRIER, AT_SHUFFLE, AT_ACTIVEMASK, DONE };

struct Thread {
  void *stack;
  State state;
  int line;       // of the source, where it waits
  unsigned mask;  // the lanes it waits for, or the answer of active_mask
  int from;
  uint64_t value;  // what it offers, then what it got
  uint3 index;
};

const Kernel *kernel;
void *const *actual;
int me;
uint3 thread_index, block_index;
dim3 block_size, grid_size;

static Thread threads[MOST_THREADS];
static int count, waiting, living;
static int ready[MOST_THREADS / WARP];  // threads of each warp that can run
static void *launcher;                  // the stack that called launch
static char failure[1024];


int lane() { return me % WARP; }

const char *thread_name(int number) {
  static char names[2][48];  // two fit in one message
  static int turn;
  char *name = names[turn = !turn];
  uint3 index = number < count ? threads[number].index : uint3{};
  snprintf(name, sizeof names[0], "(%u,%u,%u)", index.x, index.y, index.z);
  return name;
}

void fail(const char *format, ...) {
  int used = snprintf(failure, sizeof failure, "kernel '%s', block (%u,%u,%u): ", kernel->name, block_index.x,
                      block_index.y, block_index.z);
  va_list rest;
  va_start(rest, format);
  vsnprintf(failure + used, sizeof failure - (size_t)used, format, rest);
  va_end(rest);
  void *abandoned;
  gf_switch(&abandoned, launcher);
  __builtin_unreachable();
}

void fail_misaligned(const volatile void *address, size_t bytes, size_t alignment) {
  char place[160] = "a variable of its own";
  size_t offset = (size_t)((const volatile char *)address - region);
  if (offset < REGION) describe(place, sizeof place, offset);
  fail("thread %s accesses a vector of %zu bytes at no multiple of %zu: %s", thread_name(me), bytes, alignment, place);
}

static const char *situation(const Thread &thread) {
  static char texts[2][64];
  static int turn;
  static const char *const places[] = {"runs", "__syncthreads", "__syncwarp", "a shuffle", "__activemask", ""};
  if (thread.state == State::DONE) return "has exited";
  char *text = texts[turn = !turn];
  snprintf(text, sizeof texts[0], "waits at %s, line %d", places[(int)thread.state], thread.line);
  return text;
}

[[noreturn]] static void fail_divergent(int one, int other) {
  fail("divergent barrier: thread %s %s, but thread %s %s", thread_name(one), situation(threads[one]),
       thread_name(other), situation(threads[other]));
}

[[noreturn]] static void fail_stuck() {
  int first = 0;
  while (threads[first].state == State::DONE) ++first;
  for (int i = 0; i < count; ++i)
    if (threads[i].state != threads[first].state || threads[i].line != threads[first].line) fail_divergent(first, i);
  fail("thread %s %s for lanes 0x%08x, which do not wait for the same lanes", thread_name(first),
       situation(threads[first]), threads[first].mask);
}

static unsigned existing_lanes(int warp) {
  int lanes = count - warp * WARP;
  return lanes >= WARP ? 0xffffffffu : (1u << lanes) - 1;
}

static void wake(int number) {
  threads[number].state = State::READY;
  ++ready[number / WARP];
}

// Those lanes are active together that are at one place once nobody in the warp can go on.
static void answer_active_masks(int warp) {
  Thread *lanes = threads + warp * WARP;
  unsigned existing = existing_lanes(warp), mask[WARP] = {};
  for (int i = 0; i < WARP; ++i)
    for (int j = 0; j < WARP; ++j)
      if ((existing >> i & existing >> j & 1) && lanes[i].state == State::AT_ACTIVEMASK &&
          lanes[j].state == State::AT_ACTIVEMASK && lanes[i].line == lanes[j].line)
        mask[i] |= 1u << j;
  for (int i = 0; i < WARP; ++i)
    if (mask[i]) {
      lanes[i].mask = mask[i];
      wake(warp * WARP + i);
    }
}

static void run_another() {
  if (--ready[me / WARP] == 0) answer_active_masks(me / WARP);
  int next = me;
  do {
    next = next + 1 == count ? 0 : next + 1;
  } while (threads[next].state != State::READY && next != me);
  if (threads[next].state != State::READY) fail_stuck();
  void **save = &threads[me].stack;
  if (next == me) return;
  me = next;
  thread_index = threads[next].index;
  gf_switch(save, threads[next].stack);
}

void block_barrier(int line) {
  threads[me].state = State::AT_BLOCK_BARRIER;
  threads[me].line = line;
  if (++waiting < count) return run_another();
  for (int i = 0; i < count; ++i)
    if (threads[i].line != line) fail_divergent(me, i);
  waiting = 0;
  --ready[me / WARP];
  for (int i = 0; i < count; ++i) wake(i);
  note_block_barrier();
}

// Whether all lanes of the mask have come to where this thread is.
static bool meet(State state, unsigned mask, int line) {
  Thread *lanes = threads + me / WARP * WARP;
  lanes[lane()].state = state;
  lanes[lane()].line = line;
  lanes[lane()].mask = mask &= existing_lanes(me / WARP);
  if (!(mask >> lane() & 1)) fail("thread %s %s with mask 0x%08x, which leaves it out", thread_name(me),
                                  situation(lanes[lane()]), mask);
  for (int i = 0; i < WARP; ++i)
    if ((mask >> i & 1) && (lanes[i].state != state || lanes[i].line != line || lanes[i].mask != mask)) return false;
  return true;
}

static void release(unsigned mask) {
  --ready[me / WARP];
  for (int i = 0; i < WARP; ++i)
    if (mask >> i & 1) wake(me / WARP * WARP + i);
}

void warp_barrier(int line, unsigned mask) {
  if (!meet(State::AT_WARP_BARRIER, mask, line)) return run_another();
  note_warp_barrier(me / WARP);
  release(threads[me].mask);
}

unsigned active_mask(int line) {
  threads[me].state = State::AT_ACTIVEMASK;
  threads[me].line = line;
  run_another();
  return threads[me].mask;
}

uint64_t exchange(unsigned mask, uint64_t value, int from, int line) {
  threads[me].value = value;
  threads[me].from = from;
  if (!meet(State::AT_SHUFFLE, mask, line)) {
    run_another();
    return threads[me].value;
  }
  Thread *lanes = threads + me / WARP * WARP;
  mask = threads[me].mask;
  uint64_t offered[WARP];
  for (int i = 0; i < WARP; ++i) offered[i] = mask >> i & 1 ? lanes[i].value : ~(uint64_t)0;
  for (int i = 0; i < WARP; ++i)
    if (mask >> i & 1) lanes[i].value = offered[lanes[i].from];
  release(mask);
  return threads[me].value;
}

static void enter_thread() {
  kernel->call(actual);
  threads[me].state = State::DONE;
  if (--living == 0) {
    void *abandoned;
    gf_switch(&abandoned, launcher);
  }
  run_another();
}

// A kernel without barriers needs one fiber, which an error can be taken away from.
static void enter_block() {
  for (me = 0; me < count; ++me) {
    thread_index = threads[me].index;
    kernel->call(actual);
  }
  void *abandoned;
  gf_switch(&abandoned, launcher);
}

static void run_block() {
  memset(shared_memory, 0xff, kernel->shared_bytes);  // NaN: what nobody has written must not be read
  begin_block();
  me = waiting = 0;
  living = count;
  thread_index = threads[0].index;
  int fibers = kernel->has_barriers ? count : 1;
  for (int i = 0; i < fibers; ++i) {
    threads[i].state = State::READY;
    threads[i].stack = prepare_fiber(i, kernel->has_barriers ? enter_thread : enter_block);
  }
  for (int i = 0; i < count; i += WARP) ready[i / WARP] = count - i < WARP ? count - i : WARP;
  gf_switch(&launcher, threads[0].stack);
}

static void run_blocks() {
  for (unsigned z = 0; z < grid_size.z; ++z)
    for (unsigned y = 0; y < grid_size.y; ++y)
      for (unsigned x = 0; x < grid_size.x && !failure[0]; ++x) {
        block_index = {x, y, z};
        run_block();
      }
}

// Without race checks, only what leaves its page is seen.
static void on_fault(int, siginfo_t *info, void *) {
  size_t offset = (size_t)((char *)info->si_addr - region);
  char place[160] = "an address that is not the device's";
  if (offset < REGION) describe(place, sizeof place, offset);
  fail("thread %s accesses memory outside of every allocation: %s", thread_name(me), place);
}

static void launch() {
  struct sigaction action = {}, before;
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSEGV, &action, &before);
  begin_launch();
  run_blocks();
  end_launch();
  sigaction(SIGSEGV, &before, nullptr);
}

static bool refuse(const char *what, unsigned long long value, unsigned long long most) {
  const char *text = "kernel '%s': %s of %llu; at most %llu, at least 1";
  snprintf(failure, sizeof failure, text, kernel->name, what, value, most);
  return true;
}

// What every device since sm_30 allows.
static bool is_refused() {
  unsigned long long all = 1ull * block_size.x * block_size.y * block_size.z;
  unsigned long long most = kernel->most_threads ? (unsigned)kernel->most_threads : (unsigned)MOST_THREADS;
  if (all == 0 || all > most) return refuse("a block", all, most);
  if (block_size.z > 64) return refuse("a block with z", block_size.z, 64);
  if (grid_size.x == 0 || grid_size.x > 0x7fffffffu) return refuse("a grid with x", grid_size.x, 0x7fffffffu);
  if (grid_size.y == 0 || grid_size.y > 65535) return refuse("a grid with y", grid_size.y, 65535);
  if (grid_size.z == 0 || grid_size.z > 65535) return refuse("a grid with z", grid_size.z, 65535);
  return false;
}

}  // namespace gf

GF_PUBLIC const char *gf_emulator_error() { return gf::failure; }

GF_PUBLIC int gf_emulator_kernel(const char *name) {
  for (int i = 0; i < gf::kernel_count; ++i)
    if (!strcmp(gf::kernels[i].name, name)) return i;
  return -1;
}

// Bytes of a kernel's argument itself; 0 after its last one.
GF_PUBLIC size_t gf_emulator_argument_size(int number, int argument) {
  const gf::Kernel &kernel = gf::kernels[number];
  return argument < kernel.argument_count ? kernel.arguments[argument].size : 0;
}

static void set_sizes(int number, const unsigned *sizes) {
  gf::failure[0] = 0;
  gf::kernel = &gf::kernels[number];
  gf::grid_size = {sizes[0], sizes[1], sizes[2]};
  gf::block_size = {sizes[3], sizes[4], sizes[5]};
}

// Whether a device would take a launch of these sizes: the grid's x, y, z and the block's. 0, or -1 with an error text.
GF_PUBLIC int gf_emulator_check_launch(int number, const unsigned *sizes) {
  set_sizes(number, sizes);
  return gf::is_refused() ? -1 : 0;
}

// Runs the kernel; `arguments` as cuLaunchKernel takes them, the address of each. 0, or -1 with an error text.
GF_PUBLIC int gf_emulator_launch(int number, const unsigned *sizes, void **arguments) {
  if (gf_emulator_check_launch(number, sizes)) return -1;
  void *addresses[256], *translated[256];
  for (int i = 0; i < gf::kernel->argument_count; ++i) {
    translated[i] = arguments[i];
    if (!gf::kernel->arguments[i].is_pointer) continue;
    addresses[i] = *(char **)arguments[i] - gf::DEVICE;
    translated[i] = &addresses[i];
  }
  gf::actual = translated;
  gf::count = (int)(sizes[3] * sizes[4] * sizes[5]);
  for (int i = 0; i < gf::count; ++i)
    gf::threads[i].index = {i % sizes[3], i / sizes[3] % sizes[4], i / (sizes[3] * sizes[4])};
  gf::launch();
  return gf::failure[0] ? -1 : 0;
}
