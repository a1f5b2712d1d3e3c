package crd_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/coxswain-dev/coxswain/apiserver"
	"github.com/coxswain-dev/coxswain/testenv/servertest"
)

// BenchmarkStart is the start of a server, on an etcd that runs, that finds a thousand definitions of 20 kB.
func BenchmarkStart(b *testing.B) {
	backend := servertest.Backend(b)
	client := dynamic.NewForConfigOrDie(servertest.Start(b, apiserver.Options{
		Store: servertest.Store(b, backend, storageOptions)}).Config)
	for i := range 1000 {
		name := fmt.Sprintf("kind%ds", i)
		_, err := client.Resource(definitions).Create(b.Context(), definition(
			func(crd *apiextensionsv1.CustomResourceDefinition) {
				crd.Name, crd.Spec.Names = name+".example.com", apiextensionsv1.CustomResourceDefinitionNames{Plural: name,
					Kind: fmt.Sprintf("Kind%d", i)}
				fields := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties
				for f := range 80 {
					fields[fmt.Sprintf("field%d", f)] = apiextensionsv1.JSONSchemaProps{Type: "string",
						Description: strings.Repeat("A field's description. ", 9)}
				}
			}), metav1.CreateOptions{})
		require.NoError(b, err)
	}
	b.ResetTimer()
	for b.Loop() {
		servertest.Start(b, apiserver.Options{Store: servertest.Store(b, backend, storageOptions)})
	}
}
