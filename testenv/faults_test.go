package testenv_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/coxswain-dev/coxswain/testenv"
)

// faulty returns an environment and a client of its ConfigMaps with the user agent operator.
func faulty(t *testing.T) (*testenv.Environment, corev1client.ConfigMapInterface) {
	t.Helper()
	env := testenv.StartEnvironment(t, testenv.APIServerOnly())
	client := kubernetes.NewForConfigOrDie(env.User("operator", "system:masters"))
	return env, client.CoreV1().ConfigMaps("default")
}

var errTooMany = apierrors.NewTooManyRequests("slow down", 0)

func TestFault_AnswersWithAnError(t *testing.T) {
	t.Parallel()
	env, maps := faulty(t)
	injected := env.Inject(testenv.Fault{Match: testenv.Match{Verb: "create", Resource: "configmaps"}, Skip: 1, Times: 2,
		Err: apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "a", errors.New("not today"))})
	for i, name := range []string{"a", "b", "c", "d"} {
		_, err := maps.Create(t.Context(), configMap(name), metav1.CreateOptions{})
		if i == 0 || i == 3 {
			require.NoError(t, err)
			continue
		}
		require.True(t, apierrors.IsForbidden(err), "%v", err)
		require.EqualError(t, err, `configmaps "a" is forbidden: not today`)
		_, err = maps.Get(t.Context(), name, metav1.GetOptions{})
		require.True(t, apierrors.IsNotFound(err), "it was not carried out: %v", err)
	}
	require.Equal(t, 2, injected.Hits())
	require.Equal(t, 2, env.Calls(testenv.Match{Func: func(c *testenv.Call) bool { return c.Fault }}).Failed().Count())
}

// isNoStatus reports whether an error is not an answer of the API server.
func isNoStatus(err error) bool { return apierrors.ReasonForError(err) == metav1.StatusReasonUnknown }

func TestFault_LosesTheAnswerToAWriteThatIsStored(t *testing.T) {
	t.Parallel()
	env, maps := faulty(t)
	for err, is := range map[error]func(error) bool{
		testenv.ErrNoAnswer:                  isNoStatus,
		apierrors.NewTimeoutError("lost", 0): apierrors.IsTimeout,
		errors.New("broken"):                 apierrors.IsInternalError,
	} {
		env.Inject(testenv.Fault{Match: testenv.Match{Verb: "create"}, After: true, Err: err, Times: 1})
		_, answered := maps.Create(t.Context(), configMap("lost"), metav1.CreateOptions{})
		require.Error(t, answered)
		require.True(t, is(answered), "%v", answered)
		_, err := maps.Get(t.Context(), "lost", metav1.GetOptions{})
		require.NoError(t, err, "it is stored")
		require.NoError(t, maps.Delete(t.Context(), "lost", metav1.DeleteOptions{}))
	}
	lost := env.Calls(testenv.Match{Verb: "create"})
	require.Len(t, lost, 3)
	require.Equal(t, "lost", lost[0].Name)
}

func TestFault_DelaysUntilTheClientGivesUp(t *testing.T) {
	t.Parallel()
	for _, after := range []bool{false, true} {
		env, maps := faulty(t)
		slow := env.Inject(testenv.Fault{Match: testenv.Match{Verb: "create"}, Delay: time.Hour, After: after})
		ctx, cancel := context.WithCancel(t.Context())
		created := make(chan error, 1)
		go func() {
			_, err := maps.Create(ctx, configMap("a"), metav1.CreateOptions{})
			created <- err
		}()
		require.Eventually(t, func() bool { return slow.Hits() == 1 }, time.Minute, time.Millisecond)
		stored := func() bool {
			_, err := maps.Get(t.Context(), "a", metav1.GetOptions{})
			return err == nil
		}
		if after {
			require.Eventually(t, stored, time.Minute, time.Millisecond)
		}
		cancel()
		require.ErrorIs(t, <-created, context.Canceled)
		require.Equal(t, after, stored())
		slow.Remove()
		_, err := maps.Create(t.Context(), configMap("b"), metav1.CreateOptions{})
		require.NoError(t, err)
	}
}

func TestFault_DelayedAnswerArrivesWhole(t *testing.T) {
	t.Parallel()
	env, maps := faulty(t)
	env.Inject(testenv.Fault{Match: testenv.Match{Verb: "create"}, Delay: time.Millisecond, After: true})
	env.Inject(testenv.Fault{Match: testenv.Match{Verb: "get"}, Delay: time.Millisecond})
	created, err := maps.Create(t.Context(), configMap("a", "k", "v"), metav1.CreateOptions{})
	require.NoError(t, err)
	got, err := maps.Get(t.Context(), "a", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, created, got)
}

func TestFault_SparesThePartsOfTheControlPlane(t *testing.T) {
	t.Parallel()
	env := testenv.StartEnvironment(t)
	env.Inject(testenv.Fault{Err: errors.New("nothing works")})
	client := kubernetes.NewForConfigOrDie(env.Config)
	_, err := client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	require.True(t, apierrors.IsInternalError(err), "%v", err)
	parts := testenv.Match{User: "system:node:node-0", Verb: "patch,update", Resource: "nodes/status"}
	require.Zero(t, env.Calls(parts).Matching(testenv.Match{User: parts.User,
		Func: func(c *testenv.Call) bool { return c.Fault }}).Count())
}

func TestFault_OfAWatch(t *testing.T) {
	t.Parallel()
	env, maps := faulty(t)
	ctx := t.Context()
	next := func(w watch.Interface) (watch.Event, bool) {
		e, open := <-w.ResultChan()
		return e, open
	}
	refused := env.Inject(testenv.Fault{Match: testenv.Match{Verb: "watch"}, Err: errTooMany})
	_, err := maps.Watch(ctx, metav1.ListOptions{})
	require.True(t, apierrors.IsTooManyRequests(err), "%v", err)
	refused.Remove()

	for _, media := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		config := env.User("operator", "system:masters")
		config.ContentType = media
		maps := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("default")
		w, err := maps.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=a"})
		require.NoError(t, err)
		env.Inject(testenv.Fault{Match: testenv.Match{Verb: "watch"}, After: true, Times: 1,
			Err: apierrors.NewResourceExpired("too old")})
		_, err = maps.Create(ctx, configMap("a"), metav1.CreateOptions{})
		require.NoError(t, err)
		e, _ := next(w)
		require.Equal(t, watch.Added, e.Type, "what happened before the end arrives")
		require.Equal(t, "a", e.Object.(*corev1.ConfigMap).Name)
		e, _ = next(w)
		require.Equal(t, watch.Error, e.Type)
		require.True(t, apierrors.IsResourceExpired(apierrors.FromObject(e.Object)), "%v", e.Object)
		_, open := next(w)
		require.False(t, open)
		require.NoError(t, maps.Delete(ctx, "a", metav1.DeleteOptions{}))
	}
}

func TestFault_CutsAWatch(t *testing.T) {
	t.Parallel()
	env, maps := faulty(t)
	w, err := maps.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=a"})
	require.NoError(t, err)
	env.Inject(testenv.Fault{Match: testenv.Match{Verb: "watch"}, After: true, Err: testenv.ErrNoAnswer, Times: 1})
	_, err = maps.Create(t.Context(), configMap("a"), metav1.CreateOptions{})
	require.NoError(t, err)
	require.Equal(t, watch.Added, (<-w.ResultChan()).Type)
	for e := range w.ResultChan() { // client-go may report bytes that it could not decode
		require.Equal(t, watch.Error, e.Type)
		require.ErrorContains(t, apierrors.FromObject(e.Object), "unable to decode an event")
	}
}
