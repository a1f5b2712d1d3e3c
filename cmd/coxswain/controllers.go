package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/coxswain-dev/coxswain/controllers"
	"github.com/coxswain-dev/coxswain/internal/zpages"
)

type controllersFlags struct {
	time        timing
	leader      leaderFlags
	controllers []string
	settings    controllers.Settings
	signing     signingFlags
	debug       *controllers.Debug
	workers     map[string]*int
	log         *slog.Logger // nil is slog.Default

	cloud                      string
	clusterCIDRs, serviceCIDRs []string
}

// addPool adds the flag that `coxswain up` also has. more is the end of its help.
func (f *controllersFlags) addPool(fs *pflag.FlagSet, more string) {
	fs.StringSliceVar(&f.settings.Service.LoadBalancerPool, "service-lb-pool", nil,
		"CIDRs and ranges FIRST-LAST of the addresses of Services of type LoadBalancer"+more)
}

// parse checks flags and parses the ones with a syntax of their own.
func (f *controllersFlags) parse() error {
	if f.cloud != "" && f.cloud != "external" {
		return fmt.Errorf("--cloud-provider: %q is not one of: external", f.cloud)
	}
	for flag, n := range map[string]int{
		"max-endpoints-per-slice":            f.settings.Endpoints.MaxPerSlice,
		"mirroring-max-endpoints-per-subset": f.settings.Endpoints.MirroredMaxPerSubset,
	} {
		if n < 0 || n > 1000 {
			return fmt.Errorf("--%s: must be between 1 and 1000", flag)
		}
	}
	if f.settings.LegacyTokenCleanUpPeriod < 0 {
		return errors.New("--legacy-service-account-token-clean-up-period: must be greater than 0")
	}
	f.settings.Node.ExternalCloud = f.cloud == "external"
	var err error
	if f.settings.NodeIPAM.ClusterCIDRs, err = parsePrefixes(f.clusterCIDRs); err != nil {
		return fmt.Errorf("--cluster-cidr: %w", err)
	}
	if f.settings.NodeIPAM.ServiceRanges, err = parsePrefixes(f.serviceCIDRs); err != nil {
		return fmt.Errorf("--service-cluster-ip-range: %w", err)
	}
	return nil
}

func parsePrefixes(list []string) ([]netip.Prefix, error) {
	cidrs := make([]netip.Prefix, len(list))
	for i, text := range list {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, err
		}
		cidrs[i] = p.Masked()
	}
	return cidrs, nil
}

