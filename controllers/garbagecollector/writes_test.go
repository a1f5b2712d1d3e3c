package garbagecollector

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
)

// An object that was changed, or created again under the same name, since it was judged is neither deleted nor
// changed: every request carries the UID and the resourceVersion.
func TestWrites_AreToTheObjectThatWasJudged(t *testing.T) {
	t.Parallel()
	client := fake.NewSimpleMetadataClient(fake.NewTestScheme())
	g := &collector{client: func() metadata.Interface { return client }, graph: newGraph()}
	configMap := schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	put := func(n *node) *node {
		n.gvr, n.gvk, n.namespace, n.version = configMap.GroupVersion().WithResource("configmaps"), configMap, "ns", "7"
		for i := range n.owners {
			n.owners[i].APIVersion, n.owners[i].Kind = "v1", "ConfigMap"
		}
		g.graph.put(n)
		return n
	}
	owner := put(object("owner"))
	dependent := put(object("dependent", "owner"))
	cycle := put(object("cycle", "owner"))
	cycle.finalizers = []string{metav1.FinalizerDeleteDependents, "example.com/hold"}
	notFound := apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, "n")
	client.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, notFound
	})

	ctx := t.Context()
	require.NoError(t, g.delete(ctx, dependent, dependent.version, metav1.DeletePropagationOrphan))
	require.NoError(t, ignoreGone(g.patchOwners(ctx, dependent, []metav1.OwnerReference{})))
	require.NoError(t, g.removeFinalizer(ctx, cycle, metav1.FinalizerDeleteDependents))
	require.NoError(t, g.orphanDependents(ctx, owner))
	var writes []string
	for _, action := range client.Actions() {
		switch a := action.(type) {
		case clienttesting.DeleteActionImpl:
			p := a.DeleteOptions.Preconditions
			require.NotNil(t, p)
			writes = append(writes, "delete "+a.Name+" "+string(*p.UID)+" "+*p.ResourceVersion)
		case clienttesting.PatchActionImpl:
			var patch metav1.PartialObjectMetadata
			require.NoError(t, json.Unmarshal(a.Patch, &patch))
			writes = append(writes, fmt.Sprintf("patch %s %s %s %v", a.Name, patch.UID, patch.ResourceVersion, patch.Finalizers))
		}
	}
	require.ElementsMatch(t, []string{
		"delete n-dependent dependent 7", "patch n-dependent dependent 7 []", "patch n-cycle cycle 7 [example.com/hold]",
		"patch n-dependent dependent 7 []", "patch n-cycle cycle 7 []", "patch n-owner owner 7 []", // orphaned
	}, writes)
}
