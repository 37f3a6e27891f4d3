/* gf_step_load: a refused checkpoint changes nothing, one that is taken can be saved and loaded again. Each input is
 * tried as it is, and with the checksum that fits it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "gf_step.h"

enum { WEIGHTS = 6 };

static void get(gf_step *step, float *weights) {
  fuzz_require(!gf_step_get_parameter(step, "fc.weight", weights, WEIGHTS * sizeof *weights), "a parameter is there");
}

static void load(gf_step *step, const uint8_t *data, size_t size) {
  float before[WEIGHTS], after[WEIGHTS];
  gf_progress found = {.steps = 77}, again = {0};
  fuzz_write("ckpt", data, size);
  get(step, before);
  int code = gf_step_load(step, "ckpt", &found);
  fuzz_require_told(code);
  get(step, after);
  if (code) {
    fuzz_require(found.steps == 77, "a refused checkpoint leaves the progress");
    fuzz_require(!memcmp(before, after, sizeof before), "a refused checkpoint leaves the state");
    return;
  }
  fuzz_require(found.steps >= 0 && isfinite(found.lr), "progress makes sense");
  fuzz_require(!gf_step_save(step, "again", &found), "what was loaded can be saved");
  fuzz_require(!gf_step_load(step, "again", &again), "what was saved can be loaded");
  fuzz_require(again.steps == found.steps && again.lr == found.lr && !strcmp(again.note, found.note),
               "progress stays the same");
  get(step, before);
  fuzz_require(!memcmp(before, after, sizeof before), "the state stays the same");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static gf_step *step;
  if (!step) step = gf_step_create(1);
  fuzz_require(step != NULL, "a step can be made");
  load(step, data, size);
  unsigned char *sealed = malloc(size + 1);
  memcpy(sealed, data, size);
  if (fuzz_seal(sealed, size)) load(step, sealed, size);
  free(sealed);
  return 0;
}
