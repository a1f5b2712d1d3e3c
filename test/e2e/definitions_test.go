//go:build e2e

package e2e

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// project is a folder of definitions, with objects of their kinds in its subfolder objects.
type project struct {
	name string
	// refusals are parts of kubectl's errors, one for each object that the server must reject.
	refusals []string
	// more, if not nil, runs further checks while the definitions exist.
	more func(c *cluster)
}

// projects are well-known ones. Their folders are in COXSWAIN_DEFINITIONS, or in shared/crds beside the repository.
var projects = []project{
	{name: "gateway-api", more: (*cluster).safeUpgrades},
	{name: "cert-manager"},
	{name: "kueue"},
	// These two are meant for argo's own client, which generates their names.
	{name: "argo-workflows", refusals: []string{
		`Workflow.argoproj.io "" is invalid: [metadata.name: Required value: name or generateName is required`,
		`Workflow.argoproj.io "" is invalid: metadata.name: Required value: name or generateName is required`,
	}},
	// The mutating webhook of jobset would name the rules of these. Without it the schema rejects them.
	{name: "jobset", refusals: []string{
		`"failjobset-action-example" is invalid: [spec.failurePolicy.rules[0].name: Required value`,
		`"host-maintenance-event-model" is invalid: [spec.failurePolicy.rules[0].name: Required value`,
		`"onjobfailurereasons-podfailurepolicy-example" is invalid: [spec.failurePolicy.rules[0].name: Required value`,
		`"onjobfailurereasons-present-example" is invalid: [spec.failurePolicy.rules[0].name: Required value`,
		`"restartjobset-action-example" is invalid: [spec.failurePolicy.rules[0].name: Required value`,
		`"rjimr-action-example" is invalid: [spec.failurePolicy.rules[0].name: Required value`,
	}},
}

func TestDefinitions_OfProjects(t *testing.T) {
	t.Parallel()
	folder := cmp.Or(os.Getenv("COXSWAIN_DEFINITIONS"), "../../../shared/crds")
	if _, err := os.Stat(folder); err != nil {
		t.Skip("SKIPPED: no definitions of projects (COXSWAIN_DEFINITIONS, ../shared/crds); our own are tried")
	}
	for _, p := range projects {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			up(t, dataDir(t), "--nodes", "0").tryDefinitions(p, filepath.Join(folder, p.name))
		})
	}
}

func TestDefinitions_OfOurOwn(t *testing.T) {
	t.Parallel()
	p := project{more: (*cluster).runWorkshop, refusals: []string{
		`"big-lathe" is invalid: spec.replicas: Invalid value: a lathe has at most 3 replicas`,
		`"table" is invalid: <nil>: Invalid value: the steps must be counted`,
	}}
	up(t, dataDir(t), "--nodes", "0").tryDefinitions(p, "testdata/definitions")
}

