//go:build e2e

package conformance

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
)

func suffix() string { return rand.String(8) }

var onConfigMaps = []registrationv1.RuleWithOperations{on("", "v1", "configmaps", registrationv1.Create,
	registrationv1.Update)}

// denyUnwanted rejects configmaps with an unwanted entry.
func denyUnwanted(r *request) *response {
	value, _, _ := unstructured.NestedString(objectOf(r.Object.Raw).Object, "data", "webhook-e2e-test")
	if value == "webhook-disallow" {
		return deny("the configmap contains unwanted key and value")(r)
	}
	return allow(r)
}

var unwanted = map[string]string{"webhook-e2e-test": "webhook-disallow"}

// AdmissionWebhook listing mutating webhooks should work
func TestAdmission_ListMutating(t *testing.T) {
	t.Parallel()
	h := connect(t).serveHooks(map[string]answer{"stage-1": addData("mutation-start", "mutation-stage-1")})
	var names []string
	for range 3 {
		names = append(names, h.mutating(hook{name: "stage-1", rules: onConfigMaps}).Name)
	}
	list, err := h.mutatingConfigurations().List(h.ctx, metav1.ListOptions{LabelSelector: "of=" + h.namespace})
	require.NoError(t, err)
	require.Len(t, list.Items, 3)
	seen, err := h.configMap(h.namespace, "before", map[string]string{"mutation-start": "yes"})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"mutation-start": "yes", "mutation-stage-1": "yes"}, seen.Data)

	require.NoError(t, h.mutatingConfigurations().DeleteCollection(h.ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: "of=" + h.namespace}))
	for _, name := range names {
		h.awaitMarker(name, false)
	}
	unseen, err := h.configMap(h.namespace, "after", map[string]string{"mutation-start": "yes"})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"mutation-start": "yes"}, unseen.Data)
}

// AdmissionWebhook listing validating webhooks should work
func TestAdmission_ListValidating(t *testing.T) {
	t.Parallel()
	h := connect(t).serveHooks(map[string]answer{"deny-unwanted": denyUnwanted})
	var names []string
	for range 3 {
		names = append(names, h.validating(hook{name: "deny-unwanted", rules: onConfigMaps}).Name)
	}
	list, err := h.validatingConfigurations().List(h.ctx, metav1.ListOptions{LabelSelector: "of=" + h.namespace})
	require.NoError(t, err)
	require.Len(t, list.Items, 3)
	_, err = h.configMap(h.namespace, "a", unwanted)
	require.ErrorContains(t, err, "denied")

	require.NoError(t, h.validatingConfigurations().DeleteCollection(h.ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: "of=" + h.namespace}))
	for _, name := range names {
		h.awaitMarker(name, false)
	}
	_, err = h.configMap(h.namespace, "a", unwanted)
	require.NoError(t, err)
}

// AdmissionWebhook patching/updating a mutating webhook should work
func TestAdmission_UpdateMutating(t *testing.T) {
	t.Parallel()
	h := connect(t).serveHooks(map[string]answer{"stage-1": addData("mutation-start", "mutation-stage-1")})
	onCreate := []registrationv1.RuleWithOperations{on("", "v1", "configmaps", registrationv1.Create)}
	config := h.mutating(hook{name: "stage-1", rules: onCreate})
	mutates := func() bool {
		made, err := h.core.CoreV1().ConfigMaps(h.namespace).Create(h.ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "a-"}, Data: map[string]string{"mutation-start": "yes"}},
			metav1.CreateOptions{})
		require.NoError(t, err)
		return made.Data["mutation-stage-1"] == "yes"
	}
	require.True(t, mutates())

	config.Webhooks[0].Rules[0].Operations = []registrationv1.OperationType{registrationv1.Update}
	_, err := h.mutatingConfigurations().Update(h.ctx, config, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return !mutates() }, patience, tick)

	body := jsonPatch(t, patch{{"op": "replace", "path": "/webhooks/0/rules/0/operations/0", "value": "CREATE"}})
	_, err = h.mutatingConfigurations().Patch(h.ctx, config.Name, asJSONPatch, body, metav1.PatchOptions{})
	require.NoError(t, err)
	require.Eventually(t, mutates, patience, tick)
}

