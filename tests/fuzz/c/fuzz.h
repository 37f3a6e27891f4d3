/* What the harnesses share: properties that must hold, files, and seams in place of a few functions of the C library.
 *
 * Product code is compiled with -Dmmap=fuzz_mmap and the like, so that it stays as it is. A mapped file becomes a block
 * of exactly its size, around which AddressSanitizer sees every byte too far; a real mapping ends with its page. */
#ifndef FUZZ_H
#define FUZZ_H

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Report a broken property as a crash. */
void fuzz_require(int holds, const char *what);
/* One line without control characters, whatever the file held: it goes to a terminal. */
void fuzz_require_line(const char *text);
/* A call that returned `code`: gf_error() has a text if and only if it failed. */
void fuzz_require_told(int code);

void fuzz_write(const char *path, const void *bytes, size_t count);
/* Give a sealed file (see gf_checkpoint.c) the digits that fit its content, so that what lies behind the checksum is
 * reached. 0 if it has no place for them. */
int fuzz_seal(unsigned char *bytes, size_t count);

/* Run what may end the program. 0, or 1 if it would have ended: then with one line on stderr, or with exit(0). What it
 * allocated, blocks of fuzz_malloc included, is freed, its files are closed and its variables are as before. */
int fuzz_run(void (*function)(void *context), void *context);
void *fuzz_malloc(size_t bytes);

#endif
