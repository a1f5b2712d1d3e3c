package podspec

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresource "k8s.io/component-helpers/resource"

	"github.com/coxswain-dev/coxswain/api/kit/defaults"
	"github.com/coxswain-dev/coxswain/api/kit/resourcelist"
	"github.com/coxswain-dev/coxswain/internal/limits"
)

// DefaultPod sets the defaults that apply to a pod but not to a workload's template, and then calls Default.
func DefaultPod(p *corev1.Pod) {
	spec := &p.Spec
	for _, list := range [][]corev1.Container{spec.Containers, spec.InitContainers} {
		for i := range list {
			requestLimits(&list[i].Resources)
			if spec.HostNetwork {
				hostPorts(list[i].Ports)
			}
		}
	}
	requestPodLimits(p)
	defaults.SetPtr(&spec.EnableServiceLinks, corev1.DefaultEnableServiceLinks)
	Default(spec)
}

// requestLimits sets missing requests to the limits.
func requestLimits(r *corev1.ResourceRequirements) {
	if len(r.Limits) > 0 && r.Requests == nil {
		r.Requests = make(corev1.ResourceList, len(r.Limits))
	}
	for name, limit := range r.Limits {
		if _, ok := r.Requests[name]; !ok {
			r.Requests[name] = limit.DeepCopy()
		}
	}
}

// requestPodLimits does the same for pod-level resources. The sum of the containers' requests takes precedence over
// the pod's limit.
func requestPodLimits(p *corev1.Pod) {
	r := p.Spec.Resources
	if r == nil || (len(r.Limits) == 0 && len(r.Requests) == 0) {
		return
	}
	request := func(name corev1.ResourceName, q resource.Quantity) {
		if _, ok := r.Requests[name]; ok || !podresource.IsSupportedPodLevelResource(name) {
			return
		}
		if r.Requests == nil {
			r.Requests = corev1.ResourceList{}
		}
		r.Requests[name] = limits.Writable(q.DeepCopy())
	}
	for name, q := range podresource.AggregateContainerRequests(p, podresource.PodResourcesOptions{}) {
		request(name, q)
	}
	for name, q := range r.Limits {
		request(name, q)
	}
}

func hostPorts(ports []corev1.ContainerPort) {
	for i := range ports {
		defaults.Set(&ports[i].HostPort, ports[i].ContainerPort)
	}
}

// Default sets the defaults of the spec of a pod or of a pod template.
func Default(spec *corev1.PodSpec) {
	defaults.Set(&spec.DNSPolicy, corev1.DNSClusterFirst)
	defaults.Set(&spec.RestartPolicy, corev1.RestartPolicyAlways)
	defaults.Set(&spec.SchedulerName, corev1.DefaultSchedulerName)
	defaults.SetPtr(&spec.TerminationGracePeriodSeconds, int64(corev1.DefaultTerminationGracePeriodSeconds))
	defaults.SetPtr(&spec.SecurityContext, corev1.PodSecurityContext{})
	// serviceAccount is the older name of serviceAccountName. Both have the same value.
	defaults.Set(&spec.ServiceAccountName, spec.DeprecatedServiceAccount)
	spec.DeprecatedServiceAccount = spec.ServiceAccountName

	for i := range spec.Volumes {
		defaultVolume(&spec.Volumes[i].VolumeSource)
	}
	for i := range spec.InitContainers {
		defaultContainer(&spec.InitContainers[i])
	}
	for i := range spec.Containers {
		defaultContainer(&spec.Containers[i])
	}
	for i := range spec.EphemeralContainers {
		// The two types have the same fields in the same order, so one converts to the other.
		c := corev1.Container(spec.EphemeralContainers[i].EphemeralContainerCommon)
		defaultContainer(&c)
		spec.EphemeralContainers[i].EphemeralContainerCommon = corev1.EphemeralContainerCommon(c)
	}
	resourcelist.Round(spec.Overhead)
	if r := spec.Resources; r != nil {
		resourcelist.Round(r.Limits)
		resourcelist.Round(r.Requests)
	}
}

func defaultContainer(c *corev1.Container) {
	defaults.Set(&c.ImagePullPolicy, pullPolicy(c.Image))
	defaults.Set(&c.TerminationMessagePath, corev1.TerminationMessagePathDefault)
	defaults.Set(&c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	for i := range c.Ports {
		defaults.Set(&c.Ports[i].Protocol, corev1.ProtocolTCP)
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil {
			defaultFieldRef(from.FieldRef)
			if from.FileKeyRef != nil {
				defaults.SetPtr(&from.FileKeyRef.Optional, false)
			}
		}
	}
	resourcelist.Round(c.Resources.Limits)
	resourcelist.Round(c.Resources.Requests)
	defaultProbe(c.LivenessProbe)
	defaultProbe(c.ReadinessProbe)
	defaultProbe(c.StartupProbe)
	if c.Lifecycle != nil {
		for _, h := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if h != nil {
				defaultHTTPGet(h.HTTPGet)
			}
		}
	}
}

