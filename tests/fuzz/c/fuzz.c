#define _GNU_SOURCE
#include "fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void fuzz_require(int holds, const char *what) {
  if (holds) return;
  dprintf(STDERR_FILENO, "broken property: %s\n", what);
  abort();
}

void fuzz_require_line(const char *text) {
  for (const char *at = text; *at; ++at)
    fuzz_require((unsigned char)*at >= ' ' && *at != 0x7f, "an error has a control character");
}

void fuzz_write(const char *path, const void *bytes, size_t count) {
  FILE *file = fopen(path, "wb");
  int written = file && fwrite(bytes, 1, count, file) == count;
  fuzz_require(file && !fclose(file) && written, "the scratch folder can be written");
}
