#!/bin/sh
# Helm 4 throws away what a post-renderer writes to standard error and, when it fails, its standard output too. It does
# quote, in its own error, output that is no object. So a failure is told as one YAML text, and Helm ends with status 1.
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
drainagent "$@" >"$work/manifest" 2>"$work/notes"
status=$?
if [ $status -eq 0 ]; then
  cat "$work/manifest"
else
  printf '|\n  drainagent: exit status %s\n' $status
  sed 's/^/  /' "$work/notes"
fi
