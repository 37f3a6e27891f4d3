/* What harnesses share that are linked with the whole runtime. */
#define _GNU_SOURCE
#include <string.h>

#include "fuzz.h"
#include "gf_sha256.h"
#include "gf_step.h"

void fuzz_require_told(int code) {
  fuzz_require(!code == !*gf_error(), code ? "a failure has no text" : "a success has the text of a failure");
  fuzz_require(!code || gf_error_code() == code, "the code of a failure is another than what was returned");
  fuzz_require_line(gf_error());
}

int fuzz_seal(unsigned char *bytes, size_t count) {
  static const char key[] = "\"sha256\": \"";
  const size_t begin = count < 64 ? count : 64;
  unsigned char *found = memmem(bytes, begin, key, sizeof key - 1);
  char digits[GF_SHA256_DIGITS + 1];
  if (!found || (size_t)(bytes + count - found) < sizeof key - 1 + GF_SHA256_DIGITS) return 0;
  found += sizeof key - 1;
  memset(found, '0', GF_SHA256_DIGITS);
  gf_sha256_of(bytes, count, digits);
  memcpy(found, digits, GF_SHA256_DIGITS);
  return 1;
}
