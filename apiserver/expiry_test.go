package apiserver_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/apiserver/admission"
	"github.com/coxswain-dev/coxswain/storage"
)

// The keys of lifetimes in etcd.
const (
	lifetimesKept = "claims/lifetimes"
	timers        = "claims/timers"
)

// withoutAccounts lets pods be created without a controller that creates their service account.
var withoutAccounts = admission.Options{Disable: []string{"ServiceAccount"}}

// lifetimes returns the paths of the objects with a lifetime in etcd.
func (a *assembly) lifetimes() []string {
	a.t.Helper()
	list, err := a.store.Collection(lifetimesKept, storage.CollectionOptions{}).List(a.t.Context(),
		storage.ListRequest{})
	require.NoError(a.t, err)
	var paths []string
	for _, o := range list.Items {
		paths = append(paths, strings.ReplaceAll(o.Key.Name, "%", "/"))
	}
	return paths
}

// end ends the lifetimes of the objects at these paths in etcd, as the end of their shared lease would.
func (a *assembly) end(paths ...string) {
	a.t.Helper()
	var writes []storage.Write
	for _, path := range paths {
		key := storage.Key{Collection: timers, Name: strings.ReplaceAll(path, "/", "%")}
		_, err := a.store.Collection(timers, storage.CollectionOptions{}).Get(a.t.Context(), "", key.Name, storage.At{})
		require.NoError(a.t, err)
		writes = append(writes, storage.Write{Op: storage.Delete, Key: key, Expect: storage.AnyRevision})
	}
	_, err := a.store.Commit(a.t.Context(), writes...)
	require.NoError(a.t, err)
}

// begunDeletion waits until an object is gone, or its deletion has begun, and returns the last answer, nil if it is
// gone. A pod without a grace period is marked, and gone a moment later.
func (s *server) begunDeletion(path string) (left *answer) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		left = s.get(path)
		if left.code != http.StatusOK {
			return left.code == http.StatusNotFound
		}
		obj := left.object()
		grace := obj.GetDeletionGracePeriodSeconds()
		return obj.GetDeletionTimestamp() != nil && (obj.GetKind() != "Pod" || grace == nil || *grace > 0)
	}, patience, tick, path)
	if left.code == http.StatusNotFound {
		return nil
	}
	return left
}

