// Every access of a kernel, compared with what others did to the same bytes.
//
// The kernels are compiled with -fsanitize=thread, so that each access calls one of the functions at the end of this
// file; the sanitizer's own library, which knows nothing of fibers and blocks, is not linked. A clock ticks at every
// barrier. Two accesses to the same bytes, one of them a write, are in conflict when their threads are of one block and
// no barrier lies between them, or when they are of two blocks of one launch; also when both write the same value.
//
// A cell remembers the last write, the first read of a launch, and two readers since the last barrier. That is enough
// to miss nothing: blocks run one after another, so whoever has read before this block began is there as the first; and
// of two readers, of two warps where there were two, any writer has one that it did not wait for.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <unordered_map>
#include <vector>

#include "machine.hpp"

namespace gf {

struct Cell {  // times are 0 where there was none
  uint32_t written, read, other_read, first_read;
  uint32_t writer : 10, reader : 10, other_reader : 10;
};

enum : uint8_t { SPLIT = 0x80 };  // this launch has accessed single bytes of the word

static Cell *cells;     // one for each word of the region
static uint8_t *valid;  // of each word: how many of its bytes are allocated
static uint32_t now = 1, launch_time, block_time, barrier_time, warp_time[MOST_THREADS / WARP];
static uint32_t settled_time;  // two readers from here on say all that a third could
static std::vector<uint32_t> block_times;           // of this launch, in the order of the blocks
static std::unordered_map<size_t, Cell> bytes_of;   // split words, by the byte's offset
static std::vector<size_t> split_words;

struct Range {
  size_t begin, end;
};
static std::vector<Range> extents;  // of the arguments; empty unless all are known

static void *reserve(size_t bytes) {
  void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory != MAP_FAILED) return memory;
  perror("emulator: cannot reserve the shadow of device memory");
  abort();
}

static void reserve_shadow() {
  if (cells) return;
  cells = (Cell *)reserve(REGION / 4 * sizeof *cells);
  valid = (uint8_t *)reserve(REGION / 4);
}

void mark_allocation(size_t offset, size_t bytes, bool is_valid) {
  if (!checks_races) return;
  reserve_shadow();
  for (size_t at = 0; at < bytes; at += 4)
    valid[(offset + at) / 4] = is_valid ? (uint8_t)min(bytes - at, (size_t)4) : 0;
}

static void mark_shared(bool is_valid) {
  for (int i = 0; i < kernel->shared_count; ++i)
    mark_allocation(kernel->shared[i].offset, kernel->shared[i].bytes, is_valid);
}

static void list_extents() {
  extents.clear();
  for (int i = 0; i < kernel->argument_count; ++i) {
    if (!kernel->arguments[i].is_pointer) continue;
    if (!kernel->arguments[i].bytes) return extents.clear();
    size_t begin = (size_t)(*(char **)actual[i] - region);
    extents.push_back({begin, begin + kernel->arguments[i].bytes});
  }
}

void begin_launch() {
  if (!checks_races) return;
  reserve_shadow();
  if (now > UINT32_MAX / 2) {  // long before the clock turns over, all is forgotten
    madvise(cells, REGION / 4 * sizeof *cells, MADV_DONTNEED);
    now = 1;
  }
  launch_time = ++now;
  block_times.clear();
  mark_shared(true);
  list_extents();
}

void end_launch() {
  if (!checks_races) return;
  mark_shared(false);
  for (size_t word : split_words) valid[word] &= (uint8_t)~SPLIT;
  split_words.clear();
  bytes_of.clear();
}

static void settle() { settled_time = kernel->has_warp_barriers ? UINT32_MAX : barrier_time; }

void begin_block() {
  if (!checks_races) return;
  block_time = barrier_time = ++now;
  block_times.push_back(now);
  for (uint32_t &time : warp_time) time = now;
  settle();
}

void note_block_barrier() {
  barrier_time = ++now;
  settle();
}

void note_warp_barrier(int warp) { warp_time[warp] = ++now; }

static bool is_ordered_in_warp(int other, uint32_t time) {
  int warp = me / WARP;
  return other / WARP == warp && time < warp_time[warp];
}

[[noreturn]] static void fail_race(size_t offset, bool is_write, int other, uint32_t time, bool other_wrote) {
  char place[160], whose[64] = "";
  describe(place, sizeof place, offset);
  if (time < block_time) {
    size_t number = 0;
    while (number + 1 < block_times.size() && block_times[number + 1] <= time) ++number;
    snprintf(whose, sizeof whose, " of block (%zu,%zu,%zu)", number % grid_size.x, number / grid_size.x % grid_size.y,
             number / grid_size.x / grid_size.y);
  }
  fail("race: thread %s %s what %s%s%s %s, with no barrier between them: %s", thread_name(me),
       is_write ? "writes" : "reads", other < 0 ? "a thread" : "thread ", other < 0 ? "" : thread_name(other), whose,
       other_wrote ? "wrote" : "read", place);
}

