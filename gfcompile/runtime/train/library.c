#define _DEFAULT_SOURCE
#include "library.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "arrays.h"
#include "gf_manifest.h"
#include "gf_step.h"

typedef struct {
  char *data;
  size_t bytes;
} content;

/* Read and not mapped: a card that cannot be read is then an error and not a signal. */
static content read_whole(const char *path) {
  struct stat about;
  int file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* a pipe would let it wait */
  if (file < 0 || fstat(file, &about)) die(1, "'%s': cannot be read: %s; " GF_COPY_AGAIN, path, strerror(errno));
  if (!S_ISREG(about.st_mode)) die(1, "'%s': is no file; " GF_COPY_AGAIN, path);
  content found = {malloc((size_t)about.st_size + 1), 0};
  if (!found.data) die(1, "no memory to read '%s'; free some", path);
  while (found.bytes < (size_t)about.st_size) {
    ssize_t count = read(file, found.data + found.bytes, (size_t)about.st_size - found.bytes);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) die(1, "'%s': cannot be read: %s; " GF_COPY_AGAIN, path, strerror(errno));
    if (count == 0) break;
    found.bytes += (size_t)count;
  }
  close(file);
  return found;
}

static void check(const gf_json *manifest, const char *name, const char *path) {
  content found = read_whole(path);
  if (!gf_manifest_fits(manifest, name, found.data, found.bytes))
    die(1, "'%s': its content is not what was compiled (truncated or changed); " GF_COPY_AGAIN, path);
  free(found.data);
}

static char *join(const char *folder, const char *name) {
  char *path = malloc(strlen(folder) + strlen(name) + 2);
  if (!path) die(1, "no memory for a path; free some");
  return strcat(strcat(strcpy(path, folder), "/"), name);
}

static gf_json *read_manifest(const char *folder) {
  const char *wrong;
  gf_json *manifest;
  char *path = join(folder, "manifest.json");
  content text = read_whole(path);
  if (gf_manifest_parse(text.data, text.bytes, &manifest, &wrong)) die(1, "'%s': %s", path, wrong);
  free(text.data);
  free(path);
  return manifest;
}

#ifdef GF_STATIC
static void load(const gf_json *manifest, const char *folder) { (void)manifest, (void)folder; }
#else
#include <dlfcn.h>
#include <pthread.h>

/* Threads are a library of their own before glibc 2.34. libstep.so needs it, and a program had better begin with it; but
 * linkers leave out what nobody reads. */
static int (*volatile threads)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = pthread_create;

/* What gf-train calls: each is defined here, and passes on to the library's. */
#define FUNCTIONS(each)                                                                                              \
  each(const char *, gf_build_id, (void), ())                                                                        \
  each(const char *, gf_error, (void), ())                                                                           \
  each(const gf_about *, gf_step_about, (void), ())                                                                  \
  each(gf_step *, gf_step_open, (const char *folder, int threads), (folder, threads))                                \
  each(void, gf_step_destroy, (gf_step *step), (step))                                                               \
  each(int, gf_step_threads, (const gf_step *step), (step))                                                          \
  each(int, gf_step_count, (gf_kind kind), (kind))                                                                   \
  each(const gf_value *, gf_step_value, (gf_kind kind, int index), (kind, index))                                    \
  each(int, gf_step_find, (gf_kind kind, const char *role, const char *name), (kind, role, name))                    \
  each(int, gf_step_save, (gf_step *step, const char *path, const gf_progress *progress), (step, path, progress))    \
  each(int, gf_step_hold, (gf_step *step, const char *path), (step, path))                                           \
  each(int, gf_step_load, (gf_step *step, const char *path, gf_progress *progress), (step, path, progress))          \
  each(int, gf_step_selftest,                                                                                        \
       (gf_step *step, const char *folder, void (*line)(void *context, const char *text), void *context),            \
       (step, folder, line, context))                                                                                \
  each(int, gf_step_get, (gf_step *step, int index, void *physical), (step, index, physical))                        \
  each(int, gf_step_get_draws, (gf_step *step, gf_draw_state *state), (step, state))                                 \
  each(int, gf_step_set_draws, (gf_step *step, const gf_draw_state *state), (step, state))                           \
  each(int, gf_step_train, (gf_step *step, const void *const *inputs, float lr, float *loss),                        \
       (step, inputs, lr, loss))                                                                                     \
  each(int, gf_step_gradients, (gf_step *step, const void *const *inputs, float *loss, void *const *gradients),       \
       (step, inputs, loss, gradients))                                                                              \
  each(int, gf_step_predict, (gf_step *step, const void *const *inputs, void *const *outputs), (step, inputs, outputs))

#define PASS_ON(result, name, parameters, arguments) \
  static result(*found_##name) parameters;           \
  result name parameters { return found_##name arguments; }
FUNCTIONS(PASS_ON)

static void load(const gf_json *manifest, const char *folder) {
  static const char name[] = "libstep.so";
  char *path = join(folder, name);
  check(manifest, name, path);
  (void)threads;
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) die(1, "'%s': cannot be loaded: %s; was it compiled for another target?", path, dlerror());
#define FIND(result, name, parameters, arguments)                        \
  found_##name = (__typeof__(found_##name))dlsym(library, #name);        \
  if (!found_##name) die(1, "'%s': has no function %s; " GF_COPY_AGAIN, path, #name);
  FUNCTIONS(FIND)
  free(path);
}
#endif

const char *load_library(const char *program) {
  const char *slash = strrchr(program, '/'), *name = slash ? slash + 1 : program;
  char *folder = strndup(program, slash ? (size_t)(slash - program) : 0);
  if (!folder) die(1, "no memory for a path; free some");
  gf_json *manifest = read_manifest(folder);
  if (gf_manifest_lists(manifest, name)) check(manifest, name, program);
  load(manifest, folder);
  free(manifest);
  return folder;
}
