package kubectllite

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// clusterGenerators make what leads to pods, and what decides which of them may go and which must yield.
var clusterGenerators = []generator{
	{
		use: "ingress NAME --rule=host/path=service:port[,tls[=secret]]", aliases: []string{"ing"}, short: "Create an ingress with the specified name",
		resource: networkingv1.SchemeGroupVersion.WithResource("ingresses"), failure: "failed to create ingress", flags: ingressFlags,
	},
	{
		use: "poddisruptionbudget NAME --selector=SELECTOR --min-available=N", aliases: []string{"pdb"}, short: "Create a pod disruption budget with the specified name",
		resource: policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets"), failure: "failed to create poddisruptionbudgets", flags: budgetFlags,
	},
	{
		use: "priorityclass NAME --value=VALUE --global-default=BOOL", aliases: []string{"pc"}, short: "Create a priority class with the specified name",
		resource: schedulingv1.SchemeGroupVersion.WithResource("priorityclasses"), clusterScoped: true, failure: "failed to create priorityclass", flags: priorityClassFlags,
	},
}

// ingressRule is the form of --rule: host/path=service:port, then ",tls" or ",tls=secret". A path that ends in * is a prefix.
var ingressRule = regexp.MustCompile(`^([\w*\-.]*)(/[^=]*)=([\w\-]+):([\w\-]+)(?:,tls(?:=([\w\-]+)?)?)?`)

func ingressFlags(flags *pflag.FlagSet, _ *session) build {
	class := flags.String("class", "", "Ingress Class to be used")
	rules := flags.StringArray("rule", nil, "Rule in format host/path=service:port[,tls=secretname]. Paths containing the leading character '*' are considered pathType=Prefix. tls argument is optional.")
	fallback := flags.String("default-backend", "", "Default service for backend, in format of svcname:port")
	annotations := flags.StringArray("annotation", nil, "Annotation to insert in the ingress object, in the format annotation=value")
	return func(name string, _ []string) (runtime.Object, error) {
		if *fallback == "" && len(*rules) == 0 {
			return nil, errors.New("not enough information provided: every ingress has to either specify a default-backend (which catches all traffic) or a list of rules (which catch specific paths)")
		}
		ingress := &networkingv1.Ingress{
			TypeMeta:   metav1.TypeMeta{APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: "Ingress"},
			ObjectMeta: metav1.ObjectMeta{Name: name},
		}
		if *class != "" {
			ingress.Spec.IngressClassName = class
		}
		for _, text := range *rules {
			if err := addIngressRule(&ingress.Spec, text); err != nil {
				return nil, err
			}
		}
		for _, text := range *annotations {
			key, value, ok := strings.Cut(text, "=")
			if !ok {
				return nil, fmt.Errorf("annotation %s is invalid and should be in format key=[value]", text)
			}
			metav1.SetMetaDataAnnotation(&ingress.ObjectMeta, key, value)
		}
		if *fallback == "" {
			return ingress, nil
		}
		service, port, ok := strings.Cut(*fallback, ":")
		if !ok || strings.Contains(port, ":") {
			return nil, errors.New("default-backend should be in format servicename:serviceport")
		}
		ingress.Spec.DefaultBackend = ingressBackend(service, port)
		return ingress, nil
	}
}

// addIngressRule adds a path to the rule of its host, and the host to the certificate that it asks for.
func addIngressRule(spec *networkingv1.IngressSpec, text string) error {
	parts := ingressRule.FindStringSubmatch(text)
	if parts == nil {
		return fmt.Errorf("rule %s is invalid and should be in format host/path=svcname:svcport[,tls[=secret]]", text)
	}
	host, kind := parts[1], networkingv1.PathTypeExact
	path, prefix := strings.CutSuffix(parts[2], "*")
	if prefix {
		kind = networkingv1.PathTypePrefix
	}
	at := slices.IndexFunc(spec.Rules, func(r networkingv1.IngressRule) bool { return r.Host == host })
	if at < 0 {
		at = len(spec.Rules)
		spec.Rules = append(spec.Rules, networkingv1.IngressRule{Host: host, IngressRuleValue: networkingv1.IngressRuleValue{HTTP: &networkingv1.HTTPIngressRuleValue{}}})
	}
	paths := spec.Rules[at].HTTP
	paths.Paths = append(paths.Paths, networkingv1.HTTPIngressPath{Path: path, PathType: &kind, Backend: *ingressBackend(parts[3], parts[4])})
	if strings.Contains(text, ",tls") {
		addCertificate(spec, host, parts[5])
	}
	return nil
}