// addSettings adds the flags of individual controllers, with kube-controller-manager's names and defaults.
func (f *controllersFlags) addSettings(fs *pflag.FlagSet) {
	d := controllers.Settings{}.WithDefaults()
	n := &f.settings.Node
	fs.DurationVar(&n.MonitorPeriod, "node-monitor-period", d.Node.MonitorPeriod, "how often every Node is checked")
	fs.DurationVar(&n.MonitorGracePeriod, "node-monitor-grace-period", d.Node.MonitorGracePeriod,
		"how long a Node may be silent before its conditions become Unknown")
	fs.DurationVar(&n.StartupGracePeriod, "node-startup-grace-period", d.Node.StartupGracePeriod,
		"how long a new Node may take to post its status")
	fs.Float32Var(&n.EvictionRate, "node-eviction-rate", d.Node.EvictionRate,
		"how many Nodes of a zone have their pods evicted per second")
	fs.Float32Var(&n.SecondaryEvictionRate, "secondary-node-eviction-rate", d.Node.SecondaryEvictionRate,
		"the same in a large zone with many unready Nodes; in a small zone the rate is then 0")
	fs.IntVar(&n.LargeClusterSizeThreshold, "large-cluster-size-threshold", d.Node.LargeClusterSizeThreshold,
		"a zone of more Nodes is large")
	fs.Float64Var(&n.UnhealthyZoneThreshold, "unhealthy-zone-threshold", d.Node.UnhealthyZoneThreshold,
		"share of unready Nodes from which a zone counts as disrupted")
	fs.StringVar(&f.cloud, "cloud-provider", "",
		`"external" leaves the initialisation of Nodes to a cloud's own controllers`)
	i := &f.settings.NodeIPAM
	fs.BoolVar(&i.Allocate, "allocate-node-cidrs", false, "give each Node a subnet of --cluster-cidr for its pods")
	fs.StringSliceVar(&f.clusterCIDRs, "cluster-cidr", nil,
		"range of the pods' addresses: a CIDR, or one of each family")
	fs.IntVar(&i.MaskSize, "node-cidr-mask-size", 0,
		"mask size of a Node's subnet in a cluster of one family (default 24 for IPv4, 64 for IPv6)")
	fs.IntVar(&i.MaskSizeIPv4, "node-cidr-mask-size-ipv4", d.NodeIPAM.MaskSizeIPv4, "mask size of a Node's IPv4 subnet")
	fs.IntVar(&i.MaskSizeIPv6, "node-cidr-mask-size-ipv6", d.NodeIPAM.MaskSizeIPv6, "mask size of a Node's IPv6 subnet")
	fs.StringSliceVar(&f.serviceCIDRs, "service-cluster-ip-range", nil,
		"range of Services' addresses; no Node gets a subnet of it")
	f.addPool(fs, "")
	a := &f.settings.Autoscaler
	fs.DurationVar(&a.SyncPeriod, "horizontal-pod-autoscaler-sync-period", d.Autoscaler.SyncPeriod,
		"how often each autoscaler is synced")
	fs.DurationVar(&a.DownscaleStabilization, "horizontal-pod-autoscaler-downscale-stabilization",
		d.Autoscaler.DownscaleStabilization,
		"before scaling down, consider all recommendations of this period, and use the largest")
	fs.Float64Var(&a.Tolerance, "horizontal-pod-autoscaler-tolerance", d.Autoscaler.Tolerance,
		"relative difference between a metric and its target that causes no scaling")
	fs.DurationVar(&a.CPUInitializationPeriod, "horizontal-pod-autoscaler-cpu-initialization-period",
		d.Autoscaler.CPUInitializationPeriod,
		"period after a pod's start during which its CPU counts only if the pod has been ready for a while")
	fs.DurationVar(&a.InitialReadinessDelay, "horizontal-pod-autoscaler-initial-readiness-delay",
		d.Autoscaler.InitialReadinessDelay,
		"a pod that became unready within this time after its start counts as never ready")
	e := &f.settings.Endpoints
	fs.IntVar(&e.MaxPerSlice, "max-endpoints-per-slice", d.Endpoints.MaxPerSlice,
		"how many endpoints an EndpointSlice holds, 1 to 1000")
	fs.DurationVar(&e.SliceBatchPeriod, "endpointslice-updates-batch-period", 0,
		"how long changes of pods are batched before EndpointSlices are written")
	fs.DurationVar(&e.BatchPeriod, "endpoint-updates-batch-period", 0, "the same for Endpoints")
	fs.IntVar(&e.MirroredMaxPerSubset, "mirroring-max-endpoints-per-subset", d.Endpoints.MirroredMaxPerSubset,
		"how many addresses of each subset of an Endpoints object are mirrored, 1 to 1000")
	fs.DurationVar(&e.MirroredBatchPeriod, "mirroring-endpointslice-updates-batch-period", 0,
		"how long changes of Endpoints are batched before they are mirrored")
	f.settings.TerminatedPodThreshold = fs.Int("terminated-pod-gc-threshold", *d.TerminatedPodThreshold,
		"how many terminated pods are kept; 0 or less keeps all")
	fs.DurationVar(&f.settings.LegacyTokenCleanUpPeriod, "legacy-service-account-token-clean-up-period",
		d.LegacyTokenCleanUpPeriod, "how long an auto-generated token in a Secret must be unused before it is "+
			"invalidated, and again before it is deleted")
	v := &f.settings.Storage
	v.NodeLocalClass = fs.String("node-local-storage-class", *d.Storage.NodeLocalClass,
		`StorageClass of folders on nodes, created at the start, the default unless there is another; "" for none`)
	fs.StringVar(&v.NodeLocalRoot, "node-local-root", d.Storage.NodeLocalRoot,
		"folder on a node that contains the folders of that class")
}

