package controllertest

import (
	"context"
	"fmt"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Objects is the interface of client-go's clients for the objects of a resource.
type Objects[T metav1.Object] interface {
	Get(context.Context, string, metav1.GetOptions) (T, error)
	Create(context.Context, T, metav1.CreateOptions) (T, error)
	Delete(context.Context, string, metav1.DeleteOptions) error
	Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (T, error)
}

// Replace deletes an object, with its finalizers, and creates another of the same name. The returned function
// describes how the other has changed since, or returns "". A cache whose watch is held (Faults.Hold) still
// shows the first object.
func Replace[T metav1.Object](c *Cluster, objects Objects[T], other T) (touched func() string) {
	c.Helper()
	name := other.GetName()
	before, err := objects.Get(c.Context(), name, metav1.GetOptions{})
	require.NoError(c, err)
	c.Eventually(name+" is deleted", func() bool {
		err := objects.Delete(c.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64),
			Preconditions: metav1.NewUIDPreconditions(string(before.GetUID()))})
		if err == nil {
			_, err = objects.Patch(c.Context(), name, types.MergePatchType, fmt.Appendf(nil,
				`{"metadata":{"uid":%q,"finalizers":null}}`, before.GetUID()), metav1.PatchOptions{})
		}
		return apierrors.IsNotFound(err)
	})
	created, err := objects.Create(c.Context(), other, metav1.CreateOptions{})
	require.NoError(c, err)
	require.NotEqual(c, before.GetUID(), created.GetUID())
	return func() string {
		now, err := objects.Get(c.Context(), name, metav1.GetOptions{})
		switch {
		case err != nil:
			return err.Error()
		case now.GetUID() != created.GetUID():
			return "it was replaced"
		case now.GetResourceVersion() != created.GetResourceVersion():
			return fmt.Sprintf("it was changed: %+v", now)
		}
		return ""
	}
}
