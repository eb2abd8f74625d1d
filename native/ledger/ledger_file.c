/* The ledger file: its layout, which other programs rely on, and how an empty one is made. */
#define _GNU_SOURCE 1

#include "ledger/ledger_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ledger/ledger.h"

_Static_assert(CGPU_LEDGER_SLOTS == 1024, "lock.h gives the slot 11 bits");
_Static_assert(offsetof(struct cgpu_ledger_file, magic) == 0, "layout");
_Static_assert(offsetof(struct cgpu_ledger_file, version) == 4, "layout");
_Static_assert(offsetof(struct cgpu_ledger_file, size) == 8, "layout");
_Static_assert(offsetof(struct cgpu_ledger_file, slot_bound) == 12, "layout");
_Static_assert(offsetof(struct cgpu_ledger_file, reaped_ms) == 16, "layout");
_Static_assert(offsetof(struct cgpu_ledger_file, gpus) == 128, "layout");
_Static_assert(offsetof(struct cgpu_ledger_file, works) == 4224, "layout");
_Static_assert(offsetof(struct cgpu_ledger_file, slots) == 36992, "layout");
_Static_assert(sizeof(struct cgpu_ledger_file) == 364672, "layout");
_Static_assert(offsetof(struct cgpu_ledger_file, work_bound) == 24, "layout");
_Static_assert(offsetof(struct cgpu_ledger_gpu, bell) == 4, "layout");
_Static_assert(offsetof(struct cgpu_ledger_work, end_ns) == 24, "layout");
_Static_assert(sizeof(struct cgpu_ledger_work) == 64, "a cache line");
_Static_assert(sizeof(struct cgpu_ledger_sharing) == sizeof(struct cgpu_ledger_work), "layout");
_Static_assert(offsetof(struct cgpu_ledger_sharing, gpu) == offsetof(struct cgpu_ledger_work, gpu),
               "layout");
_Static_assert(offsetof(struct cgpu_limits, gpus) == 128, "layout");
_Static_assert(offsetof(struct cgpu_limits, release) == 112, "read in every version");
_Static_assert(offsetof(struct cgpu_limits_gpu, gate) == 64, "a cache line of its own");
_Static_assert(sizeof(struct cgpu_limits_gpu) == 128, "layout");
_Static_assert(offsetof(struct cgpu_ledger_gpu, lock) == 0, "layout");
_Static_assert(offsetof(struct cgpu_ledger_gpu, used) == 8, "layout");
_Static_assert(offsetof(struct cgpu_ledger_gpu, refused) == 16, "layout");
_Static_assert(sizeof(struct cgpu_ledger_gpu) == 128,
               "two cache lines, for the adjacent-line fetch");
_Static_assert(offsetof(struct cgpu_ledger_slot, taken) == 0, "layout");
_Static_assert(offsetof(struct cgpu_ledger_slot, generation) == 4, "layout");
_Static_assert(offsetof(struct cgpu_ledger_slot, pid) == 8, "layout");
_Static_assert(offsetof(struct cgpu_ledger_slot, used) == 64, "layout");
_Static_assert(sizeof(struct cgpu_ledger_slot) == 320, "layout");

static int
fill(int fd)
{
    const struct cgpu_ledger_file *none = NULL;
    uint32_t head[] = {CGPU_LEDGER_MAGIC, CGPU_LEDGER_VERSION, sizeof *none};

    /* reserve the space: a full disk then fails here, and kills no process that maps the file */
    if (fallocate(fd, 0, 0, sizeof *none) != 0 &&
        (errno != EOPNOTSUPP || ftruncate(fd, sizeof *none) != 0)) {
        return CGPU_EIO;
    }
    if (pwrite(fd, head, sizeof head, 0) != sizeof head || fchmod(fd, 0666) != 0) {
        return CGPU_EIO;
    }
    return CGPU_OK;
}

int
cgpu_ledger_create(int dirfd, const char *name)
{
    int fd = openat(dirfd, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    int status;
    int saved;

    if (fd < 0) {
        return CGPU_EIO;
    }
    status = fill(fd);
    saved = errno;
    close(fd);
    if (status != CGPU_OK) {
        unlinkat(dirfd, name, 0);
    }
    errno = saved;
    return status;
}
