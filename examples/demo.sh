#!/bin/sh
# Starts a control plane on a free port with its data in a temporary folder, gives the tour
# on it, and leaves nothing behind. COXSWAIN is the server's binary; KUBECTL the client,
# kubectl where there is one, else the kubectl-lite beside the server.
set -eu

COXSWAIN=${COXSWAIN:-bin/coxswain}
[ -n "${KUBECTL:-}" ] || KUBECTL=$(command -v kubectl) || KUBECTL=$(dirname "$COXSWAIN")/kubectl-lite
export KUBECTL

dir=$(mktemp -d)
pid=
finish() {
	status=$?
	trap - EXIT
	[ -z "$pid" ] || { kill -INT "$pid" 2>/dev/null && wait "$pid" || status=1; }
	rm -rf "$dir"
	exit $status
}
trap finish EXIT
trap 'exit 130' INT TERM

"$COXSWAIN" up --data-dir "$dir/data" --secure-port 0 >"$dir/log" 2>&1 &
pid=$!

# The line that says where it serves comes when it serves and its Nodes are Ready. What follows it is for people.
until grep -q ' serves ' "$dir/log"; do
	kill -0 "$pid" 2>/dev/null || { cat "$dir/log" >&2; pid=; exit 1; }
	sleep 0.05
done
grep ' serves ' "$dir/log"
export KUBECONFIG="$dir/data/admin.kubeconfig"
sh "$(dirname "$0")/tour.sh"
echo "The control plane ends now, and its data goes with it."
