//go:build e2e && linux

package network

import (
	"context"
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/coxswain-dev/coxswain/test/podnetwork"
)

// space is a namespace of a cluster that one test owns.
type space struct {
	testing.TB
	*cluster
	name string
}

// need skips a test if machines cannot be created here.
func need(t testing.TB) {
	t.Helper()
	if err := podnetwork.Unsupported(); err != nil {
		t.Skipf("SKIPPED: the network of a cluster takes root, network namespaces and nftables, and is not tested "+
			"here: %v", err)
	}
}

// share runs a test in the cluster that most tests share, beside others.
func share(t *testing.T) *space {
	t.Helper()
	t.Parallel()
	need(t)
	c, err := joined()
	require.NoError(t, err)
	return c.space(t)
}

func (c *cluster) space(t testing.TB) *space {
	t.Helper()
	name := strings.ToLower(regexp.MustCompile(`[^A-Za-z0-9]+`).ReplaceAllString(t.Name(), "-"))
	name = strings.Trim(name[:min(len(name), 60)], "-")
	_, err := c.client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.printed())
		}
		_ = c.client.CoreV1().Namespaces().Delete(context.Background(), name, metav1.DeleteOptions{})
	})
	return &space{t, c, name}
}

// eventually fails the test if the condition does not hold in time.
func (s *space) eventually(what string, holds func() error) {
	s.Helper()
	require.NoError(s, eventually(what, func(context.Context) (bool, error) {
		err := holds()
		return err == nil, err
	}))
}

// inPod is the path of netexec in pods.
const inPod = "/netexec/netexec"

// program returns the spec of a pod that runs netexec. Its server is ready when it answers.
func program(args ...string) corev1.PodSpec {
	none, second := false, int64(1)
	spec := corev1.PodSpec{
		TerminationGracePeriodSeconds: &second,
		AutomountServiceAccountToken:  &none,
		Containers: []corev1.Container{{Name: "netexec", Image: "netexec", Command: append([]string{inPod}, args...),
			VolumeMounts: []corev1.VolumeMount{{Name: "netexec", MountPath: path.Dir(inPod)}}}},
		Volumes: []corev1.Volume{{Name: "netexec", VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: filepath.Dir(netexec)}}}},
	}
	if args[0] == "serve" {
		spec.Containers[0].ReadinessProbe = readyAt(8080)
	}
	return spec
}

func readyAt(port int) *corev1.Probe {
	return &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{
		TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt(port)}}}
}

// server returns a pod that serves, with the labels app=LABEL and name=NAME.
func (s *space) server(name, label string) *corev1.Pod {
	s.Helper()
	return s.run(name, label, program("serve"))
}

// run runs a pod and waits until it is ready.
func (s *space) run(name, label string, spec corev1.PodSpec) *corev1.Pod {
	s.Helper()
	s.create(name, label, spec)
	return s.ready(name)
}

func (s *space) create(name, label string, spec corev1.PodSpec) {
	s.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": label, "name": name}},
		Spec: spec}
	_, err := s.client.CoreV1().Pods(s.name).Create(s.Context(), pod, metav1.CreateOptions{})
	require.NoError(s, err)
}

