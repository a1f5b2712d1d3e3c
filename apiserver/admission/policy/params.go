package policy

import (
	"context"
	"errors"
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/cel"
	"github.com/coxswain-dev/coxswain/apiserver/admission/match"
)

// param is one parameter of a policy: an object of its paramKind. A policy without parameters is evaluated once,
// with the zero param.
type param struct {
	obj  api.Object
	kind schema.GroupVersionKind
}

// name returns the parameter's key among the policy's parameters.
func (p param) name() string {
	if p.obj == nil {
		return ""
	}
	return p.obj.GetNamespace() + "/" + p.obj.GetName()
}

// document returns the variable params of expressions: nil if there is no parameter.
func (p param) document(ctx context.Context, c match.Cluster) *cel.Document {
	if p.obj == nil {
		return nil
	}
	return &cel.Document{Make: func() (any, error) { return c.Show(ctx, p.obj, p.kind) }}
}

// bindings returns the variables of a policy's expressions for one parameter.
func bindings(ctx context.Context, q *match.Request, in match.Matched, p param) cel.Bindings {
	b := q.Bindings(ctx, in)
	b.Params = p.document(ctx, q.Cluster)
	return b
}

// params finds the parameters that a binding names. An empty result without an error means that the binding does
// not apply.
func params(ctx context.Context, q *match.Request, kind *admissionv1.ParamKind, b *binding) ([]param, error) {
	if b.err != nil {
		return nil, b.err
	}
	if kind == nil {
		return []param{{}}, nil
	}
	gv, err := schema.ParseGroupVersion(kind.APIVersion)
	if err != nil {
		return nil, fmt.Errorf("failed to parse paramKind APIVersion: %w", err)
	}
	gvk := gv.WithKind(kind.Kind)
	if b.ref == nil {
		return []param{{}}, nil
	}
	res := q.Cluster.Served(gvk)
	if res == nil {
		return nil, fmt.Errorf("paramKind kind `%v` not known", kind.String())
	}
	namespace, err := paramNamespace(res, b.ref, q.Namespace)
	if err != nil {
		return nil, err
	}
	found, err := find(ctx, q.Cluster, res, namespace, b)
	if err != nil {
		return nil, err
	}
	if action := b.ref.ParameterNotFoundAction; len(found) == 0 && action != nil && *action == admissionv1.DenyAction {
		return nil, errors.New("no params found for policy binding with `Deny` parameterNotFoundAction")
	}
	all := make([]param, len(found))
	for i, obj := range found {
		all[i] = param{obj, gvk}
	}
	return all, nil
}

// paramNamespace returns the namespace of the parameters: the one that the binding names, or else the request's.
func paramNamespace(res *api.Resource, ref *admissionv1.ParamRef, request string) (string, error) {
	switch {
	case !res.Namespaced && ref.Namespace != "":
		return "", errors.New("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")
	case !res.Namespaced:
		return "", nil
	case ref.Namespace != "":
		return ref.Namespace, nil
	case request == "":
		return "", errors.New("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources")
	}
	return request, nil
}

func find(ctx context.Context, cluster match.Cluster, res *api.Resource, namespace string, b *binding) ([]api.Object,
	error) {
	if b.ref.Name != "" {
		obj, err := cluster.Get(ctx, res.GroupResource(), namespace, b.ref.Name)
		if errors.Is(err, match.ErrNotFound) {
			return nil, nil
		}
		return []api.Object{obj}, err
	}
	objects, err := cluster.List(ctx, res.GroupResource(), namespace, false)
	if err != nil {
		return nil, err
	}
	var found []api.Object
	for _, obj := range objects {
		if b.params.Matches(labels.Set(obj.GetLabels())) {
			found = append(found, obj)
		}
	}
	return found, nil
}
