/* What cgpu-hook does at each stage of a container's life. Each returns an exit status. */
#ifndef CGPU_STAGES_H
#define CGPU_STAGES_H

/* poststop [--state-dir DIR] ID: give the container's share back. */
int cgpu_stage_poststop(int argc, char **argv);

/* prestart: cap a container that was made without cgpu-runtime; its state comes on stdin. */
int cgpu_stage_prestart(int argc, char **argv);

/* precreate: podman's; the configuration comes on stdin and goes, changed, to stdout. */
int cgpu_stage_precreate(int argc, char **argv);

/* claim --claim UID: give a container that exists what its claim has; its state comes on stdin. */
int cgpu_stage_claim(int argc, char **argv);

/* mount: make the mounts of a plan in a container; started by the Python side of the two above. */
int cgpu_stage_mount(int argc, char **argv);

#endif
