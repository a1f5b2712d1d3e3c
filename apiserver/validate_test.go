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

func TestValidation_DoesNotRunForEndedRequests(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	begun := 0
	check := func(api.Object, api.Object) field.ErrorList {
		begun++
		return nil
	}
	res := &api.Resource{
		Names: api.Names{Kind: "ConfigMap"},
		Storage: api.Storage{
			New: func() api.Object {
				return &corev1.ConfigMap{}
			},
		},
		Strategy: api.Strategy{Validate: func(o api.Object) field.ErrorList { return check(o, nil) }},
	}
	obj := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	s, create := &Server{}, &write{request: &request{res: res}, obj: obj}
	part := &write{request: &request{res: res}, obj: obj, old: obj, part: &api.Subresource{Validate: check}}
	require.NoError(t, s.validate(ctx, create))
	require.NoError(t, s.validatePart(ctx, part))
	require.Equal(t, 2, begun)
	cancel()
	require.ErrorIs(t, s.validate(ctx, create), context.Canceled)
	require.ErrorIs(t, s.validatePart(ctx, part), context.Canceled)
	require.Equal(t, 2, begun)
}
