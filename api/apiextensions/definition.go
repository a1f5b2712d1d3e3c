package apiextensions

import (
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/kit/table"
)

type definition = apiextensionsv1.CustomResourceDefinition

func customResourceDefinitions() *api.Resource {
	return &api.Resource{
		Names: api.Names{
			Group: apiextensionsv1.GroupName, Version: "v1", Kind: "CustomResourceDefinition",
			Plural:     "customresourcedefinitions",
			ShortNames: []string{"crd", "crds"},
			Categories: []string{"api-extensions"},
		},
		Storage: api.Storage{
			New:     func() api.Object { return &definition{} },
			NewList: func() runtime.Object { return &apiextensionsv1.CustomResourceDefinitionList{} },
		},
		Strategy: api.Strategy{
			Conditional:     true,
			GenericMetadata: true,
			Default:         api.Typed(setDefaults),
			PrepareCreate:   api.Typed(storeVersion),
			PrepareUpdate:   api.Typed2(func(crd, _ *definition) { storeVersion(crd) }),
			Terminate:       api.Typed(terminate),
			TerminateOnly:   true,
			Generation:      true,
			ValidateCreate:  api.Check(validateCreate),
			ValidateUpdate:  api.CheckUpdate(validateUpdate),
			Warnings:        api.Warn(warnings),
			Status: api.StatusOf(
				func(crd *definition) *apiextensionsv1.CustomResourceDefinitionStatus { return &crd.Status },
				(*apiextensionsv1.CustomResourceDefinitionStatus).DeepCopy,
			).WithMetadata(api.AllMetadata).CheckedBy(api.CheckUpdate(validateStatusUpdate)),
		},
		Table: api.Table{
			Columns: []metav1.TableColumnDefinition{
				table.Name,
				table.Column("Scope", "string", "Cluster/Namespaced"),
				table.Column("Versions", "string", "Served versions"),
				table.CreatedAt,
				table.Wide("Group", "string", "API group"),
				table.Wide("Kind", "string", "CustomResource kind"),
				table.Wide("ShortNames", "string", "Short names"),
				table.Wide("Established", "boolean", "Established status"),
			},
			Cells: api.Row(func(crd *definition) []any {
				return []any{crd.Name, string(crd.Spec.Scope), servedVersions(crd),
					table.CreatedAtOf(crd.CreationTimestamp), crd.Spec.Group, crd.Spec.Names.Kind,
					strings.Join(crd.Spec.Names.ShortNames, ","), isEstablished(crd)}
			}),
		},
	}
}

func servedVersions(crd *definition) string {
	var served []string
	for _, v := range crd.Spec.Versions {
		switch {
		case v.Served && v.Storage:
			served = append(served, v.Name+"(storage)")
		case v.Served:
			served = append(served, v.Name)
		}
	}
	slices.Sort(served)
	return strings.Join(served, ",")
}

func isEstablished(crd *definition) bool {
	i := slices.IndexFunc(crd.Status.Conditions, func(c apiextensionsv1.CustomResourceDefinitionCondition) bool {
		return c.Type == apiextensionsv1.Established
	})
	return i >= 0 && crd.Status.Conditions[i].Status == apiextensionsv1.ConditionTrue
}
