/* This process's memory: zeroed, at multiples of a cache line. Internal. */
#ifndef GF_MEMORY_H
#define GF_MEMORY_H

#include <stdlib.h>
#include <string.h>

#include "gf_pool.h"
#include "gf_step.h"

static inline size_t gf_align_up(size_t bytes) { return (bytes + GF_ALIGNMENT - 1) / GF_ALIGNMENT * GF_ALIGNMENT; }

/* To be freed with free(). NULL with a text. */
static inline void *gf_allocate(size_t bytes, const char *what) {
  size_t size = bytes ? gf_align_up(bytes) : GF_ALIGNMENT;
  void *memory = aligned_alloc(GF_ALIGNMENT, size);
  if (memory) return memset(memory, 0, size);
  gf_fail(GF_ERROR_MEMORY, "cannot allocate %zu bytes for the %s; free memory or compile a smaller batch", size, what);
  return NULL;
}

#endif
