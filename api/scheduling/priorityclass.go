package scheduling

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/defaults"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
)

// highestUserPriority is the highest value of a class without a reserved name.
const highestUserPriority = 1_000_000_000

// systemPriorities has the two reserved classes with their values.
var systemPriorities = map[string]int32{
	"system-cluster-critical": 2 * highestUserPriority,
	"system-node-critical":    2*highestUserPriority + 1000,
}

func priorityClasses() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: schedulingv1.GroupName, Version: "v1", Kind: "PriorityClass", Plural: "priorityclasses",
			ShortNames: []string{"pc"},
		},
		Storage: api.Storage{
			ReadYourWrites: true,
			New:            func() api.Object { return &schedulingv1.PriorityClass{} },
			NewList:        func() runtime.Object { return &schedulingv1.PriorityClassList{} },
		},
		Strategy: api.Strategy{
			Default: api.Typed(func(c *schedulingv1.PriorityClass) {
				defaults.SetPtr(&c.PreemptionPolicy, corev1.PreemptLowerPriority)
			}),
			Validate:       api.Check(validatePriorityClass),
			ValidateUpdate: api.CheckUpdate(validatePriorityClassUpdate),
			Generation:     true,
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Value", "integer", schedulingv1.PriorityClass{}.SwaggerDoc()["value"]),
				table.Column("Global-Default", "boolean", schedulingv1.PriorityClass{}.SwaggerDoc()["globalDefault"]),
				table.Age,
				table.Column("PreemptionPolicy", "string",
					schedulingv1.PriorityClass{}.SwaggerDoc()["preemptionPolicy"]),
			},
			Cells: api.Row(func(c *schedulingv1.PriorityClass) []any {
				return []any{c.Name, int64(c.Value), c.GlobalDefault, table.AgeOf(c.CreationTimestamp),
					string(ptr.Deref(c.PreemptionPolicy, corev1.PreemptLowerPriority))}
			}),
		},
	}
}

func validatePriorityClass(c *schedulingv1.PriorityClass) field.ErrorList {
	var errs field.ErrorList
	if strings.HasPrefix(c.Name, "system-") {
		if problem := notSystemPriority(c); problem != "" {
			errs = append(errs, field.Forbidden(field.NewPath("metadata", "name"),
				"priority class names with 'system-' prefix are reserved for system use only. error: "+problem))
		}
	} else if c.Value > highestUserPriority {
		errs = append(errs, field.Forbidden(field.NewPath("value"), fmt.Sprintf("maximum allowed value of a user "+
			"defined priority is %v", highestUserPriority)))
	}
	if p := c.PreemptionPolicy; p != nil {
		errs = append(errs, validate.RequiredOneOf(field.NewPath("preemptionPolicy"), *p, corev1.PreemptLowerPriority,
			corev1.PreemptNever)...)
	}
	return errs
}

// notSystemPriority returns the reason why a class is not one of the two reserved ones, or "".
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
	return append(errs, validate.Unchanged(c.PreemptionPolicy, old.PreemptionPolicy,
		field.NewPath("preemptionPolicy"))...)
}
