package kubectllite

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// roleGenerators make roles of one rule.
var roleGenerators = []generator{
	{
		use: "role NAME --verb=verb --resource=resource.group/subresource [--resource-name=resourcename]", short: "Create a role with single rule",
		resource: rbacv1.SchemeGroupVersion.WithResource("roles"), flags: roleFlags,
	},
	{
		use: "clusterrole NAME --verb=verb --resource=resource.group [--resource-name=resourcename]", short: "Create a cluster role",
		resource: rbacv1.SchemeGroupVersion.WithResource("clusterroles"), clusterScoped: true, flags: clusterRoleFlags,
	},
}

// The verbs that make sense. Others are allowed, with a warning: extension servers may have verbs of their own.
var (
	resourceVerbs = []string{"*", "get", "delete", "list", "create", "update", "patch", "watch", "proxy", "deletecollection", "use", "bind", "escalate", "impersonate"}
	urlVerbs      = []string{"*", "get", "post", "put", "delete", "patch", "head", "options"}
)

// boundVerbs are verbs that the server checks on certain resources only.
var boundVerbs = map[string][]schema.GroupResource{
	"use":         {{Group: "policy", Resource: "podsecuritypolicies"}, {Group: "extensions", Resource: "podsecuritypolicies"}},
	"bind":        {{Group: rbacv1.GroupName, Resource: "roles"}, {Group: rbacv1.GroupName, Resource: "clusterroles"}},
	"escalate":    {{Group: rbacv1.GroupName, Resource: "roles"}, {Group: rbacv1.GroupName, Resource: "clusterroles"}},
	"impersonate": {{Resource: "users"}, {Resource: "serviceaccounts"}, {Resource: "groups"}, {Group: "authentication.k8s.io", Resource: "userextras"}},
}

// ruleFlags describe one rule.
type ruleFlags struct {
	verbs, resources, names []string
}

func (r *ruleFlags) addFlags(flags *pflag.FlagSet) {
	flags.StringSliceVar(&r.verbs, "verb", nil, "Verb that applies to the resources contained in the rule")
	flags.StringSliceVar(&r.resources, "resource", nil, "Resource that the rule applies to")
	flags.StringArrayVar(&r.names, "resource-name", nil, "Resource in the white list that the rule applies to, repeat this flag for multiple items")
}

// distinct are the values without repetition; a star makes all others superfluous.
func distinct(values []string, star bool) []string {
	if star && slices.Contains(values, "*") {
		return []string{"*"}
	}
	var once []string
	for _, v := range values {
		if !slices.Contains(once, v) {
			once = append(once, v)
		}
	}
	return once
}

// ruledResource is a value of --resource: "deployments.apps/scale".
type ruledResource struct {
	group, resource, subresource string
}

func (r *ruleFlags) parseResources() []ruledResource {
	var all []ruledResource
	for _, text := range r.resources {
		if text == "*" {
			return []ruledResource{{resource: "*"}}
		}
		whole, subresource, _ := strings.Cut(text, "/")
		resource, group, _ := strings.Cut(whole, ".")
		all = append(all, ruledResource{group, resource, subresource})
	}
	return all
}

// warnOfVerbs tells of verbs that are likely a slip.
func (s *session) warnOfVerbs(verbs []string) {
	for _, verb := range verbs {
		if !slices.Contains(resourceVerbs, verb) {
			fmt.Fprintf(s.ErrOut, "Warning: '%s' is not a standard resource verb\n", verb)
		}
	}
}

// rules are one rule per API group. A resource is called what the server calls it, "po" becomes "pods", and must exist there.
func (r *ruleFlags) rules(mapper meta.RESTMapper, resources []ruledResource) ([]rbacv1.PolicyRule, error) {
	var rules []rbacv1.PolicyRule
	verbs, names := distinct(r.verbs, true), distinct(r.names, false)
	for _, wanted := range resources {
		if wanted.resource == "" {
			return nil, errors.New("resource must be specified if apiGroup/subresource specified")
		}
		found := schema.GroupVersionResource{Group: wanted.group, Resource: wanted.resource}
		if wanted.resource != "*" {
			var err error
			if found, err = checkedResource(mapper, found, verbs); err != nil {
				return nil, err
			}
		}
		full := found.Resource
		if wanted.subresource != "" {
			full += "/" + wanted.subresource
		}
		at := slices.IndexFunc(rules, func(rule rbacv1.PolicyRule) bool { return rule.APIGroups[0] == found.Group })
		if at < 0 {
			rules = append(rules, rbacv1.PolicyRule{Verbs: verbs, APIGroups: []string{found.Group}, ResourceNames: names})
			at = len(rules) - 1
		}
		rules[at].Resources = distinct(append(rules[at].Resources, full), false)
	}
	slices.SortStableFunc(rules, func(a, b rbacv1.PolicyRule) int { return strings.Compare(a.APIGroups[0], b.APIGroups[0]) })
	return rules, nil
}