func (s *space) ready(name string) (pod *corev1.Pod) {
	s.Helper()
	s.eventually("pod "+name+" is ready", func() (err error) {
		if pod, err = s.client.CoreV1().Pods(s.name).Get(s.Context(), name, metav1.GetOptions{}); err != nil {
			return err
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("it is %s", pod.Status.Phase)
	})
	return pod
}

// podsOf returns the names of the pods with a label on some Nodes.
func (s *space) podsOf(label string, on ...string) (names []string) {
	s.Helper()
	pods, err := s.client.CoreV1().Pods(s.name).List(s.Context(), metav1.ListOptions{LabelSelector: "app=" + label})
	require.NoError(s, err)
	for _, p := range pods.Items {
		if slices.Contains(on, p.Spec.NodeName) {
			names = append(names, p.Name)
		}
	}
	return names
}

// on assigns a pod to a Node.
func on(node string, spec corev1.PodSpec) corev1.PodSpec {
	spec.NodeName = node
	return spec
}

// idle returns a pod that waits for commands.
func idle() corev1.PodSpec {
	spec := program("serve")
	spec.Containers[0].Command, spec.Containers[0].ReadinessProbe = []string{"sleep", "infinity"}, nil
	return spec
}

// pause runs an idle pod on the first Node.
func (s *space) pause(name string) *corev1.Pod {
	s.Helper()
	return s.run(name, "client", on("a-0", idle()))
}

// deployment runs servers, spread over the Nodes, until all are ready.
func (s *space) deployment(name, label string, replicas int32) {
	s.Helper()
	labels := map[string]string{"app": label, "deployment": name}
	spec := program("serve")
	spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1,
		TopologyKey: "kubernetes.io/hostname", WhenUnsatisfiable: corev1.DoNotSchedule,
		LabelSelector: &metav1.LabelSelector{MatchLabels: labels}}}
	_, err := s.client.AppsV1().Deployments(s.name).Create(s.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec}},
	}, metav1.CreateOptions{})
	require.NoError(s, err)
	_, err = s.kubectl("-n", s.name, "rollout", "status", "deployment/"+name, "--timeout=90s")
	require.NoError(s, err)
}

// service creates a Service for the pods with a label, or without a selector if the label is empty.
func (s *space) service(name, label string, change func(*corev1.ServiceSpec)) *corev1.Service {
	s.Helper()
	spec := corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt(8080)}}}
	if label != "" {
		spec.Selector = map[string]string{"app": label}
	}
	if change != nil {
		change(&spec)
	}
	service, err := s.client.CoreV1().Services(s.name).Create(s.Context(),
		&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	require.NoError(s, err)
	return service
}

// change updates a Service, and retries on a conflict.
func (s *space) change(name string, how func(*corev1.ServiceSpec)) (service *corev1.Service) {
	s.Helper()
	s.eventually("the Service "+name+" is changed", func() (err error) {
		if service, err = s.client.CoreV1().Services(s.name).Get(s.Context(), name, metav1.GetOptions{}); err != nil {
			return err
		}
		how(&service.Spec)
		service, err = s.client.CoreV1().Services(s.name).Update(s.Context(), service, metav1.UpdateOptions{})
		return err
	})
	return service
}

// in runs netexec in a pod and returns the lines of its output.
func (s *space) in(pod string, args ...string) ([]string, error) {
	out, err := s.kubectl(append([]string{"-n", s.name, "exec", pod, "--", inPod}, args...)...)
	return strings.Fields(out), err
}

// answers waits until a URL, requested from a pod, has given exactly these answers.
func (s *space) answers(pod, url string, want ...string) {
	s.Helper()
	s.eventually(fmt.Sprintf("%s answers %v in %s", url, want, pod), func() error {
		lines, err := s.in(pod, "get", "-n", fmt.Sprint(12*len(want)), url)
		return just(lines, err, want)
	})
}

// answersOn is like answers, but requests from a machine.
func (s *space) answersOn(m *machine, url string, want ...string) {
	s.Helper()
	s.eventually(fmt.Sprintf("%s answers %v on the machine %s", url, want, m.address), func() error {
		out, err := m.try(netexec, "get", "-n", fmt.Sprint(12*len(want)), url)
		return just(strings.Fields(out), err, want)
	})
}

func just(lines []string, err error, want []string) error {
	if err != nil {
		return err
	}
	missing := map[string]bool{}
	for _, w := range want {
		missing[w] = true
	}
	for _, line := range lines {
		if _, expected := missing[line]; !expected {
			return fmt.Errorf("it answers %v", lines)
		}
		missing[line] = false
	}
	for w, still := range missing {
		if still {
			return fmt.Errorf("%s is not among %v", w, lines)
		}
	}
	return nil
}

// silent waits until a URL does not answer in a pod.
func (s *space) silent(pod, url string) {
	s.Helper()
	s.eventually(url+" is silent in "+pod, func() error {
		if lines, err := s.in(pod, "get", "-timeout", "500ms", url); err == nil {
			return fmt.Errorf("it answers %v", lines)
		}
		return nil
	})
}
