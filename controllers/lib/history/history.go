// Package history keeps the ControllerRevisions of StatefulSets and DaemonSets: one for each pod template that
// the owner has had, numbered, so that a client can roll back to it.
//
// "kubectl rollout undo" needs no code here: it writes an earlier template into the owner, and the revision
// with that template gets the next number.
package history

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

// History reads and writes revisions. It is safe for concurrent use.
type History struct {
	client   func() kubernetes.Interface
	informer cache.SharedIndexInformer
	expected *controller.VersionExpectations
}

// New returns a History. It adds the versions of its writes to expected, by the owner's key.
func New(client func() kubernetes.Interface, factory informers.SharedInformerFactory,
	expected *controller.VersionExpectations) (*History, error) {
	informer := factory.Apps().V1().ControllerRevisions().Informer()
	return &History{client: client, informer: informer, expected: expected}, controller.IndexByController(informer)
}

// Watch makes c wait for the informer of revisions, and enqueues the owner of a revision that changes.
func (h *History) Watch(c *controller.Controller, kind schema.GroupVersionKind) {
	owners := &controller.Dependents{Controller: c, Kind: kind}
	wake := func(r *appsv1.ControllerRevision) { owners.Changed(r) }
	controller.Watch(c, h.informer, controller.Handler[*appsv1.ControllerRevision]{
		Add: wake, Delete: wake, Update: func(_, r *appsv1.ControllerRevision) { wake(r) },
	})
}

// Owner is an object with a pod template.
type Owner struct {
	Object   metav1.Object
	Kind     schema.GroupVersionKind
	Selector labels.Selector
	Template *corev1.PodTemplateSpec
	// Collisions counts hashes that another template had already. Sync may increment it; the caller then stores
	// it.
	Collisions *int32
	// HashLabel is the label of revisions that holds the hash.
	HashLabel string
	// Live reads the owner from the API server, bypassing the cache.
	Live func(ctx context.Context) (metav1.Object, error)
}

// Sync returns the revision of the owner's present template, which it creates or renumbers if necessary, and
// all revisions of the owner, oldest first.
func (h *History) Sync(ctx context.Context,
	o *Owner) (update *appsv1.ControllerRevision, all []*appsv1.ControllerRevision, err error) {
	if all, err = h.claim(ctx, o); err != nil {
		return nil, nil, err
	}
	data := snapshot(o.Template)
	next := int64(1)
	for _, r := range all {
		next = max(next, r.Revision+1)
		if same(r.Data.Raw, data) {
			update = r // the newest, if several have the template
		}
	}
	switch {
	case update == nil:
		update, err = h.create(ctx, o, data, next)
		if err == nil {
			all = append(all, update)
		}
	case update.Revision < next-1:
		update, err = h.renumber(ctx, o, update, next)
	}
	if err != nil {
		return nil, nil, err
	}
	for i, r := range all {
		if r.UID == update.UID {
			all[i] = update
		}
	}
	slices.SortFunc(all, older)
	return update, all, nil
}

func older(a, b *appsv1.ControllerRevision) int {
	return cmp.Or(cmp.Compare(a.Revision, b.Revision), a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		cmp.Compare(a.Name, b.Name))
}

func (h *History) claim(ctx context.Context, o *Owner) ([]*appsv1.ControllerRevision, error) {
	found, err := controller.OwnedOrOrphaned[*appsv1.ControllerRevision](h.informer, o.Object)
	if err != nil {
		return nil, err
	}
	claimed, err := controller.Claim(ctx, controller.Claimer{
		Owner: o.Object, Kind: o.Kind, Selector: o.Selector, Live: o.Live,
		Patch: func(ctx context.Context, r metav1.Object, patch []byte) error {
			_, err := h.client().AppsV1().ControllerRevisions(r.GetNamespace()).Patch(ctx, r.GetName(),
				types.StrategicMergePatchType, patch, metav1.PatchOptions{})
			return err
		},
	}, found)
	slices.SortFunc(claimed, older)
	return claimed, err
}

