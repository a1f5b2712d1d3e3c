package apiserver_test

import (
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/testenv"
)

func TestServer_TellsThatItIsThereByALease(t *testing.T) {
	t.Parallel()
	s := start(t)
	leases := s.typed().CoordinationV1().Leases("kube-system")
	identity := func() coordinationv1.Lease {
		list, err := leases.List(t.Context(), metav1.ListOptions{LabelSelector: "apiserver.kubernetes.io/identity=kube-apiserver"})
		require.NoError(t, err)
		require.Len(t, list.Items, 1)
		return list.Items[0]
	}
	lease := identity()
	hostname, err := os.Hostname()
	require.NoError(t, err)
	require.Regexp(t, "^apiserver-[a-z2-7]{26}$", lease.Name)
	require.Equal(t, hostname, lease.Labels["kubernetes.io/hostname"])
	require.True(t, strings.HasPrefix(*lease.Spec.HolderIdentity, lease.Name+"_"))
	require.EqualValues(t, 3600, *lease.Spec.LeaseDurationSeconds)
	require.WithinDuration(t, time.Now(), lease.Spec.RenewTime.Time, time.Minute)
	require.Eventually(t, func() bool { return identity().Spec.RenewTime.After(lease.Spec.RenewTime.Time) }, patience, 100*time.Millisecond, "it is renewed")
}

// TestDebug_IsForWhoMay shows the collector's graph through the API server that it runs beside.
func TestDebug_IsForWhoMay(t *testing.T) {
	t.Parallel()
	const graph = "/debug/controllers/garbagecollector/graph"
	s := connect(t, testenv.Start(t, testenv.WithControllers("garbagecollector"), testenv.WithNodes(0), testenv.WithoutScheduler()))
	require.Eventually(t, func() bool { return s.get(graph).code == http.StatusOK }, patience, 10*time.Millisecond)
	require.Contains(t, string(s.get(graph).ok(http.StatusOK).body), "strict digraph full {")
	owner := s.create(configMaps, m{"apiVersion": "v1", "kind": "ConfigMap", "metadata": m{"name": "owner"}})
	uid := owner.at("metadata", "uid").(string)
	s.create(configMaps, m{"apiVersion": "v1", "kind": "ConfigMap", "metadata": m{"name": "owned", "ownerReferences": []m{
		{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid},
	}}})
	require.Eventually(t, func() bool {
		a := s.get(graph + "?format=json&uid=" + uid).ok(http.StatusOK)
		return strings.Count(string(a.body), `"name":"own`) == 2
	}, patience, 10*time.Millisecond)
	s.get(graph + "?format=svg").ok(http.StatusBadRequest)
	s.get("/debug/controllers/nothing/graph").ok(http.StatusNotFound)
	s.do(http.MethodDelete, graph, nil).ok(http.StatusMethodNotAllowed)
	s.as("nobody").get(graph).ok(http.StatusForbidden)
}
