/* Where the kernels' memory lies: gf_device_cpu.c or gf_device_cuda.c, chosen when the library is linked.
 *
 * Internal: never exported. Every call is made under the library's lock. Each that returns an int returns 0, or not 0
 * with a text. Work goes to the device in the order of the calls; only gf_device_finish waits for it. */
#ifndef GF_DEVICE_H
#define GF_DEVICE_H

#include <stddef.h>

#if defined(__GNUC__)
#pragma GCC visibility push(hidden)
#endif

/* 1: its memory is this process's, so that kernels read and write the caller's arrays themselves. */
extern const int gf_device_is_host;

int gf_device_open(void);   /* once a process */
int gf_device_enter(void);  /* in every thread, before it uses the device */
void gf_device_close(void); /* when the last step is gone; leaves texts alone, as gf_device_free does */

void *gf_device_allocate(size_t bytes, const char *what); /* zeroed, 64-byte aligned; NULL with a text */
void gf_device_free(void *memory);
/* After an upload the host's memory may be reused at once; after a download gf_device_finish comes before a read. */
int gf_device_upload(void *to, const void *from_host, size_t bytes);
int gf_device_download(void *to_host, const void *from, size_t bytes);
int gf_device_copy(void *to, const void *from, size_t bytes);
int gf_device_finish(void);
void gf_device_abandon(void); /* after a failure: waits too, so that nothing is written later, but has no text */

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#endif
