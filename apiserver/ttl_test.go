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

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/storage"
)

func withTTL(obj m, ttl string) m { return with(obj, "annotations", m{"coxswain.dev/ttl": ttl}) }

// setTTL is a merge patch; ttl is JSON.
func setTTL(ttl string) string {
	return `{"metadata":{"annotations":{"coxswain.dev/ttl":` + ttl + `}}}`
}

func TestTTL_BadValuesAreRefused(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(configMaps, configMap("kept"))
	for _, ttl := range []string{"", "soon", "10", "0", "0s", "-10m", "999ms", "1ns", "876001h", "2562047h47m16s", "9999999999h", "1h ", "NaN"} {
		const words = `metadata.annotations[coxswain.dev/ttl]: Invalid value: `
		s.do(http.MethodPost, configMaps, withTTL(configMap("a"), ttl)).refused(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, words)
		s.do(http.MethodPost, configMaps+"?dryRun=All", withTTL(configMap("a"), ttl)).refused(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, words)
		s.put(configMaps+"/kept", withTTL(configMap("kept"), ttl)).refused(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, words)
		s.patch(configMaps+"/kept", mergePatch, setTTL(fmt.Sprintf("%q", ttl))).refused(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, words)
	}
	s.gone(configMaps + "/a")
	require.Nil(t, s.get(configMaps+"/kept").at("metadata", "annotations"))
}

// Each write says anew how long the object is to live; one without the annotation, that it
// is to stay.
func TestTTL_LaterWritesRenewItAndTakeItBack(t *testing.T) {
	t.Parallel()
	a := assemble(t, api.Builtin(), apiserver.Options{})
	var mu sync.Mutex
	var lives []time.Duration
	a.backend.set(func(ctx context.Context, writes []storage.Write) (*storage.Outcome, error) {
		outcome, err := a.backend.Backend.Commit(ctx, writes)
		// The server itself writes as well, and some begin with a state that memory had and etcd no longer.
		if err == nil && outcome.Applied && strings.HasSuffix(writes[0].Key.Collection, "/deployments") {
			mu.Lock()
			lives = append(lives, writes[0].TTL)
			mu.Unlock()
		}
		return outcome, err
	}, nil)
	commits := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(lives)
	}
	last := func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return lives[len(lives)-1]
	}
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
	require.Zero(t, last())
	require.Equal(t, before+4, commits())
}

func TestTTL_ExpiryIsADeletedEvent(t *testing.T) {
	t.Parallel()
	s := start(t)
	w := s.watch(configMaps + "?watch=1")
	created := s.create(configMaps, withTTL(configMap("a"), "1s")).object()
	w.expect("ADDED", "a")
	gone := w.expect("DELETED", "a").Object
	require.Equal(t, created.GetUID(), gone.GetUID())
	require.NotEqual(t, created.GetResourceVersion(), gone.GetResourceVersion())
	s.gone(configMaps + "/a")
}
