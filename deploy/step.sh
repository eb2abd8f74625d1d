#!/bin/sh
# step.sh TEXT COMMAND...: run COMMAND, and say how long TEXT took; what it says is shown where it fails.
set -eu
umask 022 # tests run what it makes as other users
text=$1
shift
began=$(date +%s)
echo "$text ..."
if ! output=$("$@" 2>&1); then
    printf '%s: failed:\n%s\n' "$text" "$output" >&2
    exit 1
fi
echo "$text: $(($(date +%s) - began)) s"
