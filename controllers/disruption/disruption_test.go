package disruption_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/controllers/lib/controllertest"
)

func TestMain(m *testing.M) { controllertest.Main(m) }

// cluster adds helpers for budgets to a controllertest.Clocked.
type cluster struct{ *controllertest.Clocked }

// budget creates a PodDisruptionBudget for the pods with the label app=name.
func (c cluster) budget(name string, edit func(*policyv1.PodDisruptionBudgetSpec)) {
	pdb := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name}}
	pdb.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	edit(&pdb.Spec)
	_, err := c.Client.PolicyV1().PodDisruptionBudgets("default").Create(c.Context(), pdb, metav1.CreateOptions{})
	require.NoError(c, err)
}

// awaitBudget waits until a budget's status has these counts: healthy, desired, expected, allowed.
func (c cluster) awaitBudget(name string, counts ...int32) *policyv1.PodDisruptionBudget {
	c.Helper()
	var pdb *policyv1.PodDisruptionBudget
	c.Reaches(fmt.Sprintf("budget %s is at %v", name, counts), func() bool {
		var err error
		pdb, err = c.Client.PolicyV1().PodDisruptionBudgets("default").Get(c.Context(), name, metav1.GetOptions{})
		require.NoError(c, err)
		s := pdb.Status
		return s.ObservedGeneration == pdb.Generation &&
			[4]int32{s.CurrentHealthy, s.DesiredHealthy, s.ExpectedPods, s.DisruptionsAllowed} == [4]int32(counts)
	})
	condition := meta.FindStatusCondition(pdb.Status.Conditions, policyv1.DisruptionAllowedCondition)
	require.NotNil(c, condition)
	require.Equal(c, pdb.Status.DisruptionsAllowed > 0, condition.Status == metav1.ConditionTrue)
	return pdb
}

func (c cluster) evict(pod string) error {
	return c.Client.CoreV1().Pods("default").EvictV1(c.Context(),
		&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod}})
}

func TestDisruption_ExpectsTheReplicasOfThePodsControllers(t *testing.T) {
	t.Parallel()
	c := cluster{controllertest.NewClocked(t, 2, "deployment", "replicaset", "statefulset", "disruption")}
	percent, two := intstr.FromString("30%"), intstr.FromInt32(2)
	c.Deploy("web", 10, nil)
	c.CreateStatefulSet("db", 3, func(s *appsv1.StatefulSet) {
		s.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
	})
	c.budget("web", func(s *policyv1.PodDisruptionBudgetSpec) { s.MaxUnavailable = &percent })
	c.budget("db", func(s *policyv1.PodDisruptionBudgetSpec) { s.MinAvailable = &two })
	c.awaitBudget("web", 10, 7, 10, 3)
	c.awaitBudget("db", 3, 2, 3, 1)

	c.EditDeployment("web", controllertest.Scale(4))
	c.awaitBudget("web", 4, 2, 4, 2) // a percentage is rounded up: 2 of 4 may be missing
	c.budget("none", func(s *policyv1.PodDisruptionBudgetSpec) { s.MinAvailable = &percent })
	c.awaitBudget("none", 0, 0, 0, 0)
	c.AwaitEvent("NoPods", "No matching pods found")
}

