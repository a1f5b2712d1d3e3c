package node

import (
	"net/http"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/coxswain-dev/coxswain/internal/zpages"
)

type object = map[string]any

// configz returns the handler of /configz, which shows the options as a KubeletConfiguration. It has the fields that
// the agent uses; kubeReserved also contains systemReserved.
func (a *agent) configz() func(http.ResponseWriter, *http.Request, *hostedNode) {
	h := zpages.Configz("kubeletconfig", func() any { return a.Options.configuration(a.port) })
	return func(w http.ResponseWriter, r *http.Request, _ *hostedNode) { h.ServeHTTP(w, r) }
}

// configuration returns complete options as a KubeletConfiguration for an endpoint on a port.
func (o *Options) configuration(port int32) any {
	pids, reserved := o.MaxPodPIDs, map[string]string{}
	if pids == 0 {
		pids = -1
	}
	for name, quantity := range o.Reserved {
		reserved[string(name)] = quantity.String()
	}
	e := &o.Eviction
	return object{
		"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1",
		"enableServer": true, "address": o.ListenAddress, "port": port,
		"serverTLSBootstrap": o.ServerTLSBootstrap, "rotateCertificates": o.ServerTLSBootstrap,
		"authentication": object{"anonymous": object{"enabled": false}, "webhook": object{"enabled": true}},
		"authorization":  object{"mode": "Webhook"},
		"clusterDomain":  o.ClusterDomain, "clusterDNS": o.ClusterDNS, "staticPodPath": o.StaticPodPath,
		"maxPods": o.MaxPods, "podPidsLimit": pids, "allowedUnsafeSysctls": o.AllowedUnsafeSysctls,
		"enableControllerAttachDetach": true,
		"nodeStatusUpdateFrequency":    duration(o.HeartbeatEvery),
		"nodeStatusReportFrequency":    duration(o.StatusEvery),
		"nodeLeaseDurationSeconds":     int(leaseDurations * o.HeartbeatEvery / time.Second),
		"kubeReserved":                 reserved,
		"evictionHard":                 bySignal(e.Hard, "<"), "evictionSoft": bySignal(e.Soft, "<"),
		"evictionSoftGracePeriod":          bySignal(e.SoftGracePeriod, "="),
		"evictionMinimumReclaim":           bySignal(e.MinimumReclaim, "="),
		"evictionPressureTransitionPeriod": duration(e.PressureTransitionPeriod),
		"evictionMaxPodGracePeriod":        int(e.MaxPodGracePeriod / time.Second),
		"shutdownGracePeriod":              duration(o.ShutdownGracePeriod),
		"shutdownGracePeriodCriticalPods":  duration(o.ShutdownGracePeriodCriticalPods),
	}
}

func duration(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }

// bySignal returns the values of settings like "memory.available<100Mi" by their signal.
func bySignal(settings []string, separator string) map[string]string {
	values := map[string]string{}
	for _, s := range settings {
		if name, value, ok := strings.Cut(s, separator); ok {
			values[name] = value
		}
	}
	return values
}
