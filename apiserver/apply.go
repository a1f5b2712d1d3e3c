package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/yaml"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/bounds"
	"github.com/coxswain-dev/coxswain/storage"
)

// Server-side apply: the patch is the part of the object that its manager wants to decide
// about. What the manager no longer mentions goes away, unless someone else owns it as
// well; what someone else has decided otherwise is a conflict, unless it is forced. The
// merge itself, and the bookkeeping of those who apply, are Kubernetes' own library's.
// https://kubernetes.io/docs/reference/using-api/server-side-apply/

// applyAttempts is how often an object that comes and goes meanwhile is applied.
const applyAttempts = 5

// apply answers a PATCH of an apply configuration.
func (s *Server) apply(w http.ResponseWriter, r *request, kind types.PatchType) error {
	body, err := readBody(w, r)
	if err != nil {
		return err
	}
	if kind == types.ApplyCBORPatchType { // JSON is a part of YAML
		if body, err = jsonOfCBOR(body); err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
	}
	config, err := applyConfiguration(r, body)
	if err != nil {
		return err
	}
	r.applies = true
	if r.subresource == "scale" {
		return s.applyScale(w, r, config)
	}
	written, code, err := s.applyObject(r.Context(), r, config)
	if err != nil {
		return err
	}
	return s.writeObject(w, r, code, written)
}

// applyConfiguration reads the body: YAML, of which JSON is a part.
func applyConfiguration(r *request, body []byte) (*unstructured.Unstructured, error) {
	body, err := bounds.ExpandYAML(body)
	if err != nil {
		return nil, apierrors.NewBadRequest("error decoding patch: " + err.Error())
	}
	doc, err := yaml.YAMLToJSON(body)
	if err != nil {
		return nil, apierrors.NewBadRequest("error decoding patch: " + err.Error())
	}
	if err := checkDepth(doc); err != nil {
		return nil, err
	}
	if err := checkQuantities(doc, goType(r.res.New())); err != nil {
		return nil, apierrors.NewBadRequest("error decoding patch: " + err.Error())
	}
	config := &unstructured.Unstructured{}
	if err := unmarshal(doc, &config.Object); err != nil {
		return nil, apierrors.NewBadRequest("error decoding patch: " + err.Error())
	}
	if path, n := tooWide(config.Object); n > 0 {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %s: server-side apply takes at most %d entries, not %d",
			strings.TrimPrefix(path, "."), maxApplied, n))
	}
	if r.query.Get("fieldValidation") == metav1.FieldValidationIgnore {
		return config, nil
	}
	if _, err := yaml.YAMLToJSONStrict(body); err != nil {
		if len(r.takeStrictErrors(yamlErrors(err))) > 0 {
			return nil, apierrors.NewBadRequest("error strict decoding patch: " + err.Error())
		}
	}
	return config, nil
}

// maxApplied is how many members an object, or elements a list, may have in an applied configuration: putting together which
// fields it has takes time with their square.
const maxApplied = 10_000

// tooWide finds an object or a list that is too long to apply: where it is and its length, which is 0 if there is none.
func tooWide(value any) (path string, n int) {
	switch v := value.(type) {
	case map[string]any:
		if len(v) > maxApplied {
			return "", len(v)
		}
		for key, member := range v {
			if path, n := tooWide(member); n > 0 {
				return "." + key + path, n
			}
		}
	case []any:
		if len(v) > maxApplied {
			return "", len(v)
		}
		for i, element := range v {
			if path, n := tooWide(element); n > 0 {
				return fmt.Sprintf("[%d]%s", i, path), n
			}
		}
	}
	return "", 0
}

// applyObject applies to the object there is, or creates it.
func (s *Server) applyObject(ctx context.Context, r *request, config *unstructured.Unstructured) (*storage.Object, int, error) {
	warnings := r.warnings
	for attempt := 1; ; attempt++ {
		written, err := s.modify(ctx, r, func(old api.Object) (api.Object, error) {
			r.warnings = warnings
			return s.applyTo(r, old, config)
		})
		if !errors.Is(err, storage.ErrNotFound) || r.subresource != "" {
			return written, http.StatusOK, err
		}
		r.warnings = warnings
		written, err = s.applyNew(ctx, r, config)
		if !errors.Is(err, storage.ErrExists) || attempt == applyAttempts {
			return written, http.StatusCreated, err
		}
	}
}

