#!/usr/bin/env bash
# Builds fastovms_VERSION_ARCHITECTURE.deb of this clone: deploy/debian/build.sh [--version VERSION] [DIRECTORY]
#
# The package holds a virtual environment in /opt/fastovms with the dependencies of the lock file,
# for the Python of the Debian or Ubuntu release that it is built on.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
clone=$(cd "$here/../.." && pwd)
version=
if [ "${1-}" = --version ]; then
    version=$2
    shift 2
fi
out=$(realpath -m "${1-$clone/dist}")
: "${version:=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' "$clone/fastovms/__init__.py")}"
architecture=$(dpkg --print-architecture)
# What is built twice of one commit is the same: times are the commit's.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$clone" log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH PIP_DISABLE_PIP_VERSION_CHECK=1

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
environment=$root/opt/fastovms
python=/usr/bin/python3

install_into_environment() {
    "$work/tools/bin/pip" --python "$environment/bin/python3" install --quiet --no-compile "$@"
}

install_environment() {
    "$python" -m venv --without-pip "$environment"
    install_into_environment --require-hashes -r "$clone/deploy/requirements.lock"
    # Of a copy, so that building leaves nothing in the clone.
    mkdir "$work/source"
    (cd "$clone" && tar -c --exclude='*.pyc' fastovms setup.cfg pyproject.toml README.md LICENSE) | tar -x -C "$work/source"
    install_into_environment --no-deps "$work/source"
    rm -rf "$environment"/bin/[Aa]ctivate* "$environment/share"
    # The environment moves from here to /opt.
    grep -rlIF "$root" "$environment/bin" "$environment/pyvenv.cfg" | xargs -r sed -i "s|$root||g"
    "$python" -m compileall -q -j 0 --invalidation-mode unchecked-hash -s "$root" -p / "$environment/lib" || true
}

# Programs that write the manual page, completions and the list of components, none of which the server needs.
install_tools() {
    "$python" -m venv "$work/tools"
    "$work/tools/bin/pip" install --quiet 'argparse-manpage>=4.6' 'shtab>=1.7' 'cyclonedx-bom>=7'
}

write_documents() {
    local site share=$root/usr/share bash zsh
    site=$(echo "$environment"/lib/python3.*/site-packages)
    bash=$share/bash-completion/completions
    zsh=$share/zsh/vendor-completions
    mkdir -p "$share/man/man1" "$bash" "$zsh" "$share/doc/fastovms"
    PYTHONPATH=$site "$work/tools/bin/argparse-manpage" \
        --module fastovms.cli.main --function command_parser --format single-commands-section \
        --project-name fastovms --manual-title fastovms --version "$version" \
        --description "OpenAI-compatible LLM server for OpenVINO models" | gzip -9n >"$share/man/man1/fastovms.1.gz"
    PYTHONPATH=$site "$work/tools/bin/shtab" --shell=bash fastovms.cli.main.command_parser >"$bash/fastovms"
    PYTHONPATH=$site "$work/tools/bin/shtab" --shell=zsh fastovms.cli.main.command_parser >"$zsh/_fastovms"
    "$work/tools/bin/cyclonedx-py" environment --output-reproducible "$environment/bin/python3" \
        >"$share/doc/fastovms/sbom.cdx.json"
    install -m 644 "$here/copyright" "$clone/systemd/README.md" "$share/doc/fastovms/"
}

install_files() {
    install -D -m 644 -t "$root/lib/systemd/system" "$clone"/systemd/fastovms*.service "$clone/systemd/fastovms.socket"
    install -D -m 640 "$clone/systemd/fastovms.env" "$root/etc/fastovms/fastovms.env"
    mkdir -p "$root/usr/bin"
    ln -s /opt/fastovms/bin/fastovms "$root/usr/bin/fastovms"
}

write_control() {
    local python_version next size
    python_version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    next=${python_version%.*}.$((${python_version#*.} + 1))
    size=$(du -sk --apparent-size "$root" | cut -f 1)
    mkdir "$root/DEBIAN"
    sed -e "s/@VERSION@/$version/" -e "s/@ARCHITECTURE@/$architecture/" -e "s/@SIZE@/$size/" \
        -e "s/@PYTHON@/$python_version/" -e "s/@NEXT_PYTHON@/$next/" "$here/control" >"$root/DEBIAN/control"
    install -m 644 "$here/conffiles" "$root/DEBIAN/"
    install -m 755 "$here/postinst" "$here/prerm" "$here/postrm" "$root/DEBIAN/"
    (cd "$root" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
}

install_tools
install_environment
install_files
write_documents
write_control
chmod -R u+rwX,go+rX,go-w "$root/opt" "$root/usr" "$root/lib"
mkdir -p "$out"
dpkg-deb --root-owner-group -Zzstd --build "$root" "$out/fastovms_${version}_$architecture.deb"
