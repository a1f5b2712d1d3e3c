package api

import (
	"reflect"
	"strings"
	"sync"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api/field"
)

// references are the fields, by Go type, in which an object names another object or its namespace. Clients ask for what they
// name, at a path that is made of it.
var references = map[reflect.Type][]string{
	reflect.TypeFor[metav1.OwnerReference](): {"Name"},

	reflect.TypeFor[corev1.ObjectReference]():                           {"Name", "Namespace"},
	reflect.TypeFor[corev1.LocalObjectReference]():                      {"Name"},
	reflect.TypeFor[corev1.TypedLocalObjectReference]():                 {"Name"},
	reflect.TypeFor[corev1.TypedObjectReference]():                      {"Name", "Namespace"},
	reflect.TypeFor[corev1.SecretReference]():                           {"Name", "Namespace"},
	reflect.TypeFor[corev1.SecretVolumeSource]():                        {"SecretName"},
	reflect.TypeFor[corev1.AzureFileVolumeSource]():                     {"SecretName"},
	reflect.TypeFor[corev1.AzureFilePersistentVolumeSource]():           {"SecretName", "SecretNamespace"},
	reflect.TypeFor[corev1.GlusterfsVolumeSource]():                     {"EndpointsName"},
	reflect.TypeFor[corev1.GlusterfsPersistentVolumeSource]():           {"EndpointsName", "EndpointsNamespace"},
	reflect.TypeFor[corev1.PersistentVolumeClaimVolumeSource]():         {"ClaimName"},
	reflect.TypeFor[corev1.ClusterTrustBundleProjection]():              {"Name"},
	reflect.TypeFor[corev1.ConfigMapNodeConfigSource]():                 {"Name", "Namespace"},
	reflect.TypeFor[corev1.PodSpec]():                                   {"NodeName", "ServiceAccountName", "DeprecatedServiceAccount", "PriorityClassName", "RuntimeClassName"},
	reflect.TypeFor[corev1.PodStatus]():                                 {"NominatedNodeName"},
	reflect.TypeFor[corev1.PodSchedulingGroup]():                        {"PodGroupName"},
	reflect.TypeFor[corev1.PodResourceClaim]():                          {"ResourceClaimName", "ResourceClaimTemplateName"},
	reflect.TypeFor[corev1.PodResourceClaimStatus]():                    {"ResourceClaimName"},
	reflect.TypeFor[corev1.PodExtendedResourceClaimStatus]():            {"ResourceClaimName"},
	reflect.TypeFor[corev1.NodeAllocatableResourceClaimStatus]():        {"ResourceClaimName"},
	reflect.TypeFor[corev1.PersistentVolumeSpec]():                      {"StorageClassName", "VolumeAttributesClassName"},
	reflect.TypeFor[corev1.PersistentVolumeClaimSpec]():                 {"VolumeName", "StorageClassName", "VolumeAttributesClassName"},
	reflect.TypeFor[corev1.PersistentVolumeClaimStatus]():               {"CurrentVolumeAttributesClassName"},
	reflect.TypeFor[corev1.ModifyVolumeStatus]():                        {"TargetVolumeAttributesClassName"},
	reflect.TypeFor[corev1.EndpointAddress]():                           {"NodeName"},
	reflect.TypeFor[discoveryv1.Endpoint]():                             {"NodeName"},
	reflect.TypeFor[appsv1.StatefulSetSpec]():                           {"ServiceName"},
	reflect.TypeFor[autoscalingv1.CrossVersionObjectReference]():        {"Kind", "Name"},
	reflect.TypeFor[autoscalingv2.CrossVersionObjectReference]():        {"Kind", "Name"},
	reflect.TypeFor[autoscalingv2.MetricIdentifier]():                   {"Name"},
	reflect.TypeFor[networkingv1.IngressSpec]():                         {"IngressClassName"},
	reflect.TypeFor[networkingv1.IngressServiceBackend]():               {"Name"},
	reflect.TypeFor[networkingv1.IngressTLS]():                          {"SecretName"},
	reflect.TypeFor[networkingv1.IngressClassParametersReference]():     {"Name", "Namespace"},
	reflect.TypeFor[networkingv1.ParentReference]():                     {"Resource", "Name", "Namespace"},
	reflect.TypeFor[storagev1.VolumeAttachmentSpec]():                   {"NodeName"},
	reflect.TypeFor[storagev1.VolumeAttachmentSource]():                 {"PersistentVolumeName"},
	reflect.TypeFor[storagev1.CSIStorageCapacity]():                     {"StorageClassName"},
	reflect.TypeFor[rbacv1.RoleRef]():                                   {"Name"},
	reflect.TypeFor[rbacv1.Subject]():                                   {"Namespace"},
	reflect.TypeFor[flowv1.PriorityLevelConfigurationReference]():       {"Name"},
	reflect.TypeFor[flowv1.ServiceAccountSubject]():                     {"Name", "Namespace"},
	reflect.TypeFor[admissionv1.ServiceReference]():                     {"Name", "Namespace"},
	reflect.TypeFor[admissionv1.ParamRef]():                             {"Name", "Namespace"},
	reflect.TypeFor[admissionv1.ValidatingAdmissionPolicyBindingSpec](): {"PolicyName"},
	reflect.TypeFor[admissionv1.MutatingAdmissionPolicyBindingSpec]():   {"PolicyName"},
	reflect.TypeFor[certificatesv1.PodCertificateRequestSpec]():         {"PodName", "NodeName", "ServiceAccountName"},
	reflect.TypeFor[resourcev1.Device]():                                {"NodeName"},
	reflect.TypeFor[resourcev1.ResourceSliceSpec]():                     {"NodeName"},
	reflect.TypeFor[resourcev1.ExactDeviceRequest]():                    {"DeviceClassName"},
	reflect.TypeFor[resourcev1.DeviceSubRequest]():                      {"DeviceClassName"},
	reflect.TypeFor[schedulingv1alpha3.WorkloadPodGroupResourceClaim](): {"ResourceClaimName", "ResourceClaimTemplateName"},
	reflect.TypeFor[resourcev1.ResourceClaimConsumerReference]():        {"Resource", "Name"},
}

