#!/usr/bin/env bash
# Builds the image that the Docker tests use, from Debian packages and without a registry; as root.
set -euo pipefail

name="${1:-turnwise-test}"
if docker image inspect "$name" >/dev/null 2>&1; then
  exit 0
fi
root="$(mktemp -d)"
trap 'rm -rf --one-file-system "$root"' EXIT
debootstrap --variant=minbase --include=python3,git,procps bookworm "$root" >/dev/null
tar -C "$root" -c . | docker import - "$name" >/dev/null
