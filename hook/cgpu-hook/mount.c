/*
 * Mounts into a container that already exists, without trusting any path of its image. Both ends of
 * a mount are descriptors. The source is opened and cloned on the host. The target is reached from
 * a descriptor of the container's root, and no link is followed.
 */
#include "stages.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/mount.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "report.h"
#include "rootfs.h"
#include "state.h"

enum { MAX_MOUNTS = 256 };

struct mount {
    const char *kind; /* "ro", "rw" (noexec), "mask" (/dev/null on it), "tmpfs" (new and empty) */
    const char *source;
    const char *destination;
    int tree; /* a detached mount */
};

static const struct cgpu_report report = {NULL, false};

static int
report_failure(const char *path)
{
    cgpu_report_error(&report, "mount of %s: %s", path, strerror(errno));
    return -1;
}

/* The next NUL-terminated field of the plan; NULL at its end. */
static const char *
read_field(struct cgpu_document *plan)
{
    const char *field = plan->bytes;
    const char *nul = memchr(field, '\0', plan->size);
    if (nul == NULL) {
        return NULL;
    }
    plan->size -= (size_t)(nul - field) + 1;
    plan->bytes += nul - field + 1;
    return field;
}

static int
read_mounts(struct cgpu_document *plan, struct mount *mounts)
{
    int count = 0;
    const char *kind;
    while ((kind = read_field(plan)) != NULL) {
        const char *source = read_field(plan);
        const char *destination = read_field(plan);
        if (count == MAX_MOUNTS || destination == NULL || destination[0] != '/') {
            return -1;
        }
        mounts[count++] = (struct mount){kind, source, destination, -1};
    }
    return count;
}

static uint64_t
make_attributes(const struct mount *mount)
{
    uint64_t set = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV;
    if (strcmp(mount->kind, "rw") != 0) {
        return set | MOUNT_ATTR_RDONLY; /* executable: the loader maps libraries so */
    }
    return set | MOUNT_ATTR_NOEXEC;
}

/*
 * Whether the file behind FD may be mounted. FD itself is checked, because another file may be at
 * its path by now. Nobody but us or root may be able to change the file, unless it is a ledger,
 * which everyone may write. A mask is the null device, whoever owns it: crun gives its standard
 * streams to the container's user.
 */
static bool
is_trusted(int fd, const char *kind)
{
    struct stat facts;
    if (fstat(fd, &facts) != 0) {
        return false;
    }
    if (strcmp(kind, "mask") == 0) {
        return S_ISCHR(facts.st_mode) && facts.st_rdev == makedev(1, 3);
    }
    bool own = facts.st_uid == 0 || facts.st_uid == geteuid();
    bool shared = (facts.st_mode & (S_IWGRP | S_IWOTH)) != 0;
    return S_ISREG(facts.st_mode) && own && (!shared || strcmp(kind, "rw") == 0);
}

/*
 * Make a new, empty directory: a tmpfs with ATTRIBUTES and the attributes that each of our mounts
 * has. Returns its descriptor.
 */
