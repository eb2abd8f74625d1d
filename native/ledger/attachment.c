/*
 * Attaching to a ledger and leaving it.
 *
 * The slot's byte lock belongs to an open file description, which the mapping keeps alive. So the
 * slot depends on no descriptor that a child could inherit, or that a program which closes all
 * descriptors could close. MADV_DONTFORK keeps the mapping out of a child; exec drops it.
 *
 * To find out whether other processes live, a descriptor is needed for a moment. The path gives
 * one, but not to a program that has changed its root. For that case a descriptor of a second open
 * file description is kept. It holds no slot, so a program may close it, and a copy in a child does
 * no harm.
 *
 * On overlayfs a mapping holds the underlying file instead. There the slot's own descriptor is
 * kept. A program that closes it loses its slot, so ledgers belong on tmpfs.
 */
#define _GNU_SOURCE 1

#include "ledger/attachment.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include "ledger/inheritance.h"
#include "ledger/observer.h"
#include "ledger/slot.h"

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

/*
 * Open PATH with a descriptor above 2. With 0 to 2, a program that had closed its output would
 * print into the ledger.
 */
static int
open_high(const char *path, int flags)
{
    int fd = open(path, flags | O_CLOEXEC);
    int high;

    if (fd < 0 || fd > STDERR_FILENO) {
        return fd;
    }
    high = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    close(fd);
    return high;
}

static void
close_quietly(int fd)
{
    int saved = errno;

    close(fd);
    errno = saved;
}

static bool
is_ours(const struct cgpu_ledger *ledger, int fd)
{
    struct stat found;

    return fstat(fd, &found) == 0 && found.st_dev == ledger->device &&
           found.st_ino == ledger->inode;
}