// applyTo makes the object that takes old's place.
func (s *Server) applyTo(r *request, old api.Object, config *unstructured.Unstructured) (api.Object, error) {
	obj, err := s.merge(r, old, config)
	if err != nil {
		return nil, err
	}
	if err := place(r, obj); err != nil {
		return nil, err
	}
	obj, err = s.replace(r, obj, old, obj.GetResourceVersion())
	if err != nil {
		return nil, err
	}
	keepTimes(obj, old)
	return obj, nil
}

// applyNew creates the object of which the configuration is all that is known.
func (s *Server) applyNew(ctx context.Context, r *request, config *unstructured.Unstructured) (*storage.Object, error) {
	if !r.creates() {
		return nil, storage.ErrNotFound
	}
	a := attributesOf(r)
	a.Verb = "create"
	if err := s.authorize(ctx, a); err != nil {
		return nil, err
	}
	obj, err := s.merge(r, fresh(r.res.Stored()), config)
	if err != nil {
		return nil, err
	}
	if uid := obj.GetUID(); uid != "" {
		return nil, apierrors.NewConflict(r.res.GroupResource(), r.name,
			fmt.Errorf("uid mismatch: the provided object specified uid %s, and no existing object was found", uid))
	}
	return s.createObject(ctx, r, obj)
}

// merge applies a configuration to an object. The result has its managedFields.
func (s *Server) merge(r *request, old api.Object, config *unstructured.Unstructured) (api.Object, error) {
	manager, err := s.appliers.of(s.Registry, r.res, r.subresource)
	if err != nil {
		return nil, err
	}
	merged, err := manager.Apply(old, config.DeepCopy(), r.query.Get("fieldManager"), r.query.Get("force") != "" && flag(r.query, "force"))
	if err != nil {
		return nil, asApplyError(err)
	}
	obj := merged.(api.Object)
	obj.SetManagedFields(s.stamp(obj.GetManagedFields(), old.GetManagedFields()))
	return obj, nil
}

// asApplyError is for a configuration that does not fit the kind's schema: kube-apiserver
// answers that with an error of no reason.
func asApplyError(err error) error {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return err
	}
	return statusError(http.StatusInternalServerError, metav1.StatusReasonUnknown, err.Error())
}

// stamp gives the time by the server's clock to entries that the library has just stamped
// by its own.
func (s *Server) stamp(entries, before []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	now := s.now()
	for i := range entries {
		e := &entries[i]
		e.FieldsV1 = &metav1.FieldsV1{Raw: htmlSafe(e.FieldsV1.GetRawBytes())}
		known := false
		for _, b := range before {
			known = known || sameManager(b, *e) && b.Time.Equal(e.Time)
		}
		if !known && e.Time != nil {
			e.Time = &now
		}
	}
	sortEntries(entries)
	return entries
}

// keepTimes makes an apply that changes nothing but times change nothing at all.
func keepTimes(obj, old api.Object) {
	entries := obj.GetManagedFields()
	if !sameEntries(entries, old.GetManagedFields(), false) {
		return
	}
	obj.SetManagedFields(old.GetManagedFields())
	if !equality.Semantic.DeepEqual(obj, old) {
		obj.SetManagedFields(entries)
	}
}

// applyScale applies a Scale. Its one field is the object's replicas, and so are its owners.
func (s *Server) applyScale(w http.ResponseWriter, r *request, config *unstructured.Unstructured) error {
	paths := managedfields.ResourcePathMappings{r.res.GroupVersion().String(): fieldpath.MakePathOrDie("spec", "replicas")}
	written, err := s.modify(r.Context(), r, func(old api.Object) (api.Object, error) {
		owners := managedfields.NewScaleHandler(old.GetManagedFields(), r.res.GroupVersion(), paths)
		live := scaleOf(r.res, old)
		var err error
		if live.ManagedFields, err = owners.ToSubresource(); err != nil {
			return nil, asApplyError(err)
		}
		merged, err := s.merge(r, live, config)
		if err != nil {
			return nil, err
		}
		obj, err := s.scaled(r, old, merged.(*autoscalingv1.Scale))
		if err != nil {
			return nil, err
		}
		entries, err := owners.ToParent(merged.GetManagedFields())
		if err != nil {
			return nil, asApplyError(err)
		}
		obj.SetManagedFields(s.stampNew(entries))
		keepTimes(obj, old)
		return obj, nil
	})
	if err != nil {
		return err
	}
	return s.getScale(w, r, written)
}

// stampNew gives a time to entries that have none.
func (s *Server) stampNew(entries []metav1.ManagedFieldsEntry) []metav1.ManagedFieldsEntry {
	now := s.now()
	for i := range entries {
		if entries[i].Time == nil {
			entries[i].Time = &now
		}
	}
	sortEntries(entries)
	return entries
}
