package kubectllite

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWait_ForCreateWaitsForEveryObject(t *testing.T) {
	t.Parallel()
	f := newFakeServer(t)
	require.Zero(t, f.run(t, "", "create", "configmap", "a").code)
	for _, args := range []string{"cm/a cm/b", "cm/b cm/a", "cm/a cm/b --for=jsonpath={.metadata.name}"} {
		got := f.run(t, "", strings.Fields("wait --for=create --timeout=20ms "+args)...)
		require.Equal(t, 1, got.code, args)
		require.Empty(t, got.out)
		require.Contains(t, got.errOut, "timed out waiting for the condition")
	}
	done := make(chan outcome, 1)
	go func() { done <- f.run(t, "", strings.Fields("wait --for=create --timeout=1m cm/a cm/b")...) }()
	time.AfterFunc(10*time.Millisecond, func() { f.run(t, "", "create", "configmap", "b") })
	got := <-done
	require.Zero(t, got.code, got.errOut)
	require.Equal(t, "configmap/a condition met\nconfigmap/b condition met\n", got.out)
	got = f.run(t, "", strings.Fields("wait --for=create --for=jsonpath={.metadata.name}=b cm/b --timeout=1m")...)
	require.Zero(t, got.code, got.errOut)
	require.Equal(t, strings.Repeat("configmap/b condition met\n", 2), got.out, "as kubectl, once for each condition")
}

// A filter has quotes and commas, which must not part the value of --for.
func TestWait_TakesAFilterAsOneCondition(t *testing.T) {
	t.Parallel()
	f := newFakeServer(t)
	require.Zero(t, f.run(t, "", "create", "configmap", "a", "--from-literal=k=v").code)
	got := f.run(t, "", "wait", "cm/a", "--timeout=0", `--for=jsonpath={.metadata['name','namespace']}=a`)
	require.Contains(t, got.errOut, "more than one value")
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i}, {name: d, image: 'j,k'}]}"
	require.Zero(t, f.run(t, pod, "apply", "--validate=false", "-f", "-").code)
	for _, path := range []string{`{.spec.containers[?(@.name=="d")].image}=j,k`, `.spec.containers[0].name=c`,
		`{.spec.containers[?(@.image=="j,k")].name}="d"`, `{.metadata.name}`} {
		got := f.run(t, "", "wait", "pod/p", "--timeout=1s", "--for=jsonpath="+path)
		require.Zero(t, got.code, "%s: %s", path, got.errOut)
	}
	for condition, words := range map[string]string{"jsonpath=": "cannot be empty", "jsonpath={}": "unexpected path string",
		"jsonpath={.a}=b=c": "jsonpath wait format", "jsonpath={.data}=v": "nested object", "Condition=Ready": "unrecognized",
		"jsonpath={.a}=": "has to have a value", "create,delete": "unrecognized condition", "": "unrecognized condition"} {
		got := f.run(t, "", "wait", "cm/a", "--timeout=0", "--for="+condition)
		require.Equal(t, 1, got.code, condition)
		require.Contains(t, got.errOut, words, condition)
	}
}
