package webhook

import (
	"context"
	"sync"

	admissionv1 "k8s.io/api/admissionregistration/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/admission/admissionreview"
	"github.com/coxswain-dev/coxswain/apiserver/admission/calls"
	"github.com/coxswain-dev/coxswain/apiserver/admission/match"
)

// maxParallel limits the concurrent calls for one request.
const maxParallel = 32

// Validating rejects writes that the webhooks of ValidatingWebhookConfigurations deny. It calls all
// webhooks that match a request concurrently, and waits for all of them.
type Validating struct{ *hooks }

// NewValidating returns a plugin that reads the webhooks from the cluster.
func NewValidating(o Options) (*Validating, error) {
	h, err := newHooks(o, "validatingwebhookconfigurations", calls.Validating,
		func(obj api.Object) []admissionv1.MutatingWebhook {
			all := obj.(*admissionv1.ValidatingWebhookConfiguration).Webhooks
			specs := make([]admissionv1.MutatingWebhook, len(all))
			for i := range all {
				w := &all[i]
				specs[i] = admissionv1.MutatingWebhook{Name: w.Name, ClientConfig: w.ClientConfig, Rules: w.Rules,
					FailurePolicy: w.FailurePolicy, MatchPolicy: w.MatchPolicy, NamespaceSelector: w.NamespaceSelector,
					ObjectSelector: w.ObjectSelector, SideEffects: w.SideEffects, TimeoutSeconds: w.TimeoutSeconds,
					AdmissionReviewVersions: w.AdmissionReviewVersions, MatchConditions: w.MatchConditions}
			}
			return specs
		})
	return &Validating{h}, err
}

// inquiry is a call of one webhook: the request to it, and then its answer or the error.
type inquiry struct {
	call
	ask    *admissionreview.Question
	answer *admissionreview.Answer
	err    error
}

// Validate implements Validator.
func (v *Validating) Validate(ctx context.Context, a *match.Attributes) error {
	list, err := v.about(ctx, a)
	if err != nil || len(list) == 0 {
		return err
	}
	inquiries, err := v.inquiries(ctx, a, list)
	if err != nil || len(inquiries) == 0 {
		return err
	}
	if err := inTime(ctx); err != nil {
		return err
	}
	ask(ctx, inquiries)
	var first error
	for i := range inquiries {
		one := &inquiries[i]
		one.report(one.answer)
		if one.err == nil {
			continue
		}
		if err := one.decide(one.err, 0, i); first == nil {
			first = err
		}
	}
	return first
}

// inquiries returns the calls for the webhooks that match a request, with their documents.
func (v *Validating) inquiries(ctx context.Context, a *match.Attributes, list []ranked) ([]inquiry, error) {
	q := &review{Request: match.NewRequest(a, v.cluster)}
	var inquiries []inquiry
	for _, h := range list {
		in, ok, err := h.concerns(ctx, q.Request)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		documents, err := q.documentsIn(ctx, in.Kind)
		if err != nil {
			return nil, err
		}
		inquiries = append(inquiries, inquiry{call: call{h.hook, v.hooks, a, in}, ask: q.ask(in, documents)})
	}
	return inquiries, nil
}

// ask calls all webhooks, and waits for all of them. If several deny the request, the error is the first one's in
// the list.
func ask(ctx context.Context, inquiries []inquiry) {
	var running sync.WaitGroup
	places := make(chan struct{}, maxParallel)
	for i := range inquiries[1:] {
		one := &inquiries[i+1]
		places <- struct{}{}
		running.Go(func() {
			defer func() { <-places }()
			one.answer, one.err = one.call.answer(ctx, one.ask, nil)
		})
	}
	first := &inquiries[0]
	first.answer, first.err = first.call.answer(ctx, first.ask, nil)
	running.Wait()
}
