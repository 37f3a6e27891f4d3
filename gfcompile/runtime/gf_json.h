/* JSON texts as trees. Internal: never exported.
 *
 * Strict, and safe on any bytes: what is not JSON, is nested deeper than 32 levels, or has a zero character in a string
 * is refused. Numbers stay text until somebody asks. */
#ifndef GF_JSON_H
#define GF_JSON_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

typedef enum { GF_JSON_WORD, GF_JSON_NUMBER, GF_JSON_STRING, GF_JSON_ARRAY, GF_JSON_OBJECT } gf_json_type;

typedef struct gf_json {
  gf_json_type type;
  const char *key;  /* its name in an object, else NULL */
  const char *text; /* of a word (true, false, null), a number or a string (UTF-8) */
  struct gf_json *child, *next;
} gf_json;

/* The root, all of it one block: free() it. NULL for what is no JSON, or for want of memory. */
gf_json *gf_json_parse(const char *text, size_t bytes);
/* A member, NULL if there is none; the object may be NULL too. */
const gf_json *gf_json_member(const gf_json *object, const char *key);
/* The text of a member that is a string, else NULL. */
const char *gf_json_string(const gf_json *object, const char *key);
/* 1 and the value of a whole number from 0 to 2^62, else 0. */
int gf_json_whole(const gf_json *number, int64_t *value);
/* Write the letters of a string, without its quotes. */
void gf_json_write(FILE *out, const char *text);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#endif