// tryDefinitions runs a folder of definitions through its life cycle.
func (c *cluster) tryDefinitions(p project, folder string) {
	c.run(kubectl, "apply", "--server-side", "-f", folder)
	c.run(kubectl, "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
	crds := c.definitions()
	require.NotEmpty(c.t, crds)
	for i := range crds {
		c.explained(&crds[i])
	}
	created := c.createObjects(crds, filepath.Join(folder, "objects"), p.refusals)
	for i := range crds {
		if created[crds[i].Spec.Names.Kind] > 0 {
			c.printed(&crds[i])
		}
	}
	c.categorized(crds, created)
	if p.more != nil {
		p.more(c)
	}
	c.run(kubectl, "delete", "crd", "--all", "--timeout=60s")
	require.Empty(c.t, c.run(kubectl, "get", "crd", "-o", "name"))
	for _, crd := range crds {
		code, body := c.get("/apis/" + crd.Spec.Group + "/" + crd.Spec.Versions[0].Name + "/" + crd.Spec.Names.Plural)
		require.Equal(c.t, http.StatusNotFound, code, "%s: %s", crd.Name, body)
	}
}

// definitions returns the server's CRDs.
func (c *cluster) definitions() []apiextensionsv1.CustomResourceDefinition {
	code, body := c.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
	require.Equal(c.t, http.StatusOK, code, body)
	var list apiextensionsv1.CustomResourceDefinitionList
	require.NoError(c.t, json.Unmarshal([]byte(body), &list))
	return list.Items
}

// explained requires that kubectl explains each field below the root of each version.
func (c *cluster) explained(crd *apiextensionsv1.CustomResourceDefinition) {
	for _, v := range crd.Spec.Versions {
		if !v.Served {
			continue
		}
		text := c.run(kubectl, "explain", "--recursive", crd.Spec.Names.Plural,
			"--api-version="+crd.Spec.Group+"/"+v.Name)
		require.Regexp(c.t, `KIND: +`+crd.Spec.Names.Kind+"\n", text)
		require.Regexp(c.t, `VERSION: +`+v.Name+"\n", text)
		for field := range v.Schema.OpenAPIV3Schema.Properties {
			require.Regexp(c.t, `(?m)^  `+field+"\t<", text, "%s %s", crd.Name, v.Name)
		}
	}
}

// createObjects creates the objects of a folder, and returns their number by kind.
func (c *cluster) createObjects(crds []apiextensionsv1.CustomResourceDefinition, folder string,
	refusals []string) map[string]int {
	objects := c.objectsOf(crds, folder)
	if len(objects) == 0 {
		return nil
	}
	var all strings.Builder // not a List: kubectl would validate its items itself
	for _, obj := range objects {
		doc, err := obj.MarshalJSON()
		require.NoError(c.t, err)
		fmt.Fprintf(&all, "---\n%s\n", doc)
	}
	out, stderr, err := c.try(kubectl, "create", "-o", "json", "-f", writeFile(c.t, "objects.yaml", all.String()))
	require.Equal(c.t, len(refusals) > 0, err != nil, "%s", stderr)
	var refused []string
	for line := range strings.Lines(stderr) {
		if strings.HasPrefix(line, "Error") {
			refused = append(refused, line)
		}
	}
	require.Len(c.t, refused, len(refusals), "%s", stderr)
	for _, want := range refusals {
		require.True(c.t, slices.ContainsFunc(refused, func(line string) bool { return strings.Contains(line, want) }),
			"%s\n%s", want, stderr)
	}
	created, total := map[string]int{}, 0
	for made := json.NewDecoder(strings.NewReader(out)); made.More(); total++ {
		var obj unstructured.Unstructured
		require.NoError(c.t, made.Decode(&obj.Object))
		created[obj.GetKind()]++
	}
	require.Equal(c.t, len(objects), total+len(refused), "%s", stderr)
	return created
}

// objectsOf reads the objects of some kinds, namespaces first. Objects with the same name become several.
func (c *cluster) objectsOf(crds []apiextensionsv1.CustomResourceDefinition,
	folder string) (objects []unstructured.Unstructured) {
	files, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	require.NoError(c.t, err)
	namespaces := map[string]bool{"": true, "default": true}
	var spaces []unstructured.Unstructured
	for i, file := range files {
		for _, obj := range documents(c.t, file) {
			if !slices.ContainsFunc(crds, func(crd apiextensionsv1.CustomResourceDefinition) bool {
				return crd.Spec.Group == obj.GroupVersionKind().Group && crd.Spec.Names.Kind == obj.GetKind()
			}) {
				continue
			}
			if slices.ContainsFunc(objects, func(other unstructured.Unstructured) bool {
				return obj.GetName() != "" && other.GetKind() == obj.GetKind() && other.GetName() == obj.GetName()
			}) {
				obj.SetName(fmt.Sprintf("%s-%d", obj.GetName(), i))
			}
			if name := obj.GetNamespace(); !namespaces[name] {
				namespaces[name] = true
				space := unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace"}}
				space.SetName(name)
				spaces = append(spaces, space)
			}
			objects = append(objects, obj)
		}
	}
	return append(spaces, objects...)
}

// documents parses the objects of a file.
func documents(t *testing.T, file string) (objects []unstructured.Unstructured) {
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	for from := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096); ; {
		var obj unstructured.Unstructured
		err := from.Decode(&obj.Object)
		if err == io.EOF {
			return objects
		}
		require.NoError(t, err, file)
		if obj.Object != nil {
			objects = append(objects, obj)
		}
	}
}

// printed requires that kubectl prints the columns of each version, and with -o wide all of them.
func (c *cluster) printed(crd *apiextensionsv1.CustomResourceDefinition) {
	for _, v := range crd.Spec.Versions {
		if !v.Served {
			continue
		}
		narrow, wide := "NAME", "NAME"
		for _, column := range v.AdditionalPrinterColumns {
			wide += " " + strings.ToUpper(column.Name)
			if column.Priority == 0 {
				narrow += " " + strings.ToUpper(column.Name)
			}
		}
		if len(v.AdditionalPrinterColumns) == 0 {
			narrow, wide = "NAME AGE", "NAME AGE"
		}
		if crd.Spec.Scope == apiextensionsv1.NamespaceScoped {
			narrow, wide = "NAMESPACE "+narrow, "NAMESPACE "+wide
		}
		resource := crd.Spec.Names.Plural + "." + v.Name + "." + crd.Spec.Group
		for _, form := range []struct{ output, want string }{{"", narrow}, {"wide", wide}} {
			header, rows, _ := strings.Cut(c.run(kubectl, "get", "-A", resource, "-o", form.output), "\n")
			require.Equal(c.t, strings.Fields(form.want), strings.Fields(header), resource)
			require.NotEmpty(c.t, rows)
		}
	}
}

