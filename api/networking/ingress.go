package networking

import (
	"fmt"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	netutils "k8s.io/utils/net"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/defaults"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/naming"
)

const networkingGroup = networkingv1.GroupName

const ingressClassAnnotation = "kubernetes.io/ingress.class"

func ingresses() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: networkingGroup, Version: "v1", Kind: "Ingress", Plural: "ingresses", Namespaced: true,
			ShortNames: []string{"ing"},
		},
		Storage: api.Storage{
			New:     func() api.Object { return &networkingv1.Ingress{} },
			NewList: func() runtime.Object { return &networkingv1.IngressList{} },
		},
		Strategy: api.Strategy{
			Validate:       api.Check(validateIngress),
			ValidateCreate: api.Check(validateNewIngress),
			Warnings:       api.Warn(warnIngress),
			Status: api.StatusOf(
				func(i *networkingv1.Ingress) *networkingv1.IngressStatus { return &i.Status },
				(*networkingv1.IngressStatus).DeepCopy,
			).WithMetadata(api.AllMetadata).CheckedBy(api.CheckUpdate(validateIngressStatus)),
			Generation: true,
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Class", "string",
					"The name of the IngressClass resource that should be used for additional configuration"),
				table.Column("Hosts", "string",
					"Hosts that incoming requests are matched against before the ingress rule"),
				table.Column("Address", "string", "Address is a list containing ingress points for the load-balancer"),
				table.Column("Ports", "string", "Ports of TLS configurations that open"),
				table.Age,
			},
			Cells: api.Row(func(i *networkingv1.Ingress) []any {
				ports := "80"
				if len(i.Spec.TLS) > 0 {
					ports = "80, 443"
				}
				var addresses []string
				for _, in := range i.Status.LoadBalancer.Ingress {
					if in.IP != "" {
						addresses = append(addresses, in.IP)
					} else if in.Hostname != "" {
						addresses = append(addresses, in.Hostname)
					}
				}
				slices.Sort(addresses)
				return []any{
					i.Name, ptr.Deref(i.Spec.IngressClassName, table.None), hostsCell(i.Spec.Rules),
					strings.Join(slices.Compact(addresses), ","), ports, table.AgeOf(i.CreationTimestamp),
				}
			}),
		},
	}
}

// hostsCell shows three hosts. Later rules are counted, including rules without a host.
func hostsCell(rules []networkingv1.IngressRule) string {
	const shown = 3
	var hosts []string
	for _, r := range rules {
		if len(hosts) == shown {
			return fmt.Sprintf("%s + %d more...", strings.Join(hosts, ","), len(rules)-shown)
		}
		if r.Host != "" {
			hosts = append(hosts, r.Host)
		}
	}
	if len(hosts) == 0 {
		return "*"
	}
	return strings.Join(hosts, ",")
}

func validateIngress(i *networkingv1.Ingress) field.ErrorList {
	path, spec := field.NewPath("spec"), &i.Spec
	var errs field.ErrorList
	if len(spec.Rules) == 0 && spec.DefaultBackend == nil {
		errs = append(errs, field.Invalid(path, spec.Rules, "either `defaultBackend` or `rules` must be specified"))
	}
	if spec.DefaultBackend != nil {
		errs = append(errs, validateBackend(spec.DefaultBackend, path.Child("defaultBackend"))...)
	}
	if c := spec.IngressClassName; c != nil {
		errs = append(errs, validate.DnsSubdomain(path.Child("ingressClassName"), *c)...)
	}
	for n, t := range spec.TLS {
		if field.Enough(errs) {
			break
		}
		idxPath := path.Child("tls").Index(n)
		for h, host := range t.Hosts {
			if field.Enough(errs) {
				break
			}
			errs = append(errs, hostName(idxPath.Child("hosts").Index(h), host)...)
		}
		if t.SecretName != "" {
			errs = append(errs, validate.DnsSubdomain(idxPath.Child("secretName"), t.SecretName)...)
		}
	}
	for n := range spec.Rules {
		if field.Enough(errs) {
			break
		}
		r, idxPath := &spec.Rules[n], path.Child("rules").Index(n)
		if r.Host != "" {
			if netutils.ParseIPSloppy(r.Host) != nil {
				errs = append(errs,
					field.Invalid(idxPath.Child("host"), r.Host, "must be a DNS name, not an IP address"))
			}
			errs = append(errs, hostName(idxPath.Child("host"), r.Host)...)
		}
		if r.HTTP != nil {
			errs = append(errs, validateIngressPaths(r.HTTP.Paths, idxPath.Child("http", "paths"))...)
		}
	}
	return errs
}

