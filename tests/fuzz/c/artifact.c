/* gf_step_open and gf_step_selftest on a folder of which nothing can be believed.
 *
 * An input is the manifest, weights, constants and self-test, with the line "====" between them; files that are not
 * there are missing in the folder. Where the manifest says @1@, @2@ or @3@, it gets the checksum of that file. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fuzz.h"
#include "gf_sha256.h"
#include "gf_step.h"

enum { FILES = 4 };
static const char *const names[FILES] = {"manifest.json", "weights.safetensors", "constants.safetensors",
                                         "selftest.safetensors"};
static const char line[] = "\n====\n";

typedef struct {
  const uint8_t *data;
  size_t size;
} part;

static int split(const uint8_t *data, size_t size, part parts[FILES]) {
  int count = 0;
  while (count < FILES - 1) {
    const uint8_t *found = memmem(data, size, line, sizeof line - 1);
    if (!found) break;
    parts[count++] = (part){data, (size_t)(found - data)};
    size -= (size_t)(found - data) + sizeof line - 1;
    data = found + sizeof line - 1;
  }
  parts[count++] = (part){data, size};
  return count;
}

/* Digits need more room than their mark. */
static size_t fill_in(const part *parts, int count, unsigned char *text) {
  size_t bytes = 0;
  for (size_t i = 0; i < parts[0].size;) {
    const uint8_t *at = parts[0].data + i;
    int file = parts[0].size - i >= 3 && at[0] == '@' && at[2] == '@' ? at[1] - '0' : 0;
    if (file < 1 || file >= count) {
      text[bytes++] = *at, ++i;
      continue;
    }
    gf_sha256_of(parts[file].data, parts[file].size, (char *)text + bytes);
    bytes += GF_SHA256_DIGITS, i += 3;
  }
  return bytes;
}

static void take_line(void *context, const char *text) {
  ++*(int *)context;
  fuzz_require_line(text);
}

static void open_folder(const unsigned char *manifest, size_t bytes) {
  int lines = 0;
  fuzz_write(names[0], manifest, bytes);
  gf_step *step = gf_step_open(".", 1);
  fuzz_require_line(gf_error());
  fuzz_require(step || gf_error_code(), "a refusal has a code");
  if (step) fuzz_require_told(gf_step_selftest(step, ".", take_line, &lines));
  gf_step_destroy(step);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  part parts[FILES];
  int count = split(data, size, parts);
  for (int i = 1; i < FILES; ++i)
    if (i < count) fuzz_write(names[i], parts[i].data, parts[i].size);
    else unlink(names[i]);
  unsigned char *manifest = malloc(parts[0].size / 3 * GF_SHA256_DIGITS + 3 + 1);
  size_t bytes = fill_in(parts, count, manifest);
  open_folder(manifest, bytes);
  if (fuzz_seal(manifest, bytes)) open_folder(manifest, bytes);
  free(manifest);
  return 0;
}
