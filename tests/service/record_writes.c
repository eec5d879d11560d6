/* Preloaded into a process: writes down, in order, all that it does to the files of one folder ($REMEM_RECORD_FOLDER).

   A record in $REMEM_RECORD_LOG: operation (w write, t truncate, s sync), length of the name, offset, length of the data,
   then name and data. From it test_power_cut.py makes what a disk may hold after a power cut at any moment. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER;
static int log_file = -1;

static void put(const void *data, size_t length) {
    while (length > 0) {
        ssize_t done = syscall(SYS_write, log_file, data, length);
        if (done <= 0) abort();
        data = (const char *)data + done;
        length -= done;
    }
}

static void record(char operation, int fd, uint64_t offset, const void *data, uint64_t length) {
    char link[64], path[4096];
    const char *folder = getenv("REMEM_RECORD_FOLDER"), *log = getenv("REMEM_RECORD_LOG");
    if (!folder || !log) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size <= 0) return;
    path[size] = 0;
    size_t prefix = strlen(folder);
    if (strncmp(path, folder, prefix) || path[prefix] != '/') return;
    if (log_file < 0) log_file = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    const char *name = path + prefix + 1;
    uint64_t head[4] = {(uint64_t)operation, strlen(name), offset, length};
    put(head, sizeof head);
    put(name, head[1]);
    if (data) put(data, length);
}

/* the real call and its record are one step, so that the log has the order of the calls */
#define REAL(type, name, ...) type (*real)(__VA_ARGS__) = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)
#define IN_ORDER(call, ...)                  \
    pthread_mutex_lock(&order);              \
    __typeof__(call) result = call;          \
    if (result >= 0) record(__VA_ARGS__);    \
    pthread_mutex_unlock(&order);            \
    return result

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
    REAL(ssize_t, "pwrite", int, const void *, size_t, off_t);
    IN_ORDER(real(fd, data, length, offset), 'w', fd, offset, data, result);
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    REAL(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
    IN_ORDER(real(fd, data, length, offset), 'w', fd, offset, data, result);
}

ssize_t write(int fd, const void *data, size_t length) {
    REAL(ssize_t, "write", int, const void *, size_t);
    off_t offset = lseek(fd, 0, SEEK_CUR);
    IN_ORDER(real(fd, data, length), 'w', fd, offset < 0 ? 0 : offset, data, result);
}

int ftruncate(int fd, off_t length) {
    REAL(int, "ftruncate", int, off_t);
    IN_ORDER(real(fd, length), 't', fd, length, NULL, 0);
}

int ftruncate64(int fd, off64_t length) {
    REAL(int, "ftruncate64", int, off64_t);
    IN_ORDER(real(fd, length), 't', fd, length, NULL, 0);
}

int fsync(int fd) {
    REAL(int, "fsync", int);
    IN_ORDER(real(fd), 's', fd, 0, NULL, 0);
}

int fdatasync(int fd) {
    REAL(int, "fdatasync", int);
    IN_ORDER(real(fd), 's', fd, 0, NULL, 0);
}
