//go:build e2e && linux

package network

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// cluster is a cluster of three machines whose pods are programs. The first machine has the control plane.
type cluster struct {
	machines   []*machine
	agents     []string // the Nodes with an agent of ours
	kubeconfig string
	client     kubernetes.Interface
	processes  map[string]*process // agents by the names of their Nodes, and other processes
	dir        string
	closeAll   func()
}

// The Nodes of the machines.
var nodes = []string{"a-0", "b-0", "c-0"}

const patience = 90 * time.Second

// startCluster starts a cluster with flags for its control plane and for all its agents.
func startCluster(control []string, flags ...string) (c *cluster, err error) {
	return startClusterOf(nodes, control, flags...)
}

// startClusterOf starts a cluster with agents for some of the Nodes only. There are always three machines. Without the
// first Node, the control plane runs by itself.
func startClusterOf(agents, control []string, flags ...string) (c *cluster, err error) {
	c = &cluster{agents: agents, processes: map[string]*process{}}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, c.printed())
			c.close()
		}
	}()
	if c.dir, err = os.MkdirTemp("", "coxswain-network-"); err != nil {
		return c, err
	}
	if c.machines, c.closeAll, err = segment(len(nodes)); err != nil {
		return c, err
	}
	c.kubeconfig = filepath.Join(c.dir, "admin.kubeconfig")
	if _, err = c.machines[0].try(coxswain, "certs", "--data-dir", c.dir, "--server", "https://192.0.2.1:6443",
		"--tls-san", "192.0.2.1", "--nodes", "1", "--node-prefix", "a-,b-,c-"); err != nil {
		return c, err
	}
	if agents[0] == nodes[0] {
		err, agents = c.startAgent(nodes[0], append(control, flags...)...), agents[1:]
	} else {
		err = c.startControlPlane(control...)
	}
	if err != nil {
		return c, err
	}
	for _, node := range agents {
		if err = c.startAgent(node, flags...); err != nil {
			return c, err
		}
	}
	if err = c.connect(); err != nil {
		return c, err
	}
	return c, c.waitForNodes()
}

func (c *cluster) connect() error {
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	if err != nil {
		return err
	}
	config.Dial, config.QPS, config.Burst = func(ctx context.Context, protocol, address string) (net.Conn, error) {
		return c.machines[0].dial(ctx, protocol, address)
	}, 1000, 1000
	c.client, err = kubernetes.NewForConfig(config)
	return err
}

// startControlPlane starts the control plane on the first machine, without an agent.
func (c *cluster) startControlPlane(flags ...string) error {
	return c.start(c.machines[0], "control plane", append([]string{"up", "--data-dir", c.dir, "--bind-address",
		"192.0.2.1", "--nodes", "0"}, flags...)...)
}

// startAgent starts a Node's agent; on the first machine it runs in the process of the control plane.
func (c *cluster) startAgent(node string, flags ...string) error {
	letter := node[:1]
	args := []string{"up", "--data-dir", c.dir, "--bind-address", "192.0.2.1", "--nodes", "1"}
	if letter != "a" {
		args = []string{"node", "--kubeconfig", filepath.Join(c.dir, letter+".kubeconfig"), "--network-kubeconfig",
			filepath.Join(c.dir, "network.kubeconfig"), "--cluster-dns", "10.96.0.10", "--root-dir",
			c.folder(node), "--metrics-bind-address", "127.0.0.1:0"}
	}
	args = append(args, "--runtime", "process", "--node-prefix", letter+"-")
	return c.start(c.machineOf(node), node, append(args, flags...)...)
}

func (c *cluster) machineOf(node string) *machine { return c.machines[slices.Index(nodes, node)] }

// folder returns the folder of a Node's agent.
func (c *cluster) folder(node string) string {
	if node == "a-0" {
		return filepath.Join(c.dir, "node")
	}
	return filepath.Join(c.dir, "root-"+node)
}

// start starts a part of coxswain, instead of an earlier one with this name.
func (c *cluster) start(m *machine, name string, args ...string) error {
	p, err := m.start(coxswain, args...)
	if err == nil {
		c.processes[name] = p
	}
	return err
}

func (c *cluster) waitForNodes() error {
	return eventually(fmt.Sprintf("%d Nodes are ready", len(c.agents)), func(ctx context.Context) (bool, error) {
		list, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		ready := 0
		for _, n := range list.Items {
			for _, condition := range n.Status.Conditions {
				if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
					ready++
				}
			}
		}
		return ready == len(c.agents), fmt.Errorf("%d are", ready)
	})
}

// eventually waits until a condition holds. After a timeout it returns the condition's last error.
func eventually(what string, holds func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := holds(ctx)
		if ok {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("never: %s: %w", what, err)
		}
	}
}

// kubectl runs the real kubectl on the first machine.
func (c *cluster) kubectl(args ...string) (string, error) {
	return c.machines[0].try(kubectl, append([]string{"--kubeconfig", c.kubeconfig}, args...)...)
}

// printed returns the last output of the cluster's processes, and the state of its pods.
func (c *cluster) printed() string {
	var all bytes.Buffer
	for _, p := range c.processes {
		fmt.Fprintf(&all, "== %s\n%s\n", p.name, p.out.tail())
	}
	if c.client != nil {
		pods, _ := c.kubectl("get", "pods,services,endpointslices", "-A", "-o", "wide")
		events, _ := c.kubectl("get", "events", "-A", "--field-selector", "type=Warning")
		fmt.Fprintf(&all, "== pods\n%s\n== warnings\n%s\n", pods, events)
		for line := range strings.Lines(pods) {
			f := strings.Fields(line)
			if len(f) < 3 || !strings.HasPrefix(f[1], "pod/") || !strings.HasPrefix(f[2], "0/") {
				continue
			}
			logs, _ := c.kubectl("-n", f[0], "logs", f[1], "--tail=20")
			fmt.Fprintf(&all, "== logs of %s\n%s\n", f[1], logs)
		}
	}
	return all.String()
}

// close ends the whole cluster, its pods first: agents that are killed leave their pods to the next agent.
func (c *cluster) close() {
	if c.client != nil {
		_, _ = c.kubectl("delete", "deployments,statefulsets,pods", "--all", "--all-namespaces", "--grace-period=1",
			"--timeout=30s")
	}
	for _, p := range c.processes {
		p.kill()
	}
	if c.closeAll != nil {
		c.closeAll()
	}
	_ = os.RemoveAll(c.dir)
}
