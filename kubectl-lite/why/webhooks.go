package why

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/coxswain-dev/coxswain/kubectl-lite/diagnose"
)

const (
	webhookGroup = "admissionregistration.k8s.io"
	// webhookCalls is the path of the last calls of webhooks, which only Coxswain's API server has.
	webhookCalls = "/debug/admission_webhooks"
	// lately is the maximum age of the calls that count, slow the shortest time of a call that is reported as slow.
	lately = 10 * time.Minute
	slow   = time.Second
)

// calledWebhook is a webhook with its last calls, the newest first.
type calledWebhook struct {
	Configuration string `json:"configuration"`
	Webhook       string `json:"webhook"`
	Type          string `json:"type"`
	Recent        []struct {
		At      time.Time `json:"at"`
		Seconds float64   `json:"seconds"`
		Outcome string    `json:"outcome"`
		Message string    `json:"message"`
	} `json:"recent"`
}

// kind returns the kind of the webhook's configuration.
func (w *calledWebhook) kind() string {
	if w.Type == "admit" {
		return "MutatingWebhookConfiguration"
	}
	return "ValidatingWebhookConfiguration"
}

// finding reports the last calls with one outcome; ok is false if there were none lately.
func (w *calledWebhook) finding(outcome string, rank diagnose.Rank, verb string) (f diagnose.Finding, ok bool) {
	count, last := 0, -1
	for i := range w.Recent {
		if w.Recent[i].Outcome == outcome && time.Since(w.Recent[i].At) < lately {
			if count++; last < 0 {
				last = i
			}
		}
	}
	if count == 0 {
		return f, false
	}
	call := w.Recent[last]
	return diagnose.Finding{Rank: rank, Subject: w.kind() + "/" + w.Configuration, Text: fmt.Sprintf(
		"%s %d of the last %d requests that it was asked about, the last one %s ago: %s", verb, count, len(w.Recent),
		duration.HumanDuration(time.Since(call.At)), call.Message)}, true
}

// slowness reports a last call that took long.
func (w *calledWebhook) slowness() (f diagnose.Finding, ok bool) {
	if len(w.Recent) == 0 || time.Since(w.Recent[0].At) >= lately || w.Recent[0].Seconds < slow.Seconds() {
		return f, false
	}
	return diagnose.Finding{Rank: diagnose.RankWarning, Subject: w.kind() + "/" + w.Configuration, Text: fmt.Sprintf(
		"is slow: %s took %.1f s at its last call", w.Webhook, w.Recent[0].Seconds)}, true
}

// calledWebhooks reads the webhooks that were called lately, once. There are none if the server does not have them, or
// if the user may not read them.
func (s *surroundings) calledWebhooks(ctx context.Context) []calledWebhook {
	if s.called == nil {
		s.called = []calledWebhook{}
		body, err := s.client.Discovery().RESTClient().Get().AbsPath(webhookCalls).DoRaw(ctx)
		var report struct {
			Webhooks []calledWebhook `json:"webhooks"`
		}
		if err == nil && json.Unmarshal(body, &report) == nil {
			s.called = report.Webhooks
		}
	}
	return s.called
}

// aboutWebhooks finds webhooks that have failed or were slow lately. They may delay or fail any request to the cluster.
func (s *surroundings) aboutWebhooks(ctx context.Context) (found []diagnose.Finding) {
	for _, w := range s.calledWebhooks(ctx) {
		if f, ok := w.finding("failed", diagnose.RankRefused, "did not decide about"); ok {
			found = append(found, f)
		}
		if f, ok := w.slowness(); ok {
			found = append(found, f)
		}
	}
	return found
}

// mentioned finds faults of the webhooks that the texts of findings name.
func (s *surroundings) mentioned(ctx context.Context, findings []diagnose.Finding) (found []diagnose.Finding) {
	for _, w := range s.calledWebhooks(ctx) {
		for _, f := range findings {
			if strings.Contains(f.Text, fmt.Sprintf("webhook %q", w.Webhook)) {
				found = append(found, w.outcomes()...)
				break
			}
		}
	}
	return found
}

// outcomes returns the findings about a webhook's last calls.
func (w *calledWebhook) outcomes() (found []diagnose.Finding) {
	if f, ok := w.finding("failed", diagnose.RankRefused, "did not decide about"); ok {
		found = append(found, f)
	}
	if f, ok := w.finding("denied", diagnose.RankWarning, "refused"); ok {
		found = append(found, f)
	}
	if f, ok := w.slowness(); ok {
		found = append(found, f)
	}
	return found
}

// isWebhookConfiguration reports whether a kind is a mutating or validating webhook configuration.
func isWebhookConfiguration(kind schema.GroupKind) bool {
	return kind.Group == webhookGroup && strings.HasSuffix(kind.Kind, "WebhookConfiguration")
}

// behindWebhooks finds faults of the Services of a webhook configuration, and of its last calls.
func (s *surroundings) behindWebhooks(ctx context.Context, obj *unstructured.Unstructured) (
	found []diagnose.Finding, pods []*unstructured.Unstructured, err error) {
	subject := obj.GetKind() + "/" + obj.GetName()
	list, _, _ := unstructured.NestedSlice(obj.Object, "webhooks")
	services := map[string]bool{}
	for _, entry := range list {
		hook := admissionv1.ValidatingWebhook{} // mutating webhooks have the same clientConfig
		content, _ := entry.(map[string]any)
		err := runtime.DefaultUnstructuredConverter.FromUnstructured(content, &hook)
		if err != nil || hook.ClientConfig.Service == nil {
			continue
		}
		ref := hook.ClientConfig.Service
		if services[ref.Namespace+"/"+ref.Name] || len(services) == maxBackends {
			continue
		}
		services[ref.Namespace+"/"+ref.Name] = true
		service, err := s.service(ctx, ref.Namespace, ref.Name)
		if err != nil {
			return nil, nil, err
		}
		if service == nil {
			found = append(found, diagnose.Finding{Rank: diagnose.RankMissing, Subject: subject,
				Text: fmt.Sprintf("calls Service/%s in %s, which does not exist", ref.Name, ref.Namespace)})
			continue
		}
		if text := lacksPort(service, ref); text != "" {
			found = append(found, diagnose.Finding{Rank: diagnose.RankMissing, Subject: subject, Text: text})
		}
		wrong, behind, err := s.behindService(ctx, service)
		if err != nil {
			return nil, nil, err
		}
		found, pods = append(found, wrong...), append(pods, behind...)
	}
	if s.pods != nil { // aboutWebhooks reports the calls of all webhooks
		return found, pods, nil
	}
	for _, w := range s.calledWebhooks(ctx) {
		if w.kind() == obj.GetKind() && w.Configuration == obj.GetName() {
			found = append(found, w.outcomes()...)
		}
	}
	return found, pods, nil
}

// lacksPort describes a port that a webhook calls and its Service does not have, or returns "".
func lacksPort(service *corev1.Service, ref *admissionv1.ServiceReference) string {
	port := int32(443)
	if ref.Port != nil {
		port = *ref.Port
	}
	for _, p := range service.Spec.Ports {
		if p.Port == port {
			return ""
		}
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return ""
	}
	return fmt.Sprintf("calls the port %d of Service/%s in %s, which it does not have", port, ref.Name, ref.Namespace)
}