// categorized requires that kubectl finds all objects of a category.
func (c *cluster) categorized(crds []apiextensionsv1.CustomResourceDefinition, created map[string]int) {
	counts := map[string]int{}
	for _, crd := range crds {
		for _, category := range crd.Spec.Names.Categories {
			counts[category] += created[crd.Spec.Names.Kind]
		}
	}
	for category, count := range counts {
		require.Equal(c.t, count, strings.Count(c.run(kubectl, "get", category, "-A", "-o", "name"), "\n"), category)
	}
}

// safeUpgrades checks the admission policy of gateway-api for its definitions.
func (c *cluster) safeUpgrades() {
	annotate := func(name, value string) error {
		_, stderr, err := c.try(kubectl, "annotate", "--overwrite", "crd", "gateways.gateway.networking.k8s.io",
			"gateway.networking.k8s.io/"+name+"="+value)
		if err != nil {
			return fmt.Errorf("%w: %s", err, stderr)
		}
		return nil
	}
	require.ErrorContains(c.t, annotate("bundle-version", "v1.4.1"),
		"ValidatingAdmissionPolicy 'safe-upgrades.gateway.networking.k8s.io' with binding "+
			"'safe-upgrades.gateway.networking.k8s.io' denied request: Installing CRDs with version other than "+
			"v0.0.0-dev or v1.5+ is prohibited by default.")
	require.NoError(c.t, annotate("bundle-version", "v1.5.0"))
	require.NoError(c.t, annotate("channel", "standard"))
	require.ErrorContains(c.t, annotate("channel", "experimental"),
		"Installing experimental CRDs on top of standard channel CRDs is prohibited by default.")
}

// runWorkshop checks the features of our own definitions.
func (c *cluster) runWorkshop() {
	t := c.t
	c.run(kubectl, "scale", "machine/lathe", "--replicas=2")
	_, stderr, err := c.try(kubectl, "scale", "machine/lathe", "--replicas=4")
	require.Error(t, err)
	require.Contains(t, stderr, "a lathe has at most 3 replicas")
	require.Equal(t, "2 2", c.run(kubectl, "get", "mach", "lathe", "-o", "jsonpath={.spec.replicas} {.metadata.generation}"))

	c.run(kubectl, "patch", "mach", "saw", "--subresource=status", "--type=merge", "-p",
		`{"spec":{"replicas":1},"status":{"conditions":[{"type":"Ready","status":"True"}]}}`)
	c.run(kubectl, "wait", "--for=condition=Ready", "mach/saw", "--timeout=10s")
	require.Regexp(t, `(?m)^saw +saw +5 +True +slow `, c.run(kubectl, "get", "mach", "-o", "wide"))
	require.Equal(t, "10mm 3", c.run(kubectl, "get", "mach", "saw", "-o", "jsonpath={.spec.parts[*].size}"))

	require.Equal(t, "machine.workshop.example.com/saw\n",
		c.run(kubectl, "get", "mach", "--field-selector", "spec.model=saw", "-o", "name"))
	_, stderr, err = c.try(kubectl, "get", "mach", "--field-selector", "spec.speed=slow")
	require.Error(t, err)
	require.Contains(t, stderr, "field label not supported: spec.speed")

	_, stderr, err = c.try(kubectl, "patch", "mach", "saw", "--type=merge", "-p", `{"spec":{"model":"axe"}}`)
	require.Error(t, err)
	require.Contains(t, stderr, "spec.model: Invalid value: \"axe\": the model can't be changed")

	_, stderr, err = c.try(kubectl, "get", "machines.v1beta1.workshop.example.com")
	require.NoError(t, err)
	require.Contains(t, stderr, "Warning: workshop.example.com/v1beta1 Machine is deprecated")

	_, stderr, err = c.try(kubectl, "apply", "-f", writeFile(t, "strict.yaml",
		"apiVersion: workshop.example.com/v1\nkind: Machine\nmetadata: {name: odd}\nspec: {model: odd, modle: even}\n"))
	require.Error(t, err)
	require.Contains(t, stderr, `strict decoding error: unknown field "spec.modle"`)
}
