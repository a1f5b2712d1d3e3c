package storagemigration_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/kindtest"
)

func TestStorageVersionMigration_ValidateRejects(t *testing.T) {
	t.Parallel()
	const migration = "metadata: {name: m}\nspec: {resource: {group: apps, resource: deployments}}\n"
	kindtest.Create(t, "StorageVersionMigration", migration, []kindtest.Case{
		{"nothing", []string{"{group: apps, resource: deployments}", "{}"}, []string{"Invalid spec.resource.resource"}},
		{"group", []string{"group: apps", "group: A"}, []string{"Invalid spec.resource.group"}},
		{"core", []string{"group: apps, ", ""}, nil},
	})
	kindtest.Update(t, "StorageVersionMigration", migration,
		[]kindtest.Case{{"resource", []string{"apps", "batch", "deployments", "jobs"},
			[]string{"Invalid group", "Invalid resource"}}})
	r := kindtest.Of(t, "StorageVersionMigration")
	with := func(version string, conditions ...string) api.Object {
		text := migration + "status:\n  resourceVersion: '" + version + "'\n  conditions:\n"
		for _, c := range conditions {
			text += "  - {type: " + c + ", status: 'True', reason: R, lastTransitionTime: '2026-01-01T00:00:00Z'}\n"
		}
		return kindtest.Decode(t, r, text)
	}
	for _, c := range []struct {
		is, was api.Object
		want    []string
	}{
		{with("1", "Running"), with(""), nil},
		{with("x", "Running"), with(""), []string{"Invalid status.resourceVersion"}},
		{with("2", "Running"), with("1", "Running"), []string{"Invalid status.resourceVersion"}},
		{with("1", "Succeeded", "Failed"), with("1"), []string{"Invalid status.conditions"}},
		{with("1", "Succeeded", "Running"), with("1"), []string{"Invalid status.conditions"}},
		{with("1", "Failed", "Running"), with("1"), []string{"Invalid status.conditions"}},
		{with("1"), with("1", "Succeeded"), []string{"Invalid status.conditions"}},
		{with("1"), with("1", "Failed"), []string{"Invalid status.conditions"}},
	} {
		require.ElementsMatch(t, c.want, kindtest.Refusals(r.Status.Validate(c.is, c.was)))
	}
}
