package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/componentstatus"
	"github.com/coxswain-dev/coxswain/apiserver/encoding"
	"github.com/coxswain-dev/coxswain/apiserver/resourcemetrics"
	"github.com/coxswain-dev/coxswain/storage"
)

// computer computes the objects of a kind that api registers as computed.
type computer interface {
	// Get returns one object, or storage.ErrNotFound.
	Get(ctx context.Context, namespace, name string) (api.Object, error)
	// List returns the objects in a scope, and the revision that they were computed from, 0 for none.
	List(ctx context.Context, scope storage.Scope) ([]api.Object, int64, error)
}

// newComputers returns the computers of the registry's computed kinds.
func (s *Server) newComputers() (map[schema.GroupVersionKind]computer, error) {
	kinds := s.Registry.Snapshot()
	all := map[schema.GroupVersionKind]computer{
		corev1.SchemeGroupVersion.WithKind("ComponentStatus"): componentstatus.New(componentstatus.Options{
			Addresses: s.Components, Dial: s.Kubelet.Dial,
			Etcd: func(ctx context.Context) error {
				_, err := s.Store.Revision(ctx)
				return err
			},
		}),
	}
	node := kinds.Kind(corev1.SchemeGroupVersion.WithKind("Node"))
	pod := kinds.Kind(corev1.SchemeGroupVersion.WithKind("Pod"))
	if node != nil && pod != nil {
		nodes, pods := resourcemetrics.New(resourcemetrics.Options{Agents: s.proxy, Clock: s.Clock, Log: s.Log,
			Nodes: s.collection(node), Pods: s.collection(pod), NodeName: slices.Index(pod.Fields, "spec.nodeName")})
		all[metricsv1beta1.SchemeGroupVersion.WithKind("NodeMetrics")] = nodes
		all[metricsv1beta1.SchemeGroupVersion.WithKind("PodMetrics")] = pods
	}
	for _, res := range kinds.Resources {
		if res.Virtual && all[res.GVK()] == nil {
			return nil, fmt.Errorf("apiserver: no code computes a %s", res.GVK())
		}
	}
	return all, nil
}

// compute answers a GET or LIST of a computed kind.
func (s *Server) compute(w http.ResponseWriter, r *request) error {
	computer := s.computers[r.res.GVK()]
	if r.verb == "get" {
		obj, err := computer.Get(r.Context(), r.namespace, r.name)
		if err != nil {
			return err
		}
		doc, err := encoding.Encode(r.res, obj)
		if err != nil {
			return err
		}
		return s.writeObject(w, r, http.StatusOK, &storage.Object{JSON: doc})
	}
	scope, err := r.scope()
	if err != nil {
		return err
	}
	found, revision, err := computer.List(r.Context(), scope)
	if err != nil {
		return err
	}
	result := &storage.List{Revision: revision}
	for _, obj := range found {
		doc, err := encoding.Encode(r.res, obj)
		if err != nil {
			return err
		}
		result.Items = append(result.Items, &storage.Object{JSON: doc})
	}
	out := r.listWriter(w)
	defer out.Close()
	return s.writeList(r, result, out)
}
