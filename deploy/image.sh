#!/usr/bin/env bash
# Builds the image where there is no registry to take its base from: deploy/image.sh [NAME:TAG]
#
# mmdebstrap makes the base of Debian packages, and buildah builds the Dockerfile on it, as root
# and without namespaces of its own: it works within a container, too. Where pip needs a
# configuration, such as an index or certificates, PIP_DIR names a directory with a pip.conf, which
# the build sees as /etc/xdg/pip and the image does not contain.
set -euo pipefail

cd "$(dirname "$0")/.."
image=${1-fastovms:$(sed -n 's/^__version__ = "\(.*\)"/\1/p' fastovms/__init__.py)}
suite=bookworm
base=localhost/debian:$suite
export BUILDAH_ISOLATION=chroot

if ! buildah inspect --type image "$base" >/dev/null 2>&1; then
    root=$(mktemp --suffix .tar)
    trap 'rm -f "$root"' EXIT
    mmdebstrap --quiet --variant=minbase \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
        "$suite" "$root"
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$root" / >/dev/null
    buildah commit --quiet --rm "$container" "$base" >/dev/null
fi

options=(--layers --network host --build-arg "BASE=$base" --tag "$image")
if [ -n "${PIP_DIR-}" ]; then
    options+=(--volume "$(realpath "$PIP_DIR"):/etc/xdg/pip:ro")
fi
buildah build "${options[@]}" -f Dockerfile .