// The end of a time to live has the same effects as a DELETE of the kind.
func TestExpiry_IsADeleteOfEachKind(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{Admission: withoutAccounts})
	const group = "/apis/rbac.authorization.k8s.io/v1"
	bound := pod("bound")
	bound["spec"].(m)["nodeName"] = "n1"
	bound["spec"].(m)["terminationGracePeriodSeconds"] = 45
	service := func(name string) m {
		return m{"metadata": m{"name": name}, "spec": m{"type": "NodePort", "clusterIP": "10.96.0.77",
			"ports": []any{m{"port": 80, "nodePort": 30077}}}}
	}
	const services, claims = "/api/v1/namespaces/default/services", "/api/v1/namespaces/default/persistentvolumeclaims"
	for name, c := range map[string]struct {
		at, stored string
		obj        m
		left       func(*testing.T, *answer) // nil: the object is gone
		then       func(*testing.T)
	}{
		"ConfigMap": {at: configMaps, stored: "core/configmaps/default", obj: configMap("a")},
		"Deployment with a finalizer": {at: deployments, stored: "apps/deployments/default",
			obj: with(deployment("d", 1), "finalizers", []string{"a.io/b"}),
			left: func(t *testing.T, left *answer) {
				require.Equal(t, []string{"a.io/b"}, left.object().GetFinalizers())
			}},
		"Namespace": {at: namespaces, stored: "core/namespaces", obj: m{"metadata": m{"name": "team"}},
			left: func(t *testing.T, left *answer) { require.Equal(t, "Terminating", left.at("status", "phase")) },
			then: func(*testing.T) { a.get("/api/v1/namespaces/team/configmaps/content").ok(http.StatusOK) }},
		"Pod on a node": {at: pods, stored: "core/pods/default", obj: bound,
			left: func(t *testing.T, left *answer) {
				require.EqualValues(t, 45, left.at("metadata", "deletionGracePeriodSeconds"))
			}},
		"Pod on no node": {at: pods, stored: "core/pods/default", obj: pod("pending")},
		"PersistentVolumeClaim": {at: claims, stored: "core/persistentvolumeclaims/default",
			obj: m{"metadata": m{"name": "data"}, "spec": m{"accessModes": []string{"ReadWriteOnce"},
				"resources": m{"requests": m{"storage": "1Gi"}}}},
			left: func(t *testing.T, left *answer) {
				require.Equal(t, []string{"kubernetes.io/pvc-protection"}, left.object().GetFinalizers())
			}},
		"Service": {at: services, stored: "core/services/default", obj: service("s"), then: func(t *testing.T) {
			a.gone("/apis/networking.k8s.io/v1/ipaddresses/10.96.0.77")
			a.create(services, service("next"))
		}},
		"CertificateSigningRequest": {at: "/apis/certificates.k8s.io/v1/certificatesigningrequests",
			stored: "certificates.k8s.io/certificatesigningrequests",
			obj:    a.signingRequest("csr", "example.com/signer")},
		"ClusterRole": {at: group + "/clusterroles", stored: "rbac.authorization.k8s.io/clusterroles",
			obj: m{"metadata": m{"name": "a:b"}}},
		"ReplicationController": {at: "/api/v1/namespaces/default/replicationcontrollers",
			stored: "core/replicationcontrollers/default",
			obj: m{"metadata": m{"name": "rc"}, "spec": m{"replicas": 0, "selector": m{"a": "b"},
				"template": m{"metadata": m{"labels": m{"a": "b"}}, "spec": pod("x")["spec"]}}},
			left: func(t *testing.T, left *answer) {
				require.Equal(t, []string{"orphan"}, left.object().GetFinalizers(), "the kind's propagation policy")
			}},
		"ResourceQuota": {at: "/api/v1/namespaces/default/resourcequotas", stored: "core/resourcequotas/default",
			obj: m{"metadata": m{"name": "q"}}},
	} {
		t.Run(name, func(t *testing.T) {
			a.subtest(t)
			object := a.create(c.at, withTTL(c.obj, "10h")).object()
			path, stored := c.at+"/"+object.GetName(), c.stored+"/"+object.GetName()
			if name == "Namespace" {
				a.create("/api/v1/namespaces/team/configmaps", configMap("content"))
			}
			require.Equal(t, []string{stored}, a.lifetimes())
			a.end(stored)
			left := a.begunDeletion(path)
			require.Equal(t, c.left != nil, left != nil)
			if c.left != nil {
				c.left(t, left)
			}
			if c.then != nil {
				c.then(t)
			}
			require.Empty(t, a.lifetimes())
		})
	}
	require.Eventually(t, func() bool {
		return strings.Contains(a.log.String(), `key=rbac.authorization.k8s.io/clusterroles/a:b`)
	}, patience, tick)
	require.Eventually(t, func() bool {
		return strings.Contains(string(a.get("/metrics").body), "coxswain_ttl_objects 0\n")
	}, patience, tick)
}

