package controllers

import (
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ConfigName is the name of the configuration at /configz.
const ConfigName = "kubecontrollermanager.config.k8s.io"

type object = map[string]any

// Configuration returns the options as a KubeControllerManagerConfiguration, as kube-controller-manager shows it at
// /configz. It has the fields that the controllers use. As in Kubernetes, most names begin with a capital letter.
func (o Options) Configuration() any {
	o = o.withDefaults()
	s := &o.Settings
	all := object{
		"kind": "KubeControllerManagerConfiguration", "apiVersion": ConfigName + "/v1alpha1",
		"Generic": object{"Controllers": o.Controllers, "LeaderElection": o.leaderElectionFields()},
		"KubeCloudShared": object{"AllocateNodeCIDRs": s.NodeIPAM.Allocate,
			"ClusterCIDR":       joined(s.NodeIPAM.ClusterCIDRs),
			"NodeMonitorPeriod": duration(s.Node.MonitorPeriod)},
		"EndpointController": object{"EndpointUpdatesBatchPeriod": duration(s.Endpoints.BatchPeriod)},
		"EndpointSliceController": object{"MaxEndpointsPerSlice": s.Endpoints.MaxPerSlice,
			"EndpointUpdatesBatchPeriod": duration(s.Endpoints.SliceBatchPeriod)},
		"EndpointSliceMirroringController": object{
			"MirroringMaxEndpointsPerSubset":      s.Endpoints.MirroredMaxPerSubset,
			"MirroringEndpointUpdatesBatchPeriod": duration(s.Endpoints.MirroredBatchPeriod)},
		"HPAController": object{
			"HorizontalPodAutoscalerSyncPeriod":                   duration(s.Autoscaler.SyncPeriod),
			"HorizontalPodAutoscalerDownscaleStabilizationWindow": duration(s.Autoscaler.DownscaleStabilization),
			"HorizontalPodAutoscalerTolerance":                    s.Autoscaler.Tolerance,
			"HorizontalPodAutoscalerCPUInitializationPeriod":      duration(s.Autoscaler.CPUInitializationPeriod),
			"HorizontalPodAutoscalerInitialReadinessDelay":        duration(s.Autoscaler.InitialReadinessDelay)},
		"LegacySATokenCleaner": object{"CleanUpPeriod": duration(s.LegacyTokenCleanUpPeriod)},
		"NodeIPAMController": object{"ServiceCIDR": joined(s.NodeIPAM.ServiceRanges),
			"NodeCIDRMaskSize": s.NodeIPAM.MaskSize, "NodeCIDRMaskSizeIPv4": s.NodeIPAM.MaskSizeIPv4,
			"NodeCIDRMaskSizeIPv6": s.NodeIPAM.MaskSizeIPv6},
		"NodeLifecycleController": object{"NodeEvictionRate": s.Node.EvictionRate,
			"SecondaryNodeEvictionRate": s.Node.SecondaryEvictionRate,
			"NodeStartupGracePeriod":    duration(s.Node.StartupGracePeriod),
			"NodeMonitorGracePeriod":    duration(s.Node.MonitorGracePeriod),
			"LargeClusterSizeThreshold": s.Node.LargeClusterSizeThreshold,
			"UnhealthyZoneThreshold":    s.Node.UnhealthyZoneThreshold},
		"PodGCController": object{"TerminatedPodGCThreshold": *s.TerminatedPodThreshold},
	}
	for _, c := range concurrencyFields {
		section, ok := all[c.section].(object)
		if !ok {
			section = object{}
			all[c.section] = section
		}
		section[c.field] = o.workers(c.controller)
	}
	return all
}

// concurrencyFields are the fields with the numbers of the controllers' workers.
var concurrencyFields = []struct{ controller, section, field string }{
	{"cronjob-controller", "CronJobController", "ConcurrentCronJobSyncs"},
	{"daemonset-controller", "DaemonSetController", "ConcurrentDaemonSetSyncs"},
	{"deployment-controller", "DeploymentController", "ConcurrentDeploymentSyncs"},
	{"disruption-controller", "DisruptionController", "ConcurrentDisruptionSyncs"},
	{"endpoints-controller", "EndpointController", "ConcurrentEndpointSyncs"},
	{"endpointslice-controller", "EndpointSliceController", "ConcurrentServiceEndpointSyncs"},
	{"endpointslice-mirroring-controller", "EndpointSliceMirroringController",
		"MirroringConcurrentServiceEndpointSyncs"},
	{"ephemeral-volume-controller", "EphemeralVolumeController", "ConcurrentEphemeralVolumeSyncs"},
	{"garbage-collector-controller", "GarbageCollectorController", "ConcurrentGCSyncs"},
	{"horizontal-pod-autoscaler-controller", "HPAController", "ConcurrentHorizontalPodAutoscalerSyncs"},
	{"job-controller", "JobController", "ConcurrentJobSyncs"},
	{"namespace-controller", "NamespaceController", "ConcurrentNamespaceSyncs"},
	{"replicaset-controller", "ReplicaSetController", "ConcurrentRSSyncs"},
	{"replicationcontroller-controller", "ReplicationController", "ConcurrentRCSyncs"},
	{"resourcequota-controller", "ResourceQuotaController", "ConcurrentResourceQuotaSyncs"},
	{"statefulset-controller", "StatefulSetController", "ConcurrentStatefulSetSyncs"},
	{"ttl-after-finished-controller", "TTLAfterFinishedController", "ConcurrentTTLSyncs"},
}

func (o Options) leaderElectionFields() object {
	l := o.LeaderElection
	return object{"leaderElect": o.LeaderElect, "leaseDuration": duration(l.LeaseDuration),
		"renewDeadline": duration(l.RenewDeadline), "retryPeriod": duration(l.RetryPeriod), "resourceLock": "leases",
		"resourceName": l.Name, "resourceNamespace": l.Namespace}
}

func duration(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }

func joined(prefixes []netip.Prefix) string {
	text := ""
	for i, p := range prefixes {
		if i > 0 {
			text += ","
		}
		text += p.String()
	}
	return text
}
