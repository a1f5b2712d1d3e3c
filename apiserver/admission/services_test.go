package admission

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestDenyServiceExternalIPs_AllowsExistingOnes(t *testing.T) {
	t.Parallel()
	service := func(ips ...string) *corev1.Service {
		return &corev1.Service{ObjectMeta: meta("s"), Spec: corev1.ServiceSpec{ExternalIPs: ips}}
	}
	const words = "Use of external IPs is denied by admission control."
	newWorld().decides(t, "DenyServiceExternalIPs", "", []decision{
		{name: "none", write: creates(service())},
		{name: "a new service with one", write: creates(service("192.0.2.1")), words: words},
		{name: "one that it has", write: updates(service("192.0.2.1"), service("192.0.2.1", "192.0.2.2"))},
		{name: "another one", write: updates(service("192.0.2.2"), service("192.0.2.1")), words: words},
		{name: "one more", write: updates(service("192.0.2.1", "192.0.2.2"), service("192.0.2.1")),
			words: words},
	})
}

func ingressClass(name, isDefault string, age time.Duration) *networkingv1.IngressClass {
	c := &networkingv1.IngressClass{ObjectMeta: clusterMeta(name)}
	c.Annotations = map[string]string{networkingv1.AnnotationIsDefaultIngressClass: isDefault}
	c.CreationTimestamp = metav1.NewTime(time.Unix(1e9, 0).Add(-age))
	return c
}

func TestDefaultIngressClass_IsTheNewestDefault(t *testing.T) {
	t.Parallel()
	w := newWorld(ingressClass("old", "true", time.Hour), ingressClass("b", "true", 0), ingressClass("a",
		"true", 0),
		ingressClass("0", "false", 0))
	for name, c := range map[string]struct {
		world  *world
		change func(*networkingv1.Ingress)
		want   *string
	}{
		"no class":   {w, func(*networkingv1.Ingress) {}, ptr.To("a")},
		"no default": {newWorld(), func(*networkingv1.Ingress) {}, nil},
		"a class":    {w, func(i *networkingv1.Ingress) { i.Spec.IngressClassName = ptr.To("x") }, ptr.To("x")},
		"a class, the old way": {w, func(i *networkingv1.Ingress) {
			i.Annotations = map[string]string{"kubernetes.io/ingress.class": "x"}
		}, nil},
	} {
		ingress := made(&networkingv1.Ingress{ObjectMeta: meta("i")}, c.change)
		require.NoError(t, c.world.admit(t, "DefaultIngressClass", "", creates(ingress)), name)
		require.Equal(t, c.want, ingress.Spec.IngressClassName, name)
	}
}

func storageClass(name string, grows *bool, annotations ...string) *storagev1.StorageClass {
	c := &storagev1.StorageClass{ObjectMeta: clusterMeta(name), AllowVolumeExpansion: grows}
	c.Annotations = map[string]string{}
	for _, key := range annotations {
		c.Annotations[key] = "true"
	}
	return c
}

func claimOf(size string, class *string, changes ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: meta("c")}
	claim.Spec.StorageClassName = class
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
	claim.Status.Phase = corev1.ClaimBound
	return made(claim, changes...)
}

// annotated gives a claim its class as in Kubernetes 1.5, by an annotation.
func annotated(class string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Annotations = map[string]string{corev1.BetaStorageClassAnnotation: class}
	}
}

func TestDefaultStorageClass_AppliesToClaimsWithoutAClass(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"storageclass.kubernetes.io/is-default-class",
		"storageclass.beta.kubernetes.io/is-default-class"} {
		w := newWorld(storageClass("other", nil), storageClass("fast", nil, key))
		for name, c := range map[string]struct {
			claim *corev1.PersistentVolumeClaim
			want  *string
		}{
			"none":                 {claimOf("1Gi", nil), ptr.To("fast")},
			"a class":              {claimOf("1Gi", ptr.To("other")), ptr.To("other")},
			"no class on purpose":  {claimOf("1Gi", ptr.To("")), ptr.To("")},
			"a class, the old way": {claimOf("1Gi", nil, annotated("other")), nil},
		} {
			require.NoError(t, w.admit(t, "DefaultStorageClass", "", creates(c.claim)), name)
			require.Equal(t, c.want, c.claim.Spec.StorageClassName, name)
		}
	}
}

func TestStorageObjectInUseProtection_AddsItsFinalizersOnce(t *testing.T) {
	t.Parallel()
	claim, volume := claimOf("1Gi", nil), &corev1.PersistentVolume{ObjectMeta: clusterMeta("v")}
	volume.Finalizers = []string{"example.com/own"}
	for range 2 {
		require.NoError(t, newWorld().admit(t, "StorageObjectInUseProtection", "", creates(claim)))
		require.NoError(t, newWorld().admit(t, "StorageObjectInUseProtection", "", creates(volume)))
		require.Equal(t, []string{claimProtection}, claim.Finalizers)
		require.Equal(t, []string{"example.com/own", volumeProtection}, volume.Finalizers)
	}
}

func TestPersistentVolumeClaimResize_NeedsABoundClaimAndAClassThatAllowsIt(t *testing.T) {
	t.Parallel()
	grows, fixed, silent := ptr.To("grows"), ptr.To("fixed"), ptr.To("silent")
	w := newWorld(storageClass("grows", ptr.To(true)), storageClass("fixed", ptr.To(false)),
		storageClass("silent", nil))
	const words = "only dynamically provisioned pvc can be resized"
	unbound := func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimPending }
	bigger := func(class *string, changes ...func(*corev1.PersistentVolumeClaim)) *Attributes {
		return updates(claimOf("2Gi", class, changes...), claimOf("1Gi", class, changes...))
	}
	w.decides(t, "PersistentVolumeClaimResize", "", []decision{
		{name: "a class that allows it", write: bigger(grows)},
		{name: "the same in an annotation", write: bigger(nil, annotated("grows"))},
		{name: "the same size", write: updates(claimOf("1Gi", fixed), claimOf("1Gi", fixed, unbound))},
		{name: "a smaller size", write: updates(claimOf("1Gi", fixed), claimOf("2Gi", fixed))},
		{name: "a claim that is not bound", write: bigger(grows, unbound),
			words: "Only bound persistent volume claims can be expanded"},
		{name: "a claim that only the update calls bound", write: updates(claimOf("2Gi", grows),
			claimOf("1Gi", grows, unbound)),
			words: "Only bound persistent volume claims can be expanded"},
		{name: "a class that forbids it", write: bigger(fixed), words: words},
		{name: "a class that does not allow it", write: bigger(silent), words: words},
		{name: "no class", write: bigger(nil), words: words},
		{name: "a class that does not exist", write: bigger(ptr.To("none")), words: words},
		{name: "another class", write: updates(claimOf("2Gi", grows), claimOf("1Gi", fixed)), words: words},
	})
}
