package scheduler

import (
	"fmt"
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/coxswain-dev/coxswain/scheduler/config"
	"github.com/coxswain-dev/coxswain/scheduler/framework"
)

// profile is a set of plugins, grouped by the steps they take part in. The scheduling loop owns its scheduling
// cycles (place.go) and their buffers.
type profile struct {
	name       string
	percentage int // of the nodes to find; 0 for a share that falls with the size of the cluster
	parallel   int // the maximal number of goroutines that filter

	queueSort  framework.QueueSortPlugin
	preEnqueue []framework.PreEnqueuePlugin
	preFilter  []step[framework.PreFilterPlugin]
	filter     []step[framework.FilterPlugin]
	postFilter []framework.PostFilterPlugin
	preScore   []step[framework.PreScorePlugin]
	score      []step[framework.ScorePlugin]
	reserve    []framework.ReservePlugin
	permit     []framework.PermitPlugin
	preBind    []framework.PreBindPlugin
	bind       []framework.BindPlugin
	postBind   []framework.PostBindPlugin
	hints      map[string][]framework.EventHint
	extensions map[string]framework.PreFilterExtensions

	nominator *nominator
	metrics   *metrics
	search
}

// step is a plugin at one of its steps. index is its bit in the set of skipped plugins.
type step[P framework.Plugin] struct {
	index     int
	weight    int64
	plugin    P
	evaluated prometheus.Counter // of attempts that call the plugin
}

// newProfile makes the plugins of a profile and groups them by their steps.
func newProfile(c *config.Profile, path *field.Path, registry framework.Registry, h *handle) (*profile, error) {
	p := &profile{name: *c.SchedulerName, hints: map[string][]framework.EventHint{},
		extensions: map[string]framework.PreFilterExtensions{}}
	h.profile = p
	plugins, err := newPlugins(c, path, registry, h)
	if err != nil {
		return nil, err
	}
	for name, plugin := range plugins {
		p.hints[name] = allEvents
		if e, ok := plugin.(framework.EnqueueExtensions); ok {
			p.hints[name] = e.EventsToRegister()
		}
		if e, ok := plugin.(framework.PreFilterExtensions); ok {
			p.extensions[name] = e
		}
	}
	a := &assembly{multiPoint: c.Plugins.MultiPoint, plugins: plugins, index: map[string]int{},
		path: path.Child("plugins")}
	for _, name := range slices.Sorted(maps.Keys(plugins)) {
		a.index[name] = len(a.index)
	}
	if len(a.index) > 64 {
		return nil, fmt.Errorf("%s: %d plugins, 64 is the most", path.Child("plugins"), len(a.index))
	}
	set := c.Plugins
	p.preEnqueue = unstepped(at[framework.PreEnqueuePlugin](a, "preEnqueue", set.PreEnqueue))
	p.preFilter = at[framework.PreFilterPlugin](a, "preFilter", set.PreFilter)
	p.filter = at[framework.FilterPlugin](a, "filter", set.Filter)
	p.postFilter = unstepped(at[framework.PostFilterPlugin](a, "postFilter", set.PostFilter))
	p.preScore = at[framework.PreScorePlugin](a, "preScore", set.PreScore)
	p.score = at[framework.ScorePlugin](a, "score", set.Score)
	p.reserve = unstepped(at[framework.ReservePlugin](a, "reserve", set.Reserve))
	p.permit = unstepped(at[framework.PermitPlugin](a, "permit", set.Permit))
	p.preBind = unstepped(at[framework.PreBindPlugin](a, "preBind", set.PreBind))
	p.bind = unstepped(at[framework.BindPlugin](a, "bind", set.Bind))
	p.postBind = unstepped(at[framework.PostBindPlugin](a, "postBind", set.PostBind))
	sorts := at[framework.QueueSortPlugin](a, "queueSort", set.QueueSort)
	switch {
	case a.err != nil:
		return nil, a.err
	case len(sorts) != 1:
		return nil, fmt.Errorf("%s: one queue sort plugin required for profile with scheduler name %q, but got %d",
			path, p.name, len(sorts))
	case len(p.bind) == 0:
		return nil, fmt.Errorf("%s: at least one bind plugin is needed for profile with scheduler name %q", path,
			p.name)
	}
	p.queueSort = sorts[0].plugin
	return p, nil
}

// measure makes the profile count in m.
func (p *profile) measure(m *metrics) {
	p.metrics = m
	measureSteps(m, p, "PreFilter", p.preFilter)
	measureSteps(m, p, "Filter", p.filter)
	measureSteps(m, p, "PreScore", p.preScore)
	measureSteps(m, p, "Score", p.score)
}

func measureSteps[P framework.Plugin](m *metrics, p *profile, point string, steps []step[P]) {
	for i := range steps {
		steps[i].evaluated = m.evaluations.WithLabelValues(steps[i].plugin.Name(), point, p.name)
	}
}

