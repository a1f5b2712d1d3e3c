package apiserver_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	resourcePath   = "/apis/resource.k8s.io/v1"
	resourceClaims = resourcePath + "/namespaces/default/resourceclaims"
	resourceSlices = resourcePath + "/resourceslices"
)

// A user that may bind a claim may not write the status of its devices, and vice versa.
func TestResourceClaim_StatusIsOfSchedulerAndDriver(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(resourceClaims, m{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": m{"name": "c"},
		"spec": m{"devices": m{"requests": []m{{"name": "gpu", "exactly": m{"deviceClassName": "gpu"}}}}}})
	require.EqualValues(t, 1, s.get(resourceClaims+"/c").at("spec", "devices", "requests").([]any)[0].(m)["exactly"].(m)["count"])
	status := resourceClaims + "/c/status"
	allocated := m{"status": m{"allocation": m{"devices": m{"results": []m{{"request": "gpu", "driver": "a.b",
		"pool": "p", "device": "d"}}}}}}
	devices := m{"status": m{"devices": []m{{"driver": "a.b", "pool": "p", "device": "d",
		"networkData": m{"interfaceName": "eth0"}}}}}
	refused := func(a *answer, words string) {
		t.Helper()
		a.refused(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, words)
	}
	binder := s.may("binder", "resource.k8s.io", "resourceclaims/status", "patch", "get")
	refused(binder.patch(status, mergePatch, allocated),
		`requires resource="resourceclaims/binding", verb="patch" permission`)
	s.grant("binder", "bind",
		m{"apiGroups": []string{"resource.k8s.io"}, "resources": []string{"resourceclaims/binding"},
			"verbs": []string{"patch"}})
	binder.patch(status, mergePatch, allocated).ok(http.StatusOK)
	refused(binder.patch(status, mergePatch, devices), "resourceclaims/driver")
	driver := s.may("driver", "resource.k8s.io", "resourceclaims/status", "patch")
	s.grant("driver", "tell",
		m{"apiGroups": []string{"resource.k8s.io"}, "resources": []string{"resourceclaims/driver"},
			"resourceNames": []string{"a.b"}, "verbs": []string{"arbitrary-node:patch"}})
	driver.patch(status, mergePatch, devices).ok(http.StatusOK)
	refused(driver.patch(status, mergePatch, m{"status": m{"allocation": nil}}), "resourceclaims/binding")
	binder.patch(status, mergePatch, m{"status": m{"allocation": nil}}).ok(http.StatusOK)
	left, _ := s.get(resourceClaims + "/c").object().Object["status"].(m)
	require.Empty(t, left, "the status of the devices is removed with them")

	admin := m{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": m{"name": "admin"},
		"spec": m{"devices": m{"requests": []m{{"name": "gpu",
			"exactly": m{"deviceClassName": "gpu", "adminAccess": true}}}}}}
	refused(s.do(http.MethodPost, resourceClaims, admin), "resource.kubernetes.io/admin-access: true")
	s.patch("/api/v1/namespaces/default", mergePatch,
		m{"metadata": m{"labels": m{"resource.kubernetes.io/admin-access": "true"}}}).ok(http.StatusOK)
	s.create(resourceClaims, admin)
}

func TestNodeRestriction_OfDevices(t *testing.T) {
	t.Parallel()
	s := start(t)
	slice := func(name, node string) m {
		return m{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": m{"name": name},
			"spec": m{"driver": "a.b", "nodeName": node,
				"pool": m{"name": node, "generation": 1, "resourceSliceCount": 1}}}
	}
	a := s.as("system:node:node-a", "system:nodes")
	a.create(resourceSlices, slice("mine", "node-a"))
	require.True(t, a.do(http.MethodPost, resourceSlices, slice("theirs", "node-b")).forbidden(
		"can only create ResourceSlice with the same NodeName as the requesting node"))
	s.create(resourceSlices, slice("theirs", "node-b"))
	require.Equal(t, http.StatusForbidden, a.get(resourceSlices).code)
	require.Equal(t, []string{"mine"}, a.get(resourceSlices+"?fieldSelector=spec.nodeName%3Dnode-a").names())
	require.Equal(t, []string{"mine", "theirs"}, s.get(resourceSlices+"?fieldSelector=spec.driver%3Da.b").names())
	require.Equal(t, []string{"theirs"}, s.get(resourceSlices+"?fieldSelector=spec.pool.name%3Dnode-b").names())
	change := m{"spec": m{"pool": m{"generation": 2}}}
	require.EqualValues(t, 2, a.patch(resourceSlices+"/mine", mergePatch, change).ok(http.StatusOK).at("metadata",
		"generation"))
	require.Equal(t, http.StatusForbidden, a.patch(resourceSlices+"/theirs", mergePatch, change).code)
	require.Equal(t, http.StatusForbidden, a.delete(resourceSlices+"/theirs", nil).code)
	a.do(http.MethodDelete, resourceSlices+"?fieldSelector=spec.nodeName%3Dnode-a", nil).ok(http.StatusOK)
	require.Equal(t, []string{"theirs"}, s.get(resourceSlices).names())
}
