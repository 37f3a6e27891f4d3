#define _DEFAULT_SOURCE
#include "gf_generations.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static char *compose(const char *folder, size_t length, const char *dot, const char *name, const char *end) {
  size_t bytes = length + strlen(dot) + strlen(name) + strlen(end) + 1;
  char *path = malloc(bytes);
  if (path) snprintf(path, bytes, "%.*s%s%s%s", (int)length, folder, dot, name, end);
  return path;
}

int gf_replacement_name(gf_replacement *r, const char *path) {
  const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
  size_t length = (size_t)(name - path);
  *r = (gf_replacement){.file = -1};
  r->path = compose(path, length, "", name, "");
  r->previous = compose(path, length, "", name, ".previous");
  r->temporary = compose(path, length, ".", name, ".tmp");
  r->folder = length ? compose(path, length, "", "", "") : compose("", 0, "", ".", "");
  if (r->path && r->previous && r->temporary && r->folder) return 0;
  gf_replacement_close(r);
  return -1;
}

/* The name is always the same, so that what a kill leaves behind is written over and not collected. */
int gf_replacement_open(gf_replacement *r) {
  for (;;) {
    struct stat ours, there;
    r->file = open(r->temporary, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (r->file < 0) return -1;
    if (flock(r->file, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) { /* a file system without locks has to do */
      close(r->file);
      r->file = -1;
      errno = EWOULDBLOCK;
      return -1;
    }
    if (fstat(r->file, &ours) == 0 && stat(r->temporary, &there) == 0 && ours.st_ino == there.st_ino &&
        ours.st_dev == there.st_dev)
      return ftruncate(r->file, 0);
    close(r->file); /* another writer has just moved that file to its place */
  }
}

/* At every moment there is a file under `path`; where links are not known (FAT), under `previous`. */
static int keep_previous(const gf_replacement *r) {
  unlink(r->previous);
  if (link(r->path, r->previous) == 0 || errno == ENOENT) return 0;
  return rename(r->path, r->previous);
}

static int sync_folder(const char *path) {
  int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return -1;
  int code = fsync(folder);
  if (code && errno == EINVAL) code = 0; /* a file system that cannot */
  int reason = errno;
  close(folder);
  errno = reason;
  return code;
}

int gf_replacement_commit(gf_replacement *r, int keep) {
  if (fsync(r->file) || (keep && keep_previous(r)) || rename(r->temporary, r->path)) return -1;
  close(r->file);
  r->file = -1;
  return sync_folder(r->folder);
}

void gf_replacement_close(gf_replacement *r) {
  if (r->file >= 0) {
    unlink(r->temporary);
    close(r->file);
  }
  free(r->path);
  free(r->previous);
  free(r->temporary);
  free(r->folder);
  *r = (gf_replacement){.file = -1};
}
