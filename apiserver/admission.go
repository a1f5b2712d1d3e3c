package apiserver

import (
	"context"
	"fmt"
	"strconv"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/admission"
	"github.com/coxswain-dev/coxswain/apiserver/admission/calls"
	"github.com/coxswain-dev/coxswain/apiserver/audit"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/query"
	"github.com/coxswain-dev/coxswain/storage"
)

// called returns a function that records the duration of webhook calls; nil if the request is not audited.
func called(record *audit.Request) func(calls.Type, time.Duration) {
	if record == nil {
		return nil
	}
	return func(kind calls.Type, duration time.Duration) {
		part := audit.MutatingWebhooks
		if kind == calls.Validating {
			part = audit.ValidatingWebhooks
		}
		record.Took(part, duration)
	}
}

// attributes returns the description of a write for admission plugins.
func (s *Server) attributes(wr *write, operation admission.Operation, obj, old api.Object) admission.Attributes {
	r := wr.request
	return admission.Attributes{
		Operation:   operation,
		Resource:    r.res.GroupVersion().WithResource(r.res.Plural),
		Kind:        r.res.GVK(),
		Subresource: r.subresource,
		Namespace:   r.namespace,
		Name:        wr.name,
		Object:      obj,
		Old:         old,
		User:        r.user(),
		DryRun:      wr.isDryRun(),
		Options:     verbOptions(wr, operation),
		Warn:        func(text string) { wr.warnings = append(wr.warnings, text) },
		Audited:     r.audit() != nil,
		AuditBodies: r.audit().Bodies(),
		Called:      called(r.audit()),
		Audit: func(key, value string) {
			if r.audit() != nil {
				r.audit().Annotate(key, value)
				return
			}
			s.Log.Info("audit annotation", "resource", r.res.GroupResource().String(), "object",
				types.NamespacedName{Namespace: r.namespace, Name: wr.name}.String(), key, value)
		},
	}
}

var optionKinds = map[admission.Operation]string{admission.Create: "CreateOptions", admission.Update: "UpdateOptions",
	admission.Delete: "DeleteOptions"}

// verbOptions returns a function that makes the options of a create, an update or a delete for admission policies. It
// is called when a policy reads them.
func verbOptions(wr *write, operation admission.Operation) func() map[string]any {
	if operation == admission.Connect { // its options are the document (admitConnect)
		return nil
	}
	return func() map[string]any {
		kind := optionKinds[operation]
		if operation == admission.Delete && wr.options != nil {
			return deleteOptionsDocument(wr.options)
		}
		if operation == admission.Update && wr.verb == "patch" {
			kind = "PatchOptions"
		}
		doc := map[string]any{"kind": kind, "apiVersion": metav1.SchemeGroupVersion.String()}
		if len(wr.dryRun) > 0 {
			doc["dryRun"] = wr.dryRun
		}
		for _, name := range []string{"fieldManager", "fieldValidation"} {
			if text := wr.query.Get(name); text != "" && kind != "DeleteOptions" {
				doc[name] = text
			}
		}
		if kind == "PatchOptions" && wr.query.Has("force") {
			doc["force"] = query.Flag(wr.query, "force")
		}
		return doc
	}
}

func deleteOptionsDocument(o *metav1.DeleteOptions) map[string]any {
	doc, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		panic(fmt.Sprintf("apiserver: options of a delete: %v", err)) // they are of a known type
	}
	doc["kind"], doc["apiVersion"] = "DeleteOptions", metav1.SchemeGroupVersion.String()
	return doc
}

// admitAlone calls the plugins for a write that passes no other stage of admit.go.
func (s *Server) admitAlone(ctx context.Context, a *admission.Attributes) error {
	if err := s.admission.Mutate(ctx, a); err != nil {
		return err
	}
	return s.admission.Validate(ctx, a)
}

// admitChild calls the plugins for an object that is posted to a subresource of another, such as a Binding.
func (s *Server) admitChild(wr *write, obj api.Object) error {
	a := s.attributes(wr, admission.Create, obj, nil)
	if sub := wr.sub; sub != nil {
		a.Kind = schema.GroupVersionKind{Group: sub.Group, Version: sub.Version, Kind: sub.Kind}
	}
	return s.admitAlone(wr.Context(), &a)
}

// admitScale calls the plugins for a write of an object's Scale.
func (s *Server) admitScale(wr *write, scale, old *autoscalingv1.Scale) error {
	a := s.attributes(wr, admission.Update, scale, old)
	a.Kind = scale.GroupVersionKind()
	return s.admitAlone(wr.Context(), &a)
}

// admitDelete calls the plugins for the deletion of an object. An eviction has been admitted as an Eviction.
func (s *Server) admitDelete(ctx context.Context, wr *write, old api.Object) error {
	if wr.unadmitted || wr.subresource == "eviction" {
		return nil
	}
	a := s.attributes(wr, admission.Delete, nil, old)
	a.Collection = wr.verb == "deletecollection"
	return s.admitAlone(ctx, &a)
}

// withQuota commits a write that replaces old (nil for a create) with obj, together with the writes that charge the
// namespace's quotas for it.
func (s *Server) withQuota(ctx context.Context, wr *write, obj, old api.Object,
	commit func(quotas []storage.Write) (*storage.Object, error),
) (*storage.Object, error) {
	operation := admission.Create
	if old != nil {
		operation = admission.Update
	}
	a := s.attributes(wr, operation, obj, old)
	claim, err := s.admission.Claim(ctx, &a)
	if err != nil {
		return nil, err
	}
	if claim == nil {
		return commit(nil)
	}
	revision := ""
	defer func() { claim.Settle(revision) }()
	writes, err := s.quotaWrites(claim.Quotas)
	if err != nil {
		return nil, err
	}
	written, err := commit(writes)
	if err == nil {
		revision = strconv.FormatInt(written.Revision, 10)
	}
	return written, err
}

// quotaWrites returns the writes that replace the quotas, each at the revision at which it was read.
func (s *Server) quotaWrites(quotas []*corev1.ResourceQuota) ([]storage.Write, error) {
	res := s.Registry.Snapshot().Kind(corev1.SchemeGroupVersion.WithKind("ResourceQuota"))
	writes := make([]storage.Write, len(quotas))
	for i, q := range quotas {
		expect, err := strconv.ParseInt(q.ResourceVersion, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("parse the resourceVersion of quota %s: %w", q.Name, err)
		}
		doc, err := encoding.Encode(res, q)
		if err != nil {
			return nil, err
		}
		key := storage.Key{Collection: res.Collection(), Namespace: q.Namespace, Name: q.Name}
		writes[i] = storage.Write{Op: storage.Update, Key: key, Value: doc, Expect: expect}
	}
	return writes, nil
}
