package apiregistration_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/coxswain-dev/coxswain/api/kindtest"
)

const remote = `
metadata: {name: v1.example.com}
spec:
  group: example.com
  version: v1
  groupPriorityMinimum: 1000
  versionPriority: 15
  service: {namespace: ns, name: s}
`

func TestAPIService_ValidateRejects(t *testing.T) {
	t.Parallel()
	const service = "  service: {namespace: ns, name: s}\n"
	kindtest.Create(t, "APIService", remote, []kindtest.Case{
		{"name", []string{"name: v1.example.com", "name: v2.example.com"}, []string{"Invalid metadata.name"}},
		{"group", []string{"name: v1.example.com", "name: v1.Example", "group: example.com", "group: Example"},
			[]string{"Invalid spec.group"}},
		{"no group", []string{"name: v1.example.com", "name: v2.", "group: example.com", "group: ''", "version: v1",
			"version: v2"}, []string{"Required spec.group"}},
		{"the legacy group", []string{"name: v1.example.com", "name: v1.", "group: example.com", "group: ''"}, nil},
		{"version", []string{"name: v1.example.com", "name: 1.example.com", "version: v1", "version: '1'"},
			[]string{"Invalid spec.version"}},
		{"priorities", []string{"1000", "0", "15", "0"},
			[]string{"Invalid spec.groupPriorityMinimum", "Invalid spec.versionPriority"}},
		{"high priorities", []string{"1000", "20001", "15", "1001"},
			[]string{"Invalid spec.groupPriorityMinimum", "Invalid spec.versionPriority"}},
		{"the highest priorities", []string{"1000", "20000", "15", "1000"}, nil},
		{"service", []string{"{namespace: ns, name: s}", "{port: 70000}"}, []string{"Required spec.service.namespace",
			"Required spec.service.name", "Invalid spec.service.port"}},
		{"unverified with authorities", []string{service, service + "  caBundle: YQ==\n  insecureSkipTLSVerify: true\n"},
			[]string{"Invalid spec.insecureSkipTLSVerify"}},
		{"local with authorities", []string{service, "  caBundle: YQ==\n  insecureSkipTLSVerify: true\n"},
			[]string{"Invalid spec.caBundle", "Invalid spec.insecureSkipTLSVerify"}},
	})
}

func TestAPIService_DefaultsAndColumns(t *testing.T) {
	t.Parallel()
	r := kindtest.Of(t, "APIService")
	service := kindtest.Decode(t, r, remote).(*apiregistrationv1.APIService)
	require.EqualValues(t, 443, *service.Spec.Service.Port)
	r.Status.Reset(service)
	require.Empty(t, service.Status.Conditions)
	require.Equal(t, []any{"v1.example.com", "ns/s", "Unknown"}, r.Cells(service)[:3])
	service.Status.Conditions = []apiregistrationv1.APIServiceCondition{{Type: "Available", Status: "False",
		Reason: "MissingEndpoints"}}
	require.Equal(t, "False (MissingEndpoints)", r.Cells(service)[2])
	service.Spec.Service = nil
	r.Status.Reset(service)
	require.Equal(t, []any{"v1.example.com", "Local", "True"}, r.Cells(service)[:3])
	require.Equal(t, "Local APIServices are always available", service.Status.Conditions[0].Message)
	service.Status.Conditions[0].Status = "Perhaps"
	require.Equal(t, []string{"NotSupported status.conditions[0].status"},
		kindtest.Refusals(r.Status.Validate(service, service)))
}
