#define _GNU_SOURCE 1
#include "system/system.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>

static int
checked(int result)
{
    return result == 0 ? CGPU_OK : CGPU_EIO;
}

int
cgpu_system_mount(const char *source, const char *target, const char *kind, unsigned long flags,
                  const char *data)
{
    return checked(mount(source, target, kind, flags, data));
}

int
cgpu_system_unmount(const char *target, int flags)
{
    return checked(umount2(target, flags));
}

int
cgpu_system_unshare(int flags)
{
    return checked(unshare(flags));
}

int
cgpu_system_adopt_orphans(void)
{
    return checked(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0));
}
