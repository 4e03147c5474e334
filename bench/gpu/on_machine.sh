#!/bin/bash
# Runs a command on a machine that has a GPU and no network: bench/gpu/on_machine.sh COMMAND ...
#
# From the root of the repository. Unpacks what bench/gpu/pack.py packed, if it is there, and puts
# it and the sources on Python's path. If OUT names a folder, results, figures, logs and the steps'
# state are packed into it every 20 seconds and at the end, however the command ends: unpack it in
# the root of a repository (tar -xzf results.tar.gz).
set -uo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root" || exit 1
site=${SITE:-/tmp/gpud-site}
if [ -f .gpu/site.tar.xz ] && [ ! -d "$site" ]; then
	mkdir -p "$site" && tar -xJf .gpu/site.tar.xz -C "$site" || exit 1
fi
export PYTHONPATH="$site:$root:$root/client" PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
export PATH="$PATH:/usr/local/cuda/bin" # for compute-sanitizer

pack() {
	shopt -s nullglob
	local found=(bench/results/gpu_*.json docs/images/gpu_*.png .gpu/steps.jso[n] .gpu/logs/*.log)
	if [ ${#found[@]} -gt 0 ]; then
		local new
		new=$(mktemp) && tar -czf "$new" "${found[@]}" && mv "$new" "$OUT/results.tar.gz"
	fi
}

packer=
if [ -n "${OUT:-}" ]; then
	while sleep "${PACK_EVERY:-20}"; do pack; done >/dev/null 2>&1 &
	packer=$!
fi

"$@"
status=$?

if [ -n "$packer" ]; then
	kill "$packer"
	wait "$packer" 2>/dev/null
	pack
fi
exit $status
