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

	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/storage"
)

func withTTL(obj m, ttl string) m { return with(obj, "annotations", m{"coxswain.dev/ttl": ttl}) }

// setTTL returns a merge patch; ttl is JSON.
func setTTL(ttl string) string {
	return `{"metadata":{"annotations":{"coxswain.dev/ttl":` + ttl + `}}}`
}

func TestTTL_BadValuesAreRefused(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(configMaps, configMap("kept"))
	for _, ttl := range []string{"", "soon", "10", "0", "0s", "-10m", "999ms", "1ns", "876001h", "2562047h47m16s",
		"9999999999h", "1h ", "NaN"} {
		const words = `metadata.annotations[coxswain.dev/ttl]: Invalid value: `
		s.do(http.MethodPost, configMaps, withTTL(configMap("a"), ttl)).refused(http.StatusUnprocessableEntity,
			metav1.StatusReasonInvalid, words)
		s.do(http.MethodPost, configMaps+"?dryRun=All", withTTL(configMap("a"), ttl)).refused(
			http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, words)
		s.put(configMaps+"/kept", withTTL(configMap("kept"), ttl)).refused(http.StatusUnprocessableEntity,
			metav1.StatusReasonInvalid, words)
		s.patch(configMaps+"/kept", mergePatch, setTTL(fmt.Sprintf("%q", ttl))).refused(http.StatusUnprocessableEntity,
			metav1.StatusReasonInvalid, words)
	}
	s.gone(configMaps + "/a")
	require.Nil(t, s.get(configMaps+"/kept").at("metadata", "annotations"))
}

// timed records the times to live that an assembly's commits of Deployments set; -1 if a commit removes it, 0 if a
// commit does not change it.
func (a *assembly) timed() (last func() time.Duration, commits func() int) {
	var mu sync.Mutex
	var lives []time.Duration
	a.backend.set(func(ctx context.Context, writes []storage.Write) (*storage.Outcome, error) {
		outcome, err := a.backend.Backend.Commit(ctx, writes)
		// Other commits are the server's own, or are not applied because memory was behind etcd.
		if err != nil || !outcome.Applied || !strings.HasSuffix(writes[0].Key.Collection, "/deployments") {
			return outcome, err
		}
		life := writes[0].TTL // a lease of the object's own key would bypass the checks of a DELETE
		for _, w := range writes[1:] {
			if w.Key.Collection == timers && w.Op == storage.Delete {
				life = -1
			} else if w.Key.Collection == timers {
				life = w.TTL
			}
		}
		if life <= 0 && len(writes) > 1 && life != -1 || writes[0].TTL != 0 {
			a.t.Errorf("%+v", writes)
		}
		mu.Lock()
		defer mu.Unlock()
		lives = append(lives, life)
		return outcome, err
	}, nil)
	commits = func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(lives)
	}
	last = func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return lives[len(lives)-1]
	}
	return last, commits
}

// Each write of a user who may delete the object renews its time to live. A write without the annotation removes it.
func TestTTL_LaterWritesRenewAndRemoveIt(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{})
	last, commits := a.timed()
	a.create(deployments, withTTL(deployment("a", 1), "876000h"))
	require.Equal(t, 876000*time.Hour, last())
	a.patch(deployments+"/a", mergePatch, setTTL(`"90s"`)).ok(http.StatusOK)
	require.Equal(t, 90*time.Second, last())
	before := commits()
	a.patch(deployments+"/a", mergePatch, setTTL(`"90s"`)).ok(http.StatusOK)
	require.Equal(t, before+1, commits(), "a write that changes nothing renews it")
	a.patch(deployments+"/a/status", mergePatch, `{"status":{"observedGeneration":1}}`).ok(http.StatusOK)
	require.Equal(t, 90*time.Second, last())
	a.patch(deployments+"/a/scale", mergePatch, `{"spec":{"replicas":2}}`).ok(http.StatusOK)
	require.Equal(t, 90*time.Second, last())
	a.patch(deployments+"/a", mergePatch, setTTL("null")).ok(http.StatusOK)
	require.EqualValues(t, -1, last())
	require.Equal(t, before+4, commits())
	require.Empty(t, a.lifetimes())

	// An object without a time to live has no cost.
	a.patch(deployments+"/a", mergePatch, `{"metadata":{"labels":{"a":"b"}}}`).ok(http.StatusOK)
	require.Zero(t, last())

	a.create(deployments, withTTL(with(deployment("b", 1), "finalizers", []string{"a.io/b"}), "1h"))
	require.Len(t, a.lifetimes(), 1)
	a.delete(deployments+"/b", nil).ok(http.StatusOK)
	require.EqualValues(t, -1, last(), "the deletion has begun")
	a.patch(deployments+"/b", mergePatch, `{"metadata":{"labels":{"a":"b"}}}`).ok(http.StatusOK)
	require.Zero(t, last())
	a.patch(deployments+"/b", mergePatch, `{"metadata":{"finalizers":null}}`).ok(http.StatusOK)
	a.gone(deployments + "/b")
	a.create(deployments, withTTL(deployment("c", 1), "1h"))
	a.delete(deployments+"/c", nil).ok(http.StatusOK)
	require.EqualValues(t, -1, last())
	require.Empty(t, a.lifetimes())
}