func checkedResource(mapper meta.RESTMapper, wanted schema.GroupVersionResource, verbs []string) (schema.GroupVersionResource, error) {
	found, err := mapper.ResourceFor(wanted)
	if err != nil {
		found = wanted
	}
	for _, verb := range verbs {
		bound, special := boundVerbs[verb]
		if !special {
			continue
		}
		if !slices.Contains(bound, found.GroupResource()) {
			return found, fmt.Errorf("can not perform '%s' on '%s' in group '%s'", verb, found.Resource, found.Group)
		}
		err = nil // users and groups are no resources that the server has
	}
	return found, err
}

func roleFlags(flags *pflag.FlagSet, s *session) build {
	rule := &ruleFlags{}
	rule.addFlags(flags)
	return func(name string, _ []string) (runtime.Object, error) {
		mapper, err := s.ToRESTMapper()
		if err != nil {
			return nil, err
		}
		resources := rule.parseResources()
		switch {
		case len(rule.verbs) == 0:
			return nil, errors.New("at least one verb must be specified")
		case len(resources) == 0:
			s.warnOfVerbs(distinct(rule.verbs, true))
			return nil, errors.New("at least one resource must be specified")
		}
		s.warnOfVerbs(distinct(rule.verbs, true))
		rules, err := rule.rules(mapper, resources)
		return &rbacv1.Role{
			TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "Role"},
			ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules,
		}, err
	}
}

func clusterRoleFlags(flags *pflag.FlagSet, s *session) build {
	rule := &ruleFlags{}
	rule.addFlags(flags)
	urls := flags.StringSlice("non-resource-url", nil, "A partial url that user should have access to.")
	aggregated := flags.StringToString("aggregation-rule", nil, "An aggregation label selector for combining ClusterRoles.")
	return func(name string, _ []string) (runtime.Object, error) {
		role := &rbacv1.ClusterRole{
			TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"},
			ObjectMeta: metav1.ObjectMeta{Name: name},
		}
		if len(*aggregated) > 0 {
			if len(*urls)+len(rule.verbs)+len(rule.resources)+len(rule.names) > 0 {
				return nil, errors.New("aggregation rule must be specified without nonResourceURLs, verbs, resources or resourceNames")
			}
			role.AggregationRule = &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{MatchLabels: *aggregated}}}
			return role, nil
		}
		rules, err := clusterRules(s, rule, distinct(*urls, false))
		role.Rules = rules
		return role, err
	}
}

func clusterRules(s *session, rule *ruleFlags, urls []string) ([]rbacv1.PolicyRule, error) {
	mapper, err := s.ToRESTMapper()
	if err != nil {
		return nil, err
	}
	resources, verbs := rule.parseResources(), distinct(rule.verbs, true)
	switch {
	case len(verbs) == 0:
		return nil, errors.New("at least one verb must be specified")
	case len(resources)+len(urls) == 0:
		return nil, errors.New("one of resource or nonResourceURL must be specified")
	}
	if len(resources) > 0 {
		s.warnOfVerbs(verbs)
	}
	rules, err := rule.rules(mapper, resources)
	if err != nil || len(urls) == 0 {
		return rules, err
	}
	if err := checkURLs(verbs, urls); err != nil {
		return nil, err
	}
	return append(rules, rbacv1.PolicyRule{Verbs: verbs, NonResourceURLs: urls}), nil
}

func checkURLs(verbs, urls []string) error {
	for _, verb := range verbs {
		if !slices.Contains(urlVerbs, verb) {
			return fmt.Errorf("invalid verb: '%s' for nonResourceURL", verb)
		}
	}
	for _, url := range urls {
		switch {
		case url == "*":
		case !strings.HasPrefix(url, "/"):
			return errors.New("nonResourceURL should start with /")
		case strings.Contains(url[:len(url)-1], "*"):
			return errors.New("nonResourceURL only supports wildcard matches when '*' is at the end")
		}
	}
	return nil
}
