package node

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	testclock "k8s.io/utils/clock/testing"
)

// narrow are the subresources of a Node that give access to a part of its endpoint.
var narrow = []string{"checkpoint", "configz", "healthz", "log", "metrics", "pods", "stats", "statusz"}

// Each subresource gives access to its own paths only. Running a program in a container, or reading from one, requires
// nodes/proxy.
func TestGuard_RequiresTheSubresourceOfEachPath(t *testing.T) {
	t.Parallel()
	for path, want := range map[string][]string{
		"/exec/default/p/c": {}, "/exec/default/p/uid/c": {}, "/run/default/p/c": {}, "/attach/default/p/c": {},
		"/attach/default/p/uid/c": {}, "/portForward/default/p": {}, "/containerLogs/default/p/c": {},
		"/cri/exec/token": {}, "/debug/pprof/": {}, "/debug/flags/v": {}, "/": {}, "//stats": {}, "/no/such": {},
		"/stats/summary": {"stats"}, "/stats": {"stats"}, "/statsx": {},
		"/metrics": {"metrics"}, "/metrics/cadvisor": {"metrics"}, "/metrics/resource": {"metrics"},
		"/checkpoint/default/p/c": {"checkpoint"}, "/logs/": {"log"}, "/logs/kubelet.log": {"log"},
		"/pods": {"pods"}, "/runningpods/": {"pods"}, "/healthz": {"healthz"}, "/healthz/log": {"healthz"},
		"/configz": {"configz"}, "/statusz": {"statusz"},
	} {
		var opens []string
		for _, right := range narrow {
			if allowedWith(t, "GET", path, right) {
				opens = append(opens, right)
			}
		}
		require.ElementsMatch(t, want, opens, path)
	}
}

// nodes/proxy gives access to paths without a subresource of their own, and to paths that it had access to in
// Kubernetes before they had one.
func TestGuard_AcceptsProxyForOtherPaths(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]bool{
		"/exec/default/p/c": true, "/run/default/p/c": true, "/attach/default/p/c": true, "/portForward/default/p": true,
		"/containerLogs/default/p/c": true, "/debug/pprof/": true, "/no/such": true, "/pods": true,
		"/runningpods/": true, "/healthz": true, "/configz": true, "/statusz": true,
		"/stats/summary": false, "/metrics": false, "/checkpoint/default/p/c": false, "/logs/": false,
	} {
		require.Equal(t, want, allowedWith(t, "GET", path, "proxy"), path)
	}
	for method, want := range map[string]bool{"GET": true, "HEAD": true, "POST": false, "PUT": false, "PATCH": false,
		"DELETE": false, "OPTIONS": false} {
		require.Equal(t, want, allowedWith(t, method, "/exec/default/p/c", "proxy"), "%s with the verb get", method)
	}
}

// allowedWith reports whether a user may make a request if the only right is to get a subresource of this Node.
func allowedWith(t *testing.T, method, path, subresource string) bool {
	t.Helper()
	client := fake.NewClientset()
	client.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool,
		apiruntime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		review.Status.Allowed = review.Spec.User == "scraper" &&
			*review.Spec.ResourceAttributes == authorizationv1.ResourceAttributes{
				Verb: "get", Version: "v1", Resource: "nodes", Subresource: subresource, Name: "node-0",
			}
		return true, review, nil
	})
	g := &guard{}
	g.Clock = testclock.NewFakePassiveClock(time.Unix(1_800_000_000, 0))
	denied, err := g.authorize(t.Context(), client, &authenticationv1.UserInfo{Username: "scraper"}, "node-0", method,
		path)
	require.NoError(t, err)
	return denied == ""
}
