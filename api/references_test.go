package api_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/builtin"
	"github.com/coxswain-dev/coxswain/api/kindtest"
)

// noReference lists fields that are named like a reference but refer to no object, by Go type or by one field of a
// type. For most of them the kind's own validation is stricter than the check of a path segment.
var noReference = map[string][]string{
	"the object itself": {"ObjectMeta"},
	"a user or a group": {"Subject.Name", "UserSubject", "GroupSubject"},
	"a container": {"Container", "EphemeralContainer", "EphemeralContainerCommon", "ContainerStatus",
		"ContainerExtendedResourceRequest", "ResourceFieldSelector", "PodFailurePolicyOnExitCodesRequirement"},
	"a volume of the pod": {"Volume", "VolumeMount", "VolumeDevice", "VolumeMountStatus", "FileKeySelector",
		"PodVolumeHealth"},
	"a resource that is measured": {"ContainerResourceMetricSource", "ContainerResourceMetricStatus",
		"ResourceMetricSource", "ResourceMetricStatus", "ResourceStatus", "NodeAllocatableMappedResources",
		"NodeAllocatableOverheadResources"},
	"a claim by the pod's word": {"ResourceClaim", "PodResourceClaim.Name", "PodResourceClaimStatus.Name",
		"WorkloadPodGroupResourceClaim.Name"},
	"a device or a request for it": {"Device.Name", "DeviceRequest", "DeviceSubRequest.Name", "CounterSet",
		"DeviceDerivedAttribute", "ResourcePool"},
	"a port": {"ContainerPort", "EndpointPort", "ServicePort", "ServiceBackendPort"},
	"a setting": {"EnvVar", "HTTPHeader", "Sysctl", "PodDNSConfigOption", "PodSchedulingGate",
		"EvictionResponder", "PodOS"},
	"a part of a policy": {"Variable", "MatchCondition", "MutatingWebhook", "ValidatingWebhook"},
	"a version or a column of a definition": {"CustomResourceDefinitionVersion.Name",
		"CustomResourceColumnDefinition.Name"},
	"a hint":   {"ForNode", "ForZone", "NodeRuntimeHandler"},
	"a driver": {"CSINodeDriver"},
	"storage elsewhere": {
		"AttachedVolume", "StorageHealth", "AzureDiskVolumeSource", "AzureFileVolumeSource.ShareName",
		"AzureFilePersistentVolumeSource.ShareName",
		"GCEPersistentDiskVolumeSource", "FlockerVolumeSource", "ISCSIVolumeSource", "ISCSIPersistentVolumeSource",
		"ScaleIOVolumeSource",
		"ScaleIOPersistentVolumeSource", "StorageOSVolumeSource", "StorageOSPersistentVolumeSource",
		"VsphereVirtualDiskVolumeSource",
	},
}

// site is the position of a field in a kind: the indexes of the fields that lead to it, through pointers and lists.
type site struct {
	steps []int
	path  string
	owner reflect.Type
	field reflect.StructField
}

// sites returns all string fields of a type and of the types below it.
func sites(t reflect.Type, parent site, within []reflect.Type) (found []site) {
	list := ""
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		if t.Kind() == reflect.Slice {
			list = "[0]"
		}
		t = t.Elem()
	}
	parent.path += list
	switch {
	case t.Kind() == reflect.String:
		return []site{parent}
	case t.Kind() != reflect.Struct || slices.Contains(within, t):
		return nil
	}
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		below := site{append(slices.Clone(parent.steps), i), parent.path, t, f}
		if json, _, _ := strings.Cut(f.Tag.Get("json"), ","); json != "" {
			below.path = strings.TrimPrefix(parent.path+"."+json, ".")
		}
		found = append(found, sites(f.Type, below, append(slices.Clone(within), t))...)
	}
	return found
}

// set creates the values that lead to the site and sets the string there.
func (s site) set(obj any, text string) {
	into := func(v reflect.Value) reflect.Value {
		for v.Kind() == reflect.Pointer || v.Kind() == reflect.Slice {
			switch {
			case v.Kind() == reflect.Pointer && v.IsNil():
				v.Set(reflect.New(v.Type().Elem()))
			case v.Kind() == reflect.Slice && v.Len() == 0:
				v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			}
			if v.Kind() == reflect.Pointer {
				v = v.Elem()
			} else {
				v = v.Index(0)
			}
		}
		return v
	}
	v := into(reflect.ValueOf(obj))
	for _, i := range s.steps {
		v = into(v.Field(i))
	}
	v.SetString(text)
}

// namesSomething reports whether a field has the name of a reference.
func (s site) namesSomething() bool {
	json, _, _ := strings.Cut(s.field.Tag.Get("json"), ",")
	json = strings.ToLower(json)
	return strings.HasSuffix(json, "name") || strings.HasSuffix(json, "namespace") || json == "endpoints" ||
		json == "serviceaccount"
}

