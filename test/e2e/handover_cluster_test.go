//go:build e2e

package e2e

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// handover is an API server with two processes of controllers; one of them leads.
type handover struct {
	*cluster
	leading, standby *process
}

func newHandover(t *testing.T) *handover {
	dir := dataDir(t)
	h := &handover{cluster: serving(t, start(t, "apiserver", "--data-dir", dir, "--secure-port", "0"), dir)}
	h.leading = h.controllers()
	eventually(t, time.Minute, "a leader", func() bool { return h.holder() != "" })
	h.standby = h.controllers()
	eventually(t, time.Minute, "the account of pods", func() bool {
		_, err := h.client.CoreV1().ServiceAccounts("default").Get(t.Context(), "default", metav1.GetOptions{})
		return err == nil
	})
	return h
}

func (h *handover) controllers() *process {
	return h.component("controllers", "--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=3s",
		"--leader-elect-retry-period=300ms")
}

func (h *handover) holder() string {
	lease, err := h.client.CoordinationV1().Leases("kube-system").Get(h.t.Context(), "kube-controller-manager",
		metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

// killLeader kills the leader once begun returns true, so that the standby has to finish, and starts another standby.
func (h *handover) killLeader(t *testing.T, what string, begun func() bool) {
	t.Helper()
	first := h.holder()
	for deadline := time.Now().Add(time.Minute); !begun(); { // poll often: the work is soon over
		require.True(t, time.Now().Before(deadline), "not begun: %s", what)
	}
	h.leading.kill()
	eventually(t, time.Minute, "another leader", func() bool { return h.holder() != first && h.holder() != "" })
	h.leading, h.standby = h.standby, h.controllers() // not earlier, or the new process might become leader
}

// each calls do n times, with some calls in parallel.
func each(t *testing.T, n int, do func(i int) error) {
	t.Helper()
	var wg sync.WaitGroup
	work := make(chan int)
	errs := make(chan error, n)
	for range 8 {
		wg.Go(func() {
			for i := range work {
				if err := do(i); err != nil {
					errs <- err
				}
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	wg.Wait()
	close(errs)
	require.NoError(t, <-errs)
}

func (h *handover) configMap(namespace, name string, owners ...*corev1.ConfigMap) (*corev1.ConfigMap, error) {
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for _, o := range owners {
		m.OwnerReferences = append(m.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap",
			Name: o.Name, UID: o.UID, BlockOwnerDeletion: new(true)})
	}
	return h.client.CoreV1().ConfigMaps(namespace).Create(h.t.Context(), m, metav1.CreateOptions{})
}

// pod returns a pod on a Node; it is ready if ip is not empty.
func (h *handover) pod(name, node, app, ip string, tolerations ...corev1.Toleration) error {
	pods := h.client.CoreV1().Pods("default")
	pod, err := pods.Create(h.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{NodeName: node, Tolerations: tolerations,
			Containers: []corev1.Container{{Name: "c", Image: "one"}}},
	}, metav1.CreateOptions{})
	if err != nil || ip == "" {
		return err
	}
	pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs = corev1.PodRunning, ip, []corev1.PodIP{{IP: ip}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	_, err = pods.UpdateStatus(h.t.Context(), pod, metav1.UpdateOptions{})
	return err
}

func (h *handover) node(name string) {
	h.t.Helper()
	_, err := h.client.CoreV1().Nodes().Create(h.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{})
	require.NoError(h.t, err)
}

// count returns the number of the default namespace's pods of an app, and the number of terminating ones.
func (h *handover) count(app string) (all, ending int) {
	pods, err := h.client.CoreV1().Pods("default").List(h.t.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
	require.NoError(h.t, err)
	for _, p := range pods.Items {
		if p.DeletionTimestamp != nil {
			ending++
		}
	}
	return len(pods.Items), ending
}

// TestHandover_FinishesTheWorkOfAKilledLeader kills the leading controllers with kill -9 in the middle of one
// task after the other. The standby must reach the same result.
func TestHandover_FinishesTheWorkOfAKilledLeader(t *testing.T) {
	t.Parallel()
	h := newHandover(t)
	core, ctx := h.client.CoreV1(), t.Context()

	t.Run("the deletion of a namespace", func(t *testing.T) {
		_, err := core.Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "full"}},
			metav1.CreateOptions{})
		require.NoError(t, err)
		each(t, 600, func(i int) error {
			if i%2 == 0 {
				_, err := h.configMap("full", fmt.Sprint("m-", i))
				return err
			}
			_, err := core.Secrets("full").Create(ctx,
				&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("s-", i)}}, metav1.CreateOptions{})
			return err
		})
		require.NoError(t, core.Namespaces().Delete(ctx, "full", metav1.DeleteOptions{}))
		h.killLeader(t, "the deletion", func() bool {
			maps, err := core.ConfigMaps("full").List(ctx, metav1.ListOptions{})
			require.NoError(t, err)
			return len(maps.Items) < 300
		})
		eventually(t, time.Minute, "the namespace is gone", func() bool {
			_, err := core.Namespaces().Get(ctx, "full", metav1.GetOptions{})
			return apierrors.IsNotFound(err)
		})
	})

	t.Run("a deletion in the foreground", func(t *testing.T) {
		root, err := h.configMap("default", "root")
		require.NoError(t, err)
		other, err := h.configMap("default", "other")
		require.NoError(t, err)
		_, err = h.configMap("default", "shared", root, other)
		require.NoError(t, err)
		each(t, 20, func(i int) error {
			child, err := h.configMap("default", fmt.Sprint("child-", i), root)
			for j := 0; j < 15 && err == nil; j++ {
				_, err = h.configMap("default", fmt.Sprintf("grandchild-%d-%d", i, j), child)
			}
			return err
		})
		names := func() map[string]bool {
			list, err := core.ConfigMaps("default").List(ctx, metav1.ListOptions{})
			require.NoError(t, err)
			found := map[string]bool{}
			for _, m := range list.Items {
				if m.Name != "kube-root-ca.crt" {
					found[m.Name] = true
				}
			}
			return found
		}
		foreground := metav1.DeletePropagationForeground
		require.NoError(t, core.ConfigMaps("default").Delete(ctx, "root",
			metav1.DeleteOptions{PropagationPolicy: &foreground}))
		h.killLeader(t, "the deletion", func() bool { return len(names()) < 300 })
		eventually(t, time.Minute, "the owner is deleted last, and objects with another owner stay", func() bool {
			left := names()
			require.True(t, left["root"] || len(left) <= 2, "%d are left behind", len(left))
			return len(left) == 2 && left["other"] && left["shared"]
		})
		shared, err := core.ConfigMaps("default").Get(ctx, "shared", metav1.GetOptions{})
		require.NoError(t, err)
		require.Len(t, shared.OwnerReferences, 1)
	})

	t.Run("the binding of claims", func(t *testing.T) {
		const n = 150
		class, size := "", corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
		modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
		each(t, n, func(i int) error {
			_, err := core.PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("disk-", i)},
				Spec: corev1.PersistentVolumeSpec{Capacity: size, AccessModes: modes,
					PersistentVolumeSource: corev1.PersistentVolumeSource{
						HostPath: &corev1.HostPathVolumeSource{Path: fmt.Sprint("/disks/", i)},
					}},
			}, metav1.CreateOptions{})
			if err != nil {
				return err
			}
			_, err = core.PersistentVolumeClaims("default").Create(ctx, &corev1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("claim-", i)},
				Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class, AccessModes: modes,
					Resources: corev1.VolumeResourceRequirements{Requests: size}},
			}, metav1.CreateOptions{})
			return err
		})
		bound := func() map[string]string { // bound claims by volume
			list, err := core.PersistentVolumeClaims("default").List(ctx, metav1.ListOptions{})
			require.NoError(t, err)
			claims := map[string]string{}
			for _, c := range list.Items {
				if c.Status.Phase == corev1.ClaimBound {
					require.Empty(t, claims[c.Spec.VolumeName], "no volume has two claims")
					claims[c.Spec.VolumeName] = c.Name
				}
			}
			return claims
		}
		h.killLeader(t, "binding", func() bool { return len(bound()) > 10 })
		eventually(t, time.Minute, "all are bound", func() bool { return len(bound()) == n })
		claims := bound()
		eventually(t, time.Minute, "the volumes know it", func() bool {
			list, err := core.PersistentVolumes().List(ctx, metav1.ListOptions{})
			require.NoError(t, err)
			agree := 0
			for _, v := range list.Items {
				if v.Status.Phase == corev1.VolumeBound && v.Spec.ClaimRef.Name == claims[v.Name] {
					agree++
				}
			}
			return agree == n
		})
	})

	t.Run("the rollout of EndpointSlices", func(t *testing.T) {
		const n = 150
		h.node("steady")
		_, err := core.Services("default").Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "web"},
			Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "web"},
				Ports: []corev1.ServicePort{{Port: 80}}},
		}, metav1.CreateOptions{})
		require.NoError(t, err)
		listed := func() (addresses map[string]int) {
			list, err := h.client.DiscoveryV1().EndpointSlices("default").List(ctx,
				metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=web"})
			require.NoError(t, err)
			addresses = map[string]int{}
			for _, s := range list.Items {
				for _, e := range s.Endpoints {
					addresses[e.TargetRef.Name]++
				}
			}
			return addresses
		}
		made := make(chan struct{})
		go func() {
			defer close(made)
			each(t, n, func(i int) error {
				return h.pod(fmt.Sprint("web-", i), "steady", "web", fmt.Sprintf("10.1.0.%d", i+1))
			})
		}()
		h.killLeader(t, "the rollout", func() bool { return len(listed()) > 10 })
		<-made
		eventually(t, time.Minute, "each address is listed once", func() bool {
			all := listed()
			for _, times := range all {
				if times != 1 {
					return false
				}
			}
			return len(all) == n
		})
	})

	t.Run("the eviction from a Node", func(t *testing.T) {
		const n = 100
		h.node("lost")
		each(t, n, func(i int) error { return h.pod(fmt.Sprint("app-", i), "lost", "app", "10.2.0.1") })
		stays := corev1.Toleration{Operator: corev1.TolerationOpExists}
		require.NoError(t, h.pod("patient", "lost", "patient", "10.2.0.2", stays))
		h.run(kubectl, "taint", "node", "lost", "example.com/out=:NoExecute")
		h.killLeader(t, "the eviction", func() bool { _, ending := h.count("app"); return ending > 5 })
		eventually(t, time.Minute, "all go", func() bool { all, ending := h.count("app"); return all == ending })
		all, ending := h.count("patient")
		require.Equal(t, []int{1, 0}, []int{all, ending}, "a pod that tolerates the taint stays")
		_, ending = h.count("web")
		require.Zero(t, ending, "other pods are evicted")
	})
}
