package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/yaml"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/fieldmanager"
	"github.com/coxswain-dev/coxswain/apiserver/query"
	"github.com/coxswain-dev/coxswain/apiserver/responsewriter"
	"github.com/coxswain-dev/coxswain/apiserver/status"
	"github.com/coxswain-dev/coxswain/internal/limits"
	"github.com/coxswain-dev/coxswain/storage"
)

// Server-side apply: the patch contains the fields that its manager wants to determine. Fields that the manager no
// longer mentions are removed, unless another manager owns them as well. Fields that another manager has set to other
// values are conflicts, unless the apply is forced. Kubernetes' own library merges, and computes the ownership of
// managers that apply.
// https://kubernetes.io/docs/reference/using-api/server-side-apply/

// applyAttempts limits the attempts to apply an object that other clients create and delete meanwhile.
const applyAttempts = 5

// apply answers a PATCH of an apply configuration.
func (s *Server) apply(w http.ResponseWriter, r *request, kind types.PatchType) error {
	body, err := readBody(w, r)
	if err != nil {
		return err
	}
	if kind == types.ApplyCBORPatchType { // JSON is a part of YAML
		if body, err = encoding.JSONOfCBOR(body); err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
	}
	config, warnings, err := applyConfiguration(r, body)
	if err != nil {
		return err
	}
	wr := beginWrite(r, warnings)
	wr.applied = true
	if r.subresource == "scale" {
		return s.applyScale(w, wr, config)
	}
	written, code, err := s.applyObject(r.Context(), wr, config)
	if err != nil {
		return err
	}
	return s.writeWritten(w, wr, code, written)
}

// applyConfiguration reads the body: YAML, which includes JSON.
func applyConfiguration(r *request, body []byte) (config *unstructured.Unstructured, warnings []string, err error) {
	if body, err = limits.ExpandYAML(body); err != nil {
		return nil, nil, apierrors.NewBadRequest("error decoding patch: " + err.Error())
	}
	doc, err := yaml.YAMLToJSON(body)
	if err != nil {
		return nil, nil, apierrors.NewBadRequest("error decoding patch: " + err.Error())
	}
	if err := encoding.CheckDepth(doc); err != nil {
		return nil, nil, err
	}
	if err := encoding.CheckSentQuantities(doc, r.res.New()); err != nil {
		if invalid := encoding.Invalid(err, r.res.GVK(), r.name); invalid != nil {
			return nil, nil, invalid
		}
		return nil, nil, apierrors.NewBadRequest("error decoding patch: " + err.Error())
	}
	config = &unstructured.Unstructured{}
	if err := encoding.Unmarshal(doc, &config.Object); err != nil {
		return nil, nil, apierrors.NewBadRequest("error decoding patch: " + err.Error())
	}
	r.auditBody(doc)
	if err := fieldmanager.CheckWidth(config.Object); err != nil {
		return nil, nil, apierrors.NewBadRequest("error decoding patch: " + err.Error())
	}
	if r.query.Get("fieldValidation") == metav1.FieldValidationIgnore {
		return config, warnings, nil
	}
	if _, err := yaml.YAMLToJSONStrict(body); err != nil {
		var refused []error
		if warnings, refused = query.StrictErrors(r.query, encoding.YAMLErrors(err)); len(refused) > 0 {
			return nil, nil, apierrors.NewBadRequest("error strict decoding patch: " + err.Error())
		}
	}
	return config, warnings, nil
}

// applyObject applies to the stored object, or creates one if there is none.
func (s *Server) applyObject(ctx context.Context, wr *write, config *unstructured.Unstructured) (
	*storage.Object, int, error) {
	for attempt := 1; ; attempt++ {
		written, err := s.modify(ctx, wr, func(old api.Object) (api.Object, error) {
			return s.applyTo(wr, old, config)
		})
		if !errors.Is(err, storage.ErrNotFound) || wr.subresource != "" {
			return written, http.StatusOK, err
		}
		written, err = s.applyNew(ctx, wr, config)
		if !errors.Is(err, storage.ErrExists) || attempt == applyAttempts {
			return written, http.StatusCreated, err
		}
	}
}

// applyTo makes the object that replaces old.
func (s *Server) applyTo(wr *write, old api.Object, config *unstructured.Unstructured) (api.Object, error) {
	obj, err := s.merge(wr, old, config)
	if err != nil {
		return nil, err
	}
	if err := place(wr.request, obj); err != nil {
		return nil, err
	}
	obj, err = s.replace(wr.Context(), wr, obj, old, obj.GetResourceVersion())
	if err != nil {
		return nil, err
	}
	fieldmanager.KeepTimes(obj, old)
	return obj, nil
}

