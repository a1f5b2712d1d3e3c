package kubectllite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/kubectl/pkg/describe"
	"k8s.io/kubectl/pkg/util/rbac"
)

func newAuth(s *session) *cobra.Command {
	cmd := &cobra.Command{
		Use: "auth", Short: "Inspect authorization",
		RunE: s.needsSubcommand,
	}
	cmd.AddCommand(newCanI(s), newWhoAmI(s), newReconcile(s))
	return cmd
}

type canIOptions struct {
	*session
	allNamespaces, quiet, list, noHeaders bool
	subresource                           string
}

func newCanI(s *session) *cobra.Command {
	o := &canIOptions{session: s}
	cmd := &cobra.Command{
		Use: "can-i VERB [TYPE | TYPE/NAME | NONRESOURCEURL]", Short: "Check whether an action is allowed",
		Example: `  kubectl-lite auth can-i create pods
  kubectl-lite auth can-i --list -n shop`,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.list {
				return o.printRules(contextOf(cmd))
			}
			if len(args) != 2 {
				return errors.New("you must specify two arguments: verb resource or verb resource/resourceName.\nSee 'kubectl-lite auth can-i -h' for help and examples.")
			}
			return o.check(contextOf(cmd), args[0], args[1])
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "If true, check the specified action in all namespaces.")
	flags.BoolVarP(&o.quiet, "quiet", "q", false, "If true, suppress output and just return the exit code.")
	flags.BoolVar(&o.list, "list", false, "If true, prints all allowed actions.")
	flags.BoolVar(&o.noHeaders, "no-headers", false, "If true, prints allowed actions without headers")
	flags.StringVar(&o.subresource, "subresource", "", "SubResource such as pod/log or deployment/scale")
	return cmd
}

// check asks the server. The answer no is exit code 1.
func (o *canIOptions) check(ctx context.Context, verb, what string) error {
	review := &authorizationv1.SelfSubjectAccessReview{}
	if strings.HasPrefix(what, "/") {
		review.Spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Verb: verb, Path: what}
	} else {
		attributes, err := o.attributes(verb, what)
		if err != nil {
			return err
		}
		review.Spec.ResourceAttributes = attributes
	}
	client, err := o.KubernetesClientSet()
	if err != nil {
		return err
	}
	answer, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	text := "yes"
	if !answer.Status.Allowed {
		text = "no"
		for _, why := range []string{answer.Status.Reason, answer.Status.EvaluationError} {
			if why != "" {
				text += " - " + why
			}
		}
	}
	if !o.quiet {
		fmt.Fprintln(o.Out, text)
	}
	if !answer.Status.Allowed {
		return errSilent
	}
	return nil
}

func (o *canIOptions) attributes(verb, what string) (*authorizationv1.ResourceAttributes, error) {
	kind, name, _ := strings.Cut(what, "/")
	resource, namespaced, err := o.resourceFor(kind)
	if err != nil {
		return nil, err
	}
	attributes := &authorizationv1.ResourceAttributes{Verb: verb, Group: resource.Group, Resource: resource.Resource, Subresource: o.subresource, Name: name}
	if o.allNamespaces {
		return attributes, nil
	}
	if !namespaced {
		text := fmt.Sprintf("resource '%s' is not namespace scoped", resource.Resource)
		if resource.Group != "" {
			text += fmt.Sprintf(" in group '%s'", resource.Group)
		}
		o.warn(text + "\n")
	}
	attributes.Namespace, _, err = o.namespace()
	return attributes, err
}

