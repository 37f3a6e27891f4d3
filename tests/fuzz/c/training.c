/* gf-train's loop, resumed from any checkpoint: it ends, and what it saves can be loaded.
 *
 * An input is a byte (of which epoch is the last, and whether a learning rate is given) and the checkpoint, which gets
 * the checksum that fits it. */
#include "training.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fuzz.h"

enum { SAMPLES = 6, IN = 2, OUT = 3 }; /* of tests/runtime/linear_program.c, a batch and a half */

static void write_array(const char *path, int columns) {
  unsigned char file[128 + SAMPLES * OUT * 4] = "\x93NUMPY\x01";
  static const char header[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }";
  int length = sprintf((char *)file + 10, header, SAMPLES, columns);
  file[8] = (unsigned char)length;
  for (int i = 0; i < SAMPLES * columns; ++i) {
    float value = (float)(i % 5) / 4;
    memcpy(file + 10 + length + 4 * i, &value, 4);
  }
  fuzz_write(path, file, (size_t)(10 + length + 4 * SAMPLES * columns));
}

typedef struct {
  gf_step *step;
  options wanted;
} job;

static void run(void *context) { train(((job *)context)->step, ".", &((job *)context)->wanted); }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static int is_prepared;
  gf_progress progress;
  if (!is_prepared++) write_array("x.npy", IN), write_array("y.npy", OUT);
  if (!size) return 0;
  unsigned char *sealed = malloc(size);
  memcpy(sealed, data + 1, size - 1);
  fuzz_seal(sealed, size - 1);
  fuzz_write("ckpt", sealed, size - 1);
  unlink("ckpt.previous");
  free(sealed);
  job given = {.step = gf_step_create(1)};
  fuzz_require(given.step != NULL, "a step can be made");
  given.wanted = (options){.data = "x.npy", .labels = "y.npy", .checkpoint = "ckpt", .epochs = 1 + (data[0] & 3),
                           .has_lr = data[0] >> 2 & 1, .lr = 0.01, .progress = 0};
  if (!fuzz_run(run, &given))
    fuzz_require(!gf_step_load(given.step, "ckpt", &progress), "what was saved at the end can be loaded");
  gf_step_destroy(given.step);
  return 0;
}
