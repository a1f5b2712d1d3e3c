package apiserver

import (
	"context"
	"fmt"
	"reflect"
	"strconv"

	"github.com/go-chi/chi/v5"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/apiserver/admission"
	"github.com/coxswain-dev/coxswain/apiserver/authz"
)

// What admission policies may know of the cluster beyond what other plugins do, and how they
// see and change objects: as documents, in the version that a policy is about.

// Changed implements admission.Cluster.
func (c *cluster) Changed(resource schema.GroupResource) int64 {
	res := c.resource(resource)
	if res == nil {
		return 0
	}
	revision, any := c.server.collection(res).Changed()
	if !any {
		return 0
	}
	return revision
}

// Served implements admission.Cluster.
func (c *cluster) Served(kind schema.GroupVersionKind) *api.Resource {
	return c.server.Registry.Snapshot().Kind(kind)
}

// Versions implements admission.Cluster.
func (c *cluster) Versions(resource schema.GroupVersionResource) []*api.Resource {
	kinds := c.server.Registry.Snapshot()
	of := kinds.Resource(resource)
	if of == nil {
		return nil
	}
	return kindOf{of, kinds}.versions()
}

// shows finds the registration that shows an object in another version than the stored one.
func (c *cluster) shows(obj api.Object, kind schema.GroupVersionKind) *api.Resource {
	res := c.Served(kind)
	if res == nil || reflect.TypeOf(res.Stored().New()) != reflect.TypeOf(obj) {
		return nil
	}
	return res
}

// Show implements admission.Cluster.
func (c *cluster) Show(obj api.Object, kind schema.GroupVersionKind) (map[string]any, error) {
	if res := c.shows(obj, kind); res != nil {
		var err error
		if obj, err = showObject(res, obj); err != nil {
			return nil, err
		}
	}
	doc, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	if err != nil {
		return nil, fmt.Errorf("showing a %s: %w", kind.Kind, err)
	}
	doc["apiVersion"], doc["kind"] = kind.GroupVersion().String(), kind.Kind
	return doc, nil
}

// Read implements admission.Cluster.
func (c *cluster) Read(doc []byte, kind schema.GroupVersionKind, into api.Object) error {
	res := c.shows(into, kind)
	fresh := reflect.New(reflect.TypeOf(into).Elem()).Interface().(api.Object)
	if res != nil {
		fresh = res.New()
	}
	strict, err := unmarshalStrict(doc, fresh)
	if err == nil && len(strict) > 0 {
		err = fmt.Errorf("strict decoding error: %s", joinErrors(strict))
	}
	if err != nil {
		return fmt.Errorf("decoding a mutated %s: %w", kind.Kind, err)
	}
	if res != nil {
		if fresh, err = asStored(res, fresh); err != nil {
			return err
		}
		fresh.GetObjectKind().SetGroupVersionKind(res.Stored().GVK())
		setDefaults(res, fresh)
	}
	reflect.ValueOf(into).Elem().Set(reflect.ValueOf(fresh).Elem())
	return nil
}

// Merge implements admission.Cluster.
func (c *cluster) Merge(kind schema.GroupVersionKind, doc, patch map[string]any) (map[string]any, error) {
	var converter managedfields.TypeConverter = managedfields.NewDeducedTypeConverter()
	if c.Served(kind) != nil {
		converter = c.server.appliers.types(c.server.Registry)
	}
	change, err := converter.ObjectToTyped(&unstructured.Unstructured{Object: patch})
	if err != nil {
		return nil, fmt.Errorf("failed to convert patch object to typed object: %w", err)
	}
	if err := refuseAtomics(change); err != nil {
		return nil, fmt.Errorf("invalid ApplyConfiguration: %w", err)
	}
	live, err := converter.ObjectToTyped(&unstructured.Unstructured{Object: doc}, typed.AllowDuplicates)
	if err != nil {
		return nil, fmt.Errorf("failed to convert original object to typed object: %w", err)
	}
	merged, err := live.Merge(change)
	if err != nil {
		return nil, fmt.Errorf("failed to merge patch: %w", err)
	}
	obj, err := converter.TypedToObject(merged)
	if err != nil {
		return nil, fmt.Errorf("failed to convert typed object to object: %w", err)
	}
	return obj.(*unstructured.Unstructured).Object, nil
}

