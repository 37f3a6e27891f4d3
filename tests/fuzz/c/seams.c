/* The seams of product code: see fuzz.h. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"

/* Whoever ends the program frees nothing, closes nothing, and leaves its variables as they are. */
enum { MOST = 64 };
static void *blocks[MOST]; /* of this run */
static int files[MOST];    /* of this run: a descriptor + 1 */
static jmp_buf out;
static int code;

/* The variables of the sources that were compiled with variables.h; absent where there are none. */
extern char __start_fuzz_data[] __attribute__((weak)), __stop_fuzz_data[] __attribute__((weak));
extern char __start_fuzz_bss[] __attribute__((weak)), __stop_fuzz_bss[] __attribute__((weak));
static struct {
  char *begin, *end, *copy;
} variables[2];

static void *keep(void *block) {
  for (int i = 0; block && i < MOST; ++i)
    if (!blocks[i]) return blocks[i] = block;
  fuzz_require(!block, "64 blocks are enough for a run");
  return NULL;
}

static void forget(const void *block) {
  for (int i = 0; block && i < MOST; ++i)
    if (blocks[i] == block) blocks[i] = NULL;
}

void *fuzz_malloc(size_t bytes) { return keep(malloc(bytes)); }

void *fuzz_calloc(size_t count, size_t bytes) { return keep(calloc(count, bytes)); }
void *fuzz_aligned_alloc(size_t alignment, size_t bytes) { return keep(aligned_alloc(alignment, bytes)); }

void *fuzz_realloc(void *block, size_t bytes) {
  forget(block);
  return keep(realloc(block, bytes));
}

void fuzz_free(void *block) {
  forget(block);
  free(block);
}

char *fuzz_strndup(const char *text, size_t most) {
  char *copy = fuzz_malloc(strnlen(text, most) + 1);
  memcpy(copy, text, strnlen(text, most));
  copy[strnlen(text, most)] = '\0';
  return copy;
}

void *fuzz_mmap(void *place, size_t bytes, int protection, int flags, int file, off_t offset) {
  (void)place, (void)protection, (void)flags;
  char *block = fuzz_malloc(bytes);
  return pread(file, block, bytes, offset) == (ssize_t)bytes ? block : (fuzz_free(block), MAP_FAILED);
}

int fuzz_munmap(void *place, size_t bytes) {
  (void)bytes;
  fuzz_free(place);
  return 0;
}

int fuzz_open(const char *path, int flags, ...) {
  int file = open(path, flags);
  for (int i = 0; file >= 0 && i < MOST; ++i)
    if (!files[i]) return files[i] = file + 1, file;
  fuzz_require(file < 0, "64 files are enough for a run");
  return file;
}

int fuzz_close(int file) {
  for (int i = 0; i < MOST; ++i)
    if (files[i] == file + 1) files[i] = 0;
  return close(file);
}

/* Word by word and unseen: AddressSanitizer's zones between the variables, each of 32 bytes at least, go along. */
__attribute__((no_sanitize("address", "undefined", "coverage"))) static void copy(void *to, const void *from,
                                                                                  size_t bytes) {
  volatile uint64_t *out = to;
  const volatile uint64_t *in = from;
  for (size_t i = 0; i < bytes / sizeof *in; ++i) out[i] = in[i];
}

static void keep_variables(void) {
  if (variables[0].copy) return;
  variables[0].begin = __start_fuzz_data, variables[0].end = __stop_fuzz_data;
  variables[1].begin = __start_fuzz_bss, variables[1].end = __stop_fuzz_bss;
  for (int i = 0; i < 2; ++i) {
    size_t bytes = (size_t)(variables[i].end - variables[i].begin);
    variables[i].copy = malloc(bytes + 1);
    copy(variables[i].copy, variables[i].begin, bytes);
  }
}

static void clean_up(void) {
  for (int i = 0; i < MOST; ++i) {
    free(blocks[i]);
    if (files[i]) close(files[i] - 1);
    blocks[i] = NULL, files[i] = 0;
  }
  for (int i = 0; i < 2; ++i)
    copy(variables[i].begin, variables[i].copy, (size_t)(variables[i].end - variables[i].begin));
}

_Noreturn void fuzz_exit(int status) {
  code = status;
  longjmp(out, 1);
}

int fuzz_run(void (*function)(void *context), void *context) {
  char *said = NULL;
  size_t bytes;
  keep_variables();
  FILE *screen = stderr;
  stderr = open_memstream(&said, &bytes); /* what libFuzzer and the sanitizers say goes elsewhere */
  int ended = setjmp(out);
  if (!ended) function(context);
  fclose(stderr);
  stderr = screen;
  if (ended && code) {
    char *line = strchr(said, '\n');
    fuzz_require(line && !line[1], "a failure is told in one line");
    *line = '\0';
    fuzz_require_line(said);
  } else {
    fuzz_require(!*said, "nothing is said without a failure");
  }
  free(said);
  clean_up();
  return ended;
}
