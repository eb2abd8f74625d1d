/* Status of every native/ function: 0 or one of these. */
#ifndef CGPU_STATUS_H
#define CGPU_STATUS_H

/* cffi: begin */
enum cgpu_status {
    CGPU_OK = 0,
    CGPU_EOVERCAP = -1, /* the request does not fit under the cap */
    CGPU_EFULL = -2,    /* no free process slot in the ledger */
    CGPU_EFORMAT = -3,  /* wrong magic, version or size: not our file, or of another release */
    CGPU_EIO = -4,      /* a system call failed; errno says which way */
    CGPU_EINVAL = -5,   /* an argument is out of range */
    CGPU_ENOTFOUND = -6 /* no such GPU, holding or slot */
};
/* cffi: end */

#endif
