package apiserver_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	applyapps "k8s.io/client-go/applyconfigurations/apps/v1"
	applyautoscaling "k8s.io/client-go/applyconfigurations/autoscaling/v1"
	applycore "k8s.io/client-go/applyconfigurations/core/v1"
	applymeta "k8s.io/client-go/applyconfigurations/meta/v1"
)

const applyPatch = string(types.ApplyYAMLPatchType)

func by(manager string) metav1.ApplyOptions { return metav1.ApplyOptions{FieldManager: manager} }

func forcedBy(manager string) metav1.ApplyOptions {
	return metav1.ApplyOptions{FieldManager: manager, Force: true}
}

// owners describes the owners of fields, one line for each entry of managedFields.
func owners(obj metav1.Object) []string {
	var lines []string
	for _, e := range obj.GetManagedFields() {
		sub := ""
		if e.Subresource != "" {
			sub = "/" + e.Subresource
		}
		lines = append(lines, fmt.Sprintf("%s %s%s %s", e.Manager, e.Operation, sub, e.FieldsV1.GetRawString()))
	}
	return lines
}

// applyDeployment returns the apply configuration of a Deployment, from client-go.
func applyDeployment(name, image string) *applyapps.DeploymentApplyConfiguration {
	return applyapps.Deployment(name, "default").WithSpec(applyapps.DeploymentSpec().
		WithSelector(applymeta.LabelSelector().WithMatchLabels(map[string]string{"app": name})).
		WithTemplate(applycore.PodTemplateSpec().WithLabels(map[string]string{"app": name}).
			WithSpec(applycore.PodSpec().WithContainers(applycore.Container().WithName("web").WithImage(image)))))
}

func TestApply_CreatesAndOwnsItsFields(t *testing.T) {
	t.Parallel()
	deployments := start(t).typed().AppsV1().Deployments("default")
	created, err := deployments.Apply(t.Context(), applyDeployment("web", "nginx:1"), by("team"))
	require.NoError(t, err)
	require.EqualValues(t, 1, *created.Spec.Replicas, "defaults are filled in")
	require.Equal(t,
		[]string{`team Apply {"f:spec":{"f:selector":{},"f:template":{"f:metadata":{"f:labels":{"f:app":{}}},` +
			`"f:spec":{"f:containers":{"k:{\"name\":\"web\"}":{".":{},"f:image":{},"f:name":{}}}}}}}`}, owners(created),
		"defaults have no owner")

	again, err := deployments.Apply(t.Context(), applyDeployment("web", "nginx:1"), by("team"))
	require.NoError(t, err)
	require.Equal(t, created.ResourceVersion, again.ResourceVersion, "an apply without a change is not written")

	changed, err := deployments.Apply(t.Context(), applyDeployment("web", "nginx:2"), by("team"))
	require.NoError(t, err)
	require.Equal(t, "nginx:2", changed.Spec.Template.Spec.Containers[0].Image)
	require.EqualValues(t, 2, changed.Generation)
}

func TestApply_ConflictsUntilForced(t *testing.T) {
	t.Parallel()
	deployments := start(t).typed().AppsV1().Deployments("default")
	_, err := deployments.Apply(t.Context(), applyDeployment("web", "nginx:1"), by("team"))
	require.NoError(t, err)

	_, err = deployments.Apply(t.Context(), applyDeployment("web", "nginx:2"), by("other"))
	require.True(t, apierrors.IsConflict(err), "%v", err)
	path := `.spec.template.spec.containers[name="web"].image`
	require.EqualError(t, err, `Apply failed with 1 conflict: conflict with "team": `+path)
	require.Equal(t, []metav1.StatusCause{{Type: metav1.CauseTypeFieldManagerConflict, Message: `conflict with "team"`,
		Field: path}},
		err.(apierrors.APIStatus).Status().Details.Causes)

	forced, err := deployments.Apply(t.Context(), applyDeployment("web", "nginx:2"), forcedBy("other"))
	require.NoError(t, err)
	require.Equal(t, "nginx:2", forced.Spec.Template.Spec.Containers[0].Image)
	for _, line := range owners(forced) {
		require.Equal(t, strings.HasPrefix(line, "other "), strings.Contains(line, "f:image"), line)
	}
}