// Decide implements admission.Cluster.
func (c *cluster) Decide(ctx context.Context, a *authz.Attributes) (authz.Decision, string, error) {
	return c.server.decide(ctx, a)
}

var optionKinds = map[admission.Operation]string{admission.Create: "CreateOptions", admission.Update: "UpdateOptions", admission.Delete: "DeleteOptions"}

// verbOptions are the options of a create, an update or a delete as admission policies see them. They are made when a
// policy asks.
func verbOptions(r *request, operation admission.Operation) func() map[string]any {
	if operation == admission.Connect { // which has a document in their place
		return nil
	}
	return func() map[string]any {
		kind := optionKinds[operation]
		if operation == admission.Update && r.verb == "patch" {
			kind = "PatchOptions"
		}
		doc := map[string]any{"kind": kind, "apiVersion": metav1.SchemeGroupVersion.String()}
		if values := r.query["dryRun"]; len(values) > 0 {
			doc["dryRun"] = values
		}
		for _, name := range []string{"fieldManager", "fieldValidation"} {
			if text := r.query.Get(name); text != "" && kind != "DeleteOptions" {
				doc[name] = text
			}
		}
		if kind == "PatchOptions" && r.query.Has("force") {
			doc["force"] = flag(r.query, "force")
		}
		return doc
	}
}

// connectOptions are the kinds of what a client says when it connects to a subresource.
var connectOptions = map[string]string{
	"pods/exec": "PodExecOptions", "pods/attach": "PodAttachOptions", "pods/portforward": "PodPortForwardOptions",
	"pods/proxy": "PodProxyOptions", "services/proxy": "ServiceProxyOptions", "nodes/proxy": "NodeProxyOptions",
}

// admitConnect asks the plugins about a request that goes on to a pod, a service or a node.
func (s *Server) admitConnect(r *request) error {
	a := s.attributes(r, admission.Connect, nil, nil)
	a.Kind = schema.GroupVersionKind{Version: "v1", Kind: connectOptions[r.res.Plural+"/"+r.subresource]}
	a.Document = connectDocument(r, a.Kind.Kind)
	if err := s.admission.Mutate(r.Context(), a); err != nil {
		return err
	}
	return s.admission.Validate(r.Context(), a)
}

func connectDocument(r *request, kind string) map[string]any {
	doc := map[string]any{"apiVersion": "v1", "kind": kind}
	switch kind {
	case "PodExecOptions", "PodAttachOptions":
		for _, name := range []string{"stdin", "stdout", "stderr", "tty"} {
			if r.query.Has(name) && flag(r.query, name) {
				doc[name] = true
			}
		}
		if container := r.query.Get("container"); container != "" {
			doc["container"] = container
		}
		if kind == "PodExecOptions" {
			doc["command"] = append([]string{}, r.query["command"]...)
		}
	case "PodPortForwardOptions":
		ports := []int64{}
		for _, text := range r.query["ports"] {
			if port, err := strconv.ParseInt(text, 10, 32); err == nil {
				ports = append(ports, port)
			}
		}
		doc["ports"] = ports
	default:
		doc["path"] = chi.URLParam(r.Request, "*")
	}
	return doc
}

// admitScale asks the plugins about a write of an object's Scale.
func (s *Server) admitScale(r *request, scale, old *autoscalingv1.Scale) error {
	a := s.attributes(r, admission.Update, scale, old)
	a.Kind = scale.GroupVersionKind()
	if err := s.admission.Mutate(r.Context(), a); err != nil {
		return err
	}
	return s.admission.Validate(r.Context(), a)
}

// rewrite leaves of a part's write, which a policy has changed, only what the part is about.
func rewrite(sub *api.Subresource, merged, old api.Object) {
	wanted := merged.DeepCopyObject().(api.Object)
	kept := old.DeepCopyObject().(api.Object)
	sub.Write(kept, wanted)
	reflect.ValueOf(merged).Elem().Set(reflect.ValueOf(kept).Elem())
}
