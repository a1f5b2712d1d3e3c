package kubectllite

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/coxswain-dev/coxswain/kubectl-lite/clitest"
)

func TestWait_ForCreateWaitsForEveryObject(t *testing.T) {
	t.Parallel()
	f := newFakeServer(t)
	require.Zero(t, f.run(t, "", "create", "configmap", "a").Code)
	for _, args := range []string{"cm/a cm/b", "cm/b cm/a", "cm/a cm/b --for=jsonpath={.metadata.name}"} {
		got := f.run(t, "", strings.Fields("wait --for=create --timeout=20ms "+args)...)
		require.Equal(t, 1, got.Code, args)
		require.Empty(t, got.Out)
		require.Contains(t, got.ErrOut, "timed out waiting for the condition")
	}
	done := make(chan clitest.Outcome, 1)
	go func() { done <- f.run(t, "", strings.Fields("wait --for=create --timeout=1m cm/a cm/b")...) }()
	time.AfterFunc(10*time.Millisecond, func() { f.run(t, "", "create", "configmap", "b") })
	got := <-done
	require.Zero(t, got.Code, got.ErrOut)
	require.Equal(t, "configmap/a condition met\nconfigmap/b condition met\n", got.Out)
	got = f.run(t, "", strings.Fields("wait --for=create --for=jsonpath={.metadata.name}=b cm/b --timeout=1m")...)
	require.Zero(t, got.Code, got.ErrOut)
	require.Equal(t, strings.Repeat("configmap/b condition met\n", 2), got.Out, "as kubectl, once for each condition")
}

// A filter contains quotes and commas, which must not split the value of --for.
func TestWait_TakesAFilterAsOneCondition(t *testing.T) {
	t.Parallel()
	f := newFakeServer(t)
	require.Zero(t, f.run(t, "", "create", "configmap", "a", "--from-literal=k=v").Code)
	got := f.run(t, "", "wait", "cm/a", "--timeout=0", `--for=jsonpath={.metadata['name','namespace']}=a`)
	require.Contains(t, got.ErrOut, "more than one value")
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: i}, {name: d, image: 'j,k'}]}"
	require.Zero(t, f.run(t, pod, "apply", "--validate=false", "-f", "-").Code)
	for _, path := range []string{`{.spec.containers[?(@.name=="d")].image}=j,k`, `.spec.containers[0].name=c`,
		`{.spec.containers[?(@.image=="j,k")].name}="d"`, `{.metadata.name}`} {
		got := f.run(t, "", "wait", "pod/p", "--timeout=1s", "--for=jsonpath="+path)
		require.Zero(t, got.Code, "%s: %s", path, got.ErrOut)
	}
	for condition, words := range map[string]string{"jsonpath=": "cannot be empty", "jsonpath={}": "unexpected path string",
		"jsonpath={.a}=b=c": "jsonpath wait format", "jsonpath={.data}=v": "nested object", "Condition=Ready": "unrecognized",
		"jsonpath={.a}=": "has to have a value", "create,delete": "unrecognized condition", "": "unrecognized condition"} {
		got := f.run(t, "", "wait", "cm/a", "--timeout=0", "--for="+condition)
		require.Equal(t, 1, got.Code, condition)
		require.Contains(t, got.ErrOut, words, condition)
	}
}