// Setting a time to live is a deferred deletion, and requires the right to delete.
func TestTTL_RequiresTheRightToDelete(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{Admission: withoutAccounts})
	a.grant("jane", "editor",
		m{"apiGroups": []string{"apps"}, "resources": []string{"deployments", "deployments/status",
			"deployments/scale"},
			"verbs": []string{"get", "create", "update", "patch"}})
	a.grant("jane", "binder", m{"apiGroups": []string{""}, "resources": []string{"pods/binding", "namespaces"},
		"verbs": []string{"create", "patch"}})
	a.grant("max", "deleter", m{"apiGroups": []string{"apps"}, "resources": []string{"deployments"},
		"resourceNames": []string{"timed"}, "verbs": []string{"delete"}})
	a.grant("max", "writer", m{"apiGroups": []string{"apps"}, "resources": []string{"deployments"},
		"verbs": []string{"get", "create", "update", "patch"}})
	jane, max := a.as("jane"), a.as("max")
	last, _ := a.timed()
	a.create(deployments, deployment("plain", 1))
	a.create(deployments, withTTL(deployment("timed", 1), "1h"))
	a.create(namespaces, m{"metadata": m{"name": "team"}})
	a.create(pods, pod("a"))

	const words = `cannot delete resource`
	applied := func(name, ttl string) m {
		return withTTL(m{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": m{"name": name},
			"spec": deployment(name, 1)["spec"]}, ttl)
	}
	for name, answer := range map[string]*answer{
		"create":  jane.do(http.MethodPost, deployments, withTTL(deployment("new", 1), "1h")),
		"dry run": jane.do(http.MethodPost, deployments+"?dryRun=All", withTTL(deployment("new", 1), "1h")),
		"generateName": jane.do(http.MethodPost, deployments,
			withTTL(m{"metadata": m{"generateName": "new-"}, "spec": deployment("new", 1)["spec"]}, "1h")),
		"apply new":    jane.patch(deployments+"/new?fieldManager=m", applyPatch, applied("new", "1h")),
		"another name": max.do(http.MethodPost, deployments, withTTL(deployment("new", 1), "1h")),
		"update":       jane.put(deployments+"/plain", withTTL(deployment("plain", 1), "1h")),
		"patch":        jane.patch(deployments+"/plain", mergePatch, setTTL(`"1h"`)),
		"dry patch":    jane.patch(deployments+"/plain?dryRun=All", mergePatch, setTTL(`"1h"`)),
		"strategic":    jane.patch(deployments+"/plain", strategicPatch, setTTL(`"1s"`)),
		"JSON patch": jane.patch(deployments+"/plain", jsonPatch,
			`[{"op":"add","path":"/metadata/annotations","value":{"coxswain.dev/ttl":"1s"}}]`),
		"apply":                jane.patch(deployments+"/plain?fieldManager=m&force=true", applyPatch, applied("plain", "1h")),
		"shorten":              jane.patch(deployments+"/timed", mergePatch, setTTL(`"1s"`)),
		"lengthen":             jane.patch(deployments+"/timed", mergePatch, setTTL(`"2h"`)),
		"the same value again": jane.patch(deployments+"/timed", mergePatch, setTTL(`"60m"`)),
		"namespace":            jane.patch(namespaces+"/team", mergePatch, setTTL(`"1s"`)),
		"binding": jane.do(http.MethodPost, pods+"/a/binding",
			withTTL(m{"metadata": m{"name": "a"}, "target": m{"kind": "Node", "name": "n"}}, "1s")),
		"impersonated": a.do(http.MethodPatch, deployments+"/plain", setTTL(`"1h"`), "Content-Type", mergePatch,
			"Impersonate-User", "jane"),
	} {
		status := answer.refused(http.StatusForbidden, metav1.StatusReasonForbidden, words)
		require.Contains(t, status.Message, "which setting the annotation coxswain.dev/ttl takes", name)
	}
	require.Len(t, a.lifetimes(), 1)
	require.Nil(t, a.get(deployments+"/plain").at("metadata", "annotations"))
	a.gone(deployments + "/new")

	// Other writes are allowed, and do not renew the time.
	for name, write := range map[string]func() *answer{
		"patch": func() *answer {
			return jane.patch(deployments+"/timed", mergePatch, `{"metadata":{"labels":{"by":"jane"}}}`)
		},
		"status": func() *answer {
			return jane.patch(deployments+"/timed/status", mergePatch, `{"status":{"observedGeneration":7}}`)
		},
		"scale": func() *answer {
			return jane.patch(deployments+"/timed/scale", mergePatch, `{"spec":{"replicas":3}}`)
		},
		"update": func() *answer { return jane.put(deployments+"/timed", withTTL(deployment("timed", 4), "1h")) },
		"apply": func() *answer {
			return jane.patch(deployments+"/timed?fieldManager=m&force=true", applyPatch, applied("timed", "1h"))
		},
	} {
		version := a.get(deployments+"/timed").at("metadata", "resourceVersion")
		answer := write().ok(http.StatusOK)
		if name != "scale" {
			require.Equal(t, "1h", answer.object().GetAnnotations()["coxswain.dev/ttl"])
		}
		require.NotEqual(t, version, a.get(deployments+"/timed").at("metadata", "resourceVersion"), name)
		require.Zero(t, last(), name)
	}
	version := a.get(deployments+"/timed").at("metadata", "resourceVersion")
	jane.patch(deployments+"/timed", mergePatch, setTTL(`"1h"`)).ok(http.StatusOK)
	require.Equal(t, version, a.get(deployments+"/timed").at("metadata", "resourceVersion"), "nothing changed")

	max.patch(deployments+"/timed", mergePatch, setTTL(`"1h"`)).ok(http.StatusOK)
	require.Equal(t, time.Hour, last())
	max.patch(deployments+"/timed", mergePatch, setTTL(`"1m"`)).ok(http.StatusOK)
	require.Equal(t, time.Minute, last())
	jane.patch(deployments+"/timed", mergePatch, setTTL("null")).ok(http.StatusOK)
	require.EqualValues(t, -1, last(), "removing the time to live requires only the right to write")
	require.Empty(t, a.lifetimes())
}

