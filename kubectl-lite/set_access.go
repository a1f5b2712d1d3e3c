package kubectllite

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/resource"
	"k8s.io/kubectl/pkg/scheme"
)

// patch changes an object and sends the difference. One that mutate leaves as it was is passed over.
func (o *setOptions) patch(info *resource.Info, mutate func(runtime.Object) error) error {
	patch, err := patchFor(info.Object, func(obj runtime.Object) ([]byte, error) {
		if err := mutate(obj); err != nil {
			return nil, err
		}
		return runtime.Encode(scheme.DefaultJSONEncoder(), obj)
	})
	if err != nil || patch == nil {
		return err
	}
	if o.local || o.onlyPretend() {
		return o.show(o.session, info.Object, o.done)
	}
	obj, err := o.helper(info).Patch(info.Namespace, info.Name, types.StrategicMergePatchType, patch, nil)
	if err != nil {
		return err
	}
	return o.show(o.session, obj, o.done)
}

func newSetSelector(s *session) *cobra.Command {
	o := &setOptions{session: s, done: "selector updated"}
	var version string
	cmd := &cobra.Command{
		Use: "selector (-f FILENAME | TYPE NAME) EXPRESSIONS [--resource-version=version]", Short: "Set the selector on a resource",
		Long: "Set the selector on a service. The new selector replaces the one that it has.",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.complete(cmd); err != nil {
				return err
			}
			if len(args) == 0 {
				return errors.New("one selector is required")
			}
			last := len(args) - 1
			selector, err := metav1.ParseToLabelSelector(args[last])
			if err != nil {
				return err
			}
			infos, err := o.find(args[:last])
			if err != nil {
				return err
			}
			for _, info := range infos {
				if err := o.setSelector(info, selector, version); err != nil {
					return err
				}
			}
			return nil
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringVar(&version, "resource-version", "", "If non-empty, the selectors update will only succeed if this is the current resource-version for the object. Only valid when specifying a single resource.")
	return cmd
}

// setSelector sends the selector even where it is the same, together with the version that the object must have.
func (o *setOptions) setSelector(info *resource.Info, selector *metav1.LabelSelector, version string) error {
	service, ok := info.Object.(*corev1.Service)
	if !ok {
		return errors.New("setting a selector is only supported for Services")
	}
	if len(selector.MatchExpressions) > 0 {
		return fmt.Errorf("match expression %v not supported on this object", selector.MatchExpressions)
	}
	patch, err := patchFor(service, func(obj runtime.Object) ([]byte, error) {
		changed := service.DeepCopy()
		changed.Spec.Selector = selector.MatchLabels
		return runtime.Encode(scheme.DefaultJSONEncoder(), changed)
	})
	if err != nil {
		return err
	}
	service.Spec.Selector = selector.MatchLabels
	if o.local || o.onlyPretend() {
		return o.show(o.session, service, o.done)
	}
	if patch == nil {
		patch = []byte("{}")
	}
	if version != "" {
		if patch, err = withVersion(patch, version); err != nil {
			return err
		}
	}
	obj, err := o.helper(info).Patch(info.Namespace, info.Name, types.StrategicMergePatchType, patch, nil)
	if err != nil {
		return err
	}
	return o.show(o.session, obj, o.done)
}

func newSetSubject(s *session) *cobra.Command {
	o := &setOptions{session: s, done: "subjects updated"}
	who := &subjects{}
	cmd := &cobra.Command{
		Use:   "subject (-f FILENAME | TYPE NAME) [--user=username] [--group=groupname] [--serviceaccount=namespace:serviceaccountname]",
		Short: "Update the user, group, or service account in a role binding or cluster role binding",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.complete(cmd); err != nil {
				return err
			}
			infos, err := o.find(args)
			if err != nil {
				return err
			}
			if len(who.users)+len(who.groups)+len(who.accounts) == 0 {
				return errors.New("you must specify at least one value of user, group or serviceaccount")
			}
			for _, names := range [][]string{who.users, who.groups, who.accounts} {
				slices.Sort(names)
			}
			added, err := who.list()
			if err != nil {
				return err
			}
			errs := newErrorSet(nil)
			for _, info := range infos {
				errs.add(withName(info, o.patch(info, func(obj runtime.Object) error { return addSubjects(obj, added) })))
			}
			return errs.err()
		},
	}
	o.addFlags(cmd)
	who.addFlags(cmd.Flags())
	return cmd
}

// addSubjects binds those that are not bound yet.
func addSubjects(obj runtime.Object, added []rbacv1.Subject) error {
	var list *[]rbacv1.Subject
	switch binding := obj.(type) {
	case *rbacv1.RoleBinding:
		list = &binding.Subjects
	case *rbacv1.ClusterRoleBinding:
		list = &binding.Subjects
	default:
		return errors.New("setting subjects is only supported for RoleBinding/ClusterRoleBinding")
	}
	for _, subject := range added {
		if !slices.Contains(*list, subject) {
			*list = append(*list, subject)
		}
	}
	return nil
}

// withVersion makes a patch apply to that version of the object only.
func withVersion(patch []byte, version string) ([]byte, error) {
	var content map[string]any
	if err := json.Unmarshal(patch, &content); err != nil {
		return nil, err
	}
	if err := unstructured.SetNestedField(content, version, "metadata", "resourceVersion"); err != nil {
		return nil, err
	}
	return json.Marshal(content)
}
