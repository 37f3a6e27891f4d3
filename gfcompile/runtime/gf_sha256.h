/* SHA-256 (FIPS 180-4), for the checksums of files. Internal: never exported. */
#ifndef GF_SHA256_H
#define GF_SHA256_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

enum { GF_SHA256_DIGITS = 64 };

typedef struct {
  uint32_t hash[8];
  uint64_t bytes; /* so far */
  unsigned char block[64];
} gf_sha256;

void gf_sha256_start(gf_sha256 *sum);
void gf_sha256_add(gf_sha256 *sum, const void *data, size_t bytes);
/* 64 lower-case hex digits and a zero. */
void gf_sha256_finish(gf_sha256 *sum, char digits[GF_SHA256_DIGITS + 1]);
void gf_sha256_of(const void *data, size_t bytes, char digits[GF_SHA256_DIGITS + 1]);
/* Of a file that holds its own checksum: its 64 digits, from `start` on, are taken as zeros. 1 if they are right. */
int gf_sha256_is_sealed(const void *data, size_t bytes, size_t start);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#endif
