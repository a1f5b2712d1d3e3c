package config

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kube-scheduler/config/v1"
)

// Validate checks a complete configuration.
func Validate(c *Config) error {
	var all field.ErrorList
	if *c.Parallelism <= 0 {
		all = append(all, field.Invalid(field.NewPath("parallelism"), *c.Parallelism,
			"should be an integer value greater than zero"))
	}
	all = append(all, percentage(c.PercentageOfNodesToScore, field.NewPath("percentageOfNodesToScore"))...)
	if *c.PodInitialBackoffSeconds <= 0 {
		all = append(all, field.Invalid(field.NewPath("podInitialBackoffSeconds"), *c.PodInitialBackoffSeconds,
			"must be greater than 0"))
	}
	if *c.PodMaxBackoffSeconds < *c.PodInitialBackoffSeconds {
		all = append(all, field.Invalid(field.NewPath("podMaxBackoffSeconds"), *c.PodMaxBackoffSeconds,
			"must be greater than or equal to PodInitialBackoffSeconds"))
	}
	all = append(all, leaderElection(c, field.NewPath("leaderElection"))...)
	if len(c.Extenders) > 0 {
		all = append(all, field.Forbidden(field.NewPath("extenders"), "extenders are not supported; write a plugin"))
	}
	if c.DelayCacheUntilActive {
		all = append(all, field.Forbidden(field.NewPath("delayCacheUntilActive"), "not supported"))
	}
	names := map[string]bool{}
	for i := range c.Profiles {
		path := field.NewPath("profiles").Index(i)
		all = append(all, profile(&c.Profiles[i], path)...)
		if name := c.Profiles[i].SchedulerName; name != nil {
			if names[*name] {
				all = append(all, field.Duplicate(path.Child("schedulerName"), *name))
			}
			names[*name] = true
		}
	}
	return all.ToAggregate()
}

func percentage(value *int32, path *field.Path) field.ErrorList {
	if value != nil && (*value < 0 || *value > 100) {
		return field.ErrorList{field.Invalid(path, *value, "not in valid range [0-100]")}
	}
	return nil
}

func leaderElection(c *Config, path *field.Path) (all field.ErrorList) {
	l := &c.LeaderElection
	if !*l.LeaderElect {
		return nil
	}
	if l.LeaseDuration.Duration <= l.RenewDeadline.Duration {
		all = append(all, field.Invalid(path.Child("leaseDuration"), l.LeaseDuration.Duration.String(),
			"LeaseDuration must be greater than RenewDeadline"))
	}
	if l.RenewDeadline.Duration <= l.RetryPeriod.Duration {
		all = append(all, field.Invalid(path.Child("renewDeadline"), l.RenewDeadline.Duration.String(),
			"RenewDeadline must be greater than RetryPeriod"))
	}
	if l.ResourceLock != "leases" {
		all = append(all, field.Invalid(path.Child("resourceLock"), l.ResourceLock,
			`resourceLock value must be "leases"`))
	}
	return all
}

func profile(p *Profile, path *field.Path) (all field.ErrorList) {
	if p.SchedulerName == nil || *p.SchedulerName == "" {
		all = append(all, field.Required(path.Child("schedulerName"), ""))
	} else if messages := validation.IsDNS1123Subdomain(*p.SchedulerName); len(messages) > 0 {
		all = append(all, field.Invalid(path.Child("schedulerName"), *p.SchedulerName, messages[0]))
	}
	all = append(all, percentage(p.PercentageOfNodesToScore, path.Child("percentageOfNodesToScore"))...)
	for point, set := range Points(p.Plugins) {
		path := path.Child("plugins", point, "enabled")
		seen := map[string]bool{}
		for i, plugin := range set.Enabled {
			if seen[plugin.Name] {
				all = append(all, field.Duplicate(path.Index(i), plugin.Name))
			}
			seen[plugin.Name] = true
			if plugin.Weight != nil && *plugin.Weight < 0 {
				all = append(all, field.Invalid(path.Index(i).Child("weight"), *plugin.Weight, "must not be negative"))
			}
		}
	}
	configured := map[string]bool{}
	for i, c := range p.PluginConfig {
		path := path.Child("pluginConfig").Index(i)
		if c.Name == "" {
			all = append(all, field.Required(path.Child("name"), ""))
		} else if configured[c.Name] {
			all = append(all, field.Duplicate(path, fmt.Sprintf("repeated config for plugin %s", c.Name)))
		}
		configured[c.Name] = true
	}
	return all
}

// Points returns the sets of plugins by the JSON names of the extension points.
func Points(p *configv1.Plugins) map[string]*configv1.PluginSet {
	return map[string]*configv1.PluginSet{
		"multiPoint": &p.MultiPoint, "preEnqueue": &p.PreEnqueue, "queueSort": &p.QueueSort, "preFilter": &p.PreFilter,
		"filter": &p.Filter, "postFilter": &p.PostFilter, "preScore": &p.PreScore, "score": &p.Score,
		"reserve": &p.Reserve,
		"permit":  &p.Permit, "preBind": &p.PreBind, "bind": &p.Bind, "postBind": &p.PostBind,
	}
}
