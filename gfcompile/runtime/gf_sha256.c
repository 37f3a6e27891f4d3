/* Names of variables and functions are those of FIPS 180-4. */
#include "gf_sha256.h"

#include <stdio.h>
#include <string.h>

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotr(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void compress(uint32_t hash[8], const unsigned char *block) {
  uint32_t w[64], a = hash[0], b = hash[1], c = hash[2], d = hash[3], e = hash[4], f = hash[5], g = hash[6],
                  h = hash[7];
  for (int t = 0; t < 16; ++t, block += 4)
    w[t] = (uint32_t)block[0] << 24 | (uint32_t)block[1] << 16 | (uint32_t)block[2] << 8 | block[3];
  for (int t = 16; t < 64; ++t) {
    uint32_t s0 = rotr(w[t - 15], 7) ^ rotr(w[t - 15], 18) ^ w[t - 15] >> 3;
    uint32_t s1 = rotr(w[t - 2], 17) ^ rotr(w[t - 2], 19) ^ w[t - 2] >> 10;
    w[t] = s1 + w[t - 7] + s0 + w[t - 16];
  }
  for (int t = 0; t < 64; ++t) {
    uint32_t t1 = h + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) + ((e & f) ^ (~e & g)) + K[t] + w[t];
    uint32_t t2 = (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  hash[0] += a, hash[1] += b, hash[2] += c, hash[3] += d, hash[4] += e, hash[5] += f, hash[6] += g, hash[7] += h;
}

void gf_sha256_start(gf_sha256 *sum) {
  *sum = (gf_sha256){.hash = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab,
                              0x5be0cd19}};
}

void gf_sha256_add(gf_sha256 *sum, const void *data, size_t bytes) {
  const unsigned char *next = data;
  size_t held = sum->bytes % 64;
  sum->bytes += bytes;
  if (held) {
    size_t taken = bytes < 64 - held ? bytes : 64 - held;
    memcpy(sum->block + held, next, taken);
    next += taken, bytes -= taken;
    if (held + taken < 64) return;
    compress(sum->hash, sum->block);
  }
  for (; bytes >= 64; next += 64, bytes -= 64) compress(sum->hash, next);
  if (bytes) memcpy(sum->block, next, bytes);
}

void gf_sha256_finish(gf_sha256 *sum, char digits[GF_SHA256_DIGITS + 1]) {
  static const unsigned char padding[64] = {0x80};
  uint64_t bits = sum->bytes * 8;
  unsigned char length[8];
  for (int i = 0; i < 8; ++i) length[i] = (unsigned char)(bits >> (56 - 8 * i));
  gf_sha256_add(sum, padding, 1 + (119 - sum->bytes % 64) % 64);
  gf_sha256_add(sum, length, 8);
  for (int i = 0; i < 8; ++i) snprintf(digits + 8 * i, 9, "%08lx", (unsigned long)sum->hash[i]);
}

void gf_sha256_of(const void *data, size_t bytes, char digits[GF_SHA256_DIGITS + 1]) {
  gf_sha256 sum;
  gf_sha256_start(&sum);
  gf_sha256_add(&sum, data, bytes);
  gf_sha256_finish(&sum, digits);
}

int gf_sha256_is_sealed(const void *data, size_t bytes, size_t start) {
  static const char zeros[] = "0000000000000000000000000000000000000000000000000000000000000000";
  char digits[GF_SHA256_DIGITS + 1];
  gf_sha256 sum;
  if (bytes < start || bytes - start < GF_SHA256_DIGITS) return 0;
  const unsigned char *claimed = (const unsigned char *)data + start;
  gf_sha256_start(&sum);
  gf_sha256_add(&sum, data, start);
  gf_sha256_add(&sum, zeros, GF_SHA256_DIGITS);
  gf_sha256_add(&sum, claimed + GF_SHA256_DIGITS, bytes - start - GF_SHA256_DIGITS);
  gf_sha256_finish(&sum, digits);
  return memcmp(digits, claimed, GF_SHA256_DIGITS) == 0;
}
