package controller

import (
	"net/netip"
	"time"
)

// Settings are the settings of single controllers, with the names of kube-controller-manager's flags. A zero
// field stands for the default, which its comment gives in parentheses.
type Settings struct {
	Autoscaler AutoscalerSettings
	Endpoints  EndpointsSettings
	Node       NodeSettings
	NodeIPAM   NodeIPAMSettings
	Service    ServiceSettings
	Signing    SigningSettings
	Storage    StorageSettings
	// ServiceAccountKey is the content of --service-account-private-key-file, in PEM. It signs tokens in
	// Secrets; without it there are no such tokens.
	ServiceAccountKey []byte
	// LegacyTokenCleanUpPeriod is --legacy-service-account-token-clean-up-period: how long automatically
	// generated tokens in Secrets may be unused (a year).
	LegacyTokenCleanUpPeriod time.Duration
	// TerminatedPodThreshold is --terminated-pod-gc-threshold: how many ended pods are kept (12,500); all of
	// them if it is not above 0.
	TerminatedPodThreshold *int
	// RootCA is the content of --root-ca-file, in PEM: the certificates that authenticate the API server to
	// pods. Without it they are the controllers' own.
	RootCA []byte
}

// EndpointsSettings configure how Services' endpoints are published.
type EndpointsSettings struct {
	// MaxPerSlice is --max-endpoints-per-slice: the largest number of endpoints in a slice (100).
	MaxPerSlice int
	// SliceBatchPeriod is --endpointslice-updates-batch-period, and BatchPeriod
	// --endpoint-updates-batch-period: how long changes of pods are collected before they are written (0).
	SliceBatchPeriod, BatchPeriod time.Duration
	// MirroredMaxPerSubset is --mirroring-max-endpoints-per-subset: how many addresses of each subset of an
	// Endpoints object are mirrored (1000).
	MirroredMaxPerSubset int
	// MirroredBatchPeriod is --mirroring-endpointslice-updates-batch-period (0).
	MirroredBatchPeriod time.Duration
}

// AutoscalerSettings configure how soon the scale of a workload follows its metrics. The flags begin with
// --horizontal-pod-autoscaler.
type AutoscalerSettings struct {
	// SyncPeriod is -sync-period: how often each autoscaler is reconciled (15 s).
	SyncPeriod time.Duration
	// DownscaleStabilization is -downscale-stabilization: the window whose highest recommendation limits
	// scaling down (5 min).
	DownscaleStabilization time.Duration
	// Tolerance is -tolerance: the fraction by which a metric may differ from its target without scaling (0.1).
	Tolerance float64
	// CPUInitializationPeriod is -cpu-initialization-period: the time after a pod's start during which its CPU
	// counts only if it has been ready for a whole metrics window (5 min).
	CPUInitializationPeriod time.Duration
	// InitialReadinessDelay is -initial-readiness-delay: a pod that became unready within this time of its
	// start counts as never ready (30 s).
	InitialReadinessDelay time.Duration
}

// NodeIPAMSettings configure the subnets that Nodes get for their pods.
type NodeIPAMSettings struct {
	// Allocate is --allocate-node-cidrs: without it the controllers give Nodes no subnets.
	Allocate bool
	// ClusterCIDRs are --cluster-cidr: one, or one of each family.
	ClusterCIDRs []netip.Prefix
	// MaskSize is --node-cidr-mask-size: the size of a Node's subnet in a single-stack cluster; 0 for the
	// default of the family.
	MaskSize int
	// MaskSizeIPv4 and MaskSizeIPv6 are --node-cidr-mask-size-ipv4 (24) and --node-cidr-mask-size-ipv6 (64).
	MaskSizeIPv4, MaskSizeIPv6 int
	// ServiceRanges are --service-cluster-ip-range: no Node gets a subnet that overlaps with them.
	ServiceRanges []netip.Prefix
}

