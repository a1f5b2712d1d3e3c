package apiextensions_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/api"
	"github.com/coxswain-dev/coxswain/api/kindtest"
)

func TestDefault_FillsNamesConversionAndStoredVersions(t *testing.T) {
	t.Parallel()
	crd := changed(t, pairs{{"scope: Namespaced", "scope: Namespaced\n  conversion: {strategy: Webhook, " +
		"webhook: {conversionReviewVersions: [v1], clientConfig: {service: {name: n, namespace: n}}}}"}})
	require.Equal(t, "widget", crd.Spec.Names.Singular)
	require.Equal(t, "WidgetList", crd.Spec.Names.ListKind)
	require.Equal(t, int32(443), *crd.Spec.Conversion.Webhook.ClientConfig.Service.Port)
	require.Equal(t, []string{"v1"}, crd.Status.StoredVersions)

	again := crd.DeepCopy()
	kind().Default(again)
	require.Equal(t, crd, again)
	require.Equal(t, apiextensionsv1.NoneConverter, changed(t, nil).Spec.Conversion.Strategy)
}

func TestPrepareCreate_KeepsOnlyTheStorageVersion(t *testing.T) {
	t.Parallel()
	crd := changed(t, pairs{{"status: {}", "status: {storedVersions: [v0], acceptedNames: {kind: A, plural: a}}"}})
	r := kind()
	r.Status.Reset(crd)
	r.PrepareCreate(crd)
	require.Equal(t, apiextensionsv1.CustomResourceDefinitionStatus{StoredVersions: []string{"v1"}}, crd.Status)
}

func TestPrepareUpdate_AddsTheStorageVersion(t *testing.T) {
	t.Parallel()
	old := changed(t, nil)
	crd := changed(t, pairs{{"storage: true", "storage: false"},
		{"status: {}", "  - {name: v2, served: true, storage: true, schema: *schema}\nstatus: {storedVersions: [v9]}"}})
	r := kind()
	r.Status.Copy(crd, old)
	r.PrepareUpdate(crd, old)
	require.Equal(t, []string{"v1", "v2"}, crd.Status.StoredVersions)
	require.Equal(t, []string{"v1"}, old.Status.StoredVersions)
	require.Empty(t, r.ValidateUpdate(crd, old))
}

func TestTerminate_KeepsTheDefinitionForItsObjects(t *testing.T) {
	t.Parallel()
	crd := changed(t, nil)
	crd.Finalizers = []string{"example.com/own"}
	deleted := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	crd.DeletionTimestamp = &deleted
	kind().Terminate(crd)
	kind().Terminate(crd)
	require.Equal(t, []string{"example.com/own", "customresourcecleanup.apiextensions.k8s.io"}, crd.Finalizers)
	require.Equal(t, []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.Terminating,
		Status: apiextensionsv1.ConditionTrue, LastTransitionTime: deleted, Reason: "InstanceDeletionPending",
		Message: "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon"}},
		crd.Status.Conditions)
	// The finalizer has no domain. An update of the definition may keep it nevertheless.
	require.Empty(t, kind().ValidateMetadata(crd, nil))
}

func TestStatus_ValidatesAcceptedNames(t *testing.T) {
	t.Parallel()
	crd := changed(t, pairs{{"status: {}", "status: {acceptedNames: {kind: A.B, plural: widgets}}"}})
	require.Equal(t, []string{"Invalid status.acceptedNames.kind"},
		kindtest.Refusals(kind().Status.Validate(crd, crd)))
	require.Empty(t, kind().Status.Validate(changed(t, nil), crd))
	require.Equal(t, api.AllMetadata, kind().Status.Metadata)
}

func TestCells(t *testing.T) {
	t.Parallel()
	crd := changed(t, pairs{{"kind: Widget", "kind: Widget, shortNames: [w, wi]"},
		{"status: {}", "  - {name: beta, served: true, storage: false, schema: *schema}\n" +
			"  - {name: old, served: false, storage: false, schema: *schema}\n" +
			"status: {conditions: [{type: Established, status: 'True'}]}"}})
	crd.CreationTimestamp = metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	r := kind()
	require.Equal(t, []any{"widgets.example.com", "Namespaced", "beta,v1(storage)", "2026-01-02T03:04:05Z",
		"example.com", "Widget", "w,wi", true}, r.Cells(crd))
	require.Len(t, r.Columns, len(r.Cells(crd)))
	require.Equal(t, false, r.Cells(changed(t, nil))[7])
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	old := withSchema(t, `{type: object, properties: {a: {type: string, format: word}}}`)
	crd := withSchema(t, `{type: object, properties: {
		a: {type: string, format: word}, b: {type: integer, format: date}, c: {type: string, format: k8s-short-name},
		d: {type: array, items: {type: object, x-kubernetes-map-type: atomic}, x-kubernetes-list-type: set}}}`)
	const word, date = `unrecognized format "word"`, `unrecognized format "date"`
	const set = `x-kubernetes-list-type: set for items of type "object" is not supported by server-side apply or ` +
		`CEL validation rules`
	warn := kind().Warnings
	require.Equal(t, []string{word, date, set}, warn(crd, nil))
	require.Equal(t, []string{date, set}, warn(crd, old))
	require.Empty(t, warn(old, old))
}
