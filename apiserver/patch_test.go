package apiserver_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestPatch_StrategicMergesContainersByName(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(deployments, deployment("web", 1))
	patched := s.patch(deployments+"/web", strategicPatch,
		`{"spec":{"template":{"spec":{"containers":[{"name":"side","image":"envoy"},{"name":"main","image":"nginx:2"}]}}}}`).ok(http.StatusOK)
	images := map[string]string{}
	for _, c := range patched.at("spec", "template", "spec", "containers").([]any) {
		images[c.(m)["name"].(string)] = c.(m)["image"].(string)
	}
	require.Equal(t, map[string]string{"main": "nginx:2", "side": "envoy"}, images)

	patched = s.patch(deployments+"/web", strategicPatch,
		`{"spec":{"template":{"spec":{"containers":[{"name":"side","$patch":"delete"}]}}}}`).ok(http.StatusOK)
	require.Len(t, patched.at("spec", "template", "spec", "containers"), 1)
}

func TestPatch_MergeReplacesListsAndRemovesByNull(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(deployments, with(deployment("web", 1), "labels", m{"a": "1", "b": "2"}))
	patched := s.patch(deployments+"/web", mergePatch,
		`{"metadata":{"labels":{"a":null,"c":"3"}},"spec":{"template":{"spec":{"containers":[{"name":"other","image":"x"}]}}}}`).ok(http.StatusOK)
	require.Equal(t, map[string]string{"b": "2", "c": "3"}, patched.object().GetLabels())
	require.Len(t, patched.at("spec", "template", "spec", "containers"), 1)
}

func TestPatch_JSONAppliesOperationsInOrder(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(configMaps, configMap("a"))
	patched := s.patch(configMaps+"/a", jsonPatch, `[
		{"op":"test","path":"/data/k","value":"v"},
		{"op":"add","path":"/data/n","value":"1"},
		{"op":"move","from":"/data/n","path":"/data/o"},
		{"op":"remove","path":"/data/k"}]`).ok(http.StatusOK)
	require.Equal(t, m{"o": "1"}, patched.at("data"))
}

func TestPatch_RejectsPatchesThatCannotBeApplied(t *testing.T) {
	t.Parallel()
	s := start(t)
	stored := s.create(configMaps, configMap("a")).object()
	operations := "[" + strings.Repeat(`{"op":"test","path":"/kind","value":"ConfigMap"},`, 10000) +
		`{"op":"remove","path":"/data"}]`
	for name, c := range map[string]struct {
		kind, patch string
		code        int
		reason      metav1.StatusReason
		words       string
	}{
		"a test that fails": {jsonPatch, `[{"op":"test","path":"/data/k","value":"w"}]`, 422,
			metav1.StatusReasonInvalid, "the server rejected our request due to an error in our request"},
		"a path that is not there": {jsonPatch, `[{"op":"remove","path":"/data/x"}]`, 422, metav1.StatusReasonInvalid,
			"the server rejected our request due to an error in our request"},
		"an unknown operation": {jsonPatch, `[{"op":"burn","path":"/data"}]`, 422, metav1.StatusReasonInvalid,
			"the server rejected"},
		"an object for a JSON list": {jsonPatch, `{}`, 400, metav1.StatusReasonBadRequest, ""},
		"too many operations":       {jsonPatch, operations, 413, metav1.StatusReasonRequestEntityTooLarge, "10000"},
		"malformed merge":           {mergePatch, `{"data":`, 400, metav1.StatusReasonBadRequest, ""},
		"a list for a merge":        {mergePatch, `[]`, 400, metav1.StatusReasonBadRequest, ""},
		"a string for a merge":      {mergePatch, `"x"`, 400, metav1.StatusReasonBadRequest, ""},
		"null for a merge":          {mergePatch, `null`, 400, metav1.StatusReasonBadRequest, ""},
		"an empty merge":            {mergePatch, ``, 400, metav1.StatusReasonBadRequest, ""},
		"malformed strategic":       {strategicPatch, `{`, 400, metav1.StatusReasonBadRequest, ""},
		"an unknown directive": {strategicPatch, `{"data":{"$patch":"burn"}}`, 400, metav1.StatusReasonBadRequest,
			""},
		"a list for data": {strategicPatch, `{"data":["x"]}`, 0, "", ""},
		"a wrong type":    {mergePatch, `{"data":"x"}`, 422, metav1.StatusReasonInvalid, ""},
		"another kind":    {mergePatch, `{"kind":"Secret"}`, 422, metav1.StatusReasonInvalid, ""},
		"another name": {mergePatch, `{"metadata":{"name":"b"}}`, 400, metav1.StatusReasonBadRequest,
			"does not match"},
		"another namespace": {mergePatch, `{"metadata":{"namespace":"b"}}`, 400, metav1.StatusReasonBadRequest,
			"does not match"},
		"another uid": {mergePatch, `{"metadata":{"uid":"b"}}`, 409, metav1.StatusReasonConflict,
			"UID in precondition"},
		"an invalid label": {mergePatch, `{"metadata":{"labels":{"a b":"c"}}}`, 422,
			metav1.StatusReasonInvalid, "metadata.labels"},
		"no metadata": {mergePatch, `{"metadata":null}`, 0, "", ""},
		"no patch at all": {"application/json", `{}`, 415, metav1.StatusReasonUnsupportedMediaType,
			"application/json-patch+json"},
		"deep nesting": {mergePatch, strings.Repeat(`{"a":`, 9999) + "1" + strings.Repeat("}", 9999), 400,
			metav1.StatusReasonBadRequest, "nested"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &server{t: t, config: s.config, http: s.http}
			answered := s.patch(configMaps+"/a", c.kind, c.patch)
			if c.code != 0 {
				answered.refused(c.code, c.reason, c.words)
			}
			require.Less(t, answered.code, 500, "%s", answered.body)
			require.Equal(t, stored, s.get(configMaps+"/a").ok(http.StatusOK).object())
		})
	}
}

func TestPatch_CopiesCannotGrowWithoutBound(t *testing.T) {
	t.Parallel()
	s := start(t)
	body := configMap("a")
	body["data"] = m{"k": strings.Repeat("x", 1000)}
	s.create(configMaps, body)
	var ops []string
	for i := range 9000 {
		ops = append(ops, fmt.Sprintf(`{"op":"copy","from":"/data","path":"/data/c%d"}`, i))
	}
	answered := s.patch(configMaps+"/a", jsonPatch, "["+strings.Join(ops, ",")+"]")
	require.Equal(t, http.StatusUnprocessableEntity, answered.code)
	require.Len(t, s.get(configMaps+"/a").at("data"), 1)
}

func TestPatch_CannotAddFinalizersToADeletedObject(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.create(configMaps, with(configMap("a"), "finalizers", []string{"x.io/a"}))
	s.delete(configMaps+"/a", nil).ok(http.StatusOK)
	s.patch(configMaps+"/a", mergePatch, `{"metadata":{"finalizers":["x.io/a","x.io/b"]}}`).
		refused(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid,
			"no new finalizers can be added if the object is being deleted")
}