// addCertificate puts a host under a secret, once.
func addCertificate(spec *networkingv1.IngressSpec, host, secret string) {
	if slices.ContainsFunc(spec.TLS, func(t networkingv1.IngressTLS) bool { return slices.Contains(t.Hosts, host) }) || host == "" && secret == "" {
		return
	}
	at := slices.IndexFunc(spec.TLS, func(t networkingv1.IngressTLS) bool { return t.SecretName == secret })
	if at < 0 {
		at = len(spec.TLS)
		spec.TLS = append(spec.TLS, networkingv1.IngressTLS{SecretName: secret})
	}
	if host != "" {
		spec.TLS[at].Hosts = append(spec.TLS[at].Hosts, host)
	}
}

func ingressBackend(service, port string) *networkingv1.IngressBackend {
	to := networkingv1.ServiceBackendPort{}
	if p := intstr.Parse(port); p.Type == intstr.Int {
		to.Number = p.IntVal
	} else {
		to.Name = p.StrVal
	}
	return &networkingv1.IngressBackend{Service: &networkingv1.IngressServiceBackend{Name: service, Port: to}}
}

// numberOrShare is what a disruption budget is measured in: "3" or "50%".
var numberOrShare = regexp.MustCompile(`^[0-9]+%?$`)

func budgetFlags(flags *pflag.FlagSet, _ *session) build {
	least := flags.String("min-available", "", "The minimum number or percentage of available pods this budget requires.")
	most := flags.String("max-unavailable", "", "The maximum number or percentage of unavailable pods this budget requires.")
	selector := flags.String("selector", "", "A label selector to use for this budget. Only equality-based selector requirements are supported.")
	return func(name string, _ []string) (runtime.Object, error) {
		switch {
		case *selector == "":
			return nil, errors.New("a selector must be specified")
		case *least == "" && *most == "":
			return nil, errors.New("one of min-available or max-unavailable must be specified")
		case *least != "" && *most != "":
			return nil, errors.New("min-available and max-unavailable cannot be both specified")
		case *least != "" && !numberOrShare.MatchString(*least):
			return nil, errors.New("invalid format specified for min-available")
		case *most != "" && !numberOrShare.MatchString(*most):
			return nil, errors.New("invalid format specified for max-unavailable")
		}
		chosen, err := metav1.ParseToLabelSelector(*selector)
		if err != nil {
			return nil, err
		}
		budget := &policyv1.PodDisruptionBudget{
			TypeMeta:   metav1.TypeMeta{APIVersion: policyv1.SchemeGroupVersion.String(), Kind: "PodDisruptionBudget"},
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: chosen},
		}
		bound, amount := &budget.Spec.MinAvailable, *least
		if *most != "" {
			bound, amount = &budget.Spec.MaxUnavailable, *most
		}
		parsed := intstr.Parse(amount)
		*bound = &parsed
		return budget, nil
	}
}

func priorityClassFlags(flags *pflag.FlagSet, _ *session) build {
	value := flags.Int32("value", 0, "the value of this priority class.")
	global := flags.Bool("global-default", false, "global-default specifies whether this PriorityClass should be considered as the default priority.")
	description := flags.String("description", "", "description is an arbitrary string that usually provides guidelines on when this priority class should be used.")
	preemption := flags.String("preemption-policy", string(corev1.PreemptLowerPriority), "preemption-policy is the policy for preempting pods with lower priority.")
	return func(name string, _ []string) (runtime.Object, error) {
		return &schedulingv1.PriorityClass{
			TypeMeta:   metav1.TypeMeta{APIVersion: schedulingv1.SchemeGroupVersion.String(), Kind: "PriorityClass"},
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Value:      *value, GlobalDefault: *global, Description: *description, PreemptionPolicy: (*corev1.PreemptionPolicy)(preemption),
		}, nil
	}
}
