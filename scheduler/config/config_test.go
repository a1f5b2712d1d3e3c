package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

const header = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"

func names(p *Profile) (names []string) {
	for _, plugin := range p.Plugins.MultiPoint.Enabled {
		names = append(names, plugin.Name)
	}
	return names
}

func TestLoad_FillsInDefaults(t *testing.T) {
	t.Parallel()
	c, err := Load([]byte(header))
	require.NoError(t, err)
	require.Equal(t, Default(), c)
	require.Equal(t, "default-scheduler", *c.Profiles[0].SchedulerName)
	require.EqualValues(t, 10, *c.PodMaxBackoffSeconds)
	require.Contains(t, names(&c.Profiles[0]), "InterPodAffinity")
}

func TestLoad_MergesPluginsWithTheDefaults(t *testing.T) {
	t.Parallel()
	c, err := Load([]byte(header + `
profiles:
- schedulerName: quiet
  plugins:
    multiPoint:
      enabled: [{name: Mine}, {name: NodeAffinity, weight: 7}]
      disabled: [{name: ImageLocality}]
- schedulerName: bare
  plugins: {multiPoint: {enabled: [{name: PrioritySort}, {name: DefaultBinder}], disabled: [{name: "*"}]}}
`))
	require.NoError(t, err)
	quiet := names(&c.Profiles[0])
	require.NotContains(t, quiet, "ImageLocality")
	require.Equal(t, "Mine", quiet[len(quiet)-1])
	for _, p := range c.Profiles[0].Plugins.MultiPoint.Enabled {
		if p.Name == "NodeAffinity" {
			require.EqualValues(t, 7, *p.Weight)
		}
	}
	require.Equal(t, []string{"PrioritySort", "DefaultBinder"}, names(&c.Profiles[1]))
}

func TestLoad_ReportsThePathOfAnInvalidField(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ document, want string }{
		{"kind: Pod",
			`want apiVersion kubescheduler.config.k8s.io/v1 and kind KubeSchedulerConfiguration, got "" and "Pod"`},
		{header + "profiles: [{shedulerName: x}]", `unknown field "profiles[0].shedulerName"`},
		{header + "parallelism: 1\nparallelism: 2", "parallelism"},
		{header + "parallelism: 0", "parallelism: Invalid value: 0"},
		{header + "percentageOfNodesToScore: 101",
			"percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]"},
		{header + "podInitialBackoffSeconds: 20", "podMaxBackoffSeconds: Invalid value: 10"},
		{header + "profiles: [{schedulerName: a}, {schedulerName: a}]",
			`profiles[1].schedulerName: Duplicate value: "a"`},
		{header + "profiles: [{schedulerName: a}, {}]", "profiles[1].schedulerName: Required value"},
		{header + "profiles: [{pluginConfig: [{name: X}, {name: X}]}]",
			"profiles[0].pluginConfig[1]: Duplicate value"},
		{header + "profiles: [{plugins: {score: {enabled: [{name: X}, {name: X}]}}}]",
			`profiles[0].plugins.score.enabled[1]: Duplicate value: "X"`},
		{header + "extenders: [{urlPrefix: http://x}]", "extenders: Forbidden"},
		{header + "leaderElection: {leaderElect: true, leaseDuration: 5s, renewDeadline: 5s, retryPeriod: 1s}",
			"leaderElection.leaseDuration: Invalid value"},
	} {
		_, err := Load([]byte(test.document))
		require.ErrorContains(t, err, test.want, test.document)
	}
}
