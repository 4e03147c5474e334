#!/bin/bash
# Runs a command on a machine that has a GPU and no network: bench/gpu/on_machine.sh COMMAND ...
#
# From the root of the repository. Unpacks what bench/gpu/pack.py packed, if it is there, and lets
# Python find it and the sources. If OUT names a folder, results and figures are packed into it at
# the end, however the command ends.
set -uo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root" || exit 1
site=${SITE:-/tmp/gpud-site}
if [ -f .gpu/site.tar.xz ] && [ ! -d "$site" ]; then
	mkdir -p "$site" && tar -xJf .gpu/site.tar.xz -C "$site" || exit 1
fi
export PYTHONPATH="$site:$root:$root/client" PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

"$@"
status=$?

if [ -n "${OUT:-}" ]; then
	shopt -s nullglob
	results=(bench/results/gpu_*.json docs/images/gpu_*.png)
	if [ ${#results[@]} -gt 0 ]; then
		tar -czf "$OUT/results.tar.gz" "${results[@]}"
	fi
fi
exit $status
