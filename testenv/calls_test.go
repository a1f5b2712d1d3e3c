package testenv_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/coxswain-dev/coxswain/testenv"
)

func configMap(name string, data ...string) *corev1.ConfigMap {
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: map[string]string{}}
	for i := 0; i+1 < len(data); i += 2 {
		m.Data[data[i]] = data[i+1]
	}
	return m
}

func TestCalls_ExcludeTheControlPlanesParts(t *testing.T) {
	t.Parallel()
	env, ctx := testenv.StartEnvironment(t), t.Context()
	config := env.User("operator", "system:masters")
	config.UserAgent = "operator/v1"
	client := kubernetes.NewForConfigOrDie(config)
	maps := client.CoreV1().ConfigMaps("default")

	begin := time.Now()
	created, err := maps.Create(ctx, configMap("a", "k", "v"), metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = maps.Update(ctx, created, metav1.UpdateOptions{})
	require.NoError(t, err)
	_, err = maps.Patch(ctx, "a", types.MergePatchType, []byte(`{"data":{"k":"w"}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	_, err = maps.Update(ctx, created, metav1.UpdateOptions{})
	require.True(t, apierrors.IsConflict(err), "%v", err)
	_, err = maps.Create(ctx, configMap("a"), metav1.CreateOptions{})
	require.True(t, apierrors.IsAlreadyExists(err), "%v", err)
	_, err = maps.Update(ctx, configMap("a", "k", "w"), metav1.UpdateOptions{DryRun: []string{"All"}})
	require.NoError(t, err)
	_, err = maps.List(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	_, err = maps.List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	require.NoError(t, err)
	_, err = client.CoreV1().Namespaces().UpdateStatus(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: "nowhere"}}, metav1.UpdateOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	w, err := maps.Watch(ctx, metav1.ListOptions{})
	require.NoError(t, err)
	w.Stop()

	calls := env.Calls(testenv.Match{UserAgent: "operator/"})
	require.Equal(t, calls.Count(), env.Calls().Since(begin).Count(), "the parts' own are left out")
	var lines []string
	for _, c := range calls {
		line, _, _ := strings.Cut(c.String(), ", ")
		if c.Unchanged {
			line += ", nothing"
		}
		lines = append(lines, line)
		require.Equal(t, "operator", c.User)
		require.False(t, c.Time.Before(begin))
	}
	require.Equal(t, []string{
		"create configmaps default/a: 201", "update configmaps default/a: 200, nothing",
		"patch configmaps default/a: 200", "update configmaps default/a: 409", "create configmaps default/a: 409",
		"update configmaps default/a: 200", "list configmaps default/: 200", "list configmaps default/: 200",
		"update namespaces/status nowhere: 404", "watch configmaps default/: 200",
	}, lines)
	require.Equal(t, 7, calls.Writes().Count())
	require.Equal(t, 1, calls.Useless().Count())
	require.Equal(t, 1, calls.Conflicts().Count())
	require.Equal(t, 3, calls.Failed().Count())
	require.Equal(t, 1, calls.FullLists().Count())
	require.Equal(t, 4, env.Calls(testenv.Match{User: "operator", Verb: "update,patch", Resource: "configmaps"},
		testenv.Match{Name: "a", Verb: "watch"}).Count())
	require.Equal(t, 1, calls.Matching(testenv.Match{Resource: "*/status"}).Count())
	require.NotZero(t, env.Calls(testenv.Match{User: "system:node:node-0"}).Count(), "unless they are asked for")
	require.Contains(t, calls.Summary(),
		"operator   update   configmaps          3       1        1           1\n")
}

func TestHotLoops_FindRepeatedCalls(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	var calls testenv.Calls
	for i := range 100 {
		calls = append(calls,
			testenv.Call{Time: begin.Add(time.Duration(i) * 10 * time.Millisecond), User: "operator", Verb: "update",
				Resource: "sites", Group: "example.com", Subresource: "status", Namespace: "shop", Name: "blog"},
			testenv.Call{Time: begin.Add(time.Duration(i) * time.Minute), User: "operator", Verb: "get",
				Resource: "sites", Group: "example.com", Namespace: "shop", Name: "blog"})
	}
	loops := calls.HotLoops(20, time.Second)
	require.Len(t, loops, 1)
	require.Equal(t, 100, loops[0].Count)
	require.Equal(t, 990*time.Millisecond, loops[0].Within)
	require.Contains(t, loops[0].String(), "100 times in 990ms: update sites.example.com/status shop/blog, operator")
	require.Len(t, calls.HotLoops(20, time.Hour), 2)
	require.Empty(t, calls.HotLoops(101, time.Second))
	require.Empty(t, testenv.Calls(nil).HotLoops(0, time.Second))
}

func TestMatch_ParsesResourcesAsInRoles(t *testing.T) {
	t.Parallel()
	status := testenv.Call{Resource: "sites", Group: "example.com", Subresource: "status"}
	site := testenv.Call{Resource: "sites", Group: "example.com"}
	pods := testenv.Call{Resource: "pods"}
	path := testenv.Call{Path: "/openapi/v3/api"}
	all := testenv.Calls{status, site, pods, path}
	for resource, want := range map[string]testenv.Calls{
		"": all, "sites": {site}, "sites.example.com": {site}, "sites.example.org": nil, "sites/status": {status},
		"sites.example.com/status": {status}, "sites/*": {status}, "*/status": {status}, "*": {site, pods},
		"*.example.com": {site}, "pods": {pods}, "pods/status": nil, "/openapi/v3/api": {path}, "/openapi/*": {path},
		"/openapi/v3": nil,
	} {
		require.Equal(t, want, all.Matching(testenv.Match{Resource: resource}), resource)
	}
}

func TestCalls_KeepTheNewest(t *testing.T) {
	t.Parallel()
	env := testenv.StartEnvironment(t, testenv.APIServerOnly())
	config := env.User("system:kube-scheduler") // this name makes it a part
	parts := kubernetes.NewForConfigOrDie(config).CoreV1().RESTClient()
	mine := kubernetes.NewForConfigOrDie(env.Config).CoreV1().RESTClient()
	ask := func(client rest.Interface, n int) {
		for range n {
			_ = client.Get().AbsPath("/livez").Do(t.Context()).Error()
		}
	}
	ask(mine, 1)
	ask(parts, 10_010)
	require.Equal(t, 1, env.Calls(testenv.Match{Resource: "/livez"}).Count(), "the parts' own do not push it out")
	all := env.Calls(testenv.Match{User: "system:kube-scheduler"}, testenv.Match{})
	require.Equal(t, 10_001, all.Count())
	require.True(t, slices.IsSortedFunc(all, func(a, b testenv.Call) int { return a.Time.Compare(b.Time) }))

	_, err := kubernetes.NewForConfigOrDie(env.Config).CoreV1().ConfigMaps("default").Get(t.Context(),
		strings.Repeat("x", 4000), metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
	last := env.Calls(testenv.Match{Verb: "get", Resource: "configmaps"})
	require.Len(t, last, 1)
	require.Less(t, len(last[0].Name), 1000, "a client does not choose how much is kept of a request")
}
