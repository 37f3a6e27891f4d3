#include "gf_manifest.h"

#include <stdlib.h>
#include <string.h>

#include "gf_sha256.h"
#include "gf_step.h"

enum { UNSEALED = 1, FORMAT = 2 };
static const char seal[] = "{\n \"sha256\": \""; /* what a sealed manifest begins with: the digits follow */
enum { DIGITS_AT = sizeof seal - 1 };

static int check_format(const gf_json *manifest, int is_sealed, const char **wrong) {
  int64_t format;
  *wrong = NULL;
  if (!gf_json_whole(gf_json_member(manifest, "format"), &format) || (format != UNSEALED && format != FORMAT))
    *wrong = "has another format, this runtime reads formats 1 and 2; recompile the artifact";
  else if (format == FORMAT && !is_sealed) *wrong = "has no checksum; " GF_COPY_AGAIN;
  return *wrong ? GF_ERROR_FORMAT : GF_OK;
}

int gf_manifest_parse(const void *data, size_t bytes, gf_json **manifest, const char **wrong) {
  int is_sealed = bytes >= DIGITS_AT && memcmp(data, seal, DIGITS_AT) == 0;
  *manifest = NULL;
  if (is_sealed && !gf_sha256_is_sealed(data, bytes, DIGITS_AT)) {
    *wrong = "its content does not match its checksum; " GF_COPY_AGAIN;
    return GF_ERROR_CHECKSUM;
  }
  *manifest = gf_json_parse(data, bytes);
  if (!*manifest) {
    *wrong = "is damaged; " GF_COPY_AGAIN;
    return GF_ERROR_FORMAT;
  }
  int code = check_format(*manifest, is_sealed, wrong);
  if (code) free(*manifest), *manifest = NULL;
  return code;
}

static const char *listed(const gf_json *manifest, const char *name) {
  return gf_json_string(gf_json_member(manifest, "files"), name);
}

int gf_manifest_lists(const gf_json *manifest, const char *name) { return listed(manifest, name) != NULL; }

int gf_manifest_fits(const gf_json *manifest, const char *name, const void *data, size_t bytes) {
  const char *wanted = listed(manifest, name);
  char digits[GF_SHA256_DIGITS + 1];
  if (!wanted) return 0;
  gf_sha256_of(data, bytes, digits);
  return strcmp(wanted, digits) == 0;
}
