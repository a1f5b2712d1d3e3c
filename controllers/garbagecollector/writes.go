package garbagecollector

import (
	"context"
	"encoding/json"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
)

func (g *collector) clientOf(n *node) metadata.ResourceInterface {
	return g.client().Resource(n.gvr).Namespace(n.namespace)
}

// patch sets fields of n's metadata, on the condition that n is still the object and the version that was
// judged.
func (g *collector) patch(ctx context.Context, n *node, fields map[string]any) (*metav1.PartialObjectMetadata, error) {
	fields["uid"], fields["resourceVersion"] = n.uid, n.version
	body, err := json.Marshal(map[string]any{"metadata": fields})
	if err != nil {
		return nil, err
	}
	return g.clientOf(n).Patch(ctx, n.name, types.MergePatchType, body, metav1.PatchOptions{})
}

func (g *collector) patchOwners(ctx context.Context, n *node, owners []metav1.OwnerReference) error {
	_, err := g.patch(ctx, n, map[string]any{"ownerReferences": owners})
	return err
}

func (g *collector) removeFinalizer(ctx context.Context, n *node, finalizer string) error {
	rest := slices.DeleteFunc(slices.Clone(n.finalizers), func(f string) bool { return f == finalizer })
	_, err := g.patch(ctx, n, map[string]any{"finalizers": rest})
	return ignoreGone(err)
}

// ignoreGone drops NotFound: an object that was deleted meanwhile needs no further write.
func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