/* Returns FD if it refers to the attachment's file. Otherwise closes it and returns -1. */
static int
only_ours(const struct cgpu_ledger *ledger, int fd)
{
    if (fd >= 0 && !is_ours(ledger, fd)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

int
cgpu_ledger_reopen(const struct cgpu_ledger *ledger)
{
    int fd = ledger->observing ? -1 : only_ours(ledger, open_high(ledger->path, O_RDWR));

    if (fd < 0 && ledger->kept > 0) {
        fd = only_ours(ledger, fcntl(ledger->kept, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
    }
    return fd;
}

static int
check_format(int fd, struct cgpu_ledger *ledger)
{
    uint32_t head[3];
    struct stat found;

    if (fstat(fd, &found) != 0) {
        return CGPU_EIO;
    }
    if (!S_ISREG(found.st_mode) || found.st_size != sizeof(struct cgpu_ledger_file) ||
        pread(fd, head, sizeof head, 0) != sizeof head || head[0] != CGPU_LEDGER_MAGIC ||
        head[1] != CGPU_LEDGER_VERSION || head[2] != sizeof(struct cgpu_ledger_file)) {
        return CGPU_EFORMAT;
    }
    ledger->device = found.st_dev;
    ledger->inode = found.st_ino;
    return CGPU_OK;
}

static void
dispose(struct cgpu_ledger *ledger)
{
    int saved = errno;

    if (ledger->file != NULL) {
        munmap(ledger->file, sizeof *ledger->file);
    }
    if (ledger->observing && ledger->kept > 0) {
        close(ledger->kept);
    } else if (ledger->kept > 0) { /* also 0 in a forked child: its handler has closed it */
        cgpu_inheritance_close(ledger->kept);
    }
    munmap(ledger, sizeof *ledger);
    errno = saved;
}

static struct cgpu_ledger *
make(const char *path)
{
    struct cgpu_ledger *ledger =
        mmap(NULL, sizeof *ledger, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (ledger == MAP_FAILED) {
        return NULL;
    }
    memcpy(ledger->path, path, strlen(path) + 1);
    return ledger;
}

/*
 * Close FD, unless the slot would be lost with it. GUARDED: forked children close their copy. If FD
 * had to be closed although the slot is lost, check_held notices.
 */
static void
keep_or_close(struct cgpu_ledger *ledger, int fd, bool guarded)
{
    struct statfs found;
    int saved = errno;

    if (!guarded) {
        close(fd);
    } else if (ledger->file != NULL && fstatfs(fd, &found) == 0 &&
               found.f_type == OVERLAYFS_SUPER_MAGIC) {
        ledger->kept = fd;
    } else {
        cgpu_inheritance_close(fd);
    }
    errno = saved;
}

/*
 * Keep FD, to ask about other processes even after the path leads elsewhere. Close it if forked
 * children could not close their copies.
 */
static void
keep_for_looking(struct cgpu_ledger *ledger, int fd)
{
    if (ledger->kept == 0 && cgpu_inheritance_refuse(fd) == 0) {
        ledger->kept = fd;
    } else {
        close_quietly(fd);
    }
}

/* Fail if the slot is lost already, as happens on some file systems. */
static int
check_held(struct cgpu_ledger *ledger)
{
    int fd = cgpu_ledger_reopen(ledger);
    int status = CGPU_OK;

    if (fd < 0) {
        return CGPU_EIO;
    }
    if (cgpu_slot_dead(fd, ledger->slot)) {
        close(fd);
        errno = EOPNOTSUPP;
        status = CGPU_EIO;
    } else {
        keep_for_looking(ledger, fd);
    }
    return status;
}

static int
map(struct cgpu_ledger *ledger, int fd)
{
    size_t size = sizeof *ledger->file;
    void *file = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

    if (file == MAP_FAILED) {
        return CGPU_EIO;
    }
    ledger->file = file;
    if (madvise(file, size, MADV_DONTFORK) != 0 ||
        madvise(ledger, sizeof *ledger, MADV_WIPEONFORK) != 0) { /* Linux 4.14 */
        return CGPU_EIO;
    }
    return CGPU_OK;
}

static int
enter(struct cgpu_ledger *ledger, uint32_t pid)
{
    int fd = open_high(ledger->path, O_RDWR);
    bool guarded;
    int status;

    if (fd < 0) {
        return CGPU_EIO;
    }
    /* another thread may fork now; its child's copy would keep the slot after our death */
    guarded = cgpu_inheritance_refuse(fd) == 0;
    status = check_format(fd, ledger);
    if (status == CGPU_OK) {
        status = map(ledger, fd);
    }
    if (status == CGPU_OK) {
        status = cgpu_slot_claim(ledger, fd, pid);
    }
    keep_or_close(ledger, fd, guarded);
    return status;
}

/* Begin to open PATH. *MADE is a ledger that is not open yet; *OUT is NULL until it is open. */
static int
prepare(const char *path, struct cgpu_ledger **out, struct cgpu_ledger **made)
{
    if (path == NULL || out == NULL || strlen(path) >= PATH_MAX) {
        return CGPU_EINVAL;
    }
    *out = NULL;
    *made = make(path);
    return *made != NULL ? CGPU_OK : CGPU_EIO;
}

int
cgpu_ledger_attach(const char *path, uint32_t pid, struct cgpu_ledger **out)
{
    struct cgpu_ledger *ledger;
    int status = prepare(path, out, &ledger);

    if (status != CGPU_OK) {
        return status;
    }
    status = enter(ledger, pid);
    if (status == CGPU_OK) {
        status = check_held(ledger); /* if not, another may have the slot by now: leave it alone */
    }
    if (status != CGPU_OK) {
        dispose(ledger);
        return status;
    }
    cgpu_slot_reap(ledger, false); /* keeps the slots few where no process looks at the use */
    *out = ledger;
    return CGPU_OK;
}

int
cgpu_ledger_observe(const char *path, struct cgpu_ledger **out)
{
    struct cgpu_ledger *ledger;
    int status = prepare(path, out, &ledger);

    if (status != CGPU_OK) {
        return status;
    }
    ledger->observing = 1;
    ledger->kept = open_high(path, O_RDONLY | O_NONBLOCK);
    status = ledger->kept < 0 ? CGPU_EIO : check_format(ledger->kept, ledger);
    if (status != CGPU_OK) {
        dispose(ledger);
        return status;
    }
    *out = ledger;
    return CGPU_OK;
}

bool
cgpu_observer_is_open(const struct cgpu_ledger *ledger)
{
    return ledger != NULL && ledger->observing && is_ours(ledger, ledger->kept);
}

void
cgpu_ledger_detach(struct cgpu_ledger *ledger)
{
    if (ledger == NULL) {
        return;
    }
    if (ledger->file != NULL) {
        (void)cgpu_slot_clear(ledger, ledger->slot); /* else the next reaper does it */
    }
    dispose(ledger);
}
