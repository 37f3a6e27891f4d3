/* A checkpoint with every byte changed and cut off, loaded under the sanitizers; tests/fuzz has the other files.
 *
 *     flip_checkpoint ARTIFACT SCRATCH */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gf_step.h"

enum { MOST = 1 << 16 };

static void fail(const char *what) {
  fprintf(stderr, "flip_checkpoint: %s: %s\n", what, gf_error());
  exit(1);
}

static size_t read_whole(const char *path, unsigned char *bytes) {
  FILE *file = fopen(path, "rb");
  size_t count = file ? fread(bytes, 1, MOST, file) : 0;
  if (!count) fail(path);
  fclose(file);
  return count;
}

static void write_whole(const char *path, const unsigned char *bytes, size_t count) {
  FILE *file = fopen(path, "wb");
  if (!file || fwrite(bytes, 1, count, file) != count || fclose(file)) fail(path);
}

/* No changed byte of a checkpoint goes unnoticed, and a refused one changes nothing. */
static size_t flip_checkpoint(const char *folder, const char *path) {
  static unsigned char bytes[MOST];
  gf_progress progress = {.steps = 3, .lr = 0.25, .note = "a \"note\"\\\n"}, found = {.steps = 77};
  float before[6], after[6];
  gf_step *step = gf_step_open(folder, 1);
  if (!step || gf_step_save(step, path, &progress) || gf_step_load(step, path, &found)) fail("a whole checkpoint");
  if (found.steps != 3 || found.lr != 0.25 || strcmp(found.note, progress.note)) fail("another progress");
  size_t count = read_whole(path, bytes);
  if (gf_step_get_parameter(step, "fc.weight", before, sizeof before)) fail("a parameter");
  found.steps = 77;
  for (size_t i = 0; i < count; ++i) {
    bytes[i] ^= 1;
    write_whole(path, bytes, count);
    if (!gf_step_load(step, path, &found) || found.steps != 77) fail("a flipped bit was not noticed");
    bytes[i] ^= 1;
    write_whole(path, bytes, i);
    if (!gf_step_load(step, path, &found)) fail("a cut was not noticed");
  }
  if (gf_step_get_parameter(step, "fc.weight", after, sizeof after)) fail("a parameter");
  if (memcmp(before, after, sizeof before)) fail("a refused checkpoint changed the state");
  gf_step_destroy(step);
  return count;
}

int main(int count, char **words) {
  if (count != 3) fail("usage: flip_checkpoint ARTIFACT SCRATCH");
  printf("ok %zu bytes\n", flip_checkpoint(words[1], words[2]));
  return 0;
}
