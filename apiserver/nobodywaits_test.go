package apiserver

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/coxswain-dev/coxswain/api"
)

func TestValidation_IsNotBegunWhenNobodyWaits(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	begun := 0
	check := func(api.Object, api.Object) field.ErrorList {
		begun++
		return nil
	}
	res := &api.Resource{Kind: "ConfigMap", New: func() api.Object {
		return &corev1.ConfigMap{}
	}, Validate: func(o api.Object) field.ErrorList { return check(o, nil) }}
	r, obj := &request{res: res}, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	s, sub := &Server{}, &api.Subresource{Validate: check}
	require.NoError(t, s.validate(ctx, r, obj, nil))
	require.NoError(t, s.validatePart(ctx, r, sub, obj, obj))
	require.Equal(t, 2, begun)
	cancel()
	require.ErrorIs(t, s.validate(ctx, r, obj, nil), context.Canceled)
	require.ErrorIs(t, s.validatePart(ctx, r, sub, obj, obj), context.Canceled)
	require.Equal(t, 2, begun)
}