// ValidateReferences adds to errs the names by which obj refers to other objects and which cannot be a segment of a path, as
// "../secrets/s" cannot. No object is called so; a client that takes such a name for one asks for something else.
//
// What errs complains of already is not added, nor a name that old, which may be nil, has as well: objects that were stored
// before can still be updated.
func ValidateReferences(errs field.ErrorList, obj, old Object) field.ErrorList {
	v := reflect.ValueOf(obj)
	named := namesIn(v.Type())
	if named == nil || named.sound(v) {
		return errs
	}
	known := map[string]bool{}
	if old != nil {
		was := reflect.ValueOf(old)
		namesIn(was.Type()).each(was, nil, func(_ *field.Path, name string) { known[name] = true })
	}
	told := map[string]bool{}
	for _, err := range errs {
		told[err.Field] = true
	}
	named.each(v, nil, func(path *field.Path, name string) {
		if !known[name] && !told[path.String()] {
			errs = append(errs, segment(path, name)...)
		}
	})
	return errs
}

// names is where in values of a Go type others are named.
type names struct {
	kind reflect.Kind
	elem *names // of a pointer or a slice
	// fields are those of a struct in which there is a name, however deep.
	fields []nameField
}

type nameField struct {
	index int
	json  string // "" where the fields are those of the struct around it
	names *names
}

var plainName = &names{kind: reflect.String}

// namesByType has what namesIn has worked out: *names by reflect.Type.
var namesByType sync.Map

// namesIn returns nil where there are none.
func namesIn(t reflect.Type) *names {
	if n, ok := namesByType.Load(t); ok {
		return n.(*names)
	}
	n := findNames(t, map[reflect.Type]bool{})
	namesByType.Store(t, n)
	return n
}

// findNames walks a type. What it is walking already is left out: no type that contains itself names anything.
func findNames(t reflect.Type, within map[reflect.Type]bool) *names {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice:
		if elem := findNames(t.Elem(), within); elem != nil {
			return &names{kind: t.Kind(), elem: elem}
		}
	case reflect.Struct:
		if within[t] {
			return nil
		}
		within[t] = true
		defer delete(within, t)
		n := &names{kind: reflect.Struct}
		for i := range t.NumField() {
			f := t.Field(i)
			of := listed(t, f)
			if of == nil {
				of = findNames(f.Type, within)
			}
			if of != nil {
				json, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				n.fields = append(n.fields, nameField{i, json, of})
			}
		}
		if len(n.fields) > 0 {
			return n
		}
	}
	return nil
}

// listed is the name in a field that references lists, or nil.
func listed(t reflect.Type, f reflect.StructField) *names {
	for _, name := range references[t] {
		switch {
		case name != f.Name:
		case f.Type.Kind() == reflect.Pointer:
			return &names{kind: reflect.Pointer, elem: plainName}
		default:
			return plainName
		}
	}
	return nil
}

// sound says whether every name is a segment. It makes no garbage.
func (n *names) sound(v reflect.Value) bool {
	switch n.kind {
	case reflect.String:
		return isSegment(v.String())
	case reflect.Pointer:
		return v.IsNil() || n.elem.sound(v.Elem())
	case reflect.Slice:
		for i := range v.Len() {
			if !n.elem.sound(v.Index(i)) {
				return false
			}
		}
	case reflect.Struct:
		for i := range n.fields {
			if f := &n.fields[i]; !f.names.sound(v.Field(f.index)) {
				return false
			}
		}
	}
	return true
}

// isSegment is segmentName without the complaints.
func isSegment(s string) bool {
	return s != "." && s != ".." && strings.IndexByte(s, '/') < 0 && strings.IndexByte(s, '%') < 0
}

// each calls f with all names that are no segments.
func (n *names) each(v reflect.Value, at *field.Path, f func(at *field.Path, name string)) {
	switch n.kind {
	case reflect.String:
		if name := v.String(); len(segmentName(name, false)) > 0 {
			f(at, name)
		}
	case reflect.Pointer:
		if !v.IsNil() {
			n.elem.each(v.Elem(), at, f)
		}
	case reflect.Slice:
		for i := range v.Len() {
			n.elem.each(v.Index(i), at.Index(i), f)
		}
	case reflect.Struct:
		for i := range n.fields {
			below, step := at, &n.fields[i]
			if step.json != "" {
				below = at.Child(step.json)
			}
			step.names.each(v.Field(step.index), below, f)
		}
	}
}
