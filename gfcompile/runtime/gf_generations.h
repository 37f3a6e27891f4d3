/* A file that is replaced so that a kill at any moment leaves a whole one. Internal: never exported. */
#ifndef GF_GENERATIONS_H
#define GF_GENERATIONS_H

#include <sys/types.h>

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

typedef struct {
  char *path, *previous; /* the two generations */
  char *temporary;       /* what is written now, beside them */
  char *folder;
  int file;          /* open on `temporary`, and locked: one writer at a time */
  int is_held;       /* it stays so from one commit to the next */
  int is_obstructed; /* after a failure: something else has the name `temporary`, and cannot be removed */
  long holder;       /* after EWOULDBLOCK: the process that holds the path, 0 if not known */
  pid_t owner;       /* of the file: a child made by fork() does not remove it */
} gf_replacement;

/* The names alone; 0, or -1 for want of memory. */
int gf_replacement_name(gf_replacement *replacement, const char *path);
/* Open an empty temporary file. 0, or -1 with errno; EWOULDBLOCK: another process is writing it, or holds the path. */
int gf_replacement_open(gf_replacement *replacement);
/* From now until it is closed nobody else can open one for this path. 0, or -1 with errno, as gf_replacement_open. */
int gf_replacement_hold(gf_replacement *replacement);
/* Bring what was written to the disk, and give it the path; what was there becomes the previous generation, unless
 * `keep` is 0. 0, or -1 with errno. */
int gf_replacement_commit(gf_replacement *replacement, int keep);
/* Free the names and let go of the path; an uncommitted file is removed. */
void gf_replacement_close(gf_replacement *replacement);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#endif
