package garbagecollector_test

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
	"github.com/coxswain-dev/coxswain/testenv"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

func owner(cm *corev1.ConfigMap, blocks bool) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: cm.Name, UID: cm.UID,
		BlockOwnerDeletion: &blocks}
}

func awaitGone(c *controllertest.Cluster, names ...string) {
	c.Helper()
	for _, name := range names {
		c.Eventually(name+" is gone", func() bool { return c.Map("default", name) == nil })
	}
}

// order returns the order in which ConfigMaps were deleted, beginning with 1.
func order(c *controllertest.Cluster) map[string]int {
	order := map[string]int{}
	for _, e := range c.MapChanges(c.Began) {
		if e.Type == watch.Deleted {
			order[e.Object.(*corev1.ConfigMap).Name] = len(order) + 1
		}
	}
	return order
}

func TestGarbageCollector_Background(t *testing.T) {
	t.Parallel()
	c := controllertest.New(t, nil, "garbagecollector")
	a := c.CreateMap("default", "a")
	b := c.CreateMap("default", "b", owner(a, true))
	c.CreateMap("default", "c", owner(b, false))
	other := c.CreateMap("default", "other")
	c.CreateMap("default", "shared", owner(a, true), owner(other, true))
	c.DeleteMap("a", metav1.DeletePropagationBackground)
	awaitGone(c, "a", "b", "c")
	c.Eventually("reference removed", func() bool { return len(c.Map("default", "shared").OwnerReferences) == 1 })
	require.Equal(t, other.UID, c.Map("default", "shared").OwnerReferences[0].UID)
}

func TestGarbageCollector_ForegroundDeletesLeavesFirst(t *testing.T) {
	t.Parallel()
	c := controllertest.New(t, nil, "garbagecollector")
	a := c.CreateMap("default", "a")
	b := c.CreateMap("default", "b", owner(a, true))
	c.CreateMap("default", "c", owner(b, true))
	c.AwaitCollected("default")
	c.DeleteMap("a", metav1.DeletePropagationForeground)
	awaitGone(c, "a", "b", "c")
	o := order(c)
	require.Less(t, o["c"], o["b"])
	require.Less(t, o["b"], o["a"])
}

func TestGarbageCollector_ForegroundWaitsOnlyForBlockingDependents(t *testing.T) {
	t.Parallel()
	c := controllertest.New(t, nil, "garbagecollector")
	a := c.CreateMap("default", "a")
	loose := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "loose", Finalizers: []string{"test/hold"},
		OwnerReferences: []metav1.OwnerReference{owner(a, false)}}}
	_, err := c.Client.CoreV1().ConfigMaps("default").Create(c.Context(), loose, metav1.CreateOptions{})
	require.NoError(t, err)
	c.AwaitCollected("default")
	c.DeleteMap("a", metav1.DeletePropagationForeground)
	awaitGone(c, "a")
	c.Eventually("loose is deleted", func() bool { return c.Map("default", "loose").DeletionTimestamp != nil })
}

func TestGarbageCollector_Orphan(t *testing.T) {
	t.Parallel()
	c := controllertest.New(t, nil, "garbagecollector")
	a := c.CreateMap("default", "a")
	c.CreateMap("default", "b", owner(a, true))
	c.CreateMap("default", "c", owner(a, false))
	c.AwaitCollected("default")
	c.DeleteMap("a", metav1.DeletePropagationOrphan)
	awaitGone(c, "a")
	c.AwaitCollected("default")
	require.Empty(t, c.Map("default", "b").OwnerReferences)
	require.Empty(t, c.Map("default", "c").OwnerReferences)
}

func TestGarbageCollector_Cycles(t *testing.T) {
	for _, policy := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground,
		metav1.DeletePropagationForeground} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			c := controllertest.New(t, nil, "garbagecollector")
			a := c.CreateMap("default", "a")
			b := c.CreateMap("default", "b", owner(a, true))
			a.OwnerReferences = []metav1.OwnerReference{owner(b, true)}
			_, err := c.Client.CoreV1().ConfigMaps("default").Update(c.Context(), a, metav1.UpdateOptions{})
			require.NoError(t, err)
			c.AwaitCollected("default")
			c.DeleteMap("a", policy)
			awaitGone(c, "a", "b")
		})
	}
}

