/* LD_PRELOAD this: every request for memory is passed on, and between watch_begin and watch_end recorded, whichever
 * thread makes it. The C library's own mmap for a thread's stack does not pass here; step_harness.h looks at the size
 * of the process for that. glibc only: its allocator has second names, so nothing has to be looked up first. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "count_allocations.h"

enum { KEPT = 1024 };
static request requests[KEPT];
static atomic_int seen;
static atomic_bool watching;

static void record(const char *call, size_t bytes) {
  if (!atomic_load(&watching)) return;
  int index = atomic_fetch_add(&seen, 1);
  if (index < KEPT) requests[index] = (request){call, bytes};
}

void watch_begin(void) {
  atomic_store(&seen, 0);
  atomic_store(&watching, true);
}

int watch_end(const request **found) {
  atomic_store(&watching, false);
  *found = requests;
  int count = atomic_load(&seen);
  return count < KEPT ? count : KEPT;
}

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t), *__libc_valloc(size_t), *__libc_pvalloc(size_t);

void *malloc(size_t bytes) {
  record("malloc", bytes);
  return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes) {
  record("calloc", count * bytes);
  return __libc_calloc(count, bytes);
}

void *realloc(void *old, size_t bytes) {
  record("realloc", bytes);
  return __libc_realloc(old, bytes);
}

void *reallocarray(void *old, size_t count, size_t bytes) {
  record("reallocarray", count * bytes);
  return __libc_realloc(old, count * bytes);
}

void *memalign(size_t alignment, size_t bytes) {
  record("memalign", bytes);
  return __libc_memalign(alignment, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes) {
  record("aligned_alloc", bytes);
  return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes) {
  record("posix_memalign", bytes);
  *memory = __libc_memalign(alignment, bytes);
  return *memory ? 0 : ENOMEM;
}

void *valloc(size_t bytes) {
  record("valloc", bytes);
  return __libc_valloc(bytes);
}

void *pvalloc(size_t bytes) {
  record("pvalloc", bytes);
  return __libc_pvalloc(bytes);
}

void *mmap(void *place, size_t bytes, int protection, int flags, int file, off_t offset) {
  record("mmap", bytes);
  return (void *)syscall(SYS_mmap, place, bytes, protection, flags, file, offset);
}

void *mmap64(void *place, size_t bytes, int protection, int flags, int file, off_t offset)
    __attribute__((alias("mmap")));

void *mremap(void *old, size_t old_bytes, size_t bytes, int flags, ...) {
  record("mremap", bytes);
  return (void *)syscall(SYS_mremap, old, old_bytes, bytes, flags, NULL);
}

int brk(void *end) {
  record("brk", 0);
  return ((int (*)(void *))dlsym(RTLD_NEXT, "brk"))(end);
}

void *sbrk(intptr_t bytes) {
  record("sbrk", (size_t)bytes);
  return ((void *(*)(intptr_t))dlsym(RTLD_NEXT, "sbrk"))(bytes);
}
