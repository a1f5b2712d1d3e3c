package controlplane

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/storage"
)

// The use of tokens in Secrets is recorded (KEP-2799): each Secret has a label with the day of the last use of its
// token, and a ConfigMap has the first day of recording. A controller deletes tokens that have long been idle.

// trackingConfigMap is in kube-system; its key "since" has that day.
const (
	trackingConfigMap = "kube-apiserver-legacy-service-account-token-tracking"
	trackingKey       = "since"
)

// tokenTracking keeps the ConfigMap, on a server that accepts such tokens.
func (c *ControlPlane) tokenTracking(ctx context.Context) ([]storage.Write, error) {
	res := c.Registry.Snapshot().Kind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	if res == nil || !c.TrackTokens {
		return nil, nil
	}
	fresh := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem,
		Name: trackingConfigMap}}
	return c.put(ctx, res, fresh, func(obj api.Object) {
		tracking := obj.(*corev1.ConfigMap)
		if _, err := time.Parse(time.DateOnly, tracking.Data[trackingKey]); err == nil {
			return
		}
		if tracking.Data == nil {
			tracking.Data = map[string]string{}
		}
		tracking.Data[trackingKey] = c.Clock.Now().UTC().Format(time.DateOnly)
	})
}
