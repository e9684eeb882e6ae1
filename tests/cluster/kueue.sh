#!/usr/bin/env bash
# kueue.sh: installs Kueue in the running cluster, as a Deployment, in about 15 s. Once: setup.sh kueue.
# Its manifests are those of the module that its program was built from.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bin=${DRAINAGENT_CLUSTER:-${HOME:?}/.cache/drainagent/cluster}/bin
[ -x "$bin/kueue" ] || { echo "kueue.sh: missing $bin/kueue; run $here/setup.sh kueue" >&2; exit 1; }
settings=$("$here/cluster.sh" env)
eval "$settings"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$here/image.py" localhost/kueue:rig "/manager=$bin/kueue" --entrypoint /manager --user 65532:65532 | "$here/cluster.sh" load -
cp -r "$here/go/kueue" "$work/module"
cp -r "$(cd "$work/module" && go list -m -f '{{.Dir}}' sigs.k8s.io/kueue)/config" "$work/config"
chmod -R u+w "$work/config"
kubectl kustomize "$work/config/default" |
  sed -E 's#^( +image: ).*/kueue:.*#\1localhost/kueue:rig#; s#imagePullPolicy: Always#imagePullPolicy: Never#' |
  kubectl apply --server-side -f - >/dev/null
kubectl -n kueue-system rollout status deployment/kueue-controller-manager --timeout=120s