// newPlugins makes each plugin that is enabled at any point, once.
func newPlugins(c *config.Profile, path *field.Path, registry framework.Registry,
	h framework.Handle) (map[string]framework.Plugin, error) {
	args := map[string]framework.Args{}
	for i, pc := range c.PluginConfig {
		if registry[pc.Name] == nil {
			return nil, fmt.Errorf("%s: Invalid value: %q: no such plugin",
				path.Child("pluginConfig").Index(i).Child("name"), pc.Name)
		}
		args[pc.Name] = framework.Args{Raw: pc.Args.Raw, Path: path.Child("pluginConfig").Index(i).Child("args")}
	}
	plugins := map[string]framework.Plugin{}
	points := config.Points(c.Plugins)
	for _, point := range slices.Sorted(maps.Keys(points)) {
		for i, p := range points[point].Enabled {
			if plugins[p.Name] != nil {
				continue
			}
			factory := registry[p.Name]
			if factory == nil {
				return nil, fmt.Errorf("%s: Invalid value: %q: no such plugin",
					path.Child("plugins", point, "enabled").Index(i).Child("name"), p.Name)
			}
			a := args[p.Name]
			if a.Path == nil {
				a.Path = path.Child("pluginConfig").Key(p.Name).Child("args")
			}
			plugin, err := factory(a, h)
			if err != nil {
				return nil, fmt.Errorf("plugin %s: %w", p.Name, err)
			}
			plugins[p.Name] = plugin
		}
	}
	return plugins, nil
}

// assembly selects the plugins that take part in a step.
type assembly struct {
	multiPoint configv1.PluginSet
	plugins    map[string]framework.Plugin
	index      map[string]int
	path       *field.Path
	err        error
}

// at returns the plugins of one step: first the plugins that are enabled both for the step and under multiPoint,
// then the others of multiPoint that implement it, then the others that are enabled for it. Plugins that are
// disabled for the step are left out, but can be enabled again in another position or with another weight.
func at[P framework.Plugin](a *assembly, point string, set configv1.PluginSet) []step[P] {
	var steps []step[P]
	add := func(p configv1.Plugin) {
		weight := int64(1)
		if p.Weight != nil && *p.Weight != 0 {
			weight = int64(*p.Weight)
		}
		steps = append(steps, step[P]{index: a.index[p.Name], weight: weight, plugin: a.plugins[p.Name].(P)})
	}
	named := map[string]bool{}
	for i, p := range set.Enabled {
		if _, ok := a.plugins[p.Name].(P); !ok {
			a.err = fmt.Errorf("%s: Invalid value: %q: the plugin does not take part in this step",
				a.path.Child(point, "enabled").Index(i), p.Name)
			return nil
		}
		named[p.Name] = true
	}
	in := func(p configv1.Plugin) bool {
		return slices.ContainsFunc(a.multiPoint.Enabled, func(m configv1.Plugin) bool { return m.Name == p.Name })
	}
	for _, p := range set.Enabled {
		if in(p) {
			add(p)
		}
	}
	for _, p := range a.multiPoint.Enabled {
		if _, ok := a.plugins[p.Name].(P); ok && !named[p.Name] && !config.Disabled(set, p.Name) {
			add(p)
		}
	}
	for _, p := range set.Enabled {
		if !in(p) {
			add(p)
		}
	}
	return steps
}

func unstepped[P framework.Plugin](steps []step[P]) []P {
	var plugins []P
	for _, s := range steps {
		plugins = append(plugins, s.plugin)
	}
	return plugins
}

// allEvents wakes the pods of a plugin that registers no events.
var allEvents = func() (hints []framework.EventHint) {
	for _, r := range []framework.EventResource{framework.Node, framework.AssignedPod, framework.UnscheduledPod,
		framework.Namespace,
		framework.PersistentVolume, framework.PersistentVolumeClaim, framework.StorageClass, framework.CSINode,
		framework.CSIDriver,
		framework.CSIStorageCapacity, framework.VolumeAttachment} {
		hints = append(hints, framework.EventHint{Event: framework.ClusterEvent{Resource: r, Action: framework.All}})
	}
	return hints
}()

// runReserve calls the Reserve plugins. If one fails, all are unreserved.
func (p *profile) runReserve(state *framework.CycleState, pod *framework.PodInfo,
	node string) (status *framework.Status) {
	began := p.metrics.clock.Now()
	defer func() { p.metrics.point("Reserve", p, began, status.Code()) }()
	for _, plugin := range p.reserve {
		if status := plugin.Reserve(state, pod, node); !status.OK() {
			p.runUnreserve(state, pod, node)
			return status
		}
	}
	return nil
}

// runUnreserve calls Unreserve in the reverse order.
func (p *profile) runUnreserve(state *framework.CycleState, pod *framework.PodInfo, node string) {
	began := p.metrics.clock.Now()
	defer func() { p.metrics.point("Unreserve", p, began, framework.Success) }()
	for _, plugin := range slices.Backward(p.reserve) {
		plugin.Unreserve(state, pod, node)
	}
}

// names returns the names of all plugins.
func (p *profile) names() map[string]struct{} {
	names := make(map[string]struct{}, len(p.hints))
	for name := range p.hints {
		names[name] = struct{}{}
	}
	return names
}
