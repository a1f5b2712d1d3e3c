package controller

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// TestOneSegment_SendsNoRequestForOtherPaths counts the requests that reach a server.
func TestOneSegment_SendsNoRequestForOtherPaths(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		http.NotFound(w, r)
	}))
	t.Cleanup(server.Close)
	client := OneSegment(metadata.NewForConfigOrDie(&rest.Config{Host: server.URL, QPS: -1}))
	nodes := schema.GroupVersionResource{Version: "v1", Resource: "nodes"}
	try := func(objects metadata.ResourceInterface, name string, sub ...string) {
		t.Helper()
		_, err := objects.Get(t.Context(), name, metav1.GetOptions{}, sub...)
		require.True(t, apierrors.IsNotFound(err), "%v", err)
		_, err = objects.Patch(t.Context(), name, types.MergePatchType, []byte("{}"), metav1.PatchOptions{}, sub...)
		require.True(t, apierrors.IsNotFound(err), "%v", err)
		require.True(t, apierrors.IsNotFound(objects.Delete(t.Context(), name, metav1.DeleteOptions{}, sub...)))
	}
	tryAll := func(objects metadata.ResourceInterface) {
		t.Helper()
		try(objects, "valid")
		_, err := objects.List(t.Context(), metav1.ListOptions{})
		require.True(t, apierrors.IsNotFound(err), "%v", err)
		_, err = objects.Watch(t.Context(), metav1.ListOptions{})
		require.True(t, apierrors.IsNotFound(err), "%v", err)
		require.True(t, apierrors.IsNotFound(objects.DeleteCollection(t.Context(), metav1.DeleteOptions{},
			metav1.ListOptions{})))
	}
	for _, bad := range []string{"node-0/proxy/containerLogs/b/px/px", "../namespaces/b/pods/px/proxy/", "..", ".",
		"a%2fproxy", "/"} {
		try(client.Resource(nodes), bad)
		try(client.Resource(nodes).Namespace("b"), bad)
		try(client.Resource(nodes), "valid", bad)
		tryAll(client.Resource(nodes).Namespace(bad))
		tryAll(client.Resource(schema.GroupVersionResource{Version: "v1", Resource: bad}))
		tryAll(client.Resource(schema.GroupVersionResource{Version: bad, Resource: "nodes"}))
		tryAll(client.Resource(schema.GroupVersionResource{Group: bad, Version: "v1", Resource: "nodes"}).Namespace(
			"b"))
	}
	require.Zero(t, requests.Load())
	tryAll(client.Resource(nodes))
	require.EqualValues(t, 6, requests.Load(), "requests for valid paths are sent")
}
