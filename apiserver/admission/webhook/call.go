package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"

	"github.com/coxswain-dev/coxswain/apiserver/admission/admissionreview"
	"github.com/coxswain-dev/coxswain/apiserver/admission/calls"
	"github.com/coxswain-dev/coxswain/apiserver/admission/match"
	"github.com/coxswain-dev/coxswain/apiserver/webhook"
	"github.com/coxswain-dev/coxswain/apiserver/x509metrics"
)

const (
	// maxAnswer limits an answer, in bytes. A patch that replaces the largest object, in base64, fits.
	maxAnswer = 8 << 20
	// maxAudit limits the annotations of an answer that are recorded, and maxAuditValue the bytes of each.
	maxAudit      = 64
	maxAuditValue = 10 << 10
)

// callError means that there is no usable answer of a webhook: its failurePolicy decides.
type callError struct {
	webhook string
	reason  error
	status  *apierrors.StatusError // for the metrics
}

func (e *callError) Error() string {
	return fmt.Sprintf("failed calling webhook %q: %v", e.webhook, e.reason)
}

func (e *callError) Unwrap() error { return e.reason }

func callFailure(name string, status *apierrors.StatusError, format string, args ...any) *callError {
	return &callError{name, fmt.Errorf(format, args...), status}
}

// rejection means that a webhook denies the request.
type rejection struct{ *apierrors.StatusError }

// review is a request with its objects as JSON in the kinds that webhooks see. The webhooks of a request share it.
type review struct {
	*match.Request
	objects, olds map[schema.GroupVersionKind][]byte
}

// Changed drops the documents of the object. It must be called when the object has been changed.
func (q *review) Changed() {
	q.Request.Changed()
	q.objects = nil
}

// documentsIn returns the request's objects in a kind.
func (q *review) documentsIn(ctx context.Context, kind schema.GroupVersionKind) (admissionreview.Documents, error) {
	found := false
	if q.olds == nil {
		q.olds = map[schema.GroupVersionKind][]byte{}
	}
	if q.objects == nil {
		q.objects = map[schema.GroupVersionKind][]byte{}
	}
	var d admissionreview.Documents
	var err error
	if d.Object, found = q.objects[kind]; !found {
		switch {
		case q.Document != nil:
			d.Object, err = json.Marshal(q.Document)
		case q.Object != nil:
			d.Object, err = q.Cluster.Encode(ctx, q.Object, kind)
		}
		q.objects[kind] = d.Object
	}
	if d.OldObject, found = q.olds[kind]; !found && q.Old != nil && err == nil {
		d.OldObject, err = q.Cluster.Encode(ctx, q.Old, kind)
		q.olds[kind] = d.OldObject
	}
	if q.Options != nil && err == nil {
		d.Options, err = json.Marshal(q.Options())
	}
	if err != nil {
		return d, apierrors.NewInternalError(err)
	}
	return d, nil
}

// ask returns the AdmissionReview request for a webhook.
func (q *review) ask(in match.Matched, d admissionreview.Documents) *admissionreview.Question {
	user := authenticationv1.UserInfo{Username: q.User.Name, UID: q.User.UID, Groups: q.User.Groups}
	for key, values := range q.User.Extra {
		if user.Extra == nil {
			user.Extra = map[string]authenticationv1.ExtraValue{}
		}
		user.Extra[key] = values
	}
	r := &admissionreview.Question{
		UID: uuid.NewUUID(), Kind: metav1.GroupVersionKind(in.Kind), Resource: metav1.GroupVersionResource(in.Resource),
		Subresource: q.Subresource, RequestKind: metav1.GroupVersionKind(q.Kind),
		RequestResource: metav1.GroupVersionResource(q.Resource), RequestSubresource: q.Subresource,
		Name: q.Name, Namespace: q.Within(), Operation: string(q.Operation), User: user, DryRun: q.DryRun, Documents: d,
	}
	if q.Collection {
		r.Name = ""
	}
	return r
}

// call is one call of a webhook.
type call struct {
	*hook
	*hooks
	a  *match.Attributes
	in match.Matched
}

// answer calls the webhook, and records the result. The error is a *callError, a *rejection, or one of the server
// itself. use, if not nil, uses the answer, and returns an error if it is not usable after all.
func (c *call) answer(ctx context.Context, ask *admissionreview.Question,
	use func(*admissionreview.Answer) error) (answer *admissionreview.Answer, err error) {
	start := time.Now()
	defer func() {
		if fault := recover(); fault != nil {
			err = c.panicked(fault)
		}
		c.count(ctx, start, err)
	}()
	if answer, err = c.ask(ctx, ask); err != nil {
		return nil, err
	}
	if !answer.Allowed {
		return answer, &rejection{admissionreview.Denied(c.name, answer.Result)}
	}
	if use != nil {
		err = use(answer)
	}
	return answer, err
}

// panicked returns the failure of a call that panicked. A panic must not end the server.
func (c *call) panicked(fault any) error {
	return callFailure(c.name, apierrors.NewInternalError(errors.New("panic")), "the call has panicked: %v", fault)
}

