#!/usr/bin/env bash
# Triton's load generator in a directory of one's own, without root: scripts/perf-analyzer.sh DIR makes DIR/perf_analyzer.
# Its wheel (x86-64 Linux) wants glibc 2.38; where a Debian has an older one, those of Debian 13 lie beside it, in use by nobody else.
# Needs python3 with pip and, with an older glibc, apt-get and dpkg-deb.
set -euo pipefail
[ $# = 1 ] || { echo "usage: scripts/perf-analyzer.sh DIR" >&2; exit 2; }
mkdir -p "$1"
root="$(cd "$1" && pwd)"
[ ! -x "$root/perf_analyzer" ] || exit 0

python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --platform manylinux_2_38_x86_64 \
    --dest "$root/wheel" perf-analyzer==2.60.0 >&2
python3 -m zipfile -e "$root"/wheel/*.whl "$root"
rm -r "$root/wheel"
binary="$root/perf_analyzer-2.60.0"
mv "$root/perf_analyzer/bin/perf_analyzer" "$binary"
rm -r "$root/perf_analyzer"
chmod +x "$binary"
run="'$binary'"
if ! "$binary" --version >/dev/null 2>&1; then
    # The system's own archive, another release of it, with lists of its own.
    mkdir -p "$root"/apt/{sources,lists/partial,cache/archives/partial} "$root/packages"
    sed -n 's/^Suites:.*/Suites: trixie/; /^$/q; p' /etc/apt/sources.list.d/debian.sources >"$root/apt/sources/trixie.sources"
    apt() {
        apt-get -q -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$root/apt/sources" -o Dir::State::lists="$root/apt/lists" \
            -o Dir::Cache="$root/apt/cache" -o APT::Sandbox::User=root "$@" >&2
    }
    apt update
    (cd "$root/packages" && apt download libc6 libstdc++6 libgcc-s1 zlib1g libssl3t64 libzstd1)
    for package in "$root"/packages/*.deb; do dpkg-deb -x "$package" "$root/system"; done
    rm -r "$root/apt" "$root/packages"
    libraries="$root/system/usr/lib/x86_64-linux-gnu"
    run="'$libraries/ld-linux-x86-64.so.2' --library-path '$libraries' $run"
fi
printf '#!/bin/sh\nexec %s "$@"\n' "$run" >"$root/.perf_analyzer"
chmod +x "$root/.perf_analyzer"
"$root/.perf_analyzer" --version >&2
mv "$root/.perf_analyzer" "$root/perf_analyzer"
