package admission

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// cpus returns a list with one amount of CPU, or an empty one.
func cpus(amount string) corev1.ResourceList {
	if amount == "" {
		return nil
	}
	return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(amount)}
}

func container(name, request, limit string) corev1.Container {
	return corev1.Container{Name: name, Resources: corev1.ResourceRequirements{Requests: cpus(request),
		Limits: cpus(limit)}}
}

func limitRange(item corev1.LimitRangeItem) *corev1.LimitRange {
	r := &corev1.LimitRange{ObjectMeta: meta("l")}
	r.Spec.Limits = []corev1.LimitRangeItem{{Type: "Other", Max: cpus("0"), Min: cpus("9")}, item}
	return r
}

func TestLimitRanger_ChecksPods(t *testing.T) {
	t.Parallel()
	for _, kind := range []corev1.LimitType{corev1.LimitTypeContainer, corev1.LimitTypePod} {
		minimum := limitRange(corev1.LimitRangeItem{Type: kind, Min: cpus("2")})
		maximum := limitRange(corev1.LimitRangeItem{Type: kind, Max: cpus("2")})
		ratio := limitRange(corev1.LimitRangeItem{Type: kind, MaxLimitRequestRatio: cpus("2")})
		suffix := " per " + string(kind) + " is 2"
		for _, c := range []struct {
			name           string
			bound          *corev1.LimitRange
			request, limit string
			words          string
		}{
			{"the least", minimum, "2", "2", ""},
			{"the least without a limit", minimum, "2", "", ""},
			{"no request", minimum, "", "", "minimum cpu usage" + suffix + ".  No request is specified"},
			{"a small request", minimum, "1", "3", "minimum cpu usage" + suffix + ", but request is 1"},
			{"a small limit", minimum, "2", "1", "minimum cpu usage" + suffix + ", but limit is 1"},
			{"the most", maximum, "2", "2", ""},
			{"the most without a request", maximum, "", "2", ""},
			{"no limit", maximum, "1", "", "maximum cpu usage" + suffix + ".  No limit is specified"},
			{"a large limit", maximum, "1", "3", "maximum cpu usage" + suffix + ", but limit is 3"},
			{"a large request", maximum, "3", "2", "maximum cpu usage" + suffix + ", but request is 3"},
			{"the largest ratio", ratio, "1", "2", ""},
			{"no request for a ratio", ratio, "", "2", "but no request is specified or request is 0"},
			{"no limit for a ratio", ratio, "1", "", "but no limit is specified or limit is 0"},
			{"too large a ratio", ratio, "1", "3", "but provided ratio is 3.0"},
		} {
			pod := &corev1.Pod{ObjectMeta: meta("p")}
			pod.Spec.Containers = []corev1.Container{container("c", c.request, c.limit)}
			early := made(pod, func(p *corev1.Pod) {
				p.Spec.InitContainers, p.Spec.Containers = p.Spec.Containers, nil
			})
			name := string(kind) + " " + c.name
			newWorld(c.bound).decides(t, "LimitRanger", "", []decision{
				{name: name, write: creates(pod), words: c.words},
				{name: name + " of an init container", write: creates(early), words: c.words},
				{name: name + " by a resize", write: subresource(updates(pod, &corev1.Pod{}), "resize"), words: c.words},
			})
		}
	}
}

func TestLimitRanger_IgnoresOtherNamespacesAndTerminatingPods(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{ObjectMeta: meta("p")}
	pod.Spec.Containers = []corev1.Container{container("c", "3", "3")}
	ending := made(pod, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} })
	elsewhere := limitRange(corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Max: cpus("2")})
	here := elsewhere.DeepCopy()
	elsewhere.Namespace = "other"
	newWorld(elsewhere).decides(t, "LimitRanger", "", []decision{
		{name: "a bound of another namespace", write: creates(pod)},
	})
	newWorld(elsewhere, here).decides(t, "LimitRanger", "", []decision{
		{name: "a bound of this one", write: creates(pod), words: "maximum cpu usage per Container"},
		{name: "a pod that is being deleted", write: subresource(updates(pod, ending), "resize")},
	})
}

func TestLimitRanger_ChecksClaims(t *testing.T) {
	t.Parallel()
	kind := corev1.LimitTypePersistentVolumeClaim
	minimum, maximum := limitRange(corev1.LimitRangeItem{Type: kind, Min: cpus("2")}),
		limitRange(corev1.LimitRangeItem{Type: kind, Max: cpus("2")})
	for _, c := range []struct {
		name    string
		bound   *corev1.LimitRange
		request string
		words   string
	}{
		{"the least", minimum, "2", ""},
		{"no request for a minimum", minimum, "",
			"minimum cpu usage per PersistentVolumeClaim is 2.  No request"},
		{"a small request", minimum, "1", "minimum cpu usage per PersistentVolumeClaim is 2, but request is 1"},
		{"the most", maximum, "2", ""},
		{"no request for a maximum", maximum, "",
			"maximum cpu usage per PersistentVolumeClaim is 2.  No request"},
		{"a large request", maximum, "3", "maximum cpu usage per PersistentVolumeClaim is 2, but request is 3"},
		{"a bound of containers", limitRange(corev1.LimitRangeItem{Type: corev1.LimitTypeContainer,
			Max: cpus("2")}), "3", ""},
	} {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: meta("c")}
		claim.Spec.Resources.Requests = cpus(c.request)
		newWorld(c.bound).decides(t, "LimitRanger", "", []decision{
			{name: c.name, write: creates(claim), words: c.words},
			{name: c.name + " by an update", write: updates(claim, &corev1.PersistentVolumeClaim{}),
				words: c.words},
		})
	}
}

func TestLimitRanger_SetsMissingRequestsAndLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(limitRange(corev1.LimitRangeItem{Type: corev1.LimitTypeContainer, Default: cpus("2"),
		DefaultRequest: cpus("1")}))
	pod := &corev1.Pod{ObjectMeta: meta("p")}
	pod.Spec.Containers = []corev1.Container{container("bare", "", ""), container("full", "3", "4")}
	pod.Spec.InitContainers = []corev1.Container{container("early", "3", "")}
	require.NoError(t, w.admit(t, "LimitRanger", "", creates(pod)))
	require.Equal(t, []corev1.Container{container("bare", "1", "2"), container("full", "3", "4")},
		pod.Spec.Containers)
	require.Equal(t, []corev1.Container{container("early", "3", "2")}, pod.Spec.InitContainers)
	require.Equal(t, "LimitRanger plugin set: cpu request for container bare; cpu limit for container bare; "+
		"cpu limit for init container early", pod.Annotations[limitRangerAnnotation])

	resized := &corev1.Pod{ObjectMeta: meta("p")}
	resized.Spec.Containers = []corev1.Container{container("bare", "", "")}
	require.NoError(t, w.admit(t, "LimitRanger", "", subresource(updates(resized, resized), "resize")))
	require.Equal(t, []corev1.Container{container("bare", "", "")}, resized.Spec.Containers,
		"not after the creation")
}
