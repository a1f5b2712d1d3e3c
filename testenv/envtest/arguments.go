package envtest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/coxswain-dev/coxswain/apiserver/admission"
	"github.com/coxswain-dev/coxswain/testenv"
)

// Arguments are flags. Its methods return it, so that calls can be chained.
type Arguments struct {
	values map[string]Arg
}

// EmptyArguments returns no flags.
func EmptyArguments() *Arguments { return &Arguments{} }

// Arg is a flag's values.
type Arg interface {
	// Append returns the flag with further values.
	Append(values ...string) Arg
	// Get returns the values, to which the defaults may belong. nil is no flag, and none the name alone.
	Get(defaults []string) []string
}

// given are values of their own, and added ones besides the defaults.
type (
	given []string
	added []string
	none  struct{}
	bare  struct{}
)

func (g given) Append(values ...string) Arg    { return append(slices.Clip(g), values...) }
func (g given) Get([]string) []string          { return g }
func (a added) Append(values ...string) Arg    { return append(slices.Clip(a), values...) }
func (a added) Get(defaults []string) []string { return slices.Concat(defaults, a) }
func (none) Append(values ...string) Arg       { return given(values) }
func (none) Get([]string) []string             { return nil }
func (b bare) Append(...string) Arg            { return b }
func (bare) Get([]string) []string             { return []string{} }

// DontPass leaves a flag out, and PassAsName passes it without a value.
var (
	DontPass   Arg = none{}
	PassAsName Arg = bare{}
)

// FuncArg is a flag whose values are found out when they are needed.
type FuncArg func(defaults []string) []string

// Append returns the function: it decides alone.
func (f FuncArg) Append(...string) Arg { return f }

// Get calls the function.
func (f FuncArg) Get(defaults []string) []string { return f(defaults) }

// Get returns a flag.
func (a *Arguments) Get(key string) Arg {
	if arg, ok := a.values[key]; ok {
		return arg
	}
	return added(nil)
}

// SetRaw sets a flag.
func (a *Arguments) SetRaw(key string, arg Arg) *Arguments {
	if a.values == nil {
		a.values = map[string]Arg{}
	}
	a.values[key] = arg
	return a
}

// Set gives a flag these values and no others.
func (a *Arguments) Set(key string, values ...string) *Arguments { return a.SetRaw(key, given(values)) }

// Append gives a flag these values besides those that it has, and besides the defaults.
func (a *Arguments) Append(key string, values ...string) *Arguments {
	return a.SetRaw(key, a.Get(key).Append(values...))
}

// AppendNoDefaults is Append for a flag that does not have the defaults.
func (a *Arguments) AppendNoDefaults(key string, values ...string) *Arguments {
	if arg, ok := a.values[key]; ok {
		return a.SetRaw(key, arg.Append(values...))
	}
	return a.Set(key, values...)
}

// Enable passes a flag by its name alone, and Disable leaves it out.
func (a *Arguments) Enable(key string) *Arguments  { return a.SetRaw(key, PassAsName) }
func (a *Arguments) Disable(key string) *Arguments { return a.SetRaw(key, DontPass) }

// harmless are flags of kube-apiserver without which a test's outcome is the same.
var harmless = []string{
	"advertise-address", "allow-privileged", "authorization-mode", "bind-address", "cert-dir", "client-ca-file",
	"etcd-servers", "feature-gates", "insecure-bind-address", "insecure-port", "max-mutating-requests-inflight",
	"max-requests-inflight", "runtime-config", "secure-port", "service-account-issuer",
	"service-account-key-file", "service-account-signing-key-file", "service-cluster-ip-range", "v", "vmodule",
	"watch-cache",
}

// options are the options of testenv that flags stand for.
func (a *Arguments) options() ([]testenv.Option, error) {
	plugins := admission.Options{
		Disable: a.list("disable-admission-plugins"),
		Enable:  a.list("enable-admission-plugins"),
	}
	for key := range a.values {
		switch {
		case strings.HasSuffix(key, "-admission-plugins"), slices.Contains(harmless, key), a.Get(key).Get(nil) == nil:
		default:
			return nil, fmt.Errorf("envtest: kube-apiserver's flag --%s is not there in process: run the suite on the "+
				"programs of `coxswain assets`, or on kube-apiserver", key)
		}
	}
	return []testenv.Option{testenv.WithAdmission(plugins)}, nil
}

// list are the values of a flag that is a list.
func (a *Arguments) list(key string) (all []string) {
	for _, value := range a.Get(key).Get(nil) {
		all = append(all, strings.Split(value, ",")...)
	}
	return all
}
