/* gf-train's command line: one word a line of the input. */
#include <getopt.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "options.h"

enum { MOST = 32 };
static const gf_about about = {.name = "a", .target = "native", .version = "0", .loss = "mse", .batch = 2};

const gf_about *gf_step_about(void) { return &about; }
const char *gf_build_id(void) { return "0123456789abcdef"; }

static void read_words(void *context) {
  char **words = context;
  int count = 0;
  while (words[count]) ++count;
  optind = 0; /* glibc: from the beginning */
  options o = read_options(count, words);
  fuzz_require(isfinite(o.lr) && o.lr >= 0 && isfinite(o.progress) && o.progress >= 0, "numbers are in range");
  fuzz_require(o.epochs >= 0 && o.steps >= 0 && o.checkpoint_every >= 0 && o.threads >= 0, "counts are in range");
  fuzz_require(o.how.means >= 0 && o.how.means <= MAX_CHANNELS && o.how.stds >= 0 && o.how.stds <= MAX_CHANNELS,
               "lists are in range");
  fuzz_require(o.selftest || (o.data && o.labels), "there is something to train on");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = malloc(size + 1), *words[MOST + 2] = {"gf-train"};
  int count = 1;
  memcpy(text, data, size);
  text[size] = '\0';
  for (char *at = text; at && count <= MOST;) {
    words[count++] = at;
    if ((at = strchr(at, '\n'))) *at++ = '\0';
  }
  fuzz_run(read_words, words);
  free(text);
  return 0;
}