// validateNewIngress requires the class in the field and in the older annotation to be the same.
func validateNewIngress(i *networkingv1.Ingress) field.ErrorList {
	old, annotated := i.Annotations[ingressClassAnnotation]
	if class := i.Spec.IngressClassName; !annotated || class == nil || *class == old {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("annotations").Child(ingressClassAnnotation), old,
		"must match `ingressClassName` when both are specified")}
}

func hostName(path *field.Path, host string) field.ErrorList {
	if strings.Contains(host, "*") {
		return validate.Complaints(path, host, utilvalidation.IsWildcardDNS1123Subdomain(host))
	}
	return validate.DnsSubdomain(path, host)
}

// insecurePaths are sequences that a router might normalize to a different path than the matched one.
var insecurePaths = []string{"//", "/./", "/../", "%2f", "%2F"}

func validateIngressPaths(paths []networkingv1.HTTPIngressPath, path *field.Path) field.ErrorList {
	if len(paths) == 0 {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	for i := range paths {
		if field.Enough(errs) {
			break
		}
		p, idxPath := &paths[i], path.Index(i)
		if p.PathType == nil {
			errs = append(errs, field.Required(idxPath.Child("pathType"), "pathType must be specified"))
			continue
		}
		switch *p.PathType {
		case networkingv1.PathTypeExact, networkingv1.PathTypePrefix:
			if !strings.HasPrefix(p.Path, "/") {
				errs = append(errs, field.Invalid(idxPath.Child("path"), p.Path, "must be an absolute path"))
			}
			for _, s := range insecurePaths {
				if field.Enough(errs) {
					break
				}
				if strings.Contains(p.Path, s) {
					errs = append(errs, field.Invalid(idxPath.Child("path"), p.Path, "must not contain '"+s+"'"))
				}
			}
			for _, s := range []string{"/..", "/."} {
				if strings.HasSuffix(p.Path, s) {
					errs = append(errs, field.Invalid(idxPath.Child("path"), p.Path, "cannot end with '"+s+"'"))
				}
			}
		case networkingv1.PathTypeImplementationSpecific:
			if p.Path != "" && !strings.HasPrefix(p.Path, "/") {
				errs = append(errs, field.Invalid(idxPath.Child("path"), p.Path, "must be an absolute path"))
			}
		default:
			errs = append(errs, field.NotSupported(idxPath.Child("pathType"), *p.PathType,
				[]networkingv1.PathType{networkingv1.PathTypeExact, networkingv1.PathTypeImplementationSpecific,
					networkingv1.PathTypePrefix}))
		}
		errs = append(errs, validateBackend(&p.Backend, idxPath.Child("backend"))...)
	}
	return errs
}

func validateBackend(b *networkingv1.IngressBackend, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case b.Resource != nil && b.Service != nil:
		return field.ErrorList{field.Invalid(path, "", "cannot set both resource and service backends")}
	case b.Resource != nil:
		return validateTypedReference(b.Resource.APIGroup, b.Resource.Kind, b.Resource.Name, path.Child("resource"))
	case b.Service == nil:
		return field.ErrorList{field.Invalid(path, "", "resource or service backend is required")}
	}
	servicePath, port := path.Child("service"), b.Service.Port
	if b.Service.Name == "" {
		errs = append(errs, field.Required(servicePath.Child("name"), ""))
	} else {
		errs = append(errs, validate.DnsLabel(servicePath.Child("name"), b.Service.Name)...)
	}
	switch {
	case port.Name != "" && port.Number != 0:
		errs = append(errs, field.Invalid(path, "", "cannot set both port name & port number"))
	case port.Name != "":
		errs = append(errs, validate.Complaints(servicePath.Child("port", "name"), port.Name,
			naming.IsValidPortName(port.Name))...)
	case port.Number == 0:
		errs = append(errs, field.Required(path, "port name or number is required"))
	default:
		errs = append(errs, validate.PortNumber(servicePath.Child("port", "number"), port.Number)...)
	}
	return errs
}

func validateTypedReference(group *string, kind, name string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if group != nil {
		errs = append(errs, validate.DnsSubdomain(path.Child("apiGroup"), *group)...)
	}
	errs = append(errs, validate.RequiredSegment(path.Child("kind"), kind)...)
	return append(errs, validate.RequiredSegment(path.Child("name"), name)...)
}

