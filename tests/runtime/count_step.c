/* Run under count_allocations.c: which memory does a step take, and when?
 *
 *     count_step LIBRARY FOLDER THREADS STEPS
 *
 * Prints a line "phase call bytes" for every request for memory, what the library says it needs in the same form, and
 * the losses as hexadecimal floats. */
#define _GNU_SOURCE
#include "step_harness.h"

#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "count_allocations.h"

static __typeof__(&watch_begin) begin;
static __typeof__(&watch_end) end;
static arrays inputs, gradients, outputs, features, cached;
static gf_step *step;
static int threads, steps;
static float losses[1000];

/* The pages of the whole process: sees what the C library maps for itself. */
static long mapped_pages(void) {
  char text[64] = {0};
  int file = open("/proc/self/statm", O_RDONLY);
  if (file < 0 || read(file, text, sizeof text - 1) < 1) fail("cannot read /proc/self/statm");
  close(file);
  return atol(text);
}

static void watch(const char *phase, void (*work)(void)) {
  const request *found;
  long before = mapped_pages();
  begin();
  work();
  int count = end(&found);
  long grown = mapped_pages() - before;
  for (int i = 0; i < count; ++i) printf("%s %s %zu\n", phase, found[i].call, found[i].bytes);
  printf("%s pages %ld\n", phase, grown);
}

static void create(void) { step = gf.gf_step_create(threads); }

static void train(void) {
  for (int i = 0; i < steps; ++i)
    if (gf.gf_step_train(step, inputs_of(&inputs), 0.05f, &losses[i])) fail(gf.gf_error());
}

static void differentiate(void) {
  float loss;
  for (int i = 0; i < steps; ++i)
    if (gf.gf_step_gradients(step, inputs_of(&inputs), &loss, gradients.blocks)) fail(gf.gf_error());
}

static void predict(void) {
  for (int i = 0; i < steps; ++i)
    if (gf.gf_step_predict(step, inputs_of(&inputs), outputs.blocks)) fail(gf.gf_error());
}

static void compute_features(void) {
  for (int i = 0; i < steps; ++i)
    if (gf.gf_step_features(step, inputs_of(&inputs), features.blocks)) fail(gf.gf_error());
}

static void train_on_features(void) {
  for (int i = 0; i < steps; ++i)
    if (gf.gf_step_train_features(step, inputs_of(&cached), 0.05f, &losses[i])) fail(gf.gf_error());
}

static void be_refused(void) {
  expect(gf.gf_step_train(step, NULL, 0.05f, NULL) != 0, "a step without inputs was taken");
}

static void *from_another_thread(void *unused) {
  gf.gf_error(); /* as gf_step.h says: after this, the thread has its locals */
  watch("elsewhere", train);
  return unused;
}

static void *volatile keep; /* or the compiler drops allocations that nobody uses */

static void *allocate_in_a_thread(void *unused) {
  free(keep = malloc(12345));
  return unused;
}

/* One of each: the counter sees them all, on every thread. */
static void allocate(void) {
  pthread_t thread;
  pthread_create(&thread, NULL, allocate_in_a_thread, NULL);
  pthread_join(thread, NULL);
  keep = malloc(1001);
  keep = realloc(keep, 1002);
  free(keep);
  free(keep = calloc(1, 1003));
  free(keep = aligned_alloc(64, 1024));
  if (posix_memalign((void **)&keep, 64, 1005) == 0) free(keep);
  free(keep = memalign(64, 1006));
  keep = mmap(NULL, 1 << 20, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); /* kept: the process must grow */
  keep = sbrk(0);
  if (brk(keep)) fail("brk");
}

int main(int count, char **words) {
  if (count != 5) fail("usage: count_step LIBRARY FOLDER THREADS STEPS");
  begin = (__typeof__(begin))dlsym(RTLD_DEFAULT, "watch_begin");
  end = (__typeof__(end))dlsym(RTLD_DEFAULT, "watch_end");
  if (!begin || !end) fail("not run under count_allocations.c");
  open_library(words[1]);
  inputs = read_arrays(words[2], "input");
  gradients = read_arrays(words[2], "gradient");
  outputs = read_arrays(words[2], "output");
  features = read_arrays(words[2], "feature");
  cached = read_arrays(words[2], "cached");
  arrays state = read_arrays(words[2], "state");
  threads = atoi(words[3]);
  watch("create", create);
  if (!step) fail(gf.gf_error());
  printf("planned arena %zu\nplanned state %zu\n", gf.gf_step_arena_bytes(), gf.gf_step_state_bytes());
  printf("planned scratch %zu\n", gf.gf_step_scratch_bytes() * (size_t)threads);
  load_state(step, &state);
  steps = atoi(words[4]);
  expect(steps > 0 && steps <= 1000, "STEPS is 1 to 1000");
  watch("train", train); /* the first step included: nothing is warmed up */
  for (int i = 0; i < steps; ++i) printf("loss %a\n", losses[i]);
  watch("gradients", differentiate);
  watch("predict", predict);
  watch("refused", be_refused);
  if (gf.gf_step_features) {
    watch("features", compute_features);
    load_state(step, &state); /* from the start again: the losses must be those of `train` */
    watch("train_features", train_on_features);
    for (int i = 0; i < steps; ++i) printf("cached_loss %a\n", losses[i]);
  }
  pthread_t thread;
  pthread_create(&thread, NULL, from_another_thread, NULL);
  pthread_join(thread, NULL);
  watch("control", allocate);
  gf.gf_step_destroy(step);
  return 0;
}
