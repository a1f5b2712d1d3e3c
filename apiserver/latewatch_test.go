package apiserver_test

import (
	"context"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/apiserver/pki"
	"github.com/coxswain-dev/coxswain/storage"
	"github.com/coxswain-dev/coxswain/testenv/servertest"
)

// lateBackend is a backend whose watches can be delayed. They continue when the store requests their progress, which it
// does when it waits for memory.
type lateBackend struct {
	storage.Backend
	mu   sync.Mutex
	held chan struct{} // closed when the watches continue
}

func newLateBackend(t *testing.T) *lateBackend {
	b := &lateBackend{Backend: servertest.Backend(t), held: make(chan struct{})}
	close(b.held)
	return b
}

func (b *lateBackend) gate() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held
}

func (b *lateBackend) hold() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held = make(chan struct{})
}

func (b *lateBackend) RequestProgress(ctx context.Context) error {
	b.mu.Lock()
	select {
	case <-b.held:
	default:
		close(b.held)
	}
	b.mu.Unlock()
	return b.Backend.RequestProgress(ctx)
}

func (b *lateBackend) Watch(ctx context.Context, r storage.FollowRequest) <-chan storage.WatchBatch {
	inner, out := b.Backend.Watch(ctx, r), make(chan storage.WatchBatch)
	go func() {
		defer close(out)
		for batch := range inner {
			select {
			case <-b.gate():
			case <-ctx.Done():
			}
			select {
			case out <- batch:
			case <-ctx.Done():
			}
		}
	}()
	return out
}

// Authorization and admission read memory, which follows etcd by a watch. A write that revokes a right or deletes an
// object is answered when memory has it, even if the watch is late: the next request must not rely on the old state.
func TestCommit_RevokesRightsBeforeItIsAnswered(t *testing.T) {
	t.Parallel()
	backend := newLateBackend(t)
	// Not synchronous, unlike the stores of other tests: commits do not wait for memory.
	store, err := storage.Open(t.Context(), backend, storage.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	key, err := pki.NewKey()
	require.NoError(t, err)
	issuer, err := authn.NewIssuer(authn.IssuerOptions{SigningKey: key, Audiences: []string{"api"}})
	require.NoError(t, err)
	running := servertest.Start(t, apiserver.Options{Store: store,
		Authentication: authn.Options{ServiceAccounts: issuer}})
	s := connect(t, running.Config)
	jane := (&assembly{server: s, ca: running.CA}).as("jane")

	s.create(clusterRoles, m{"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
		"metadata": m{"name": "reads"}, "rules": []m{
			{"apiGroups": []string{""}, "resources": []string{"configmaps"}, "verbs": []string{"list"}}}})
	binding := func() {
		s.create(clusterRoleBindings, clusterRoleBinding("reads", "reads", subject("User", "jane")))
	}
	local := func() {
		s.create(roleBindings, roleBinding("reads", "ClusterRole", "reads", subject("User", "jane")))
	}
	reads := func() *answer { return jane.get(configMaps) }
	s.account("robot")
	var robot *server
	bound := func(collection string, object m) func() {
		return func() {
			made := s.create(collection, object)
			robot = s.bearing(s.token("robot", m{"boundObjectRef": m{"apiVersion": "v1", "kind": object["kind"],
				"name": made.at("metadata", "name"), "uid": made.at("metadata", "uid")}}).token())
		}
	}
	asksItself := func() *answer {
		return robot.do(http.MethodPost, whoAmI, m{"apiVersion": "authentication.k8s.io/v1",
			"kind": "SelfSubjectReview"})
	}
	now := m{"gracePeriodSeconds": 0}
	for _, c := range []struct {
		name  string
		given func()
		takes func() *answer
		asks  func() *answer
		code  int
	}{
		{"a ClusterRoleBinding", binding, func() *answer { return s.delete(clusterRoleBindings+"/reads", nil) },
			reads, 403},
		{"a RoleBinding", local, func() *answer { return s.delete(roleBindings+"/reads", nil) }, reads, 403},
		{"a binding's subject", binding, func() *answer {
			return s.patch(clusterRoleBindings+"/reads", mergePatch, m{"subjects": []m{subject("User", "joe")}})
		}, reads, 403},
		{"a role's rules", local, func() *answer {
			return s.patch(clusterRoles+"/reads", mergePatch, m{"rules": []m{}})
		}, reads, 403},
		{"a namespace", func() { s.create(namespaces, m{"metadata": m{"name": "closing"}}) },
			func() *answer { return s.delete(namespaces+"/closing", nil) },
			func() *answer {
				return s.do(http.MethodPost, "/api/v1/namespaces/closing/configmaps",
					m{"metadata": m{"generateName": "c-"}})
			}, 403},
		{"a token's pod", bound(pods, podOf("p", m{"serviceAccountName": "robot"})),
			func() *answer { return s.delete(pods+"/p", now) }, asksItself, 401},
		{"a token's Secret", bound("/api/v1/namespaces/default/secrets",
			m{"apiVersion": "v1", "kind": "Secret", "metadata": m{"name": "s"}}),
			func() *answer { return s.delete("/api/v1/namespaces/default/secrets/s", nil) }, asksItself, 401},
		{"a token's Node", bound(nodes, m{"apiVersion": "v1", "kind": "Node", "metadata": m{"name": "n"}}),
			func() *answer { return s.delete(nodes+"/n", nil) }, asksItself, 401},
	} {
		c.given()
		s.get(configMaps).ok(http.StatusOK) // a consistent read: memory has all writes now
		before := c.asks()
		require.Less(t, before.code, 300, "%s: %s", c.name, before.body)
		backend.hold()
		c.takes().ok(http.StatusOK)
		after := c.asks()
		require.Equal(t, c.code, after.code, "%s: %s", c.name, after.body)
	}
}
