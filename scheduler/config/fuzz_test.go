package config

import (
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// FuzzLoad checks that an accepted configuration is complete: encoded and loaded again, it is the same.
func FuzzLoad(f *testing.F) {
	const head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
	for _, text := range []string{
		"", head, head + "parallelism: 0\n", head + "profiles: [null]\n", head + "percentageOfNodesToScore: 101\n",
		head + "profiles: [{schedulerName: a}, {schedulerName: b, plugins: {multiPoint: {disabled: [{name: '*'}]}}}]\n",
		head + "profiles: [{plugins: {score: {enabled: [{name: ImageLocality, weight: 2147483647}]}}}]\n",
		head + "profiles: [{pluginConfig: [{name: NodeAffinity, args: {addedAffinity: {}}}]}]\n",
		head + "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated}}}]}]\n",
		head + "leaderElection: {leaseDuration: -1s}\nextenders: [{urlPrefix: 'http://e', weight: 1}]\n",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Load([]byte(text))
		if err != nil {
			return
		}
		document, err := yaml.Marshal(c)
		require.NoError(t, err)
		again, err := Load(document)
		require.NoError(t, err, "%s", document)
		documentAgain, err := yaml.Marshal(again)
		require.NoError(t, err)
		require.Equal(t, string(document), string(documentAgain))
	})
}
