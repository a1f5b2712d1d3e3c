// Package kubeflags accepts the flags of kube-apiserver v1.37 that this server does not implement. It ignores the
// harmless ones and refuses to start with the others. The server's own flags are defined in cmd/coxswain. The
// package starts no goroutine and reads no file.
package kubeflags

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/coxswain-dev/coxswain/apiserver/admission"
)

// flag is a flag of kube-apiserver that this server does not implement.
type flag struct {
	name string
	bool bool
	// same lists the values that describe how this server behaves anyway.
	same []string
	// refused explains why the server must not start with the flag. It is "" if ignoring the flag is safe: doing so
	// grants no rights, stores or sends no data elsewhere and loses no records.
	refused string
}

const (
	noABAC        = "this server has no authorization by policy files; --authorization-mode lists what it has"
	noEgress      = "this server connects without a proxy"
	noOtherStores = "this server stores everything in --etcd-servers"
	noCurves      = "this server's curves for TLS cannot be chosen"
	noSigner      = "this server signs tokens itself, by --service-account-signing-key-file"
	noHTTP1       = "this server always serves HTTP/2"
)

// flags lists the flags of kube-apiserver that this server lacks.
var flags = []flag{
	{name: "admission-control", refused: "--enable-admission-plugins and --disable-admission-plugins take its place"},
	{name: "aggregator-reject-forwarding-redirect", bool: true, same: []string{"true"}},
	{name: "allow-metric-labels"},
	{name: "allow-metric-labels-manifest"},
	{name: "allow-privileged", bool: true, same: []string{"true"}, refused: "this server allows privileged containers"},
	{name: "apiserver-count", same: []string{"1"}},
	{name: "authorization-policy-file", same: []string{""}, refused: noABAC},
	{name: "contention-profiling", bool: true, same: []string{"false"}},
	{name: "coordinated-leadership-lease-duration"},
	{name: "coordinated-leadership-renew-deadline"},
	{name: "coordinated-leadership-retry-period"},
	{name: "cors-allowed-origins"},
	{name: "debug-socket-path"},
	{name: "default-watch-cache-size"},
	{name: "delete-collection-workers"},
	{name: "disable-http2-serving", bool: true, same: []string{"false"}, refused: noHTTP1},
	{name: "disabled-metrics"},
	{name: "egress-selector-config-file", same: []string{""}, refused: noEgress},
	{name: "emulated-version"},
	{name: "emulation-forward-compatible", bool: true, same: []string{"false"}},
	{name: "enable-aggregator-routing", bool: true},
	{name: "enable-garbage-collector", bool: true, same: []string{"true"}},
	{name: "enable-logs-handler", bool: true, same: []string{"false"}},
	{name: "endpoint-reconciler-type", same: []string{"lease"}},
	{name: "etcd-count-metric-poll-period"},
	{name: "etcd-db-metric-poll-interval"},
	{name: "etcd-healthcheck-timeout"},
	{name: "etcd-readycheck-timeout"},
	{name: "etcd-servers-overrides", same: []string{""}, refused: noOtherStores},
	{name: "external-hostname"},
	{name: "feature-gates"},
	{name: "kubelet-port"},
	{name: "kubelet-read-only-port"},
	{name: "kubelet-timeout"},
	{name: "kubernetes-service-node-port", same: []string{"0"}},
	{name: "lease-reuse-duration-seconds"},
	{name: "livez-grace-period"},
	{name: "log-flush-frequency"},
	{name: "log-text-info-buffer-size"},
	{name: "log-text-split-stream", bool: true, same: []string{"false"}},
	{name: "max-connection-bytes-per-sec", same: []string{"0"}},
	{name: "min-compatibility-version"},
	{name: "min-request-timeout"},
	{name: "peer-advertise-ip"},
	{name: "peer-advertise-port"},
	{name: "peer-ca-file"},
	{name: "permit-address-sharing", bool: true, same: []string{"false"}},
	{name: "permit-port-sharing", bool: true, same: []string{"false"}},
	{name: "runtime-config"},
	{name: "runtime-config-emulation-forward-compatible", bool: true, same: []string{"false"}},
	{name: "service-account-lookup", bool: true, same: []string{"true"}},
	{name: "service-account-signing-endpoint", same: []string{""}, refused: noSigner},
	{name: "show-hidden-metrics-for-version"},
	{name: "shutdown-watch-termination-grace-period", same: []string{"0s", "0"}},
	{name: "storage-backend", same: []string{"", "etcd3"}, refused: noOtherStores},
	{name: "storage-initialization-timeout"},
	{name: "storage-media-type"},
	{name: "strict-transport-security-directives"},
	{name: "tls-curve-preferences", refused: noCurves},
	{name: "tls-sni-cert-key"},
	{name: "tracing-config-file"},
	{name: "vmodule"},
	{name: "watch-cache", bool: true, same: []string{"true"}},
	{name: "watch-cache-sizes"},
}

// flagValue collects the values given for a flag.
type flagValue struct {
	flag
	values []string
}

func (v *flagValue) String() string { return strings.Join(v.values, ",") }

func (v *flagValue) Set(value string) error {
	if v.bool && value != "true" && value != "false" {
		return errors.New("must be true or false")
	}
	v.values = append(v.values, value)
	return nil
}

func (v *flagValue) Type() string {
	if v.bool {
		return "bool"
	}
	return "string"
}

// Add adds the flags to fs.
func Add(fs *pflag.FlagSet) {
	for _, k := range flags {
		usage := "accepted, without effect"
		if k.refused != "" {
			usage = "refused: " + k.refused
			if len(k.same) > 0 {
				usage += fmt.Sprintf("; accepted as %q", k.same)
			}
		}
		added := fs.VarPF(&flagValue{flag: k}, k.name, "", usage)
		if k.bool {
			added.NoOptDefVal = "true"
		}
	}
}

// Check returns the flags in a parsed set that are ignored, as --name=value. It returns an error if the server must
// not start with one of them.
func Check(fs *pflag.FlagSet) (ignored []string, err error) {
	var refused []error
	fs.Visit(func(f *pflag.Flag) {
		v, ok := f.Value.(*flagValue)
		if !ok || !slices.ContainsFunc(v.values, func(value string) bool { return !slices.Contains(v.same, value) }) {
			return
		}
		if v.refused != "" {
			refused = append(refused, fmt.Errorf("--%s: %s", v.name, v.refused))
			return
		}
		ignored = append(ignored, fmt.Sprintf("--%s=%s", v.name, v))
	})
	return ignored, errors.Join(refused...)
}

// plugins lists kube-apiserver's admission plugins that this server lacks. The value is true if the server must not
// start with the plugin enabled, because the plugin rejects requests that this server would admit.
var plugins = map[string]bool{
	"AlwaysAdmit": false, "NodeDeclaredFeatureValidator": false, "PodGroupProtection": false,
	"PodResizeValidator": false, "AlwaysDeny": true, "EventRateLimit": true, "ImagePolicyWebhook": true,
}

// DropPlugins removes the plugins that the server can safely ignore from the options, and returns them as
// --flag=name. It does not modify the slices it got.
func DropPlugins(o *admission.Options) (ignored []string) {
	drop := func(flag string, names []string, refuse bool) []string {
		return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
			refused, found := plugins[name]
			if !found || refused && refuse {
				return false // an error, if the server does not have it
			} // an error later, if the server lacks it
			ignored = append(ignored, "--"+flag+"="+name)
			return true
		})
	}
	o.Enable = drop("enable-admission-plugins", o.Enable, true)
	o.Disable = drop("disable-admission-plugins", o.Disable, false)
	return ignored
}
