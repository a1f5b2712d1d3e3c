#!/bin/sh
# A test in shell, on a control plane of its own: the guestbook comes up, and its namespace goes with all that is in it.
# COXSWAIN is the program, KUBECTL the client.
set -eu
cd "$(dirname "$0")"

COXSWAIN=${COXSWAIN:-coxswain}
KUBECTL=${KUBECTL:-kubectl}

# The server ends with this script ($$), however that ends; the trap only has it end before the script does.
eval "$("$COXSWAIN" test-server --parent $$ &)"
trap 'kill "$COXSWAIN_PID"' EXIT

fail() {
	echo "FAIL: $*" >&2
	exit 1
}

"$KUBECTL" create namespace test
"$KUBECTL" apply -n test -f ../guestbook
"$KUBECTL" rollout status -n test deployment/guestbook --timeout=60s
ready=$("$KUBECTL" get -n test deployment guestbook -o jsonpath='{.status.readyReplicas}')
[ "$ready" = 3 ] || fail "$ready pods are ready"
"$KUBECTL" delete namespace test --timeout=60s
if "$KUBECTL" get namespace test 2>/dev/null; then
	fail "the namespace is still there"
fi
echo PASS
