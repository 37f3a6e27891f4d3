/* A compiled step in a C program: the library opened as ctypes opens it, the arrays of its calls read from files.
 *
 * dlopen matters: only then are a thread's locals allocated late. FOLDER holds the raw bytes of the state in the
 * library's own layout (state0, state1, ...), of the inputs, and blocks to write to (gradient0, ..., output0, ...); with a prefix cache
 * also the features (feature0, ...) and the inputs of a step on them (cached0, ...). */
#ifndef STEP_HARNESS_H
#define STEP_HARNESS_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gf_step.h"

#define API(X)                                                                                                     \
  X(gf_error) X(gf_build_id) X(gf_step_create) X(gf_step_destroy) X(gf_step_threads) X(gf_step_set_threads)        \
  X(gf_step_tensor_count) X(gf_step_tensor_bytes) X(gf_step_tensor) X(gf_step_train) X(gf_step_gradients)          \
  X(gf_step_predict) X(gf_step_arena_bytes) X(gf_step_state_bytes) X(gf_step_scratch_bytes)
#define OPTIONAL(X) X(gf_step_features) X(gf_step_train_features) /* NULL without a prefix cache */
#define MEMBER(name) __typeof__(&name) name;
static struct {
  API(MEMBER)
  OPTIONAL(MEMBER)
} gf;

static inline void fail(const char *what) {
  fprintf(stderr, "harness: %s\n", what);
  exit(1);
}

static inline void expect(int holds, const char *what) {
  if (!holds) fail(what);
}

static inline void open_library(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) fail(dlerror());
#define FIND(name) \
  if (!(gf.name = (__typeof__(&name))dlsym(library, #name))) fail("the library lacks " #name);
  API(FIND)
#undef FIND
#define FIND(name) gf.name = (__typeof__(&name))dlsym(library, #name);
  OPTIONAL(FIND)
#undef FIND
}

typedef struct {
  void **blocks; /* exactly `count` on the heap: a sanitizer sees who reads one more */
  size_t *bytes;
  int count;
} arrays;

static inline void *read_block(FILE *file, size_t *bytes) {
  fseek(file, 0, SEEK_END);
  *bytes = (size_t)ftell(file);
  rewind(file);
  void *block = aligned_alloc(64, (*bytes + 63) / 64 * 64 + (*bytes == 0) * 64);
  if (!block || fread(block, 1, *bytes, file) != *bytes) fail("cannot read an array");
  return block;
}

static inline arrays read_arrays(const char *folder, const char *name) {
  arrays found = {NULL, NULL, 0};
  for (;; ++found.count) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s%d", folder, name, found.count);
    FILE *file = fopen(path, "rb");
    if (!file) return found;
    size_t count = (size_t)found.count + 1;
    found.blocks = realloc(found.blocks, count * sizeof *found.blocks);
    found.bytes = realloc(found.bytes, count * sizeof *found.bytes);
    found.blocks[found.count] = read_block(file, &found.bytes[found.count]);
    fclose(file);
  }
}

static inline void free_arrays(arrays *some) {
  for (int i = 0; i < some->count; ++i) free(some->blocks[i]);
  free(some->blocks);
  free(some->bytes);
}

static inline const void *const *inputs_of(const arrays *some) { return (const void *const *)some->blocks; }

static inline void load_state(gf_step *step, const arrays *state) {
  expect(state->count == gf.gf_step_tensor_count(), "the state has another number of tensors");
  for (int i = 0; i < state->count; ++i) {
    expect(state->bytes[i] == gf.gf_step_tensor_bytes(i), "a state tensor has another size");
    memcpy(gf.gf_step_tensor(step, i), state->blocks[i], state->bytes[i]);
  }
}

#endif
