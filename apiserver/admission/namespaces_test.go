package admission

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func configMapIn(namespace string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "c"}}
}

func TestNamespaceLifecycle_RejectsNewObjectsAndTheDeletionOfNeededNamespaces(t *testing.T) {
	t.Parallel()
	decisions := []decision{
		{name: "an object in a namespace", write: creates(configMapIn("default"))},
		{name: "an object outside of namespaces", write: creates(&corev1.Node{ObjectMeta: clusterMeta("n")})},
		{name: "no namespace", write: creates(configMapIn("none")), words: `namespaces "none" not found`,
			reason: metav1.StatusReasonNotFound},
		{name: "a namespace that is being deleted", write: creates(configMapIn("closing")),
			words: "unable to create new content in namespace closing because it is being terminated"},
		{name: "another namespace's end", write: deletes(&corev1.Namespace{ObjectMeta: clusterMeta("mine")})},
	}
	for _, name := range []string{"default", "kube-system", "kube-public"} {
		decisions = append(decisions, decision{name: "the end of " + name,
			words: "this namespace may not be deleted",
			write: deletes(&corev1.Namespace{ObjectMeta: clusterMeta(name)})})
	}
	newWorld().decides(t, "NamespaceLifecycle", "", decisions)

	err := newWorld().admit(t, "NamespaceLifecycle", "", creates(configMapIn("closing")))
	require.True(t, apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause))
}

func TestNamespaceExists_RejectsWritesWithoutANamespace(t *testing.T) {
	t.Parallel()
	here, nowhere := configMapIn("default"), configMapIn("none")
	const words = `namespaces "none" not found`
	newWorld().decides(t, "NamespaceExists", "", []decision{
		{name: "create", write: creates(here)},
		{name: "create without", write: creates(nowhere), words: words, reason: metav1.StatusReasonNotFound},
		{name: "update without", write: updates(nowhere, nowhere), words: words,
			reason: metav1.StatusReasonNotFound},
		{name: "delete without", write: deletes(nowhere), words: words, reason: metav1.StatusReasonNotFound},
		{name: "a subresource without", write: subresource(updates(nowhere, nowhere), "status"), words: words,
			reason: metav1.StatusReasonNotFound},
		{name: "outside of namespaces", write: creates(&corev1.Node{ObjectMeta: clusterMeta("n")})},
	})
}

func TestNamespaceAutoProvision_CreatesMissingNamespaces(t *testing.T) {
	t.Parallel()
	dry := creates(configMapIn("new"))
	dry.DryRun = true
	for name, c := range map[string]struct {
		write *Attributes
		made  []string
	}{
		"a namespace that exists": {creates(configMapIn("default")), nil},
		"a new namespace":         {creates(configMapIn("new")), []string{"new"}},
		"a dry run":               {dry, nil},
		"outside of namespaces":   {creates(&corev1.Node{ObjectMeta: clusterMeta("n")}), nil},
	} {
		w := newWorld()
		require.NoError(t, w.admit(t, "NamespaceAutoProvision", "", c.write), name)
		require.Equal(t, c.made, w.made, name)
	}
	broken := newWorld()
	broken.err = errors.New("broken")
	require.ErrorIs(t, broken.admit(t, "NamespaceAutoProvision", "", creates(configMapIn("new"))), broken.err)
	require.Empty(t, broken.made, "it may exist")
}
