package apiserver

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/authn"
	"github.com/coxswain-dev/coxswain/storage"
)

// The use of tokens in Secrets is noted (KEP-2799): each Secret has a label with the day on which its token was last
// used, and a ConfigMap says since when that is so. A controller does away with those that have long been idle.

// trackingConfigMap is in kube-system; its key "since" has the day.
const (
	trackingConfigMap = "kube-apiserver-legacy-service-account-token-tracking"
	trackingKey       = "since"
)

// tokenTracking keeps the ConfigMap, on a server that accepts such tokens.
func (s *Server) tokenTracking(ctx context.Context) ([]storage.Write, error) {
	res := s.Registry.Snapshot().Kind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	if res == nil || s.Authentication.ServiceAccounts == nil {
		return nil, nil
	}
	fresh := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: trackingConfigMap}}
	return s.put(ctx, res, fresh, func(obj api.Object) {
		c := obj.(*corev1.ConfigMap)
		if _, err := time.Parse(time.DateOnly, c.Data[trackingKey]); err == nil {
			return
		}
		if c.Data == nil {
			c.Data = map[string]string{}
		}
		c.Data[trackingKey] = s.Clock.Now().UTC().Format(time.DateOnly)
	})
}

// TokenUsed implements authn.Objects.
func (v vouchers) TokenUsed(ctx context.Context, secret *corev1.Secret, day string) error {
	s := v.cluster.server
	res := v.cluster.resource(schema.GroupResource{Resource: "secrets"})
	if res == nil {
		return authn.ErrNotFound
	}
	for {
		o, err := s.collection(res).Get(ctx, secret.Namespace, secret.Name, storage.At{})
		if errors.Is(err, storage.ErrNotFound) || err == nil && o.UID != string(secret.UID) {
			return authn.ErrNotFound
		}
		if err != nil {
			return err
		}
		writes, err := s.amend(res, o, func(obj api.Object) {
			labels := obj.GetLabels()
			if labels == nil {
				labels = map[string]string{}
			}
			labels[authn.LastUsedLabel] = day
			obj.SetLabels(labels)
		})
		if err != nil || len(writes) == 0 {
			return err
		}
		_, err = s.Store.Commit(ctx, writes...)
		var conflict *storage.Conflict
		if errors.As(err, &conflict) {
			continue // somebody was quicker, most likely with the same
		}
		return err
	}
}