// AdmissionWebhook patching/updating a validating webhook should work
func TestAdmission_UpdateValidating(t *testing.T) {
	t.Parallel()
	h := connect(t).serveHooks(map[string]answer{"deny-unwanted": denyUnwanted})
	onCreate := []registrationv1.RuleWithOperations{on("", "v1", "configmaps", registrationv1.Create)}
	config := h.validating(hook{name: "deny-unwanted", rules: onCreate})
	denies := func() bool {
		_, err := h.core.CoreV1().ConfigMaps(h.namespace).Create(h.ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "a-"}, Data: unwanted}, metav1.CreateOptions{})
		if err != nil {
			require.ErrorContains(t, err, "denied")
		}
		return err != nil
	}
	require.True(t, denies())

	config.Webhooks[0].Rules[0].Operations = []registrationv1.OperationType{registrationv1.Update}
	_, err := h.validatingConfigurations().Update(h.ctx, config, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return !denies() }, patience, tick)

	body := jsonPatch(t, patch{{"op": "replace", "path": "/webhooks/0/rules/0/operations/0", "value": "CREATE"}})
	_, err = h.validatingConfigurations().Patch(h.ctx, config.Name, asJSONPatch, body, metav1.PatchOptions{})
	require.NoError(t, err)
	require.Eventually(t, denies, patience, tick)
}

// AdmissionWebhook should be able to deny attaching pod
func TestAdmission_DenyAttach(t *testing.T) {
	t.Parallel()
	h := connect(t).serveHooks(map[string]answer{"deny-attaching-pod": func(r *request) *response {
		if r.Name == "to-be-attached-pod" && r.Operation == "CONNECT" && r.SubResource == "attach" &&
			objectOf(r.Object.Raw).GetKind() == "PodAttachOptions" {
			return deny("attaching to pod 'to-be-attached-pod' is not allowed")(r)
		}
		return allow(r)
	}})
	h.validating(hook{name: "deny-attaching-pod",
		rules: []registrationv1.RuleWithOperations{on("", "v1", "pods/attach", registrationv1.Connect)}})
	require.NoError(t, h.pod("to-be-attached-pod", corev1.Container{Name: "c", Image: "agnhost"}))
	h.awaitServiceAccount()
	_, err := h.kubectl("", "attach", "to-be-attached-pod", "-i", "-c", "c")
	require.ErrorContains(t, err, "attaching to pod 'to-be-attached-pod' is not allowed")
}

// pod creates a pod as soon as the namespace has a service account for it.
func (c *cluster) pod(name string, containers ...corev1.Container) error {
	c.awaitServiceAccount()
	_, err := c.core.CoreV1().Pods(c.namespace).Create(c.ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{Containers: containers}}, metav1.CreateOptions{})
	return err
}

func (c *cluster) awaitServiceAccount() {
	c.t.Helper()
	require.Eventually(c.t, func() bool {
		_, err := c.core.CoreV1().ServiceAccounts(c.namespace).Get(c.ctx, "default", metav1.GetOptions{})
		return err == nil
	}, patience, tick)
}

// AdmissionWebhook should be able to deny pod and configmap creation
func TestAdmission_DenyPodsAndConfigMaps(t *testing.T) {
	t.Parallel()
	c := connect(t)
	hang := make(chan struct{})
	h := c.serveHooks(map[string]answer{"deny-unwanted": denyUnwanted, "deny-unwanted-pod": func(r *request) *response {
		pod := objectOf(r.Object.Raw)
		containers, _, _ := unstructured.NestedSlice(pod.Object, "spec", "containers")
		switch containers[0].(map[string]any)["name"] {
		case "webhook-disallow":
			return deny("the pod contains unwanted container name")(r)
		case "wait-forever":
			<-hang
		}
		return allow(r)
	}})
	t.Cleanup(func() { close(hang) }) // before the server waits for its requests
	h.validating(
		hook{name: "deny-unwanted-pod", timeout: new(int32(1)),
			rules: []registrationv1.RuleWithOperations{on("", "v1", "pods", registrationv1.Create)}},
		hook{name: "deny-unwanted", rules: onConfigMaps},
		hook{name: "fail-open", rules: onConfigMaps, at: new(h.nowhere()), failure: registrationv1.Ignore})

	err := h.pod("disallowed-pod", corev1.Container{Name: "webhook-disallow", Image: "agnhost"})
	require.ErrorContains(t, err, "the pod contains unwanted container name")
	err = h.pod("hanging-pod", corev1.Container{Name: "wait-forever", Image: "agnhost"})
	require.ErrorContains(t, err, "deny-unwanted-pod.k8s.io")
	require.ErrorContains(t, err, "deadline")
	_, err = h.core.CoreV1().Pods(h.namespace).Get(h.ctx, "hanging-pod", metav1.GetOptions{})
	require.ErrorContains(t, err, "not found")

	_, err = h.configMap(h.namespace, "disallowed", unwanted)
	require.ErrorContains(t, err, "the configmap contains unwanted key and value")
	good, err := h.configMap(h.namespace, "allowed", map[string]string{"admit": "this"})
	require.NoError(t, err)
	good.Data = unwanted
	maps := h.core.CoreV1().ConfigMaps(h.namespace)
	_, err = maps.Update(h.ctx, good, metav1.UpdateOptions{})
	require.ErrorContains(t, err, "the configmap contains unwanted key and value")
	_, err = maps.Patch(h.ctx, "allowed", types.StrategicMergePatchType,
		[]byte(`{"data":{"webhook-e2e-test":"webhook-disallow"}}`), metav1.PatchOptions{})
	require.ErrorContains(t, err, "the configmap contains unwanted key and value")

	exempt := connect(t)
	_, err = h.configMap(exempt.namespace, "disallowed", unwanted)
	require.NoError(t, err, "another namespace is not selected")
}

