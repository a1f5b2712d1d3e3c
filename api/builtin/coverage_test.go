package builtin

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/api"
)

var update = flag.Bool("update", false, "write docs/api-coverage.md anew")

const coverageFile = "../../docs/api-coverage.md"

// TestCoverage_DocumentMatchesTheRegistrations keeps docs/api-coverage.md up to date.
func TestCoverage_DocumentMatchesTheRegistrations(t *testing.T) {
	want := coverage()
	if *update {
		require.NoError(t, os.WriteFile(coverageFile, []byte(want), 0o644))
	}
	have, err := os.ReadFile(coverageFile)
	require.NoError(t, err)
	require.Equal(t, want, string(have), "go test ./api/builtin -run TestCoverage -update writes it anew")
}

func coverage() string {
	var b strings.Builder
	b.WriteString(`# API coverage

Generated from the registrations in ` + "`api/`" + ` by ` + "`go test ./api/builtin -run TestCoverage -update`" + `.

Every kind is read and written as JSON, YAML and Kubernetes protobuf, and read as Table and
PartialObjectMetadata. A verb in brackets is not served. A kind with create alone is a review: it is
answered and not stored. The kinds of metrics.k8s.io and ComponentStatus are computed on request.

| group/version | kind | resource | scope | verbs | subresources | selectable fields |
|---|---|---|---|---|---|---|
`)
	verbs := []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	for _, r := range api.NewRegistry(append(Kinds(), Metrics()...)...).Snapshot().Resources {
		scope := "cluster"
		if r.Namespaced {
			scope = "namespace"
		}
		served := "all"
		if r.CreateOnly {
			served = "create"
		} else if len(r.UnsupportedVerbs) > 0 {
			list := slices.Clone(verbs)
			for i, v := range list {
				if slices.Contains(r.UnsupportedVerbs, v) {
					list[i] = "(" + v + ")"
				}
			}
			served = strings.Join(list, " ")
		}
		var subs []string
		for _, s := range r.AllSubresources() {
			subs = append(subs, s.Name)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", r.GroupVersion(), r.Kind,
			strings.Join(append([]string{r.Plural}, r.ShortNames...), ", "), scope, served,
			strings.Join(subs, " "), strings.Join(r.Fields, " "))
	}
	b.WriteString(comparison)
	return b.String()
}

// comparison describes how the behaviour of the kinds was compared with Kubernetes.
const comparison = `
## How the kinds were compared

Validation, defaults, immutable fields, generations, warnings and columns were compared with
kube-apiserver's own (pkg/apis/*/validation, pkg/api/pod/warnings.go, pkg/printers), group by group and field
by field: the path of each refusal, its reason, its message where that is fixed, and the number of causes that
one mistake has. A Deployment without a selector is refused for two, as there:

    spec.selector: Required value
    spec.template.metadata.labels: Invalid value: {"app":"web"}: ` + "`selector` does not match template `labels`" + `

Checks that Kubernetes makes of new objects alone are in ` + "`ValidateCreate`" + `, so that objects from before a rule can
still be updated. The tests below ` + "`api/`" + ` have a table for each kind: a sound object, a change to its text, and
the reasons and paths of all refusals that must come of it.

Known differences:

- Flow control has a few differences of its own: [flow-control.md](flow-control.md).
- The worst-case cost of the CEL expressions that select devices is not estimated, and the scheduler here
  allocates no devices: kube-scheduler does.
- Fields behind alpha gates are kept, where kube-apiserver drops them.
`
