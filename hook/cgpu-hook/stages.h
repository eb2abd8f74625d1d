/* What cgpu-hook does at each stage of a container's life. Each function returns an exit status. */
#ifndef CGPU_STAGES_H
#define CGPU_STAGES_H

/* poststop [--state-dir DIR] ID: give the container's share back. */
int cgpu_stage_poststop(int argc, char **argv);

/* prestart: cap a container that was made without cgpu-runtime. Its state comes on stdin. */
int cgpu_stage_prestart(int argc, char **argv);

/* precreate, for podman: the configuration comes on stdin; the changed one goes to stdout. */
int cgpu_stage_precreate(int argc, char **argv);

/* claim --claim UID: give a container that exists what its claim has. Its state comes on stdin. */
int cgpu_stage_claim(int argc, char **argv);

/* mount: make the mounts of a plan in a container. The Python side of the two above starts it. */
int cgpu_stage_mount(int argc, char **argv);

#endif
