package node_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/coxswain-dev/coxswain/testenv"
)

func TestMetrics_ReportTheNodesUsage(t *testing.T) {
	t.Parallel()
	config := testenv.Start(t, testenv.WithControllers(), testenv.WithoutScheduler(), testenv.WithNodes(2))
	client := kubernetes.NewForConfigOrDie(config)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, name := range []string{"a", "b"} {
		p := talkative(name)
		p.Labels = map[string]string{"app": name}
		_, err := client.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	awaitReady(ctx, t, client, 2)
	get := func(path string, into any, params ...string) {
		t.Helper()
		r := client.CoreV1().RESTClient().Get().AbsPath("/apis/metrics.k8s.io/v1beta1" + path)
		for i := 0; i < len(params); i += 2 {
			r = r.Param(params[i], params[i+1])
		}
		body, err := r.SetHeader("Accept", "application/json").DoRaw(ctx)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(body, into))
	}
	var pods metricsv1beta1.PodMetricsList
	get("/namespaces/default/pods", &pods, "labelSelector", "app=b")
	require.Len(t, pods.Items, 1)
	require.Equal(t, "b", pods.Items[0].Name)
	require.Equal(t, map[string]string{"app": "b"}, pods.Items[0].Labels)
	require.EqualValues(t, 250, pods.Items[0].Containers[0].Usage.Cpu().MilliValue())
	require.EqualValues(t, 64<<20, pods.Items[0].Containers[0].Usage.Memory().Value())
	require.WithinDuration(t, time.Now(), pods.Items[0].Timestamp.Time, time.Minute)
	get("/pods", &pods)
	require.Len(t, pods.Items, 2)
	var pod metricsv1beta1.PodMetrics
	get("/namespaces/default/pods/a", &pod)
	require.Equal(t, "PodMetrics", pod.Kind)
	var nodes metricsv1beta1.NodeMetricsList
	get("/nodes", &nodes)
	require.Len(t, nodes.Items, 2)
	require.EqualValues(t, 500, nodes.Items[0].Usage.Cpu().MilliValue())
	require.True(t, nodes.Items[1].Usage.Cpu().IsZero())

	err := client.CoreV1().RESTClient().Get().AbsPath("/apis/metrics.k8s.io/v1beta1/namespaces/default/pods/none").Do(
		ctx).Error()
	require.True(t, apierrors.IsNotFound(err))
	err = client.CoreV1().RESTClient().Delete().AbsPath("/apis/metrics.k8s.io/v1beta1/namespaces/default/pods/a").Do(
		ctx).Error()
	require.True(t, apierrors.IsMethodNotSupported(err), "%v", err)
}
