package api

import (
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api/field"
)

func deviceClasses() *Resource {
	return &Resource{
		Group: resourceGroup, Version: "v1", Kind: "DeviceClass", Plural: "deviceclasses",
		New:     func() Object { return &resourcev1.DeviceClass{} },
		NewList: func() runtime.Object { return &resourcev1.DeviceClassList{} },

		Validate:   checked(validateDeviceClass),
		Generation: true,

		Columns: []metav1.TableColumnDefinition{nameColumn, ageColumn},
		Cells: row(func(c *resourcev1.DeviceClass) []any {
			return []any{c.Name, age(c.CreationTimestamp)}
		}),
	}
}

func resourceSlices() *Resource {
	return &Resource{
		Group: resourceGroup, Version: "v1", Kind: "ResourceSlice", Plural: "resourceslices",
		New:     func() Object { return &resourcev1.ResourceSlice{} },
		NewList: func() runtime.Object { return &resourcev1.ResourceSliceList{} },

		Default: with(func(s *resourcev1.ResourceSlice) {
			for i := range s.Spec.Devices {
				for j := range s.Spec.Devices[i].Taints {
					defaultTaintTime(&s.Spec.Devices[i].Taints[j])
				}
			}
		}),
		Validate: checked(func(s *resourcev1.ResourceSlice) field.ErrorList {
			return validateResourceSlice(&s.Spec, field.NewPath("spec"))
		}),
		ValidateUpdate: checked2(func(s, old *resourcev1.ResourceSlice) field.ErrorList {
			path := field.NewPath("spec")
			errs := unchanged(s.Spec.Pool.Name, old.Spec.Pool.Name, path.Child("pool", "name"))
			errs = append(errs, unchanged(s.Spec.Driver, old.Spec.Driver, path.Child("driver"))...)
			return append(errs, unchanged(s.Spec.NodeName, old.Spec.NodeName, path.Child("nodeName"))...)
		}),
		Generation: true,
		Fields:     []string{resourcev1.ResourceSliceSelectorNodeName, resourcev1.ResourceSliceSelectorDriver, resourcev1.ResourceSliceSelectorPoolName},
		FieldIndex: resourcev1.ResourceSliceSelectorNodeName,

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Node", "string", resourcev1.ResourceSliceSpec{}.SwaggerDoc()["nodeName"]),
			column("Driver", "string", resourcev1.ResourceSliceSpec{}.SwaggerDoc()["driver"]),
			column("Pool", "string", resourcev1.ResourcePool{}.SwaggerDoc()["name"]),
			ageColumn,
		},
		Cells: row(func(s *resourcev1.ResourceSlice) []any {
			return []any{s.Name, ptr.Deref(s.Spec.NodeName, ""), s.Spec.Driver, s.Spec.Pool.Name, age(s.CreationTimestamp)}
		}),
	}
}

// defaultTaintTime notes when a taint was added, where nobody has.
func defaultTaintTime(t *resourcev1.DeviceTaint) {
	if t.TimeAdded == nil {
		t.TimeAdded = &metav1.Time{Time: time.Now().Truncate(time.Second)}
	}
}

func deviceTaintRules() *Resource {
	return &Resource{
		Group: resourceGroup, Version: "v1", Kind: "DeviceTaintRule", Plural: "devicetaintrules",
		New:     func() Object { return &resourcev1.DeviceTaintRule{} },
		NewList: func() runtime.Object { return &resourcev1.DeviceTaintRuleList{} },

		Default: with(func(r *resourcev1.DeviceTaintRule) { defaultTaintTime(&r.Spec.Taint) }),
		// What is done to pods begins anew with another effect.
		PrepareUpdate: with2(func(r, old *resourcev1.DeviceTaintRule) {
			taint, was := &r.Spec.Taint, &old.Spec.Taint
			if taint.Effect != was.Effect && taint.TimeAdded.Equal(was.TimeAdded) {
				taint.TimeAdded = nil
				defaultTaintTime(taint)
			}
		}),
		Validate: checked(func(r *resourcev1.DeviceTaintRule) field.ErrorList {
			path := field.NewPath("spec")
			errs := validateTaintSelector(r.Spec.DeviceSelector, path.Child("deviceSelector"))
			return append(errs, validateDeviceTaint(&r.Spec.Taint, path.Child("taint"))...)
		}),
		Generation: true,
		Status: statusOf(
			func(r *resourcev1.DeviceTaintRule) *resourcev1.DeviceTaintRuleStatus { return &r.Status },
			(*resourcev1.DeviceTaintRuleStatus).DeepCopy,
		).checkedBy(checked2(func(r, _ *resourcev1.DeviceTaintRule) field.ErrorList {
			path := field.NewPath("status", "conditions")
			errs := metav1validation.ValidateConditions(r.Status.Conditions, path.Plain())
			if n := len(r.Status.Conditions); n > resourcev1.DeviceTaintRuleStatusMaxConditions {
				errs = append(errs, field.TooMany(path, n, resourcev1.DeviceTaintRuleStatusMaxConditions))
			}
			return errs
		})),

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Key", "string", resourcev1.DeviceTaint{}.SwaggerDoc()["key"]),
			column("Value", "string", resourcev1.DeviceTaint{}.SwaggerDoc()["value"]),
			column("Effect", "string", resourcev1.DeviceTaint{}.SwaggerDoc()["effect"]),
			column("TimeAdded", "string", resourcev1.DeviceTaint{}.SwaggerDoc()["timeAdded"]),
			ageColumn,
		},
		Cells: row(func(r *resourcev1.DeviceTaintRule) []any {
			taint, added := &r.Spec.Taint, ""
			if taint.TimeAdded != nil {
				added = age(*taint.TimeAdded)
			}
			return []any{r.Name, taint.Key, taint.Value, string(taint.Effect), added, age(r.CreationTimestamp)}
		}),
	}
}
