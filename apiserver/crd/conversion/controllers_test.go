package conversion_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/coxswain-dev/coxswain/testenv"
)

// While a webhook fails, the garbage collector continues with other kinds, and a namespace being deleted loses all
// objects except the ones that need the webhook. When the webhook works again, the namespace is removed.
func TestFailingWebhook_BlocksNoController(t *testing.T) {
	t.Parallel()
	ctx, config, hook := t.Context(), testenv.Start(t), newHook(t)
	client, err := dynamic.NewForConfig(config)
	require.NoError(t, err)
	core := kubernetes.NewForConfigOrDie(config).CoreV1()
	crd := definition(t, hook.byURL())
	versions := crd.Object["spec"].(object)["versions"].([]any) // clients prefer v2, and v1 is stored
	versions[0].(object)["storage"], versions[1].(object)["storage"] = true, false
	_, err = client.Resource(definitions).Create(ctx, crd, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}},
		metav1.CreateOptions{})
	require.NoError(t, err)
	code(http.StatusServiceUnavailable)(hook)
	require.Eventually(t, func() bool {
		_, err = client.Resource(v1).Namespace("shop").Create(ctx, endpoint("v1", "a", object{"host": "h"}),
			metav1.CreateOptions{})
		return err == nil
	}, patience, tick)

	owner, err := core.ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}},
		metav1.CreateOptions{})
	require.NoError(t, err)
	configMap := func(name string, owners ...metav1.OwnerReference) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owners}}
	}
	_, err = core.ConfigMaps("default").Create(ctx, configMap("owned", metav1.OwnerReference{APIVersion: "v1",
		Kind: "ConfigMap", Name: owner.Name, UID: owner.UID}), metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = core.ConfigMaps("shop").Create(ctx, configMap("a"), metav1.CreateOptions{})
	require.NoError(t, err)
	require.NoError(t, core.ConfigMaps("default").Delete(ctx, "owner", metav1.DeleteOptions{}))
	require.NoError(t, core.Namespaces().Delete(ctx, "shop", metav1.DeleteOptions{}))
	deleted := func(namespace, name string) func() bool {
		return func() bool {
			_, err := core.ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		}
	}
	require.Eventually(t, deleted("default", "owned"), patience, tick, "the garbage collector")
	require.Eventually(t, deleted("shop", "a"), patience, tick, "the rest of the namespace")
	require.Eventually(t, func() bool {
		ns, err := core.Namespaces().Get(ctx, "shop", metav1.GetOptions{})
		return err == nil && slices.ContainsFunc(ns.Status.Conditions, func(c corev1.NamespaceCondition) bool {
			return c.Type == corev1.NamespaceDeletionContentFailure && c.Status == corev1.ConditionTrue &&
				strings.Contains(c.Message, "conversion webhook for example.com/")
		})
	}, patience, tick, "the namespace says why it waits")
	hook.answers(nil)
	require.Eventually(t, func() bool {
		_, err := core.Namespaces().Get(ctx, "shop", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}, patience, tick)
}