func newControllers() *cobra.Command {
	f, p := &controllersFlags{debug: &controllers.Debug{}}, &processFlags{}
	p.debug = map[string]http.Handler{controllers.DebugPath: f.debug, configzPath: f.configz()}
	cmd := &cobra.Command{
		Use:   "controllers",
		Short: "Run the controllers, as kube-controller-manager does",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// The endpoint shows the flags, so they are parsed before it is served.
			if err := f.parse(); err != nil {
				return err
			}
			return p.run(cmd.Context(), controllers.Metrics(), f.run)
		},
	}
	p.add(cmd.Flags(), "kube-controller-manager", "127.0.0.1:10257")
	f.leader.add(cmd.Flags())
	cmd.Flags().StringSliceVar(&f.controllers, "controllers", []string{"*"},
		`controllers to run: "*" for all, "foo" for foo, "-foo" for all but foo`)
	f.addSettings(cmd.Flags())
	f.addWorkers(cmd.Flags())
	f.signing.add(cmd.Flags())
	return cmd
}

// workerFlags are the flags for the number of workers of a controller, with their defaults.
var workerFlags = []struct {
	flag, controller string
	workers          int
}{
	{"concurrent-cron-job-syncs", "cronjob-controller", 5},
	{"concurrent-daemonset-syncs", "daemonset-controller", 2},
	{"concurrent-deployment-syncs", "deployment-controller", 5},
	{"concurrent-disruption-syncs", "disruption-controller", 5},
	{"concurrent-endpoint-syncs", "endpoints-controller", 5},
	{"concurrent-ephemeralvolume-syncs", "ephemeral-volume-controller", 5},
	{"concurrent-gc-syncs", "garbage-collector-controller", 20},
	{"concurrent-horizontal-pod-autoscaler-syncs", "horizontal-pod-autoscaler-controller", 5},
	{"concurrent-job-syncs", "job-controller", 5},
	{"concurrent-namespace-syncs", "namespace-controller", 10},
	{"concurrent-rc-syncs", "replicationcontroller-controller", 5},
	{"concurrent-replicaset-syncs", "replicaset-controller", 5},
	{"concurrent-resource-quota-syncs", "resourcequota-controller", 5},
	{"concurrent-service-endpoint-syncs", "endpointslice-controller", 5},
	{"concurrent-statefulset-syncs", "statefulset-controller", 5},
	{"concurrent-ttl-after-finished-syncs", "ttl-after-finished-controller", 5},
	{"mirroring-concurrent-service-endpoint-syncs", "endpointslice-mirroring-controller", 5},
}

func (f *controllersFlags) addWorkers(fs *pflag.FlagSet) {
	f.workers = map[string]*int{}
	for _, w := range workerFlags {
		f.workers[w.controller] = fs.Int(w.flag, w.workers, "how many keys the "+w.controller+" processes at once")
	}
}

func (f *controllersFlags) checkWorkers() error {
	for _, w := range workerFlags {
		if n, ok := f.workers[w.controller]; ok && *n < 1 {
			return fmt.Errorf("--%s: must be at least 1, not %d", w.flag, *n)
		}
	}
	return nil
}

func (f *controllersFlags) concurrent() map[string]int {
	workers := make(map[string]int, len(f.workers))
	for name, n := range f.workers {
		workers[name] = *n
	}
	return workers
}

func (f *controllersFlags) run(ctx context.Context, as identities) error {
	if err := f.parse(); err != nil {
		return err
	}
	if err := f.checkWorkers(); err != nil {
		return err
	}
	if err := f.signing.settings(&f.settings); err != nil {
		return err
	}
	o := f.options()
	o.As = as.controller
	return controllers.Run(ctx, as.main, o)
}

// options returns the options that the flags specify, after parse.
func (f *controllersFlags) options() controllers.Options {
	return controllers.Options{
		Controllers: f.controllers, Log: f.log,
		Settings: f.settings, Workers: f.concurrent(), Debug: f.debug, Metrics: controllers.Metrics(),
		Clock: f.time.clock(), Quiescence: f.time.parts,
		LeaderElect: f.leader.elect,
		LeaderElection: controllers.LeaderElection{
			LeaseDuration: f.leader.leaseDuration, RenewDeadline: f.leader.renewDeadline,
			RetryPeriod: f.leader.retryPeriod,
		},
	}
}

// configz returns the handler of /configz.
func (f *controllersFlags) configz() http.Handler {
	return zpages.Configz(controllers.ConfigName, func() any { return f.options().Configuration() })
}