func TestApply_ConflictsWithAnUpdate(t *testing.T) {
	t.Parallel()
	maps := start(t).typed().CoreV1().ConfigMaps("default")
	_, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"},
		Data: map[string]string{"a": "1"}},
		metav1.CreateOptions{FieldManager: "editor"})
	require.NoError(t, err)
	_, err = maps.Apply(t.Context(), applycore.ConfigMap("c", "default").WithData(map[string]string{"a": "2"}),
		by("team"))
	require.ErrorContains(t, err, `Apply failed with 1 conflict: conflict with "editor" using v1`)
	require.ErrorContains(t, err, ": .data.a")
}

func TestApply_RemovesFieldsThatNoManagerOwns(t *testing.T) {
	t.Parallel()
	maps := start(t).typed().CoreV1().ConfigMaps("default")
	apply := func(manager string, data map[string]string) map[string]string {
		t.Helper()
		applied, err := maps.Apply(t.Context(), applycore.ConfigMap("c", "default").WithData(data), by(manager))
		require.NoError(t, err)
		return applied.Data
	}
	require.Len(t, apply("a", map[string]string{"mine": "1", "shared": "1"}), 2)
	require.Len(t, apply("b", map[string]string{"shared": "1", "theirs": "1"}), 3)
	require.Equal(t, map[string]string{"shared": "1", "theirs": "1"}, apply("a", nil), "b still owns it")
	require.Empty(t, apply("b", nil))
}

func TestApply_ListsMergeByTheirKeys(t *testing.T) {
	t.Parallel()
	services := start(t).typed().CoreV1().Services("default")
	port := func(name string, number int32, target int) *applycore.ServicePortApplyConfiguration {
		return applycore.ServicePort().WithName(name).WithPort(number).WithProtocol(corev1.ProtocolTCP).WithTargetPort(
			intstr.FromInt(target))
	}
	service := func(ports ...*applycore.ServicePortApplyConfiguration) *applycore.ServiceApplyConfiguration {
		return applycore.Service("s", "default").WithSpec(applycore.ServiceSpec().WithPorts(ports...))
	}
	_, err := services.Apply(t.Context(), service(port("http", 80, 8080)), by("a"))
	require.NoError(t, err)
	both, err := services.Apply(t.Context(), service(port("metrics", 9090, 9090)), by("b"))
	require.NoError(t, err)
	require.Len(t, both.Spec.Ports, 2, "each owns an item")
	_, err = services.Apply(t.Context(), service(port("http", 80, 8081)), by("b"))
	require.ErrorContains(t, err, `.spec.ports[port=80,protocol="TCP"].targetPort`)
	one, err := services.Apply(t.Context(), service(port("metrics", 9091, 9090)), by("b"))
	require.NoError(t, err)
	require.Equal(t, []int32{80, 9091}, []int32{one.Spec.Ports[0].Port, one.Spec.Ports[1].Port},
		"9090 is no longer said")
}

func TestApply_AtomicListsAreOwnedAsAWhole(t *testing.T) {
	t.Parallel()
	deployments := start(t).typed().AppsV1().Deployments("default")
	withArgs := func(args ...string) *applyapps.DeploymentApplyConfiguration {
		d := applyDeployment("web", "nginx")
		d.Spec.Template.Spec.Containers[0].WithArgs(args...)
		return d
	}
	_, err := deployments.Apply(t.Context(), withArgs("a", "b"), by("team"))
	require.NoError(t, err)
	_, err = deployments.Apply(t.Context(), withArgs("a", "b", "c"), by("other"))
	require.ErrorContains(t, err, `containers[name="web"].args`)
	forced, err := deployments.Apply(t.Context(), withArgs("c"), forcedBy("other"))
	require.NoError(t, err)
	require.Equal(t, []string{"c"}, forced.Spec.Template.Spec.Containers[0].Args)
}

