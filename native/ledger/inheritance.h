/*
 * Descriptors that a forked child must not keep, on file systems where a mapping alone holds no
 * slot.
 */
#ifndef CGPU_INHERITANCE_H
#define CGPU_INHERITANCE_H

/* Close FD in every child forked from now on, if FD is still the same file. 0, or -1 if full. */
int cgpu_inheritance_refuse(int fd);

/* Close FD in this process, if it is still the file that was registered, and forget it. */
void cgpu_inheritance_close(int fd);

#endif
