/* The files of an artifact. Internal: never exported. */
#ifndef GF_FILES_H
#define GF_FILES_H

#include "gf_tensorfile.h"

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

/* folder/name, for free(); NULL with an error text. */
char *gf_join(const char *folder, const char *name);
/* The manifest of this very build, for free(). */
int gf_read_manifest(const char *folder, gf_json **manifest);
/* A file whose checksum is the manifest's. */
int gf_open_checked(const char *folder, const gf_json *manifest, const char *name, gf_tensorfile *file);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#endif