__attribute__((noinline, cold)) static void examine_slowly(const Cell &cell, size_t offset, bool is_write) {
  bool is_shared = offset < HEAP;
  auto conflicts = [&](int other, uint32_t time) {
    if (time >= barrier_time) return other != me && !is_ordered_in_warp(other, time);
    return !is_shared && time >= launch_time && time < block_time;
  };
  if (conflicts(cell.writer, cell.written)) fail_race(offset, is_write, cell.writer, cell.written, true);
  if (!is_write) return;
  if (conflicts(cell.reader, cell.read)) fail_race(offset, is_write, cell.reader, cell.read, false);
  if (conflicts(cell.other_reader, cell.other_read))
    fail_race(offset, is_write, cell.other_reader, cell.other_read, false);
  if (!is_shared && cell.first_read >= launch_time && cell.first_read < block_time)
    fail_race(offset, is_write, -1, cell.first_read, false);
}

// Since the last barrier, or in another block of this launch.
static inline bool is_recent(uint32_t time) {
  return time >= barrier_time || (time < block_time && time >= launch_time);
}

static inline void examine(const Cell &cell, size_t offset, bool is_write) {
  if (is_recent(cell.written) ||
      (is_write && (is_recent(cell.read) || is_recent(cell.other_read) || is_recent(cell.first_read))))
    examine_slowly(cell, offset, is_write);
}

static inline void record(Cell &cell, bool is_write) {
  unsigned mine = (unsigned)me & 1023;
  if (is_write) {
    cell.written = now;
    cell.writer = mine;
    return;
  }
  if (cell.first_read < launch_time) cell.first_read = now;
  auto is_past = [](int reader, uint32_t time) { return time < barrier_time || is_ordered_in_warp(reader, time); };
  if (cell.reader == mine || is_past(cell.reader, cell.read)) {
    cell.reader = mine;
    cell.read = now;
  } else if (is_past(cell.other_reader, cell.other_read) ||
             (cell.other_reader / WARP == cell.reader / WARP && mine / WARP != cell.reader / WARP)) {
    cell.other_reader = mine;
    cell.other_read = now;
  }
}

[[noreturn]] static void fail_outside(size_t offset, size_t bytes, bool is_write) {
  char place[160];
  describe(place, sizeof place, offset);
  fail("thread %s %s %zu bytes out of bounds: %s", thread_name(me), is_write ? "writes" : "reads", bytes,
       place);
}

static void check_extents(size_t offset, size_t bytes, bool is_write) {
  static size_t last;
  if (offset < HEAP) return;
  if (last >= extents.size()) last = 0;
  if (offset >= extents[last].begin && offset + bytes <= extents[last].end) return;
  for (last = 0; last < extents.size(); ++last)
    if (offset >= extents[last].begin && offset + bytes <= extents[last].end) return;
  fail_outside(offset, bytes, is_write);
}

static void check_split_word(size_t word, bool is_write) {
  for (size_t at = word * 4; at < word * 4 + 4; ++at) {
    auto found = bytes_of.find(at);
    if (found != bytes_of.end()) examine(found->second, at, is_write);
  }
}

__attribute__((noinline)) static void check_byte(size_t offset, size_t bytes, bool is_write) {
  size_t word = offset / 4;
  if (offset % 4 >= (valid[word] & ~SPLIT)) fail_outside(offset, bytes, is_write);
  if (!(valid[word] & SPLIT)) {
    valid[word] |= SPLIT;
    split_words.push_back(word);
  }
  examine(cells[word], offset, is_write);
  Cell &cell = bytes_of[offset];
  examine(cell, offset, is_write);
  record(cell, is_write);
}

static inline void check_word(size_t word, size_t bytes, bool is_write) {
  if (!is_write && cells[word].other_read >= settled_time && cells[word].read >= settled_time) return;
  if (__builtin_expect(valid[word] != 4, 0)) {
    if ((valid[word] & ~SPLIT) != 4) fail_outside(word * 4, bytes, is_write);
    check_split_word(word, is_write);
  }
  examine(cells[word], word * 4, is_write);
  record(cells[word], is_write);
}

__attribute__((always_inline)) static inline void check(const void *address, size_t bytes, bool is_write) {
  size_t offset = (size_t)((const char *)address - region);
  if (offset >= REGION) return;  // a thread's own variables
  if (!extents.empty()) check_extents(offset, bytes, is_write);
  if (__builtin_expect((offset | bytes) % 4 != 0, 0)) {
    for (size_t i = 0; i < bytes; ++i) check_byte(offset + i, bytes, is_write);
    return;
  }
  for (size_t i = 0; i < bytes / 4; ++i) check_word(offset / 4 + i, bytes, is_write);
}

}  // namespace gf

extern "C" {
#define GF_HOOKS(bytes)                                                                   \
  void __tsan_read##bytes(void *address) { gf::check(address, bytes, false); }            \
  void __tsan_write##bytes(void *address) { gf::check(address, bytes, true); }            \
  void __tsan_unaligned_read##bytes(void *address) { gf::check(address, bytes, false); }  \
  void __tsan_unaligned_write##bytes(void *address) { gf::check(address, bytes, true); }
GF_HOOKS(1)
GF_HOOKS(2)
GF_HOOKS(4)
GF_HOOKS(8)
GF_HOOKS(16)
void __tsan_read_range(void *address, size_t bytes) { gf::check(address, bytes, false); }
void __tsan_write_range(void *address, size_t bytes) { gf::check(address, bytes, true); }
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
void __tsan_init() {}
}

GF_PUBLIC int gf_emulator_checks_races() { return gf::checks_races; }