// A user deletes all objects of a cycle in the foreground before the collector acts, so that each waits for
// another.
func TestGarbageCollector_BreaksCyclesDeletedInTheForeground(t *testing.T) {
	t.Parallel()
	c := controllertest.New(t, nil, "garbagecollector")
	a := c.CreateMap("default", "a")
	b := c.CreateMap("default", "b", owner(a, true))
	third := c.CreateMap("default", "c", owner(b, true))
	a.OwnerReferences = []metav1.OwnerReference{owner(third, true), owner(a, true)} // and one owns itself
	_, err := c.Client.CoreV1().ConfigMaps("default").Update(c.Context(), a, metav1.UpdateOptions{})
	require.NoError(t, err)
	c.AwaitCollected("default")
	var open atomic.Bool
	c.Faults.RefuseWhile(func() bool { return !open.Load() }, http.MethodPatch, "configmaps")
	for _, name := range []string{"a", "b", "c"} {
		c.DeleteMap(name, metav1.DeletePropagationForeground)
	}
	open.Store(true)
	awaitGone(c, "a", "b", "c")
}

func TestGarbageCollector_OwnersMustBeWhereTheyAreSaidToBe(t *testing.T) {
	t.Parallel()
	c := controllertest.New(t, nil, "garbagecollector")
	a := c.CreateMap("default", "a")
	wrongName := owner(a, true)
	wrongName.Name = "b"
	wrongUID := owner(a, true)
	wrongUID.UID = "another"
	c.CreateMap("default", "wrong-name", wrongName)
	c.CreateMap("default", "wrong-uid", wrongUID)
	c.CreateMap("default", "right", owner(a, true))
	c.CreateMap("kube-system", "elsewhere", owner(a, true))
	awaitGone(c, "wrong-name", "wrong-uid")
	c.Eventually("elsewhere is gone", func() bool { return c.Map("kube-system", "elsewhere") == nil })
	c.AwaitCollected("default")
	require.NotNil(t, c.Map("default", "right"))
}

func TestGarbageCollector_LeavesObjectsWithUnknownOwnersAlone(t *testing.T) {
	t.Parallel()
	c := controllertest.New(t, nil, "garbagecollector")
	c.CreateMap("default", "unknown", metav1.OwnerReference{APIVersion: "example.com/v1", Kind: "Widget",
		Name: "w", UID: "w"})
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: "x"}}}}
	_, err := c.Client.CoreV1().Nodes().Create(c.Context(), node, metav1.CreateOptions{})
	require.NoError(t, err)
	c.AwaitCollected("default")
	require.NotNil(t, c.Map("default", "unknown"))
	_, err = c.Client.CoreV1().Nodes().Get(c.Context(), "n", metav1.GetOptions{})
	require.NoError(t, err)
}

func TestGarbageCollector_CascadesThroughADeployment(t *testing.T) {
	for _, policy := range []metav1.DeletionPropagation{
		metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan,
	} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			c := controllertest.New(t, controllertest.Always, "deployment", "replicaset", "garbagecollector")
			c.Deploy("web", 3, nil)
			c.AwaitRollout("web")
			require.NoError(t, c.Client.AppsV1().Deployments("default").Delete(c.Context(), "web",
				metav1.DeleteOptions{PropagationPolicy: &policy}))
			if policy != metav1.DeletePropagationOrphan {
				c.Eventually("all gone", func() bool { return len(c.ReplicaSets()) == 0 && len(c.Pods()) == 0 })
				return
			}
			c.Eventually("orphaned", func() bool {
				rs := c.ReplicaSets()
				return len(rs) == 1 && len(rs[0].OwnerReferences) == 0
			})
			require.Len(t, c.Pods(), 3)
		})
	}
}

