/* Paths inside a container's root file system, followed without ever leaving it. */
#ifndef CGPU_ROOTFS_H
#define CGPU_ROOTFS_H

#include <stdbool.h>

/*
 * A descriptor (O_PATH) of the absolute PATH below the directory ROOT; no link is followed, not
 * even at the end. With CREATE, what is missing is made: directories, and an empty file at the end.
 * -1 and errno: ELOOP if there is a link on the way.
 */
int cgpu_rootfs_open(int root, const char *path, bool create);

/* The same for a directory, which is made if it is missing. */
int cgpu_rootfs_open_directory(int root, const char *path);

#endif
