/* gf_tensorfile.c: of any file that is taken, every tensor lies inside it and is found by its name. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "gf_tensorfile.h"

volatile unsigned fuzz_sum; /* nobody may skip the reading */

static unsigned add_up(const gf_tensor *tensor) {
  unsigned sum = 0;
  for (size_t i = 0; i < tensor->bytes; ++i) sum += ((const unsigned char *)tensor->data)[i];
  return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  gf_tensorfile file;
  unsigned char *copy = size ? fuzz_malloc(size) : NULL;
  if (size) memcpy(copy, data, size);
  int code = gf_tensorfile_parse("file", (gf_map){size ? copy : (const unsigned char *)"", size}, &file);
  if (code) fuzz_require_line(gf_error());
  for (int i = 0; !code && i < file.count; ++i) {
    const gf_tensor *tensor = &file.tensors[i];
    size_t bytes = gf_dtype_bytes(tensor->dtype);
    for (int axis = 0; axis < tensor->rank; ++axis) bytes *= (size_t)tensor->shape[axis];
    fuzz_require(bytes == tensor->bytes, "a tensor has the bytes of its shape");
    fuzz_require(gf_tensorfile_find(&file, tensor->name) == tensor, "a tensor is found by its name");
    fuzz_sum += add_up(tensor);
  }
  if (!code) gf_tensorfile_word(&file, "format");
  if (!code) gf_tensorfile_close(&file);
  return 0;
}
