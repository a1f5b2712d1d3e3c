package deployment

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/coxswain-dev/coxswain/controllers/lib/controller"
)

func deployment(replicas int32, surge, unavailable string) *appsv1.Deployment {
	s, u := intstr.Parse(surge), intstr.Parse(unavailable)
	return &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: &replicas, Strategy: appsv1.DeploymentStrategy{
		Type:          appsv1.RollingUpdateDeploymentStrategyType,
		RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &s, MaxUnavailable: &u},
	}}}
}

func TestFenceposts(t *testing.T) {
	for _, c := range []struct {
		replicas           int32
		surge, unavailable string
		up, down           int32
	}{
		{10, "25%", "25%", 3, 2},
		{1, "25%", "25%", 1, 0},
		{3, "25%", "25%", 1, 0},
		{4, "25%", "25%", 1, 1},
		{10, "0", "0", 0, 1},
		{10, "0%", "5%", 0, 1},
		{10, "2", "3", 2, 3},
		{2, "0", "5", 0, 2},
		{0, "25%", "25%", 0, 0},
		{100, "100%", "100%", 100, 100},
	} {
		d := deployment(c.replicas, c.surge, c.unavailable)
		require.Equal(t, c.replicas+c.up, maxTotal(d), "%+v", c)
		require.Equal(t, c.down, maxUnavailable(d), "%+v", c)
	}
}

func set(name string, age int, replicas, limit int32) *appsv1.ReplicaSet {
	created := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(-time.Duration(age) * time.Hour)
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(created)}}
	rs.Spec.Replicas = &replicas
	rs.Annotations = map[string]string{maxReplicasAnnotation: fmt.Sprint(limit)}
	return rs
}

func TestShareOut(t *testing.T) {
	for _, c := range []struct {
		name string
		d    *appsv1.Deployment
		sets []*appsv1.ReplicaSet
		want map[string]int32
	}{
		{"the documentation's example", deployment(15, "3", "2"),
			[]*appsv1.ReplicaSet{set("old", 2, 8, 13), set("new", 1, 5, 13)}, map[string]int32{"old": 11, "new": 7}},
		{"down", deployment(5, "3", "2"),
			[]*appsv1.ReplicaSet{set("old", 2, 8, 13), set("new", 1, 5, 13)}, map[string]int32{"old": 5, "new": 3}},
		{"equals: what is left over goes to the younger", deployment(7, "0", "1"),
			[]*appsv1.ReplicaSet{set("old", 2, 3, 6), set("new", 1, 3, 6)}, map[string]int32{"old": 3, "new": 4}},
		{"to nothing", deployment(0, "3", "2"),
			[]*appsv1.ReplicaSet{set("old", 2, 8, 13), set("new", 1, 5, 13)}, map[string]int32{"old": 0, "new": 0}},
		{"nothing to do", deployment(10, "3", "2"),
			[]*appsv1.ReplicaSet{set("old", 2, 8, 13), set("new", 1, 5, 13)}, map[string]int32{"old": 8, "new": 5}},
	} {
		t.Run(c.name, func(t *testing.T) {
			room := maxTotal(c.d)
			if desired(c.d) == 0 {
				room = 0
			}
			got := map[string]int32{}
			for i, size := range shareOut(c.sets, c.d, room-totalReplicas(c.sets...)) {
				got[c.sets[i].Name] = size
			}
			require.Equal(t, c.want, got)
		})
	}
}

func TestTemplateHash(t *testing.T) {
	template := &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "one"}}}}
	first := templateHash(template, nil)
	require.Regexp(t, "^[bcdfghjklmnpqrstvwxz2456789]+$", first)
	require.Equal(t, first, templateHash(template.DeepCopy(), nil))
	require.NotEqual(t, first, templateHash(template, new(int32(1))))
	require.NotEqual(t, templateHash(template, new(int32(1))), templateHash(template, new(int32(2))))
	template.Spec.Containers[0].Image = "two"
	require.NotEqual(t, first, templateHash(template, nil))
}

func TestAppendHistory(t *testing.T) {
	require.Equal(t, "1", appendHistory("", "1"))
	require.Equal(t, "1,3", appendHistory("1", "3"))
	long := appendHistory(strings.Repeat("1234,", 399)+"1234", "5678")
	require.LessOrEqual(t, len(long), maxHistoryLength)
	require.True(t, strings.HasSuffix(long, "1234,5678"))
}

func TestInherit(t *testing.T) {
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		"kubernetes.io/change-cause": "why", corev1.LastAppliedConfigAnnotation: "{}", revisionAnnotation: "7",
		controller.TTLAnnotation: "1h"}}}
	rs := &appsv1.ReplicaSet{}
	require.True(t, inherit(rs, d, 1))
	require.Equal(t, map[string]string{"kubernetes.io/change-cause": "why", revisionAnnotation: "1"}, rs.Annotations)
	require.False(t, inherit(rs, d, 1))
	require.True(t, inherit(rs, d, 3), "rolled back to")
	require.Equal(t, "3", rs.Annotations[revisionAnnotation])
	require.Equal(t, "1", rs.Annotations[revisionHistoryAnnotation])
	require.False(t, inherit(rs, d, 2), "a revision never goes back")
}

func TestSizes_DoNotOverflow(t *testing.T) {
	const limit = math.MaxInt32
	d := deployment(limit, "25%", "0")
	require.EqualValues(t, limit, maxTotal(d))
	require.EqualValues(t, limit, maxTotal(deployment(limit, "2147483647", "0")))
	require.EqualValues(t, limit, maxTotal(deployment(limit, "1000000000%", "0")))

	sets := []*appsv1.ReplicaSet{set("new", 1, limit, 1), set("old", 2, limit, 1), set("older", 3, limit, 1)}
	require.EqualValues(t, limit, totalReplicas(sets...))
	for _, rs := range sets {
		rs.Status.Replicas = limit
	}
	r := &rollout{d: d, sets: sets, current: set("none", 0, 0, 0), old: sets}
	require.Zero(t, r.newReplicas(r.current), "the old ones have all the room")
	r = &rollout{d: d, sets: sets[:1], current: sets[0]}
	require.LessOrEqual(t, r.excess(), int32(0), "none is available yet")
	require.EqualValues(t, limit, sum(sets, running))

	for _, size := range shareOut(sets, d, maxTotal(d)-totalReplicas(sets...)) {
		require.GreaterOrEqual(t, size, int32(0))
	}
	require.Equal(t, []int32{limit}, shareOut([]*appsv1.ReplicaSet{set("one", 1, 1, 1)}, d, limit-1))
}
