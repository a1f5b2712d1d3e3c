package api

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api/field"
)

// highestUserPriority is the most that a class may have whose name is not reserved.
const highestUserPriority = 1_000_000_000

// systemPriorities are the two reserved classes with their values.
var systemPriorities = map[string]int32{
	"system-cluster-critical": 2 * highestUserPriority,
	"system-node-critical":    2*highestUserPriority + 1000,
}

func priorityClasses() *Resource {
	return &Resource{
		Group: schedulingv1.GroupName, Version: "v1", Kind: "PriorityClass", Plural: "priorityclasses",
		ShortNames: []string{"pc"},
		New:        func() Object { return &schedulingv1.PriorityClass{} },
		NewList:    func() runtime.Object { return &schedulingv1.PriorityClassList{} },

		Default:        with(func(c *schedulingv1.PriorityClass) { setDefaultPtr(&c.PreemptionPolicy, corev1.PreemptLowerPriority) }),
		Validate:       checked(validatePriorityClass),
		ValidateUpdate: checked2(validatePriorityClassUpdate),
		Generation:     true,

		Columns: []metav1.TableColumnDefinition{
			nameColumn,
			column("Value", "integer", schedulingv1.PriorityClass{}.SwaggerDoc()["value"]),
			column("Global-Default", "boolean", schedulingv1.PriorityClass{}.SwaggerDoc()["globalDefault"]),
			ageColumn,
			column("PreemptionPolicy", "string", schedulingv1.PriorityClass{}.SwaggerDoc()["preemptionPolicy"]),
		},
		Cells: row(func(c *schedulingv1.PriorityClass) []any {
			return []any{c.Name, int64(c.Value), c.GlobalDefault, age(c.CreationTimestamp), string(ptr.Deref(c.PreemptionPolicy, corev1.PreemptLowerPriority))}
		}),
	}
}

func validatePriorityClass(c *schedulingv1.PriorityClass) field.ErrorList {
	var errs field.ErrorList
	if strings.HasPrefix(c.Name, "system-") {
		if problem := notSystemPriority(c); problem != "" {
			errs = append(errs, field.Forbidden(field.NewPath("metadata", "name"), "priority class names with 'system-' prefix are reserved for system use only. error: "+problem))
		}
	} else if c.Value > highestUserPriority {
		errs = append(errs, field.Forbidden(field.NewPath("value"), fmt.Sprintf("maximum allowed value of a user defined priority is %v", highestUserPriority)))
	}
	if p := c.PreemptionPolicy; p != nil {
		errs = append(errs, requiredOneOf(field.NewPath("preemptionPolicy"), *p, corev1.PreemptLowerPriority, corev1.PreemptNever)...)
	}
	return errs
}

// notSystemPriority says why a class is not one of the two reserved ones.
func notSystemPriority(c *schedulingv1.PriorityClass) string {
	switch value, reserved := systemPriorities[c.Name]; {
	case !reserved:
		return c.Name + " is not a known system priority class"
	case value != c.Value:
		return fmt.Sprintf("value of %v PriorityClass must be %v", c.Name, value)
	case c.GlobalDefault:
		return fmt.Sprintf("globalDefault of %v PriorityClass must be %v", c.Name, false)
	}
	return ""
}

func validatePriorityClassUpdate(c, old *schedulingv1.PriorityClass) field.ErrorList {
	var errs field.ErrorList
	if c.Value != old.Value {
		errs = append(errs, field.Forbidden(field.NewPath("value"), "may not be changed in an update."))
	}
	return append(errs, unchanged(c.PreemptionPolicy, old.PreemptionPolicy, field.NewPath("preemptionPolicy"))...)
}

func runtimeClasses() *Resource {
	return &Resource{
		Group: nodev1.GroupName, Version: "v1", Kind: "RuntimeClass", Plural: "runtimeclasses",
		New:            func() Object { return &nodev1.RuntimeClass{} },
		NewList:        func() runtime.Object { return &nodev1.RuntimeClassList{} },
		CreateOnUpdate: true,
		Conditional:    true,

		Validate: checked(func(c *nodev1.RuntimeClass) field.ErrorList {
			errs := dnsLabel(field.NewPath("handler"), c.Handler)
			if c.Overhead != nil {
				for name, q := range c.Overhead.PodFixed {
					at := field.NewPath("overhead", "podFixed").Key(string(name))
					errs = append(errs, validateResourceName(name, at)...)
					errs = append(errs, validateQuantity(name, q, at)...)
				}
			}
			if s := c.Scheduling; s != nil {
				path := field.NewPath("scheduling")
				errs = append(errs, validateLabels(s.NodeSelector, path.Child("nodeSelector"))...)
				errs = append(errs, validateTolerations(s.Tolerations, path.Child("tolerations"))...)
				var before seen
				for i, t := range s.Tolerations {
					if field.Enough(errs) {
						break
					}
					if repeatedBy(&before, s.Tolerations[:i], tolerationKey(&t), tolerationKey) {
						errs = append(errs, field.Duplicate(path.Child("tolerations").Index(i), t))
					}
				}
			}
			return errs
		}),
		ValidateUpdate: checked2(func(c, old *nodev1.RuntimeClass) field.ErrorList {
			return unchanged(c.Handler, old.Handler, field.NewPath("handler"))
		}),

		Columns: []metav1.TableColumnDefinition{nameColumn, column("Handler", "string", ""), ageColumn},
		Cells: row(func(c *nodev1.RuntimeClass) []any {
			return []any{c.Name, c.Handler, age(c.CreationTimestamp)}
		}),
	}
}
