// Package config reads the scheduler's configuration: the KubeSchedulerConfiguration of kubescheduler.config.k8s.io/v1
// that --config names, decoded strictly, validated, and with Kubernetes' defaults filled in, such as the plugins and
// the weights of their scores (defaultPlugins). Errors contain the path of the field. The arguments of plugins stay
// JSON, which the plugins decode (framework.Args).
package config

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	configv1alpha1 "k8s.io/component-base/config/v1alpha1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// Config is a complete configuration: no field that has a default is empty.
type Config = configv1.KubeSchedulerConfiguration

// Profile is one of its profiles. Plugins.MultiPoint lists the enabled plugins, including the default ones.
type Profile = configv1.KubeSchedulerProfile

// Kind is the kind of the document.
const Kind = "KubeSchedulerConfiguration"

// defaultPlugins are enabled by default. They are called in this order, and their scores have these weights.
var defaultPlugins = []configv1.Plugin{
	{Name: "SchedulingGates"},
	{Name: "PrioritySort"},
	{Name: "NodeUnschedulable"},
	{Name: "NodeName"},
	{Name: "TaintToleration", Weight: ptr.To[int32](3)},
	{Name: "NodeAffinity", Weight: ptr.To[int32](2)},
	{Name: "NodePorts"},
	{Name: "NodeResourcesFit", Weight: ptr.To[int32](1)},
	{Name: "VolumeRestrictions"},
	{Name: "NodeVolumeLimits"},
	{Name: "VolumeBinding"},
	{Name: "VolumeZone"},
	{Name: "PodTopologySpread", Weight: ptr.To[int32](2)},
	{Name: "InterPodAffinity", Weight: ptr.To[int32](2)},
	{Name: "DefaultPreemption"},
	{Name: "NodeResourcesBalancedAllocation", Weight: ptr.To[int32](1)},
	{Name: "ImageLocality", Weight: ptr.To[int32](1)},
	{Name: "DefaultBinder"},
}

// Default returns the configuration of an empty document: one profile, default-scheduler, with the default plugins.
func Default() *Config {
	c := &Config{}
	complete(c)
	return c
}

// Load reads a configuration from YAML or JSON.
func Load(document []byte) (*Config, error) {
	data, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", Kind, err)
	}
	c := &Config{}
	strict, err := json.UnmarshalStrict(data, c)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", Kind, err)
	}
	if want := configv1.SchemeGroupVersion.String(); c.APIVersion != want || c.Kind != Kind {
		return nil, fmt.Errorf("read %s: want apiVersion %s and kind %s, got %q and %q", Kind, want, Kind,
			c.APIVersion, c.Kind)
	}
	if len(strict) > 0 { // each error contains the field's path
		return nil, fmt.Errorf("read %s: %w", Kind, errors.Join(strict...))
	}
	complete(c)
	if err := Validate(c); err != nil {
		return nil, fmt.Errorf("read %s: %w", Kind, err)
	}
	return c, nil
}

func complete(c *Config) {
	c.APIVersion, c.Kind = configv1.SchemeGroupVersion.String(), Kind
	def(&c.Parallelism, 16)
	def(&c.PercentageOfNodesToScore, 0)
	def(&c.PodInitialBackoffSeconds, 1)
	def(&c.PodMaxBackoffSeconds, 10)
	l := &c.LeaderElection
	for field, value := range map[*string]string{
		&l.ResourceLock: "leases", &l.ResourceName: configv1.SchedulerDefaultLockObjectName,
		&l.ResourceNamespace: configv1.SchedulerDefaultLockObjectNamespace,
	} {
		if *field == "" {
			*field = value
		}
	}
	configv1alpha1.RecommendedDefaultLeaderElectionConfiguration(l)
	if len(c.Profiles) == 0 {
		c.Profiles = []Profile{{}}
	}
	for i := range c.Profiles {
		p := &c.Profiles[i]
		if len(c.Profiles) == 1 {
			def(&p.SchedulerName, corev1.DefaultSchedulerName)
		}
		if p.Plugins == nil {
			p.Plugins = &configv1.Plugins{}
		}
		p.Plugins.MultiPoint.Enabled = merge(defaultPlugins, p.Plugins.MultiPoint)
	}
}

func def[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

// merge returns the default plugins without the disabled ones, followed by the other enabled plugins. A default
// plugin that is also in set keeps its place, with the settings of set.
func merge(defaults []configv1.Plugin, set configv1.PluginSet) []configv1.Plugin {
	var merged []configv1.Plugin
	named := func(name string) func(configv1.Plugin) bool {
		return func(p configv1.Plugin) bool { return p.Name == name }
	}
	replaced := map[string]bool{}
	for _, p := range defaults {
		if Disabled(set, p.Name) {
			continue
		}
		if i := slices.IndexFunc(set.Enabled, named(p.Name)); i >= 0 {
			p, replaced[p.Name] = set.Enabled[i], true
		}
		merged = append(merged, p)
	}
	for _, p := range set.Enabled {
		if !replaced[p.Name] {
			merged = append(merged, p)
		}
	}
	return merged
}

// Disabled reports whether a set names a plugin, or "*", as disabled.
func Disabled(set configv1.PluginSet, name string) bool {
	return slices.ContainsFunc(set.Disabled, func(p configv1.Plugin) bool { return p.Name == name || p.Name == "*" })
}
