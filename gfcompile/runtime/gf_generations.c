#define _GNU_SOURCE
#include "gf_generations.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { TRIES = 100 };

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

/* -1 if another has it locked. A file system without locks has to do. */
static int lock(int file, int how) { return flock(file, how | LOCK_NB) && errno == EWOULDBLOCK ? -1 : 0; }

static int is_at(int file, const char *path) {
  struct stat ours, there;
  return fstat(file, &ours) == 0 && lstat(path, &there) == 0 && ours.st_ino == there.st_ino &&
         ours.st_dev == there.st_dev;
}

/* The number that a holder has written there; 0 where a checkpoint is being written. */
static long read_holder(int file) {
  char text[24] = "", *end;
  ssize_t length = pread(file, text, sizeof text - 1, 0);
  long holder = length > 0 && text[0] >= '1' && text[0] <= '9' ? strtol(text, &end, 10) : 0;
  return holder && end == text + length - 1 && *end == '\n' ? holder : 0;
}

/* Remove whatever has the temporary file's name, unless somebody is writing it: what a kill left, and a link, whose
 * target must never be written. Such files are thus not collected. */
static int clear(gf_replacement *r) {
  struct stat there;
  int file = -1;
  if (lstat(r->temporary, &there)) return errno == ENOENT ? 0 : -1;
  if (S_ISREG(there.st_mode)) {
    file = open(r->temporary, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0 && (errno == ENOENT || errno == ELOOP)) return 0; /* just gone: creating it tells */
    if (file < 0) return r->is_obstructed = 1, -1;
    if (lock(file, LOCK_EX)) {
      r->holder = read_holder(file);
      close(file);
      errno = EWOULDBLOCK;
      return -1;
    }
    if (!is_at(file, r->temporary)) return close(file), 0; /* another writer has just moved it to its place */
  }
  int code = unlink(r->temporary), reason = errno;
  if (file >= 0) close(file);
  if (!code || reason == ENOENT) return 0;
  r->is_obstructed = 1;
  errno = reason;
  return -1;
}

/* Only a file that this very call creates is ever written. */
static int create(gf_replacement *r) {
  r->is_obstructed = 0;
  r->holder = 0;
  for (int i = 0; i < TRIES; ++i) {
    if (clear(r)) return -1;
    r->file = open(r->temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (r->file < 0 && errno == EEXIST) continue;
    if (r->file < 0) return -1;
    r->owner = getpid();
    if (!lock(r->file, LOCK_EX) && is_at(r->file, r->temporary)) return 0;
    close(r->file); /* another writer took it for what a kill left */
    r->file = -1;
  }
  errno = EWOULDBLOCK;
  return -1;
}

static void discard(gf_replacement *r) {
  if (r->file < 0) return;
  if (r->owner == getpid() && is_at(r->file, r->temporary)) unlink(r->temporary); /* in a forked child it is not ours */
  close(r->file);
  r->file = -1;
}

/* Between two temporary files a holder has the newest generation locked. */
static int path_is_held(const char *path) {
  int file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return 0;
  int held = lock(file, LOCK_SH) != 0;
  close(file);
  return held;
}

/* A device or a pipe would be replaced by a file. */
static int is_replaceable(const char *path) {
  struct stat there;
  if (lstat(path, &there) || S_ISREG(there.st_mode) || S_ISLNK(there.st_mode)) return 1;
  errno = S_ISDIR(there.st_mode) ? EISDIR : EINVAL;
  return 0;
}

int gf_replacement_open(gf_replacement *r) {
  if (!is_replaceable(r->path)) return -1;
  if (r->file >= 0 && is_at(r->file, r->temporary))
    return ftruncate(r->file, 0) || lseek(r->file, 0, SEEK_SET) ? -1 : 0; /* held */
  if (r->file >= 0) close(r->file);
  if (create(r)) return -1;
  if (!path_is_held(r->path)) return 0;
  discard(r);
  errno = EWOULDBLOCK;
  return -1;
}

/* Who asks just now whether the path is held has the name for a moment. */
static int create_again(gf_replacement *r) {
  for (int i = 0; i < TRIES; ++i) {
    if (!create(r)) return 0;
    if (errno != EWOULDBLOCK) return -1;
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
  }
  return -1;
}

static void sign(const gf_replacement *r) {
  char text[24];
  int length = snprintf(text, sizeof text, "%ld\n", (long)getpid());
  if (pwrite(r->file, text, (size_t)length, 0) != length) return; /* others only know less */
}

int gf_replacement_hold(gf_replacement *r) {
  if (gf_replacement_open(r)) return -1;
  r->is_held = 1;
  sign(r);
  return 0;
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
  int written = r->file, code = 0;
  r->file = -1;
  if (r->is_held && !(code = create_again(r))) sign(r);
  int reason = errno;
  close(written); /* only now: it was the lock */
  errno = reason;
  return code ? code : sync_folder(r->folder);
}

void gf_replacement_close(gf_replacement *r) {
  if (r->temporary) discard(r);
  free(r->path);
  free(r->previous);
  free(r->temporary);
  free(r->folder);
  *r = (gf_replacement){.file = -1};
}
