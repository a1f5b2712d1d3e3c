package controller

import (
	"net/netip"
	"time"
)

// Settings are those of single controllers, by the names of kube-controller-manager's flags. A zero
// field has the default in its comment.
type Settings struct {
	Autoscaler AutoscalerSettings
	Endpoints  EndpointsSettings
	Node       NodeSettings
	NodeIPAM   NodeIPAMSettings
	Service    ServiceSettings
	Signing    SigningSettings
	Storage    StorageSettings
	// ServiceAccountKey is what --service-account-private-key-file holds, in PEM: with it tokens in
	// Secrets are signed; without it there are none.
	ServiceAccountKey []byte
	// LegacyTokenCleanUpPeriod is --legacy-service-account-token-clean-up-period: how long tokens in Secrets that were
	// made by themselves may be idle (a year).
	LegacyTokenCleanUpPeriod time.Duration
	// TerminatedPodThreshold is --terminated-pod-gc-threshold: how many pods that have ended may stay
	// (12,500); all where it is not above 0.
	TerminatedPodThreshold *int
	// RootCA is what --root-ca-file holds, in PEM: the certificates by which pods know the API server.
	// Without it they are those by which the controllers do.
	RootCA []byte
}

// EndpointsSettings configure how Services' endpoints are published.
type EndpointsSettings struct {
	// MaxPerSlice is --max-endpoints-per-slice: how many endpoints a slice holds (100).
	MaxPerSlice int
	// SliceBatchPeriod is --endpointslice-updates-batch-period, and BatchPeriod --endpoint-updates-batch-period:
	// for how long changes of pods are gathered before they are written (0).
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
	// DownscaleStabilization is -downscale-stabilization: how far back the largest recommendation counts before
	// anything shrinks (5 min).
	DownscaleStabilization time.Duration
	// Tolerance is -tolerance: by which share a metric may be off its target without consequence (0.1).
	Tolerance float64
	// CPUInitializationPeriod is -cpu-initialization-period: how long after its start a pod's CPU counts only
	// when it has been ready for a whole window (5 min).
	CPUInitializationPeriod time.Duration
	// InitialReadinessDelay is -initial-readiness-delay: a pod that became unready within this time of its start
	// has never been ready (30 s).
	InitialReadinessDelay time.Duration
}

// NodeIPAMSettings configure which subnets Nodes get for their pods.
type NodeIPAMSettings struct {
	// Allocate is --allocate-node-cidrs: without it Nodes get none from the controllers.
	Allocate bool
	// ClusterCIDRs are --cluster-cidr: one, or one of each family.
	ClusterCIDRs []netip.Prefix
	// MaskSize is --node-cidr-mask-size, the size of a Node's subnet in a cluster of one family; 0 for that of
	// the family.
	MaskSize int
	// MaskSizeIPv4 and MaskSizeIPv6 are --node-cidr-mask-size-ipv4 (24) and --node-cidr-mask-size-ipv6 (64).
	MaskSizeIPv4, MaskSizeIPv6 int
	// ServiceRanges are --service-cluster-ip-range: no Node is given what overlaps with them.
	ServiceRanges []netip.Prefix
}

// ServiceSettings are those of Services of type LoadBalancer.
type ServiceSettings struct {
	// LoadBalancerPool is --service-lb-pool, which is the project's own: CIDRs and ranges FIRST-LAST of addresses
	// that such Services get. Where it is empty they get none.
	LoadBalancerPool []string
}

// StorageSettings configure the volumes of a cluster without a storage system. They are the project's own.
type StorageSettings struct {
	// NodeLocalClass is the StorageClass of folders on nodes, which is made at the start and is the default
	// unless there is another ("local"); "" for none. (--node-local-storage-class)
	NodeLocalClass *string
	// NodeLocalRoot is where on a node these folders are (/var/lib/coxswain/volumes). (--node-local-root)
	NodeLocalRoot string
}

// NodeSettings configure how soon a silent Node is given up.
type NodeSettings struct {
	// MonitorPeriod is --node-monitor-period: how often every Node is checked (5 s).
	MonitorPeriod time.Duration
	// MonitorGracePeriod is --node-monitor-grace-period: how long a Node may be silent before
	// its conditions become Unknown (50 s).
	MonitorGracePeriod time.Duration
	// StartupGracePeriod is --node-startup-grace-period: the same for one that has never
	// posted its status (60 s).
	StartupGracePeriod time.Duration
	// EvictionRate is --node-eviction-rate: how many Nodes of a zone are given up in a second (0.1).
	EvictionRate float32
	// SecondaryEvictionRate is --secondary-node-eviction-rate: the same where many Nodes of a
	// large zone are not ready (0.01). In a small zone it is none.
	SecondaryEvictionRate float32
	// LargeClusterSizeThreshold is --large-cluster-size-threshold: a zone of more Nodes is large (50).
	LargeClusterSizeThreshold int
	// UnhealthyZoneThreshold is --unhealthy-zone-threshold: the share of Nodes that are not
	// ready from which a zone counts as disrupted (0.55).
	UnhealthyZoneThreshold float64
	// ExternalCloud is --cloud-provider=external: a cloud's own controllers initialise Nodes.
	ExternalCloud bool
}

// WithDefaults returns the settings with defaults in place of zeros: those of kube-controller-manager's flags
// (cmd/kube-controller-manager/app/options), and the project's own for storage. The flags of cmd/coxswain have
// them, too.
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
