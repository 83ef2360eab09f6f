/* Makes one call of the C library fail, as a full disk or a full table of processes would.

   FAULT_WHO    "dispatcher" or "shepherd": the processes that are meant
   FAULT_CALL   open, write, sync, rename, flock, sendmsg or fork: the family of calls of which one fails
   FAULT_AT     the number of the call in its process that fails, from 1; 0: none
   FAULT_TIMES  how many calls in a row fail, in the first process that gets so far: the others are spared
   FAULT_ERRNO  the error
   FAULT_ROOT   calls that name a file count only if it lies below this directory
   FAULT_LOG    gets a line for each failed call, and at the end of a process the number of its calls of each family */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static const char *family, *root, *log_path;
static const char *const families[] = {"open", "write", "sync", "rename", "flock", "sendmsg", "fork"};
enum { FAMILIES = sizeof families / sizeof *families };
static long at, times, number, calls[FAMILIES];
static int is_meant, is_chosen;

static void note(const char *word, const char *what, long value) {
    char line[PATH_MAX + 100];
    int length = snprintf(line, sizeof line, "%s %ld %s\n", word, value, what);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd >= 0) {
        syscall(SYS_write, fd, line, (size_t)length);
        syscall(SYS_close, fd);
    }
}

static long setting(const char *name) {
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

__attribute__((constructor)) static void begin(void) {
    char words[8192] = "";
    const char *who = getenv("FAULT_WHO");
    int fd = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY | O_CLOEXEC, 0);
    if (!who || fd < 0) return;
    long length = syscall(SYS_read, fd, words, sizeof words - 1);
    syscall(SYS_close, fd);
    for (long i = 0; i < length; i++)
        if (!words[i]) words[i] = ' ';
    int is_shepherd = strstr(words, "shepherd import main") != NULL;
    int is_dispatcher = strstr(words, "-m gpusched run") != NULL;
    is_meant = strcmp(who, "shepherd") ? is_dispatcher : is_shepherd;
    family = getenv("FAULT_CALL");
    root = getenv("FAULT_ROOT");
    log_path = getenv("FAULT_LOG");
    at = setting("FAULT_AT");
    times = setting("FAULT_TIMES");
    number = setting("FAULT_ERRNO");
}

__attribute__((destructor)) static void end(void) {
    for (int i = 0; is_meant && i < FAMILIES; i++) note("calls", families[i], calls[i]);
}

/* Returns 1 in the first process of a run that asks. */
static int is_first(void) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s.once", log_path);
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    return fd >= 0 && !syscall(SYS_close, fd);
}

/* Returns 1 if this call is to fail; sets errno then. */
static int fails(const char *name, const char *what) {
    int i = 0;
    if (!is_meant) return 0;
    while (strcmp(families[i], name)) i++;
    calls[i]++;
    if (strcmp(family, name) || !at || calls[i] < at || calls[i] >= at + times) return 0;
    if (!is_chosen && !(is_chosen = is_first())) return 0;
    note("failed", what, calls[i]);
    errno = (int)number;
    return 1;
}

static int lies_below_root(const char *path) { return !strncmp(path, root, strlen(root)); }

static int path_fails(const char *name, const char *path) {
    char whole[PATH_MAX];
    if (!is_meant || !path) return 0;
    if (path[0] != '/' && getcwd(whole, sizeof whole)) return lies_below_root(whole) && fails(name, path);
    return lies_below_root(path) && fails(name, path);
}

static int descriptor_fails(const char *name, int fd) {
    char link[64], path[PATH_MAX];
    if (!is_meant) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return lies_below_root(path) && fails(name, path);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define MODE(last) mode_t mode = 0; if (flags & (O_CREAT | O_TMPFILE)) { \
    va_list list; va_start(list, last); mode = va_arg(list, mode_t); va_end(list); }

int open(const char *path, int flags, ...) {
    MODE(flags)
    return path_fails("open", path) ? -1 : NEXT(open)(path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    MODE(flags)
    return path_fails("open", path) ? -1 : NEXT(open64)(path, flags, mode);
}
int openat(int directory, const char *path, int flags, ...) {
    MODE(flags)
    return path_fails("open", path) ? -1 : NEXT(openat)(directory, path, flags, mode);
}
int openat64(int directory, const char *path, int flags, ...) {
    MODE(flags)
    return path_fails("open", path) ? -1 : NEXT(openat64)(directory, path, flags, mode);
}
int mkdir(const char *path, mode_t mode) { return path_fails("open", path) ? -1 : NEXT(mkdir)(path, mode); }
ssize_t write(int fd, const void *data, size_t size) {
    return descriptor_fails("write", fd) ? -1 : NEXT(write)(fd, data, size);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    return descriptor_fails("write", fd) ? -1 : NEXT(pwrite)(fd, data, size, offset);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    return descriptor_fails("write", fd) ? -1 : NEXT(pwrite64)(fd, data, size, offset);
}
int ftruncate(int fd, off_t size) { return descriptor_fails("write", fd) ? -1 : NEXT(ftruncate)(fd, size); }
int ftruncate64(int fd, off64_t size) { return descriptor_fails("write", fd) ? -1 : NEXT(ftruncate64)(fd, size); }
int fdatasync(int fd) { return descriptor_fails("sync", fd) ? -1 : NEXT(fdatasync)(fd); }
int fsync(int fd) { return descriptor_fails("sync", fd) ? -1 : NEXT(fsync)(fd); }
int rename(const char *from, const char *to) { return path_fails("rename", to) ? -1 : NEXT(rename)(from, to); }
int link(const char *from, const char *to) { return path_fails("rename", to) ? -1 : NEXT(link)(from, to); }
int linkat(int a, const char *from, int b, const char *to, int flags) {
    return path_fails("rename", to) ? -1 : NEXT(linkat)(a, from, b, to, flags);
}
int flock(int fd, int operation) { return descriptor_fails("flock", fd) ? -1 : NEXT(flock)(fd, operation); }
ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
    return fails("sendmsg", "socket") ? -1 : NEXT(sendmsg)(fd, message, flags);
}
ssize_t send(int fd, const void *data, size_t size, int flags) {
    return fails("sendmsg", "socket") ? -1 : NEXT(send)(fd, data, size, flags);
}
void _exit(int code) {
    end(); /* runs no destructor */
    NEXT(_exit)(code);
    __builtin_unreachable();
}
pid_t fork(void) { return fails("fork", "fork") ? -1 : NEXT(fork)(); }
pid_t vfork(void) { return fails("fork", "vfork") ? -1 : NEXT(fork)(); } /* a wrapper can't return twice */
int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
                 const posix_spawnattr_t *attributes, char *const words[], char *const environment[]) {
    if (fails("fork", "posix_spawnp")) return (int)number;
    return NEXT(posix_spawnp)(pid, file, actions, attributes, words, environment);
}
