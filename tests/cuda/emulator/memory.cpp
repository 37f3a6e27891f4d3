// Device memory: stretches of one region of addresses, each between pages that nobody may touch.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "machine.hpp"

namespace gf {

constexpr size_t PAGE = 4096, ALIGNMENT = 256;  // cuMemAlloc's

static char *reserve() {
  void *memory = mmap(nullptr, REGION, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, HEAP - PAGE, PROT_READ | PROT_WRITE)) {
    perror("emulator: cannot reserve device memory");
    abort();
  }
  return (char *)memory;
}

char *const region = reserve();
char *const shared_memory = region;

struct Allocation {
  size_t offset, bytes, pages_at, pages;
};
static std::vector<Allocation> allocations;  // by offset

static const Allocation *find(size_t offset) {
  for (const Allocation &one : allocations)
    if (offset >= one.offset && offset <= one.offset + one.bytes) return &one;
  return nullptr;
}

static void describe_shared(char *text, size_t bytes, size_t offset) {
  const Array *nearest = &kernel->shared[0];
  for (int i = 1; i < kernel->shared_count; ++i)
    if (kernel->shared[i].offset <= offset + SHARED_GUARD / 2) nearest = &kernel->shared[i];
  snprintf(text, bytes, "shared array '%s' %+lld bytes (it has %zu)", nearest->name,
           (long long)offset - (long long)nearest->offset, nearest->bytes);
}

void describe(char *text, size_t bytes, size_t offset) {
  if (offset < HEAP && kernel->shared_count) return describe_shared(text, bytes, offset);
  int nearest = -1;
  size_t distance = REGION;
  for (int i = 0; i < kernel->argument_count; ++i) {
    if (!kernel->arguments[i].is_pointer) continue;
    size_t start = (size_t)(*(char **)actual[i] - region);
    size_t away = offset >= start ? offset - start : (start - offset) + REGION / 2;  // rather after than before one
    if (away < distance) nearest = i, distance = away;
  }
  if (nearest < 0) {
    snprintf(text, bytes, "near none of its arguments");
    return;
  }
  size_t start = (size_t)(*(char **)actual[nearest] - region);
  snprintf(text, bytes, "argument %d ('%s') %+lld bytes", nearest, kernel->arguments[nearest].name,
           (long long)offset - (long long)start);
}

}  // namespace gf

// An address of the device, 0 when there is no room.
GF_PUBLIC uint64_t gf_emulator_allocate(size_t bytes) {
  using namespace gf;
  size_t size = (std::max(bytes, (size_t)1) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  size_t pages = (size + PAGE - 1) / PAGE * PAGE, at = HEAP;
  auto next = allocations.begin();
  for (; next != allocations.end() && at + pages + PAGE > next->pages_at; ++next)
    at = next->pages_at + next->pages + PAGE;
  if (at + pages + PAGE > REGION || mprotect(region + at, pages, PROT_READ | PROT_WRITE)) return 0;
  size_t offset = at + pages - size;  // its end meets the guard after it
  allocations.insert(next, {offset, bytes, at, pages});
  memset(region + offset, 0xcd, bytes);
  mark_allocation(offset, bytes, true);
  return (uint64_t)(uintptr_t)(region + offset) + DEVICE;
}

GF_PUBLIC int gf_emulator_free(uint64_t device) {
  using namespace gf;
  size_t offset = (size_t)((char *)(uintptr_t)(device - DEVICE) - region);
  auto found = std::find_if(allocations.begin(), allocations.end(), [=](auto &one) { return one.offset == offset; });
  if (found == allocations.end()) return -1;
  mark_allocation(offset, found->bytes, false);
  madvise(region + found->pages_at, found->pages, MADV_DONTNEED);
  mprotect(region + found->pages_at, found->pages, PROT_NONE);
  allocations.erase(found);
  return 0;
}

// Where a range of device memory really lies; NULL unless all of it is in one allocation.
GF_PUBLIC void *gf_emulator_host(uint64_t device, size_t bytes) {
  using namespace gf;
  size_t offset = (size_t)((char *)(uintptr_t)(device - DEVICE) - region);
  const Allocation *one = find(offset);
  return one && offset + bytes <= one->offset + one->bytes ? region + offset : nullptr;
}

GF_PUBLIC size_t gf_emulator_live_bytes() {
  size_t bytes = 0;
  for (const auto &one : gf::allocations) bytes += one.bytes;
  return bytes;
}