// Admission policies see the user of the deletion, and may reject it. A rejected deletion is tried again, with growing
// delays. The test moves the server's clock; the time to live itself is counted by etcd.
func TestExpiry_RetriesDeletionsThatAPolicyRejects(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	a := assemble(t, builtin.Kinds(), apiserver.Options{Clock: clock})
	a.validating("keep", policyOn(rule("", "configmaps", "DELETE"), "request.userInfo.username != "+
		"'system:apiserver-ttl' || 'go' in oldObject.metadata.labels"), m{})
	a.create(configMaps, withTTL(configMap("a"), "10h"))
	clock.Step(1000 * time.Hour)
	a.get(configMaps + "/a").ok(http.StatusOK)
	require.Len(t, a.lifetimes(), 1)

	refusals := func() int { return strings.Count(a.log.String(), "could not be deleted") }
	a.end("core/configmaps/default/a")
	require.Eventually(t, func() bool { return refusals() == 1 }, patience, tick)
	require.Contains(t, a.log.String(), "ValidatingAdmissionPolicy")
	reports := func(metric string) func() bool { // the metric is counted after the log and the deletion
		return func() bool { return strings.Contains(string(a.get("/metrics").body), metric) }
	}
	require.Eventually(t, reports("coxswain_ttl_overdue_objects 1\n"), patience, tick)
	for n := 2; n < 4; n++ {
		require.Eventually(t, func() bool {
			clock.Step(time.Second)
			return refusals() >= n
		}, patience, tick)
	}
	a.patch(configMaps+"/a", mergePatch, `{"metadata":{"labels":{"go":""},"annotations":null}}`).ok(http.StatusOK)
	require.Empty(t, a.lifetimes(), "the deletion was prevented in time")
	a.patch(configMaps+"/a", mergePatch, setTTL(`"10h"`)).ok(http.StatusOK)
	clock.Step(time.Hour)
	a.get(configMaps + "/a").ok(http.StatusOK)
	a.end("core/configmaps/default/a")
	a.begunDeletion(configMaps + "/a")
	require.Eventually(t, reports(`coxswain_ttl_deletions_total{result="deleted"} 1`), patience, tick)
}

// An object whose time is renewed at the last moment is not deleted.
func TestExpiry_SparesRenewedObjects(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{})
	a.grant("jane", "editor", m{"apiGroups": []string{""}, "resources": []string{"configmaps"},
		"verbs": []string{"get", "patch"}})
	jane := a.as("jane")
	for name, c := range map[string]struct {
		meanwhile func(path string) *answer
		stays     bool
	}{
		"renewed":   {func(path string) *answer { return a.patch(path, mergePatch, `{"data":{"x":"y"}}`) }, true},
		"shortened": {func(path string) *answer { return a.patch(path, mergePatch, setTTL(`"9h"`)) }, true},
		"taken off": {func(path string) *answer { return jane.patch(path, mergePatch, setTTL("null")) }, true},
		"written":   {func(path string) *answer { return jane.patch(path, mergePatch, `{"data":{"x":"y"}}`) }, false},
		"deleted":   {func(path string) *answer { return a.delete(path, nil) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			a.subtest(t)
			path := configMaps + "/" + strings.ReplaceAll(name, " ", "-")
			stored := "core/configmaps/default/" + strings.ReplaceAll(name, " ", "-")
			uid := a.create(configMaps, withTTL(configMap(strings.ReplaceAll(name, " ", "-")), "10h")).object().GetUID()
			done := make(chan struct{})
			var once sync.Once
			a.backend.set(func(ctx context.Context, writes []storage.Write) (*storage.Outcome, error) {
				if writes[0].Op == storage.Delete && writes[0].Key.String() == stored {
					once.Do(func() {
						a.backend.set(nil, nil)
						c.meanwhile(path).ok(http.StatusOK)
						defer close(done)
					})
				}
				return a.backend.Backend.Commit(ctx, writes)
			}, nil)
			a.end(stored)
			<-done
			if !c.stays {
				require.Nil(t, a.begunDeletion(path))
				require.Empty(t, a.lifetimes())
				return
			}
			// When a later deletion has happened, this one has not.
			a.create(configMaps, withTTL(configMap("later"), "10h"))
			a.end("core/configmaps/default/later")
			a.begunDeletion(configMaps + "/later")
			left := a.get(path).ok(http.StatusOK).object()
			require.Equal(t, uid, left.GetUID())
			require.Nil(t, left.GetDeletionTimestamp())
			a.delete(path, nil).ok(http.StatusOK)
		})
	}
}