// warnIngress warns about the annotation that ingressClassName has replaced.
func warnIngress(i, old *networkingv1.Ingress) []string {
	if _, ok := i.Annotations[ingressClassAnnotation]; old != nil || !ok || i.Spec.IngressClassName != nil {
		return nil
	}
	return []string{fmt.Sprintf("annotation %q is deprecated, please use 'spec.ingressClassName' instead",
		ingressClassAnnotation)}
}

func validateIngressStatus(i, _ *networkingv1.Ingress) field.ErrorList {
	var errs field.ErrorList
	for n, in := range i.Status.LoadBalancer.Ingress {
		if field.Enough(errs) {
			break
		}
		idxPath := field.NewPath("status", "loadBalancer", "ingress").Index(n)
		if in.IP != "" {
			errs = append(errs, validate.IP(idxPath.Child("ip"), in.IP)...)
		}
		errs = append(errs, validate.Hostname(in.Hostname, idxPath.Child("hostname"))...)
	}
	return errs
}

func ingressClasses() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: networkingGroup, Version: "v1", Kind: "IngressClass", Plural: "ingressclasses",
		},
		Storage: api.Storage{
			ReadYourWrites: true,
			New:            func() api.Object { return &networkingv1.IngressClass{} },
			NewList:        func() runtime.Object { return &networkingv1.IngressClassList{} },
		},
		Strategy: api.Strategy{
			Default: api.Typed(func(c *networkingv1.IngressClass) {
				if c.Spec.Parameters != nil {
					defaults.SetPtr(&c.Spec.Parameters.Scope, networkingv1.IngressClassParametersReferenceScopeCluster)
				}
			}),
			Validate: api.Check(validateIngressClass),
			ValidateUpdate: api.CheckUpdate(func(c, old *networkingv1.IngressClass) field.ErrorList {
				return validate.Unchanged(c.Spec.Controller, old.Spec.Controller, field.NewPath("spec", "controller"))
			}),
			Generation: true,
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Controller", "string", "Controller that is responsible for handling this class"),
				table.Column("Parameters", "string", "A reference to a resource with additional parameters"),
				table.Age,
			},
			Cells: api.Row(func(c *networkingv1.IngressClass) []any {
				parameters := table.None
				if p := c.Spec.Parameters; p != nil {
					parameters = p.Kind
					if p.APIGroup != nil {
						parameters += "." + *p.APIGroup
					}
					parameters += "/" + p.Name
				}
				return []any{c.Name, c.Spec.Controller, parameters, table.AgeOf(c.CreationTimestamp)}
			}),
		},
	}
}

func validateIngressClass(c *networkingv1.IngressClass) field.ErrorList {
	const longest = 250
	path := field.NewPath("spec")
	var errs field.ErrorList
	if len(c.Spec.Controller) > longest {
		errs = append(errs, field.TooLong(path.Child("controller"), "", longest))
	}
	errs = append(errs, utilvalidation.IsDomainPrefixedPath(path.Child("controller").Plain(), c.Spec.Controller)...)
	p, parametersPath := c.Spec.Parameters, path.Child("parameters")
	if p == nil {
		return errs
	}
	errs = append(errs, validateTypedReference(p.APIGroup, p.Kind, p.Name, parametersPath)...)
	if p.Scope == nil {
		return append(errs, field.Required(parametersPath.Child("scope"), ""))
	}
	errs = append(errs, validate.OneOf(parametersPath.Child("scope"), *p.Scope,
		networkingv1.IngressClassParametersReferenceScopeCluster,
		networkingv1.IngressClassParametersReferenceScopeNamespace)...)
	switch {
	case *p.Scope == networkingv1.IngressClassParametersReferenceScopeNamespace && p.Namespace == nil:
		errs = append(errs,
			field.Required(parametersPath.Child("namespace"), "`parameters.scope` is set to 'Namespace'"))
	case *p.Scope == networkingv1.IngressClassParametersReferenceScopeNamespace:
		errs = append(errs, validate.DnsLabel(parametersPath.Child("namespace"), *p.Namespace)...)
	case *p.Scope == networkingv1.IngressClassParametersReferenceScopeCluster && p.Namespace != nil:
		errs = append(errs,
			field.Forbidden(parametersPath.Child("namespace"), "`parameters.scope` is set to 'Cluster'"))
	}
	return errs
}
