package node

import (
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/field"
	"github.com/coxswain-dev/coxswain/api/kit/resourcelist"
	"github.com/coxswain-dev/coxswain/api/kit/table"
	"github.com/coxswain-dev/coxswain/api/kit/validate"
	"github.com/coxswain-dev/coxswain/api/podspec"
)

func runtimeClasses() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: nodev1.GroupName, Version: "v1", Kind: "RuntimeClass", Plural: "runtimeclasses",
		},
		Storage: api.Storage{
			ReadYourWrites: true,
			New:            func() api.Object { return &nodev1.RuntimeClass{} },
			NewList:        func() runtime.Object { return &nodev1.RuntimeClassList{} },
		},
		Strategy: api.Strategy{
			CreateOnUpdate: true,
			Conditional:    true,
			Validate: api.Check(func(c *nodev1.RuntimeClass) field.ErrorList {
				errs := validate.DnsLabel(field.NewPath("handler"), c.Handler)
				if c.Overhead != nil {
					for name, q := range c.Overhead.PodFixed {
						keyPath := field.NewPath("overhead", "podFixed").Key(string(name))
						errs = append(errs, resourcelist.ValidateContainerName(name, keyPath)...)
						errs = append(errs, resourcelist.ValidateQuantity(name, q, keyPath)...)
					}
				}
				if s := c.Scheduling; s != nil {
					path := field.NewPath("scheduling")
					errs = append(errs, validate.Labels(s.NodeSelector, path.Child("nodeSelector"))...)
					errs = append(errs, podspec.ValidateTolerations(s.Tolerations, path.Child("tolerations"))...)
					var before validate.Seen
					for i, t := range s.Tolerations {
						if field.Enough(errs) {
							break
						}
						if validate.RepeatedBy(&before, s.Tolerations[:i], podspec.TolerationKey(&t),
							podspec.TolerationKey) {
							errs = append(errs, field.Duplicate(path.Child("tolerations").Index(i), t))
						}
					}
				}
				return errs
			}),
			ValidateUpdate: api.CheckUpdate(func(c, old *nodev1.RuntimeClass) field.ErrorList {
				return validate.Unchanged(c.Handler, old.Handler, field.NewPath("handler"))
			}),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{table.Name, table.Column("Handler", "string", ""), table.Age},
			Cells: api.Row(func(c *nodev1.RuntimeClass) []any {
				return []any{c.Name, c.Handler, table.AgeOf(c.CreationTimestamp)}
			}),
		},
	}
}
