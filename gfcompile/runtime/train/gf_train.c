/* gf-train: train the step of the folder that this program lies in. */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "library.h"
#include "training.h"

static const char *own_path(void) {
  static char path[4096];
  ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  if (length <= 0) die(1, "cannot find the folder of this program: /proc is not mounted");
  path[length] = '\0';
  return path;
}

static gf_step *step;
/* However it ends: a checkpoint that is held leaves a file behind. */
static void close_step(void) { gf_step_destroy(step); }

static void print_line(void *checks, const char *text) {
  ++*(int *)checks;
  puts(text);
}

static int selftest(const char *folder) {
  int checks = 0, code = gf_step_selftest(step, folder, print_line, &checks);
  if (code && !checks) die(1, "%s", gf_error());
  if (code) printf("FAIL: %s\n", gf_error());
  else printf("PASS: %d checks\n", checks);
  return code ? 1 : 0;
}

int main(int count, char **words) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  const char *folder = load_library(own_path());
  options wanted = read_options(count, words);
  step = gf_step_open(folder, wanted.threads);
  if (!step) die(1, "%s", gf_error());
  atexit(close_step);
  return wanted.selftest ? selftest(folder) : train(step, folder, &wanted);
}