// Several servers share the deletions: while all of them run, each deletes only its own share.
func TestExpiry_ServersShareTheWork(t *testing.T) {
	t.Parallel()
	standing := clocktesting.NewFakeClock(time.Now())
	a := assemble(t, builtin.Kinds(), apiserver.Options{Clock: standing})
	backends := []*faulty{a.backend, {Backend: a.backend.Backend}}
	store, err := storage.Open(t.Context(), backends[1], storage.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = store.Close() })
	a.another(t, apiserver.Options{Store: store, Clock: standing})
	for _, of := range []*storage.Store{a.store, store} {
		present := of.Collection("claims/apiservers", storage.CollectionOptions{})
		require.Eventually(t, func() bool { return present.Count() == len(backends) }, patience, tick)
	}

	var deletes [2]map[string]int
	var mu sync.Mutex
	for i, b := range backends {
		deletes[i] = map[string]int{}
		b.set(func(ctx context.Context, writes []storage.Write) (*storage.Outcome, error) {
			if w := writes[0]; w.Op == storage.Delete && w.Key.Collection == "core/configmaps" {
				mu.Lock()
				deletes[i][w.Key.Name]++
				mu.Unlock()
			}
			return b.Backend.Commit(ctx, writes)
		}, nil)
	}
	const objects = 40
	var paths []string
	for i := range objects {
		name := fmt.Sprintf("c%d", i)
		a.create(configMaps, withTTL(configMap(name), "10h"))
		paths = append(paths, "core/configmaps/default/"+name)
	}
	a.end(paths...)
	require.Eventually(t, func() bool { return len(a.lifetimes()) == 0 }, patience, tick)
	mu.Lock()
	defer mu.Unlock()
	require.NotEmpty(t, deletes[0])
	require.NotEmpty(t, deletes[1])
	require.Len(t, deletes[0], objects-len(deletes[1]))
	for _, of := range deletes {
		for name, n := range of {
			require.Equal(t, 1, n, name)
		}
	}
}

// Objects of a dead server's share are deleted by another server after a delay.
func TestExpiry_TakesOverFromAServerThatDied(t *testing.T) {
	t.Parallel()
	clock := clocktesting.NewFakeClock(time.Now())
	a := assemble(t, builtin.Kinds(), apiserver.Options{Clock: clock})
	var dead []storage.Write
	for i := range 3 {
		name := fmt.Sprintf("192.0.2.%d:6443", i)
		dead = append(dead,
			storage.Write{Op: storage.Create, Key: storage.Key{Collection: "claims/apiservers", Name: name},
				Value: fmt.Appendf(nil, `{"metadata":{"name":%q}}`, name)})
	}
	_, err := a.store.Commit(t.Context(), dead...)
	require.NoError(t, err)
	var paths []string
	for i := range 16 {
		name := fmt.Sprintf("c%d", i)
		a.create(configMaps, withTTL(configMap(name), "10h"))
		paths = append(paths, "core/configmaps/default/"+name)
	}
	a.end(paths...)
	a.get(configMaps).ok(http.StatusOK)
	require.NotEmpty(t, a.lifetimes(), "most objects are in the share of another server")
	moved := 0
	require.Eventually(t, func() bool {
		if len(a.lifetimes()) == 0 {
			return true
		}
		moved++
		clock.Step(time.Second)
		return false
	}, patience, tick)
	require.NotZero(t, moved)
}

