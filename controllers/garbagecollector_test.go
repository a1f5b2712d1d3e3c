package controllers_test

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

// object makes a ConfigMap that is owned by others.
func (c *cluster) object(namespace, name string, owners ...metav1.OwnerReference) *corev1.ConfigMap {
	cm, err := c.client.CoreV1().ConfigMaps(namespace).Create(c.ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owners}}, metav1.CreateOptions{})
	require.NoError(c, err)
	return cm
}

func owner(cm *corev1.ConfigMap, blocks bool) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: cm.Name, UID: cm.UID, BlockOwnerDeletion: &blocks}
}

func (c *cluster) get(namespace, name string) *corev1.ConfigMap {
	cm, err := c.client.CoreV1().ConfigMaps(namespace).Get(c.ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	require.NoError(c, err)
	return cm
}

func (c *cluster) remove(name string, policy metav1.DeletionPropagation) {
	require.NoError(c, c.client.CoreV1().ConfigMaps("default").Delete(c.ctx, name, metav1.DeleteOptions{PropagationPolicy: &policy}))
}

func (c *cluster) awaitGone(names ...string) {
	c.Helper()
	for _, name := range names {
		c.eventually(name+" is gone", func() bool { return c.get("default", name) == nil })
	}
}

// settled waits until the collector has judged everything made so far: it collects a probe,
// whose events come after those of all else.
func (c *cluster) settled(namespace string) {
	c.Helper()
	probe := c.object(namespace, "probe", metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "never", UID: types.UID("never-" + c.Name())})
	c.eventually("probe collected", func() bool { return c.get(namespace, probe.Name) == nil })
}

// order tells when each ConfigMap went, counted in deletions.
func (c *cluster) order() map[string]int {
	order := map[string]int{}
	for _, e := range c.mapChanges(c.from) {
		if e.Type == watch.Deleted {
			order[e.Object.(*corev1.ConfigMap).Name] = len(order) + 1
		}
	}
	return order
}

func TestGarbageCollector_Background(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	a := c.object("default", "a")
	b := c.object("default", "b", owner(a, true))
	c.object("default", "c", owner(b, false))
	other := c.object("default", "other")
	c.object("default", "shared", owner(a, true), owner(other, true))
	c.remove("a", metav1.DeletePropagationBackground)
	c.awaitGone("a", "b", "c")
	c.eventually("reference removed", func() bool { return len(c.get("default", "shared").OwnerReferences) == 1 })
	require.Equal(t, other.UID, c.get("default", "shared").OwnerReferences[0].UID)
}

func TestGarbageCollector_ForegroundGoesFromTheLeavesUp(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	a := c.object("default", "a")
	b := c.object("default", "b", owner(a, true))
	c.object("default", "c", owner(b, true))
	c.settled("default")
	c.remove("a", metav1.DeletePropagationForeground)
	c.awaitGone("a", "b", "c")
	o := c.order()
	require.Less(t, o["c"], o["b"])
	require.Less(t, o["b"], o["a"])
}

func TestGarbageCollector_ForegroundWaitsOnlyForThoseThatBlock(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	a := c.object("default", "a")
	loose := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "loose", Finalizers: []string{"test/hold"}, OwnerReferences: []metav1.OwnerReference{owner(a, false)}}}
	_, err := c.client.CoreV1().ConfigMaps("default").Create(c.ctx, loose, metav1.CreateOptions{})
	require.NoError(t, err)
	c.settled("default")
	c.remove("a", metav1.DeletePropagationForeground)
	c.awaitGone("a")
	c.eventually("loose is deleted", func() bool { return c.get("default", "loose").DeletionTimestamp != nil })
}

func TestGarbageCollector_Orphan(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	a := c.object("default", "a")
	c.object("default", "b", owner(a, true))
	c.object("default", "c", owner(a, false))
	c.settled("default")
	c.remove("a", metav1.DeletePropagationOrphan)
	c.awaitGone("a")
	c.settled("default")
	require.Empty(t, c.get("default", "b").OwnerReferences)
	require.Empty(t, c.get("default", "c").OwnerReferences)
}

func TestGarbageCollector_Cycles(t *testing.T) {
	for _, policy := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, nil)
			a := c.object("default", "a")
			b := c.object("default", "b", owner(a, true))
			a.OwnerReferences = []metav1.OwnerReference{owner(b, true)}
			_, err := c.client.CoreV1().ConfigMaps("default").Update(c.ctx, a, metav1.UpdateOptions{})
			require.NoError(t, err)
			c.settled("default")
			c.remove("a", policy)
			c.awaitGone("a", "b")
		})
	}
}

