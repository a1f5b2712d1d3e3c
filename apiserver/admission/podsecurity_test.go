package admission

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/api"
)

const securityPrefix = "pod-security.kubernetes.io/"

// secured returns a namespace with labels, given as pairs of mode and level.
func secured(pairs ...string) *corev1.Namespace {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Labels: map[string]string{}}}
	for i := 0; i < len(pairs); i += 2 {
		ns.Labels[securityPrefix+pairs[i]] = pairs[i+1]
	}
	return ns
}

func securedWorld(pairs ...string) *world {
	w := newWorld()
	w.objects[0] = secured(pairs...)
	return w
}

// privileged returns a pod that the levels baseline and restricted forbid.
func privileged(changes ...func(*corev1.PodSpec)) *corev1.Pod {
	return podOf(func(s *corev1.PodSpec) {
		s.Containers = []corev1.Container{{Name: "c", Image: "a",
			SecurityContext: &corev1.SecurityContext{Privileged: ptr.To(true)}}}
		for _, change := range changes {
			change(s)
		}
	})
}

func TestPodSecurity_EnforcesTheNamespacesLevel(t *testing.T) {
	t.Parallel()
	const words = `violates PodSecurity "baseline:latest": privileged`
	old := privileged(func(s *corev1.PodSpec) { s.InitContainers = []corev1.Container{{Image: "a"}} })
	updated := func(change func(*corev1.PodSpec)) *Attributes {
		p := old.DeepCopy()
		change(&p.Spec)
		return updates(p, old)
	}
	debugger := func(name, image string) []corev1.EphemeralContainer {
		return []corev1.EphemeralContainer{{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: name, Image: image}}}
	}
	debugged := made(old, func(p *corev1.Pod) { p.Spec.EphemeralContainers = debugger("d", "a") })
	securedWorld("enforce", "baseline").decides(t, "PodSecurity", "", []decision{
		{name: "a plain pod", write: creates(podOf(func(*corev1.PodSpec) {}))},
		{name: "a privileged pod", write: creates(privileged()), words: words},
		{name: "no change that matters",
			write: updated(func(s *corev1.PodSpec) { s.ActiveDeadlineSeconds = ptr.To[int64](1) })},
		{name: "another image", write: updated(func(s *corev1.PodSpec) { s.Containers[0].Image = "b" }),
			words: words},
		{name: "another image of an init container", words: words,
			write: updated(func(s *corev1.PodSpec) { s.InitContainers[0].Image = "b" })},
		{name: "a new ephemeral container", words: words,
			write: subresource(updated(func(s *corev1.PodSpec) { s.EphemeralContainers = debugger("d", "a") }), "ephemeralcontainers")},
		{name: "another image of an ephemeral container", words: words,
			write: updates(made(debugged, func(p *corev1.Pod) { p.Spec.EphemeralContainers[0].Image = "b" }),
				debugged)},
		{name: "the ephemeral container that it has", write: updates(debugged, debugged)},
		{name: "a template", write: creates(&appsv1.Deployment{ObjectMeta: meta("d"),
			Spec: appsv1.DeploymentSpec{Template: corev1.PodTemplateSpec{Spec: privileged().Spec}}})},
	})
	securedWorld().decides(t, "PodSecurity", "", []decision{{name: "no level", write: creates(privileged())}})
	securedWorld("enforce", "privileged").decides(t, "PodSecurity", "", []decision{
		{name: "the level privileged", write: creates(privileged())},
	})
	for _, level := range []string{"", "nonsense"} {
		securedWorld("enforce", level).decides(t, "PodSecurity", "", []decision{
			{name: fmt.Sprintf("the level %q, which is none", level), write: creates(privileged()),
				words: `violates PodSecurity "restricted:latest"`},
		})
	}
	lost := privileged()
	lost.Namespace = "none"
	newWorld().decides(t, "PodSecurity", "", []decision{
		{name: "no namespace", write: creates(lost), words: `failed to lookup namespace "none"`,
			reason: metav1.StatusReasonInternalError},
	})
}