func TestApply_StatusHasOwnersOfItsOwn(t *testing.T) {
	t.Parallel()
	deployments := start(t).typed().AppsV1().Deployments("default")
	_, err := deployments.Apply(t.Context(),
		applyDeployment("web", "nginx").WithStatus(applyapps.DeploymentStatus().WithReplicas(7)), by("team"))
	require.NoError(t, err)
	applied, err := deployments.ApplyStatus(t.Context(),
		applyapps.Deployment("web", "default").WithStatus(applyapps.DeploymentStatus().WithReplicas(3)), by("team"))
	require.NoError(t, err)
	require.EqualValues(t, 3, applied.Status.Replicas)
	require.Equal(t, "nginx", applied.Spec.Template.Spec.Containers[0].Image)
	require.NotContains(t, owners(applied)[0], "f:status", "a main write cannot own it")
	require.Equal(t, `team Apply/status {"f:status":{"f:replicas":{}}}`, owners(applied)[1])

	applied.Status.ReadyReplicas = 2
	updated, err := deployments.UpdateStatus(t.Context(), applied, metav1.UpdateOptions{FieldManager: "controller"})
	require.NoError(t, err)
	require.Equal(t, `controller Update/status {"f:status":{"f:readyReplicas":{}}}`, owners(updated)[2])
	_, err = deployments.ApplyStatus(t.Context(), applyapps.Deployment("absent", "default"), by("team"))
	require.True(t, apierrors.IsNotFound(err), "%v", err)
}

func TestApply_ScaleOwnsTheReplicas(t *testing.T) {
	t.Parallel()
	deployments := start(t).typed().AppsV1().Deployments("default")
	config := applyDeployment("web", "nginx")
	config.Spec.WithReplicas(2)
	_, err := deployments.Apply(t.Context(), config, by("team"))
	require.NoError(t, err)
	scale := applyautoscaling.Scale().WithName("web").WithSpec(applyautoscaling.ScaleSpec().WithReplicas(5))
	_, err = deployments.ApplyScale(t.Context(), "web", scale, by("autoscaler"))
	require.ErrorContains(t, err, `conflict with "team": .spec.replicas`)
	_, err = deployments.ApplyScale(t.Context(), "web", scale, forcedBy("autoscaler"))
	require.NoError(t, err)
	scaled, err := deployments.Get(t.Context(), "web", metav1.GetOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 5, *scaled.Spec.Replicas)
	require.Contains(t, owners(scaled), `autoscaler Apply/scale {"f:spec":{"f:replicas":{}}}`)

	read, err := deployments.GetScale(t.Context(), "web", metav1.GetOptions{})
	require.NoError(t, err)
	read.Spec.Replicas = 6
	_, err = deployments.UpdateScale(t.Context(), "web", read, metav1.UpdateOptions{FieldManager: "hand"})
	require.NoError(t, err)
	scaled, err = deployments.Get(t.Context(), "web", metav1.GetOptions{})
	require.NoError(t, err)
	require.Contains(t, owners(scaled), `hand Update/scale {"f:spec":{"f:replicas":{}}}`)
	require.False(t, slices.ContainsFunc(owners(scaled), func(s string) bool { return s[:10] == "autoscaler" }))
}

