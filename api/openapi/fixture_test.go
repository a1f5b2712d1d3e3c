package openapi_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/openapi/openapitest"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/customresource"
	apidocs "github.com/coxswain-dev/coxswain/api/openapi"
)

const version = "v1.2.3+coxswain"

func register[O, L any](group, version, kind, plural string, namespaced bool, more func(*api.Resource)) *api.Resource {
	r := &api.Resource{
		Names: api.Names{Group: group, Version: version, Kind: kind, Plural: plural, Namespaced: namespaced},
		Storage: api.Storage{
			New:     func() api.Object { return any(new(O)).(api.Object) },
			NewList: func() runtime.Object { return any(new(L)).(runtime.Object) },
		},
	}
	if more != nil {
		more(r)
	}
	return r
}

func deployments() *api.Resource {
	return register[appsv1.Deployment, appsv1.DeploymentList]("apps", "v1", "Deployment", "deployments", true,
		func(r *api.Resource) {
			r.Status, r.Scale = &api.Status{}, &api.Scale{}
		})
}

// cronTabs returns a custom kind from Kubernetes' documentation.
func cronTabs() *api.Resource { return define(cronTabsDoc)[0] }

const cronTabsDoc = `{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1",
"metadata":{"name":"crontabs.stable.example.com","uid":"u1"},
"spec":{"group":"stable.example.com","scope":"Namespaced",
 "names":{"plural":"crontabs","singular":"crontab","kind":"CronTab","listKind":"CronTabList"},
 "versions":[{"name":"v1","served":true,"storage":true,
  "schema":{"openAPIV3Schema":{"type":"object","description":"CronTab runs a command at times.",
   "required":["spec"],"properties":{
    "metadata":{"type":"object","properties":{"name":{"type":"string","maxLength":20}}},
    "spec":{"type":"object","description":"What to run.","required":["cronSpec","hold"],
     "x-kubernetes-validations":[{"rule":"self.replicas > 0","message":"none"}],
     "properties":{
      "cronSpec":{"type":"string","description":"The times."},
      "replicas":{"type":"integer","default":1,"minimum":0,"format":"int32"},
      "port":{"x-kubernetes-int-or-string":true,"anyOf":[{"type":"integer"},{"type":"string"}]},
      "surge":{"x-kubernetes-int-or-string":true},
      "hold":{"type":"object","nullable":true,"properties":{"a":{"type":"string"}}},
      "steps":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["name"],
       "items":{"type":"object","required":["name"],"properties":{"name":{"type":"string","default":"main"},
        "limits":{"type":"object","additionalProperties":{"type":"string","enum":["a","b"]}}}}},
      "any":{"type":"object","x-kubernetes-preserve-unknown-fields":true,"properties":{"b":{"type":"string"}}},
      "anys":{"type":"array","items":{"x-kubernetes-preserve-unknown-fields":true}},
      "object":{"type":"object","x-kubernetes-embedded-resource":true,"properties":{"spec":{"type":"object"}},
       "oneOf":[{"required":["spec"]},{"not":{"required":["spec"]}}]}}},
    "status":{"type":"object","x-kubernetes-map-type":"atomic","properties":{"replicas":{"type":"integer"}}}}}},
  "subresources":{"status":{},"scale":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas"}},
  "selectableFields":[{"jsonPath":".spec.cronSpec"}]}]},
"status":{"acceptedNames":{"plural":"crontabs","singular":"crontab","kind":"CronTab","listKind":"CronTabList"},
 "conditions":[{"type":"Established","status":"True"},{"type":"NamesAccepted","status":"True"}]}}`

// define returns the kinds of a definition.
func define(doc string) []*api.Resource {
	d, err := customresource.Read([]byte(doc))
	if err != nil {
		panic(err)
	}
	served, _ := d.Kinds(nil)
	return served
}

func registry() *api.Registry {
	return api.NewRegistry(
		register[corev1.Namespace, corev1.NamespaceList]("", "v1", "Namespace", "namespaces", false,
			func(r *api.Resource) {
				r.Status = &api.Status{}
				r.UnsupportedVerbs = []string{"deletecollection"}
			}),
		register[corev1.Pod, corev1.PodList]("", "v1", "Pod", "pods", true, func(r *api.Resource) {
			r.Status = &api.Status{}
			r.Subresources = []api.Subresource{
				{Name: "binding", Version: "v1", Kind: "Binding", Verbs: []string{"create"},
					New: func() api.Object { return &corev1.Binding{} }},
				{Name: "eviction", Group: "policy", Version: "v1", Kind: "Eviction", Verbs: []string{"create"},
					New: func() api.Object { return &policyv1.Eviction{} }},
			}
		}),
		register[corev1.Service, corev1.ServiceList]("", "v1", "Service", "services", true, nil),
		register[corev1.ConfigMap, corev1.ConfigMapList]("", "v1", "ConfigMap", "configmaps", true, nil),
		register[corev1.Event, corev1.EventList]("", "v1", "Event", "events", true, nil),
		deployments(),
		register[appsv1.StatefulSet, appsv1.StatefulSetList]("apps", "v1", "StatefulSet", "statefulsets", true, nil),
		cronTabs(),
	)
}

// client returns a fake of client-go's OpenAPI client for these documents.
func client(t testing.TB, s *api.Snapshot) openapi.Client {
	docs := apidocs.NewDocuments(version)
	fake := openapitest.NewFakeClient()
	for _, path := range apidocs.V3Paths(s) {
		data, err := docs.V3(s, path).JSON()
		require.NoError(t, err)
		fake.PathsMap[path] = openapitest.FakeGroupVersion{GVSpec: data}
	}
	return fake
}
