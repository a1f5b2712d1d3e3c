// Package conversion converts custom resources with the webhooks in their definitions. It sends the objects of one
// version in a ConversionReview, validates the answer (review.go) and returns the objects of the other version. Its
// error messages are kube-apiserver's.
// https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definition-versioning/
package conversion

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/coxswain-dev/coxswain/api/customresource"
	"github.com/coxswain-dev/coxswain/apiserver/status"
	"github.com/coxswain-dev/coxswain/apiserver/webhook"
)

// An answer may be as long as maxAnswer bytes or maxGrowth times the request, if that is longer.
const (
	maxGrowth = 2
	maxAnswer = 8 << 20
)

// Webhooks converts objects with webhooks. It is safe for concurrent use.
type Webhooks struct {
	client  *webhook.Client
	metrics *metrics
}

var _ customresource.Converter = (*Webhooks)(nil)

// New returns Webhooks that uses the given client.
func New(client *webhook.Client) *Webhooks { return &Webhooks{client: client, metrics: newMetrics()} }

// Convert implements customresource.Converter. Its errors can be returned to the client.
func (w *Webhooks) Convert(ctx context.Context, objs []*customresource.Object, to *customresource.Version) (
	[]*customresource.Object, error) {
	began := time.Now()
	converted, err := w.convert(ctx, objs, to)
	w.metrics.observe(labelsOf(objs[0], to), time.Since(began), err)
	if err != nil {
		return nil, status.Error(http.StatusInternalServerError, metav1.StatusReasonUnknown, err.Error())
	}
	return converted, nil
}

// failure is an error with its type for the metrics.
type failure struct {
	kind  string
	words string
}

func (f *failure) Error() string { return f.words }

func fail(kind, format string, args ...any) error {
	return &failure{kind, fmt.Sprintf(format, args...)}
}

func (w *Webhooks) convert(ctx context.Context, objs []*customresource.Object, to *customresource.Version) (
	[]*customresource.Object, error) {
	hook := to.Definition().Spec.Conversion.Webhook
	if hook == nil {
		return nil, errors.New("the definition names no conversion webhook")
	}
	version := reviewVersion(hook.ConversionReviewVersions)
	if version == "" {
		return nil, errors.New("no supported conversion review versions")
	}
	objects := subject(objs, to)
	uid := uuid.NewUUID()
	question, err := encodeReview(version, uid, objs, to)
	if err != nil {
		return nil, err
	}
	doc, err := w.client.Call(ctx, target(hook.ClientConfig), question, max(maxGrowth*len(question), maxAnswer))
	if err != nil {
		return nil, fail(callFailure, "conversion webhook for %s failed: %v", objects, err)
	}
	answered, err := readReview(doc, version, uid)
	var malformed *failure
	switch {
	case errors.As(err, &malformed):
		return nil, fail(malformed.kind, "conversion webhook for %s failed: %v", objects, err)
	case answered.n != len(objs) || answered.n > maxDocuments:
		return nil, fail(partialFailure, "conversion webhook for %s returned %d objects, expected %d", objects,
			answered.n, len(objs))
	}
	converted := make([]*customresource.Object, len(objs))
	for i, doc := range answered.first {
		if converted[i], err = read(doc, objs[i], to); err != nil {
			return nil, fail(invalidFailure, "conversion webhook for %s returned %s: %v", objects,
				blame(err, i, len(objs) > 1), err)
		}
	}
	return converted, nil
}

// subject returns the name for the objects in errors: their kind, or the list kind in the requested version if
// there are several.
func subject(objs []*customresource.Object, to *customresource.Version) string {
	if len(objs) == 1 {
		return objs[0].GroupVersionKind().String()
	}
	kind := objs[0].GroupVersionKind()
	kind.Version, kind.Kind = to.Name(), to.Definition().Status.AcceptedNames.ListKind
	return kind.String()
}

// reviewVersion returns the first version in the list that this server supports, or "".
func reviewVersion(versions []string) string {
	i := slices.IndexFunc(versions, func(v string) bool { return v == "v1" || v == "v1beta1" })
	if i < 0 {
		return ""
	}
	return versions[i]
}

// target returns the webhook to call for a client configuration.
func target(c *apiextensionsv1.WebhookClientConfig) webhook.Target {
	var to webhook.Target
	if c == nil {
		return to
	}
	if len(bytes.TrimSpace(c.CABundle)) > 0 {
		to.CABundle = c.CABundle
	}
	if c.URL != nil {
		to.URL = *c.URL
	}
	if s := c.Service; s != nil {
		to.Service = &webhook.Service{Namespace: s.Namespace, Name: s.Name}
		if s.Path != nil {
			to.Service.Path = *s.Path
		}
		if s.Port != nil {
			to.Service.Port = *s.Port
		}
	}
	return to
}

// request is the request in a ConversionReview.
type request struct {
	UID               types.UID                `json:"uid"`
	DesiredAPIVersion string                   `json:"desiredAPIVersion"`
	Objects           []*customresource.Object `json:"objects"`
}

// encodeReview encodes a ConversionReview. v1 and v1beta1 have the same fields.
func encodeReview(version string, uid types.UID, objs []*customresource.Object, to *customresource.Version) (
	[]byte, error) {
	doc, err := json.Marshal(struct {
		metav1.TypeMeta
		Request request `json:"request"`
	}{
		metav1.TypeMeta{Kind: "ConversionReview", APIVersion: apiextensionsv1.GroupName + "/" + version},
		request{uid, to.APIVersion(), objs},
	})
	if err != nil {
		return nil, fmt.Errorf("encoding a ConversionReview: %w", err)
	}
	return doc, nil
}
