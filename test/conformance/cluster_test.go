//go:build e2e

package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// patience is how long a test waits for an eventual effect, and tick the interval between checks.
	patience = 30 * time.Second
	tick     = 20 * time.Millisecond
)

// cluster has clients of the cluster under test, and a namespace for one test.
type cluster struct {
	t           *testing.T
	ctx         context.Context
	config      *rest.Config
	core        kubernetes.Interface
	definitions clientset.Interface
	dynamic     dynamic.Interface
	namespace   string
	home        string // of kubectl, for its discovery cache
}

func connect(t *testing.T) *cluster {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	require.NoError(t, err)
	config.QPS, config.WarningHandler = -1, rest.NoWarnings{}
	c := &cluster{t: t, ctx: t.Context(), config: config, home: t.TempDir()}
	c.core, err = kubernetes.NewForConfig(config)
	require.NoError(t, err)
	c.definitions, err = clientset.NewForConfig(config)
	require.NoError(t, err)
	c.dynamic, err = dynamic.NewForConfig(config)
	require.NoError(t, err)
	space, err := c.core.CoreV1().Namespaces().Create(c.ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "conformance-"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	c.namespace = space.Name
	c.cleanup(func(ctx context.Context) error {
		return c.core.CoreV1().Namespaces().Delete(ctx, c.namespace, metav1.DeleteOptions{})
	})
	return c
}

// cleanup runs after the test. It ignores objects that the test has deleted itself.
func (c *cluster) cleanup(remove func(ctx context.Context) error) {
	c.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := remove(ctx); err != nil && !strings.Contains(err.Error(), "not found") {
			c.t.Error(err)
		}
	})
}

// version returns a served version with a schema in JSON; the first version of a definition is the stored one.
func version(name, openAPISchema string) apiextensionsv1.CustomResourceDefinitionVersion {
	var props apiextensionsv1.JSONSchemaProps
	if err := json.Unmarshal([]byte(openAPISchema), &props); err != nil {
		panic(err)
	}
	return apiextensionsv1.CustomResourceDefinitionVersion{Name: name, Served: true,
		Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &props}}
}

const (
	plainSchema = `{"type":"object","x-kubernetes-preserve-unknown-fields":true}`
	fooSchema   = `{"type":"object","description":"Foo CRD for testing","properties":{
		"spec":{"type":"object","description":"Specification of Foo","properties":{
			"bars":{"type":"array","description":"List of Bars and their specs","items":{"type":"object",
				"required":["name"],"properties":{
				"name":{"type":"string","description":"Name of Bar"},
				"age":{"type":"string","description":"Age of Bar"},
				"feeling":{"type":"string","enum":["Great","Down"]},
				"bazs":{"type":"array","description":"List of Bazs","items":{"type":"string"}}}}}}},
		"status":{"type":"object","description":"Status of Foo","properties":{
			"bars":{"type":"array","items":{"type":"object","properties":{"name":{"type":"string"}}}}}}}}`
	waldoSchema = `{"type":"object","description":"Waldo CRD for testing","properties":{
		"spec":{"type":"object","description":"Specification of Waldo","properties":{
			"dummy":{"type":"string","description":"Dummy property"}}}}}`
)

// definition returns a definition of a kind that no other test uses.
func definition(kind string, versions ...apiextensionsv1.CustomResourceDefinitionVersion,
) *apiextensionsv1.CustomResourceDefinition {
	group := "conformance-" + rand.String(8) + ".example.com"
	plural := strings.ToLower(kind) + "s"
	versions[0].Storage = true
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names:    apiextensionsv1.CustomResourceDefinitionNames{Plural: plural, Kind: kind},
			Versions: versions},
	}
}

// define creates a definition, waits until it is established, and deletes it after the test.
func (c *cluster) define(crd *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	c.t.Helper()
	_, err := c.crds().Create(c.ctx, crd, metav1.CreateOptions{})
	require.NoError(c.t, err)
	c.cleanup(func(ctx context.Context) error { return c.crds().Delete(ctx, crd.Name, metav1.DeleteOptions{}) })
	var found *apiextensionsv1.CustomResourceDefinition
	require.Eventually(c.t, func() bool {
		found, err = c.crds().Get(c.ctx, crd.Name, metav1.GetOptions{})
		require.NoError(c.t, err)
		for _, condition := range found.Status.Conditions {
			if condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue {
				return true
			}
		}
		return false
	}, patience, tick)
	return found
}

func (c *cluster) crds() apiextensionsclient.CustomResourceDefinitionInterface {
	return c.definitions.ApiextensionsV1().CustomResourceDefinitions()
}

// objects returns the client for the objects of a kind's version in the test's namespace.
func (c *cluster) objects(crd *apiextensionsv1.CustomResourceDefinition, version string) dynamic.ResourceInterface {
	return c.dynamic.Resource(schema.GroupVersionResource{Group: crd.Spec.Group, Version: version,
		Resource: crd.Spec.Names.Plural}).Namespace(c.namespace)
}

// object returns an object of a kind's version.
func object(crd *apiextensionsv1.CustomResourceDefinition, version, name string,
	fields map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": crd.Spec.Group + "/" + version,
		"kind": crd.Spec.Names.Kind, "metadata": map[string]any{"name": name}}}
	for field, value := range fields {
		u.Object[field] = value
	}
	return u
}

// get reads a path of the server.
func (c *cluster) get(path, accept string) []byte {
	c.t.Helper()
	body, err := c.core.Discovery().RESTClient().Get().AbsPath(path).SetHeader("Accept", accept).DoRaw(c.ctx)
	require.NoError(c.t, err)
	return body
}

// path returns the path of a kind's version.
func (c *cluster) path(crd *apiextensionsv1.CustomResourceDefinition, version string) string {
	return fmt.Sprintf("/apis/%s/%s/namespaces/%s/%s", crd.Spec.Group, version, c.namespace, crd.Spec.Names.Plural)
}

// kubectl runs kubectl in the test's namespace, with a text as its input.
func (c *cluster) kubectl(input string, args ...string) (out string, err error) {
	cmd := exec.CommandContext(c.ctx, kubectl, append([]string{"--namespace", c.namespace}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "HOME="+c.home)
	cmd.Stdin = strings.NewReader(input)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err = cmd.Run(); err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, stderr.Bytes())
	}
	return stdout.String(), err
}