// snapshot returns a template in the form that clients expect in a revision: a patch that replaces the
// template.
func snapshot(t *corev1.PodTemplateSpec) []byte {
	text, err := json.Marshal(t)
	if err != nil {
		panic(err) // API types always have a JSON form
	}
	var template map[string]any
	if err := json.Unmarshal(text, &template); err != nil {
		panic(err)
	}
	template["$patch"] = "replace"
	data, err := json.Marshal(map[string]any{"spec": map[string]any{"template": template}})
	if err != nil {
		panic(err)
	}
	return data
}

// same compares JSON documents regardless of the order of their fields.
func same(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	p, errP := json.Marshal(x)
	q, errQ := json.Marshal(y)
	return errP == nil && errQ == nil && bytes.Equal(p, q)
}

// Template returns the pod template in a revision.
func Template(r *appsv1.ControllerRevision) (*corev1.PodTemplateSpec, error) {
	var data struct {
		Spec struct {
			Template corev1.PodTemplateSpec `json:"template"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(r.Data.Raw, &data); err != nil {
		return nil, fmt.Errorf("revision %s: %w", controller.KeyOf(r), err)
	}
	return &data.Spec.Template, nil
}

func (h *History) create(ctx context.Context, o *Owner, data []byte, number int64) (*appsv1.ControllerRevision, error) {
	for {
		hash := o.hashOf(data)
		name := o.Object.GetName()
		revisionLabels := maps.Clone(o.Template.Labels)
		if revisionLabels == nil {
			revisionLabels = map[string]string{}
		}
		revisionLabels[o.HashLabel] = hash
		annotations := maps.Clone(o.Object.GetAnnotations())
		delete(annotations, controller.TTLAnnotation)
		r := &appsv1.ControllerRevision{
			ObjectMeta: metav1.ObjectMeta{
				Name:            name[:min(len(name), maxOwnerName)] + "-" + hash,
				Namespace:       o.Object.GetNamespace(),
				Labels:          revisionLabels,
				Annotations:     annotations,
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(o.Object, o.Kind)},
			},
			Data:     runtime.RawExtension{Raw: data},
			Revision: number,
		}
		client := h.client().AppsV1().ControllerRevisions(r.Namespace)
		created, err := client.Create(ctx, r, metav1.CreateOptions{})
		if err == nil {
			h.expect(o, created)
			return created, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return nil, err
		}
		// The revision is either our own, which the cache does not show yet, or a different one with the same
		// hash.
		exists, err := client.Get(ctx, r.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		if metav1.IsControlledBy(exists, o.Object) && same(exists.Data.Raw, data) {
			return exists, nil
		}
		*o.Collisions++
	}
}

// maxOwnerName leaves room in a revision's name for a dash and the hash.
const maxOwnerName = 223

func (o *Owner) hashOf(data []byte) string {
	if *o.Collisions == 0 {
		return controller.TemplateHash(data, nil)
	}
	return controller.TemplateHash(data, o.Collisions)
}

func (h *History) renumber(ctx context.Context, o *Owner, r *appsv1.ControllerRevision,
	number int64) (*appsv1.ControllerRevision, error) {
	r = r.DeepCopy()
	r.Revision = number
	updated, err := h.client().AppsV1().ControllerRevisions(r.Namespace).Update(ctx, r, metav1.UpdateOptions{})
	if err == nil {
		h.expect(o, updated)
	}
	return updated, err
}

func (h *History) expect(o *Owner, r *appsv1.ControllerRevision) {
	h.expected.Expect(controller.KeyOf(o.Object), h.informer, r.ResourceVersion)
}

// Truncate deletes the oldest revisions beyond limit. Revisions named in live are neither deleted nor counted.
func (h *History) Truncate(ctx context.Context, all []*appsv1.ControllerRevision, live map[string]bool,
	limit int) error {
	unused := slices.DeleteFunc(slices.Clone(all), func(r *appsv1.ControllerRevision) bool { return live[r.Name] })
	for _, r := range unused[:max(0, len(unused)-limit)] {
		err := h.client().AppsV1().ControllerRevisions(r.Namespace).Delete(ctx, r.Name,
			*metav1.NewPreconditionDeleteOptions(string(r.UID)))
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}
