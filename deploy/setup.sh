#!/bin/sh
# Install the system packages that a Debian 12 or Ubuntu 22.04+ machine may lack.
#   base [PYTHON]: what the build needs.   demo: also docker.   test: also the container engines that the system tests start.
set -eu

base="gcc libc6-dev python3-dev python3-venv git"
demo="$base docker.io runc containerd"
test="$base debootstrap busybox-static musl-tools docker.io runc crun containerd podman fuse-overlayfs fuse3 systemd prometheus zsh fish debhelper lintian qemu-user-static man-db etcd-server containernetworking-plugins rsync bubblewrap"

missing() {
    for package in $1; do
        dpkg-query -W -f='${Status}\n' "$package" 2>/dev/null | grep -q '^install ok installed' ||
            printf '%s ' "$package"
    done
}

has() {
    command -v "$1" >/dev/null 2>&1
}

# Before anything is changed, and again where the machine had no Python.
check_python() {
    if ! has "$1"; then
        echo "cgpu needs Python 3.10 or newer, and there is no $1 here: name one that is there, as in: make demo PYTHON=python3.12" >&2
        exit 1
    fi
    "$1" -c 'import sys
if sys.version_info < (3, 10):
    sys.exit("cgpu needs Python 3.10 or newer, and %s is %d.%d: name a newer one, as in: make demo PYTHON=python3.12"
             % ((sys.argv[1],) + tuple(sys.version_info[:2])))' "$1"
}

python=${2:-python3}
if has "$python" || [ "$python" != python3 ] || ! has dpkg-query; then # else it is installed below
    check_python "$python"
fi
has dpkg-query || exit 0 # not Debian: the user brings a compiler and Python headers
case "${1:-base}" in
    base) wanted=$(missing "$base") ;;
    demo) wanted=$(missing "$demo") ;;
    test) wanted=$(missing "$test") ;;
    *) echo "setup.sh: unknown set \"$1\": expected base, demo or test" >&2; exit 2 ;;
esac
[ -n "$wanted" ] || exit 0
if [ "$(id -u)" != 0 ]; then
    echo "setup.sh: missing packages: $wanted- install them with: sudo apt-get install $wanted" >&2
    exit 1
fi
echo "Installing $wanted..."
began=$(date +%s)
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# Packages that start a service on installation must not: tests start their own engines.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
fi
# shellcheck disable=SC2086 # a list of names
apt-get install -y -qq --no-install-recommends $wanted >/dev/null
echo "Installing $wanted: $(($(date +%s) - began)) s"
check_python "$python"