func TestApply_RejectsAMismatch(t *testing.T) {
	t.Parallel()
	s := start(t)
	path := configMaps + "/c"
	config := func(meta string) string {
		return "{apiVersion: v1, kind: ConfigMap, metadata: {name: c" + meta + "}, data: {a: b}}"
	}
	const invalid, bad, conflict = metav1.StatusReasonInvalid, metav1.StatusReasonBadRequest,
		metav1.StatusReasonConflict
	s.patch(path, applyPatch, config("")).refused(422, invalid,
		"fieldManager: Required value: is required for apply patch")
	s.patch(path+"?fieldManager=m&force=maybe", applyPatch, config("")).refused(400, bad, "force")
	s.patch(path+"?fieldManager=a%07b", applyPatch, config("")).refused(422, invalid,
		"invalid character U+0007 (at position 1)")
	s.patch(path+"?fieldManager=m", applyPatch, ": : :").refused(400, bad, "error decoding patch")
	s.patch(path+"?fieldManager=m", applyPatch, "{data: {a: b}}").refused(400, bad, "invalid object type: /, Kind=")
	s.patch(path+"?fieldManager=m", applyPatch, "{apiVersion: v1, kind: Secret}").refused(400, bad,
		"invalid object type: /v1, Kind=Secret")
	s.patch(path+"?fieldManager=m", applyPatch, config(", managedFields: []")).refused(400, bad,
		"metadata.managedFields must be nil")
	s.patch(path+"?fieldManager=m", applyPatch, config(", uid: u")).refused(409, conflict,
		"uid mismatch: the provided object specified uid u, and no existing object was found")
	s.patch(path+"?fieldManager=m&fieldValidation=Strict", applyPatch,
		"{apiVersion: v1, kind: ConfigMap, data: {a: b, a: c}}").refused(400, bad, "error strict decoding patch")
	s.patch(path+"?fieldManager=m", applyPatch, "{apiVersion: v1, kind: ConfigMap, date: {}}").
		refused(400, bad, ".date: field not declared in schema")
	s.gone(path)
	s.patch(path+"?fieldManager=m", applyPatch, config("")).ok(http.StatusCreated)
	s.patch(path+"?fieldManager=m", applyPatch, config(", name: d")).refused(400, bad,
		"does not match the name on the URL")
	s.patch(path+"?fieldManager=m", applyPatch, config(`, resourceVersion: "1"`)).refused(409, conflict,
		"the object has been modified")
	s.patch(path+"?force=true", mergePatch, "{}").refused(422, invalid,
		"force: Forbidden: may not be specified for non-apply patch")
}

// An invalid configuration is a bad request, whether the object exists or not.
func TestApply_RefusesABadConfigurationAsABadRequest(t *testing.T) {
	t.Parallel()
	s := startValves(t)
	s.create(deployments, deployment("there", 1))
	container := func(fields string) string {
		return `spec: {selector: {matchLabels: {app: a}}, template: {metadata: {labels: {app: a}}, spec: {containers: [{` +
			`name: c, image: i, ` + fields + `}]}}}`
	}
	for name, c := range map[string]struct{ body, words string }{
		"an element twice":   {container("env: [{name: X, value: a}, {name: X, value: b}]"), "duplicate entries for key"},
		"a port twice":       {container("ports: [{containerPort: 80}, {containerPort: 80, protocol: TCP}]"), "duplicate entries"},
		"a finalizer twice":  {"metadata: {finalizers: [a.io/b, a.io/b]}", "duplicate entries"},
		"an unknown field":   {"spec: {replica: 1}", ".spec.replica: field not declared in schema"},
		"a text for a count": {"spec: {replicas: two}", ".spec.replicas"},
		"a list for a map":   {"spec: []", ".spec"},
		"a count too large":  {"spec: {replicas: 99999999999}", "99999999999"},
		"not a quantity":     {container("resources: {limits: {cpu: much}}"), "quantities must match"},
		"not a time":         {container("") + "\nmetadata: {creationTimestamp: now}", "now"},
	} {
		for _, object := range []string{"there", "new"} {
			s.patch(deployments+"/"+object+"?fieldManager=m&force=true", applyPatch,
				"apiVersion: apps/v1\nkind: Deployment\n"+c.body).refused(400, metav1.StatusReasonBadRequest, c.words)
			require.NotEmpty(t, name)
		}
	}
	for body, words := range map[string]string{"spec: {replica: 1}": `unknown field "spec.replica"`,
		"spec: {replicas: one}": "replicas", "spec: []": "spec"} {
		s.patch(deployments+"/there/scale?fieldManager=m", applyPatch, "apiVersion: autoscaling/v1\nkind: Scale\n"+body).
			refused(400, metav1.StatusReasonBadRequest, words)
	}
	s.patch(deployments+"/there/status?fieldManager=m", applyPatch,
		"apiVersion: apps/v1\nkind: Deployment\nstatus: {replicas: many}").refused(400, metav1.StatusReasonBadRequest,
		".status.replicas")
	for _, object := range []string{"main", "new"} {
		s.patch(valves+"/"+object+"?fieldManager=m&force=true", applyPatch,
			"apiVersion: example.org/v2\nkind: Valve\nspec: {size: [1]}").refused(400, metav1.StatusReasonBadRequest,
			".spec.size")
	}
	// An object with a duplicate element can still be applied to.
	doubled := deployment("doubled", 1)
	doubled["spec"].(m)["template"].(m)["spec"].(m)["containers"].([]any)[0].(m)["env"] = []any{
		m{"name": "X", "value": "a"}, m{"name": "X", "value": "b"}}
	s.create(deployments, doubled)
	s.patch(deployments+"/doubled?fieldManager=m", applyPatch,
		"apiVersion: apps/v1\nkind: Deployment\nmetadata: {labels: {a: b}}").ok(http.StatusOK)
}

