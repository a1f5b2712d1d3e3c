package apiserver

import (
	"context"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/coxswain-dev/coxswain/api"
)

func TestEncoding_EndsWhenNobodyWaits(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	hr, err := http.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
	require.NoError(t, err)
	r := &request{Request: hr}
	require.NoError(t, r.wanted(31))
	cancel()
	require.NoError(t, r.wanted(0), "one document is answered: it may be of a write that has happened")
	require.ErrorIs(t, r.wanted(31), context.Canceled)
}

func TestValidation_IsNotBegunWhenNobodyWaits(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	begun := 0
	check := func(api.Object, api.Object) field.ErrorList {
		begun++
		return nil
	}
	res := &api.Resource{Kind: "ConfigMap", New: func() api.Object { return &corev1.ConfigMap{} }, Validate: func(o api.Object) field.ErrorList { return check(o, nil) }}
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