// ServiceSettings configure Services of type LoadBalancer.
type ServiceSettings struct {
	// LoadBalancerPool is --service-lb-pool, a flag of the project's own: CIDRs and ranges FIRST-LAST from
	// which these Services get their addresses. If it is empty, they get none.
	LoadBalancerPool []string
}

// StorageSettings configure the volumes of a cluster without a storage system. They are the project's own.
type StorageSettings struct {
	// NodeLocalClass is --node-local-storage-class: the StorageClass of directories on nodes, which is created
	// at the start and is the default unless another class is ("local"); "" for none.
	NodeLocalClass *string
	// NodeLocalRoot is --node-local-root: where these directories are on a node (/var/lib/coxswain/volumes).
	NodeLocalRoot string
}

// NodeSettings configure how soon a Node that does not report counts as lost.
type NodeSettings struct {
	// MonitorPeriod is --node-monitor-period: how often every Node is checked (5 s).
	MonitorPeriod time.Duration
	// MonitorGracePeriod is --node-monitor-grace-period: how long a Node may be silent before its conditions
	// become Unknown (50 s).
	MonitorGracePeriod time.Duration
	// StartupGracePeriod is --node-startup-grace-period: the same for a Node that has never posted its status
	// (60 s).
	StartupGracePeriod time.Duration
	// EvictionRate is --node-eviction-rate: how many Nodes of a zone are tainted for eviction per second (0.1).
	EvictionRate float32
	// SecondaryEvictionRate is --secondary-node-eviction-rate: the same for a large zone that is disrupted
	// (0.01). In a small zone it is 0.
	SecondaryEvictionRate float32
	// LargeClusterSizeThreshold is --large-cluster-size-threshold: a zone with more Nodes is large (50).
	LargeClusterSizeThreshold int
	// UnhealthyZoneThreshold is --unhealthy-zone-threshold: a zone with at least this fraction of unready Nodes
	// counts as disrupted (0.55).
	UnhealthyZoneThreshold float64
	// ExternalCloud is --cloud-provider=external: a cloud's own controllers initialise Nodes.
	ExternalCloud bool
}

// WithDefaults returns the settings with zero fields replaced by defaults: kube-controller-manager's
// (cmd/kube-controller-manager/app/options), and the project's own for storage. The flags of cmd/coxswain have
// the same defaults.
func (s Settings) WithDefaults() Settings {
	n := &s.Node
	orDefault(&n.MonitorPeriod, 5*time.Second)
	orDefault(&n.MonitorGracePeriod, 50*time.Second)
	orDefault(&n.StartupGracePeriod, time.Minute)
	orDefault(&n.EvictionRate, 0.1)
	orDefault(&n.SecondaryEvictionRate, 0.01)
	orDefault(&n.LargeClusterSizeThreshold, 50)
	orDefault(&n.UnhealthyZoneThreshold, 0.55)
	a := &s.Autoscaler
	orDefault(&a.SyncPeriod, 15*time.Second)
	orDefault(&a.DownscaleStabilization, 5*time.Minute)
	orDefault(&a.Tolerance, 0.1)
	orDefault(&a.CPUInitializationPeriod, 5*time.Minute)
	orDefault(&a.InitialReadinessDelay, 30*time.Second)
	orDefault(&s.Endpoints.MaxPerSlice, 100)
	orDefault(&s.Endpoints.MirroredMaxPerSubset, 1000)
	orDefault(&s.NodeIPAM.MaskSizeIPv4, 24)
	orDefault(&s.NodeIPAM.MaskSizeIPv6, 64)
	orDefault(&s.Storage.NodeLocalClass, new("local"))
	orDefault(&s.Storage.NodeLocalRoot, "/var/lib/coxswain/volumes")
	orDefault(&s.TerminatedPodThreshold, new(12500))
	orDefault(&s.LegacyTokenCleanUpPeriod, 365*24*time.Hour)
	orDefault(&s.Signing.Duration, 365*24*time.Hour)
	return s
}

func orDefault[T comparable](v *T, value T) {
	var zero T
	if *v == zero {
		*v = value
	}
}