// resourceFor finds the resource. One may ask about a resource that this server does not have.
func (o *canIOptions) resourceFor(name string) (resource schema.GroupVersionResource, namespaced bool, err error) {
	if name == "*" {
		return schema.GroupVersionResource{Resource: "*"}, true, nil
	}
	mapping, err := o.mappingFor(strings.ToLower(name))
	if err == nil {
		return mapping.Resource, mapping.Scope.Name() == meta.RESTScopeNameNamespace, nil
	}
	group := schema.ParseGroupResource(strings.ToLower(name))
	text := fmt.Sprintf("the server doesn't have a resource type '%s'", group.Resource)
	if group.Group != "" {
		text += fmt.Sprintf(" in group '%s'", group.Group)
	}
	o.warn(text + "\n")
	return group.WithVersion(""), true, nil
}

func (o *canIOptions) printRules(ctx context.Context) error {
	namespace, _, err := o.namespace()
	if err != nil {
		return err
	}
	client, err := o.KubernetesClientSet()
	if err != nil {
		return err
	}
	answer, err := client.AuthorizationV1().SelfSubjectRulesReviews().Create(ctx, &authorizationv1.SelfSubjectRulesReview{
		Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: namespace},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if answer.Status.Incomplete {
		o.warn(fmt.Sprintf("the list may be incomplete: %v", answer.Status.EvaluationError))
	}
	var rules []rbacv1.PolicyRule
	for _, r := range answer.Status.ResourceRules {
		rules = append(rules, rbac.BreakdownRule(rbacv1.PolicyRule{Verbs: r.Verbs, APIGroups: r.APIGroups, Resources: r.Resources, ResourceNames: r.ResourceNames})...)
	}
	for _, r := range answer.Status.NonResourceRules {
		rules = append(rules, rbac.BreakdownRule(rbacv1.PolicyRule{Verbs: r.Verbs, NonResourceURLs: r.NonResourceURLs})...)
	}
	if rules, err = rbac.CompactRules(rules); err != nil {
		return err
	}
	slices.SortStableFunc(rules, func(a, b rbacv1.PolicyRule) int { return strings.Compare(a.String(), b.String()) })
	w := printers.GetNewTabWriter(o.Out)
	if !o.noHeaders {
		fmt.Fprintln(w, "Resources\tNon-Resource URLs\tResource Names\tVerbs")
	}
	for _, r := range rules {
		fmt.Fprintf(w, "%s\t%v\t%v\t%v\n", describe.CombineResourceGroup(r.Resources, r.APIGroups), r.NonResourceURLs, r.ResourceNames, r.Verbs)
	}
	return w.Flush()
}

type whoAmIOptions struct {
	*session
	writing
}

func newWhoAmI(s *session) *cobra.Command {
	o := &whoAmIOptions{session: s}
	cmd := &cobra.Command{
		Use: "whoami", Short: "Experimental: Check self subject attributes", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(contextOf(cmd)) },
	}
	o.addPrintFlags(cmd)
	return cmd
}

func (o *whoAmIOptions) run(ctx context.Context) error {
	client, err := o.KubernetesClientSet()
	if err != nil {
		return err
	}
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	switch {
	case apierrors.IsForbidden(err):
		return errors.New("the selfsubjectreviews API is not enabled in the cluster or you do not have permission to call it")
	case apierrors.IsNotFound(err):
		return errors.New("the selfsubjectreviews API is not enabled in the cluster")
	case err != nil:
		return err
	}
	if *o.print.OutputFormat != "" {
		return o.show(o.session, review, "")
	}
	w := printers.GetNewTabWriter(o.Out)
	user := review.Status.UserInfo
	fmt.Fprintln(w, "ATTRIBUTE\tVALUE")
	for _, row := range [][2]string{{"Username", user.Username}, {"UID", user.UID}} {
		if row[1] != "" {
			fmt.Fprintf(w, "%s\t%s\n", row[0], row[1])
		}
	}
	if len(user.Groups) > 0 {
		fmt.Fprintf(w, "Groups\t%v\n", user.Groups)
	}
	keys := make([]string, 0, len(user.Extra))
	for key := range user.Extra {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for _, key := range keys {
		fmt.Fprintf(w, "Extra: %s\t%v\n", key, user.Extra[key])
	}
	return w.Flush()
}
