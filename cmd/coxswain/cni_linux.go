package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/coxswain-dev/coxswain/network/cni"
	"github.com/coxswain-dev/coxswain/network/router"
	"github.com/coxswain-dev/coxswain/node/runtime"
)

func (f *cniFlags) installation() cni.Install {
	i := f.install
	return cni.Install{ConfDir: i.confDir, BinDir: i.binDir, Copy: i.copy, Chain: i.chain, StateDir: f.state}
}

// run maintains the network of the Node until ctx ends. The network remains after that.
func (f *cniFlags) run(ctx context.Context, as identities) error {
	if f.node == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("--node-name: %w", err)
		}
		f.node = strings.ToLower(name) // as the kubelet does
	}
	var err error
	if f.state, err = filepath.Abs(f.state); err != nil { // the plugin runs in another directory
		return fmt.Errorf("--state-dir: %w", err)
	}
	host, err := cni.Open(f.state)
	if err != nil {
		return fmt.Errorf("--state-dir: %w", err)
	}
	defer host.Close()
	if err := f.installation().Plugin(); err != nil {
		return fmt.Errorf("--cni-bin-dir: %w", err)
	}
	if err := f.withhold(host); err != nil {
		return fmt.Errorf("--cni-conf-dir: %w", err)
	}
	return cni.Follow(ctx, as.main, f.node, func(ctx context.Context, n cni.Node) error {
		return f.serve(ctx, as, host, n)
	})
}

// withhold removes the network configuration if there is no router, as after a restart of the machine, so that runtimes
// report that their network is not ready.
func (f *cniFlags) withhold(host *cni.Host) error {
	namespace, err := host.Namespace()
	if err != nil {
		return err
	}
	if namespace != nil {
		return namespace.Close()
	}
	return f.installation().Remove()
}

// serve maintains the network of a Node with its current subnets until ctx ends.
func (f *cniFlags) serve(ctx context.Context, as identities, host *cni.Host, node cni.Node) error {
	if ok, err := f.admit(ctx, host, node.Subnets); !ok {
		return err
	}
	address := f.address
	if address == "" && node.Address.IsValid() {
		address = node.Address.String()
	}
	network, err := newPodNetwork(f.network, as, []string{f.node}, address)
	if err != nil {
		return err
	}
	r, err := f.openRouter(network, host)
	if err != nil {
		return err
	}
	defer r.Close()
	if err := r.AddNode("cox"+runtime.Digest(f.state, f.node)[:8], node.Subnets...); err != nil {
		return err
	}
	protected, err := network.protect(r, nil)
	if err != nil {
		return err
	}
	stop, err := f.answer(ctx, host, network, protected)
	if err != nil {
		return err
	}
	defer stop()
	published := cni.Network{Subnets: node.Subnets, MTU: network.mtu, Policies: protected.policies != nil}
	if err := host.Publish(published); err != nil {
		return err
	}
	if err := f.installation().Configuration(); err != nil {
		return fmt.Errorf("--cni-conf-dir: %w", err)
	}
	f.ready.Store(true)
	network.run(ctx, protected)
	f.ready.Store(false)
	return host.Withdraw()
}

// answer serves the plugin's requests until stop is called: the plugin connects a pod's containers once the pod's
// policies are in force. It serves none if this process does not enforce policies.
func (f *cniFlags) answer(ctx context.Context, host *cni.Host, network *podNetwork, r protectedRouter) (func(), error) {
	if r.policies == nil {
		return func() {}, nil
	}
	client, err := kubernetes.NewForConfig(network.config)
	if err != nil {
		return nil, err
	}
	return host.Answer(ctx, func(ctx context.Context, p cni.Pod, addresses []netip.Addr) error {
		pod, err := findPod(ctx, client, f.node, p)
		if err != nil {
			return err
		}
		return r.Protect(ctx, pod, addresses...)
	})
}

// findPod returns the current state of a node's pod that a runtime names. For a static pod it returns the mirror pod,
// which has an annotation with the UID that the kubelet passes to the runtime. It lists pods, since coxswain:network is
// not authorized to get a pod.
func findPod(ctx context.Context, client kubernetes.Interface, node string, p cni.Pod) (*corev1.Pod, error) {
	list, err := client.CoreV1().Pods(p.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, p.Name).String()})
	if err != nil {
		return nil, err
	}
	for i := range list.Items {
		pod := &list.Items[i]
		same := p.UID == "" || p.UID == string(pod.UID) || p.UID == pod.Annotations[corev1.MirrorPodAnnotationKey]
		if same && pod.Spec.NodeName == node {
			return pod, nil
		}
	}
	return nil, fmt.Errorf("the API server has no pod %s/%s with UID %q on node %s", p.Namespace, p.Name, p.UID, node)
}

// admitPeriod is the time between two checks for containers with old addresses.
const admitPeriod = 5 * time.Second

// admit waits until all containers have addresses in the subnets. It returns false if ctx ends before that, or on an
// error.
func (f *cniFlags) admit(ctx context.Context, host *cni.Host, subnets []netip.Prefix) (bool, error) {
	ticker := time.NewTicker(admitPeriod)
	defer ticker.Stop()
	for {
		err := host.Admit(subnets)
		if !errors.Is(err, cni.ErrInUse) {
			return err == nil, err
		}
		slog.Error("cannot connect containers until containers in the node's earlier subnets have ended",
			"node", f.node, "err", err)
		select {
		case <-ctx.Done():
			return false, nil
		case <-ticker.C:
		}
	}
}

// openRouter opens the router of an earlier daemon or, if there is none, creates one and stores it for later daemons.
func (f *cniFlags) openRouter(n *podNetwork, host *cni.Host) (*router.Router, error) {
	namespace, err := host.Namespace()
	if err != nil {
		return nil, err
	}
	r, err := n.openRouter(namespace)
	if err != nil || namespace != nil {
		return r, err
	}
	if err := host.Keep(r.Namespace()); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// remove removes the network of the machine.
func (f *cniFlags) remove() error {
	if err := f.installation().Remove(); err != nil {
		return fmt.Errorf("--cni-conf-dir: %w", err)
	}
	host, err := cni.Open(f.state)
	if err != nil {
		return fmt.Errorf("--state-dir: %w", err)
	}
	namespace, err := host.Namespace()
	if err != nil {
		host.Close()
		return err
	}
	if namespace != nil {
		defer func() { _ = namespace.Close() }()
	}
	return errors.Join(host.Remove(), router.Remove(namespace))
}
