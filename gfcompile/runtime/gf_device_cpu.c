/* The device is this process: memory is its memory, and whatever was called is done. */
#include "gf_device.h"

#include "gf_memory.h"

const int gf_device_is_host = 1;

int gf_device_open(void) { return 0; }
int gf_device_enter(void) { return 0; }
void gf_device_close(void) {}

void *gf_device_allocate(size_t bytes, const char *what) { return gf_allocate(bytes, what); }
void gf_device_free(void *memory) { free(memory); }

int gf_device_copy(void *to, const void *from, size_t bytes) {
  memcpy(to, from, bytes);
  return 0;
}
int gf_device_upload(void *to, const void *from_host, size_t bytes) { return gf_device_copy(to, from_host, bytes); }
int gf_device_download(void *to_host, const void *from, size_t bytes) { return gf_device_copy(to_host, from, bytes); }
int gf_device_finish(void) { return 0; }
void gf_device_abandon(void) {}
