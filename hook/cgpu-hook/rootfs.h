/* Paths inside a container's root file system, followed without leaving it. */
#ifndef CGPU_ROOTFS_H
#define CGPU_ROOTFS_H

#include <stdbool.h>

/*
 * Open the absolute PATH below the directory ROOT, as a descriptor (O_PATH). No link is followed,
 * not even at the end of PATH. CREATE: make what is missing: directories, and an empty file at the
 * end. -1 and errno: ELOOP if there is a link on the way.
 */
int cgpu_rootfs_open(int root, const char *path, bool create);

/* Open a directory in the same way; make it if it is missing. */
int cgpu_rootfs_open_directory(int root, const char *path);

#endif
