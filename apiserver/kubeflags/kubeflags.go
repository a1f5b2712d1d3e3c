// Package kubeflags has the flags of kube-apiserver, of v1.37, that this server does not have: which of them it may
// ignore, and why it must not start with the others. The server's own flags stand where it is assembled. The package
// starts nothing and reads no file.
package kubeflags

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/coxswain-dev/coxswain/apiserver/admission"
)

// flag is one that this server does not have.
type flag struct {
	name string
	bool bool
	// as are values that describe what the server does anyway.
	as []string
	// refused says why a server without the flag must not start with it. Where it is "", ignoring the flag is safe:
	// nobody gets rights by it, nothing is stored or sent elsewhere, and nothing that is to be recorded is lost.
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

// flags are those of kube-apiserver besides the server's own.
var flags = []flag{
	{name: "admission-control", refused: "--enable-admission-plugins and --disable-admission-plugins take its place"},
	{name: "aggregator-reject-forwarding-redirect", bool: true, as: []string{"true"}},
	{name: "allow-metric-labels"},
	{name: "allow-metric-labels-manifest"},
	{name: "allow-privileged", bool: true, as: []string{"true"}, refused: "this server allows privileged containers"},
	{name: "apiserver-count", as: []string{"1"}},
	{name: "authorization-policy-file", as: []string{""}, refused: noABAC},
	{name: "contention-profiling", bool: true, as: []string{"false"}},
	{name: "coordinated-leadership-lease-duration"},
	{name: "coordinated-leadership-renew-deadline"},
	{name: "coordinated-leadership-retry-period"},
	{name: "cors-allowed-origins"},
	{name: "debug-socket-path"},
	{name: "default-watch-cache-size"},
	{name: "delete-collection-workers"},
	{name: "disable-http2-serving", bool: true, as: []string{"false"}, refused: noHTTP1},
	{name: "disabled-metrics"},
	{name: "egress-selector-config-file", as: []string{""}, refused: noEgress},
	{name: "emulated-version"},
	{name: "emulation-forward-compatible", bool: true, as: []string{"false"}},
	{name: "enable-aggregator-routing", bool: true},
	{name: "enable-garbage-collector", bool: true, as: []string{"true"}},
	{name: "enable-logs-handler", bool: true, as: []string{"false"}},
	{name: "endpoint-reconciler-type", as: []string{"lease"}},
	{name: "etcd-count-metric-poll-period"},
	{name: "etcd-db-metric-poll-interval"},
	{name: "etcd-healthcheck-timeout"},
	{name: "etcd-readycheck-timeout"},
	{name: "etcd-servers-overrides", as: []string{""}, refused: noOtherStores},
	{name: "external-hostname"},
	{name: "feature-gates"},
	{name: "kubelet-port"},
	{name: "kubelet-read-only-port"},
	{name: "kubelet-timeout"},
	{name: "kubernetes-service-node-port", as: []string{"0"}},
	{name: "lease-reuse-duration-seconds"},
	{name: "livez-grace-period"},
	{name: "log-flush-frequency"},
	{name: "log-text-info-buffer-size"},
	{name: "log-text-split-stream", bool: true, as: []string{"false"}},
	{name: "max-connection-bytes-per-sec", as: []string{"0"}},
	{name: "min-compatibility-version"},
	{name: "min-request-timeout"},
	{name: "peer-advertise-ip"},
	{name: "peer-advertise-port"},
	{name: "peer-ca-file"},
	{name: "permit-address-sharing", bool: true, as: []string{"false"}},
	{name: "permit-port-sharing", bool: true, as: []string{"false"}},
	{name: "runtime-config"},
	{name: "runtime-config-emulation-forward-compatible", bool: true, as: []string{"false"}},
	{name: "service-account-lookup", bool: true, as: []string{"true"}},
	{name: "service-account-signing-endpoint", as: []string{""}, refused: noSigner},
	{name: "show-hidden-metrics-for-version"},
	{name: "shutdown-watch-termination-grace-period", as: []string{"0s", "0"}},
	{name: "storage-backend", as: []string{"", "etcd3"}, refused: noOtherStores},
	{name: "storage-initialization-timeout"},
	{name: "storage-media-type"},
	{name: "strict-transport-security-directives"},
	{name: "tls-curve-preferences", refused: noCurves},
	{name: "tls-sni-cert-key"},
	{name: "tracing-config-file"},
	{name: "vmodule"},
	{name: "watch-cache", bool: true, as: []string{"true"}},
	{name: "watch-cache-sizes"},
}

// flagValue collects the values of a flag.
type flagValue struct {
	flag
	given []string
}

func (v *flagValue) String() string { return strings.Join(v.given, ",") }

func (v *flagValue) Set(value string) error {
	if v.bool && value != "true" && value != "false" {
		return errors.New("must be true or false")
	}
	v.given = append(v.given, value)
	return nil
}

func (v *flagValue) Type() string {
	if v.bool {
		return "bool"
	}
	return "string"
}

// Add adds the flags to a set.
func Add(fs *pflag.FlagSet) {
	for _, k := range flags {
		usage := "accepted, without effect"
		if k.refused != "" {
			usage = "refused: " + k.refused
			if len(k.as) > 0 {
				usage += fmt.Sprintf("; accepted as %q", k.as)
			}
		}
		added := fs.VarPF(&flagValue{flag: k}, k.name, "", usage)
		if k.bool {
			added.NoOptDefVal = "true"
		}
	}
}

// Check returns those of the flags that were given to a parsed set and have no effect, each as --name=value, and an
// error if there is one that the server must not start with.
func Check(fs *pflag.FlagSet) (ignored []string, err error) {
	var refused []error
	fs.Visit(func(f *pflag.Flag) {
		v, ok := f.Value.(*flagValue)
		if !ok || !slices.ContainsFunc(v.given, func(value string) bool { return !slices.Contains(v.as, value) }) {
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

// plugins are kube-apiserver's admission plugins that this server does not have, and whether it must not start
// where they are enabled: they refuse what it would admit.
var plugins = map[string]bool{
	"AlwaysAdmit": false, "NodeDeclaredFeatureValidator": false, "PodGroupProtection": false,
	"PodResizeValidator": false, "AlwaysDeny": true, "EventRateLimit": true, "ImagePolicyWebhook": true,
}

// DropPlugins removes the names of plugins that the server can do without, and returns them as flags, each as
// --flag=name. The options get lists of their own.
func DropPlugins(o *admission.Options) (ignored []string) {
	drop := func(flag string, names []string, refuse bool) []string {
		return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
			refused, known := plugins[name]
			if !known || refused && refuse {
				return false // an error, if the server does not have it
			}
			ignored = append(ignored, "--"+flag+"="+name)
			return true
		})
	}
	o.Enable = drop("enable-admission-plugins", o.Enable, true)
	o.Disable = drop("disable-admission-plugins", o.Disable, false)
	return ignored
}
