package testenv_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/coxswain-dev/coxswain/testenv"
)

var newYear = time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC)

// startIn2031 starts a control plane, by default an API server alone, with a clock that the test moves.
func startIn2031(t *testing.T, opts ...testenv.Option) (*clocktesting.FakeClock, *rest.Config, *kubernetes.Clientset) {
	t.Helper()
	clock := clocktesting.NewFakeClock(newYear)
	config := testenv.Start(t, append([]testenv.Option{testenv.WithClock(clock)}, opts...)...)
	config.WarningHandler = rest.NoWarnings{}
	client, err := kubernetes.NewForConfig(config)
	require.NoError(t, err)
	return clock, config, client
}

func TestClock_AppliesToTheWholeAPI(t *testing.T) {
	t.Parallel()
	clock, _, client := startIn2031(t)
	nodes, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	require.NoError(t, err)
	require.Len(t, nodes.Items, 1, "controllers, scheduler and nodes get along with it")
	clock.Step(time.Hour)
	made, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "made", Finalizers: []string{"a.io/b"}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	require.True(t, made.CreationTimestamp.Time.Equal(newYear.Add(time.Hour)), made.CreationTimestamp)
	require.True(t, made.ManagedFields[0].Time.Time.Equal(newYear.Add(time.Hour)), made.ManagedFields)
	clock.Step(time.Hour)
	require.NoError(t, client.CoreV1().ConfigMaps("default").Delete(t.Context(), "made", metav1.DeleteOptions{}))
	made, err = client.CoreV1().ConfigMaps("default").Get(t.Context(), "made", metav1.GetOptions{})
	require.NoError(t, err)
	require.True(t, made.DeletionTimestamp.Time.Equal(newYear.Add(2*time.Hour)), made.DeletionTimestamp)
}

// Conditions that the API server itself sets must have the clock's time.
func TestClock_AppliesToConditions(t *testing.T) {
	t.Parallel()
	_, config, _ := startIn2031(t, testenv.APIServerOnly(), testenv.WithCRDs(writeFile(t, "boats.yaml", boats)))
	client, err := dynamic.NewForConfig(config)
	require.NoError(t, err)
	for _, resource := range []schema.GroupVersionResource{
		{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
		{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"},
		{Group: "flowcontrol.apiserver.k8s.io", Version: "v1", Resource: "flowschemas"},
	} {
		list, err := client.Resource(resource).List(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		seen := 0
		for _, o := range list.Items {
			conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
			for _, c := range conditions {
				require.Equal(t, "2031-01-01T00:00:00Z", c.(map[string]any)["lastTransitionTime"], "%s %s",
					resource.Resource, o.GetName())
				seen++
			}
		}
		require.NotZero(t, seen, resource.Resource)
	}
}

func TestClock_EndsEventsAndTimesToLive(t *testing.T) {
	t.Parallel()
	clock, _, client := startIn2031(t, testenv.APIServerOnly())
	_, err := client.CoreV1().Events("default").Create(t.Context(), &corev1.Event{ObjectMeta: metav1.ObjectMeta{
		Name: "an-event"}, InvolvedObject: corev1.ObjectReference{Namespace: "default"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	_, err = client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Name: "mortal", Annotations: map[string]string{"coxswain.dev/ttl": "30m"}}}, metav1.CreateOptions{})
	require.NoError(t, err)
	event := func() bool {
		_, err := client.CoreV1().Events("default").Get(t.Context(), "an-event", metav1.GetOptions{})
		return err == nil
	}
	mortal := func() bool {
		_, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), "mortal", metav1.GetOptions{})
		return err == nil
	}
	clock.Step(29 * time.Minute)
	require.True(t, event() && mortal())
	clock.Step(2 * time.Minute)
	require.Eventually(t, func() bool { return !mortal() }, time.Minute, time.Millisecond)
	require.True(t, event())
	clock.Step(30 * time.Minute)
	require.Eventually(t, func() bool { return !event() }, time.Minute, time.Millisecond)
}

func TestClock_EndsTokens(t *testing.T) {
	t.Parallel()
	clock, config, client := startIn2031(t, testenv.APIServerOnly())
	_, err := client.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	answer, err := client.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "robot",
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](3600)}},
		metav1.CreateOptions{})
	require.NoError(t, err)
	require.True(t, answer.Status.ExpirationTimestamp.Time.Equal(newYear.Add(time.Hour)), answer.Status)
	asRobot := rest.AnonymousClientConfig(config)
	asRobot.BearerToken = answer.Status.Token
	robot, err := kubernetes.NewForConfig(asRobot)
	require.NoError(t, err)
	ask := func() error {
		_, err := robot.AuthenticationV1().SelfSubjectReviews().Create(t.Context(),
			&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		return err
	}
	require.NoError(t, ask())
	clock.Step(59 * time.Minute)
	require.NoError(t, ask())
	clock.Step(2 * time.Hour)
	require.True(t, apierrors.IsUnauthorized(ask()), "%v", ask())
	_, err = client.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{})
	require.NoError(t, err, "the test's own certificate has no end")
	clock.Step(20 * 365 * 24 * time.Hour)
	_, err = client.CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{})
	require.NoError(t, err)
}

func TestClock_AppliesToAges(t *testing.T) {
	t.Parallel()
	clock, config, client := startIn2031(t, testenv.APIServerOnly())
	_, err := client.CoreV1().Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Name: "old"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	clock.Step(50 * time.Hour)
	tables := rest.CopyConfig(config)
	tables.AcceptContentTypes = "application/json;as=Table;g=meta.k8s.io;v=v1"
	tables.ContentType, tables.APIPath = "application/json", "/api"
	tables.GroupVersion = &corev1.SchemeGroupVersion
	scheme := runtime.NewScheme()
	metav1.AddMetaToScheme(scheme)
	tables.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	asTables, err := rest.RESTClientFor(tables)
	require.NoError(t, err)
	var table metav1.Table
	require.NoError(t, asTables.Get().Namespace("default").Resource("secrets").Name("old").Do(t.Context()).Into(&table))
	require.Equal(t, "2d2h", table.Rows[0].Cells[3], "%v", table.ColumnDefinitions)
}