func TestApply_DryRunLeavesNoTrace(t *testing.T) {
	t.Parallel()
	s := start(t)
	config := "{apiVersion: v1, kind: ConfigMap, data: {a: b}}"
	s.patch(configMaps+"/c?fieldManager=m&dryRun=All", applyPatch, config).ok(http.StatusCreated)
	s.gone(configMaps + "/c")
}

func TestOwnership_FollowsEveryWrite(t *testing.T) {
	t.Parallel()
	maps := start(t).typed().CoreV1().ConfigMaps("default")
	data := func(pairs ...string) *corev1.ConfigMap {
		c := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Data: map[string]string{}}
		for i := 0; i < len(pairs); i += 2 {
			c.Data[pairs[i]] = pairs[i+1]
		}
		return c
	}
	obj, err := maps.Create(t.Context(), data("a", "1", "b", "1"), metav1.CreateOptions{FieldManager: "one"})
	require.NoError(t, err)
	require.Equal(t, []string{`one Update {"f:data":{".":{},"f:a":{},"f:b":{}}}`}, owners(obj))
	require.WithinDuration(t, obj.CreationTimestamp.Time, obj.ManagedFields[0].Time.Time, time.Minute)

	obj, err = maps.Update(t.Context(), data("a", "1", "b", "2"), metav1.UpdateOptions{FieldManager: "two"})
	require.NoError(t, err)
	require.Equal(t, []string{`one Update {"f:data":{".":{},"f:a":{}}}`, `two Update {"f:data":{"f:b":{}}}`},
		owners(obj))

	same, err := maps.Update(t.Context(), data("a", "1", "b", "2"), metav1.UpdateOptions{FieldManager: "three"})
	require.NoError(t, err)
	require.Equal(t, obj, same, "a manager without changes owns no fields")

	obj, err = maps.Patch(t.Context(), "c", types.JSONPatchType, []byte(`[{"op":"add","path":"/data/c","value":"1"}]`),
		metav1.PatchOptions{FieldManager: "two"})
	require.NoError(t, err)
	require.Equal(t, `two Update {"f:data":{"f:b":{},"f:c":{}}}`, owners(obj)[1])

	obj, err = maps.Patch(t.Context(), "c", types.StrategicMergePatchType, []byte(`{"data":{"a":null,"b":null}}`),
		metav1.PatchOptions{})
	require.NoError(t, err)
	require.Equal(t, []string{`one Update {"f:data":{}}`, `two Update {"f:data":{"f:c":{}}}`}, owners(obj),
		"what is gone has no owner")

	obj, err = maps.Patch(t.Context(), "c", types.MergePatchType, []byte(`{"immutable":true}`), metav1.PatchOptions{})
	require.NoError(t, err)
	require.Contains(t, owners(obj), `Go-http-client Update {"f:immutable":{}}`, "named by its User-Agent")
}

