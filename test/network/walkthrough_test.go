//go:build e2e && linux

package network

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestWalkthrough_DeploymentBehindAClusterIP(t *testing.T) {
	s := share(t)
	s.pause("client")
	s.walkDeployment()
}

// walkDeployment checks a Deployment of three pods that another pod and the machines reach by its Service.
func (s *space) walkDeployment() {
	s.Helper()
	s.deployment("web", "web", 3)
	service := s.service("web", "web", nil)
	names := s.podsOf("web", nodes...)
	for _, node := range nodes {
		require.Len(s, s.podsOf("web", node), 1, "each pod is on its own machine")
	}
	s.answers("client", "http://web/hostname", names...)
	for _, m := range s.machines {
		s.answersOn(m, "http://"+service.Spec.ClusterIP+"/hostname", names...)
	}
}

func TestWalkthrough_EachPodOfAStatefulSetHasAName(t *testing.T) {
	s := share(t)
	s.pause("client")
	labels := map[string]string{"app": "mysql"}
	s.service("mysql", "mysql", func(spec *corev1.ServiceSpec) { spec.ClusterIP = corev1.ClusterIPNone })
	_, err := s.client.AppsV1().StatefulSets(s.name).Create(t.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "mysql"},
		Spec: appsv1.StatefulSetSpec{ServiceName: "mysql", Replicas: ptr.To(int32(3)),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: program("serve")}},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	for _, name := range []string{"mysql-0", "mysql-1", "mysql-2"} {
		s.answers("client", "http://"+name+".mysql:8080/hostname", name)
		s.answers("client", fmt.Sprintf("http://%s.mysql.%s.svc.cluster.local:8080/hostname", name, s.name), name)
	}
}

func TestWalkthrough_CanaryGetsItsShareOfRequests(t *testing.T) {
	s := share(t)
	s.pause("client")
	s.deployment("stable", "web", 3)
	s.deployment("canary", "web", 1)
	s.service("web", "web", nil)
	canary := func() (share float64) {
		const n = 400
		s.eventually("all of the canary's Service answers", func() error {
			lines, err := s.in("client", "get", "-n", fmt.Sprint(n), "http://web/hostname")
			if err != nil {
				return err
			}
			seen := map[string]int{}
			for _, l := range lines {
				seen[l]++
			}
			pods, err := s.client.CoreV1().Pods(s.name).List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
			if err != nil {
				return err
			}
			share = 0
			for _, p := range pods.Items {
				if seen[p.Name] == 0 {
					return fmt.Errorf("%s has not answered: %v", p.Name, seen)
				}
				if p.Labels["deployment"] == "canary" {
					share += float64(seen[p.Name]) / n
				}
			}
			if len(seen) != len(pods.Items) {
				return fmt.Errorf("%d pods, and these have answered: %v", len(pods.Items), seen)
			}
			return nil
		})
		return share
	}
	// Each endpoint has the same weight. The limits are more than six standard deviations away.
	require.InDelta(t, 0.25, canary(), 0.15, "one endpoint of four")
	_, err := s.kubectl("-n", s.name, "scale", "deployment/canary", "--replicas=3")
	require.NoError(t, err)
	_, err = s.kubectl("-n", s.name, "rollout", "status", "deployment/canary", "--timeout=90s")
	require.NoError(t, err)
	require.InDelta(t, 0.5, canary(), 0.2, "three endpoints of six")
}

func TestWalkthrough_NodePortsAnswerAtMachines(t *testing.T) {
	s := share(t)
	s.run("web", "web", on("b-0", program("serve")))
	service := s.service("web", "web", func(spec *corev1.ServiceSpec) { spec.Type = corev1.ServiceTypeNodePort })
	url := func(m *machine, path string) string {
		return fmt.Sprintf("http://%s:%d/%s", m.address, service.Spec.Ports[0].NodePort, path)
	}
	for _, m := range s.machines {
		for _, from := range s.machines {
			s.answersOn(from, url(m, "hostname"), "web")
		}
	}
	// With external policy Local only the endpoint's Node answers, and clients keep their addresses.
	s.change("web", func(spec *corev1.ServiceSpec) { spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal })
	a, b, c := s.machines[0], s.machines[1], s.machines[2]
	s.answersOn(c, url(b, "clientip"), c.address)
	s.eventually("a Node without endpoints does not answer", func() error {
		if out, err := c.try(netexec, "get", "-timeout", "500ms", url(a, "hostname")); err == nil {
			return fmt.Errorf("it answers %s", out)
		}
		return nil
	})
}

func TestWalkthrough_HealthCheckNodePortsAnswerBalancers(t *testing.T) {
	s := share(t)
	s.run("web", "web", on("b-0", program("serve")))
	service := s.service("web", "web", func(spec *corev1.ServiceSpec) {
		spec.Type, spec.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, corev1.ServiceExternalTrafficPolicyLocal
	})
	require.NotZero(t, service.Spec.HealthCheckNodePort)
	for i, endpoints := range []string{`"localEndpoints":0`, `"localEndpoints":1`, `"localEndpoints":0`} {
		m := s.machines[i]
		s.eventually(fmt.Sprintf("the machine %s says %s", m.address, endpoints), func() error {
			out, err := s.machines[(i+1)%3].try(netexec, "get",
				fmt.Sprintf("http://%s:%d/healthz", m.address, service.Spec.HealthCheckNodePort))
			if err != nil {
				return err
			}
			if !strings.Contains(out, endpoints) {
				return fmt.Errorf("it says %s", out)
			}
			return nil
		})
	}
}

func TestWalkthrough_ServiceWithoutEndpointsRejectsConnections(t *testing.T) {
	s := share(t)
	s.pause("client")
	s.service("nobody", "nobody", nil)
	s.eventually("a Service without endpoints refuses", func() error {
		begun := time.Now()
		_, err := s.in("client", "get", "-timeout", "20s", "http://nobody/hostname")
		if err == nil || time.Since(begun) > 10*time.Second {
			return fmt.Errorf("after %v: %w", time.Since(begun), err)
		}
		return nil
	})
}

func TestWalkthrough_PolicyProtectsADatabase(t *testing.T) {
	s := share(t)
	s.pause("client")
	s.server("api", "api")
	s.run("db", "db", on("b-0", program("serve")))
	s.service("db", "db", nil)
	s.answers("client", "http://db/hostname", "db")
	for _, file := range []string{"testdata/default-deny.yaml", "testdata/db-from-api.yaml"} {
		_, err := s.kubectl("-n", s.name, "apply", "-f", file)
		require.NoError(t, err)
	}
	s.silent("client", "http://db/hostname")
	s.answers("api", "http://db/hostname", "db")
	s.silent("client", "http://api:8080/hostname")
	_, err := s.kubectl("-n", s.name, "delete", "networkpolicies", "--all")
	require.NoError(t, err)
	s.answers("client", "http://db/hostname", "db")
}
