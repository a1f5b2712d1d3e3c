package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/coxswain-dev/coxswain/apiserver/componentstatus"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/certs"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/ownprocess"
	"github.com/coxswain-dev/coxswain/cmd/coxswain/serviceranges"
	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/node"
)

func newUp() *cobra.Command {
	registry := prometheus.NewRegistry()
	f := &serverFlags{metrics: []prometheus.Gatherer{clientMetrics, controllers.Metrics(), registry}}
	show := false
	n, c, s := &nodeFlags{}, &controllersFlags{debug: &controllers.Debug{}}, &schedulerFlags{metrics: registry}
	i := &upIngress{}
	n.port, n.anyPort = kubeletPort, true
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Run a whole control plane in this process: etcd, API server, controllers, scheduler, nodes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			started := time.Now()
			if err := n.check(); err != nil {
				return err
			}
			if err := f.setTime(); err != nil {
				return err
			}
			if show && n.count > 0 {
				showComponents(n, c, s)
			}
			c.time, s.time, n.time = f.time, f.time, f.time
			n.setCount(cmd.Flags())
			ranges, err := f.serviceRanges()
			if err == nil && n.runtime == node.Process {
				err = serviceranges.CheckProcess(ranges)
			}
			if err != nil {
				return err
			}
			if err := n.setDNS(f.serviceCIDRs); err != nil {
				return err
			}
			i.simulated = n.runtime != node.Process
			if !cmd.Flags().Changed("service-lb-pool") {
				setBalancers(ranges, n, c)
			}
			f.advertiseLater = f.onLoopback() && n.runtime == node.Process && n.count > 0
			ownprocess.PreferToKeep(ownprocess.APIServerOOMScore)
			f.debug = debugHandlers(c, s)
			f.peers = map[string]string{"controller-manager": componentstatus.InProcess,
				"scheduler": componentstatus.InProcess}
			n.dir, n.hide = filepath.Join(f.dataDir, "node"), []string{f.dataDir}
			return runServer(cmd.Context(), f, func(ctx context.Context, r *running) error {
				b := banner{running: r, started: started, served: time.Now(), nodes: n.count,
					commands: firstCommands(n.runtime), programs: n.runtime == node.Process}
				return b.showWhenReady(ctx, cmd.OutOrStdout(), n, func(ctx context.Context) error {
					return r.runComponents(ctx, f, n, c, s, i)
				})
			})
		},
	}
	f.add(cmd.Flags())
	n.add(cmd.Flags(), 3)
	c.addPool(cmd.Flags(), "; by default a network that only this machine and its pods reach")
	i.add(cmd.Flags())
	cmd.Flags().BoolVar(&show, "show-components", false, "show API server, controllers and scheduler as static pods "+
		"of the first Node, in kube-system, with their logs")
	cmd.Flags().StringVar(&f.clock, "clock", "real", "real, or manual: a clock for controllers, scheduler, nodes and "+
		"API server that stands still until kubectl-lite clock advance moves it; objects are then kept in memory")
	return cmd
}

// kubeletPort is the port of kubelets, which collectors of metrics use by default.
const kubeletPort = 10250

// setBalancers gives load balancers addresses that only this machine and its pods reach.
func setBalancers(ranges []netip.Prefix, n *nodeFlags, c *controllersFlags) {
	network := serviceranges.SimulatedBalancers
	if n.runtime == node.Process {
		network = serviceranges.Balancers(ranges)
		n.network.balancers = []netip.Prefix{network}
	}
	c.settings.Service.LoadBalancerPool = serviceranges.Pool(network, ranges)
}

// showComponents makes the first Node show the components of this process. The lines of all other parts of the process
// are the API server's.
func showComponents(n *nodeFlags, c *controllersFlags, s *schedulerFlags) {
	shown := func(name string) *slog.Logger {
		component, logger := shownComponent(name, controlPlaneLabels(name))
		n.components = append(n.components, component)
		return logger
	}
	c.log, s.log = shown("kube-controller-manager"), shown("kube-scheduler")
	n.log = slog.Default()
	slog.SetDefault(shown("kube-apiserver"))
}

// configureFiles sets the folders of controllers and nodes in this process, and the keys that controllers sign with.
func (r *running) configureFiles(f *serverFlags, n *nodeFlags, c *controllersFlags) (err error) {
	if r.dir == "" {
		c.signing, err = f.signingInMemory(r.own)
		return err
	}
	dir, err := filepath.Abs(r.dir)
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if c.signing, err = f.signing(r.own); err != nil {
		return err
	}
	c.settings.Storage.NodeLocalRoot = filepath.Join(dir, "volumes")
	n.volumes = []string{c.settings.Storage.NodeLocalRoot}
	return nil
}

// runComponents runs controllers, scheduler, nodes and, if not nil, the ingress controller as clients of the server,
// each with its own identity. It stops all of them when ctx ends or one of them returns, and returns their errors.
func (r *running) runComponents(ctx context.Context, f *serverFlags, n *nodeFlags, c *controllersFlags,
	s *schedulerFlags, ingresses *upIngress) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := r.configureFiles(f, n, c); err != nil {
		return err
	}
	if f.advertiseLater {
		n.machine = r.pods.serve
	}
	type part struct {
		name string
		main certs.Identity
		run  component
	}
	parts := []part{
		{"controllers", certs.ControllersIdentity, c.run},
		{"scheduler", certs.SchedulerIdentity, s.run},
		{"nodes", n.identity(), n.run},
	}
	if ingresses != nil {
		parts = append(parts, part{"ingress", certs.IngressIdentity, ingresses.run})
	}
	var running sync.WaitGroup
	failures := make([]error, len(parts))
	for i, p := range parts {
		as, err := r.identities(p.main)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		running.Go(func() {
			if err := p.run(ctx, as); err != nil && ctx.Err() == nil {
				failures[i] = fmt.Errorf("%s: %w", p.name, err)
			}
			cancel()
		})
	}
	running.Wait()
	return errors.Join(failures...)
}