// ownNames lists fields that the kind's own validation restricts to a closed form.
var ownNames = []string{
	"driverName", "signerName", "hostname", "externalName", "schedulerName", "scopeName", "interfaceName",
	"resourceName", "extendedResourceName",
	"username", "gmsaCredentialSpecName", "runAsUserName",
}

// TestReferences_CoverEveryNameOfEveryKind walks the Go types, so that no reference of a new kind is missed.
func TestReferences_CoverEveryNameOfEveryKind(t *testing.T) {
	t.Parallel()
	named := map[string]bool{}
	for _, fields := range noReference {
		for _, f := range fields {
			named[f] = true
		}
	}
	listedFields := 0
	for _, r := range builtin.Kinds() {
		if r.CreateOnly {
			continue
		}
		for _, s := range sites(reflect.TypeOf(r.New()), site{}, nil) {
			if slices.Contains(fieldsOf(r, s.owner), s.field.Name) {
				listedFields++
				for _, bad := range []string{"node-0/proxy/containerLogs/b/px/px", "../namespaces/b/pods/px/proxy/",
					"..", ".", "a%2fb"} {
					requireRefused(t, r, s, bad)
				}
				continue
			}
			if !s.namesSomething() {
				continue
			}
			json, _, _ := strings.Cut(s.field.Tag.Get("json"), ",")
			if !named[s.owner.Name()] && !named[s.owner.Name()+"."+s.field.Name] && !slices.Contains(ownNames, json) {
				t.Errorf("%s: is %s.%s (%s) a reference?", r.Kind, s.owner, s.field.Name, s.path)
			}
		}
	}
	require.Greater(t, listedFields, 500)
}

// fieldsOf returns the reference fields of a Go type in a kind's registration.
func fieldsOf(r *api.Resource, t reflect.Type) []string {
	if r.References == nil {
		return api.OnlyOwners.Fields(t)
	}
	return r.References.Fields(t)
}

func requireRefused(t *testing.T, r *api.Resource, s site, bad string) {
	t.Helper()
	obj, old := r.New(), r.New()
	s.set(obj, bad)
	errs := r.ValidateReferences(nil, obj, nil)
	require.NotEmpty(t, errs, "%s %s: %q", r.Kind, s.path, bad)
	require.Equal(t, "Invalid value", errs[0].Type.String())
	require.Equal(t, s.path, errs[0].Field, r.Kind)
	require.Empty(t, r.ValidateReferences(errs, obj, nil)[len(errs):], "one complaint of one field")
	require.NotEmpty(t, r.ValidateReferences(nil, obj, old))
	s.set(old, bad)
	require.Empty(t, r.ValidateReferences(nil, obj, old), "what is stored already stays writable")
	s.set(obj, "system:sound.name")
	require.Empty(t, r.ValidateReferences(nil, obj, nil))
}

func TestReferences_ErrorsMatchApimachinery(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{Name: "good"},
		{Name: "../x%"}}}}
	errs := kindtest.Of(t, "Pod").ValidateReferences(nil, pod, nil)
	require.Len(t, errs, 2)
	require.Equal(t, `metadata.ownerReferences[1].name: Invalid value: "../x%": may not contain '/'`, errs[0].Error())
	require.Equal(t, `metadata.ownerReferences[1].name: Invalid value: "../x%": may not contain '%'`, errs[1].Error())
}

// TestReferences_BelongToTheRegistration makes two registrations of one Go type.
func TestReferences_BelongToTheRegistration(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{Name: ".."}}},
		Spec: corev1.PodSpec{NodeName: ".."}}
	plain := &api.Resource{Names: api.Names{Kind: "Pod"},
		Storage: api.Storage{New: func() api.Object { return &corev1.Pod{} }}}
	require.Equal(t, []string{"Invalid metadata.ownerReferences[0].name"},
		kindtest.Refusals(plain.ValidateReferences(nil, pod, nil)))
	require.Equal(t, []string{"Invalid metadata.ownerReferences[0].name", "Invalid spec.nodeName"},
		kindtest.Refusals(kindtest.Of(t, "Pod").ValidateReferences(nil, pod, nil)))
}

func BenchmarkReferences(b *testing.B) {
	r := kindtest.Of(b, "Pod")
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{Name: "good"}}},
		Spec: corev1.PodSpec{
			Volumes: make([]corev1.Volume, 2), Containers: []corev1.Container{{Env: make([]corev1.EnvVar, 10)}},
			ServiceAccountName: "default", NodeName: "node-0",
		},
	}
	b.ReportAllocs()
	for b.Loop() {
		r.ValidateReferences(nil, pod, nil)
	}
}