// AdmissionWebhook should deny crd creation
func TestAdmission_DenyDefinitions(t *testing.T) {
	t.Parallel()
	c := connect(t)
	h := c.serveHooks(map[string]answer{"deny-crd": func(r *request) *response {
		if objectOf(r.Object.Raw).GetLabels()["e2e-crd"] == c.namespace {
			return deny("the crd contains unwanted label")(r)
		}
		return allow(r)
	}})
	h.validating(hook{name: "deny-crd", rules: []registrationv1.RuleWithOperations{on("apiextensions.k8s.io", "*",
		"customresourcedefinitions", registrationv1.Create)},
		objects: &metav1.LabelSelector{MatchLabels: map[string]string{"e2e-crd": c.namespace}}})
	crd := definition("Denied", version("v1", plainSchema))
	crd.Labels = map[string]string{"e2e-crd": c.namespace}
	_, err := c.crds().Create(c.ctx, crd, metav1.CreateOptions{})
	require.ErrorContains(t, err, "the crd contains unwanted label")
}

// AdmissionWebhook should honor timeout
func TestAdmission_HonorTimeout(t *testing.T) {
	t.Parallel()
	c := connect(t)
	slowly := make(chan struct{})
	h := c.serveHooks(map[string]answer{"slow": func(r *request) *response {
		if r.DryRun != nil && *r.DryRun {
			return allow(r)
		}
		select {
		case <-slowly:
		case <-time.After(2 * time.Second): // simulated work of the webhook
		}
		return allow(r)
	}})
	t.Cleanup(func() { close(slowly) }) // before the server waits for its requests
	for name, one := range map[string]struct {
		seconds *int32
		failure registrationv1.FailurePolicyType
		fails   bool
	}{
		"shorter-than-latency":            {new(int32(1)), registrationv1.Fail, true},
		"shorter-than-latency-and-ignore": {new(int32(1)), registrationv1.Ignore, false},
		"longer-than-latency":             {new(int32(10)), registrationv1.Fail, false},
		"unset-is-ten-seconds":            {nil, registrationv1.Fail, false},
	} {
		config := h.validating(hook{name: "slow", rules: onConfigMaps, timeout: one.seconds, failure: one.failure})
		_, err := h.configMap(h.namespace, name, nil)
		if one.fails {
			require.ErrorContains(t, err, "context deadline exceeded", name)
		} else {
			require.NoError(t, err, name)
		}
		require.NoError(t, h.validatingConfigurations().Delete(h.ctx, config.Name, metav1.DeleteOptions{}))
		h.awaitMarker(config.Name, false)
	}
}

// AdmissionWebhook should mutate configmap
func TestAdmission_MutateInOrder(t *testing.T) {
	t.Parallel()
	h := connect(t).serveHooks(map[string]answer{"stage-1": addData("mutation-start", "mutation-stage-1"),
		"stage-2": addData("mutation-stage-1", "mutation-stage-2")})
	h.mutating(hook{name: "stage-1", rules: onConfigMaps}, hook{name: "stage-2", rules: onConfigMaps})
	made, err := h.configMap(h.namespace, "a", map[string]string{"mutation-start": "yes"})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"mutation-start": "yes", "mutation-stage-1": "yes", "mutation-stage-2": "yes"},
		made.Data)
}

