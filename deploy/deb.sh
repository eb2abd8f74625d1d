#!/bin/sh
# Make the Debian package of each processor, for the release of Debian or Ubuntu that this machine runs.
#   deb.sh [FOLDER]      for $MACHINES, with the interpreter $PYTHON, of a tree that is built
# DEBFULLNAME and DEBEMAIL name the maintainer.
set -eu

python=${PYTHON:-python3}
out=$(realpath -m "${1:-dist}")
machines=${MACHINES-x86_64 aarch64}
debian_python=$(/usr/bin/python3 -c 'import sys; print(*sys.version_info[:2], sep=".")')
# shellcheck source=/dev/null
. /etc/os-release
version=$("$python" -c 'from cgpu_env.version import VERSION; print(VERSION.replace(".dev", "~dev"))')
full=$version+$ID$VERSION_ID
maintainer="${DEBFULLNAME:-The authors of cgpu} <${DEBEMAIL:-cgpu@$(hostname -f)}>"
: "${SOURCE_DATE_EPOCH:=$(git log -1 --format=%ct 2>/dev/null || stat -c %Y setup.py)}"
export SOURCE_DATE_EPOCH PYTHON="$python"

sh deploy/dist.sh "$out"
package() {
    case $1 in x86_64) arch=amd64 ;; aarch64) arch=arm64 ;; *) arch=$1 ;; esac
    work=$PWD/build/deb/$1
    tree=$work/cgpu-$version
    mkdir -p "$tree"
    cp -rL deploy "$tree" # units are links
    mv "$tree/deploy/debian" "$tree/debian"
    cd "$tree"
    sed -i "s/@MAINTAINER@/$maintainer/" debian/control
    printf 'cgpu (%s) unstable; urgency=medium\n\n  * Release %s, packaged for %s %s.\n\n -- %s  %s\n' \
        "$full" "$version" "$ID" "$VERSION_ID" "$maintainer" "$(date -R -u -d "@$SOURCE_DATE_EPOCH")" >debian/changelog
    for program in cgpu cgpu-run cgpu-smi cgpud; do
        for shell in bash zsh fish; do
            "$python" -m cgpu_cli.main completion "$shell" "$program" >"debian/$program.$shell"
        done
    done
    "$python" -m pip -q --disable-pip-version-check download --dest debian/wheels --only-binary=:all: \
        --python-version "$debian_python" --platform "manylinux2014_$1" \
        --constraint debian/constraints.txt "$out"/cgpu-*-manylinux2014_"$1".whl
    dpkg-buildpackage -b -uc -us -d --host-arch "$arch" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
    cp "$work"/cgpu_*_"$arch".deb "$out"
}

rm -rf build/deb
builds=
for machine in $machines; do
    package "$machine" &
    builds="$builds $!"
done
for build in $builds; do
    wait "$build"
done
