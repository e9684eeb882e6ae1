#!/usr/bin/env bash
# setup.sh: helm3, helm4 and kustomize, built from their Go modules in ${DRAINAGENT_TOOLS:-~/.cache/drainagent/tools}.
# Once: about 4 minutes on 2 idle cores. Needs Go 1.26 or newer, and the Go module proxy.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bin=${DRAINAGENT_TOOLS:-${HOME:?set HOME or DRAINAGENT_TOOLS}/.cache/drainagent/tools}
"$here/../cluster/build.sh" "$bin" "$here"/go/{helm3,helm4,kustomize}
