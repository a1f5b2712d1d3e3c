#!/bin/sh
# A tour of a control plane, with kubectl or kubectl-lite: bring up the guestbook, change it,
# take the change back, scale it, and delete it with its namespace.
#
#   KUBECONFIG=.coxswain/admin.kubeconfig KUBECTL=bin/kubectl-lite examples/tour.sh
#
# It works in a namespace of its own, tour, and ends with status 0 if every step did what
# it says. KUBECTL is kubectl unless set.
set -eu

KUBECTL=${KUBECTL:-kubectl}
examples=$(cd "$(dirname "$0")" && pwd)

# run shows a command and runs it.
run() {
	echo
	echo "\$ $*"
	"$@"
}

k() { run "$KUBECTL" --namespace tour "$@"; }

# expect ends the tour unless both are the same.
expect() {
	[ "$1" = "$2" ] || { echo "expected \"$2\", have \"$1\"" >&2; exit 1; }
}

image() { "$KUBECTL" --namespace tour get deployment guestbook -o jsonpath='{.spec.template.spec.containers[0].image}'; }

# A control plane that has just started has no nodes for a moment.
tries=0
until [ -n "$("$KUBECTL" get nodes -o name 2>/dev/null)" ]; do
	tries=$((tries + 1))
	[ "$tries" -lt 100 ] || { echo "no nodes" >&2; exit 1; }
	sleep 0.1
done
run "$KUBECTL" wait --for=condition=Ready nodes --all --timeout=60s
run "$KUBECTL" get nodes
run "$KUBECTL" create namespace tour

k apply -f "$examples/guestbook"
k rollout status deployment/guestbook --timeout=60s
k get deployments,pods,services,configmaps

# The watch prints each change to a pod while the next steps make them.
watched=$(mktemp)
"$KUBECTL" --namespace tour get pods --watch-only --output-watch-events >"$watched" &
watch=$!
trap 'kill $watch 2>/dev/null || :; rm -f "$watched"' EXIT

k set image deployment/guestbook guestbook=guestbook:2
k rollout status deployment/guestbook --timeout=60s
expect "$(image)" guestbook:2

k rollout undo deployment/guestbook
k rollout status deployment/guestbook --timeout=60s
expect "$(image)" guestbook:1
k rollout history deployment/guestbook

k scale deployment/guestbook --replicas=50
k rollout status deployment/guestbook --timeout=120s
k get deployment guestbook
expect "$("$KUBECTL" --namespace tour get pods -o name | wc -l | tr -d ' ')" 50

run "$KUBECTL" delete namespace tour --timeout=120s
expect "$("$KUBECTL" get namespace tour --ignore-not-found -o name)" ""

echo
echo "# what \"get pods --watch\" saw meanwhile, its first lines"
head -n 12 "$watched"
for event in ADDED MODIFIED DELETED; do
	grep -q "^$event" "$watched" || { echo "the watch saw no $event" >&2; exit 1; }
done
echo
echo "The tour is over: every step did what it says."