// AdmissionWebhook should mutate everything except 'skip-me' configmaps
func TestAdmission_MatchConditions(t *testing.T) {
	t.Parallel()
	h := connect(t).serveHooks(map[string]answer{"stage-1": addData("mutation-start", "mutation-stage-1")})
	h.mutating(hook{name: "stage-1", rules: onConfigMaps, conditions: []registrationv1.MatchCondition{
		{Name: "skip-me", Expression: "object.metadata.name != 'skip-me'"}}})
	for name, want := range map[string]string{"skip-me": "", "mutate-me": "yes"} {
		made, err := h.configMap(h.namespace, name, map[string]string{"mutation-start": "yes"})
		require.NoError(t, err)
		require.Equal(t, want, made.Data["mutation-stage-1"], name)
	}
}

// AdmissionWebhook should mutate pod and apply defaults after mutation
func TestAdmission_DefaultsAfterMutation(t *testing.T) {
	t.Parallel()
	h := connect(t).serveHooks(map[string]answer{"add-init-container": mutate(func(*unstructured.Unstructured) patch {
		return patch{{"op": "add", "path": "/spec/initContainers", "value": []any{map[string]any{
			"image": "webhook-added-image", "name": "webhook-added-init-container", "resources": map[string]any{}}}}}
	})})
	h.mutating(hook{name: "add-init-container",
		rules: []registrationv1.RuleWithOperations{on("", "v1", "pods", registrationv1.Create)}})
	require.NoError(t, h.pod("webhook-to-be-mutated", corev1.Container{Name: "example", Image: "agnhost"}))
	pod, err := h.core.CoreV1().Pods(h.namespace).Get(h.ctx, "webhook-to-be-mutated", metav1.GetOptions{})
	require.NoError(t, err)
	require.Len(t, pod.Spec.InitContainers, 1)
	added := pod.Spec.InitContainers[0]
	require.Equal(t, "webhook-added-init-container", added.Name)
	require.Equal(t, corev1.TerminationMessageReadFile, added.TerminationMessagePolicy, "the default is applied")
	require.Equal(t, corev1.PullAlways, added.ImagePullPolicy, "the default is applied")
}

// AdmissionWebhook should not be able to mutate or prevent deletion of webhook configuration objects
func TestAdmission_ConfigurationsAreExempt(t *testing.T) {
	t.Parallel()
	h := connect(t).serveHooks(map[string]answer{"deny-all": deny("nothing is removed"),
		"label-all": mutate(func(*unstructured.Unstructured) patch {
			return patch{{"op": "add", "path": "/metadata/labels/added", "value": "yes"}}
		})})
	configurations := []registrationv1.RuleWithOperations{
		on("admissionregistration.k8s.io", "*", "validatingwebhookconfigurations", registrationv1.OperationAll),
		on("admissionregistration.k8s.io", "*", "mutatingwebhookconfigurations", registrationv1.OperationAll)}
	ours := &metav1.LabelSelector{MatchLabels: map[string]string{"of": h.namespace}}
	h.validating(hook{name: "deny-all", rules: configurations, objects: ours})
	h.mutating(hook{name: "label-all", rules: configurations, objects: ours})

	dummy := h.validating()
	require.NotContains(t, dummy.Labels, "added")
	require.NoError(t, h.validatingConfigurations().Delete(h.ctx, dummy.Name, metav1.DeleteOptions{}))
	other := h.mutating()
	require.NotContains(t, other.Labels, "added")
	require.NoError(t, h.mutatingConfigurations().Delete(h.ctx, other.Name, metav1.DeleteOptions{}))
}

// AdmissionWebhook should unconditionally reject operations on fail closed webhook
func TestAdmission_FailClosed(t *testing.T) {
	t.Parallel()
	h := connect(t).serveHooks(nil)
	h.validating(hook{name: "fail-closed", rules: onConfigMaps, at: new(h.nowhere()),
		conditions: []registrationv1.MatchCondition{{Name: "unmarked",
			Expression: "!has(object.metadata.labels) || !('marker' in object.metadata.labels)"}}})
	_, err := h.configMap(h.namespace, "foo", nil)
	require.ErrorContains(t, err, "fail-closed.k8s.io")
	_, err = h.core.CoreV1().ConfigMaps(h.namespace).Get(h.ctx, "foo", metav1.GetOptions{})
	require.ErrorContains(t, err, "not found")
}