// TestGarbageCollector_CirclesThatUsersDelete has users delete both halves of a circle in the foreground, before the
// collector has done anything about it: each would wait for the other.
func TestGarbageCollector_CirclesThatUsersDelete(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	a := c.object("default", "a")
	b := c.object("default", "b", owner(a, true))
	third := c.object("default", "c", owner(b, true))
	a.OwnerReferences = []metav1.OwnerReference{owner(third, true), owner(a, true)} // and one waits for itself
	_, err := c.client.CoreV1().ConfigMaps("default").Update(c.ctx, a, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.settled("default")
	var open atomic.Bool
	c.refuseWhile(func() bool { return !open.Load() }, http.MethodPatch, "configmaps")
	for _, name := range []string{"a", "b", "c"} {
		c.remove(name, metav1.DeletePropagationForeground)
	}
	open.Store(true)
	c.awaitGone("a", "b", "c")
}

func TestGarbageCollector_OwnersMustBeWhereTheyAreSaidToBe(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	a := c.object("default", "a")
	wrongName := owner(a, true)
	wrongName.Name = "b"
	wrongUID := owner(a, true)
	wrongUID.UID = "another"
	c.object("default", "wrong-name", wrongName)
	c.object("default", "wrong-uid", wrongUID)
	c.object("default", "right", owner(a, true))
	c.object("kube-system", "elsewhere", owner(a, true))
	c.awaitGone("wrong-name", "wrong-uid")
	c.eventually("elsewhere is gone", func() bool { return c.get("kube-system", "elsewhere") == nil })
	c.settled("default")
	require.NotNil(t, c.get("default", "right"))
}

func TestGarbageCollector_LeavesAloneWhatItCannotJudge(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	c.object("default", "unknown", metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Widget", Name: "w", UID: "w"})
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: "x"}}}}
	_, err := c.client.CoreV1().Nodes().Create(c.ctx, node, metav1.CreateOptions{})
	require.NoError(t, err)
	c.settled("default")
	require.NotNil(t, c.get("default", "unknown"))
	_, err = c.client.CoreV1().Nodes().Get(c.ctx, "n", metav1.GetOptions{})
	require.NoError(t, err)
}

func TestGarbageCollector_CascadesThroughADeployment(t *testing.T) {
	for _, policy := range []metav1.DeletionPropagation{
		metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan,
	} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, always)
			c.deploy("web", 3, nil)
			c.awaitRollout("web")
			require.NoError(t, c.client.AppsV1().Deployments("default").Delete(c.ctx, "web", metav1.DeleteOptions{PropagationPolicy: &policy}))
			if policy != metav1.DeletePropagationOrphan {
				c.eventually("all gone", func() bool { return len(c.replicaSets()) == 0 && len(c.pods()) == 0 })
				return
			}
			c.eventually("orphaned", func() bool { rs := c.replicaSets(); return len(rs) == 1 && len(rs[0].OwnerReferences) == 0 })
			require.Len(t, c.pods(), 3)
		})
	}
}

// TestGarbageCollector_RandomWalk compares with a model: after quiet, exactly that lives
// which can be reached from an object without owners that was never deleted.
func TestGarbageCollector_RandomWalk(t *testing.T) {
	t.Parallel()
	c := newCluster(t, nil)
	random := newRandom(t)
	owners := map[string][]string{}
	deleted := map[string]bool{}
	objects := map[string]*corev1.ConfigMap{}
	var names []string
	for i := range 300 {
		name := fmt.Sprintf("o%03d", i)
		var refs []metav1.OwnerReference
		for range random.IntN(3) {
			if i > 0 {
				of := names[random.IntN(len(names))]
				if len(refs) == 0 || refs[0].Name != of {
					owners[name] = append(owners[name], of)
					refs = append(refs, owner(objects[of], random.IntN(2) == 0))
				}
			}
		}
		objects[name] = c.object("default", name, refs...)
		names = append(names, name)
		if random.IntN(4) == 0 {
			victim := names[random.IntN(len(names))]
			deleted[victim] = true
			policy := []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground}[random.IntN(2)]
			err := c.client.CoreV1().ConfigMaps("default").Delete(c.ctx, victim, metav1.DeleteOptions{PropagationPolicy: &policy})
			if !apierrors.IsNotFound(err) {
				require.NoError(t, err)
			}
		}
	}
	lives := map[string]bool{}
	for _, name := range names { // owners come before their dependents
		lives[name] = !deleted[name] && len(owners[name]) == 0
		for _, of := range owners[name] {
			lives[name] = lives[name] || lives[of] && !deleted[name]
		}
	}
	for _, name := range names {
		if !lives[name] {
			c.awaitGone(name)
		}
	}
	c.settled("default")
	for _, name := range names {
		if lives[name] {
			require.NotNil(t, c.get("default", name), name)
		}
	}
}
