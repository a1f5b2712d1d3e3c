package apiserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/fieldmanager"
	"github.com/coxswain-dev/coxswain/apiserver/responsewriter"
	"github.com/coxswain-dev/coxswain/apiserver/strategy"
	"github.com/coxswain-dev/coxswain/storage"
)

// getScale answers with the Scale of a stored object.
func (s *Server) getScale(w http.ResponseWriter, r *request, o *storage.Object) error {
	obj, err := encoding.Decode(r.Context(), r.res, o)
	if err != nil {
		return err
	}
	if check := r.res.Scale.Check; check != nil {
		found, err := check(obj)
		if err == nil && !found {
			err = fmt.Errorf("the spec replicas field %q does not exist", "."+strings.Join(r.res.Scale.Path, "."))
		}
		if err != nil {
			return apierrors.NewInternalError(err)
		}
	}
	body, err := r.out.Scale(encoding.ScaleOf(r.res, obj), s.Clock.Now())
	if err != nil {
		return fmt.Errorf("encode a scale: %w", err)
	}
	if r.audit().Responses() {
		if doc, err := asJSON(r.out).Scale(encoding.ScaleOf(r.res, obj), s.Clock.Now()); err == nil {
			r.auditResponse(doc)
		}
	}
	return s.writeBody(w, r.Request, r.out, http.StatusOK, body)
}

// scaleReader reads the Scale that the client sent. current is the stored object's Scale, to which a patch applies.
type scaleReader func(wr *write, current []byte, into *autoscalingv1.Scale) error

// putScale answers a PUT of a Scale.
func (s *Server) putScale(w http.ResponseWriter, r *request) error {
	body, strict, err := s.jsonBody(w, r)
	if err != nil {
		return err
	}
	return s.updateScale(w, r, func(wr *write, _ []byte, into *autoscalingv1.Scale) error {
		warnings, err := decodeInto(r, into.GroupVersionKind(), body, strict, into)
		wr.warnings = append(wr.warnings, warnings...)
		return err
	})
}

// patchScale answers a PATCH of a Scale.
func (s *Server) patchScale(w http.ResponseWriter, r *request, p *sentPatch) error {
	return s.updateScale(w, r, func(wr *write, current []byte, into *autoscalingv1.Scale) error {
		doc, err := p.apply(current)
		if err != nil {
			return err
		}
		return decodePatched(wr, p, into.GroupVersionKind(), doc, into)
	})
}

// updateScale sets the replicas of the object to the replicas of the Scale that read returns.
func (s *Server) updateScale(w http.ResponseWriter, r *request, read scaleReader) error {
	wr := beginWrite(r, nil)
	written, err := s.modify(r.Context(), wr, func(old api.Object) (api.Object, error) {
		doc, err := json.Marshal(encoding.ScaleOf(r.res, old))
		if err != nil {
			return nil, fmt.Errorf("encode a scale: %w", err)
		}
		scale := encoding.NewScale()
		if err := read(wr, doc, scale); err != nil {
			return nil, err
		}
		before := encoding.ScaleOf(r.res, old)
		obj, err := s.scaled(wr, old, scale)
		if err != nil {
			return nil, err
		}
		entries, err := fieldmanager.UpdateScale(fieldmanager.OwnersOfScale(s.Registry.Snapshot(), r.res, old),
			before, scale, s.writer(r))
		if err != nil {
			return nil, err
		}
		obj.SetManagedFields(entries)
		fieldmanager.KeepTimes(obj, old)
		return obj, nil
	})
	if err != nil {
		return err
	}
	responsewriter.AddWarnings(w.Header(), wr.warnings)
	return s.getScale(w, r, written)
}

// scaled returns a copy of old with the replicas of the Scale. The plugins see the Scale, not the object.
func (s *Server) scaled(wr *write, old api.Object, scale *autoscalingv1.Scale) (api.Object, error) {
	if err := checkReplicas(wr, scale); err != nil {
		return nil, err
	}
	if err := checkScale(wr.request, old, scale); err != nil {
		return nil, err
	}
	if err := checkRevision(wr.request, old, scale.ResourceVersion); err != nil {
		return nil, err
	}
	if err := s.admitScale(wr, scale, encoding.ScaleOf(wr.res, old)); err != nil {
		return nil, err
	}
	if err := checkReplicas(wr, scale); err != nil { // a webhook may have changed them
		return nil, err
	}
	if check := wr.res.Scale.Check; check != nil {
		if _, err := check(old); err != nil {
			return nil, err
		}
	}
	obj := old.DeepCopyObject().(api.Object)
	wr.res.Scale.Set(obj, scale.Spec.Replicas)
	strategy.CountGeneration(wr.res, obj, old)
	if wr.res.Check != nil { // a schema may bound the replicas, and rules may name them
		wr.obj, wr.old = obj, old
		return obj, s.validate(wr.Context(), wr)
	}
	return obj, nil
}

func checkReplicas(wr *write, scale *autoscalingv1.Scale) error {
	if scale.Spec.Replicas >= 0 {
		return nil
	}
	return apierrors.NewInvalid(scale.GroupVersionKind().GroupKind(), wr.name, field.ErrorList{field.Invalid(
		field.NewPath("spec", "replicas"), scale.Spec.Replicas, "must be greater than or equal to 0")})
}

// checkScale rejects a Scale of another object.
func checkScale(r *request, old api.Object, scale *autoscalingv1.Scale) error {
	if err := place(r, scale); err != nil {
		return err
	}
	return checkUID(r, scale, old)
}