// A server that starts deletes the objects whose time ended while no server ran.
func TestExpiry_HappensAfterARestart(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{})
	tried := make(chan struct{}, 1)
	a.backend.set(func(ctx context.Context, writes []storage.Write) (*storage.Outcome, error) {
		if writes[0].Op == storage.Delete || writes[0].Op == storage.Update &&
			writes[0].Key.Collection == "core/namespaces" {
			select {
			case tried <- struct{}{}:
			default:
			}
			return nil, storage.ErrUnavailable // as if the server had died
		}
		return a.backend.Backend.Commit(ctx, writes)
	}, nil)
	a.create(configMaps, withTTL(configMap("a"), "10h"))
	a.create(namespaces, withTTL(m{"metadata": m{"name": "team"}}, "10h"))
	_, err := a.backend.Backend.Commit(t.Context(), []storage.Write{
		{Op: storage.Delete, Key: storage.Key{Collection: timers, Name: "core%configmaps%default%a"},
			Expect: storage.AnyRevision},
		{Op: storage.Delete, Key: storage.Key{Collection: timers, Name: "core%namespaces%team"},
			Expect: storage.AnyRevision},
	})
	require.NoError(t, err)
	<-tried
	require.Len(t, a.lifetimes(), 2)

	store, err := storage.Open(t.Context(), a.backend.Backend, storage.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = store.Close() })
	next := a.another(t, apiserver.Options{Store: store})
	require.Nil(t, next.begunDeletion(configMaps+"/a"))
	require.NotNil(t, next.begunDeletion(namespaces+"/team"))
	require.Empty(t, a.lifetimes())
}

// Objects of earlier versions have a lease on their own keys. They vanish with it, unless they are written before.
func TestExpiry_OfAnObjectWithItsOwnLease(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{})
	a.grant("jane", "editor", m{"apiGroups": []string{""}, "resources": []string{"configmaps"},
		"verbs": []string{"get", "patch"}})
	for _, name := range []string{"admin", "jane", "left"} {
		var created storage.Write
		a.backend.set(func(ctx context.Context, writes []storage.Write) (*storage.Outcome, error) {
			if writes[0].Key.Name != name {
				return a.backend.Backend.Commit(ctx, writes)
			}
			created = writes[0]
			created.TTL = 2 * time.Second
			return a.backend.Backend.Commit(ctx, []storage.Write{created})
		}, nil)
		a.create(configMaps, withTTL(configMap(name), "10h"))
	}
	a.backend.set(nil, nil)
	require.Empty(t, a.lifetimes())
	a.patch(configMaps+"/admin", mergePatch, `{"data":{"x":"y"}}`).ok(http.StatusOK)
	a.as("jane").patch(configMaps+"/jane", mergePatch, `{"data":{"x":"y"}}`).ok(http.StatusOK)
	require.Len(t, a.lifetimes(), 2)
	require.Eventually(t, func() bool {
		return a.get(configMaps+"/left").code == http.StatusNotFound
	}, patience, 50*time.Millisecond)
	for _, name := range []string{"admin", "jane"} {
		a.get(configMaps + "/" + name).ok(http.StatusOK)
		a.end("core/configmaps/default/" + name)
		require.Nil(t, a.begunDeletion(configMaps+"/"+name))
	}
}

// A deletion that bypasses the server, such as one by etcdctl, leaves the lifetime behind. It does not affect the next
// object of that name.
func TestExpiry_DropsLifetimesOfDeletedObjects(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{})
	vanish := func() {
		_, err := a.store.Commit(t.Context(), storage.Write{Op: storage.Delete, Expect: storage.AnyRevision,
			Key: storage.Key{Collection: "core/configmaps", Namespace: "default", Name: "a"}})
		require.NoError(t, err)
		require.Len(t, a.lifetimes(), 1)
	}
	a.create(configMaps, withTTL(configMap("a"), "10h"))
	vanish()
	a.end("core/configmaps/default/a")
	require.Eventually(t, func() bool { return len(a.lifetimes()) == 0 }, patience, tick)

	a.create(configMaps, withTTL(configMap("a"), "10h"))
	vanish()
	a.create(configMaps, configMap("a"))
	a.end("core/configmaps/default/a")
	require.Eventually(t, func() bool { return len(a.lifetimes()) == 0 }, patience, tick)
	a.get(configMaps + "/a").ok(http.StatusOK)
	a.delete(configMaps+"/a", &metav1.DeleteOptions{}).ok(http.StatusOK)
}