func TestOwnership_ResetsAndRestartsWithTheNextApply(t *testing.T) {
	t.Parallel()
	for _, reset := range []string{`[]`, `[{}]`} {
		t.Run(reset, func(t *testing.T) {
			t.Parallel()
			maps := start(t).typed().CoreV1().ConfigMaps("default")
			_, err := maps.Apply(t.Context(), applycore.ConfigMap("c", "default").WithData(map[string]string{"a": "1"}),
				by("team"))
			require.NoError(t, err)
			obj, err := maps.Patch(t.Context(), "c", types.MergePatchType,
				[]byte(`{"metadata":{"managedFields":`+reset+`}}`), metav1.PatchOptions{})
			require.NoError(t, err)
			require.Empty(t, owners(obj))
			obj, err = maps.Patch(t.Context(), "c", types.MergePatchType, []byte(`{"data":{"b":"1"}}`),
				metav1.PatchOptions{})
			require.NoError(t, err)
			require.Empty(t, owners(obj), "not tracked again by an ordinary write")
			obj, err = maps.Apply(t.Context(),
				applycore.ConfigMap("c", "default").WithData(map[string]string{"c": "1"}), by("team"))
			require.NoError(t, err)
			require.Equal(t, []string{`team Apply {"f:data":{"f:c":{}}}`,
				`before-first-apply Update {"f:data":{".":{},"f:a":{},"f:b":{}}}`}, owners(obj))
		})
	}
}

func TestOwnership_ManyUpdatersBecomeAncientChanges(t *testing.T) {
	t.Parallel()
	maps := start(t).typed().CoreV1().ConfigMaps("default")
	obj, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"},
		Data: map[string]string{"k": "v"}},
		metav1.CreateOptions{FieldManager: "m"})
	require.NoError(t, err)
	for i := range 14 {
		patch := fmt.Appendf(nil, `{"data":{"k%02d":"v"}}`, i)
		obj, err = maps.Patch(t.Context(), "c", types.MergePatchType, patch,
			metav1.PatchOptions{FieldManager: fmt.Sprintf("m%02d", i)})
		require.NoError(t, err)
	}
	require.Len(t, obj.ManagedFields, 10)
	require.Contains(t, owners(obj),
		`ancient-changes Update {"f:data":{".":{},"f:k":{},"f:k00":{},"f:k01":{},"f:k02":{},"f:k03":{},"f:k04":{}}}`)
}

func TestOwnership_ClientsMayRewriteIt(t *testing.T) {
	t.Parallel()
	deployments := start(t).typed().AppsV1().Deployments("default")
	applied, err := deployments.Apply(t.Context(), applyDeployment("web", "nginx"), by("team"))
	require.NoError(t, err)
	renamed := applied.DeepCopy()
	renamed.ManagedFields[0].Manager = "heirs"
	obj, err := deployments.Update(t.Context(), renamed, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, "heirs", obj.ManagedFields[0].Manager)
	renamed.ManagedFields[0].FieldsV1.SetRawString(`{"no":"field set"}`)
	obj, err = deployments.Update(t.Context(), withoutRevision(renamed), metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, owners(applied)[0][len("team"):], owners(obj)[0][len("heirs"):],
		"invalid managedFields are ignored")
}

func withoutRevision(d *appsv1.Deployment) *appsv1.Deployment {
	d.ResourceVersion = ""
	return d
}
