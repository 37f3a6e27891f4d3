/* This process's memory: zeroed, at multiples of a cache line. Internal. */
#ifndef GF_MEMORY_H
#define GF_MEMORY_H

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "gf_pool.h"
#include "gf_step.h"

#define GF_HUGE_PAGE ((size_t)2 << 20)

static inline size_t gf_align_up(size_t bytes) { return (bytes + GF_ALIGNMENT - 1) / GF_ALIGNMENT * GF_ALIGNMENT; }

/* To be freed with free(). NULL with a text.
 *
 * Large blocks ask for huge pages: kernels walk through megabytes, and with pages of 4 KB the processor looks up
 * addresses all the time, and where the pages happen to lie makes one process faster than the next. It is advice:
 * a system that has none of them changes nothing. */
static inline void *gf_allocate(size_t bytes, const char *what) {
  size_t size = bytes ? gf_align_up(bytes) : GF_ALIGNMENT;
  int is_large = size >= GF_HUGE_PAGE;
  void *memory = aligned_alloc(is_large ? GF_HUGE_PAGE : GF_ALIGNMENT, size);
#ifdef MADV_HUGEPAGE
  if (memory && is_large) (void)madvise(memory, size, MADV_HUGEPAGE);
#endif
  if (memory) return memset(memory, 0, size);
  gf_fail(GF_ERROR_MEMORY, "cannot allocate %zu bytes for the %s; free memory or compile a smaller batch", size, what);
  return NULL;
}

#endif
