package webhook

import (
	"context"
	"encoding/json"
	"fmt"

	admissionreviewv1 "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/equal"
	"github.com/coxswain-dev/coxswain/apiserver/admission/admissionreview"
	"github.com/coxswain-dev/coxswain/apiserver/admission/calls"
	"github.com/coxswain-dev/coxswain/apiserver/admission/match"
)

// Mutating lets the webhooks of MutatingWebhookConfigurations change objects. Each sees the result of the
// previous one.
type Mutating struct{ *hooks }

// NewMutating returns a plugin that reads the webhooks from the cluster.
func NewMutating(o Options) (*Mutating, error) {
	h, err := newHooks(o, "mutatingwebhookconfigurations", calls.Mutating,
		func(obj api.Object) []admissionv1.MutatingWebhook {
			return obj.(*admissionv1.MutatingWebhookConfiguration).Webhooks
		})
	return &Mutating{h}, err
}

// Mutate implements Mutator.
func (m *Mutating) Mutate(ctx context.Context, a *match.Attributes) error {
	list, err := m.about(ctx, a)
	if err != nil || len(list) == 0 {
		return err
	}
	q := &review{Request: match.NewRequest(a, m.cluster)}
	round := &a.Reinvocation
	round.Webhooks.Begin(round.Again, a.Object)
	defer func() { round.Webhooks.End(a.Object) }()
	for _, h := range list {
		in, ok, err := h.concerns(ctx, q.Request)
		if err != nil {
			return err
		}
		if !ok || round.Again && !round.Webhooks.Stale[h.uid] {
			continue
		}
		if err := m.mutate(ctx, q, h, in); err != nil {
			return err
		}
	}
	return nil
}

// mutate lets one webhook change the object.
func (m *Mutating) mutate(ctx context.Context, q *review, h ranked, in match.Matched) error {
	if err := q.settleOwners(); err != nil {
		return err
	}
	documents, err := q.documentsIn(ctx, in.Kind)
	if err != nil {
		return err
	}
	c := &call{h.hook, m.hooks, q.Attributes, in}
	changed := false
	answer, failed := c.answer(ctx, q.ask(in, documents), func(answer *admissionreview.Answer) error {
		var err error
		changed, err = c.patch(ctx, q, documents.Object, answer)
		return err
	})
	c.report(answer)
	round := &q.Reinvocation
	number := 0
	if round.Again {
		number = 1
	}
	if c.a.Audited {
		c.auditMutation(answer, changed, number, h.index)
	}
	if changed {
		q.Changed()
		round.Rewritten = true
		round.Webhooks.Changed()
	}
	if h.again {
		round.Webhooks.Note(h.uid)
	}
	if failed == nil {
		return nil
	}
	if err := c.decide(failed, number, h.index); err != nil {
		return err
	}
	return inTime(ctx)
}

// auditMutation annotates the audit event with the webhook's change or, if bodies are recorded, with its patch.
func (c *call) auditMutation(answer *admissionreview.Answer, changed bool, round, index int) {
	type mutation struct {
		Configuration string `json:"configuration"`
		Webhook       string `json:"webhook"`
		Mutated       bool   `json:"mutated"`
	}
	c.auditJSON("mutation", round, index, mutation{c.configuration, c.name, changed})
	if !c.a.AuditBodies || !changed {
		return
	}
	type patch struct {
		Configuration string          `json:"configuration"`
		Webhook       string          `json:"webhook"`
		Patch         json.RawMessage `json:"patch,omitempty"`
		PatchType     string          `json:"patchType,omitempty"`
	}
	c.auditJSON("patch", round, index, patch{c.configuration, c.name, answer.Patch, string(answer.PatchType)})
}

func (c *call) auditJSON(annotation string, round, index int, value any) {
	if text, err := json.Marshal(value); err == nil {
		c.a.Audit(fmt.Sprintf("%s.webhook.admission.k8s.io/round_%d_index_%d", annotation, round, index), string(text))
	}
}

// settleOwners updates the object's managedFields before the first webhook sees it.
func (q *review) settleOwners() error {
	if q.Own == nil {
		return nil
	}
	own := q.Own
	q.Own = nil
	q.Changed()
	return own()
}

// patch applies the patch of an answer to the object. doc is the document that the webhook has seen.
func (c *call) patch(ctx context.Context, q *review, doc []byte, answer *admissionreview.Answer) (bool, error) {
	if len(answer.Patch) == 0 {
		return false, nil
	}
	patch, err := admissionreview.DecodePatch(answer.Patch)
	if err != nil {
		return false, callFailure(c.name, apierrors.NewServiceUnavailable("error decoding patch in webhook response"),
			"received undecodable patch in webhook response: %w", err)
	}
	if patch.Empty() {
		return false, nil
	}
	if len(doc) == 0 {
		return false, apierrors.NewInternalError(fmt.Errorf("admission webhook %q attempted to modify the object, "+
			"which is not supported for this operation", c.name))
	}
	if answer.PatchType != admissionreviewv1.PatchTypeJSONPatch {
		return false, callFailure(c.name, admissionreview.Denied(c.name, answer.Result), "unsupported patch type %q",
			answer.PatchType)
	}
	after, err := patch.Apply(doc)
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	if err := c.sameKind(after, q.Object); err != nil {
		return false, apierrors.NewInternalError(err)
	}
	if q.Document != nil {
		return q.connectWith(after, doc)
	}
	before := q.Object.DeepCopyObject().(api.Object)
	if _, err := q.Cluster.Read(ctx, after, c.in.Kind, q.Object); err != nil {
		return false, apierrors.NewInternalError(err)
	}
	return !equal.Semantic(before, q.Object), nil
}

// sameKind rejects a document of another kind than the object.
func (c *call) sameKind(doc []byte, obj api.Object) error {
	var seen metav1.TypeMeta
	if err := json.Unmarshal(doc, &seen); err != nil {
		return err
	}
	if seen.Kind == "" && c.cluster.Served(c.in.Kind) != nil && c.cluster.Served(c.in.Kind).Schema != 0 {
		return runtime.NewMissingKindErr(string(doc[:min(len(doc), maxAuditValue)]))
	}
	if seen.APIVersion == "" {
		seen.APIVersion = c.in.Kind.GroupVersion().String()
	}
	if seen.Kind == "" {
		seen.Kind = c.in.Kind.Kind
	}
	if seen.GroupVersionKind() != c.in.Kind {
		return runtime.NewNotRegisteredErrForKind("admission", seen.GroupVersionKind())
	}
	return nil
}

// connectWith replaces the options of a Connect.
func (q *review) connectWith(after, before []byte) (bool, error) {
	var doc map[string]any
	if err := json.Unmarshal(after, &doc); err != nil {
		return false, apierrors.NewInternalError(err)
	}
	q.Document = doc
	return string(after) != string(before), nil
}