func TestDisruption_AllowsEvictionsUntilThePodsAreReplaced(t *testing.T) {
	t.Parallel()
	c := cluster{controllertest.NewClocked(t, 2, "deployment", "replicaset", "disruption")}
	one := intstr.FromInt32(1)
	c.Deploy("web", 3, nil)
	c.budget("web", func(s *policyv1.PodDisruptionBudgetSpec) { s.MaxUnavailable = &one })
	c.awaitBudget("web", 3, 2, 3, 1)
	for range 3 {
		// All pods are evicted one by one: the next eviction is allowed when another pod is ready.
		pods := slices.DeleteFunc(c.Pods(), func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
		oldest := pods[0]
		for _, p := range pods {
			if p.CreationTimestamp.Before(&oldest.CreationTimestamp) {
				oldest = p
			}
		}
		c.Reaches("an eviction is granted", func() bool {
			err := c.evict(oldest.Name)
			if !apierrors.IsTooManyRequests(err) {
				require.NoError(t, err)
			}
			return err == nil
		})
		c.awaitBudget("web", 3, 2, 3, 1)
	}
}

func TestDisruption_AllowsAFailedEvictionAgain(t *testing.T) {
	t.Parallel()
	c := cluster{controllertest.NewClocked(t, 1, "replicaset", "deployment", "disruption")}
	one := intstr.FromInt32(1)
	c.Deploy("web", 2, nil)
	c.budget("web", func(s *policyv1.PodDisruptionBudgetSpec) { s.MinAvailable = &one })
	c.awaitBudget("web", 2, 1, 2, 1)
	pod := c.Pods()[0].Name
	budgets := c.Client.PolicyV1().PodDisruptionBudgets("default")
	controllertest.EditStatus(c.Cluster, budgets, "web", func(b *policyv1.PodDisruptionBudget) {
		b.Status.DisruptedPods = map[string]metav1.Time{pod: metav1.NewTime(c.Now())}
	})
	c.awaitBudget("web", 1, 1, 2, 0)
	c.Passing(time.Second, "it is granted again", func() bool {
		got, err := c.Client.PolicyV1().PodDisruptionBudgets("default").Get(c.Context(), "web", metav1.GetOptions{})
		require.NoError(t, err)
		return got.Status.DisruptionsAllowed == 1 && len(got.Status.DisruptedPods) == 0
	})
	c.AwaitEvent("NotDeleted", "Pod was expected by PDB default/web to be deleted but it wasn't")
}

// Pods must not be evicted while their controller's scale is unknown.
func TestDisruption_FailsSafe(t *testing.T) {
	t.Parallel()
	c := cluster{controllertest.NewClocked(t, 1, "disruption")}
	one := intstr.FromInt32(1)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "DaemonSet",
		Name: "d", UID: "1", Controller: new(true)}}
	_, err := c.Client.CoreV1().Pods("default").Create(c.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)
	c.budget("web", func(s *policyv1.PodDisruptionBudgetSpec) { s.MaxUnavailable = &one })
	c.Reaches("the budget says that it failed", func() bool {
		pdb, err := c.Client.PolicyV1().PodDisruptionBudgets("default").Get(c.Context(), "web", metav1.GetOptions{})
		require.NoError(t, err)
		condition := meta.FindStatusCondition(pdb.Status.Conditions, policyv1.DisruptionAllowedCondition)
		return condition != nil && condition.Reason == policyv1.SyncFailedReason && pdb.Status.DisruptionsAllowed == 0
	})
	c.AwaitEvent("CalculateExpectedPodCountFailed", "does not implement the scale subresource")
}

func TestDisruption_ClearsDisruptionTargetOfPodsNotDeleted(t *testing.T) {
	t.Parallel()
	c := cluster{controllertest.NewClockedWith(t, controllers.Settings{}, "disruption")}
	marked := func(name, reason string) {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
		pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
		pod, err := c.Client.CoreV1().Pods("default").Create(c.Context(), pod, metav1.CreateOptions{})
		require.NoError(t, err)
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: reason,
			LastTransitionTime: metav1.NewTime(c.Now()),
		})
		_, err = c.Client.CoreV1().Pods("default").UpdateStatus(c.Context(), pod, metav1.UpdateOptions{})
		require.NoError(t, err)
	}
	status := func(name string) corev1.ConditionStatus {
		pod, err := c.Client.CoreV1().Pods("default").Get(c.Context(), name, metav1.GetOptions{})
		require.NoError(t, err)
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.DisruptionTarget {
				return condition.Status
			}
		}
		return ""
	}
	start := c.Now()
	marked("spared", "PreemptionByScheduler")
	marked("ending", "TerminationByKubelet")
	c.Passing(time.Second, "taken back", func() bool { return status("spared") == corev1.ConditionFalse })
	require.GreaterOrEqual(t, c.Since(start), 2*time.Minute-time.Second) // the API's times are whole seconds
	require.Equal(t, corev1.ConditionTrue, status("ending"))
}