// Events expire by themselves and are not deleted: their leases are attached to them.
func TestTTL_OfEvents(t *testing.T) {
	t.Parallel()
	a := assemble(t, builtin.Kinds(), apiserver.Options{EventTTL: 7 * time.Minute})
	a.grant("jane", "recorder", m{"apiGroups": []string{""}, "resources": []string{"events"},
		"verbs": []string{"create", "patch"}})
	jane := a.as("jane")
	var life time.Duration
	var companions int
	a.backend.set(func(ctx context.Context, writes []storage.Write) (*storage.Outcome, error) {
		if writes[0].Key.Collection == "core/events" {
			life, companions = writes[0].TTL, len(writes)-1
		}
		return a.backend.Backend.Commit(ctx, writes)
	}, nil)
	const events = "/api/v1/namespaces/default/events"
	event := func(name string) m {
		return m{"metadata": m{"name": name}, "involvedObject": m{"kind": "Pod", "name": "p", "namespace": "default"},
			"reason": "Tested"}
	}
	is := func(want time.Duration) {
		t.Helper()
		require.Equal(t, want, life)
		require.Zero(t, companions)
	}
	jane.create(events, event("a"))
	is(7 * time.Minute)
	jane.do(http.MethodPost, events, withTTL(event("b"), "9000h")).refused(http.StatusForbidden,
		metav1.StatusReasonForbidden, "coxswain.dev/ttl")
	jane.patch(events+"/a", mergePatch, setTTL(`"1s"`)).refused(http.StatusForbidden, metav1.StatusReasonForbidden,
		"coxswain.dev/ttl")
	a.patch(events+"/a", mergePatch, setTTL(`"90m"`)).ok(http.StatusOK)
	is(90 * time.Minute)
	jane.patch(events+"/a", mergePatch, `{"count":2}`).ok(http.StatusOK)
	is(90 * time.Minute)
	jane.patch(events+"/a", mergePatch, setTTL("null")).ok(http.StatusOK)
	is(7 * time.Minute)
	require.Empty(t, a.lifetimes())
}

func TestTTL_ExpiryIsADeletedEvent(t *testing.T) {
	t.Parallel()
	s := start(t)
	w := s.watch(configMaps + "?watch=1")
	created := s.create(configMaps, withTTL(configMap("a"), "1s")).object()
	w.expect("ADDED", "a")
	deleted := w.expect("DELETED", "a").Object
	require.Equal(t, created.GetUID(), deleted.GetUID())
	require.NotEqual(t, created.GetResourceVersion(), deleted.GetResourceVersion())
	s.gone(configMaps + "/a")
}
