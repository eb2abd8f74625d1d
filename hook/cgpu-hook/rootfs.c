#include "rootfs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int
open_entry(int directory, const char *name, uint64_t flags)
{
    struct open_how how = {
        .flags = O_PATH | O_NOFOLLOW | O_CLOEXEC | flags,
        .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
    };
    int fd = (int)syscall(SYS_openat2, directory, name, &how, sizeof how);
    struct stat facts;
    /* With O_PATH and O_NOFOLLOW, a link itself may be opened: refuse it like a link on the way. */
    if (fd >= 0 && fstat(fd, &facts) == 0 && S_ISLNK(facts.st_mode)) {
        close(fd);
        errno = ELOOP;
        return -1;
    }
    return fd;
}

static int
open_directory(int parent, const char *name, bool create)
{
    int fd = open_entry(parent, name, O_DIRECTORY);
    if (fd < 0 && errno == ENOENT && create && mkdirat(parent, name, 0755) == 0) {
        fd = open_entry(parent, name, O_DIRECTORY);
    }
    return fd;
}

static int
open_file(int parent, const char *name, bool create)
{
    int fd = open_entry(parent, name, 0);
    if (fd >= 0 || errno != ENOENT || !create) {
        return fd;
    }
    int made = openat(parent, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (made < 0) {
        return -1;
    }
    close(made);
    return open_entry(parent, name, 0);
}

/* See cgpu_rootfs_open. DIRECTORY: whether PATH leads to a directory. */
static int
open_below(int root, const char *path, bool create, bool directory)
{
    char copy[PATH_MAX];
    if (strlen(path) >= sizeof copy) {
        errno = ENAMETOOLONG;
        return -1;
    }
    strcpy(copy, path);
    char *rest = NULL;
    char *name = strtok_r(copy, "/", &rest);
    int fd = fcntl(root, F_DUPFD_CLOEXEC, 3);
    while (fd >= 0 && name != NULL) {
        char *next = strtok_r(NULL, "/", &rest);
        int below = next != NULL || directory ? open_directory(fd, name, create)
                                              : open_file(fd, name, create);
        int saved = errno;
        close(fd);
        errno = saved;
        fd = below;
        name = next;
    }
    return fd;
}

int
cgpu_rootfs_open(int root, const char *path, bool create)
{
    return open_below(root, path, create, false);
}

int
cgpu_rootfs_open_directory(int root, const char *path)
{
    return open_below(root, path, true, true);
}
