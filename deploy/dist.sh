#!/bin/sh
# Make the source distribution, a wheel for each processor, constraints.txt for the image, and kubectl-inspect-cgpu. All are built from
# what the source distribution unpacks to: so that is complete, and the tree's own products stay this machine's.
#   dist.sh [FOLDER]      for $MACHINES, with the interpreter $PYTHON, which has the build's requirements
set -eu
umask 022 # a wheel keeps its files' modes

python=${PYTHON:-python3}
out=$(realpath -m "${1:-dist}")
machines=${MACHINES-x86_64 aarch64}
# The same sources give the same archive: all files are as old as the last commit.
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y setup.py)}"
export SOURCE_DATE_EPOCH
work=$PWD/build/dist # always the same, for the compiler's cache goes by path
rm -rf "$work"
mkdir -p "$work" "$out"

"$python" setup.py -q egg_info --egg-base "$work" sdist --dist-dir "$work" --formats gztar
archive=$(cd "$work" && ls cgpu-*.tar.gz)
name=${archive%.tar.gz}
tar -C "$work" -xf "$work/$archive"
tar -C "$work" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    --mode=go=rX,u+rw -cf - "$name" | gzip -9n >"$out/$archive"

cat deploy/debian/constraints.txt deploy/image/constraints.txt >"$out/constraints.txt"
"$python" "$work/$name/deploy/kubectl/pack.py" "$out"

wheel() {
    mkdir "$work/$1"
    tar -C "$work/$1" -xf "$out/$archive"
    CGPU_BUILD_MACHINE=$1 "$python" -m pip -q --disable-pip-version-check wheel \
        --no-deps --no-build-isolation --wheel-dir "$out" "$work/$1/$name"
}

builds=
for machine in $machines; do
    wheel "$machine" &
    builds="$builds $!"
done
for build in $builds; do
    wait "$build"
done
rm -rf "$work"
