/* System calls that Python's os lacks, for the host's programs, not for the proxies. */
#ifndef CGPU_SYSTEM_H
#define CGPU_SYSTEM_H

#include "status.h"

/* cffi: begin */
/* mount(2). */
int cgpu_system_mount(const char *source, const char *target, const char *kind, unsigned long flags,
                      const char *data);

/* umount2(2). */
int cgpu_system_unmount(const char *target, int flags);

/* unshare(2). */
int cgpu_system_unshare(int flags);

/* Become the parent of processes whose parent, a descendant of ours, has ended. */
int cgpu_system_adopt_orphans(void);
/* cffi: end */

#endif
