#!/bin/sh
# Builds the Kubernetes that the tests start: kube-apiserver, kube-scheduler and kubelet 1.20.2,
# from Debian's source package. The programs stay in a folder outside the clone, so the build takes
# 6 minutes on two idle cores once per machine.
#   kubernetes.sh        builds what is missing, and prints the folder of the programs
#   kubernetes.sh -n     prints the folder, or says what to do if it is missing
#   kubernetes.sh -l     lists the versions that tests run on, after building what is missing
# $CGPU_CACHE names another folder than /var/cache/cgpu.
set -eu

version=1.20.2
recipe=1 # raise it when what is built, or how, changes: then it is built anew
cache=${CGPU_CACHE:-/var/cache/cgpu}
bin=$cache/kubernetes-$version-$recipe
programs="kube-apiserver kube-scheduler kubelet"

if [ "${1:-}" = -l ]; then
    echo "Kubernetes $version in $(sh "$0")"
    if [ -n "${CGPU_KUBERNETES:-}" ]; then
        found=
        for program in kube-controller-manager $programs; do
            shown=$("$CGPU_KUBERNETES/$program" --version) || {
                echo "kubernetes.sh: CGPU_KUBERNETES=$CGPU_KUBERNETES has no $program that runs: name a folder with kube-apiserver, kube-controller-manager, kube-scheduler, kubelet and perhaps etcd" >&2
                exit 1
            }
            if [ "$shown" != "${found:=$shown}" ]; then
                echo "kubernetes.sh: CGPU_KUBERNETES=$CGPU_KUBERNETES has programs of $found and, $program, of $shown: name a folder with those of one version" >&2
                exit 1
            fi
        done
        echo "Kubernetes ${found#Kubernetes v} in $CGPU_KUBERNETES"
    fi
    exit 0
fi
if [ -d "$bin" ]; then
    echo "$bin"
    exit 0
fi
if [ "${1:-}" = -n ]; then
    echo "kubernetes.sh: Kubernetes $version is not in $bin: build it, in some minutes, with: sh deploy/kubernetes.sh" >&2
    exit 1
fi
for program in apt-get dpkg-source make rsync; do
    command -v $program >/dev/null || {
        echo "kubernetes.sh: there is no $program here, which the build of Kubernetes $version from Debian's source package needs: sh deploy/setup.sh test" >&2
        exit 1
    }
done

mkdir -p "$cache" || {
    echo "kubernetes.sh: run it as root, or name a folder of yours: CGPU_CACHE=DIR" >&2
    exit 1
}
exec 9>"$cache/kubernetes.lock"
flock 9
if [ -d "$bin" ]; then # another process has built it meanwhile
    echo "$bin"
    exit 0
fi

work=$cache/kubernetes.build
rm -rf "$work"
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM HUP
mkdir -p "$work/sources" "$work/lists/partial" "$work/root" "$work/gopath/src/k8s.io" "$work/tmp"
began=$(date +%s)
echo "Building Kubernetes $version in $work ..." >&2

# Use the machine's package sources, with source packages added, but keep separate package lists.
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
    name=$work/sources/${file##*/}
    case $file in
        *.sources) sed 's/^Types:.*/Types: deb deb-src/' "$file" >"$name" ;;
        *.list) if [ -f "$file" ]; then sed -n 's/^deb\(-src\)\? \(.*\)/deb \2\ndeb-src \2/p' "$file" >"$name"; fi ;;
    esac
done
apt() {
    apt-get -qq -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$work/sources" \
        -o Dir::State::Lists="$work/lists" -o APT::Sandbox::User="$(id -un)" "$@" >&2
}
cd "$work"
apt update
apt source --download-only kubernetes || true
[ -n "$(find . -maxdepth 1 -name "kubernetes_*really$version-*.dsc")" ] || {
    echo "kubernetes.sh: the package sources of this machine do not have the source of kubernetes $version: it is in Debian 12" >&2
    exit 1
}
apt download golang-1.19-go golang-1.19-src golang-github-modern-go-reflect2-dev
for package in ./*.deb; do
    dpkg-deb -x "$package" root
done
dpkg-source --no-check -x ./kubernetes_*.dsc gopath/src/k8s.io/kubernetes >&2

# Replace the source package's reflect2. It is too old for Go 1.19: kube-apiserver would die at the
# first Node with resources.
cd gopath/src/k8s.io/kubernetes
reflect2=vendor/github.com/modern-go/reflect2
rm -f $reflect2/*.go $reflect2/*.s
cp "$work"/root/usr/share/gocode/src/github.com/modern-go/reflect2/*.go \
    "$work"/root/usr/share/gocode/src/github.com/modern-go/reflect2/*.s $reflect2/

export PATH="$work/root/usr/lib/go-1.19/bin:$PATH" GOROOT="$work/root/usr/lib/go-1.19"
export GOPATH="$work/gopath" GOCACHE="$work/gocache" HOME="$work" TMPDIR="$work/tmp"
export CGO_ENABLED=0 GO111MODULE=off GOPROXY=off GOFLAGS="" GOGC=400
export KUBE_GIT_VERSION="v$version" KUBE_GIT_TREE_STATE=clean KUBE_GIT_COMMIT=debian
export KUBE_GIT_MAJOR=1 KUBE_GIT_MINOR=20
make generated_files >"$work/log" 2>&1 || { tail -n 40 "$work/log" >&2; exit 1; }

flags="-s -w"
for package in component-base/version client-go/pkg/version; do
    for pair in "gitVersion=v$version" gitMajor=1 gitMinor=20 gitCommit=debian gitTreeState=clean; do
        flags="$flags -X k8s.io/kubernetes/vendor/k8s.io/$package.$pair"
    done
done
mkdir "$work/bin"
for program in $programs; do
    go build -trimpath -ldflags "$flags" -o "$work/bin/" "k8s.io/kubernetes/cmd/$program" >&2
done
for program in $programs; do
    shown=$("$work/bin/$program" --version)
    [ "$shown" = "Kubernetes v$version" ] || {
        echo "kubernetes.sh: the $program that was built says that it is \"$shown\", not Kubernetes v$version" >&2
        exit 1
    }
done
mv "$work/bin" "$bin"
echo "Building Kubernetes $version: $(($(date +%s) - began)) s" >&2
echo "$bin"