// TestGarbageCollector_RandomWalk compares with a model: when the collector is idle, an object exists if and
// only if it is reachable from an object without owners by objects that were never deleted.
func TestGarbageCollector_RandomWalk(t *testing.T) {
	t.Parallel()
	c := controllertest.New(t, nil, "garbagecollector")
	random := controllertest.NewRandom(t)
	owners := map[string][]string{}
	deleted := map[string]bool{}
	objects := map[string]*corev1.ConfigMap{}
	var names []string
	for i := range 300 {
		name := fmt.Sprintf("o%03d", i)
		var refs []metav1.OwnerReference
		for range random.IntN(3) {
			if i > 0 {
				target := names[random.IntN(len(names))]
				if len(refs) == 0 || refs[0].Name != target {
					owners[name] = append(owners[name], target)
					refs = append(refs, owner(objects[target], random.IntN(2) == 0))
				}
			}
		}
		objects[name] = c.CreateMap("default", name, refs...)
		names = append(names, name)
		if random.IntN(4) == 0 {
			victim := names[random.IntN(len(names))]
			deleted[victim] = true
			policy := []metav1.DeletionPropagation{metav1.DeletePropagationBackground,
				metav1.DeletePropagationForeground}[random.IntN(2)]
			err := c.Client.CoreV1().ConfigMaps("default").Delete(c.Context(), victim,
				metav1.DeleteOptions{PropagationPolicy: &policy})
			if !apierrors.IsNotFound(err) {
				require.NoError(t, err)
			}
		}
	}
	lives := map[string]bool{}
	for _, name := range names { // owners come before their dependents
		lives[name] = !deleted[name] && len(owners[name]) == 0
		for _, target := range owners[name] {
			lives[name] = lives[name] || lives[target] && !deleted[name]
		}
	}
	for _, name := range names {
		if !lives[name] {
			awaitGone(c, name)
		}
	}
	c.AwaitCollected("default")
	for _, name := range names {
		if lives[name] {
			require.NotNil(t, c.Map("default", name), name)
		}
	}
}

// While an aggregated server is unavailable, its objects stay in the graph, objects that name an owner there
// are left alone, and everything else is collected.
func TestGarbageCollector_KeepsDependentsOfUnavailableServers(t *testing.T) {
	t.Parallel()
	direct := testenv.Start(t, testenv.OrExternal(), testenv.WithControllers(), testenv.WithNodes(0),
		testenv.WithoutScheduler())
	extensions, config := controllertest.StartExtensions(t, direct)
	strange, batch := schema.GroupVersion{Group: "wardle.example.com", Version: "v1alpha1"}, batchv1.SchemeGroupVersion
	extensions.Take(strange) // the collector has never discovered it
	c := controllertest.ClockedAt(t, direct, "garbagecollector")
	c.Config, c.Impersonate = config, true
	c.Restart()
	job := c.CreateJob("owner", nil)
	reference := func(gv schema.GroupVersion, kind, name string, uid types.UID) metav1.OwnerReference {
		return metav1.OwnerReference{APIVersion: gv.String(), Kind: kind, Name: name, UID: uid}
	}
	c.CreateMap("default", "flunders", reference(strange, "Flunder", "f", "somewhere"))
	c.CreateMap("default", "jobs", reference(batch, "Job", job.Name, job.UID))
	c.CreateMap("default", "lost", reference(batch, "Job", "none", "never"))
	awaitGone(c.Cluster, "lost")
	c.AwaitCollected("default")

	// Now a discovered group becomes unavailable, and discovery runs again.
	extensions.Take(batch)
	c.Step(time.Minute)
	c.CreateMap("default", "unclear", reference(batch, "Job", "none", "perhaps"))
	c.AwaitCollected("default")
	for _, name := range []string{"flunders", "jobs", "unclear"} {
		require.NotNil(t, c.Map("default", name), name)
	}
	// An owner is deleted while its group is unavailable. Its dependents follow when the group is back.
	require.NoError(t, c.Client.BatchV1().Jobs("default").Delete(c.Context(), job.Name, metav1.DeleteOptions{
		PropagationPolicy: new(metav1.DeletePropagationBackground)}))
	extensions.Give(batch)
	c.Passing(time.Second, "its dependents are collected", func() bool {
		return c.Map("default", "jobs") == nil && c.Map("default", "unclear") == nil
	})
	require.NotNil(t, c.Map("default", "flunders"))
}
