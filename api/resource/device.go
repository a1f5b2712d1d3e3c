package resource

import (
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
)

func deviceClasses() *api.Resource {
	return &api.Resource{
		Names: api.Names{Group: resourceGroup, Version: "v1", Kind: "DeviceClass", Plural: "deviceclasses"},
		Storage: api.Storage{
			New:     func() api.Object { return &resourcev1.DeviceClass{} },
			NewList: func() runtime.Object { return &resourcev1.DeviceClassList{} },
		},
		Strategy: api.Strategy{
			ReturnDeleted: true,
			Validate:      api.Check(validateDeviceClass),
			Generation:    true,
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{table.Name, table.Age},
			Cells: api.Row(func(c *resourcev1.DeviceClass) []any {
				return []any{c.Name, table.AgeOf(c.CreationTimestamp)}
			}),
		},
	}
}

func resourceSlices(now func() time.Time) *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: resourceGroup, Version: "v1", Kind: "ResourceSlice", Plural: "resourceslices",
		},
		Storage: api.Storage{
			New:     func() api.Object { return &resourcev1.ResourceSlice{} },
			NewList: func() runtime.Object { return &resourcev1.ResourceSliceList{} },
			Fields: []string{resourcev1.ResourceSliceSelectorNodeName, resourcev1.ResourceSliceSelectorDriver,
				resourcev1.ResourceSliceSelectorPoolName},
			FieldIndex: resourcev1.ResourceSliceSelectorNodeName,
		},
		Strategy: api.Strategy{
			ReturnDeleted: true,
			Default: api.Typed(func(s *resourcev1.ResourceSlice) {
				for i := range s.Spec.Devices {
					for j := range s.Spec.Devices[i].Taints {
						defaultTaintTime(&s.Spec.Devices[i].Taints[j], now)
					}
				}
			}),
			Validate: api.Check(func(s *resourcev1.ResourceSlice) field.ErrorList {
				return validateResourceSlice(&s.Spec, field.NewPath("spec"))
			}),
			ValidateUpdate: api.CheckUpdate(func(s, old *resourcev1.ResourceSlice) field.ErrorList {
				path := field.NewPath("spec")
				errs := validate.Unchanged(s.Spec.Pool.Name, old.Spec.Pool.Name, path.Child("pool", "name"))
				errs = append(errs, validate.Unchanged(s.Spec.Driver, old.Spec.Driver, path.Child("driver"))...)
				return append(errs, validate.Unchanged(s.Spec.NodeName, old.Spec.NodeName, path.Child("nodeName"))...)
			}),
			Generation: true,
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Node", "string", resourcev1.ResourceSliceSpec{}.SwaggerDoc()["nodeName"]),
				table.Column("Driver", "string", resourcev1.ResourceSliceSpec{}.SwaggerDoc()["driver"]),
				table.Column("Pool", "string", resourcev1.ResourcePool{}.SwaggerDoc()["name"]),
				table.Age,
			},
			Cells: api.Row(func(s *resourcev1.ResourceSlice) []any {
				return []any{s.Name, ptr.Deref(s.Spec.NodeName, ""), s.Spec.Driver, s.Spec.Pool.Name,
					table.AgeOf(s.CreationTimestamp)}
			}),
		},
	}
}

// defaultTaintTime sets the time of a taint that has none.
func defaultTaintTime(t *resourcev1.DeviceTaint, now func() time.Time) {
	if t.TimeAdded == nil {
		t.TimeAdded = &metav1.Time{Time: now().Truncate(time.Second)}
	}
}

func deviceTaintRules(now func() time.Time) *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: resourceGroup, Version: "v1", Kind: "DeviceTaintRule", Plural: "devicetaintrules",
		},
		Storage: api.Storage{
			New:     func() api.Object { return &resourcev1.DeviceTaintRule{} },
			NewList: func() runtime.Object { return &resourcev1.DeviceTaintRuleList{} },
		},
		Strategy: api.Strategy{
			ReturnDeleted: true,
			Default:       api.Typed(func(r *resourcev1.DeviceTaintRule) { defaultTaintTime(&r.Spec.Taint, now) }),
			// A new effect restarts the eviction of pods.
			PrepareUpdate: api.Typed2(func(r, old *resourcev1.DeviceTaintRule) {
				taint, was := &r.Spec.Taint, &old.Spec.Taint
				if taint.Effect != was.Effect && taint.TimeAdded.Equal(was.TimeAdded) {
					taint.TimeAdded = nil
					defaultTaintTime(taint, now)
				}
			}),
			Validate: api.Check(func(r *resourcev1.DeviceTaintRule) field.ErrorList {
				path := field.NewPath("spec")
				errs := validateTaintSelector(r.Spec.DeviceSelector, path.Child("deviceSelector"))
				return append(errs, validateDeviceTaint(&r.Spec.Taint, path.Child("taint"))...)
			}),
			Generation: true,
			Status: api.StatusOf(
				func(r *resourcev1.DeviceTaintRule) *resourcev1.DeviceTaintRuleStatus { return &r.Status },
				(*resourcev1.DeviceTaintRuleStatus).DeepCopy,
			).CheckedBy(api.CheckUpdate(func(r, _ *resourcev1.DeviceTaintRule) field.ErrorList {
				path := field.NewPath("status", "conditions")
				errs := metav1validation.ValidateConditions(r.Status.Conditions, path.Plain())
				if n := len(r.Status.Conditions); n > resourcev1.DeviceTaintRuleStatusMaxConditions {
					errs = append(errs, field.TooMany(path, n, resourcev1.DeviceTaintRuleStatusMaxConditions))
				}
				return errs
			})),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Key", "string", resourcev1.DeviceTaint{}.SwaggerDoc()["key"]),
				table.Column("Value", "string", resourcev1.DeviceTaint{}.SwaggerDoc()["value"]),
				table.Column("Effect", "string", resourcev1.DeviceTaint{}.SwaggerDoc()["effect"]),
				table.Column("TimeAdded", "string", resourcev1.DeviceTaint{}.SwaggerDoc()["timeAdded"]),
				table.Age,
			},
			Cells: api.Row(func(r *resourcev1.DeviceTaintRule) []any {
				taint := &r.Spec.Taint
				var added any = ""
				if taint.TimeAdded != nil {
					added = table.AgeOf(*taint.TimeAdded)
				}
				return []any{r.Name, taint.Key, taint.Value, string(taint.Effect), added,
					table.AgeOf(r.CreationTimestamp)}
			}),
		},
	}
}