// ask sends the review and checks the answer.
func (c *call) ask(ctx context.Context, ask *admissionreview.Question) (*admissionreview.Answer, error) {
	if c.a.DryRun && c.sideEffects != nil {
		return nil, c.sideEffects
	}
	if c.versionErr != nil {
		return nil, callFailure(c.name, apierrors.NewBadRequest("error creating admission objects"),
			"could not create admission objects: %w", c.versionErr)
	}
	body, err := ask.Encode(c.version)
	if err != nil {
		return nil, callFailure(c.name, apierrors.NewBadRequest("error creating admission objects"),
			"could not create admission objects: %w", err)
	}
	review, err := c.send(ctx, body)
	if err != nil {
		return nil, c.sendFailure(err)
	}
	answer, err := review.Check(ask.UID, c.of == calls.Mutating)
	if err != nil {
		return nil, callFailure(c.name, apierrors.NewServiceUnavailable("error validating webhook response"),
			"received invalid webhook response: %w", err)
	}
	return answer, nil
}

// sendFailure returns the failure of a call without a review as its result.
func (c *call) sendFailure(err error) error {
	var config *webhook.ConfigError
	if errors.As(err, &config) {
		return callFailure(c.name, apierrors.NewInternalError(err), "could not get REST client: %w", err)
	}
	status, ok := err.(*apierrors.StatusError)
	if !ok {
		status = apierrors.NewServiceUnavailable("error calling webhook")
	}
	return callFailure(c.name, status, "failed to call webhook: %w", err)
}

// send sends the review, and passes the remaining time in the query.
func (c *call) send(ctx context.Context, body []byte) (*admissionreview.Review, error) {
	if c.client == nil {
		return nil, errors.New("this server calls no webhooks")
	}
	if c.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.timeout)
		defer cancel()
	}
	target := c.target
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		if rounded := left.Truncate(time.Second); rounded != left {
			left = rounded + time.Second
		}
		if left > 0 {
			target.Query = "timeout=" + left.String()
		}
	}
	got, err := c.client.Ask(ctx, target, body, maxAnswer)
	if err != nil {
		if key, reason := x509metrics.Annotation(err, target.Host()); key != "" {
			c.a.Audit(key, reason)
		}
		return nil, worded(err, target)
	}
	return admissionreview.Decode(c.version,
		admissionreview.Response{Code: got.Code, ContentType: got.ContentType, Body: got.Body})
}

// worded returns the error of a call with the text of Kubernetes' client.
func worded(err error, target webhook.Target) error {
	var early *webhook.ReadError
	if errors.As(err, &early) {
		return fmt.Errorf("unexpected error when reading response body. Please retry. Original error: %w", early.Err)
	}
	var unresolved *webhook.ResolveError
	if !errors.As(err, &unresolved) {
		return err
	}
	reason := unresolved.Err
	if apierrors.IsNotFound(reason) {
		reason = fmt.Errorf("service %q not found", target.Service.Name)
	}
	return &url.Error{Op: "Post", URL: target.Name(), Err: reason}
}

// count records the result of a call.
func (c *call) count(ctx context.Context, start time.Time, err error) {
	done := calls.Call{Configuration: c.configuration, Webhook: c.name, Type: c.of, Operation: string(c.a.Operation),
		At: start, Took: time.Since(start), Outcome: calls.Allowed, Code: 200}
	var failed *callError
	var rejected *rejection
	switch {
	case err == nil:
	case errors.As(err, &failed):
		done.Outcome, done.Message, done.Rejected = calls.Failed, failed.Error(), !c.ignores
		done.Code, done.ErrorType = int(failed.status.ErrStatus.Code), calls.CallingWebhookError
		done.Canceled = errors.Is(err, context.Canceled)
	case errors.As(err, &rejected):
		done.Outcome, done.Message, done.Rejected = calls.Denied, rejected.Error(), true
		done.Code, done.ErrorType = int(rejected.ErrStatus.Code), calls.NoError
	default:
		done.Outcome, done.Message, done.Rejected = calls.Failed, err.Error(), true
		done.Code, done.ErrorType = 0, calls.APIServerInternalError
	}
	c.log.Done(done)
	if c.a.Called != nil {
		c.a.Called(c.of, done.Took)
	}
}

// report passes on an answer's audit annotations and warnings. The answer may be nil.
func (c *call) report(answer *admissionreview.Answer) {
	if answer == nil {
		return
	}
	count := 0
	for key, value := range answer.AuditAnnotations {
		key = c.name + "/" + key
		if strings.Count(key, "/") != 1 || len(utilvalidation.IsQualifiedName(key)) > 0 {
			continue
		}
		if count++; count > maxAudit {
			break
		}
		c.a.Audit(key, value[:min(len(value), maxAuditValue)])
	}
	for _, text := range answer.Warnings {
		c.a.Warn(text)
	}
}

// decide returns the error that ends the request after a failed call; nil if the failure is ignored. index is the
// webhook's index among the called ones.
func (c *call) decide(err error, round, index int) error {
	var failed *callError
	if !errors.As(err, &failed) {
		var rejected *rejection
		if errors.As(err, &rejected) {
			return rejected.StatusError
		}
		return err
	}
	if !c.ignores {
		return apierrors.NewInternalError(err)
	}
	if !errors.Is(err, context.Canceled) {
		prefix := "failed-open.validating.webhook.admission.k8s.io/"
		if c.of == calls.Mutating {
			prefix = "failed-open.mutation.webhook.admission.k8s.io/"
		}
		c.a.Audit(fmt.Sprintf("%sround_%d_index_%d", prefix, round, index), c.name)
	}
	return nil
}

// inTime returns an error if the request has ended: then no webhook need be called.
func inTime(ctx context.Context) error {
	if ctx.Err() != nil {
		return apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
	}
	return nil
}