// applyNew creates an object from the configuration alone.
func (s *Server) applyNew(ctx context.Context, wr *write, config *unstructured.Unstructured) (*storage.Object, error) {
	if !wr.creates() {
		return nil, storage.ErrNotFound
	}
	a := attributesOf(wr.request)
	a.Verb = "create"
	if err := s.authorize(ctx, a); err != nil {
		return nil, err
	}
	obj, err := s.merge(wr, fieldmanager.Fresh(encoding.Own(wr.res)), config)
	if err != nil {
		return nil, err
	}
	if uid := obj.GetUID(); uid != "" {
		return nil, apierrors.NewConflict(wr.res.GroupResource(), wr.name,
			fmt.Errorf("uid mismatch: the provided object specified uid %s, and no existing object was found", uid))
	}
	return s.createObject(ctx, wr, obj)
}

// merge applies a configuration to an object. The result has its managedFields.
func (s *Server) merge(wr *write, old api.Object, config *unstructured.Unstructured) (api.Object, error) {
	manager, err := s.appliers.Of(wr.Context(), s.Registry, wr.res, wr.subresource)
	if err != nil {
		return nil, err
	}
	merged, err := manager.Apply(old, config.DeepCopy(), wr.query.Get("fieldManager"), wr.query.Get("force") != "" &&
		query.Flag(wr.query, "force"))
	var answer apierrors.APIStatus
	switch {
	case errors.As(err, &answer):
		return nil, err
	case err != nil && s.isUnfit(manager, wr, old, config):
		return nil, asBadPatch(wr.request, err)
	case err != nil:
		return nil, asApplyError(wr.request, err)
	}
	obj := merged.(api.Object)
	obj.SetManagedFields(fieldmanager.Stamp(obj.GetManagedFields(), old.GetManagedFields(), s.now()))
	return obj, nil
}

// isUnfit reports whether a configuration cannot be applied to an empty object either, because it has unknown fields,
// values of wrong types, or duplicate elements. That is the client's fault, although kube-apiserver answers 500.
func (s *Server) isUnfit(manager *managedfields.FieldManager, wr *write, old api.Object,
	config *unstructured.Unstructured) bool {
	var err error
	scale, isScale := old.(*autoscalingv1.Scale)
	switch {
	case isScale:
		_, err = manager.Apply(&autoscalingv1.Scale{TypeMeta: scale.TypeMeta}, config.DeepCopy(), "any", true)
	case wr.res.WebhookConverted: // the other server may be at fault
		_, err = s.appliers.Types(s.Registry).ObjectToTyped(config)
	default:
		_, err = manager.Apply(fieldmanager.Fresh(encoding.Own(wr.res)), config.DeepCopy(), "any", true)
	}
	return err != nil
}

// asApplyError returns the answer if the library cannot apply to the stored object: an error without a reason, as in
// kube-apiserver.
func asApplyError(r *request, err error) error {
	if r.confidential() {
		return asBadPatch(r, err)
	}
	return status.Error(http.StatusInternalServerError, metav1.StatusReasonUnknown, err.Error())
}

// checkScaleFields rejects unknown fields and values of wrong types, since a Scale is applied without a schema.
func checkScaleFields(config *unstructured.Unstructured) error {
	if config.GetKind() != "Scale" {
		return nil // rejected by its kind when it is applied
	}
	doc, err := config.MarshalJSON()
	if err != nil {
		return apierrors.NewBadRequest("error decoding patch: " + err.Error())
	}
	unknown, err := encoding.UnmarshalStrict(doc, &autoscalingv1.Scale{})
	if err == nil && len(unknown) > 0 {
		err = errors.New(encoding.JoinErrors(unknown))
	}
	if err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("failed to create typed patch object: %v", err))
	}
	return nil
}

// applyScale applies a Scale. The owners of its one field are the owners of the object's replicas.
func (s *Server) applyScale(w http.ResponseWriter, wr *write, config *unstructured.Unstructured) error {
	if err := checkScaleFields(config); err != nil {
		return err
	}
	written, err := s.modify(wr.Context(), wr, func(old api.Object) (api.Object, error) {
		owners := fieldmanager.OwnersOfScale(s.Registry.Snapshot(), wr.res, old)
		live := encoding.ScaleOf(wr.res, old)
		var err error
		if live.ManagedFields, err = owners.ToSubresource(); err != nil {
			return nil, asApplyError(wr.request, err)
		}
		merged, err := s.merge(wr, live, config)
		if err != nil {
			return nil, err
		}
		obj, err := s.scaled(wr, old, merged.(*autoscalingv1.Scale))
		if err != nil {
			return nil, err
		}
		entries, err := fieldmanager.OwnersByScale(owners, merged.GetManagedFields())
		if err != nil {
			return nil, asApplyError(wr.request, err)
		}
		obj.SetManagedFields(entries)
		fieldmanager.KeepTimes(obj, old)
		return obj, nil
	})
	if err != nil {
		return err
	}
	responsewriter.AddWarnings(w.Header(), wr.warnings)
	return s.getScale(w, wr.request, written)
}
