/* The text of a manifest. Internal: never exported.
 *
 * It begins with a checksum of itself, which is looked at before a word of it is believed. Manifests of format 1 have
 * none. */
#ifndef GF_MANIFEST_H
#define GF_MANIFEST_H

#include "gf_json.h"

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

#define GF_COPY_AGAIN "recompile, or copy the artifact again"

/* Its tree, for free(). Or a gf_code, and in `wrong` what to say after the file's name. */
int gf_manifest_parse(const void *data, size_t bytes, gf_json **manifest, const char **wrong);
/* Does it have a checksum of this file? */
int gf_manifest_lists(const gf_json *manifest, const char *name);
/* Does it have a checksum of this file, and is the content that one? */
int gf_manifest_fits(const gf_json *manifest, const char *name, const void *data, size_t bytes);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#endif