func TestPodSecurity_ExemptsUsersNamespacesAndRuntimeClasses(t *testing.T) {
	t.Parallel()
	sandboxed := privileged(func(s *corev1.PodSpec) { s.RuntimeClassName = ptr.To("sandbox") })
	for config, allowed := range map[string]map[string]bool{
		`{}`: {},
		`{"exemptions": {"usernames": ["jane"]}}`:           {"plain": true, "sandboxed": true},
		`{"exemptions": {"usernames": ["joe"]}}`:            {},
		`{"exemptions": {"namespaces": ["default"]}}`:       {"plain": true, "sandboxed": true},
		`{"exemptions": {"namespaces": ["other"]}}`:         {},
		`{"exemptions": {"runtimeClasses": ["sandbox"]}}`:   {"sandboxed": true},
		`{"exemptions": {"runtimeClasses": ["", "other"]}}`: {},
	} {
		for name, pod := range map[string]*corev1.Pod{"plain": privileged(), "sandboxed": sandboxed} {
			d := decision{name: name + " with " + config, write: creates(pod), words: "violates PodSecurity"}
			if allowed[name] {
				d.words = ""
			}
			securedWorld("enforce", "baseline").decides(t, "PodSecurity", config, []decision{d})
		}
	}
	newWorld().decides(t, "PodSecurity", `{"defaults": {"enforce": "baseline"}}`, []decision{
		{name: "the configured default", write: creates(privileged()), words: "violates PodSecurity"},
	})
}

func TestPodSecurity_WarnsOfTemplatesAndPods(t *testing.T) {
	t.Parallel()
	template := corev1.PodTemplateSpec{Spec: privileged().Spec}
	job := batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: template}}
	for _, obj := range []api.Object{privileged(),
		&appsv1.Deployment{ObjectMeta: meta("d"), Spec: appsv1.DeploymentSpec{Template: template}},
		&batchv1.CronJob{ObjectMeta: meta("c"), Spec: batchv1.CronJobSpec{JobTemplate: job}},
	} {
		a, warned, audited := creates(obj), "", ""
		a.Warn, a.Audit = func(text string) { warned += text }, func(_, text string) { audited += text }
		require.NoError(t, securedWorld("warn", "baseline").admit(t, "PodSecurity", "", a))
		require.Contains(t, warned, `would violate PodSecurity "baseline:latest"`, "%T", obj)
		require.Empty(t, audited)
		warned = ""
		require.NoError(t, securedWorld("audit", "baseline").admit(t, "PodSecurity", "", a))
		require.Contains(t, audited, `would violate PodSecurity "baseline:latest"`, "%T", obj)
		require.Empty(t, warned)
	}
}

func TestPodSecurity_ChecksNamespaces(t *testing.T) {
	t.Parallel()
	wrong, worse, good := secured("enforce", "nonsense"), secured("enforce", "nonsense", "warn", "nonsense"),
		secured()
	const words = "must be one of privileged, baseline, restricted"
	newWorld().decides(t, "PodSecurity", "", []decision{
		{name: "a level", write: creates(secured("enforce", "restricted"))},
		{name: "a new one with a level that is none", write: creates(wrong), words: words,
			reason: metav1.StatusReasonInvalid},
		{name: "a level that is none", write: updates(wrong, good), words: words,
			reason: metav1.StatusReasonInvalid},
		{name: "another one that is none", write: updates(worse, wrong), words: words,
			reason: metav1.StatusReasonInvalid},
		{name: "the one that is none as before", write: updates(wrong, wrong)},
	})
	warnings := func(config string, is, was *corev1.Namespace, pods ...api.Object) (all []string) {
		w, a := newWorld(pods...), updates(is, was)
		a.Namespace = ""
		a.Warn, a.Audit = func(text string) { all = append(all, text) }, func(string, string) {}
		require.NoError(t, w.admit(t, "PodSecurity", config, a))
		return all
	}
	named := func(name string) *corev1.Pod {
		p := privileged()
		p.Name = name
		return p
	}
	const existing = `existing pods in namespace "default" violate the new PodSecurity enforce level "baseline:latest"`
	a, b, c := named("a"), named("b"), named("c")
	baseline := secured("enforce", "baseline")
	require.Equal(t, []string{existing, "a: privileged"}, warnings("", baseline, good, a))
	require.Equal(t, []string{existing, "a (and 1 other pod): privileged"}, warnings("", baseline, good, b, a))
	require.Equal(t, []string{existing, "a (and 2 other pods): privileged"}, warnings("", baseline, good, c,
		b, a))
	require.Empty(t, warnings("", baseline, good), "no pods")
	require.Empty(t, warnings("", baseline, baseline, a), "the level that it had")
	require.Empty(t, warnings("", baseline, secured("enforce", "restricted"), a), "a lower level")
	require.Empty(t, warnings("", secured("enforce", "privileged"), secured("enforce", "baseline",
		"enforce-version", "v1.30"), a))
	require.Empty(t, warnings(`{"exemptions": {"namespaces": ["default"]}}`, baseline, good, a))
	sandboxed := made(a, func(p *corev1.Pod) { p.Spec.RuntimeClassName = ptr.To("sandbox") })
	require.Empty(t, warnings(`{"exemptions": {"runtimeClasses": ["sandbox"]}}`, baseline, good, sandboxed))
}