static int
make_tmpfs(unsigned attributes)
{
    int context = (int)syscall(SYS_fsopen, "tmpfs", FSOPEN_CLOEXEC);
    if (context < 0 ||
        syscall(SYS_fsconfig, context, FSCONFIG_SET_STRING, "mode", "0755", 0) != 0 ||
        syscall(SYS_fsconfig, context, FSCONFIG_CMD_CREATE, NULL, NULL, 0) != 0) {
        return -1;
    }
    int tree = (int)syscall(SYS_fsmount, context, FSMOUNT_CLOEXEC,
                            attributes | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
    close(context);
    return tree;
}

static bool
is_tmpfs(const struct mount *mount)
{
    return strcmp(mount->kind, "tmpfs") == 0;
}

/* All mount points in a new directory exist: make it read-only. */
static int
close_tmpfs(const struct mount *mount)
{
    struct mount_attr attr = {.attr_set = MOUNT_ATTR_RDONLY};
    bool done = syscall(SYS_mount_setattr, mount->tree, "", AT_EMPTY_PATH, &attr, sizeof attr) == 0;
    return done ? 0 : report_failure(mount->destination);
}

/* Set mount->tree to a detached copy of the host's file at mount->source. */
static int
clone_source(struct mount *mount)
{
    struct mount_attr attr = {.attr_set = make_attributes(mount),
                              .propagation = 1U << 18 /* private */};
    if (is_tmpfs(mount)) {
        mount->tree = make_tmpfs(MOUNT_ATTR_NOEXEC);
        return mount->tree >= 0 ? 0 : report_failure(mount->destination);
    }
    int file = open(mount->source, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (file < 0) {
        return report_failure(mount->source);
    }
    if (!is_trusted(file, mount->kind)) {
        close(file);
        errno = EPERM;
        return report_failure(mount->source);
    }
    mount->tree =
        (int)syscall(SYS_open_tree, file, "", OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | AT_EMPTY_PATH);
    close(file);
    if (mount->tree < 0 ||
        syscall(SYS_mount_setattr, mount->tree, "", AT_EMPTY_PATH, &attr, sizeof attr) != 0) {
        return report_failure(mount->source);
    }
    return 0;
}

static int
attach_mount(int root, const struct mount *mount)
{
    bool mask = strcmp(mount->kind, "mask") == 0;
    struct stat facts;
    int target = is_tmpfs(mount) ? cgpu_rootfs_open_directory(root, mount->destination)
                                 : cgpu_rootfs_open(root, mount->destination, !mask);
    if (target < 0 && mask && errno == ENOENT) {
        return 0;
    }
    if (target < 0 || fstat(target, &facts) != 0) {
        return report_failure(mount->destination);
    }
    bool directory = S_ISDIR(facts.st_mode);
    /* A directory is hidden by an empty directory that nobody can write to. */
    int tree = mask && directory ? make_tmpfs(MOUNT_ATTR_RDONLY) : mount->tree;
    errno = EINVAL;
    if ((directory && !mask && !is_tmpfs(mount)) || (!directory && !S_ISREG(facts.st_mode)) ||
        tree < 0) {
        close(target);
        return report_failure(mount->destination);
    }
    long done = syscall(SYS_move_mount, tree, "", target, "",
                        MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH);
    close(target);
    return done == 0 ? 0 : report_failure(mount->destination);
}

/* Enter the mount namespace of process PID and return its root file system. */
static int
enter_container(const char *pid, const char *rootfs)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%s/ns/mnt", pid);
    int namespace = open(path, O_RDONLY | O_CLOEXEC);
    snprintf(path, sizeof path, "/proc/%s/root", pid);
    int own_root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    struct stat host, own;
    if (namespace < 0 || own_root < 0 || stat("/", &host) != 0 || fstat(own_root, &own) != 0 ||
        setns(namespace, CLONE_NEWNS) != 0) {
        return report_failure("/");
    }
    close(namespace);
    if (host.st_dev != own.st_dev || host.st_ino != own.st_ino) {
        return own_root; /* the runtime has changed the root already */
    }
    close(own_root);
    int root = open(rootfs, O_PATH | O_DIRECTORY | O_CLOEXEC);
    return root < 0 ? report_failure(rootfs) : root;
}

int
cgpu_stage_mount(int argc, char **argv)
{
    static struct mount mounts[MAX_MOUNTS];
    struct cgpu_document plan;
    int count = argc == 4 && cgpu_state_read(STDIN_FILENO, &plan) ? read_mounts(&plan, mounts) : -1;
    if (count < 0) {
        cgpu_report_error(&report, "mount: expected PID ROOTFS and a plan on stdin");
        return 1;
    }
    umask(022);
    for (int i = 0; i < count; i++) {
        if (clone_source(&mounts[i]) != 0) {
            return 1;
        }
    }
    int root = enter_container(argv[2], argv[3]);
    for (int i = 0; root >= 0 && i < count; i++) {
        if (attach_mount(root, &mounts[i]) != 0) {
            return 1;
        }
    }
    for (int i = 0; root >= 0 && i < count; i++) {
        if (is_tmpfs(&mounts[i]) && close_tmpfs(&mounts[i]) != 0) {
            return 1;
        }
    }
    return root < 0;
}
