/* The three hooks that TVM's kernels call. */
#include <stdint.h>

#include "gf_memory.h"
#include "gf_pool.h"

/* A workspace is the top of a stack: kernels free in reverse order, so a free only lowers it. */
static void *allocate_workspace(int device_type, int device_id, uint64_t bytes, int type_code, int type_bits) {
  (void)device_type, (void)device_id, (void)type_code, (void)type_bits;
  gf_stack *stack = gf_pool_stack();
  size_t left = stack ? (size_t)(stack->end - stack->top) : 0;
  if (bytes > left || gf_align_up(bytes) > left) {
    gf_set_error("workspace exhausted: a kernel asks for %llu bytes, %zu of %zu are left; report this plan as a bug",
                 (unsigned long long)bytes, left, stack ? (size_t)(stack->end - stack->base) : 0);
    return NULL;
  }
  char *workspace = stack->top;
  stack->top += gf_align_up(bytes);
  return workspace;
}

static int free_workspace(int device_type, int device_id, void *workspace) {
  (void)device_type, (void)device_id;
  gf_stack *stack = gf_pool_stack();
  if (!stack || (char *)workspace < stack->base || (char *)workspace > stack->top) {
    gf_set_error("a kernel freed a workspace that its thread does not hold");
    return -1;
  }
  stack->top = workspace;
  return 0;
}

#if defined(__GNUC__)
#pragma GCC visibility push(hidden) /* each library of a process keeps its own */
#endif
void *__TVMBackendAllocWorkspace = (void *)allocate_workspace;
void *__TVMBackendFreeWorkspace = (void *)free_workspace;
void *__TVMBackendParallelLaunch = (void *)gf_pool_launch;
#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