// pullPolicy returns Always for an image with the tag "latest", which is also the default tag.
func pullPolicy(image string) corev1.PullPolicy {
	name, _, digested := strings.Cut(image, "@")
	tag := ""
	if colon := strings.LastIndexByte(name, ':'); colon > strings.LastIndexByte(name, '/') {
		tag = name[colon+1:]
	}
	if tag == "latest" || (tag == "" && !digested) {
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}

func defaultProbe(p *corev1.Probe) {
	if p == nil {
		return
	}
	defaults.Set(&p.TimeoutSeconds, 1)
	defaults.Set(&p.PeriodSeconds, 10)
	defaults.Set(&p.SuccessThreshold, 1)
	defaults.Set(&p.FailureThreshold, 3)
	defaultHTTPGet(p.HTTPGet)
	if p.GRPC != nil {
		defaults.SetPtr(&p.GRPC.Service, "")
	}
}

func defaultHTTPGet(h *corev1.HTTPGetAction) {
	if h == nil {
		return
	}
	defaults.Set(&h.Path, "/")
	defaults.Set(&h.Scheme, corev1.URISchemeHTTP)
}

func defaultFieldRef(ref *corev1.ObjectFieldSelector) {
	if ref != nil {
		defaults.Set(&ref.APIVersion, "v1")
	}
}

func defaultVolume(v *corev1.VolumeSource) {
	if *v == (corev1.VolumeSource{}) {
		v.EmptyDir = &corev1.EmptyDirVolumeSource{}
	}
	switch {
	case v.Secret != nil:
		defaults.SetPtr(&v.Secret.DefaultMode, corev1.SecretVolumeSourceDefaultMode)
	case v.ConfigMap != nil:
		defaults.SetPtr(&v.ConfigMap.DefaultMode, corev1.ConfigMapVolumeSourceDefaultMode)
	case v.DownwardAPI != nil:
		defaults.SetPtr(&v.DownwardAPI.DefaultMode, corev1.DownwardAPIVolumeSourceDefaultMode)
		defaultDownwardAPI(v.DownwardAPI.Items)
	case v.Projected != nil:
		defaultProjected(v.Projected)
	case v.HostPath != nil:
		defaults.SetPtr(&v.HostPath.Type, corev1.HostPathUnset)
	case v.EmptyDir != nil:
		if limit := v.EmptyDir.SizeLimit; limit != nil {
			limit.RoundUp(resource.Milli)
		}
	case v.Image != nil:
		defaults.Set(&v.Image.PullPolicy, pullPolicy(v.Image.Reference))
	case v.Ephemeral != nil:
		if t := v.Ephemeral.VolumeClaimTemplate; t != nil {
			DefaultClaimSpec(&t.Spec)
		}
	default:
		defaultLegacyVolume(v)
	}
}

func defaultDownwardAPI(items []corev1.DownwardAPIVolumeFile) {
	for i := range items {
		defaultFieldRef(items[i].FieldRef)
	}
}

func defaultProjected(p *corev1.ProjectedVolumeSource) {
	defaults.SetPtr(&p.DefaultMode, corev1.ProjectedVolumeSourceDefaultMode)
	for i := range p.Sources {
		source := &p.Sources[i]
		if source.DownwardAPI != nil {
			defaultDownwardAPI(source.DownwardAPI.Items)
		}
		if source.ServiceAccountToken != nil {
			defaults.SetPtr(&source.ServiceAccountToken.ExpirationSeconds, 60*60)
		}
		if source.PodCertificate != nil {
			defaults.SetPtr(&source.PodCertificate.MaxExpirationSeconds, 24*60*60)
		}
	}
}

// defaultLegacyVolume sets the defaults of volume sources that CSI drivers have replaced.
func defaultLegacyVolume(v *corev1.VolumeSource) {
	switch {
	case v.ISCSI != nil:
		defaults.Set(&v.ISCSI.ISCSIInterface, "default")
	case v.RBD != nil:
		defaults.Set(&v.RBD.RBDPool, "rbd")
		defaults.Set(&v.RBD.RadosUser, "admin")
		defaults.Set(&v.RBD.Keyring, "/etc/ceph/keyring")
	case v.ScaleIO != nil:
		defaults.Set(&v.ScaleIO.StorageMode, "ThinProvisioned")
		defaults.Set(&v.ScaleIO.FSType, "xfs")
	case v.AzureDisk != nil:
		defaults.SetPtr(&v.AzureDisk.CachingMode, corev1.AzureDataDiskCachingReadWrite)
		defaults.SetPtr(&v.AzureDisk.Kind, corev1.AzureSharedBlobDisk)
		defaults.SetPtr(&v.AzureDisk.FSType, "ext4")
		defaults.SetPtr(&v.AzureDisk.ReadOnly, false)
	}
}
