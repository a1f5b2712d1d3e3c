package nodettl

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clienttesting "k8s.io/client-go/testing"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest/fakeenv"
)

// TestNodeTTL_PatchesTheNodeWithItsUID checks the precondition with which the API server rejects the patch if another
// Node has taken the name.
func TestNodeTTL_PatchesTheNodeWithItsUID(t *testing.T) {
	t.Parallel()
	e := fakeenv.New(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "n-1"}})
	e.Start(New)
	patches := e.Writes("patch", "nodes")
	require.Len(t, patches, 1)
	require.JSONEq(t, `{"metadata":{"uid":"n-1","annotations":{"node.alpha.kubernetes.io/ttl":"0"}}}`,
		string(patches[0].(clienttesting.PatchAction).GetPatch()))
}
